//! A real API server with the rights of `deploy/`, and a cloudcore in this process.

use std::path::Path;
use std::time::Duration;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tombolo_cloud::hub::Hub;
use tombolo_cloud::{App, Config, Kube, StatusHandle};
use tombolo_link::server::Accepted;
use tombolo_link::{Transport, mem};
use tombolo_proto::NodeId;
use tombolo_runtime::drain::{self, Trigger};
use tombolo_testkit::{ControlPlane, ControlPlaneOptions, wait_for};

use super::edge::{Edge, Store};

/// The kinds of the pushed set, apart from the Node.
const KINDS: [&str; 3] = ["pods", "configmaps", "secrets"];

pub(crate) struct World {
    pub(crate) plane: ControlPlane,
    pub(crate) status: StatusHandle,
    admin: Client,
    cloudcore: Cloudcore,
    token: String,
}

/// One replica.
pub(crate) struct Cloudcore {
    hub: std::sync::Arc<Hub>,
    status: StatusHandle,
    trigger: Trigger,
    running: tokio::task::JoinHandle<()>,
    _data: tempfile::TempDir,
}

impl Cloudcore {
    async fn start(plane: &ControlPlane, token: &str) -> Self {
        let data = tempfile::tempdir().unwrap();
        let parsed: Kubeconfig = serde_json::from_value(plane.kubeconfig_with_token(token)).unwrap();
        let config =
            kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await.unwrap();
        let kube = Kube::from_config(config).unwrap();
        let bound = App::build(Config::local(data.path()), kube).await.unwrap();
        let (status, hub) = (bound.status(), bound.hub());
        let (trigger, drain) = drain::channel(Duration::from_secs(5));
        let running = tokio::spawn(async move { bound.run(drain).await.unwrap() });
        let cloudcore = Self { hub, status, trigger, running, _data: data };
        wait_for("cloudcore to be ready", Duration::from_secs(30), || async {
            let status = cloudcore.status.snapshot();
            if status.ready { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await;
        cloudcore
    }

    /// Connects a process of an edge with this store.
    pub(crate) fn connect(&self, name: &str, store: Store, process: u64) -> Edge {
        let node = NodeId::parse(name).unwrap();
        let (cloud, edge, _faults) = mem::pair(node.clone());
        let remote = cloud.peer().remote;
        self.hub.accept(Accepted { link: cloud, node, remote, transport: Transport::Memory });
        Edge::new(name, edge, store, process)
    }

    pub(crate) async fn stop(self) {
        self.trigger.start();
        tokio::time::timeout(Duration::from_secs(30), self.running).await.expect("drain timeout").unwrap();
    }
}

impl World {
    pub(crate) async fn start() -> Self {
        let plane =
            ControlPlane::start(ControlPlaneOptions { controllers: false, ..ControlPlaneOptions::default() })
                .await
                .unwrap();
        let admin = plane.admin_client().await.unwrap();
        let token = grant(&plane).await;
        let cloudcore = Cloudcore::start(&plane, &token).await;
        Self { plane, status: cloudcore.status.clone(), admin, cloudcore, token }
    }

    /// Another replica of cloudcore.
    pub(crate) async fn replica(&self) -> Cloudcore {
        Cloudcore::start(&self.plane, &self.token).await
    }

    /// Connects an edge with this store.
    pub(crate) fn connect(&self, name: &str, store: Store) -> Edge {
        self.cloudcore.connect(name, store, 0)
    }

    /// Connects a process of an edge.
    pub(crate) fn connect_process(&self, name: &str, process: u64) -> Edge {
        self.cloudcore.connect(name, Store::default(), process)
    }

    /// Creates, replaces or deletes an object as the administrator; panics if the API server rejects it.
    pub(crate) async fn admin(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder().method(method).uri(path);
        let content_type =
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = request.header("content-type", content_type).body(body).unwrap();
        let text =
            self.admin.request_text(request).await.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        serde_json::from_str(&text).unwrap()
    }

    /// Patches as the administrator once the API server is back from an interruption.
    pub(crate) async fn patch_until_done(&self, path: &str, patch: &Value) {
        wait_for("the patch to be accepted", Duration::from_secs(30), || async {
            let request = http::Request::builder().method("PATCH").uri(path);
            let request = request.header("content-type", "application/merge-patch+json");
            let request = request.body(patch.to_string().into_bytes()).unwrap();
            self.admin.request_text(request).await.map(drop).map_err(|error| error.to_string())
        })
        .await;
    }

    /// The API server creates it a moment after its start.
    pub(crate) async fn lease_namespace(&self) {
        wait_for("kube-node-lease", Duration::from_secs(30), || async {
            let list = self.admin("GET", "/api/v1/namespaces", &Value::Null).await;
            let mut names =
                list["items"].as_array().into_iter().flatten().map(|item| &item["metadata"]["name"]);
            if names.any(|name| name == "kube-node-lease") { Ok(()) } else { Err(list.to_string()) }
        })
        .await;
    }

    /// Deletes a pod immediately, as the garbage collector of pods would.
    pub(crate) async fn delete_pod(&self, name: &str) {
        let options = json!({"gracePeriodSeconds": 0});
        self.admin("DELETE", &format!("/api/v1/namespaces/default/pods/{name}"), &options).await;
    }

    pub(crate) async fn config(&self, kind: &str, name: &str, data: &Value) {
        let body = json!({"metadata": {"name": name}, (if kind == "secrets" { "stringData" } else { "data" }): data});
        self.admin("POST", &format!("/api/v1/namespaces/default/{kind}"), &body).await;
    }

    /// Creates a pod on a node that reads a ConfigMap and a Secret.
    pub(crate) async fn pod(&self, name: &str, node: &str, configmap: &str, secret: &str) -> Value {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": node, "serviceAccountName": "default", "automountServiceAccountToken": false,
                "containers": [{"name": "c", "image": "none", "envFrom": [{"secretRef": {"name": secret}}]}],
                "volumes": [
                    {"name": "v", "configMap": {"name": configmap}},
                    {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
                ]
            }
        });
        self.admin("POST", "/api/v1/namespaces/default/pods", &pod).await
    }

    /// Changes objects that a node needs and waits until its edge has the changes, for statements that something is not
    /// delivered: cloudcore watches each kind in order, so changes of pods, ConfigMaps and Secrets that were made
    /// before are delivered by then, or never. Removes the objects, and what was delivered of them.
    pub(crate) async fn fence(&self, edge: &mut Edge, node: &str) {
        let name = format!("fence-{node}");
        let key = |kind: &str| format!("v1/{kind}/default/{name}");
        for kind in ["configmaps", "secrets"] {
            self.config(kind, &name, &json!({"k": "0"})).await;
        }
        self.pod(&name, node, &name, &name).await;
        edge.until("a fence", |edge| KINDS.iter().all(|kind| edge.has(&key(kind)))).await;
        // The keys that wait for a session have no order, so the last of them may arrive after the first change.
        for value in ["b25l", "dHdv"] {
            for (kind, patch) in [
                ("pods", json!({"metadata": {"labels": {"k": value}}})),
                ("configmaps", json!({"data": {"k": value}})),
                ("secrets", json!({"data": {"k": value}})),
            ] {
                self.admin("PATCH", &format!("/api/v1/namespaces/default/{kind}/{name}"), &patch).await;
            }
            edge.until("a changed fence", |edge| {
                KINDS.iter().all(|kind| {
                    let row = edge.row(0, &key(kind));
                    row.is_some_and(|row| {
                        [&row.body["data"], &row.body["metadata"]["labels"]]
                            .iter()
                            .any(|map| map["k"] == value)
                    })
                })
            })
            .await;
        }
        self.delete_pod(&name).await;
        for kind in ["configmaps", "secrets"] {
            self.admin("DELETE", &format!("/api/v1/namespaces/default/{kind}/{name}"), &Value::Null).await;
        }
        edge.until("the end of the fence", |edge| KINDS.iter().all(|kind| edge.row(0, &key(kind)).is_none()))
            .await;
        edge.delivered.retain(|delivered| !delivered.ends_with(&name));
    }

    pub(crate) async fn stop(self) {
        self.cloudcore.stop().await;
    }
}

/// Applies the rights that `deploy/` ships and returns a token of cloudcore's account.
async fn grant(plane: &ControlPlane) -> String {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cloudcore");
    for name in ["00-namespace", "10-rights", "20-impersonation", "30-edge-network"] {
        let path = deploy.join(name).with_extension("yaml").display().to_string();
        let output = plane.kubectl(&["apply", "-f", &path]).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    // No controller creates it here, and pod admission requires it.
    let output = plane.kubectl(&["create", "serviceaccount", "default"]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = plane.kubectl(&["-n", "kubeedge", "create", "token", "tombolo-cloudcore"]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
