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

/// The pods of the node that the cloud has bound to it, with one task per incarnation.
struct Pods<'a> {
    client: &'a Client,
    /// The newest version that each task has received, by UID.
    running: HashMap<String, watch::Sender<Value>>,
    tasks: JoinSet<()>,
}

/// Follows the rows, beginning with those that an earlier process has left.
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

/// Brings a pod to Running and, when its deletion is requested, to its end. Returns early when the pod is removed.
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

/// Waits for the deletion timestamp. False when the pod was removed without one.
async fn asked_to_end(mut pod: watch::Receiver<Value>) -> bool {
    pod.wait_for(|pod| pod["metadata"]["deletionTimestamp"].is_string()).await.is_ok()
}

async fn taken_away(mut pod: watch::Receiver<Value>) {
    while pod.changed().await.is_ok() {}
}

/// Reports status while volumes are set up concurrently; reads the environment when the image is present.
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

/// Waits for a claim, its volume and, if a driver attaches the volume, its attachment
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
        // The name that Kubernetes gives to attachments.
        let name = hex::encode(sha2::Sha256::digest(format!("{handle}{driver}{}", client.node)));
        let attachment = format!("default/volumeattachment/csi-{name}");
        look_until(client, &attachment, |attachment| attachment["status"]["attached"] == true).await;
    }
}

/// Requests an object until it is in the wanted state. A volume manager sends a request each time, even if there is a
/// row.
async fn look_until(client: &Client, path: &str, ready: impl Fn(&Value) -> bool) -> Value {
    query(client, path, &Value::Null, |reply| ready(&reply["content"])).await
}

/// Objects that have a row are not requested (docs/reference/kubeedge.md#remote-calls).
async fn get(client: &Client, path: String) {
    if !client.bus.store.lock().has(&path) {
        query(client, &path, &Value::Null, |_| true).await;
    }
}

/// Queries until an answer is not an error, and returns its content.
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

/// Patches the pod's status until the cloud accepts it.
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
    // If the pod is already gone, its status cannot be reported, but its deletion is confirmed nevertheless.
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
