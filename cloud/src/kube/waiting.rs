//! Memory of the events of watches that wait to be taken.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tombolo_apicore::tree::{MEMBER_BYTES, OBJECT_BYTES};

use super::RawObject;
use super::tree::BLOCK_MEMBERS;

/// Memory of the events of watches, from the moment when they come until they are used. Clones share it.
#[derive(Debug, Clone)]
pub struct Waiting {
    places: Arc<Semaphore>,
    max: u32,
    /// One text at a time becomes an object: until that has its bytes, nobody knows how many it takes.
    reading: Arc<Mutex<()>>,
    /// Pages of lists that are in memory.
    pages: Arc<Semaphore>,
    /// The turn of a long line.
    lines: Turns,
}

/// Pages of lists in memory at a time.
pub(super) const PAGES_MAX: usize = 4;

/// The turn that the long lines of several watches share.
pub(super) type Turns = Arc<Semaphore>;

/// An object's part of these bytes, until it is dropped.
pub(super) type Place = Arc<OwnedSemaphorePermit>;

/// Whoever has it makes an object of a text, alone.
pub(super) struct Reading<'a> {
    waiting: &'a Waiting,
    _one: MutexGuard<'a, ()>,
}

impl Reading<'_> {
    /// Waits until there is room for the object, which has it from then on. One that is larger than all there is waits until
    /// nothing else is there.
    pub(super) async fn keep(self, object: &mut RawObject) {
        let Waiting { places, max, .. } = self.waiting;
        let bytes = u32::try_from(size_of_tree(object.value())).unwrap_or(u32::MAX).min(*max);
        // The semaphore is never closed.
        let place = Arc::clone(places).acquire_many_owned(bytes).await;
        object.set_place(place.ok().map(Arc::new));
    }
}

impl Waiting {
    /// So many bytes of objects, and one long line at a time.
    #[must_use]
    pub fn new(max: u32) -> Self {
        Self::with_turns(max, turns())
    }

    /// The same, whose long lines share these turns with others.
    pub(super) fn with_turns(max: u32, lines: Turns) -> Self {
        let places = Arc::new(Semaphore::new(max.try_into().unwrap_or(usize::MAX)));
        Self { places, max, reading: Arc::default(), pages: Arc::new(Semaphore::new(PAGES_MAX)), lines }
    }

    /// The turn of a long line.
    pub(super) fn lines(&self) -> &Turns {
        &self.lines
    }

    /// Waits until one more page of a list may be in memory.
    pub(super) async fn page(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.pages.acquire().await.ok()
    }

    /// Waits until a text may become an object. Whoever uses objects waits for nothing here, so their bytes come back.
    pub(super) async fn reading(&self) -> Reading<'_> {
        Reading { waiting: self, _one: self.reading.lock().await }
    }

    /// Whether an object is being read, or has been and waits for its bytes.
    #[cfg(test)]
    pub(super) fn is_reading(&self) -> bool {
        self.reading.try_lock().is_err()
    }

    /// Bytes that are free.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.places.available_permits()
    }
}

/// One long line at a time.
pub(super) fn turns() -> Turns {
    Arc::new(Semaphore::new(1))
}

/// Bytes that a JSON tree takes in memory, about: many small members take many times their text.
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
