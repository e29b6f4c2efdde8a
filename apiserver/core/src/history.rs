//! The histories of a store: a bounded log of changes per resource, and streams that read from it.
//!
//! Watchers have no queues of their own. Each is a position in the shared log, so an idle watch costs next to nothing
//! and an event is kept once whatever the number of watchers. A watcher that falls behind the log is ended (it lists
//! again), and the log never waits for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use tokio::sync::watch;

use crate::event_cache::EventCache;
use crate::revision::Revision;
use crate::store_error::StoreError;
use crate::stored::Newest;
use crate::stored::Stored;

#[cfg(test)]
mod tests;

/// Maximum number of changes kept per resource.
pub const LOG_COUNT_MAX: usize = 8 * 1024;

/// Maximum number of bytes of bodies that the histories of one store keep alive together.
pub const LOG_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Number of newest changes per resource that are kept whatever their size, so that a burst of large objects does not
/// end every watch.
pub const LOG_NEWEST_MIN: usize = 128;

/// The encoded watch events that a store keeps may take this share of the limit for bodies of its histories, up to the
/// absolute maximum below. Their length depends on the authors of the objects.
const SHOWN_SHARE: usize = 16;
const EVENT_CACHE_BYTES_MAX: usize = 1024 * 1024;

/// When histories exceed their limit, this share of it is freed in addition, so that not every change has to search for
/// the longest history.
const SLACK_SHARE: usize = 16;

/// Maximum number of changes, and of bytes of their bodies, that a stream takes from the log at once; a longer change
/// is taken alone. A watch whose client reads slowly keeps the events of one batch in memory.
const BATCH_MAX: usize = 128;
const BATCH_LEN_MAX: usize = 256 * 1024;

/// The kind of change.
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
    /// The kind of change.
    pub kind: ChangeKind,
    /// The new version; for a deletion, the last state under the deletion's revision.
    pub object: Arc<Stored>,
    /// The version that was stored before; `None` for additions.
    pub previous: Option<Arc<Stored>>,
}

impl Change {
    /// Position of the change in the store's history.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.object.revision
    }

    /// The version that is stored after the change; `None` for deletions.
    pub(crate) fn stored(&self) -> Option<&Stored> {
        (self.kind != ChangeKind::Deleted).then_some(&*self.object)
    }

    /// Bytes that this change keeps alive. A body counts with the change that replaces it: until then the store holds
    /// it, unless its objects are copies of data stored elsewhere. The last state of a deleted object exists only here.
    fn cost(&self, copies: bool) -> usize {
        self.kept_alive(copies).map(Stored::body_len).sum()
    }

    fn kept_alive(&self, copies: bool) -> impl Iterator<Item = &Stored> {
        let own = (copies || self.kind == ChangeKind::Deleted).then_some(&*self.object);
        own.into_iter().chain(self.previous.as_deref())
    }
}

/// Limits of the histories of one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Maximum number of changes per resource.
    pub count: usize,
    /// Maximum number of bytes of bodies of all resources together.
    pub bytes: usize,
    /// Number of newest changes per resource that are kept even beyond the limit of bytes.
    pub newest: usize,
    /// Whether the bodies in the history are copies, because the store keeps its objects on disk.
    pub copies: bool,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { count: LOG_COUNT_MAX, bytes: LOG_BYTES_MAX, newest: LOG_NEWEST_MIN, copies: false }
    }
}

/// What the histories of one store share: limits, encoded events, and data that selectors look at.
#[derive(Debug)]
pub struct Histories {
    limits: LogLimits,
    /// Bytes that all histories keep alive.
    used: AtomicUsize,
    events: EventCache,
    labels: Newest,
}

impl Histories {
    /// Starts without histories.
    #[must_use]
    pub fn new(limits: LogLimits) -> Arc<Self> {
        let events = EventCache::new((limits.bytes / SHOWN_SHARE).min(EVENT_CACHE_BYTES_MAX));
        Arc::new(Self { limits, used: AtomicUsize::new(0), events, labels: Newest::default() })
    }

    /// An empty history of one resource that starts after `start`: everything up to it is unknown.
    #[must_use]
    pub fn log(self: &Arc<Self>, start: Revision) -> Arc<Log> {
        let ring = Ring { changes: VecDeque::new(), bytes: 0, floor: start, closed: false };
        let shared = Arc::clone(self);
        Arc::new(Log { ring: RwLock::new(ring), shared, newest: watch::Sender::new(start) })
    }

    /// Bytes of bodies that the histories keep alive.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The encoded events.
    pub(crate) fn events(&self) -> &EventCache {
        &self.events
    }

    /// Long labels of the newest objects.
    pub(crate) fn labels(&self) -> &Newest {
        &self.labels
    }

    /// Shortens the largest histories when they exceed the limit together. Must be called with every history of the
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
    /// The ring contains all changes after this revision.
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

    /// Drops the oldest changes until this many bytes are free, but never the newest ones. Returns the bytes freed.
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

    /// Drops the changes up to a revision: older lists and watches are answered with 410 from now on.
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

    /// Memory in bytes of the bodies that this history keeps alive.
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
    /// [`StoreError::Expired`] when later changes were already dropped.
    pub fn subscribe(self: &Arc<Self>, since: Revision) -> Result<ChangeStream, StoreError> {
        let news = self.newest.subscribe();
        self.ring.read().check(since)?;
        Ok(ChangeStream { log: Arc::clone(self), news, position: since })
    }

    /// Changes after a revision, newest first, to reconstruct the state at that revision.
    ///
    /// # Errors
    /// [`StoreError::Expired`] when later changes were already dropped.
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
    /// Drops the oldest change. Returns the bytes that it kept alive.
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
            // A change without a body counts as one byte.
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

    /// The changes that are available now, without waiting.
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

    /// Tells the stream that the store has no further change of this resource up to a revision: an idle stream then
    /// survives the compaction of changes that it does not need.
    pub fn advance(&mut self, revision: Revision) {
        self.position = self.position.max(revision);
    }

    /// What the histories of the store share.
    pub(crate) fn histories(&self) -> &Histories {
        &self.log.shared
    }

    /// The revision up to which all changes were taken.
    #[must_use]
    pub fn position(&self) -> Revision {
        self.position
    }
}
