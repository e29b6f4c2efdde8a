//! Subscriptions of edges: who may follow what, over watches that all edges share
//! (docs/security.md#rights-are-asked-for-never-remembered).

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use futures::FutureExt as _;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tombolo_proto::NodeId;
use tombolo_proto::frame::Subscribe;
use tombolo_proto::limits::FOLLOWED_MAX;
use tombolo_runtime::Tasks;

use super::access::{Access, Granted};
use super::interned::Interned;
use super::kinds::kind_of;
use super::selection::Selection;
use super::shared::{EVENTS_MAX, SharedWatch};
use crate::kube::{Kube, ListTurns, ObjectEvent, Waiting, WatchError, watch};
use crate::metrics::{Label, Metrics};

#[cfg(test)]
mod tests;

/// Shared watches at a time. For a further one that is closed which nobody has followed for longest; when somebody follows
/// each of them, it is refused with 503.
const SHARED_WATCHES_MAX: usize = 512;

/// Shared watches that are there for one node alone, those that it follows no longer included. Selectors are free to invent:
/// without this bound one node fills the places of all.
const NODE_WATCHES_MAX: usize = 32;

/// A shared watch that nobody has followed for this long is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(600);

/// Bytes that the events of all shared watches may take while they wait for the copies.
const EVENTS_BYTES_MAX: u32 = 2 * 1024 * 1024;

/// Lists at a time that confirm what shared watches do not have.
const LISTS_MAX: usize = 4;

/// Time that an edge waits for the first list.
const SYNC_LIMIT: Duration = Duration::from_secs(60);

/// Why a subscription ended or was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) code: u16,
    pub(super) reason: String,
}

impl Closed {
    pub(super) fn new(code: u16, reason: &str) -> Self {
        Self { code, reason: reason.to_owned() }
    }
}

struct Running {
    watch: Arc<SharedWatch>,
    tasks: [AbortHandle; 2],
}

/// All shared watches of one hub. Cheap to clone.
#[derive(Clone)]
pub struct Subscriptions {
    kube: Kube,
    access: Access,
    tasks: Tasks,
    metrics: Metrics,
    running: Arc<DashMap<Selection, Running>>,
    interned: Interned,
    /// Memory of the events that wait for any of the watches.
    waiting: Waiting,
    /// Places for lists that confirm something.
    lists: Arc<Semaphore>,
}

impl Subscriptions {
    /// No watches yet.
    #[must_use]
    pub fn new(kube: Kube, tasks: Tasks, metrics: Metrics) -> Self {
        let access = Access::new(kube.clone());
        let interned = Interned::new(usize::MAX).counted(&metrics);
        let lists = Arc::new(Semaphore::new(LISTS_MAX));
        let (running, waiting) = (Arc::default(), Waiting::new(EVENTS_BYTES_MAX));
        Self { kube, access, tasks, metrics, running, interned, waiting, lists }
    }

    /// The same with so many bytes for all objects that are followed. What one node alone follows may take a quarter.
    #[must_use]
    pub fn with_memory(self, bytes: usize) -> Self {
        Self { interned: Interned::new(bytes).counted(&self.metrics), ..self }
    }

    /// Checks the right to follow, then finds or starts the watch and waits until it knows everything.
    pub(super) async fn open(
        &self,
        node: &NodeId,
        subscribe: &Subscribe,
    ) -> Result<Arc<SharedWatch>, Closed> {
        self.follow_granted(self.access.check(node, subscribe).await?, Some(node)).await
    }

    /// Finds or starts the watch of what cloudcore follows for all nodes.
    pub(super) async fn follow(&self, granted: Granted) -> Result<Arc<SharedWatch>, Closed> {
        self.follow_granted(granted, None).await
    }

    async fn follow_granted(
        &self,
        granted: Granted,
        opener: Option<&NodeId>,
    ) -> Result<Arc<SharedWatch>, Closed> {
        let selection = granted.into_selection();
        let watch = self.watch_for(&selection, opener).await?;
        let outcome = synced(&watch).await;
        if outcome.is_ok() || !watch.has_failed() || watch.was_begun_by(opener) {
            return outcome.map(|()| watch);
        }
        // It was begun for another node, which may have used up its share: this one has its own.
        let own = self.watch_for(&selection, opener).await?;
        synced(&own).await.map(|()| own)
    }

    /// Asks for the right again.
    pub(super) async fn review(&self, node: &NodeId, subscribe: &Subscribe) -> Result<(), Closed> {
        match self.access.check(node, subscribe).await {
            // An API server that does not answer takes no rights away.
            Err(closed) if closed.code == 503 => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Has the API server list what a watch selects, for a node, until a list is complete that began after this one. False when
    /// the watch has ended. While the API server does not answer, this goes on, and nobody else waits for it.
    ///
    /// A node has one turn, before it waits with others: for those who list the same, and for a place. Nothing is held while
    /// a list rests.
    pub(super) async fn prove(&self, node: &NodeId, watch: &SharedWatch, since: u64) -> bool {
        while !watch.has_failed() {
            if let Some(until) = watch.rests_until() {
                tokio::time::sleep_until(until).await;
            }
            let turn = self.kube.list_turn(node).await;
            let _listing = watch.turn().await;
            if watch.lists_complete() > since {
                return true;
            }
            // Somebody else has listed meanwhile, and failed.
            if watch.has_failed() || watch.rests_until().is_some() {
                continue;
            }
            let Ok(_place) = self.lists.acquire().await else { return false };
            let Err(error) = watch.list(&self.kube, &turn).await else { continue };
            let failures = watch.list_failed();
            // The first failure, and then ever fewer.
            if failures.is_power_of_two() {
                let resource = watch.resource();
                tracing::warn!(%resource, error, failures, "cannot confirm what was deleted; edges keep it");
            }
        }
        false
    }

    /// Closes every watch, for an epoch that has ended.
    pub fn close_all(&self) {
        let closed = Closed::new(410, "the cloud's history was restored: subscribe again");
        self.running.retain(|_, running| {
            running.end(&closed);
            false
        });
        self.metrics.shared_watches.set(0);
    }

    /// Closes watches that failed or that nobody has followed for a while. Called now and then.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.running.retain(|_, running| {
            running.watch.settle();
            self.restore(&running.watch);
            let idle =
                running.watch.idle_since().is_some_and(|since| now.duration_since(since) >= IDLE_LIMIT);
            let keep = !idle && !running.watch.has_failed();
            if !keep {
                // Somebody may be about to follow it.
                running.end(&Closed::new(503, "nobody followed this watch: subscribe again"));
            }
            keep
        });
        self.interned.sweep();
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.shared_watches.set(gauge(self.running.len()));
        self.metrics.shared_watch_bytes.set(gauge(self.interned.bytes()));
    }

    /// Reads again what had to give way, where there is room now.
    fn restore(&self, watch: &Arc<SharedWatch>) {
        let Some(node) = watch.begin_to_restore() else { return };
        let (subscriptions, watch) = (self.clone(), Arc::clone(watch));
        self.tasks.spawn_isolated(format!("restoring {}", watch.resource()), async move {
            subscriptions.prove(&node, &watch, watch.lists_begun()).await;
            watch.restored();
        });
    }

    async fn watch_for(
        &self,
        selection: &Selection,
        opener: Option<&NodeId>,
    ) -> Result<Arc<SharedWatch>, Closed> {
        if let Some(running) = self.running.get(selection)
            && !running.watch.has_failed()
        {
            running.watch.ask(opener);
            return Ok(Arc::clone(&running.watch));
        }
        let kind = kind_of(&self.kube, opener, &selection.resource).await?;
        self.sweep();
        self.make_room(opener)?;
        let start = || self.start(selection, &kind, opener);
        let mut entry = self.running.entry(selection.clone()).or_insert_with(start);
        if entry.watch.has_failed() {
            entry.end(&Closed::new(503, "the watch has ended: subscribe again"));
            *entry = self.start(selection, &kind, opener);
        }
        entry.watch.ask(opener);
        Ok(Arc::clone(&entry.watch))
    }

    /// Room for one more watch: in the share of the node that asks, and in the whole. Watches that nobody follows give way.
    fn make_room(&self, opener: Option<&NodeId>) -> Result<(), Closed> {
        if let Some(node) = opener {
            let own = |running: &Running| running.watch.is_paid_by(node);
            let watches = self.running.iter().filter(|running| own(running));
            let (count, objects) =
                watches.fold((0, 0), |(count, objects), running| (count + 1, objects + running.watch.len()));
            if (count >= NODE_WATCHES_MAX || objects >= FOLLOWED_MAX) && !self.close_idle(own) {
                return Err(Closed::new(
                    429,
                    "this node alone follows as many different selections as a node may: end some first",
                ));
            }
        }
        if self.running.len() >= SHARED_WATCHES_MAX && !self.close_idle(|_| true) {
            return Err(Closed::new(
                503,
                "this hub follows as many different selections as it may: try again later",
            ));
        }
        Ok(())
    }

    /// Closes the one of these watches that nobody has followed for longest. False when all are followed.
    fn close_idle(&self, of: impl Fn(&Running) -> bool) -> bool {
        // A watch that is being listed has no followers yet, and somebody who waits for it.
        let idle = |running: &Running| running.watch.idle_since().filter(|_| running.watch.is_following());
        let candidates = self.running.iter().filter(|running| of(running));
        let oldest = candidates
            .filter_map(|running| Some((idle(&running)?, running.key().clone())))
            .min_by_key(|(since, _)| *since);
        let Some((_, selection)) = oldest else { return false };
        // Somebody may have come back meanwhile.
        let closed = self.running.remove_if(&selection, |_, running| idle(running).is_some());
        if let Some((_, running)) = &closed {
            running.end(&Closed::new(503, "this watch gave way to another: subscribe again"));
        }
        closed.is_some()
    }

    fn start(&self, selection: &Selection, kind: &str, opener: Option<&NodeId>) -> Running {
        let interned = self.interned.clone();
        let shared = SharedWatch::new(selection.resource.clone(), kind.to_owned(), interned);
        let mut spec = selection.to_watch(&self.waiting);
        let shared = Arc::new(shared.listed_at(spec.path()).begun_by(opener));
        let (listed, kube) = (Arc::clone(&shared), self.kube.clone());
        spec.list_turns = Some(ListTurns::new(move || {
            let (listed, kube) = (Arc::clone(&listed), kube.clone());
            async move { listed.own_turn(&kube).await }.boxed()
        }));
        self.interned.payers.enlist(&shared);
        let (sender, receiver) = mpsc::channel(EVENTS_MAX);
        let (failing, metrics) = (Arc::clone(&shared), self.metrics.clone());
        let failed = move |error: &WatchError| {
            metrics.watch_failures.get_or_create(&Label { kind: "subscription" }).inc();
            // Nobody waits for ever for a list that the API server refuses.
            if let Some(closed) = refused(error)
                && !failing.is_following()
            {
                failing.fail(&closed);
            }
        };
        let name = format!("shared watch of {}", selection.resource);
        let kube = self.kube.clone();
        let listing = Arc::clone(&shared);
        let seen = move |event| {
            if matches!(event, ObjectEvent::RelistStart) {
                listing.relist_begins();
            }
            event
        };
        let watching = self.tasks.spawn_isolated(name.clone(), watch(kube, spec, sender, seen, failed));
        let running = self.tasks.spawn_isolated(name, Arc::clone(&shared).run(receiver));
        Running { watch: shared, tasks: [watching, running] }
    }
}

impl Running {
    /// Stops its tasks and tells whoever follows, now or a moment later.
    fn end(&self, closed: &Closed) {
        self.watch.fail(closed);
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Waits until the watch knows everything.
async fn synced(watch: &SharedWatch) -> Result<(), Closed> {
    let synced = tokio::time::timeout(SYNC_LIMIT, watch.synced()).await;
    synced.map_err(|_| Closed::new(504, "the first list takes too long: subscribe again"))?
}

/// The API server's refusal, when the failure is one that another attempt does not heal.
fn refused(error: &WatchError) -> Option<Closed> {
    // 401 is about cloudcore's own credentials.
    let code = error.code.filter(|code| matches!(code, 400 | 402..=405 | 422))?;
    Some(Closed::new(code, &error.text))
}
