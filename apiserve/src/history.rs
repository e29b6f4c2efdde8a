//! The history of one resource: a bounded log of changes, and streams that read from it.
//!
//! Watchers have no queues of their own. Each is a position in the shared log, so an idle watch costs next to
//! nothing, an event is kept once whatever the number of watchers, and a watcher that falls behind the log is
//! ended (it lists again) instead of being waited for.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;

use crate::shown::Shown;
use crate::store::{Revision, StoreError, Stored};

#[cfg(test)]
mod tests;

/// Changes of one resource that are kept, at most.
pub const LOG_COUNT_MAX: usize = 8 * 1024;

/// Bytes of bodies that the changes of one resource keep alive, at most.
pub const LOG_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The lines of watches that a log keeps may take this share of the bytes that its bodies may.
const SHOWN_SHARE: usize = 8;

/// Changes that a stream takes out of the log at once, at most.
const BATCH_MAX: usize = 128;

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

    fn cost(&self) -> usize {
        // The new body usually lives on in the store; the previous one lives only here.
        self.object.body.len() + self.previous.as_ref().map_or(0, |previous| previous.body.len())
    }
}

/// How much of a history is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Changes, at most.
    pub count: usize,
    /// Bytes of bodies, at most (the newest change is kept whatever its size).
    pub bytes: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { count: LOG_COUNT_MAX, bytes: LOG_BYTES_MAX }
    }
}

/// The history of one resource.
#[derive(Debug)]
pub struct Log {
    ring: RwLock<Ring>,
    shown: Shown,
    newest: watch::Sender<Revision>,
}

#[derive(Debug)]
struct Ring {
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
    /// Changes after this revision are all in the ring.
    floor: Revision,
    closed: bool,
    limits: LogLimits,
}

impl Log {
    /// An empty history that starts after `start`: everything up to it is unknown.
    #[must_use]
    pub fn new(start: Revision, limits: LogLimits) -> Arc<Self> {
        let ring = Ring { changes: VecDeque::new(), bytes: 0, floor: start, closed: false, limits };
        let shown = Shown::new(limits.bytes / SHOWN_SHARE);
        Arc::new(Self { ring: RwLock::new(ring), shown, newest: watch::Sender::new(start) })
    }

    /// Appends a change, whose revision must be above all earlier ones, and wakes the watchers.
    pub fn push(&self, change: Arc<Change>) {
        let revision = change.revision();
        let mut ring = self.ring.write();
        ring.bytes += change.cost();
        ring.changes.push_back(change);
        while ring.changes.len() > ring.limits.count.max(1)
            || (ring.bytes > ring.limits.bytes && ring.changes.len() > 1)
        {
            let Some(oldest) = ring.changes.pop_front() else { break };
            ring.bytes = ring.bytes.saturating_sub(oldest.cost());
            ring.floor = oldest.revision();
        }
        drop(ring);
        self.newest.send_replace(revision);
    }

    /// Forgets the changes up to a revision: older lists and watches are answered with 410 from now on.
    pub fn compact(&self, up_to: Revision) {
        let mut ring = self.ring.write();
        while ring.changes.front().is_some_and(|change| change.revision() <= up_to) {
            let Some(oldest) = ring.changes.pop_front() else { break };
            ring.bytes = ring.bytes.saturating_sub(oldest.cost());
        }
        ring.floor = ring.floor.max(up_to);
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
    fn check(&self, since: Revision) -> Result<(), StoreError> {
        if since < self.floor {
            return Err(StoreError::Expired { requested: since, oldest: self.floor });
        }
        Ok(())
    }

    fn after(&self, position: Revision) -> Result<Vec<Arc<Change>>, StoreError> {
        self.check(position)?;
        let start = self.changes.partition_point(|change| change.revision() <= position);
        Ok(self.changes.range(start..).take(BATCH_MAX).cloned().collect())
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

    /// Events of this history as they are sent.
    pub(crate) fn shown(&self) -> &Shown {
        &self.log.shown
    }

    /// The revision up to which everything was taken.
    #[must_use]
    pub fn position(&self) -> Revision {
        self.position
    }
}
