use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::store::{Expect, Mutation, Revision, Write, WriteStore};
use tombolo_proto::ids::Uid;
use tombolo_proto::object::ObjectKey;
use tombolo_runtime::Tasks;

use super::inputs::NameInputKind;
use super::*;

mod work;

/// A timeout on the paused clock, longer than a period.
const DEADLINE: Duration = Duration::from_secs(90);
const PERIOD: Duration = Duration::from_secs(30);

/// A period longer than any test, and a timeout on the paused clock for changes that do not wait for the period.
const RARELY: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(2);

fn key(part: NameInputKind, name: &str) -> ObjectKey {
    let namespace = if part == NameInputKind::Nodes { "" } else { "shop" };
    ObjectKey::new(part.resource(), namespace, name)
}

async fn put(store: &MemoryStore, part: NameInputKind, name: &str, mut object: Value) {
    object["metadata"]["name"] = name.into();
    object["metadata"]["uid"] = name.into();
    if part != NameInputKind::Nodes {
        object["metadata"]["namespace"] = "shop".into();
    }
    let write = Write::Put { uid: Uid::parse(name).unwrap(), body: object.to_string().into() };
    store.commit(Mutation { key: key(part, name), expected: Expect::Any, write }).await.unwrap();
}

async fn remove(store: &MemoryStore, part: NameInputKind, name: &str) {
    let mutation = Mutation { key: key(part, name), expected: Expect::Present, write: Write::Delete };
    store.commit(mutation).await.unwrap();
}

fn node(zone: &str) -> Value {
    json!({"metadata": {"labels": {"zone": zone}}})
}

fn grid() -> Value {
    json!({
        "metadata": {}, "spec": {"gridUniqKey": "zone", "template": {"serviceName": "db"}},
        "status": {"owned": ["a", "b"]},
    })
}

fn service(key: &str) -> Value {
    json!({"metadata": {"labels": {"superedge.io/grid-uniq-key": key}}})
}

/// Pods as `name=address@node`.
fn slice(pods: &[&str]) -> Value {
    let endpoint = |pod: &&str| {
        let (name, rest) = pod.split_once('=').unwrap();
        let (address, node) = rest.split_once('@').unwrap();
        json!({"addresses": [address], "nodeName": node, "targetRef": {"kind": "Pod", "name": name}})
    };
    let endpoints: Vec<_> = pods.iter().map(endpoint).collect();
    json!({"metadata": {"labels": {"kubernetes.io/service-name": "db"}}, "addressType": "IPv4", "endpoints": endpoints})
}

/// A node of zone a, one of zone b, and a grid with a pod in each.
async fn cluster() -> MemoryStore {
    let store = MemoryStore::new(Revision(1), LogLimits::default());
    put(&store, NameInputKind::Nodes, "n1", node("a")).await;
    put(&store, NameInputKind::Nodes, "n2", node("b")).await;
    put(&store, NameInputKind::Services, "db", service("zone")).await;
    put(&store, NameInputKind::Slices, "db-1", slice(&["db-a-0=10.0.0.1@n1", "db-b-0=10.0.0.2@n2"])).await;
    put(&store, NameInputKind::Grids, "db", grid()).await;
    store
}

struct Publisher {
    folder: tempfile::TempDir,
    stop: CancellationToken,
    tasks: Tasks,
    patience: Duration,
}

impl Publisher {
    fn start(store: &MemoryStore) -> Self {
        Self::start_at(store, "hosts", watch::channel(None).0)
    }

    /// Starts one whose full syncs are too far apart to repair missed changes.
    fn start_following(store: &MemoryStore) -> Self {
        Self { patience: SOON, ..Self::start_with(store, "hosts", watch::channel(None).0, RARELY) }
    }

    fn start_at(store: &MemoryStore, path: &str, names: watch::Sender<Option<Arc<Hosts>>>) -> Self {
        Self::start_with(store, path, names, PERIOD)
    }

    fn start_with(
        store: &MemoryStore,
        path: &str,
        names: watch::Sender<Option<Arc<Hosts>>>,
        period: Duration,
    ) -> Self {
        Self::start_on(Arc::new(store.clone()), path, names, period)
    }

    fn start_on(
        source: Arc<dyn Store>,
        path: &str,
        names: watch::Sender<Option<Arc<Hosts>>>,
        period: Duration,
    ) -> Self {
        let (folder, stop, tasks) = (tempfile::tempdir().unwrap(), CancellationToken::new(), Tasks::new());
        let parts = HostsParts {
            path: Some(folder.path().join(path)),
            names,
            node: "n1".to_owned(),
            domain: "cluster.local".to_owned(),
            period,
            source,
            pods: watch::channel(Arc::new(OwnPods::new("n1"))).1,
        };
        let until = stop.clone();
        tasks.spawn("hosts", async move {
            until.run_until_cancelled(publish(parts)).await;
        });
        Self { folder, stop, tasks, patience: DEADLINE }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("hosts")
    }

    async fn says(&self, expected: &str) {
        let deadline = Instant::now() + self.patience;
        loop {
            let text = std::fs::read_to_string(self.path()).unwrap_or_default();
            if text == expected {
                return;
            }
            assert!(Instant::now() < deadline, "the file contains {text:?}, not {expected:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn end(self) {
        self.stop.cancel();
        self.tasks.shutdown(Duration::from_secs(1)).await.unwrap();
    }
}

const OF_A: &str = "10.0.0.1 db-0.db.shop.svc.cluster.local\n";

#[tokio::test(start_paused = true)]
async fn the_file_follows_pods_services_grids_and_the_node() {
    let store = cluster().await;
    let publisher = Publisher::start_following(&store);
    publisher.says(OF_A).await;
    put(&store, NameInputKind::Slices, "db-1", slice(&["db-a-0=10.0.0.9@n1", "db-a-1=10.0.0.8@n1"])).await;
    let two = "10.0.0.9 db-0.db.shop.svc.cluster.local\n10.0.0.8 db-1.db.shop.svc.cluster.local\n";
    publisher.says(two).await;
    put(&store, NameInputKind::Services, "db", service("another")).await;
    publisher.says("").await;
    put(&store, NameInputKind::Services, "db", service("zone")).await;
    publisher.says(two).await;
    put(&store, NameInputKind::Nodes, "n1", node("b")).await;
    publisher.says("").await;
    put(&store, NameInputKind::Slices, "db-1", slice(&["db-b-0=10.0.0.7@n1"])).await;
    publisher.says("10.0.0.7 db-0.db.shop.svc.cluster.local\n").await;
    remove(&store, NameInputKind::Grids, "db").await;
    publisher.says("").await;
    publisher.end().await;
}

#[tokio::test(start_paused = true)]
async fn unknown_inputs_leave_the_file_unchanged() {
    let store = cluster().await;
    remove(&store, NameInputKind::Nodes, "n1").await;
    let publisher = Publisher::start(&store);
    let other = "10.9.9.9 old.db.shop.svc.cluster.local\n";
    std::fs::write(publisher.path(), other).unwrap();
    tokio::time::sleep(PERIOD * 3).await;
    publisher.says(other).await;
    put(&store, NameInputKind::Nodes, "n1", node("a")).await;
    publisher.says(OF_A).await;
    publisher.end().await;
}

#[tokio::test(start_paused = true)]
async fn damage_and_a_folder_that_is_missing_heal() {
    let store = cluster().await;
    let publisher = Publisher::start(&store);
    publisher.says(OF_A).await;
    std::fs::write(publisher.path(), "damage").unwrap();
    publisher.says(OF_A).await;
    // A folder at the path of the file cannot be replaced by a file.
    std::fs::remove_file(publisher.path()).unwrap();
    std::fs::create_dir(publisher.path()).unwrap();
    std::fs::write(publisher.path().join("child"), "").unwrap();
    put(&store, NameInputKind::Slices, "db-1", slice(&["db-a-0=10.0.0.5@n1"])).await;
    tokio::time::sleep(PERIOD * 2).await;
    std::fs::remove_dir_all(publisher.path()).unwrap();
    publisher.says("10.0.0.5 db-0.db.shop.svc.cluster.local\n").await;
    publisher.end().await;
}

#[tokio::test(start_paused = true)]
async fn equal_names_are_not_written_again() {
    let store = cluster().await;
    let publisher = Publisher::start(&store);
    publisher.says(OF_A).await;
    // A new file would have another inode number, as the old one still exists.
    let number = |path: &Path| std::fs::metadata(path).unwrap().ino();
    let kept = publisher.folder.path().join("kept");
    std::fs::hard_link(publisher.path(), &kept).unwrap();
    let mut same = slice(&["db-a-0=10.0.0.1@n1", "db-b-0=10.0.0.2@n2"]);
    same["metadata"]["annotations"] = json!({"changed": "yes"});
    put(&store, NameInputKind::Slices, "db-1", same).await;
    tokio::time::sleep(PERIOD * 3).await;
    assert_eq!(number(&publisher.path()), number(&kept));
    publisher.end().await;
}

#[tokio::test(start_paused = true)]
async fn unwritable_hosts_file_does_not_affect_dns_names() {
    let store = cluster().await;
    let (names, mut told) = watch::channel(None);
    let publisher = Publisher::start_at(&store, "missing/hosts", names);
    let known = told.wait_for(|names| names.as_ref().is_some_and(|names| names.text() == OF_A));
    tokio::time::timeout(DEADLINE, known).await.expect("the names are published").unwrap();
    let file = publisher.folder.path().join("missing/hosts");
    assert!(!file.exists());
    // Once the folder exists, the next full sync writes the file.
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    let deadline = Instant::now() + DEADLINE;
    while std::fs::read_to_string(&file).unwrap_or_default() != OF_A {
        assert!(Instant::now() < deadline, "the file is not written");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    publisher.end().await;
}
