use bytes::Bytes;
use http_body_util::BodyExt;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::Value;
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};

use super::*;
use crate::event_cache::ENCODED;
use crate::history::LogLimits;
use crate::kinds::Kinds;
use crate::memory::MemoryStore;
use crate::query::params::Params;
use crate::registry::Registry;
use crate::request_limits::{RequestLimits, WATCHES_MAX};
use crate::store::{Expect, Mutation, Write, WriteStore};

const WATCHERS: usize = 100;

struct World {
    store: Arc<MemoryStore>,
    kind: Arc<KindInfo>,
    limits: Arc<RequestLimits>,
}

impl World {
    fn new() -> Self {
        let kind = Kinds::builtin().get(&Resource::new("", "v1", "configmaps")).unwrap().clone();
        let store = Arc::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        Self { store, kind, limits: Arc::new(RequestLimits::new(WATCHES_MAX)) }
    }

    fn watch(&self, form: Form, labels: &str) -> Body {
        let params = Params::parse(&format!("watch=1&resourceVersion={}", self.store.revision()));
        let request = WatchRequest {
            kind: Arc::clone(&self.kind),
            selection: RequestSelection::parse(&self.kind, None, labels, "").unwrap(),
            params: ListParams::parse(&params, true).unwrap(),
            form,
            include: Include::Metadata,
        };
        let store: Arc<dyn Store> = self.store.clone();
        let around = Surroundings {
            store: &store,
            registry: &Registry::new(Kinds::builtin()),
            rng: &mut SmallRng::seed_from_u64(1),
            stop: CancellationToken::new(),
            slot: self.limits.enter(true, &crate::senders::Sender::everybody()),
        };
        respond(request, around, None).unwrap().into_body()
    }

    async fn put(&self, label: &str) {
        let key = ObjectKey::new(self.kind.storage.clone(), "default", "a");
        let body = format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"a","labels":{{"app":"{label}"}}}}}}"#
        );
        let write = Write::Put { uid: Uid::parse("u").unwrap(), body: body.into() };
        self.store.commit(Mutation { key, expected: Expect::Any, write }).await.unwrap();
    }
}

/// Reads one event from each watch; all must be equal.
async fn same_event(watches: &mut [Body]) -> Value {
    let mut lines: Vec<Bytes> = Vec::new();
    for watch in watches {
        lines.push(watch.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    assert!(lines.iter().all(|line| *line == lines[0]), "all watchers see the same");
    assert!(lines.iter().all(|line| line.as_ptr() == lines[0].as_ptr()), "and no watcher gets a copy");
    serde_json::from_slice(&lines[0]).unwrap()
}

#[tokio::test]
async fn an_event_is_encoded_once_for_all_watchers_of_a_form() {
    let world = World::new();
    let many = |form, labels| (0..WATCHERS).map(|_| world.watch(form, labels)).collect::<Vec<_>>();
    let (mut tables, mut metadata) = (many(Form::Table("v1"), ""), many(Form::Metadata("v1"), ""));
    let (mut plain, mut selected) = (many(Form::Object, ""), many(Form::Object, "app=web"));
    let before = ENCODED.get();

    world.put("web").await;
    let table = same_event(&mut tables).await;
    assert_eq!(table["object"]["rows"][0]["cells"][0], "a");
    assert!(table["object"]["columnDefinitions"].is_array());
    assert_eq!(same_event(&mut metadata).await["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(same_event(&mut plain).await["type"], "ADDED");
    assert_eq!(same_event(&mut selected).await["type"], "ADDED");
    assert_eq!(ENCODED.get() - before, 3, "two forms, and the text as it is stored");

    world.put("db").await;
    let table = same_event(&mut tables).await;
    assert!(table["object"]["columnDefinitions"].is_null());
    assert_eq!(same_event(&mut metadata).await["type"], "MODIFIED");
    assert_eq!(same_event(&mut plain).await["type"], "MODIFIED");
    let gone = same_event(&mut selected).await;
    assert_eq!(gone["type"], "DELETED");
    assert_eq!(gone["object"]["metadata"]["labels"]["app"], "web", "as it was");
    assert_eq!(gone["object"]["metadata"]["resourceVersion"], "3", "under the revision at which it left");
    assert_eq!(ENCODED.get() - before, 7, "and the deletion that some watchers see in it");
}
