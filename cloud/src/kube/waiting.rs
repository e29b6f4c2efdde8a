//! Memory for the queued events of watches.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit};
use tombolo_apicore::tree::{MEMBER_BYTES, OBJECT_BYTES};

use super::RawObject;
use super::tree::BLOCK_MEMBERS;

/// Memory for the events of watches, from their arrival until they are used. Clones share it.
#[derive(Debug, Clone)]
pub struct Waiting {
    memory: Arc<Semaphore>,
    max: u32,
    /// Only one text at a time is parsed, because the size of an object is unknown until it is parsed and has its
    /// bytes.
    reading: Arc<Mutex<()>>,
    /// Permits for pages of lists in memory.
    pages: Arc<Semaphore>,
    /// Permits for long lines.
    lines: Turns,
}

/// Maximum number of list pages in memory.
pub(super) const PAGES_MAX: usize = 4;

/// Permits for long lines, shared by several watches.
pub(super) type Turns = Arc<Semaphore>;

/// The exclusive right to parse a text into an object.
pub(super) struct Reading<'a> {
    waiting: &'a Waiting,
    _one: MutexGuard<'a, ()>,
}

impl Reading<'_> {
    /// Waits until there is room for the object and assigns that memory to it. An object larger than the total waits
    /// until all other memory is free.
    pub(super) async fn keep(self, object: &mut RawObject) {
        let Waiting { memory, max, .. } = self.waiting;
        let bytes = u32::try_from(size_of_tree(object.value())).unwrap_or(u32::MAX).min(*max);
        // The semaphore is never closed.
        let permit = Arc::clone(memory).acquire_many_owned(bytes).await;
        object.set_permit(permit.ok().map(Arc::new));
    }
}

impl Waiting {
    /// Memory for this many bytes of objects, and one long line at a time.
    #[must_use]
    pub fn new(max: u32) -> Self {
        Self::with_turns(max, turns())
    }

    /// The same, sharing the permits for long lines with others.
    pub(super) fn with_turns(max: u32, lines: Turns) -> Self {
        let memory = Arc::new(Semaphore::new(max.try_into().unwrap_or(usize::MAX)));
        Self { memory, max, reading: Arc::default(), pages: Arc::new(Semaphore::new(PAGES_MAX)), lines }
    }

    /// The permits for long lines.
    pub(super) fn lines(&self) -> &Turns {
        &self.lines
    }

    /// Waits until one more page of a list may be in memory.
    pub(super) async fn page(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.pages.acquire().await.ok()
    }

    /// Waits until a text may be parsed. Code that uses objects never waits here, so their bytes are freed eventually.
    pub(super) async fn reading(&self) -> Reading<'_> {
        Reading { waiting: self, _one: self.reading.lock().await }
    }

    /// Whether an object is being parsed, or is parsed and waits for its bytes.
    #[cfg(test)]
    pub(super) fn is_reading(&self) -> bool {
        self.reading.try_lock().is_err()
    }

    /// Number of free bytes.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.memory.available_permits()
    }
}

/// Permits for one long line at a time.
pub(super) fn turns() -> Turns {
    Arc::new(Semaphore::new(1))
}

/// Approximate bytes of a JSON tree. Many small fields take many times their text.
fn size_of_tree(value: &Value) -> usize {
    let below = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size_of_tree).sum(),
        Value::Object(members) if members.is_empty() => 0,
        Value::Object(members) => {
            let blocks = OBJECT_BYTES + members.len().saturating_sub(BLOCK_MEMBERS) * MEMBER_BYTES;
            blocks + members.iter().map(|(name, member)| name.len() + size_of_tree(member)).sum::<usize>()
        }
    };
    size_of::<Value>() + below
}
