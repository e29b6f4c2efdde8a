//! The histories of a store: a bounded log of changes for each resource, and streams that read from it.
//!
//! Watchers have no queues of their own. Each is a position in the shared log, so an idle watch costs next to
//! nothing, an event is kept once whatever the number of watchers, and a watcher that falls behind the log is
//! ended (it lists again) instead of being waited for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use tokio::sync::watch;

use crate::revision::Revision;
use crate::shown::Shown;
use crate::store_error::StoreError;
use crate::stored::Newest;
use crate::stored::Stored;

#[cfg(test)]
mod tests;

/// Changes of one resource that are kept, at most.
pub const LOG_COUNT_MAX: usize = 8 * 1024;

/// Bytes of bodies that the histories of one store keep alive together, at most.
pub const LOG_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Changes of each resource that stay whatever they weigh: a burst of large objects does not end every watch.
pub const LOG_NEWEST_MIN: usize = 128;

/// The lines of watches that a store keeps may take this share of the bytes that the bodies of its histories may, and no more than
/// this: whoever writes an object says how long they are.
const SHOWN_SHARE: usize = 16;
const SHOWN_BYTES_MAX: usize = 1024 * 1024;

/// When histories hold too much, this share of what they may hold is freed besides: not every change has to look for
/// the longest one.
const SLACK_SHARE: usize = 16;

/// Changes that a stream takes out of the log at once, at most, and bytes of their bodies; a longer one comes alone. A watch
/// whose client reads slowly has the lines of one batch in memory.
const BATCH_MAX: usize = 128;
const BATCH_LEN_MAX: usize = 256 * 1024;

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It did not exist before.
    Added,
    /// It existed before.
    Modified,
    /// It no longer exists.
    Deleted,
}

/// One change in the history of a resource.
#[derive(Debug)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// The new version; for a deletion, the last state under the deletion's revision.
    pub object: Arc<Stored>,
    /// What was stored before; `None` for additions.
    pub previous: Option<Arc<Stored>>,
}

impl Change {
    /// Place of the change in the store's history.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.object.revision
    }

    /// What is stored since; `None` for deletions.
    pub(crate) fn stored(&self) -> Option<&Stored> {
        (self.kind != ChangeKind::Deleted).then_some(&*self.object)
    }

    /// Bytes that live because this change is remembered. A body counts with the change that replaces it: until then
    /// the store holds it, unless its objects are copies of what is elsewhere. The last state of what is deleted is
    /// nowhere else.
    fn cost(&self, copies: bool) -> usize {
        self.kept_alive(copies).map(Stored::body_len).sum()
    }

    fn kept_alive(&self, copies: bool) -> impl Iterator<Item = &Stored> {
        let own = (copies || self.kind == ChangeKind::Deleted).then_some(&*self.object);
        own.into_iter().chain(self.previous.as_deref())
    }
}

/// How much of the histories of one store is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Changes of each resource, at most.
    pub count: usize,
    /// Bytes of bodies of all resources together, at most.
    pub bytes: usize,
    /// Newest changes of each resource that stay even when there are more bytes.
    pub newest: usize,
    /// Whether the bodies in the history are copies, because the store has its objects on a disk.
    pub copies: bool,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { count: LOG_COUNT_MAX, bytes: LOG_BYTES_MAX, newest: LOG_NEWEST_MIN, copies: false }
    }
}

/// What the histories of one store share: their bounds, their events as they are sent, and what selectors look at.
#[derive(Debug)]
pub struct Histories {
    limits: LogLimits,
    /// Bytes that all of them keep alive.
    used: AtomicUsize,
    shown: Shown,
    labels: Newest,
}

impl Histories {
    /// No history yet.
    #[must_use]
    pub fn new(limits: LogLimits) -> Arc<Self> {
        let shown = Shown::new((limits.bytes / SHOWN_SHARE).min(SHOWN_BYTES_MAX));
        Arc::new(Self { limits, used: AtomicUsize::new(0), shown, labels: Newest::default() })
    }

    /// An empty history of one resource that starts after `start`: everything up to it is unknown.
    #[must_use]
    pub fn log(self: &Arc<Self>, start: Revision) -> Arc<Log> {
        let ring = Ring { changes: VecDeque::new(), bytes: 0, floor: start, closed: false };
        let shared = Arc::clone(self);
        Arc::new(Log { ring: RwLock::new(ring), shared, newest: watch::Sender::new(start) })
    }

    /// Bytes of bodies that live because they are remembered.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Events as they are sent.
    pub(crate) fn shown(&self) -> &Shown {
        &self.shown
    }

    /// Long labels of the newest objects.
    pub(crate) fn labels(&self) -> &Newest {
        &self.labels
    }

    /// Shortens the largest histories when all of them together are too large. To be called with every history of the
    /// store after changes were added.
    pub fn fit<'a>(&self, logs: impl Iterator<Item = &'a Arc<Log>>) {
        let (used, max) = (self.bytes(), self.limits.bytes);
        if used <= max {
            return;
        }
        let mut excess = used - max + max / SLACK_SHARE;
        let mut by_size: Vec<(usize, &Arc<Log>)> = logs.map(|log| (log.ring.read().bytes, log)).collect();
        by_size.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        for (_, log) in by_size {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(log.shorten(excess));
        }
    }

    fn count(&self, added: usize, removed: usize) {
        self.used.fetch_add(added, Ordering::Relaxed);
        self.used.fetch_sub(removed, Ordering::Relaxed);
    }
}

/// The history of one resource.
#[derive(Debug)]
pub struct Log {
    ring: RwLock<Ring>,
    shared: Arc<Histories>,
    newest: watch::Sender<Revision>,
}

#[derive(Debug)]
struct Ring {
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
    /// Changes after this revision are all in the ring.
    floor: Revision,
    closed: bool,
}

impl Drop for Log {
    fn drop(&mut self) {
        self.shared.count(0, self.ring.get_mut().bytes);
    }
}

impl Log {
    /// Appends a change, whose revision must be above all earlier ones, and wakes the watchers.
    pub fn push(&self, change: Arc<Change>) {
        let revision = change.revision();
        let LogLimits { count, copies, .. } = self.shared.limits;
        let cost = change.cost(copies);
        let mut ring = self.ring.write();
        ring.bytes += cost;
        ring.changes.push_back(change);
        let mut freed = 0;
        while ring.changes.len() > count.max(1) {
            freed += ring.pop(copies);
        }
        self.shared.count(cost, freed);
        drop(ring);
        self.newest.send_replace(revision);
    }

    /// Forgets the oldest changes until so many bytes are free, but not the newest ones. How many were freed.
    fn shorten(&self, bytes: usize) -> usize {
        let LogLimits { newest, copies, .. } = self.shared.limits;
        let mut ring = self.ring.write();
        let mut freed = 0;
        while freed < bytes && ring.changes.len() > newest.max(1) {
            freed += ring.pop(copies);
        }
        self.shared.count(0, freed);
        freed
    }

    /// Forgets the changes up to a revision: older lists and watches are answered with 410 from now on.
    pub fn compact(&self, up_to: Revision) {
        let copies = self.shared.limits.copies;
        let mut ring = self.ring.write();
        let mut freed = 0;
        while ring.changes.front().is_some_and(|change| change.revision() <= up_to) {
            freed += ring.pop(copies);
        }
        ring.floor = ring.floor.max(up_to);
        self.shared.count(0, freed);
    }

    /// Bytes that the bodies which this history keeps alive take in memory.
    pub(crate) fn held(&self) -> usize {
        let copies = self.shared.limits.copies;
        let ring = self.ring.read();
        let bodies = ring.changes.iter().flat_map(|change| change.kept_alive(copies));
        bodies.map(|object| object.text.held()).sum()
    }

    /// Ends all streams, for example because the resource is no longer served.
    pub fn close(&self) {
        self.ring.write().closed = true;
        self.newest.send_modify(|_| {});
    }

    /// A stream of the changes after a revision.
    ///
    /// # Errors
    /// [`StoreError::Expired`] when changes after it have been forgotten.
    pub fn subscribe(self: &Arc<Self>, since: Revision) -> Result<ChangeStream, StoreError> {
        let news = self.newest.subscribe();
        self.ring.read().check(since)?;
        Ok(ChangeStream { log: Arc::clone(self), news, position: since })
    }

    /// Changes after a revision, newest first, for reading the state at that revision.
    ///
    /// # Errors
    /// [`StoreError::Expired`] when changes after it have been forgotten.
    pub fn newest_first(&self, since: Revision) -> Result<Vec<Arc<Change>>, StoreError> {
        let ring = self.ring.read();
        ring.check(since)?;
        Ok(ring.changes.iter().rev().take_while(|change| change.revision() > since).cloned().collect())
    }

    /// Number of watchers.
    #[must_use]
    pub fn watchers(&self) -> usize {
        self.newest.receiver_count()
    }
}

impl Ring {
    /// Forgets the oldest change. The bytes that it kept alive.
    fn pop(&mut self, copies: bool) -> usize {
        let Some(oldest) = self.changes.pop_front() else { return 0 };
        let cost = oldest.cost(copies);
        self.bytes -= cost;
        self.floor = oldest.revision();
        cost
    }

    fn check(&self, since: Revision) -> Result<(), StoreError> {
        if since < self.floor {
            return Err(StoreError::Expired { requested: since, oldest: self.floor });
        }
        Ok(())
    }

    fn after(&self, position: Revision) -> Result<Vec<Arc<Change>>, StoreError> {
        self.check(position)?;
        let start = self.changes.partition_point(|change| change.revision() <= position);
        let mut len = 0_usize;
        let fits = |change: &&Arc<Change>| {
            let is_first = len == 0;
            // One without a body takes a place as well.
            len = len.saturating_add(change.object.body_len().max(1));
            is_first || len <= BATCH_LEN_MAX
        };
        Ok(self.changes.range(start..).take(BATCH_MAX).take_while(fits).cloned().collect())
    }
}

/// Reads a history in order, without gaps or repeats.
#[derive(Debug)]
pub struct ChangeStream {
    log: Arc<Log>,
    news: watch::Receiver<Revision>,
    position: Revision,
}

impl ChangeStream {
    /// Waits for the next changes. `None` means that the history was closed. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError::Expired`] when this stream has fallen behind the log.
    pub async fn next(&mut self) -> Result<Option<Vec<Arc<Change>>>, StoreError> {
        loop {
            self.news.borrow_and_update();
            let batch = self.poll_ready()?;
            if !batch.is_empty() {
                return Ok(Some(batch));
            }
            if self.log.ring.read().closed || self.news.changed().await.is_err() {
                return Ok(None);
            }
        }
    }

    /// The changes that are there now, without waiting.
    ///
    /// # Errors
    /// [`StoreError::Expired`] when this stream has fallen behind the log.
    pub fn poll_ready(&mut self) -> Result<Vec<Arc<Change>>, StoreError> {
        let batch = self.log.ring.read().after(self.position)?;
        if let Some(last) = batch.last() {
            self.position = last.revision();
        }
        Ok(batch)
    }

    /// Tells the stream that the store has no change of this resource up to a revision other than those already
    /// taken: an idle stream then survives the compaction of what it does not need.
    pub fn advance(&mut self, revision: Revision) {
        self.position = self.position.max(revision);
    }

    /// What this history shares with the others of its store.
    pub(crate) fn histories(&self) -> &Histories {
        &self.log.shared
    }

    /// The revision up to which everything was taken.
    #[must_use]
    pub fn position(&self) -> Revision {
        self.position
    }
}
