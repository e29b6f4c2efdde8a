//! Pods from their row to Running, and to their end (docs/reference/kubeedge.md#the-edges-kubelet).

use std::collections::HashMap;

use anyhow::{Result, ensure};
use futures::future::join_all;
use serde_json::{Value, json};
use sha2::Digest as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::super::bus::PodNews;
use super::super::client::{Client, done};
use super::super::wire::route;
use super::{BackOff, references};

/// An image that no registry has: a pod with it never runs.
const NO_IMAGE: &str = "none";

/// Pods of the node, one task for each incarnation, as many as the cloud has bound to it.
struct Pods<'a> {
    client: &'a Client,
    /// By UID: the newest version that the task was given.
    running: HashMap<String, watch::Sender<Value>>,
    tasks: JoinSet<()>,
}

/// Follows the rows, from those that a former process has left.
pub(super) async fn run(client: &Client, mut news: mpsc::Receiver<PodNews>) {
    let mut pods = Pods { client, running: HashMap::new(), tasks: JoinSet::new() };
    pods.read_rows();
    while let Some(PodNews { path, gone, content }) = news.recv().await {
        if !gone {
            pods.take(content);
        } else if content["spec"].as_object().is_none_or(serde_json::Map::is_empty) {
            // A deletion without a spec makes edged read all rows again (docs/reference/kubeedge.md#pod-deletion).
            pods.read_rows();
        } else if !client.bus.store.lock().has(&path) {
            pods.running.remove(uid(&content));
        }
        while pods.tasks.try_join_next().is_some() {}
    }
}

impl Pods<'_> {
    fn read_rows(&mut self) {
        let rows: Vec<Value> =
            self.client.bus.store.lock().of_kind("pod").map(|(_, row)| row.clone()).collect();
        self.running.retain(|known, _| rows.iter().any(|row| uid(row) == known));
        rows.into_iter().for_each(|row| self.take(row));
    }

    fn take(&mut self, pod: Value) {
        if pod["spec"]["nodeName"] != *self.client.node {
            return;
        }
        if let Some(known) = self.running.get(uid(&pod)) {
            known.send_replace(pod);
            return;
        }
        let (tell, told) = watch::channel(pod.clone());
        self.running.insert(uid(&pod).to_owned(), tell);
        self.tasks.spawn(live(self.client.clone(), told));
    }
}

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap_or_default()
}

/// Brings a pod to Running, and to its end once that is asked for. Ends early when the pod is taken away.
async fn live(client: Client, pod: watch::Receiver<Value>) {
    let first = pod.borrow().clone();
    let running = async {
        start(&client, &first).await;
        std::future::pending::<()>().await;
    };
    let asked_to_end = tokio::select! {
        asked = asked_to_end(pod.clone()) => asked,
        () = running => false,
    };
    if asked_to_end {
        tokio::select! {
            () = finish(&client, &first) => {}
            () = taken_away(pod) => {}
        }
    }
}

/// Waits for the mark of a deletion. False when the pod was taken away without one.
async fn asked_to_end(mut pod: watch::Receiver<Value>) -> bool {
    pod.wait_for(|pod| pod["metadata"]["deletionTimestamp"].is_string()).await.is_ok()
}

async fn taken_away(mut pod: watch::Receiver<Value>) {
    while pod.changed().await.is_ok() {}
}

/// Status is reported while volumes are set up side by side; the environment is read when the image is there.
async fn start(client: &Client, pod: &Value) {
    let waiting = status(pod, "Pending");
    let tokens = references::tokens(pod).into_iter().map(async |(path, request)| {
        let is_token = |reply: &Value| reply.pointer("/content/status/token").is_some();
        query(client, &path, &request, is_token).await;
    });
    let volumes = references::volumes(pod).into_iter().map(|path| get(client, path));
    let claims = references::claims(pod).into_iter().map(|claim| attach(client, pod, claim));
    tokio::join!(report(client, pod, &waiting), join_all(tokens), join_all(volumes), join_all(claims));
    let is_missing = |container: &Value| container["image"] == NO_IMAGE;
    if pod["spec"]["containers"].as_array().is_some_and(|containers| containers.iter().any(is_missing)) {
        return;
    }
    join_all(references::environment(pod).into_iter().map(|path| get(client, path))).await;
    report(client, pod, &status(pod, "Running")).await;
}

/// A claim, its volume and, where a driver attaches it, its attachment, each until it is there
/// (docs/reference/kubeedge.md#pod-to-running).
async fn attach(client: &Client, pod: &Value, claim: &str) {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    let claim = format!("{namespace}/persistentvolumeclaim/{claim}");
    let claim = look_until(client, &claim, |claim| claim["spec"]["volumeName"].is_string()).await;
    let volume =
        format!("null/persistentvolume/{}", claim["spec"]["volumeName"].as_str().unwrap_or_default());
    let volume = look_until(client, &volume, |_| true).await;
    let driver = &volume["spec"]["csi"];
    if let (Some(driver), Some(handle)) = (driver["driver"].as_str(), driver["volumeHandle"].as_str()) {
        // As Kubernetes names attachments.
        let name = hex::encode(sha2::Sha256::digest(format!("{handle}{driver}{}", client.node)));
        let attachment = format!("default/volumeattachment/csi-{name}");
        look_until(client, &attachment, |attachment| attachment["status"]["attached"] == true).await;
    }
}

/// Asks for an object until it is as it should be. A volume manager asks anew each time: no row stands in its way.
async fn look_until(client: &Client, path: &str, ready: impl Fn(&Value) -> bool) -> Value {
    query(client, path, &Value::Null, |reply| ready(&reply["content"])).await
}

/// What is a row is not asked for (docs/reference/kubeedge.md#remote-calls).
async fn get(client: &Client, path: String) {
    if !client.bus.store.lock().has(&path) {
        query(client, &path, &Value::Null, |_| true).await;
    }
}

/// Asks until there is an answer that is no error; gives its content.
async fn query(client: &Client, path: &str, content: &Value, accepted: impl Fn(&Value) -> bool) -> Value {
    let mut back_off = BackOff::new();
    loop {
        if let Ok(mut reply) = client.ask("query", path, content.clone()).await
            && route(&reply, "operation") == "response"
            && accepted(&reply)
        {
            return reply["content"].take();
        }
        back_off.pause().await;
    }
}

/// Patches the pod's status until the cloud has taken it.
async fn report(client: &Client, pod: &Value, status: &Value) {
    let patch = json!({"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}).to_string();
    let mut back_off = BackOff::new();
    loop {
        let reply = client.ask("patch", &path(pod, "podpatch"), patch.clone().into()).await;
        if reply.is_ok_and(|reply| done(&reply).is_ok()) {
            return;
        }
        back_off.pause().await;
    }
}

async fn finish(client: &Client, pod: &Value) {
    // When the pod is gone already its status cannot be reported, and its deletion is confirmed all the same.
    let ended = status(pod, "Succeeded");
    let _ = tokio::time::timeout(client.bus.pace.lease, report(client, pod, &ended)).await;
    let mut back_off = BackOff::new();
    while delete(client, pod).await.is_err() {
        back_off.pause().await;
    }
}

async fn delete(client: &Client, pod: &Value) -> Result<()> {
    let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}});
    let reply = client.ask("delete", &path(pod, "pod"), options).await?;
    ensure!(reply["content"] == "OK", "{reply}");
    Ok(())
}

fn path(pod: &Value, kind: &str) -> String {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
    format!("{}/{kind}/{}", text("namespace"), text("name"))
}

fn status(pod: &Value, phase: &str) -> Value {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let ready = if phase == "Running" { "True" } else { "False" };
    let state = match phase {
        "Running" => json!({"running": {"startedAt": now}}),
        "Pending" => json!({"waiting": {"reason": "ContainerCreating"}}),
        _ => json!({"terminated": {"exitCode": 0, "startedAt": now, "finishedAt": now}}),
    };
    let containers = pod["spec"]["containers"].as_array().map_or(&[][..], Vec::as_slice);
    let containers = containers.iter().map(|container| {
        json!({"name": container["name"], "image": container["image"], "imageID": "", "ready": phase == "Running",
            "restartCount": 0, "started": phase == "Running", "lastState": {}, "state": state})
    });
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(|kind| {
        let status = if kind.contains("Ready") { ready } else { "True" };
        json!({"type": kind, "status": status, "lastProbeTime": null, "lastTransitionTime": now})
    });
    json!({
        "phase": phase, "startTime": now, "hostIP": "192.0.2.2",
        "$setElementOrder/conditions": conditions.iter().map(|condition| json!({"type": condition["type"]})).collect::<Vec<_>>(),
        "conditions": conditions, "containerStatuses": containers.collect::<Vec<_>>()})
}
