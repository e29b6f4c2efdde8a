//! The node's own objects (docs/reference/kubeedge.md#the-edges-kubelet).

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::super::client::{Client, done, failure};
use super::BackOff;

/// Registers and reports ready, and retries until both succeed.
pub(super) async fn register(client: &Client) {
    let mut back_off = BackOff::new();
    while !matches!(insert(client).await, Ok(true)) {
        back_off.pause().await;
    }
    let mut back_off = BackOff::new();
    while report_ready(client).await.is_err() {
        back_off.pause().await;
    }
}

/// Compares the node's state with its row, as the kubelet does every ten seconds, and reports when they differ
/// (docs/reference/kubeedge.md#periods). Heartbeats are not compared; images are.
pub(super) async fn keep_status(client: &Client) {
    loop {
        tokio::time::sleep(client.bus.pace.lease).await;
        let differs = client.bus.store.lock().row(&client.node_row()).is_some_and(differs);
        client.bus.store.lock().compared += 1;
        if differs {
            // The next comparison follows soon.
            let _ = report_ready(client).await;
        }
    }
}

fn differs(row: &Value) -> bool {
    let conditions = row.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
    let is_ready = ready.is_some_and(|ready| {
        READY.iter().all(|(field, value)| ready.get(field).and_then(Value::as_str) == Some(value))
    });
    !is_ready || row["status"]["images"] != images()
}

/// The Ready condition, without its times.
const READY: [(&str, &str); 4] = [
    ("type", "Ready"),
    ("status", "True"),
    ("reason", "EdgeReady"),
    ("message", "edge is posting ready status"),
];

/// The images that the node's container runtime has pulled.
fn images() -> Value {
    json!([{"names": ["registry.example/shop:1", "registry.example/shop@sha256:0"], "sizeBytes": 4096}])
}

/// Registers, acquires the lease and reports ready, each once. Returns the Node.
///
/// # Errors
/// When a step fails, unless the Node exists already: then it waits for the push of the Node.
pub(in super::super) async fn register_once(client: &Client) -> Result<Value> {
    let mut back_off = BackOff::new();
    while !insert(client).await? {
        back_off.pause().await;
    }
    lease(client).await?;
    report_ready(client).await
}

/// Creates the Node. False when it exists in the cloud but not as a row yet.
async fn insert(client: &Client) -> Result<bool> {
    let inserted = client.ask("insert", &client.node_row(), node_object(&client.node)).await?;
    match failure(&inserted) {
        None => done(&inserted).map(|_| true),
        Some(status) if status["reason"] == "AlreadyExists" => {
            Ok(client.bus.store.lock().has(&client.node_row()))
        }
        Some(status) => bail!("{status}"),
    }
}

async fn report_ready(client: &Client) -> Result<Value> {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut ready = json!({"lastHeartbeatTime": now, "lastTransitionTime": now});
    for (field, value) in READY {
        ready[field] = value.into();
    }
    let order = json!([{"type": "Ready"}]);
    let patch = json!({"status": {
        "$setElementOrder/conditions": order, "conditions": [ready], "images": images()}});
    done(&client.ask("patch", &format!("null/nodepatch/{}", client.node), patch.to_string().into()).await?)
}

/// Renews the lease forever.
pub(super) async fn keep_lease(client: &Client) {
    let mut back_off = BackOff::new();
    loop {
        if let Ok(mut held) = lease(client).await {
            back_off = BackOff::new();
            while let Ok(renewed) = renew(client, held).await {
                held = renewed;
                // With 4 % jitter (docs/reference/kubeedge.md#start-of-a-node).
                let pause = client.bus.pace.lease.mul_f64(client.bus.random(1.0, 1.04));
                tokio::time::sleep(pause).await;
            }
        }
        back_off.pause().await;
    }
}

/// The existing lease, or a new one.
async fn lease(client: &Client) -> Result<Value> {
    let found = client.ask("query", &path(client), Value::Null).await?;
    match failure(&found) {
        None => done(&found),
        Some(status) if status["reason"] == "NotFound" => {
            let row = client.bus.store.lock().row(&client.node_row()).cloned();
            let uid = row.as_ref().and_then(|row| row.pointer("/metadata/uid")).context("no Node yet")?;
            let owner = json!({"apiVersion": "v1", "kind": "Node", "name": client.node, "uid": uid});
            let lease = json!({
                "metadata": {"name": client.node, "namespace": "kube-node-lease", "creationTimestamp": null,
                    "ownerReferences": [owner]},
                "spec": {"holderIdentity": client.node, "leaseDurationSeconds": 40, "renewTime": renew_time()}});
            done(&client.ask("insert", &path(client), lease).await?)
        }
        Some(status) => bail!("{status}"),
    }
}

async fn renew(client: &Client, mut lease: Value) -> Result<Value> {
    lease["spec"]["renewTime"] = renew_time().into();
    done(&client.ask("update", &path(client), lease).await?)
}

fn path(client: &Client) -> String {
    format!("kube-node-lease/lease/{}", client.node)
}

fn renew_time() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// The Node as the kubelet creates it (docs/reference/kubeedge.md#node-object).
fn node_object(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "creationTimestamp": null, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
            "node-role.kubernetes.io/edge": "", "node-role.kubernetes.io/agent": ""},
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
        "spec": {},
        "status": {"capacity": {"cpu": "1", "memory": "3840Mi", "pods": "110"},
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10350}}}
    })
}
