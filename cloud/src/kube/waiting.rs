//! Memory of the events of watches that wait to be taken.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::RawObject;

/// Bytes that the objects of events may take from the moment when they are read until they are used. Clones share them.
#[derive(Debug, Clone)]
pub struct Waiting {
    places: Arc<Semaphore>,
    max: u32,
}

/// An object's part of these bytes, until it is dropped.
pub(super) type Place = Arc<OwnedSemaphorePermit>;

impl Waiting {
    /// So many bytes.
    #[must_use]
    pub fn new(max: u32) -> Self {
        Self { places: Arc::new(Semaphore::new(max.try_into().unwrap_or(usize::MAX))), max }
    }

    /// Waits until there is room for the object, which has it from then on. One that is larger than all there is waits until
    /// nothing else is there. Cancel-safe.
    pub(super) async fn hold(&self, object: &mut RawObject) {
        let bytes = u32::try_from(size_of_tree(object.value())).unwrap_or(u32::MAX).min(self.max);
        // The semaphore is never closed.
        let place = Arc::clone(&self.places).acquire_many_owned(bytes).await;
        object.set_place(place.ok().map(Arc::new));
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
