//! Objects that a node with a valid certificate can write into the cluster and that the hub keeps: mirror pods, the
//! status of its pods, and its Node.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use rand::distr::Alphanumeric;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::time::Instant;
use tombolo_link::{Link, LinkEvent};
use tombolo_proto::frame::{
    ApiReply, ApiRequest, Frame, Inventory, ReplyBody, Request, RequestBody, Subscribe,
};
use tombolo_proto::{Lane, RequestId, Resource, SubscriptionId};
use tombolo_testkit::fresh;

use super::attacks::Attack;
use super::peer::{HOSTILE, Heard, Hub, Took};

/// Size of a mirror pod in bytes: close to the limit of annotations.
const POD_LEN: usize = 240 * 1024;

/// Size of a status, in bytes: close to the limits of the embedded server for a node, and of etcd.
const STATUS_LEN: [usize; 2] = [140 * 1024, 1024 * 1024];

/// Every attack, in the order of the table.
pub(crate) const ALL: [Attack; 4] = [
    ("mirror pods and large statuses", |hub, limit| Box::pin(mirror_pods(hub, limit))),
    ("mirror pods of many parts", |hub, limit| Box::pin(pods_of_many_parts(hub, limit))),
    ("48 watches of a Node of many parts", |hub, limit| {
        Box::pin(watched_node(hub, limit, "/status", |number| {
            // More than any reader accepts, and close to the limits of both servers.
            let parts = [PARTS, PARTS_READ[0], PARTS_READ[1]][number % 3] + number % 2;
            json!({"status": {"volumesInUse": vec![""; parts]}})
        }))
    }),
    ("48 watches of a Node of 10,000 labels", |hub, limit| {
        Box::pin(watched_node(
            hub,
            limit,
            "",
            |number| json!({"metadata": {"labels": names(LABELS[number % 2], &json!((number % 10).to_string()))}}),
        ))
    }),
];

/// Annotations of a pod, with keys of 12 bytes: close to the limits of the embedded server for a node, and of cloudcore
/// for forwarding.
const ANNOTATIONS: [usize; 2] = [6_500, 14_000];

/// Labels of a Node with such keys; the limits are the same.
const LABELS: [usize; 2] = [2_000, 10_000];

/// How long the pods exist at least: the embedded server checks all pods every 20 seconds.
const ROUND: Duration = Duration::from_secs(21);

/// Entries of a list in a status: close to etcd's limit.
const PARTS: usize = 350_000;

/// Close to the embedded server's limit for a node, and to the number that is read.
const PARTS_READ: [usize; 2] = [15_000, 31_000];

/// Watches of the node's own Node, each with another selector.
const WATCHES: u32 = 48;

/// Time to delete the written objects.
const CLEANING_MAX: Duration = Duration::from_secs(15);

/// A session that sends one request after the other.
struct Asking {
    link: Link,
    heard: Heard,
    asked: u64,
    until: Instant,
}

impl Asking {
    /// Sends a frame once the earlier frames have left. None when the session has ended.
    async fn say(&mut self, frame: Frame) -> Option<()> {
        self.link.flush().await.ok()?;
        self.link.send(Lane::Control, frame).ok()
    }

    /// Sends a request and waits for the answer. None when the session or the time has ended.
    async fn ask(&mut self, method: &str, path: &str, kind: &str, body: &Value) -> Option<ApiReply> {
        self.asked += 1;
        let id = RequestId(self.asked);
        let body = ApiRequest {
            content_type: kind.to_owned(),
            accept: "application/json".to_owned(),
            body: if body.is_null() { Bytes::new() } else { body.to_string().into() },
            ..ApiRequest::new(method, path)
        };
        let timeout = Duration::from_secs(30);
        let request = Request { id, timeout, body: RequestBody::Api(body), caller_token: None };
        self.say(Frame::Request(request)).await?;
        loop {
            let event = tokio::time::timeout_at(self.until, self.link.next()).await.ok()?;
            if self.heard.take(&event) {
                return None;
            }
            match event {
                LinkEvent::Frame(_, Frame::Reply(reply)) if reply.id == id => {
                    let ReplyBody::Api(reply) = reply.body else { return None };
                    return Some(reply);
                }
                LinkEvent::Frame(_, Frame::Ping { id }) => {
                    self.say(Frame::Pong { id }).await?;
                }
                // A node that does not acknowledge uses up its share of deliveries in flight and receives no further
                // answers.
                LinkEvent::Frame(lane, Frame::Deliver(deliver)) => {
                    self.say(Frame::Ack { lanes: vec![(lane, deliver.seq)] }).await?;
                }
                _ => {}
            }
        }
    }
}

impl Asking {
    /// Behaves like an honest node for a while.
    async fn stay(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Ok(event) = tokio::time::timeout_at(until, self.link.next()).await {
            if self.heard.take(&event) {
                break;
            }
            if let LinkEvent::Frame(_, Frame::Ping { id }) = event {
                let _ = self.link.send(Lane::Control, Frame::Pong { id });
            }
        }
    }

    /// Deletes the written objects, so that the next attack finds the node's share unused. Returns what was received.
    async fn end(mut self, written: Vec<String>) -> String {
        self.until = Instant::now() + CLEANING_MAX;
        let now = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
        let count = written.len();
        let mut deleted = 0;
        for path in written {
            let Some(reply) = self.ask("DELETE", &path, "application/json", &now).await else { break };
            deleted += u64::from(reply.code == 200);
        }
        format!("{deleted} of {count} deleted; {}", self.heard.text())
    }
}

/// Opens a session as the hostile node, and returns the Node's UID with it.
async fn asking(hub: &Hub, limit: Duration) -> Result<(Asking, Value)> {
    let link = hub.connect(Inventory::Full(Vec::new())).await?;
    let mut asking = Asking { link, heard: Heard::default(), asked: 0, until: Instant::now() + limit };
    let own = asking.ask("GET", &format!("/api/v1/nodes/{HOSTILE}"), "", &Value::Null).await;
    let mut own: Value = serde_json::from_slice(&own.context("no answer about the own Node")?.body)?;
    Ok((asking, own["metadata"]["uid"].take()))
}

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn mirror_pods(hub: &Hub, limit: Duration) -> Result<Took> {
    let (mut asking, own) = asking(hub, limit).await?;
    let (mut pods, mut statuses, mut written) = (Vec::new(), 0_u64, 0);
    for number in 0_usize.. {
        let pod = mirror(&format!("mirror-{number}"), &own, json!({"junk": junk(POD_LEN)}));
        let Some(reply) = asking.ask("POST", PODS, "application/json", &pod).await else { break };
        if reply.code != 201 {
            continue;
        }
        let path = format!("{PODS}/mirror-{number}");
        let len = STATUS_LEN[number % 2];
        let status = json!({"status": {"phase": "Running", "message": junk(len)}});
        let patch = "application/merge-patch+json";
        let reply = asking.ask("PATCH", &format!("{path}/status"), patch, &status).await;
        pods.push(path);
        written += POD_LEN;
        let Some(reply) = reply else { break };
        if reply.code == 200 {
            statuses += 1;
            written += len;
        }
    }
    let count = u64::try_from(pods.len())?;
    let took = Took::place(asking.end(pods).await).least("mirror pod", count, 1).least("status", statuses, 1);
    // Less would not show that there is a bound.
    Ok(took.least("MiB stored", u64::try_from(written / (1024 * 1024))?, 12))
}

/// A reader that parses all of them at once into trees needs many times the size of their text.
async fn pods_of_many_parts(hub: &Hub, limit: Duration) -> Result<Took> {
    let (mut asking, own) = asking(hub, limit).await?;
    let mut pods = Vec::new();
    for number in 0_usize.. {
        let pod = mirror(&format!("parts-{number}"), &own, names(ANNOTATIONS[number % 2], &json!("")));
        let Some(reply) = asking.ask("POST", PODS, "application/json", &pod).await else { break };
        if reply.code == 201 {
            pods.push(format!("{PODS}/parts-{number}"));
        }
    }
    asking.stay(ROUND).await;
    let count = u64::try_from(pods.len())?;
    // Parsed into trees, they would take far more than the bound.
    Ok(Took::place(asking.end(pods).await).least("mirror pod", count, 16))
}

/// A text of many small parts takes many times its length when it is parsed, and here every watcher of the Node parses
/// it.
async fn watched_node(
    hub: &Hub,
    limit: Duration,
    subresource: &str,
    patch: impl Fn(usize) -> Value,
) -> Result<Took> {
    let (mut asking, _) = asking(hub, limit).await?;
    for subscription in 1..=WATCHES {
        let subscribe = Subscribe {
            subscription: SubscriptionId(subscription),
            resource: Resource::new("", "v1", "nodes"),
            namespace: String::new(),
            label_selector: format!("part!={subscription}"),
            field_selector: format!("metadata.name={HOSTILE}"),
            caller_token: None,
            epoch: None,
            inventory: Inventory::Full(Vec::new()),
        };
        asking.link.send(Lane::Delivery, Frame::Subscribe(subscribe))?;
        asking.link.flush().await?;
    }
    let (path, kind) = (format!("/api/v1/nodes/{HOSTILE}{subresource}"), "application/merge-patch+json");
    asking.ask("GET", &path, "", &Value::Null).await;
    let mut written = 0;
    for number in 0_usize.. {
        let Some(reply) = asking.ask("PATCH", &path, kind, &patch(number)).await else { break };
        written += u64::from(reply.code == 200);
    }
    // Restored, so that the next attack has the full share.
    asking.until = Instant::now() + CLEANING_MAX;
    let parts = if subresource.is_empty() {
        json!({"metadata": {"labels": names(LABELS[1], &Value::Null)}})
    } else {
        json!({"status": {"volumesInUse": null}})
    };
    asking.ask("PATCH", &path, kind, &parts).await;
    Ok(Took::place(asking.heard.text()).least("write", written, 1))
}

/// Incompressible text.
fn junk(len: usize) -> String {
    StdRng::seed_from_u64(fresh()).sample_iter(Alphanumeric).take(len).map(char::from).collect()
}

/// Keys with this value, as labels or annotations.
fn names(count: usize, value: &Value) -> Value {
    let names = (0..count).map(|number| (format!("n{number:011}"), value.clone()));
    names.collect::<serde_json::Map<_, _>>().into()
}

fn mirror(name: &str, uid: &Value, mut annotations: Value) -> Value {
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": HOSTILE, "uid": uid, "controller": true});
    annotations["kubernetes.io/config.mirror"] = json!("m");
    json!({"apiVersion": "v1", "kind": "Pod",
           "metadata": {"name": name, "annotations": annotations, "ownerReferences": [owner]},
           "spec": {"nodeName": HOSTILE, "containers": [{"name": "c", "image": "registry.example/c:1"}]}})
}
