//! A node that is Ready and has capacity, but no kubelet: pods are bound to it and never run.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Namespace of the nodes' heartbeats.
const LEASES: &str = "kube-node-lease";

/// How long a heartbeat is valid, in seconds, as kubelet sets it.
const LEASE_SECONDS: i32 = 40;

/// How often a kubelet renews its lease: a quarter of its duration.
const RENEWAL: Duration = Duration::from_secs(10);

/// Interval between searches for pods that are being deleted.
const ROUND: Duration = Duration::from_secs(1);

/// A node that reports Ready until it is dropped. Deleted pods on it disappear after a moment, as with a kubelet that
/// has nothing to stop.
#[derive(Debug)]
pub struct ReadyNode {
    keeper: JoinHandle<()>,
}

impl ReadyNode {
    /// Registers the node and keeps it Ready.
    ///
    /// # Errors
    /// The API server rejects the node, its status or its lease.
    pub async fn start(client: Client, name: &str) -> Result<Self> {
        let nodes: Api<Node> = Api::all(client.clone());
        let node = serde_json::from_value(node(name))?;
        nodes.create(&PostParams::default(), &node).await.context("create the node")?;
        let leases: Api<Lease> = Api::namespaced(client.clone(), LEASES);
        let lease = serde_json::from_value(lease(name))?;
        leases.create(&PostParams::default(), &lease).await.context("create the node's lease")?;
        let status = Patch::Merge(json!({"status": status(&now())}));
        nodes.patch_status(name, &PatchParams::default(), &status).await.context("set the node's status")?;
        Ok(Self { keeper: tokio::spawn(keep(client, name.to_owned())) })
    }
}

impl Drop for ReadyNode {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

async fn keep(client: Client, name: String) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASES);
    let mut renewal = tokio::time::interval(RENEWAL);
    let mut round = tokio::time::interval(ROUND);
    loop {
        let outcome = tokio::select! {
            _ = renewal.tick() => {
                let patch = Patch::Merge(json!({"spec": {"renewTime": now()}}));
                leases.patch(&name, &PatchParams::default(), &patch).await.map(drop)
            }
            _ = round.tick() => finish_deletions(&client, &name).await,
        };
        // The next round repeats it. Tests that need this node fail by their own deadlines.
        if let Err(error) = outcome {
            eprintln!("node {name}: {error}");
        }
    }
}

/// Removes pods of the node whose deletion would wait for a kubelet.
async fn finish_deletions(client: &Client, node: &str) -> kube::Result<()> {
    let pods: Api<Pod> = Api::all(client.clone());
    let own = ListParams::default().fields(&format!("spec.nodeName={node}"));
    for pod in pods.list(&own).await? {
        let metadata = pod.metadata;
        let (Some(namespace), Some(name), Some(_)) =
            (metadata.namespace, metadata.name, metadata.deletion_timestamp)
        else {
            continue;
        };
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        match pods.delete(&name, &DeleteParams::default().grace_period(0)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The time in the format of a lease's `renewTime`.
fn now() -> String {
    k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

fn node(name: &str) -> Value {
    let labels = json!({
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
}

fn lease(name: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"namespace": LEASES, "name": name},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now()}})
}

/// A status with capacity for every pod that a test suite binds.
fn status(now: &str) -> Value {
    let room = json!({"cpu": "64", "memory": "256Gi", "pods": "2000", "ephemeral-storage": "1Ti"});
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": reason,
            "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    json!({
        "capacity": room, "allocatable": room,
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": "localhost"}],
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID"),
            condition("Ready", "True", "KubeletReady")],
        "nodeInfo": {
            "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "6.12.0", "osImage": "Linux",
            "containerRuntimeVersion": "containerd://2.0.0", "kubeletVersion": "v1.36.3", "kubeProxyVersion": "",
            "operatingSystem": "linux", "architecture": "amd64"},
    })
}
