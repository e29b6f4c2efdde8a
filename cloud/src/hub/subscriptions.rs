//! Subscriptions of edges: rights to follow, and the watches that all edges share
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
use super::closed::Closed;
use super::kinds::kind_of;
use super::selection::Selection;
use super::shared::{EVENTS_MAX, Interned, SharedWatch};
use crate::kube::{Kube, ListTurns, ObjectEvent, Waiting, WatchError, watch};
use crate::metrics::{Label, Metrics};

#[cfg(test)]
mod tests;

/// Maximum number of shared watches. For a further watch, the one that has been without followers for longest is
/// closed. If all watches have followers, the further one is refused with 503.
const SHARED_WATCHES_MAX: usize = 512;

/// Maximum number of shared watches that exist for one node alone, including those that it no longer follows. A node
/// can invent any number of selectors: without this bound it could fill the slots of all nodes.
const NODE_WATCHES_MAX: usize = 32;

/// A shared watch that has had no followers for this long is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(600);

/// Memory for queued events of all shared watches, in bytes.
const EVENTS_BYTES_MAX: u32 = 2 * 1024 * 1024;

/// Concurrent lists that confirm what shared watches do not have.
const LISTS_MAX: usize = 4;

/// Longest wait of an edge for the first list.
const SYNC_LIMIT: Duration = Duration::from_secs(60);

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
    /// Memory of the queued events of all watches.
    waiting: Waiting,
    /// Permits for lists that confirm what shared watches do not have.
    lists: Arc<Semaphore>,
}

impl Subscriptions {
    /// A hub's subscriptions, without any watch yet.
    #[must_use]
    pub fn new(kube: Kube, tasks: Tasks, metrics: Metrics) -> Self {
        let access = Access::new(kube.clone());
        let interned = Interned::new(usize::MAX).counted(&metrics);
        let lists = Arc::new(Semaphore::new(LISTS_MAX));
        let (running, waiting) = (Arc::default(), Waiting::new(EVENTS_BYTES_MAX));
        Self { kube, access, tasks, metrics, running, interned, waiting, lists }
    }

    /// The same, with this many bytes for all followed objects. The objects that one node alone follows may take a
    /// quarter of them.
    #[must_use]
    pub fn with_memory(self, bytes: usize) -> Self {
        Self { interned: Interned::new(bytes).counted(&self.metrics), ..self }
    }

    /// Checks the right to follow, then finds or starts the watch and waits until its first list is complete.
    pub(super) async fn open(
        &self,
        node: &NodeId,
        subscribe: &Subscribe,
    ) -> Result<Arc<SharedWatch>, Closed> {
        self.follow_granted(self.access.check(node, subscribe).await?, Some(node)).await
    }

    /// Finds or starts a watch that cloudcore follows for all nodes.
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
        // The watch was begun for another node, whose share may be used up. This node has its own share.
        let own = self.watch_for(&selection, opener).await?;
        synced(&own).await.map(|()| own)
    }

    /// Checks the right again.
    pub(super) async fn review(&self, node: &NodeId, subscribe: &Subscribe) -> Result<(), Closed> {
        match self.access.check(node, subscribe).await {
            // A right is not revoked because the API server does not answer.
            Err(closed) if closed.code == 503 => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Confirms what a watch does not have. The API server lists the watch's selection, in the list turn of a node,
    /// until a list with a number above `since` is complete. False when the watch has ended. While the API server does
    /// not answer, this keeps retrying, and no other task waits for it.
    ///
    /// The order of waiting is: for the node's own list turn, for the permit to list this selection, and for one of
    /// [`LISTS_MAX`] permits. Nothing is held during the pause after a failed list.
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
            // Another caller has listed meanwhile, and failed.
            if watch.has_failed() || watch.rests_until().is_some() {
                continue;
            }
            let Ok(_permit) = self.lists.acquire().await else { return false };
            let Err(error) = watch.list(&self.kube, &turn).await else { continue };
            let failures = watch.list_failed();
            // Log the first failure, then less and less often.
            if failures.is_power_of_two() {
                let (resource, error) = (watch.resource(), error.to_string());
                tracing::warn!(%resource, error, failures, "cannot confirm which objects were deleted; edges keep them");
            }
        }
        false
    }

    /// Closes every watch, because the epoch has ended.
    pub fn close_all(&self) {
        let closed = Closed::new(410, "the cluster was restored to an earlier state: subscribe again");
        self.running.retain(|_, running| {
            running.end(&closed);
            false
        });
        self.metrics.shared_watches.set(0);
    }

    /// Closes watches that have failed, or that have had no followers for a while. Called periodically.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.running.retain(|_, running| {
            running.watch.settle();
            self.restore(&running.watch);
            let idle =
                running.watch.idle_since().is_some_and(|since| now.duration_since(since) >= IDLE_LIMIT);
            let keep = !idle && !running.watch.has_failed();
            if !keep {
                // A session may be about to follow it.
                running.end(&Closed::new(503, "this watch had no followers: subscribe again"));
            }
            keep
        });
        self.interned.sweep();
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.shared_watches.set(gauge(self.running.len()));
        self.metrics.shared_watch_bytes.set(gauge(self.interned.bytes()));
    }

    /// Reads withheld objects again if there is room now.
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

    /// Makes room for one more watch, both in the bound of the node that asks and in the total. Watches without
    /// followers are closed for it.
    fn make_room(&self, opener: Option<&NodeId>) -> Result<(), Closed> {
        if let Some(node) = opener {
            let own = |running: &Running| running.watch.is_paid_by(node);
            let watches = self.running.iter().filter(|running| own(running));
            let (count, objects) =
                watches.fold((0, 0), |(count, objects), running| (count + 1, objects + running.watch.len()));
            if (count >= NODE_WATCHES_MAX || objects >= FOLLOWED_MAX) && !self.close_idle(own) {
                return Err(Closed::new(
                    429,
                    "this node alone follows the maximum number of different selections: end some first",
                ));
            }
        }
        if self.running.len() >= SHARED_WATCHES_MAX && !self.close_idle(|_| true) {
            return Err(Closed::new(
                503,
                "this hub follows the maximum number of different selections: try again later",
            ));
        }
        Ok(())
    }

    /// Closes the matching watch that has been without followers for longest. False when all of them have followers.
    fn close_idle(&self, of: impl Fn(&Running) -> bool) -> bool {
        // A watch before its first list has no followers yet, but a caller waits for it.
        let idle = |running: &Running| running.watch.idle_since().filter(|_| running.watch.is_following());
        let candidates = self.running.iter().filter(|running| of(running));
        let oldest = candidates
            .filter_map(|running| Some((idle(&running)?, running.key().clone())))
            .min_by_key(|(since, _)| *since);
        let Some((_, selection)) = oldest else { return false };
        // A session may have followed it meanwhile.
        let closed = self.running.remove_if(&selection, |_, running| idle(running).is_some());
        if let Some((_, running)) = &closed {
            running.end(&Closed::new(503, "this watch was evicted in favour of another: subscribe again"));
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
            // Callers must not wait for ever for a list that the API server refuses.
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
    /// Stops its tasks. Its followers are notified now, or a moment later.
    fn end(&self, closed: &Closed) {
        self.watch.fail(closed);
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Waits until the first list of the watch is complete.
async fn synced(watch: &SharedWatch) -> Result<(), Closed> {
    let synced = tokio::time::timeout(SYNC_LIMIT, watch.synced()).await;
    synced.map_err(|_| Closed::new(504, "the first list takes too long: subscribe again"))?
}

/// The API server's refusal, if a retry cannot help.
fn refused(error: &WatchError) -> Option<Closed> {
    // 401 would be about cloudcore's own credentials.
    let code = error.code.filter(|code| matches!(code, 400 | 402..=405 | 422))?;
    Some(Closed::new(code, &error.text))
}
