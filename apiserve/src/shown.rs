//! Events of one store as they are sent, encoded once for all watchers that ask for the same form.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::accept::Form;
use crate::encode::Include;
use crate::kinds::KindInfo;
use crate::store::Revision;

#[cfg(test)]
mod tests;

/// Lines that one store keeps, at most: for as long as it takes until all watchers have had their turn.
const LINES_MAX: usize = 512;

/// What one line of a watch depends on, beside the objects of its change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ShownKey {
    /// Place of the change in the history of the store.
    pub(crate) revision: Revision,
    /// The kind as served: versions of one kind share a log, and a definition may change the columns.
    pub(crate) kind: SameKind,
    pub(crate) form: Form,
    pub(crate) include: Include,
    /// `ADDED`, `MODIFIED` or `DELETED`: a change of a label is each of them to some watcher.
    pub(crate) event: &'static str,
    /// Whether a Table names its columns: the first one of every watch does.
    pub(crate) columns: bool,
}

/// A kind that is equal to itself alone.
#[derive(Debug, Clone)]
pub(crate) struct SameKind(pub(crate) Arc<KindInfo>);

impl PartialEq for SameKind {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SameKind {}

impl Hash for SameKind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// The newest lines, up to a number of bytes; older ones go first, and a watcher that still wants one encodes it again.
#[derive(Debug)]
pub(crate) struct Shown {
    lines: Mutex<Lines>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Lines {
    by_key: HashMap<ShownKey, Line>,
    /// In the order in which they were asked for first.
    order: VecDeque<ShownKey>,
    bytes: usize,
}

type Slot = Arc<OnceLock<Bytes>>;

#[derive(Debug, Default)]
struct Line {
    slot: Slot,
    /// Length of the line as it went into [`Lines::bytes`]; 0 while it is being encoded.
    counted: usize,
}

impl Shown {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { lines: Mutex::default(), bytes_max }
    }

    /// The line under a key, encoded by the first who asks; others who ask meanwhile wait for it.
    pub(crate) fn line(&self, key: &ShownKey, encode: impl FnOnce() -> Bytes) -> Bytes {
        let slot = self.lines.lock().slot(key);
        let mut encoded = false;
        let line = slot.get_or_init(|| {
            encoded = true;
            #[cfg(test)]
            ENCODED.set(ENCODED.get() + 1);
            encode()
        });
        if encoded {
            self.lines.lock().count(key, &slot, line.len(), self.bytes_max);
        }
        line.clone()
    }
}

impl Lines {
    fn slot(&mut self, key: &ShownKey) -> Slot {
        if let Some(line) = self.by_key.get(key) {
            return Arc::clone(&line.slot);
        }
        if self.order.len() == LINES_MAX {
            self.drop_oldest();
        }
        self.order.push_back(key.clone());
        Arc::clone(&self.by_key.entry(key.clone()).or_default().slot)
    }

    /// Counts a line that has just been encoded, unless it was dropped meanwhile.
    fn count(&mut self, key: &ShownKey, slot: &Slot, len: usize, bytes_max: usize) {
        if let Some(line) = self.by_key.get_mut(key).filter(|line| Arc::ptr_eq(&line.slot, slot)) {
            line.counted = len;
            self.bytes += len;
        }
        while self.bytes > bytes_max && self.drop_oldest() {}
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(key) = self.order.pop_front() else { return false };
        self.bytes -= self.by_key.remove(&key).map_or(0, |line| line.counted);
        true
    }
}

#[cfg(test)]
thread_local! {
    /// Lines that this thread has encoded.
    pub(crate) static ENCODED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
