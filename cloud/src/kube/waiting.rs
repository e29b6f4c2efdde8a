//! Memory of the events of watches that wait to be taken.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::RawObject;

/// Bytes that the objects of events may take from the moment when they are read until they are used. Clones share them.
#[derive(Debug, Clone)]
pub struct Waiting {
    places: Arc<Semaphore>,
    max: u32,
    /// One text at a time becomes an object: until that has its bytes, nobody knows how many it takes.
    reading: Arc<Mutex<()>>,
    /// Pages of lists that are in memory.
    pages: Arc<Semaphore>,
}

/// Pages of lists in memory at a time.
pub(super) const PAGES_MAX: usize = 4;

/// An object's part of these bytes, until it is dropped.
pub(super) type Place = Arc<OwnedSemaphorePermit>;

impl Waiting {
    /// So many bytes.
    #[must_use]
    pub fn new(max: u32) -> Self {
        let places = Arc::new(Semaphore::new(max.try_into().unwrap_or(usize::MAX)));
        Self { places, max, reading: Arc::default(), pages: Arc::new(Semaphore::new(PAGES_MAX)) }
    }

    /// Waits until one more page of a list may be in memory.
    pub(super) async fn page(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.pages.acquire().await.ok()
    }

    /// Reads an object, which has its bytes from then on. Cancel-safe.
    ///
    /// # Errors
    /// It is no object.
    pub(super) async fn read(&self, text: &str) -> serde_json::Result<RawObject> {
        // Whoever uses objects waits for nothing here, so their bytes come back.
        let _one = self.reading.lock().await;
        let mut object: RawObject = serde_json::from_str(text)?;
        self.hold(&mut object).await;
        Ok(object)
    }

    /// Waits until there is room for the object, which has it from then on. One that is larger than all there is waits until
    /// nothing else is there. Cancel-safe.
    async fn hold(&self, object: &mut RawObject) {
        let bytes = u32::try_from(size_of_tree(object.value())).unwrap_or(u32::MAX).min(self.max);
        // The semaphore is never closed.
        let place = Arc::clone(&self.places).acquire_many_owned(bytes).await;
        object.set_place(place.ok().map(Arc::new));
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

/// Bytes that a JSON tree takes in memory, about: many small members take many times their text.
fn size_of_tree(value: &Value) -> usize {
    let below = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size_of_tree).sum(),
        Value::Object(members) => {
            members.iter().map(|(name, member)| size_of::<String>() + name.len() + size_of_tree(member)).sum()
        }
    };
    size_of::<Value>() + below
}
