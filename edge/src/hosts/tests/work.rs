//! Tests of the cost of changes: how often the store is read.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tombolo_apicore::history::ChangeStream;
use tombolo_apicore::store::{Snapshot, Stored};
use tombolo_proto::object::Resource;

use super::*;

/// Longer than the time for which changes are gathered.
const QUIET: Duration = Duration::from_secs(1);

/// A store that counts its reads.
struct Counting {
    inner: MemoryStore,
    asked: Mutex<BTreeMap<String, usize>>,
}

impl Counting {
    fn new(store: &MemoryStore) -> Arc<Self> {
        Arc::new(Self { inner: store.clone(), asked: Mutex::default() })
    }

    fn count(&self, what: &str, resource: &Resource) {
        *self.asked.lock().entry(format!("{what} {}", resource.name)).or_default() += 1;
    }

    /// The reads since the last call, once all changes are processed.
    async fn take(&self) -> BTreeMap<String, usize> {
        tokio::time::sleep(QUIET).await;
        std::mem::take(&mut *self.asked.lock())
    }
}

impl Store for Counting {
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        self.count("get", key.resource());
        self.inner.get(key)
    }

    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError> {
        self.count("list", resource);
        self.inner.list(resource, namespace)
    }

    fn list_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        at: Revision,
    ) -> Result<Snapshot, StoreError> {
        self.count("list", resource);
        self.inner.list_at(resource, namespace, at)
    }

    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError> {
        self.inner.watch(resource, since)
    }

    fn revision(&self) -> Revision {
        self.inner.revision()
    }
}

fn asked(what: &[(&str, usize)]) -> BTreeMap<String, usize> {
    what.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect()
}

fn start(store: &MemoryStore) -> (Publisher, Arc<Counting>) {
    let counting = Counting::new(store);
    let source: Arc<dyn Store> = Arc::<Counting>::clone(&counting);
    let publisher = Publisher::start_on(source, "hosts", watch::channel(None).0, RARELY);
    (Publisher { patience: SOON, ..publisher }, counting)
}

#[tokio::test(start_paused = true)]
async fn without_a_grid_no_change_causes_work() {
    let store = cluster().await;
    remove(&store, NameInputKind::Grids, "db").await;
    let (publisher, counting) = start(&store);
    let first = counting.take().await;
    assert_eq!(
        first.keys().collect::<Vec<_>>(),
        ["list statefulsetgrids"],
        "without grids nothing else is read"
    );
    for (part, name, object) in [
        (NameInputKind::Nodes, "n2", node("a")),
        (NameInputKind::Nodes, "n1", node("b")),
        (NameInputKind::Services, "db", service("another")),
        (NameInputKind::Slices, "db-1", slice(&["db-a-0=10.0.0.9@n1"])),
        (NameInputKind::Slices, "more", slice(&["x-0=10.0.0.9@n2"])),
    ] {
        put(&store, part, name, object).await;
        assert_eq!(counting.take().await, asked(&[]), "{part:?} {name}");
    }
    // The first grid then sees the current state.
    put(&store, NameInputKind::Grids, "db", grid()).await;
    put(&store, NameInputKind::Services, "db", service("zone")).await;
    put(&store, NameInputKind::Nodes, "n1", node("a")).await;
    publisher.says("10.0.0.9 db-0.db.shop.svc.cluster.local\n").await;
    publisher.end().await;
}

#[tokio::test(start_paused = true)]
async fn work_is_proportional_to_the_change() {
    let store = cluster().await;
    let (publisher, counting) = start(&store);
    publisher.says(OF_A).await;
    counting.take().await;
    // Changes that do not affect grids of this node's units.
    let mut elsewhere = slice(&["other-0=10.0.0.7@n1"]);
    elsewhere["metadata"]["labels"]["kubernetes.io/service-name"] = "other".into();
    let mut heartbeat = node("a");
    heartbeat["metadata"]["labels"]["unrelated"] = "x".into();
    heartbeat["status"] = json!({"conditions": [{"lastHeartbeatTime": "now"}]});
    let mut noise = grid();
    noise["status"]["states"] = json!({"a": {"replicas": 1}});
    noise["status"]["owned"] = json!(["a", "b", "c"]);
    for (part, name, object) in [
        (NameInputKind::Slices, "other-1", elsewhere),
        (NameInputKind::Nodes, "n1", heartbeat),
        (NameInputKind::Nodes, "n3", node("c")),
        (NameInputKind::Services, "other", service("zone")),
        (NameInputKind::Grids, "db", noise),
    ] {
        put(&store, part, name, object).await;
        assert_eq!(counting.take().await, asked(&[]), "{part:?} {name}");
    }
    // A slice of the grid's Service: only the Service and its slices are read, without a list.
    put(&store, NameInputKind::Slices, "db-1", slice(&["db-a-0=10.0.0.3@n1"])).await;
    assert_eq!(counting.take().await, asked(&[("get endpointslices", 1), ("get services", 1)]));
    publisher.says("10.0.0.3 db-0.db.shop.svc.cluster.local\n").await;
    // A node that joins the unit.
    put(&store, NameInputKind::Slices, "db-1", slice(&["db-a-0=10.0.0.3@n1", "db-a-1=10.0.0.4@n2"])).await;
    publisher.says("10.0.0.3 db-0.db.shop.svc.cluster.local\n").await;
    counting.take().await;
    put(&store, NameInputKind::Nodes, "n2", node("a")).await;
    assert_eq!(counting.take().await, asked(&[("get endpointslices", 1), ("get services", 1)]));
    let two = "10.0.0.3 db-0.db.shop.svc.cluster.local\n10.0.0.4 db-1.db.shop.svc.cluster.local\n";
    publisher.says(two).await;
    // A slice that moves to another Service.
    let mut other = slice(&["db-a-0=10.0.0.3@n1"]);
    other["metadata"]["labels"]["kubernetes.io/service-name"] = "other".into();
    put(&store, NameInputKind::Slices, "db-1", other).await;
    publisher.says("").await;
    publisher.end().await;
}

#[tokio::test(start_paused = true)]
async fn uniform_names_follow_the_owner_of_the_stateful_set() {
    let store = cluster().await;
    let (publisher, _) = start(&store);
    publisher.says(OF_A).await;
    let mut taken = grid();
    taken["status"] = json!({"owned": ["b"], "states": {"a": {"error": {"reason": "ChildNameConflict"}}}});
    put(&store, NameInputKind::Grids, "db", taken).await;
    publisher.says("").await;
    put(&store, NameInputKind::Grids, "db", grid()).await;
    publisher.says(OF_A).await;
    // In another unit another entry of `owned` decides.
    let mut of_a = grid();
    of_a["status"]["owned"] = json!(["a"]);
    put(&store, NameInputKind::Grids, "db", of_a).await;
    put(&store, NameInputKind::Nodes, "n1", node("b")).await;
    publisher.says("").await;
    put(&store, NameInputKind::Grids, "db", grid()).await;
    publisher.says("10.0.0.2 db-0.db.shop.svc.cluster.local\n").await;
    publisher.end().await;
}
