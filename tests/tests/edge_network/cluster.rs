//! The objects of the cluster: Services of every kind, with pods in two units.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tombolo_testkit::{free_port, wait_for};
use tombolo_tests::network::CoreDnsOptions;
use tombolo_tests::world::{Api as Kubernetes, DEADLINE, Transport, World};

pub(crate) const NODE: &str = "edge-a";
pub(crate) const NAMESPACE: &str = "shop";

/// A world with an edge in unit `a`, and a node without an agent in unit `b`.
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) client: Client,
    pub(crate) wrapper: SocketAddr,
    pub(crate) hosts: PathBuf,
    _folder: tempfile::TempDir,
}

impl Cluster {
    /// Starts everything. The agent forwards queries for outside names to `upstream`. The hosts file is only written on
    /// changes.
    pub(crate) async fn start(dns: SocketAddr, upstream: SocketAddr) -> Result<Self> {
        Self::start_comparing(dns, upstream, 3600).await
    }

    /// Like [`Self::start`], but the agent also compares the hosts file with its expected content at this interval in
    /// seconds.
    pub(crate) async fn start_comparing(
        dns: SocketAddr,
        upstream: SocketAddr,
        full_sync: u32,
    ) -> Result<Self> {
        let mut world = World::start(Kubernetes::Embedded, Transport::WebSocket).await?;
        let client = world.client().await?;
        let folder = tempfile::tempdir()?;
        let hosts = folder.path().join("hosts");
        let wrapper: SocketAddr = format!("127.0.0.1:{}", free_port()?).parse()?;
        world.set_edge_settings(json!({
            "simulatePods": false,
            "wrapper": {"address": wrapper, "localRewrite": false},
            "dns": {
                "hostsPath": hosts, "fullSyncSeconds": full_sync, "address": dns,
                "upstreams": [upstream], "forwardTimeoutMillis": 1000,
            },
        }));
        let mut cluster = Self { world, client, wrapper, hosts, _folder: folder };
        cluster.fill().await;
        cluster.world.start_edge(NODE).await?;
        cluster.label(NODE, "a").await;
        Ok(cluster)
    }

    /// Applies an object as soon as its kind and namespace exist.
    pub(crate) async fn apply(&self, object: Value) {
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let name = text(&object["metadata"]["name"]).to_owned();
        wait_for(&format!("{kind} {name} to be accepted"), DEADLINE, || async {
            let parameters = PatchParams::apply("tests").force();
            let applied = api.patch(&name, &parameters, &Patch::Apply(&object)).await;
            applied.map(drop).map_err(|error| error.to_string())
        })
        .await;
    }

    /// Puts a node into a unit.
    pub(crate) async fn label(&self, node: &str, unit: &str) {
        let labels = json!({"zone": unit});
        self.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}}))
            .await;
    }

    pub(crate) async fn service(&self, name: &str, annotations: Value, labels: Value, spec: Value) {
        let metadata =
            json!({"name": name, "namespace": NAMESPACE, "annotations": annotations, "labels": labels});
        self.apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})).await;
    }

    /// A slice of a Service. Endpoints have the form `ADDRESS@NODE`, with the prefix `!` if they are not ready, and the
    /// suffix `=NAME` for pods with a hostname, and then `#UID` for pods that exist.
    pub(crate) async fn slice(&self, service: &str, port: u16, endpoints: &[&str]) {
        let six = endpoints.iter().any(|text| text.matches(':').count() > 1);
        let endpoints: Vec<Value> = endpoints.iter().map(|text| endpoint(text)).collect();
        let labels = json!({"kubernetes.io/service-name": service});
        let name = format!("{service}-{}", if six { "six" } else { "one" });
        self.apply(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
            "addressType": if six { "IPv6" } else { "IPv4" },
            "endpoints": endpoints,
            "ports": [{"name": "http", "protocol": "TCP", "port": port}],
        }))
        .await;
    }

    async fn fill(&self) {
        self.apply(definition()).await;
        self.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})).await;
        self.label("node-b", "b").await;
        let (closed, none) = (json!({"topologyKeys": "[\"zone\"]"}), json!({}));
        let ports = json!([{"name": "http", "port": 80}, {"name": "metrics", "port": 9100}]);
        let http = json!([{"name": "http", "port": 80}]);
        self.service("web", closed.clone(), none.clone(), json!({"ports": ports})).await;
        self.slice("web", 8080, &["10.1.0.1@edge-a", "10.2.0.1@node-b"]).await;
        self.service("plain", none.clone(), none.clone(), json!({"ports": http})).await;
        self.slice("plain", 8080, &["10.1.0.2@edge-a", "10.2.0.2@node-b", "!10.1.0.3@edge-a"]).await;
        let headless = json!({"clusterIP": "None", "ports": http});
        let of_grid = json!({"superedge.io/grid-uniq-key": "zone", "superedge.io/grid-selector": "db"});
        self.service("db", closed, of_grid, headless.clone()).await;
        self.pods(&["10.1.0.10@edge-a=db-a-0", "10.1.0.11@edge-a=db-a-1", "10.2.0.10@node-b=db-b-0"]).await;
        self.apply(json!({
            "apiVersion": "superedge.io/v1", "kind": "StatefulSetGrid",
            "metadata": {"name": "db", "namespace": NAMESPACE},
            "spec": {"gridUniqKey": "zone", "template": {"serviceName": "db"}},
            "status": {"owned": ["a", "b"]},
        }))
        .await;
        self.service("six", none.clone(), none.clone(), headless.clone()).await;
        self.slice("six", 8080, &["10.1.0.20@edge-a"]).await;
        self.slice("six", 8080, &["fd00:1::20@edge-a", "fd00:1::@edge-a"]).await;
        self.service("nobody", none.clone(), none.clone(), headless.clone()).await;
        self.service("bare", none.clone(), none.clone(), json!({"clusterIP": "None"})).await;
        self.slice("bare", 8080, &["10.1.0.30@edge-a"]).await;
        self.service("many", none.clone(), none.clone(), headless).await;
        let many: Vec<String> = (1..=90).map(|number| format!("10.1.9.{number}@edge-a")).collect();
        self.slice("many", 8080, &many.iter().map(String::as_str).collect::<Vec<_>>()).await;
        for (name, target) in [
            ("out", "www.example"),
            ("gone", "missing.example"),
            ("inner", "six.shop.svc.cluster.local"),
            ("dangling", "nothing.shop.svc.cluster.local"),
            ("itself", "itself.shop.svc.cluster.local"),
            ("ping", "pong.shop.svc.cluster.local"),
            ("pong", "ping.shop.svc.cluster.local"),
            ("twice", "out.shop.svc.cluster.local"),
            ("number", "192.0.2.9"),
        ] {
            let spec = json!({"type": "ExternalName", "externalName": target});
            self.service(name, none.clone(), none.clone(), spec).await;
        }
    }

    /// Sets the pods of the grid's Service.
    pub(crate) async fn pods(&self, pods: &[&str]) {
        self.slice("db", 5432, pods).await;
    }

    /// Stock CoreDNS beside the agent.
    pub(crate) fn coredns(
        &self,
        address: SocketAddr,
        upstream: SocketAddr,
        cached: bool,
    ) -> CoreDnsOptions<'_> {
        let Self { hosts, wrapper, .. } = self;
        CoreDnsOptions { hosts, wrapper: *wrapper, address, upstream, cached, namespace: None }
    }

    /// The address of a Service.
    pub(crate) async fn cluster_ip(&self, service: &str) -> String {
        let api: Api<k8s_openapi::api::core::v1::Service> = Api::namespaced(self.client.clone(), NAMESPACE);
        api.get(service).await.unwrap().spec.unwrap().cluster_ip.unwrap()
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a string"))
}

fn endpoint(text: &str) -> Value {
    let ready = !text.starts_with('!');
    let (address, rest) = text.trim_start_matches('!').split_once('@').unwrap();
    let (node, pod) = rest.split_once('=').map_or((rest, None), |(node, pod)| (node, Some(pod)));
    let mut endpoint = json!({"addresses": [address], "nodeName": node, "conditions": {"ready": ready}});
    if let Some(pod) = pod {
        let (pod, uid) = pod.split_once('#').unwrap_or((pod, ""));
        endpoint["hostname"] = pod.into();
        endpoint["targetRef"] = json!({"kind": "Pod", "name": pod, "namespace": NAMESPACE, "uid": uid});
    }
    endpoint
}

/// The definition of StatefulSetGrids, as far as uniform names need it.
fn definition() -> Value {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "statefulsetgrids.superedge.io"},
        "spec": {
            "group": "superedge.io", "scope": "Namespaced",
            "names": {"kind": "StatefulSetGrid", "plural": "statefulsetgrids", "singular": "statefulsetgrid"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": anything}}],
        },
    })
}
