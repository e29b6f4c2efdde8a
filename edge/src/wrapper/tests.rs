use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::StatusCode;
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tombolo_apicore::backend::{WriteBackend, WriteReply, WriteRequest};
use tombolo_apicore::history::{ChangeKind, ChangeStream, LogLimits};
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::status::ApiError;
use tombolo_apicore::store::{
    Expect, Mutation, Revision, Snapshot, Store, StoreError, Stored, Write, WriteStore,
};
use tombolo_grid::{OwnPod, OwnPods};
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};
use tombolo_testkit::wait_until;

use super::follow::ProjectionFollower;
use super::project::Projector;
use super::projected_kind::ProjectedKind;
use super::room::SHOWN_BYTES_MAX;
use super::view::View;
use super::{Kubernetes, WrapperMetrics, WrapperParts};

mod certificates;
mod changes;
mod clients;
mod http_api;
mod log;
mod random;
mod room;

const DEADLINE: Duration = Duration::from_secs(20);

/// A revision below all revisions of a view.
const START: Revision = Revision(1 << 40);

/// A source whose parts can be unknown, and whose content can be replaced as after a loss.
struct Source {
    inner: RwLock<MemoryStore>,
    unknown: Mutex<Vec<ProjectedKind>>,
}

impl Source {
    fn new() -> Arc<Self> {
        Arc::new(Self { inner: RwLock::new(Self::empty(Revision(1))), unknown: Mutex::new(Vec::new()) })
    }

    fn empty(start: Revision) -> MemoryStore {
        MemoryStore::new(start, LogLimits { count: 64, ..LogLimits::default() })
    }

    fn store(&self) -> MemoryStore {
        self.inner.read().clone()
    }

    /// Ends all watches, and continues with another content.
    fn exchange(&self, other: MemoryStore) {
        let old = std::mem::replace(&mut *self.inner.write(), other);
        for resource in old.resources() {
            old.forget(&resource);
        }
    }

    fn set_unknown(&self, parts: &[ProjectedKind]) {
        *self.unknown.lock() = parts.to_vec();
    }

    fn known(&self, resource: &Resource) -> Result<MemoryStore, StoreError> {
        if ProjectedKind::of(resource).is_some_and(|part| self.unknown.lock().contains(&part)) {
            return Err(StoreError::NotSynced { reason: format!("{} are not synced", resource.name) });
        }
        Ok(self.store())
    }
}

impl Store for Source {
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        self.known(key.resource())?.get(key)
    }

    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError> {
        self.known(resource)?.list(resource, namespace)
    }

    fn list_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        revision: Revision,
    ) -> Result<Snapshot, StoreError> {
        self.known(resource)?.list_at(resource, namespace, revision)
    }

    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError> {
        self.known(resource)?.watch(resource, since)
    }

    fn revision(&self) -> Revision {
        self.store().revision()
    }
}

fn key(part: ProjectedKind, name: &str) -> ObjectKey {
    let namespace = match part {
        ProjectedKind::Nodes | ProjectedKind::ServiceCidrs | ProjectedKind::Namespaces => "",
        ProjectedKind::Services | ProjectedKind::EndpointSlices | ProjectedKind::Endpoints => "default",
    };
    ObjectKey::new(part.resource(), namespace, name)
}

fn put_as(store: &MemoryStore, part: ProjectedKind, name: &str, uid: &str, mut object: Value) {
    let (group, version, _) = part.names();
    let kind = match part {
        ProjectedKind::Nodes => "Node",
        ProjectedKind::Services => "Service",
        ProjectedKind::EndpointSlices => "EndpointSlice",
        ProjectedKind::Endpoints => "Endpoints",
        ProjectedKind::ServiceCidrs => "ServiceCIDR",
        ProjectedKind::Namespaces => "Namespace",
    };
    let key = key(part, name);
    object["kind"] = kind.into();
    object["apiVersion"] = format!("{group}/{version}").trim_start_matches('/').into();
    object["metadata"]["name"] = name.into();
    object["metadata"]["uid"] = uid.into();
    if !key.namespace().is_empty() {
        object["metadata"]["namespace"] = key.namespace().into();
    }
    let write = Write::Put { uid: Uid::parse(uid).unwrap(), body: Bytes::from(object.to_string()) };
    store.commit(Mutation { key, expected: Expect::Any, write }).now_or_never().unwrap().unwrap();
}

fn put(store: &MemoryStore, part: ProjectedKind, name: &str, object: Value) {
    put_as(store, part, name, &format!("uid-of-{name}"), object);
}

fn delete(store: &MemoryStore, part: ProjectedKind, name: &str) {
    let mutation = Mutation { key: key(part, name), expected: Expect::Present, write: Write::Delete };
    store.commit(mutation).now_or_never().unwrap().unwrap();
}

fn node(unit: &str) -> Value {
    json!({"metadata": {"labels": {"k": unit}}})
}

/// A Service, closed by the key `k` or open.
fn service(closed: bool) -> Value {
    let annotations = if closed { json!({"topologyKeys": "[\"k\"]"}) } else { json!({}) };
    json!({"metadata": {"annotations": annotations}, "spec": {"clusterIP": "10.96.0.7", "type": "ClusterIP"}})
}

/// A slice of a Service with endpoints written `ADDRESS@NODE`.
fn slice(service: &str, endpoints: &str) -> Value {
    let endpoint = |text: &str| {
        let (address, node) = text.split_once('@').unwrap();
        json!({"addresses": [address], "nodeName": node, "conditions": {"ready": true}})
    };
    let endpoints: Vec<Value> = endpoints.split_whitespace().map(endpoint).collect();
    json!({
        "metadata": {"labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
    })
}

/// The pods of a node about which nothing is known.
fn no_pods() -> watch::Receiver<Arc<OwnPods>> {
    watch::channel(Arc::new(OwnPods::new("n1"))).1
}

/// A running view of a source, as node n1 sees it.
struct World {
    view: View,
    metrics: Arc<WrapperMetrics>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl World {
    fn start(source: &Arc<Source>, kubernetes: Kubernetes) -> Self {
        Self::start_at(source, kubernetes, watch::channel(None).1)
    }

    fn start_at(
        source: &Arc<Source>,
        kubernetes: Kubernetes,
        address: watch::Receiver<Option<IpAddr>>,
    ) -> Self {
        Self::start_with(source, kubernetes, address, no_pods())
    }

    fn start_with(
        source: &Arc<Source>,
        kubernetes: Kubernetes,
        address: watch::Receiver<Option<IpAddr>>,
        pods: watch::Receiver<Arc<OwnPods>>,
    ) -> Self {
        let source: Arc<dyn Store> = Arc::clone(source) as _;
        Self::start_in(source, kubernetes, (address, pods), SHOWN_BYTES_MAX)
    }

    /// A view with room for `room` bytes.
    fn start_in(
        source: Arc<dyn Store>,
        kubernetes: Kubernetes,
        (address, pods): (watch::Receiver<Option<IpAddr>>, watch::Receiver<Arc<OwnPods>>),
        room: usize,
    ) -> Self {
        let parts = WrapperParts {
            node: "n1".to_owned(),
            source,
            writes: Arc::new(Events::default()),
            kubernetes,
            address,
            pods,
            started: SystemTime::UNIX_EPOCH,
        };
        let view = View::new(START, 1024);
        let metrics = Arc::new(WrapperMetrics::default());
        let projector = Projector::new(&parts, view.served(), Arc::clone(&metrics)).with_room(room);
        let stop = CancellationToken::new();
        let task = tokio::spawn(ProjectionFollower::new(parts, view.clone(), projector).run(stop.clone()));
        Self { view, metrics, stop, task }
    }

    /// Waits until a part is shown.
    async fn shown(&self, part: ProjectedKind) {
        wait_until(&format!("{part:?}"), DEADLINE, async || self.view.list(&part.resource(), None).is_ok())
            .await;
    }

    /// A watch of a part that begins at the current revision.
    async fn watch(&self, part: ProjectedKind) -> ChangeStream {
        self.shown(part).await;
        let revision = self.view.list(&part.resource(), None).unwrap().revision;
        self.view.watch(&part.resource(), revision).unwrap()
    }

    /// The addresses of a slice's endpoints.
    fn addresses(&self, name: &str) -> Option<String> {
        self.view.get(&key(ProjectedKind::EndpointSlices, name)).unwrap().map(|stored| addresses(&stored))
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

fn addresses(slice: &Stored) -> String {
    let slice: Value = serde_json::from_slice(&slice.body()).unwrap();
    let endpoints = slice["endpoints"].as_array().unwrap().iter();
    endpoints.map(|endpoint| endpoint["addresses"][0].as_str().unwrap()).collect::<Vec<_>>().join(" ")
}

/// Accepts writes and records them.
#[derive(Default)]
struct Events(Mutex<Vec<String>>);

impl WriteBackend for Events {
    fn execute(&self, request: WriteRequest) -> BoxFuture<'_, Result<WriteReply, ApiError>> {
        self.0.lock().push(request.path_and_query.clone());
        let reply = WriteReply {
            status: StatusCode::CREATED,
            body: request.body,
            is_object: true,
            warnings: Vec::new(),
        };
        Box::pin(std::future::ready(Ok(reply)))
    }
}
