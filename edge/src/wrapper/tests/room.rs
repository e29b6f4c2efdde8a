//! Tests with more Services and endpoints than one node shows.

use std::sync::Weak;

use super::*;

/// Room of a view in these tests, in bytes.
const ROOM: usize = 64 * 1024;

/// Time until a view has checked again.
const LOOKED: Duration = Duration::from_secs(61);

fn service_key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey::new(ProjectedKind::Services.resource(), namespace, name)
}

fn text(key: &ObjectKey, len: usize) -> Bytes {
    let (namespace, name) = (key.namespace(), key.name());
    let metadata =
        json!({"namespace": namespace, "name": name, "uid": name, "annotations": {"a": "x".repeat(len)}});
    json!({"kind": "Service", "apiVersion": "v1", "metadata": metadata, "spec": {}}).to_string().into()
}

fn put_in(store: &MemoryStore, namespace: &str, name: &str, len: usize) {
    let key = service_key(namespace, name);
    let write = Write::Put { uid: Uid::parse(name).unwrap(), body: text(&key, len) };
    store.commit(Mutation { key, expected: Expect::Any, write }).now_or_never().unwrap().unwrap();
}

fn names(world: &World) -> Vec<String> {
    let shown =
        world.view.list(&ProjectedKind::Services.resource(), None).map(|list| list.items).unwrap_or_default();
    shown.iter().map(|one| format!("{}/{}", one.key.namespace(), one.key.name())).collect()
}

fn start(source: Arc<dyn Store>) -> World {
    World::start_in(source, Kubernetes::AsItIs, (watch::channel(None).1, no_pods()), ROOM)
}

#[tokio::test(start_paused = true)]
async fn largest_namespace_is_left_out_and_returns() {
    let source = Source::new();
    let store = source.store();
    put_in(&store, "shop", "one", 20_000);
    put_in(&store, "eve", "e0", 20_000);
    let world = start(Arc::clone(&source) as _);
    wait_until("both", DEADLINE, async || names(&world) == ["eve/e0", "shop/one"]).await;
    for number in 1..4 {
        put_in(&store, "eve", &format!("e{number}"), 20_000);
    }
    put_in(&store, "shop", "two", 20_000);
    wait_until("what fits", DEADLINE, async || names(&world) == ["shop/one", "shop/two"]).await;
    assert_eq!(world.metrics.left_out.get(), 1);

    // A new view makes the same decision, and shows nothing that it removes later.
    let other = start(Arc::clone(&source) as _);
    wait_until("the same", DEADLINE, async || names(&other) == ["shop/one", "shop/two"]).await;
    let mut watched = other.view.watch(&ProjectedKind::Services.resource(), other.view.revision()).unwrap();
    tokio::time::sleep(2 * LOOKED).await;
    assert_eq!((names(&other), watched.next().now_or_never().is_none()), (names(&world), true));
    other.end().await;

    for number in 1..4 {
        let key = service_key("eve", &format!("e{number}"));
        let delete = Mutation { key, expected: Expect::Present, write: Write::Delete };
        store.commit(delete).now_or_never().unwrap().unwrap();
    }
    tokio::time::sleep(LOOKED).await;
    assert_eq!(names(&world), ["shop/one", "shop/two"], "it would fit without a byte to spare");
    put_in(&store, "eve", "e0", 10);
    tokio::time::sleep(LOOKED).await;
    wait_until("all", DEADLINE, async || names(&world) == ["eve/e0", "shop/one", "shop/two"]).await;
    assert_eq!(world.metrics.left_out.get(), 0);
    world.end().await;
}

/// A source that has far more objects than fit, and creates each object when it is visited.
struct Endless {
    nothing: MemoryStore,
    /// Objects that may still be in use.
    given: Mutex<Vec<Weak<Stored>>>,
    most: Mutex<usize>,
}

impl Store for Endless {
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        self.nothing.get(key)
    }

    fn each(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        look: &mut dyn FnMut(Arc<Stored>),
    ) -> Result<Revision, StoreError> {
        if *resource != ProjectedKind::Services.resource() {
            return self.nothing.each(resource, namespace, look);
        }
        let eve = (0..200).map(|number| service_key("eve", &format!("e{number}")));
        for key in eve.chain([service_key("shop", "one"), service_key("shop", "two")]) {
            let (uid, body) = (Uid::parse(key.name()).unwrap(), text(&key, 20_000));
            let object = Arc::new(Stored::new(key, uid, Revision(1), body));
            let mut given = self.given.lock();
            given.push(Arc::downgrade(&object));
            look(object);
            given.retain(|one| one.strong_count() > 0);
            let mut most = self.most.lock();
            *most = given.len().max(*most);
        }
        Ok(Revision(1))
    }

    fn list(&self, _: &Resource, _: Option<&str>) -> Result<Snapshot, StoreError> {
        Err(StoreError::Unavailable { reason: "all of it together takes too much".to_owned() })
    }

    fn list_at(&self, resource: &Resource, _: Option<&str>, _: Revision) -> Result<Snapshot, StoreError> {
        self.list(resource, None)
    }

    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError> {
        self.nothing.watch(resource, since)
    }

    fn revision(&self) -> Revision {
        Revision(1)
    }
}

#[tokio::test(start_paused = true)]
async fn objects_beyond_the_limit_are_never_in_memory_together() {
    let nothing = MemoryStore::new(Revision(1), LogLimits::default());
    let source = Arc::new(Endless { nothing, given: Mutex::default(), most: Mutex::default() });
    let world = start(Arc::clone(&source) as _);
    wait_until("what fits", DEADLINE, async || names(&world) == ["shop/one", "shop/two"]).await;
    assert!(*source.most.lock() <= ROOM / 20_000, "{} at a time", source.most.lock());
    world.end().await;
}
