//! Informers of client-go and reflectors of kube-rs follow the wrapper while nodes move between units, Services open
//! and close, and the wrapper restarts. At the end, each of them must hold what the wrapper lists, and the list must
//! contain only what this node may use.

mod clients;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::StatusCode;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tombolo_apicore::backend::{WriteBackend, WriteReply, WriteRequest};
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::status::ApiError;
use tombolo_apicore::store::{Expect, Mutation, Store, Write, WriteStore};
use tombolo_edge::config::WrapperConfig;
use tombolo_edge::wrapper::{Kubernetes, Projection, Wrapper, WrapperMetrics, WrapperParts};
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};
use tombolo_runtime::Tasks;
use tombolo_testkit::{cluster_or_skip, go_clients, seed, wait_for};

use clients::{GoInformers, Reflectors, client};

/// Revision of each object by "namespace/name", by resource.
type Held = BTreeMap<&'static str, BTreeMap<String, String>>;

/// The followed resources.
const RESOURCES: [&str; 2] = ["v1/services", "discovery.k8s.io/v1/endpointslices"];

/// Number of changes; the wrapper restarts after half of them.
const CHANGES: usize = 600;

/// Time within which every client must hold the listed objects; client-go waits up to 30 s after several failures.
const WITHIN: Duration = Duration::from_secs(90);

const UNITS: [&str; 3] = ["a", "b", ""];

/// The cluster that the wrapper shows.
struct Cluster {
    store: MemoryStore,
}

impl Cluster {
    async fn write(&self, key: &ObjectKey, write: Write) {
        let mutation = Mutation { key: key.clone(), expected: Expect::Any, write };
        self.store.commit(mutation).await.unwrap();
    }

    /// Changes, creates or deletes one object.
    async fn change(&self, rng: &mut StdRng) {
        let (kind, resource, namespace, name, mut object) = match rng.random_range(0..8) {
            0 => {
                let unit = UNITS[rng.random_range(0..UNITS.len())];
                let object = json!({"apiVersion": "v1", "metadata": {"labels": {"k": unit}}});
                ("Node", Resource::new("", "v1", "nodes"), "", format!("n{}", rng.random_range(0..4)), object)
            }
            1 | 2 => {
                let keys = ["[]", "[\"k\"]"][rng.random_range(0..2)];
                let object = json!({"apiVersion": "v1", "metadata": {"annotations": {"topologyKeys": keys}},
                    "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 80}]}});
                let name = format!("s{}", rng.random_range(0..8));
                ("Service", Resource::new("", "v1", "services"), "default", name, object)
            }
            _ => {
                let service = format!("s{}", rng.random_range(0..8));
                let endpoint = |_| {
                    let node = format!("n{}", rng.random_range(0..4));
                    json!({"addresses": [format!("10.0.0.{}", rng.random_range(1..200))], "nodeName": node})
                };
                let endpoints: Vec<Value> = (0..4).map(endpoint).collect();
                let object = json!({"apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
                    "metadata": {"labels": {"kubernetes.io/service-name": service}},
                    "endpoints": endpoints, "ports": [{"port": 80}]});
                let name = format!("e{}", rng.random_range(0..24));
                let resource = Resource::new("discovery.k8s.io", "v1", "endpointslices");
                ("EndpointSlice", resource, "default", name, object)
            }
        };
        let key = ObjectKey::new(resource, namespace, &name);
        let stored = self.store.get(&key).unwrap();
        if let Some(stored) = &stored
            && rng.random_range(0..5) == 0
        {
            self.write(&stored.key, Write::Delete).await;
            return;
        }
        let uid = stored
            .map_or_else(|| format!("uid-{}", rng.random::<u64>()), |stored| stored.uid.as_str().to_owned());
        object["kind"] = kind.into();
        for (member, value) in [("name", &*name), ("namespace", namespace), ("uid", &uid)] {
            if !value.is_empty() {
                object["metadata"][member] = value.into();
            }
        }
        self.write(
            &key,
            Write::Put { uid: Uid::parse(&uid).unwrap(), body: Bytes::from(object.to_string()) },
        )
        .await;
    }

    /// Names of the nodes that share the unit of n0.
    fn neighbours(&self) -> Vec<String> {
        let nodes = self.store.list(&Resource::new("", "v1", "nodes"), None).unwrap().items;
        let unit = |body: &Bytes| {
            let node: Value = serde_json::from_slice(body).unwrap();
            node["metadata"]["labels"]["k"].as_str().unwrap_or_default().to_owned()
        };
        let own = nodes.iter().find(|node| node.key.name() == "n0").map(|node| unit(&node.body()));
        let own = own.filter(|unit| !unit.is_empty());
        let near = nodes.iter().filter(|node| own.as_ref().is_some_and(|own| unit(&node.body()) == *own));
        near.map(|node| node.key.name().to_owned()).collect()
    }

    /// Whether a Service is closed inside the unit; none if the Service does not exist.
    fn is_closed(&self, service: &str) -> Option<bool> {
        let stored = self.store.get(&ObjectKey::new(Resource::new("", "v1", "services"), "default", service));
        let body: Value = serde_json::from_slice(&stored.unwrap()?.body()).unwrap();
        Some(body["metadata"]["annotations"]["topologyKeys"] != "[]")
    }
}

/// A wrapper for a cluster, as node n0 sees it.
struct Served {
    address: SocketAddr,
    tasks: Tasks,
    stop: CancellationToken,
}

impl Served {
    async fn start(store: &MemoryStore, address: &str) -> Self {
        let settings = WrapperConfig { address: Some(address.parse().unwrap()), ..WrapperConfig::default() };
        let wrapper = Wrapper::bind(&settings).await.unwrap().expect("the settings have no address");
        let (tasks, stop, address) = (Tasks::new(), CancellationToken::new(), wrapper.local_addr());
        let parts = WrapperParts {
            node: "n0".to_owned(),
            source: Arc::new(store.clone()),
            writes: Arc::new(NoWrites),
            kubernetes: Kubernetes::AsItIs,
            address: tokio::sync::watch::channel(None).1,
            pods: tokio::sync::watch::channel(Arc::default()).1,
            started: std::time::SystemTime::now(),
        };
        let metrics = Arc::new(WrapperMetrics::default());
        let projection = Projection::spawn(&tasks, parts, settings.watch_queue, metrics, &stop);
        wrapper.spawn(&tasks, &projection, &stop);
        Self { address, tasks, stop }
    }

    async fn end(self) {
        self.stop.cancel();
        self.tasks.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

struct NoWrites;

impl WriteBackend for NoWrites {
    fn execute(&self, _: WriteRequest) -> BoxFuture<'_, Result<WriteReply, ApiError>> {
        Box::pin(std::future::ready(Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "Forbidden",
            "writes are not supported",
        ))))
    }
}

/// The objects that the wrapper lists now.
async fn listed(client: &kube::Client) -> Result<Held, String> {
    let mut held = Held::new();
    for resource in RESOURCES {
        held.insert(resource, clients::list(client, resource).await.map_err(|error| format!("{error:#}"))?);
    }
    Ok(held)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_converges_to_the_list_of_the_wrapper() {
    cluster_or_skip!("every_client_converges_to_the_list_of_the_wrapper");
    let program = go_clients().expect("no informers: run the tests with `cargo xtask test`");
    // Installing the same provider a second time fails, which is fine.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let seed = seed();
    let mut rng = seed.rng();
    let cluster = Cluster { store: MemoryStore::new(MemoryStore::START, LogLimits::default()) };
    let mut served = Served::start(&cluster.store, "127.0.0.1:0").await;
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = clients::kubeconfig(folder.path(), served.address).unwrap();
    let client = client(&kubeconfig).await.unwrap();
    let mut informers =
        [false, true].map(|streaming| GoInformers::start(&program, &kubeconfig, streaming).unwrap());
    let reflectors = Reflectors::start(&kubeconfig).await.unwrap();
    for number in 0..CHANGES {
        cluster.change(&mut rng).await;
        if rng.random_range(0..4) == 0 {
            tokio::task::yield_now().await;
        }
        if number == CHANGES / 2 {
            let address = served.address.to_string();
            served.end().await;
            served = Served::start(&cluster.store, &address).await;
        }
    }
    wait_for("every client to hold what is listed", WITHIN, || {
        let held = informers.iter_mut().map(GoInformers::held).collect::<anyhow::Result<Vec<_>>>();
        let (client, reflected) = (&client, reflectors.held());
        async move {
            let mut held = held.map_err(|error| format!("{error:#}"))?.concat();
            held.extend(reflected);
            let listed = listed(client).await?;
            let differing = held.iter().find(|(_, resource, objects)| listed[resource] != *objects);
            match differing {
                Some((name, resource, objects)) => {
                    Err(format!("{name} of {resource} holds {objects:?}, listed are {:?}", listed[resource]))
                }
                None => Ok(()),
            }
        }
    })
    .await;

    let near = cluster.neighbours();
    let slices: Api<EndpointSlice> = Api::namespaced(client, "default");
    for slice in slices.list(&Default::default()).await.unwrap() {
        let service = &slice.metadata.labels.unwrap()["kubernetes.io/service-name"];
        for endpoint in slice.endpoints.unwrap_or_default() {
            let node = endpoint.node_name.unwrap();
            match cluster.is_closed(service) {
                Some(closed) => {
                    assert!(!closed || near.contains(&node), "{service} leads to {node}");
                }
                None => panic!("{service} is gone and leads to {node}"),
            }
        }
    }
    served.end().await;
}
