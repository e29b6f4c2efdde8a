//! The queue between the session and the store, from deliveries to commits.

use std::collections::VecDeque;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{FuturesOrdered, StreamExt as _};
use tombolo_proto::frame::{Change, Refusal, RefusalReason};
use tombolo_proto::ids::{CloudRevision, Epoch, Lane, RequestId, Seq, SubscriptionId};
use tombolo_proto::message::Message;
use tracing::warn;

use crate::store::{Delivery, Refused, Reserved, Store, Welcome, WriteError};

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
    /// A reply with an object. It is passed on once the object is stored, because the cloud counts it as delivered.
    Reply {
        id: RequestId,
        reply: Box<Message>,
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

/// Finished work.
enum Finished {
    Welcome,
    /// `None` if there was nothing to store.
    Deliver(Lane, Seq, Option<Result<(), Refused>>),
    Reply(RequestId, Box<Message>),
    CaughtUp(SubscriptionId),
    Closed(Closed),
}

/// Passes the work to the store, in order. The store's writer shares a commit among the work that waits for it.
pub(super) struct Applier {
    store: Store,
    /// Work that waits for room in the writer's queue. Bounded by the session's windows: no more is delivered before
    /// something is committed.
    queue: VecDeque<Work>,
    /// Work that the writer has.
    submitted: FuturesOrdered<BoxFuture<'static, Result<Finished, WriteError>>>,
}

impl Applier {
    pub(super) fn new(store: Store) -> Self {
        Self { store, queue: VecDeque::new(), submitted: FuturesOrdered::new() }
    }

    pub(super) fn push(&mut self, work: Work) {
        self.queue.push_back(work);
    }

    /// Whether all work is in the store.
    pub(super) fn is_idle(&self) -> bool {
        self.submitted.is_empty() && self.queue.is_empty()
    }

    /// Waits for the outcome of the next work, with all that is finished as well; forever if there is no work.
    /// Cancel-safe.
    ///
    /// # Errors
    /// When the store could not write something that later work of the session builds on. The session must end.
    pub(super) async fn applied(&mut self) -> Result<ApplyOutcome, WriteError> {
        loop {
            tokio::select! {
                biased;
                reserved = self.store.reserve(), if !self.queue.is_empty() => self.submit(reserved?),
                Some(first) = self.submitted.next() => {
                    let mut outcome = ApplyOutcome::default();
                    outcome.add(first?);
                    while let Some(Some(finished)) = self.submitted.next().now_or_never() {
                        outcome.add(finished?);
                    }
                    return Ok(outcome);
                }
                else => std::future::pending::<()>().await,
            }
        }
    }

    /// Waits for the work that the writer has: a later session must find everything that it writes.
    pub(super) async fn settle(&mut self) {
        // The next session finds what is committed now; the cloud sends the rest again.
        self.queue.clear();
        while self.submitted.next().await.is_some() {}
    }

    fn submit(&mut self, reserved: Reserved) {
        let Some(work) = self.queue.pop_front() else { return };
        self.submitted.push_back(match work {
            Work::Welcome(welcome) => {
                let written = reserved.welcome(welcome);
                async { written.await.map(|()| Finished::Welcome) }.boxed()
            }
            Work::CaughtUp { subscription, epoch, revision } => {
                let written = reserved.caught_up(subscription, epoch, revision);
                async move { written.await.map(|()| Finished::CaughtUp(subscription)) }.boxed()
            }
            Work::Deliver { lane, seq, subscription: Some(subscription), change } => {
                let written = deliver(reserved, Delivery { subscription, change });
                async move { Ok(Finished::Deliver(lane, seq, Some(written.await?))) }.boxed()
            }
            Work::Reply { id, reply, change } => {
                let written = deliver(reserved, Delivery { subscription: SubscriptionId::NODE, change });
                // The caller gets the reply even if its object cannot be stored.
                async move { written.await.map(|_| Finished::Reply(id, reply)) }.boxed()
            }
            // An empty commit costs the disk as much as any other, and wakes all waiters.
            Work::Deliver { lane, seq, subscription: None, .. } => {
                std::future::ready(Ok(Finished::Deliver(lane, seq, None))).boxed()
            }
            Work::Closed(closed) => std::future::ready(Ok(Finished::Closed(closed))).boxed(),
        });
    }
}

/// Submits one delivery. A write that fails refuses this delivery; only a closed store ends the session.
fn deliver(
    reserved: Reserved,
    delivery: Delivery,
) -> impl Future<Output = Result<Result<(), Refused>, WriteError>> + Send + use<> {
    let key = delivery.change.key().clone();
    let written = reserved.apply(vec![delivery]);
    async move {
        let result = match written.await {
            Ok(mut results) => results.pop().unwrap_or(Ok(())),
            Err(WriteError::Closed) => return Err(WriteError::Closed),
            Err(error) => Err(refusal(&error)),
        };
        if let Err(refused) = &result {
            warn!(%key, reason = %refused.message, "a delivery is refused");
        }
        Ok(result)
    }
}

/// Results to pass to the session.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ApplyOutcome {
    pub(super) refused: Vec<Refusal>,
    /// Highest finished position of each lane.
    pub(super) committed: Vec<(Lane, Seq)>,
    /// Replies whose objects are stored.
    pub(super) replies: Vec<(RequestId, Box<Message>)>,
    /// Subscriptions that are complete now.
    pub(super) caught_up: Vec<SubscriptionId>,
    /// Ended subscriptions, to which nothing more will be written.
    pub(super) closed: Vec<Closed>,
    /// The start of the session is written: the subscriptions may be compared.
    pub(super) welcomed: bool,
    /// Something that the cloud sent after the welcome is on disk.
    pub(super) stored: bool,
}

impl ApplyOutcome {
    fn add(&mut self, finished: Finished) {
        match finished {
            Finished::Welcome => self.welcomed = true,
            Finished::Reply(id, reply) => self.replies.push((id, reply)),
            Finished::CaughtUp(subscription) => {
                self.stored = true;
                self.caught_up.push(subscription);
            }
            Finished::Closed(closed) => self.closed.push(closed),
            Finished::Deliver(lane, seq, result) => {
                match result {
                    Some(Ok(())) => self.stored = true,
                    Some(Err(Refused { reason, message })) => {
                        self.refused.push(Refusal { lane, seq, reason, message: cut(message) });
                    }
                    None => {}
                }
                self.commit(lane, seq);
            }
        }
    }

    fn commit(&mut self, lane: Lane, seq: Seq) {
        match self.committed.iter_mut().find(|(known, _)| *known == lane) {
            Some((_, highest)) => *highest = seq.max(*highest),
            None => self.committed.push((lane, seq)),
        }
    }
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

    use tombolo_apicore::history::LOG_COUNT_MAX;
    use tombolo_apicore::store::{Revision, Store as _};
    use tombolo_proto::ids::Uid;
    use tombolo_proto::limits::OBJECT_LEN_MAX;
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
    async fn unwanted_delivery_is_acknowledged_without_a_commit() {
        let store = store();
        let (commits, mut applier) = (store.commits(), Applier::new(store));
        applier.push(gone(None));
        let outcome = applier.applied().await.unwrap();
        assert_eq!(outcome.committed, [(Lane::Delivery, Seq(3))]);
        assert!(!commits.has_changed().unwrap());
    }

    #[tokio::test]
    async fn subscription_end_is_processed_after_earlier_deliveries() {
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
        assert!(store.subscriptions().unwrap()[0].synced, "notifications are preceded by the write");
    }

    /// Promise 4 of docs/consistency.md: of the objects that share a commit, only those that do not fit are refused.
    #[tokio::test]
    async fn object_that_does_not_fit_the_disk_fails_alone() {
        let disk = FaultyDisk::new(53);
        let mut applier = Applier::new(on(&disk));
        let epoch = Epoch { cluster: Uid::parse("cluster").unwrap(), generation: 1 };
        applier.push(Work::Welcome(Welcome { epoch, resumed: false, trim_version: 1 }));
        assert!(applier.applied().await.unwrap().welcomed);
        disk.set_capacity(disk.used());
        [(1, 0), (2, OBJECT_LEN_MAX - 1024), (3, 0)]
            .into_iter()
            .for_each(|(revision, bytes)| applier.push(sized(revision, bytes)));
        let (mut refused, mut committed, mut stored) = (Vec::new(), Vec::new(), false);
        while !applier.is_idle() {
            let outcome = applier.applied().await.unwrap();
            refused.extend(outcome.refused.iter().map(|refusal| (refusal.seq, refusal.reason)));
            committed.extend(outcome.committed);
            stored |= outcome.stored;
        }
        assert_eq!(refused, [(Seq(2), RefusalReason::StorageFull)]);
        assert_eq!((committed.last(), stored), (Some(&(Lane::Delivery, Seq(3))), true));
    }

    /// Row O30 of docs/reference/superedge.md#offline-rows, as far as decision 0009 allows: readers never wait for the
    /// disk, watchers see a change only when it is on disk, and changes that arrive meanwhile share commits.
    #[tokio::test]
    async fn slow_disk_blocks_no_reader_and_a_burst_shares_commits() {
        // As many as the history keeps: a watch that does not get the processor for a while loses none.
        const CHANGES: u64 = LOG_COUNT_MAX as u64;
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
        assert!(watch.poll_ready().unwrap().is_empty(), "state that is not on the disk is not published");
        let before = *store.commits().borrow();
        drop(held);

        let mut seen = 0;
        while !applier.is_idle() {
            let outcome = applier.applied().await.unwrap();
            assert!(outcome.refused.is_empty(), "{:?}", outcome.refused);
            seen += watch.poll_ready().unwrap().len() as u64;
            for (_, seq) in outcome.committed {
                assert!(seen >= seq.0, "watches see what is acknowledged: {seen} of {}", seq.0);
            }
        }
        assert_eq!((seen, store.revision()), (CHANGES, Revision(start.0 + CHANGES)));
        let commits = *store.commits().borrow() - before;
        assert!(commits <= CHANGES / 16, "a burst shares its commits: {commits} for {CHANGES} changes");
    }
}
