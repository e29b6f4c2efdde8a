//! Every request that a node can make (the rows of `docs/protocol.md`, "Requests"), in both dialects and over both
//! transports, against the embedded API and kube-apiserver: the answer, the change in the API, and the errors for
//! another node's object, an unknown object and malformed content.

mod node_rows;
mod object_rows;
mod other_rows;
mod peer;
mod pod_rows;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Instant;

use futures::FutureExt as _;
use serde_json::{Value, json};
use tombolo_testkit::{cluster_or_skip, wait_for_value};
use tombolo_tests::kubeedge::KubeEdgeNode;
use tombolo_tests::source;
use tombolo_tests::world::objects::Objects;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

use peer::{Answer, Peer};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_websocket() {
    play(Api::Embedded, Transport::WebSocket, &[Dialect::KubeEdge, Dialect::Tombolo]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_quic() {
    play(Api::Embedded, Transport::Quic, &[Dialect::Tombolo]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_websocket() {
    cluster_or_skip!("real_websocket");
    play(Api::Real, Transport::WebSocket, &[Dialect::KubeEdge, Dialect::Tombolo]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_quic() {
    cluster_or_skip!("real_quic");
    play(Api::Real, Transport::Quic, &[Dialect::Tombolo]).await;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    KubeEdge,
    Tombolo,
}

type Row = for<'a> fn(&'a Stage) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

macro_rules! rows {
    ($($module:ident::$name:ident),* $(,)?) => {
        /// The order matters: later rows depend on the results of earlier ones.
        const ROWS: &[(&str, Row)] = &[$((stringify!($name), |stage| Box::pin($module::$name(stage)))),*];
    };
}

rows![
    node_rows::node_insert,
    node_rows::node_query,
    node_rows::node_update,
    node_rows::nodestatus_insert,
    node_rows::nodestatus_update,
    node_rows::nodepatch,
    node_rows::lease,
    object_rows::configmap_and_secret,
    object_rows::volumes,
    object_rows::serviceaccounttoken,
    object_rows::certificatesigningrequest,
    pod_rows::podpatch,
    pod_rows::podstatus,
    pod_rows::podlist,
    pod_rows::pod_insert,
    pod_rows::pod_delete,
    other_rows::event,
    other_rows::rulestatus,
    other_rows::authority,
    other_rows::devices,
    other_rows::node_tasks,
    other_rows::applications_of_the_edge,
    other_rows::what_is_no_request,
];

/// Runs every row in every dialect, even after one has failed, and names the failed ones.
async fn play(api: Api, transport: Transport, dialects: &[Dialect]) {
    let world = World::start(api, transport).await.unwrap();
    let crds = source::root().join("deploy/crds/rules.yaml").display().to_string();
    world.kubectl(&["apply", "-f", &crds]).unwrap();
    let crd = "crd/rules.rules.kubeedge.io";
    world.kubectl(&["wait", "--for=condition=Established", crd, "--timeout=60s"]).unwrap();
    let mut failed = Vec::new();
    for dialect in dialects {
        let stage = Stage::open(&world, *dialect).await;
        for (name, row) in ROWS {
            let started = Instant::now();
            let outcome = AssertUnwindSafe(row(&stage)).catch_unwind().await;
            println!("{dialect:?} {name}: {:?}", started.elapsed());
            failed.extend(outcome.is_err().then(|| format!("{dialect:?} {name}")));
        }
        stage.close();
    }
    assert!(failed.is_empty(), "on {api:?} over {transport:?}: {failed:?}; the reasons are above");
}

/// A node, its neighbour, and a namespace with objects of every kind.
struct Stage {
    kubeconfig: std::path::PathBuf,
    peer: Peer,
    objects: Objects,
    namespace: String,
    /// Name of the node that sends the requests.
    name: String,
    /// Name of the node whose objects it must not access.
    neighbour: String,
}

impl Stage {
    async fn open(world: &World, dialect: Dialect) -> Self {
        let word = format!("{dialect:?}").to_lowercase();
        let [namespace, name, neighbour] =
            ["shops", "asks", "neighbour"].map(|part| format!("{part}-{word}"));
        let objects = Objects::in_namespace(world.client().await.unwrap(), &namespace).await.unwrap();
        let peer = match dialect {
            Dialect::KubeEdge => {
                let mut node = KubeEdgeNode::join(world, &name).await.unwrap();
                node.connect().await.unwrap();
                Peer::KubeEdge(Box::new(node))
            }
            Dialect::Tombolo => Peer::Ours(world.raw_node(&name, &name).await.unwrap()),
        };
        let stage = Self { kubeconfig: world.kubeconfig(), peer, objects, namespace, name, neighbour };
        stage.furnish().await;
        stage
    }

    /// Creates the objects of the two nodes; their names begin with `mine` and `theirs`.
    async fn furnish(&self) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.neighbour}});
        self.create(&node);
        for (owner, node) in [("mine", &self.name), ("theirs", &self.neighbour)] {
            self.objects.config_map(owner, "1").await.unwrap();
            let secret = format!("{owner}-secret");
            self.objects.secret(&secret, "1").await.unwrap();
            for object in self.storage(owner, node) {
                self.create(&object);
            }
            self.objects.accepted_pod(owner, node, &[owner], &[&secret]).await;
            self.create(&self.pod_with_claim(owner, node));
        }
    }

    /// A volume that is claimed and attached.
    fn storage(&self, owner: &str, node: &str) -> [Value; 3] {
        let (namespace, volume) = (&self.namespace, self.cluster_name(owner));
        let size = json!({"storage": "1Gi"});
        [
            json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": {
                "capacity": size, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp"},
                "storageClassName": "none",
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": owner}}}),
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": owner, "namespace": namespace}, "spec": {
                "resources": {"requests": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                "volumeName": volume}}),
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": volume},
                "spec": {"attacher": "csi.example", "nodeName": node, "source": {"persistentVolumeName": volume}}}),
        ]
    }

    fn pod_with_claim(&self, owner: &str, node: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{owner}-claims"), "namespace": self.namespace},
            "spec": {"nodeName": node, "containers": [{"name": "shop", "image": "registry.example/shop:1"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": owner}}]}})
    }

    /// Name of a cluster-scoped object.
    fn cluster_name(&self, owner: &str) -> String {
        format!("{owner}-{}", self.namespace)
    }

    /// Wire path of an object in the namespace.
    fn path(&self, kind: &str, name: &str) -> String {
        format!("{}/{kind}/{name}", self.namespace)
    }

    /// Creates an object as the administrator.
    fn create(&self, object: &Value) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), object.to_string()).unwrap();
        self.kubectl(&["create", "-f", &file.path().display().to_string()]).unwrap();
    }

    fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        tombolo_tests::world::kubectl(&self.kubeconfig, arguments)
    }

    /// The API's version of an object; `null` if it does not exist.
    fn live(&self, kind: &str, name: &str) -> Value {
        let found =
            self.kubectl(&["get", kind, name, "-n", &self.namespace, "-o", "json", "--ignore-not-found"]);
        let found = found.unwrap();
        if found.trim().is_empty() { Value::Null } else { serde_json::from_str(&found).unwrap() }
    }

    /// Repeats a request until it succeeds: the Node authorizer learns of a pod a little later than the API.
    async fn ask_patiently(&self, operation: &str, resource: &str, content: &Value) -> Answer {
        wait_for_value(&format!("{operation} {resource}"), DEADLINE, async || {
            let answer = self.peer.ask(operation, resource, content.clone()).await;
            if answer.operation == "response" { Ok(answer) } else { Err(format!("{answer:?}")) }
        })
        .await
    }

    /// Checks that a KubeEdge edge has survived all requests, and that its rows contain only objects.
    fn close(self) {
        let Peer::KubeEdge(node) = self.peer else { return };
        node.look(|store| {
            assert!(store.harms.is_empty(), "{:#?}", store.harms);
            assert!(store.unanswered.is_empty(), "requests without an answer: {:?}", store.unanswered);
            for path in store.paths().into_iter().filter(|path| *path != "k8s/ca.crt") {
                let row = store.row(path).unwrap();
                let patch = path.contains("patch/");
                let list = path.ends_with("/podlist");
                assert!(patch || list || row["metadata"].is_object(), "{path} is {row}");
            }
        });
    }
}
