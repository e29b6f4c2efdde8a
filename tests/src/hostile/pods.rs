//! What a node with a valid certificate can write into the cluster so that the hub keeps it: mirror pods, and the status of its
//! pods.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;
use tombolo_link::{Link, LinkEvent};
use tombolo_proto::frame::{
    ApiReply, ApiRequest, Frame, Inventory, ReplyBody, Request, RequestBody, Subscribe,
};
use tombolo_proto::{Lane, RequestId, Resource, ScopeId};

use super::attacks::Attack;
use super::peer::{HOSTILE, Heard, Hub, Took};

/// Bytes of a mirror pod: what annotations may have, nearly.
const POD_LEN: usize = 240 * 1024;

/// Bytes of a status, beside them: what etcd takes, nearly.
const STATUS_LEN: usize = 1024 * 1024;

/// Every attack, in the order of the table.
pub(crate) const ALL: [Attack; 2] = [
    ("mirror pods and large statuses", |hub, limit| Box::pin(mirror_pods(hub, limit))),
    ("48 watches of a Node of many parts", |hub, limit| Box::pin(many_parts(hub, limit))),
];

/// Entries of a list in a status: near what etcd takes.
const PARTS: usize = 350_000;

/// Nearly as many as are read.
const PARTS_READ: usize = 31_000;

/// Watches of the own Node, each with another selector.
const WATCHES: u32 = 48;

/// A session in which one question follows the other.
struct Asking {
    link: Link,
    heard: Heard,
    asked: u64,
    until: Instant,
}

impl Asking {
    /// None when the session or the time has ended.
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
        self.link.send(Lane::Control, Frame::Request(request)).ok()?;
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
                    self.link.send(Lane::Control, Frame::Pong { id }).ok()?;
                }
                _ => {}
            }
        }
    }
}

async fn mirror_pods(hub: &Hub, limit: Duration) -> Result<Took> {
    let link = hub.connect(Inventory::Full(Vec::new())).await?;
    let mut asking = Asking { link, heard: Heard::default(), asked: 0, until: Instant::now() + limit };
    let own = asking.ask("GET", &format!("/api/v1/nodes/{HOSTILE}"), "", &Value::Null).await;
    let own: Value = serde_json::from_slice(&own.context("no answer about the own Node")?.body)?;
    let (mut pods, mut statuses) = (0_u64, 0_u64);
    for number in 0.. {
        let name = format!("mirror-{number}");
        let (json, all) = ("application/json", "/api/v1/namespaces/default/pods");
        let Some(reply) = asking.ask("POST", all, json, &mirror(&name, &own["metadata"]["uid"])).await else {
            break;
        };
        if reply.code != 201 {
            continue;
        }
        pods += 1;
        let path = format!("{all}/{name}/status");
        let status = json!({"status": {"phase": "Running", "message": "x".repeat(STATUS_LEN)}});
        let Some(reply) = asking.ask("PATCH", &path, "application/merge-patch+json", &status).await else {
            break;
        };
        statuses += u64::from(reply.code == 200);
    }
    let written = pods * u64::try_from(POD_LEN)? + statuses * u64::try_from(STATUS_LEN)?;
    let took = Took::place(asking.heard.text()).least("mirror pod", pods, 1).least("status", statuses, 1);
    // Less would not show that there is a bound.
    Ok(took.least("MiB stored", written / (1024 * 1024), 12))
}

/// A text of many small parts takes many times its length where it is read, and here everybody who watches the Node reads it.
async fn many_parts(hub: &Hub, limit: Duration) -> Result<Took> {
    let link = hub.connect(Inventory::Full(Vec::new())).await?;
    let mut asking = Asking { link, heard: Heard::default(), asked: 0, until: Instant::now() + limit };
    for scope in 1..=WATCHES {
        let subscribe = Subscribe {
            scope: ScopeId(scope),
            resource: Resource::new("", "v1", "nodes"),
            namespace: String::new(),
            label_selector: format!("part!={scope}"),
            field_selector: format!("metadata.name={HOSTILE}"),
            caller_token: None,
            epoch: None,
            inventory: Inventory::Full(Vec::new()),
        };
        asking.link.send(Lane::Delivery, Frame::Subscribe(subscribe))?;
        asking.link.flush().await?;
    }
    let (path, kind) = (format!("/api/v1/nodes/{HOSTILE}/status"), "application/merge-patch+json");
    asking.ask("GET", &path, "", &Value::Null).await;
    let mut written = 0;
    for number in 0_usize.. {
        // More than anybody reads, and nearly as many.
        let parts = vec![""; if number.is_multiple_of(2) { PARTS } else { PARTS_READ + number % 3 }];
        let Some(reply) = asking.ask("PATCH", &path, kind, &json!({"status": {"volumesInUse": parts}})).await
        else {
            break;
        };
        written += u64::from(reply.code == 200);
    }
    Ok(Took::place(asking.heard.text()).least("status", written, 1))
}

fn mirror(name: &str, uid: &Value) -> Value {
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": HOSTILE, "uid": uid, "controller": true});
    let annotations = json!({"kubernetes.io/config.mirror": "m", "junk": "x".repeat(POD_LEN)});
    json!({"apiVersion": "v1", "kind": "Pod",
           "metadata": {"name": name, "annotations": annotations, "ownerReferences": [owner]},
           "spec": {"nodeName": HOSTILE, "containers": [{"name": "c", "image": "registry.example/c:1"}]}})
}
