//! A controller's input: the keys of one resource, first those of existing objects, then those of changed ones.

use std::collections::VecDeque;

use tombolo_apicore::history::ChangeStream;
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::store::Store as _;
use tombolo_proto::object::{ObjectKey, Resource};

use crate::objects::Objects;

/// Yields keys of objects to process. A key says that the object changed; the controller reads its current state from
/// the store. Thus no change is missed when the history is too short and all objects are listed again.
pub(super) struct Feed {
    store: MemoryStore,
    resource: Resource,
    pending: VecDeque<ObjectKey>,
    stream: Option<ChangeStream>,
}

impl Feed {
    /// Starts with all existing objects.
    pub(super) fn new(objects: &Objects, resource: Resource) -> Self {
        Self { store: objects.store().clone(), resource, pending: VecDeque::new(), stream: None }
    }

    /// The next key to process. `None` when the resource is no longer served. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<ObjectKey> {
        loop {
            if let Some(key) = self.pending.pop_front() {
                return Some(key);
            }
            let Some(stream) = &mut self.stream else {
                self.start();
                // Avoids a busy loop while the store cannot be read.
                tokio::task::yield_now().await;
                continue;
            };
            match stream.next().await {
                Ok(Some(changes)) => {
                    self.pending.extend(changes.iter().map(|change| change.object.key.clone()));
                }
                Ok(None) => return None,
                Err(_) => self.stream = None,
            }
        }
    }

    fn start(&mut self) {
        let Ok(snapshot) = self.store.list(&self.resource, None) else { return };
        self.pending = snapshot.items.iter().map(|item| item.key.clone()).collect();
        self.stream = self.store.watch(&self.resource, snapshot.revision).ok();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_apicore::history::LogLimits;

    use super::*;
    use crate::objects::core;

    #[tokio::test]
    async fn existing_keys_come_first_and_a_short_history_loses_no_event() {
        let limits = LogLimits { count: 2, ..LogLimits::default() };
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, limits));
        let create = async |name: &str| {
            let map = json!({"metadata": {"namespace": "default", "name": name}});
            objects.create(core("configmaps"), map).await.unwrap();
        };
        create("a").await;
        let mut feed = Feed::new(&objects, core("configmaps"));
        assert_eq!(feed.next().await.unwrap().name(), "a");
        for name in ["b", "c", "d", "e"] {
            create(name).await;
        }
        let mut seen = Vec::new();
        while seen.last().map(String::as_str) != Some("e") {
            seen.push(feed.next().await.unwrap().name().to_owned());
        }
        assert!(["b", "c", "d"].iter().all(|name| seen.iter().any(|own| own == name)), "{seen:?}");
    }
}
