//! Encoded watch events of one store, shared by all watchers that request the same form.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::accept::Form;
use crate::encode::Include;
use crate::kinds::KindInfo;
use crate::revision::Revision;

#[cfg(test)]
mod tests;

/// Maximum number of events that one store keeps: long enough for all watchers to be scheduled.
const LINES_MAX: usize = 512;

/// Events of at least this length that some watcher still holds are shared with later watchers.
const PASSING_LEN_MIN: usize = 16 * 1024;

/// Everything that an encoded event depends on, besides the objects of its change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ShownKey {
    /// Position of the change in the history of the store.
    pub(crate) revision: Revision,
    /// The kind as served: versions of one kind share a log, and a definition may change the columns.
    pub(crate) kind: SameKind,
    pub(crate) form: Form,
    pub(crate) include: Include,
    /// `ADDED`, `MODIFIED` or `DELETED`: a label change can be each of them, depending on the watcher.
    pub(crate) event: &'static str,
    /// Whether a Table includes its columns: the first one of every watch does.
    pub(crate) columns: bool,
}

/// A kind that is compared by identity.
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

/// The newest encoded events, up to a number of bytes. Of older ones, only those are known that some watcher still
/// holds; a watcher that needs another one encodes it again.
#[derive(Debug)]
pub(crate) struct EventCache {
    lines: Mutex<Lines>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Lines {
    by_key: HashMap<ShownKey, EventSlot>,
    /// In order of first use.
    order: VecDeque<ShownKey>,
    /// Events that are kept even if no watcher holds them, with their lengths, oldest first.
    kept: VecDeque<(EventSlot, usize)>,
    bytes: usize,
}

type EventSlot = Arc<Mutex<CachedEvent>>;

#[derive(Debug, Default)]
enum CachedEvent {
    #[default]
    None,
    Kept(Arc<Bytes>),
    /// Kept only while a watcher holds it.
    Passing(Weak<Bytes>),
}

impl EventCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { lines: Mutex::default(), bytes_max }
    }

    /// The event under a key. The first watcher encodes it; others wait for that.
    pub(crate) fn line(&self, key: &ShownKey, encode: impl FnOnce() -> Bytes) -> Bytes {
        let slot = self.lines.lock().slot(key);
        let mut line = slot.lock();
        if let Some(known) = line.known() {
            return known;
        }
        #[cfg(test)]
        ENCODED.set(ENCODED.get() + 1);
        let encoded = Arc::new(encode());
        *line = CachedEvent::Kept(Arc::clone(&encoded));
        drop(line);
        self.lines.lock().keep(slot, encoded.len(), self.bytes_max);
        given(encoded)
    }
}

/// The event as handed to a watcher: while the watcher holds it, others can find it.
fn given(line: Arc<Bytes>) -> Bytes {
    struct Given(Arc<Bytes>);
    impl AsRef<[u8]> for Given {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    match line.len() {
        // Encoding it again is cheap.
        ..PASSING_LEN_MIN => Bytes::clone(&line),
        _ => Bytes::from_owner(Given(line)),
    }
}

impl CachedEvent {
    fn known(&self) -> Option<Bytes> {
        match self {
            Self::None => None,
            Self::Kept(line) => Some(given(Arc::clone(line))),
            Self::Passing(line) => line.upgrade().map(given),
        }
    }

    fn pass(&mut self) {
        if let Self::Kept(line) = self {
            *self = Self::Passing(Arc::downgrade(line));
        }
    }
}

impl Lines {
    fn slot(&mut self, key: &ShownKey) -> EventSlot {
        if let Some(slot) = self.by_key.get(key) {
            return Arc::clone(slot);
        }
        if self.order.len() == LINES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_key.remove(&oldest);
        }
        self.order.push_back(key.clone());
        Arc::clone(self.by_key.entry(key.clone()).or_default())
    }

    /// Keeps a newly encoded event, in place of the oldest ones.
    fn keep(&mut self, slot: EventSlot, len: usize, bytes_max: usize) {
        self.kept.push_back((slot, len));
        self.bytes += len;
        while (self.bytes > bytes_max || self.kept.len() > LINES_MAX)
            && let Some((oldest, len)) = self.kept.pop_front()
        {
            oldest.lock().pass();
            self.bytes -= len;
        }
    }
}

#[cfg(test)]
thread_local! {
    /// Events that this thread has encoded.
    pub(crate) static ENCODED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
