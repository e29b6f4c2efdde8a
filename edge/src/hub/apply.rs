//! The queue between the session and the store, from deliveries to commits.

use std::collections::VecDeque;

use futures::future::BoxFuture;
use tombolo_proto::frame::{Change, Refusal, RefusalReason};
use tombolo_proto::ids::{CloudRevision, Epoch, Lane, Seq, SubscriptionId};

use crate::store::{Delivery, Refused, Store, Welcome, WriteError};

/// Maximum number of deliveries in one transaction. With more, acknowledgements would wait too long.
const GROUP_MAX: usize = 64;

/// Longest text of a refusal on the wire, in bytes.
const MESSAGE_MAX: usize = 1024;

/// Work for the store, in the order of the session's events.
#[derive(Debug)]
pub(super) enum Work {
    Welcome(Welcome),
    /// A delivery of a subscription of the store; `None` if it is no longer followed, and the delivery is dropped.
    Deliver {
        lane: Lane,
        seq: Seq,
        subscription: Option<SubscriptionId>,
        change: Change,
    },
    CaughtUp {
        subscription: SubscriptionId,
        epoch: Epoch,
        revision: CloudRevision,
    },
    /// The cloud has ended a subscription of the store. Queued behind its earlier deliveries, which must not be written
    /// after the subscription was cleared.
    Closed(Closed),
}

/// The end of a subscription of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) subscription: SubscriptionId,
    pub(super) code: u16,
    pub(super) reason: String,
}

/// Waiting work. Bounded by the session's windows: no more is delivered before something is committed.
#[derive(Debug, Default)]
struct Queue(VecDeque<Work>);

/// Passes the work to the store, one call at a time.
pub(super) struct Applier {
    store: Store,
    queue: Queue,
    applying: Option<BoxFuture<'static, Result<Outcome, WriteError>>>,
}

impl Applier {
    pub(super) fn new(store: Store) -> Self {
        Self { store, queue: Queue::default(), applying: None }
    }

    pub(super) fn push(&mut self, work: Work) {
        self.queue.push(work);
    }

    /// Whether all work is in the store.
    pub(super) fn is_idle(&self) -> bool {
        self.applying.is_none() && self.queue.0.is_empty()
    }

    /// Waits for the outcome of the next call; forever if there is no work. Cancel-safe.
    ///
    /// # Errors
    /// When the store could not write something that later work of the session builds on. The session must end.
    pub(super) async fn applied(&mut self) -> Result<Outcome, String> {
        if self.applying.is_none()
            && let Some(group) = self.queue.next_group()
        {
            self.applying = Some(Box::pin(execute(self.store.clone(), group)));
        }
        let Some(work) = &mut self.applying else { return std::future::pending().await };
        let outcome = work.await;
        self.applying = None;
        outcome.map_err(|error| format!("cannot write to the store: {error}"))
    }

    /// Waits for the current call: a later session must find everything that it writes.
    pub(super) async fn settle(&mut self) {
        if let Some(applying) = self.applying.take() {
            // The next session finds what is committed now; the cloud sends the rest again.
            let _ = applying.await;
        }
    }
}

/// Work for one call of the store.
#[derive(Debug)]
enum Group {
    Welcome(Welcome),
    Deliver(Vec<(Lane, Seq, Option<Delivery>)>),
    CaughtUp { subscription: SubscriptionId, epoch: Epoch, revision: CloudRevision },
    Closed(Closed),
}

/// Results to pass to the session.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) refused: Vec<Refusal>,
    /// Highest finished position of each lane.
    pub(super) committed: Vec<(Lane, Seq)>,
    /// Subscriptions that are complete now.
    pub(super) caught_up: Vec<SubscriptionId>,
    /// Ended subscriptions, to which nothing more will be written.
    pub(super) closed: Vec<Closed>,
    /// The start of the session is written: the subscriptions may be compared.
    pub(super) welcomed: bool,
    /// Something that the cloud sent after the welcome is on disk.
    pub(super) stored: bool,
}

impl Queue {
    fn push(&mut self, work: Work) {
        self.0.push_back(work);
    }

    /// The next work. Consecutive deliveries are grouped.
    fn next_group(&mut self) -> Option<Group> {
        let first = match self.0.pop_front()? {
            Work::Welcome(welcome) => return Some(Group::Welcome(welcome)),
            Work::CaughtUp { subscription, epoch, revision } => {
                return Some(Group::CaughtUp { subscription, epoch, revision });
            }
            Work::Closed(closed) => return Some(Group::Closed(closed)),
            Work::Deliver { lane, seq, subscription, change } => (lane, seq, delivery(subscription, change)),
        };
        let mut group = vec![first];
        while group.len() < GROUP_MAX && matches!(self.0.front(), Some(Work::Deliver { .. })) {
            if let Some(Work::Deliver { lane, seq, subscription, change }) = self.0.pop_front() {
                group.push((lane, seq, delivery(subscription, change)));
            }
        }
        Some(Group::Deliver(group))
    }
}

/// Does the work.
///
/// # Errors
/// [`WriteError`] when the store could not write something that later work builds on. The session must end.
async fn execute(store: Store, group: Group) -> Result<Outcome, WriteError> {
    match group {
        Group::Welcome(welcome) => {
            store.welcome(welcome).await.map(|()| Outcome { welcomed: true, ..Outcome::default() })
        }
        Group::CaughtUp { subscription, epoch, revision } => {
            let outcome = Outcome { caught_up: vec![subscription], stored: true, ..Outcome::default() };
            store.caught_up(subscription, epoch, revision).await.map(|()| outcome)
        }
        Group::Closed(closed) => Ok(Outcome { closed: vec![closed], ..Outcome::default() }),
        Group::Deliver(group) => deliver(&store, group).await,
    }
}

fn delivery(subscription: Option<SubscriptionId>, change: Change) -> Option<Delivery> {
    subscription.map(|subscription| Delivery { subscription, change })
}

async fn deliver(store: &Store, group: Vec<(Lane, Seq, Option<Delivery>)>) -> Result<Outcome, WriteError> {
    let deliveries: Vec<_> = group.iter().filter_map(|(.., delivery)| delivery.clone()).collect();
    let mut results = write(store, deliveries).await?.into_iter();
    let mut outcome = Outcome::default();
    for (lane, seq, delivery) in group {
        let result = delivery.and_then(|delivery| Some((delivery, results.next()?)));
        outcome.stored |= matches!(result, Some((_, Ok(()))));
        if let Some((delivery, Err(refused))) = result {
            tracing::warn!(key = %delivery.change.key(), reason = %refused.message, "a delivery is refused");
            outcome.refused.push(Refusal {
                lane,
                seq,
                reason: refused.reason,
                message: cut(refused.message),
            });
        }
        match outcome.committed.iter_mut().find(|(known, _)| *known == lane) {
            Some((_, highest)) => *highest = seq.max(*highest),
            None => outcome.committed.push((lane, seq)),
        }
    }
    Ok(outcome)
}

async fn write(store: &Store, deliveries: Vec<Delivery>) -> Result<Vec<Result<(), Refused>>, WriteError> {
    // An empty commit costs the disk as much as any other, and wakes all waiters.
    if deliveries.is_empty() {
        return Ok(Vec::new());
    }
    match store.apply(deliveries.clone()).await {
        Err(WriteError::Closed) => Err(WriteError::Closed),
        Err(error) if deliveries.len() == 1 => Ok(vec![Err(refusal(&error))]),
        // One object that does not fit must not make others fail.
        Err(_) => one_by_one(store, deliveries).await,
        written => written,
    }
}

async fn one_by_one(
    store: &Store,
    deliveries: Vec<Delivery>,
) -> Result<Vec<Result<(), Refused>>, WriteError> {
    let mut results = Vec::with_capacity(deliveries.len());
    for delivery in deliveries {
        match store.apply(vec![delivery]).await {
            Ok(mut one) => results.push(one.pop().unwrap_or(Ok(()))),
            Err(WriteError::Closed) => return Err(WriteError::Closed),
            Err(error) => results.push(Err(refusal(&error))),
        }
    }
    Ok(results)
}

fn refusal(error: &WriteError) -> Refused {
    let reason = match error {
        WriteError::Full => RefusalReason::StorageFull,
        _ => RefusalReason::Storage,
    };
    Refused { reason, message: error.to_string() }
}

fn cut(mut message: String) -> String {
    let mut end = MESSAGE_MAX.min(message.len());
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.truncate(end);
    message
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures::FutureExt;
    use tombolo_apicore::store::{Revision, Store as _};
    use tombolo_proto::ids::Uid;
    use tombolo_proto::limits::{OBJECT_LEN_MAX, WINDOW_COUNT};
    use tombolo_proto::object::{ContentHash, ObjectKey, ObjectVersion, Resource, SharedObject};
    use tombolo_testkit::wait_for;

    use super::*;
    use crate::store::{FaultyDisk, LogBounds, Sealer, Selection};

    const DEADLINE: Duration = Duration::from_secs(20);

    fn store() -> Store {
        on(&FaultyDisk::new(51))
    }

    fn on(disk: &FaultyDisk) -> Store {
        Store::open_on(Box::new(disk.clone()), Sealer::new(&[9; 32]), LogBounds::default()).unwrap().store
    }

    /// One of ten ConfigMaps, at a revision that is in its text.
    fn changed(revision: u64) -> Work {
        sized(revision, 0)
    }

    fn sized(revision: u64, bytes: usize) -> Work {
        let key =
            ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", &format!("m{}", revision % 10));
        let text = format!(
            r#"{{"apiVersion":"v1","metadata":{{"name":"{}","namespace":"default","uid":"u"}},"data":{{"at":"{revision}","pad":"{}"}}}}"#,
            key.name(),
            "x".repeat(bytes)
        );
        let (uid, hash) = (Uid::parse("u").unwrap(), ContentHash(revision.into()));
        let version = ObjectVersion { uid, revision: CloudRevision(revision), hash };
        let object = SharedObject::new(key, version, text.into(), Vec::new());
        let change = Change::Upsert(Arc::new(object));
        Work::Deliver {
            lane: Lane::Delivery,
            seq: Seq(revision),
            subscription: Some(SubscriptionId::NODE),
            change,
        }
    }

    fn gone(subscription: Option<SubscriptionId>) -> Work {
        let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", "app");
        Work::Deliver { lane: Lane::Delivery, seq: Seq(3), subscription, change: Change::Absent { key } }
    }

    #[tokio::test]
    async fn what_nobody_wants_any_more_is_acknowledged_without_a_commit() {
        let store = store();
        let (commits, mut applier) = (store.commits(), Applier::new(store));
        applier.push(gone(None));
        let outcome = applier.applied().await.unwrap();
        assert_eq!(outcome.committed, [(Lane::Delivery, Seq(3))]);
        assert!(!commits.has_changed().unwrap());
    }

    #[tokio::test]
    async fn the_end_of_a_subscription_comes_after_what_was_told_before() {
        let store = store();
        let subscription =
            store.open_subscription(Selection::all(Resource::new("", "v1", "configmaps"))).await.unwrap();
        let epoch = Epoch { cluster: Uid::parse("cluster").unwrap(), generation: 1 };
        let mut applier = Applier::new(store.clone());
        let closed = Closed { subscription, code: 403, reason: String::new() };
        applier.push(gone(Some(subscription)));
        applier.push(Work::CaughtUp { subscription, epoch, revision: CloudRevision(1) });
        applier.push(Work::Closed(closed.clone()));
        let mut told = Vec::new();
        while !applier.is_idle() {
            told.extend(applier.applied().await.unwrap().closed);
            assert_eq!(!told.is_empty(), applier.is_idle(), "it is the last");
        }
        assert_eq!(told, [closed]);
        assert!(store.subscriptions().unwrap()[0].synced, "what was told before is written");
    }

    /// Promise 4 of docs/consistency.md: of the objects that share a commit, only those that do not fit are refused.
    #[tokio::test]
    async fn an_object_that_the_disk_has_no_room_for_takes_no_other_one_with_it() {
        let disk = FaultyDisk::new(53);
        let mut applier = Applier::new(on(&disk));
        let epoch = Epoch { cluster: Uid::parse("cluster").unwrap(), generation: 1 };
        applier.push(Work::Welcome(Welcome { epoch, resumed: false, trim_version: 1 }));
        assert!(applier.applied().await.unwrap().welcomed);
        disk.set_capacity(disk.used());
        [(1, 0), (2, OBJECT_LEN_MAX - 1024), (3, 0)]
            .into_iter()
            .for_each(|(revision, bytes)| applier.push(sized(revision, bytes)));
        let outcome = applier.applied().await.unwrap();
        let refused: Vec<_> = outcome.refused.iter().map(|refusal| (refusal.seq, refusal.reason)).collect();
        assert_eq!(refused, [(Seq(2), RefusalReason::StorageFull)]);
        assert_eq!((outcome.committed, outcome.stored), (vec![(Lane::Delivery, Seq(3))], true));
        assert!(applier.is_idle());
    }

    /// Row O30 of docs/reference/superedge.md#offline-rows, as far as decision 0009 allows: readers never wait for the
    /// disk, watchers see a change only when it is on disk, and changes that arrive meanwhile share commits.
    #[tokio::test]
    async fn a_slow_disk_keeps_no_reader_waiting_and_a_burst_shares_its_commits() {
        const CHANGES: u64 = 10_000;
        let disk = FaultyDisk::new(52);
        let store = on(&disk);
        let mut applier = Applier::new(store.clone());
        let epoch = Epoch { cluster: Uid::parse("cluster").unwrap(), generation: 1 };
        applier.push(Work::Welcome(Welcome { epoch: epoch.clone(), resumed: false, trim_version: 1 }));
        applier.push(Work::CaughtUp {
            subscription: SubscriptionId::NODE,
            epoch,
            revision: CloudRevision(1),
        });
        while !applier.is_idle() {
            applier.applied().await.unwrap();
        }
        let maps = Resource::new("", "v1", "configmaps");
        let start = store.revision();
        let mut watch = store.watch(&maps, start).unwrap();
        (1..=CHANGES).for_each(|revision| applier.push(changed(revision)));

        let held = disk.hold();
        assert!(applier.applied().now_or_never().is_none());
        wait_for("the commit to wait for the disk", DEADLINE, || async {
            disk.is_waiting().then_some(()).ok_or_else(|| "nothing waits".to_owned())
        })
        .await;
        let reader = store.clone();
        let reads = tokio::task::spawn_blocking(move || {
            let maps = Resource::new("", "v1", "configmaps");
            for _ in 0..1000 {
                assert_eq!(reader.list(&maps, None).unwrap().items.len(), 0);
                reader.watch(&maps, start).unwrap();
            }
            reader.revision()
        });
        let read = tokio::time::timeout(DEADLINE, reads).await.expect("readers do not wait").unwrap();
        assert_eq!(read, start);
        assert!(watch.poll_ready().unwrap().is_empty(), "what is not on the disk is not told");
        let before = *store.commits().borrow();
        drop(held);

        let mut told = 0;
        while !applier.is_idle() {
            let outcome = applier.applied().await.unwrap();
            assert!(outcome.refused.is_empty(), "{:?}", outcome.refused);
            let changes = watch.poll_ready().unwrap();
            assert!(!changes.is_empty(), "what is acknowledged is told");
            told += changes.len() as u64;
        }
        assert_eq!((told, store.revision()), (CHANGES, Revision(start.0 + CHANGES)));
        let commits = *store.commits().borrow() - before;
        assert_eq!(commits, CHANGES.div_ceil(WINDOW_COUNT as u64), "what may be on its way shares one");
    }
}
