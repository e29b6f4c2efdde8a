//! Frames of dialect `tombolo` as JSON.
//!
//! They have the members of messages of dialect `kubeedge` (header, route, content), so that one code path compares
//! both, and also `lane`. What protobuf has in other fields is in `content`, `deliver` or `request`. Ids consist of the
//! connection's number and the position that the protocol counts: `2/delivery/7` is the seventh delivery of lane
//! delivery on connection 2. An answer names the request in `parent_msg_id`.

mod read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tombolo_proto::frame::{
    ApiReply, ApiRequest, Change, Deliver, Goodbye, Hello, Inventory, InventoryPart, Refusal, RefusalReason,
    Reply, ReplyBody, Request, RequestBody, Subscribe, Welcome,
};
use tombolo_proto::session::kubeedge;
use tombolo_proto::{
    Epoch, Frame as Wire, HeldState, InventoryEntry, Lane, Message, ObjectKey, ObjectVersion, SubscriptionId,
};

use crate::frame::Frame;
pub use read::ReadError;

/// The value of the header's `dialect` in a transcript.
pub const DIALECT: &str = "tombolo";

/// The frame as JSON for a transcript, on the connection with this number.
#[must_use]
pub fn render(conn: u64, lane: Lane, frame: &Wire) -> Frame {
    let mut json = body(conn, frame, lane);
    json["lane"] = word(lane).into();
    Frame::new(json)
}

/// The frame that a line of a transcript represents.
///
/// # Errors
/// [`ReadError`] names the member that is missing or wrong.
pub fn wire(frame: &Frame) -> Result<(Lane, Wire), ReadError> {
    read::frame(frame.as_json())
}

fn word(lane: Lane) -> &'static str {
    match lane {
        Lane::Control => "control",
        Lane::Delivery => "delivery",
        Lane::Bulk => "bulk",
    }
}

/// Group, operation and resource of a route.
type RouteParts<'a> = [&'a str; 3];

fn frame_json(id: impl Into<Value>, route: RouteParts<'_>, content: impl Into<Value>) -> Value {
    let [group, operation, resource] = route;
    let route = json!({"group": group, "operation": operation, "resource": resource});
    let members = [("header", json!({"msg_id": id.into()})), ("route", route), ("content", content.into())];
    Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn answer(id: String, parent: String, route: RouteParts<'_>, content: impl Into<Value>) -> Value {
    let mut json = frame_json(id, route, content);
    json["header"]["parent_msg_id"] = parent.into();
    json
}

fn body(conn: u64, frame: &Wire, lane: Lane) -> Value {
    let id = |what: String| format!("{conn}/{what}");
    let session = |operation| ["session", operation, "session"];
    match frame {
        Wire::Hello(frame) => frame_json(id("hello".to_owned()), session("hello"), hello(frame)),
        Wire::Welcome(frame) => {
            answer(id("welcome".to_owned()), id("hello".to_owned()), session("welcome"), welcome(frame))
        }
        Wire::InventoryRequest { subscription } => frame_json(
            id(format!("inventory/{}", subscription.0)),
            [&group(*subscription), "inventory", "inventory"],
            Value::Null,
        ),
        Wire::InventoryPart(frame) => part(conn, frame),
        Wire::Deliver(frame) => deliver(conn, lane, frame),
        Wire::Undecodable(lost) => frame_json(
            id(format!("{}/{}", word(lane), lost.seq.0)),
            [&group(lost.subscription), "undecodable", "object"],
            json!({"reason": lost.reason}),
        ),
        Wire::Ack { lanes } => {
            let lanes: Map<String, Value> =
                lanes.iter().map(|(lane, seq)| (word(*lane).to_owned(), seq.0.into())).collect();
            frame_json(id("ack".to_owned()), session("ack"), lanes)
        }
        Wire::Refuse(frame) => refusal(conn, frame),
        Wire::CaughtUp { subscription, epoch: history, revision } => frame_json(
            id(format!("caughtup/{}/{revision}", subscription.0)),
            [&group(*subscription), "caughtup", "caughtup"],
            json!({"epoch": epoch(history), "revision": revision.0}),
        ),
        Wire::Request(frame) => request(conn, frame),
        Wire::Reply(frame) => reply(conn, frame),
        Wire::Subscribe(frame) => subscribe(conn, frame),
        Wire::Unsubscribe { subscription } => frame_json(
            id(format!("unsubscribe/{}", subscription.0)),
            [&group(*subscription), "unsubscribe", "subscription"],
            Value::Null,
        ),
        Wire::SubscriptionClosed { subscription, code, reason } => answer(
            id(format!("closed/{}", subscription.0)),
            id(format!("subscription/{}", subscription.0)),
            [&group(*subscription), "closed", "subscription"],
            json!({"code": code, "reason": reason}),
        ),
        Wire::LeaseRenew { renew_time_micros } => {
            frame_json(id(format!("lease/{renew_time_micros}")), ["session", "renew", "lease"], Value::Null)
        }
        Wire::LeaseRenewed { renew_time_micros, code } => answer(
            id(format!("renewed/{renew_time_micros}")),
            id(format!("lease/{renew_time_micros}")),
            ["session", "renewed", "lease"],
            json!({"code": code}),
        ),
        Wire::Attestation { proof } => frame_json(
            id("attestation".to_owned()),
            session("attestation"),
            json!({"proof": STANDARD.encode(proof)}),
        ),
        Wire::Ping { id: number } => frame_json(id(format!("ping/{number}")), session("ping"), Value::Null),
        Wire::Pong { id: number } => {
            answer(id(format!("pong/{number}")), id(format!("ping/{number}")), session("pong"), Value::Null)
        }
        Wire::Goodbye(frame) => frame_json(id("goodbye".to_owned()), session("goodbye"), goodbye(frame)),
    }
}

fn group(subscription: SubscriptionId) -> String {
    format!("subscription/{}", subscription.0)
}

fn epoch(epoch: &Epoch) -> Value {
    json!({"cluster": epoch.cluster.as_str(), "generation": epoch.generation})
}

fn hello(frame: &Hello) -> Value {
    let mut content = json!({
        "versions": [frame.versions.0, frame.versions.1],
        "node": frame.node.as_str(),
        "store": uuid_text(frame.store.0),
        "epoch": frame.epoch.as_ref().map(epoch),
        "trim_version": frame.trim_version,
        "features": frame.features,
        "inventory": inventory(&frame.inventory),
        "agent": frame.agent,
    });
    if !frame.attestation.is_empty() {
        content["attestation"] = STANDARD.encode(&frame.attestation).into();
    }
    content
}

fn uuid_text(bytes: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}

fn welcome(frame: &Welcome) -> Value {
    json!({
        "version": frame.version,
        "epoch": epoch(&frame.epoch),
        "features": frame.features,
        "trim_version": frame.trim_version,
        "ping_interval_millis": millis(frame.ping_interval),
        "idle_timeout_millis": millis(frame.idle_timeout),
        "unix_millis": frame.unix_millis,
        "agent": frame.agent,
    })
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The inventory of an edge as JSON for a transcript.
fn inventory(inventory: &Inventory) -> Value {
    match inventory {
        Inventory::Full(entries) => json!({"entries": entries.iter().map(entry).collect::<Vec<_>>()}),
        Inventory::Digest { count, digest } => json!({"count": count, "digest": uuid_text(*digest)}),
    }
}

fn entry(entry: &InventoryEntry) -> Value {
    let mut json = key(&entry.key);
    match &entry.held {
        HeldState::Present(version) => put_version(&mut json, version),
        HeldState::Unreadable => json["unreadable"] = true.into(),
        HeldState::Absent => {}
    }
    json
}

fn key(key: &ObjectKey) -> Value {
    json!({"resource": key.resource().to_string(), "namespace": key.namespace(), "name": key.name()})
}

fn put_version(json: &mut Value, version: &ObjectVersion) {
    json["uid"] = version.uid.as_str().into();
    json["resourceVersion"] = version.revision.to_string().into();
    json["hash"] = format!("{:016x}", { version.hash.0 }).into();
}

fn part(conn: u64, frame: &InventoryPart) -> Value {
    let subscription = frame.subscription.0;
    let entries: Vec<Value> = frame.entries.iter().map(entry).collect();
    answer(
        format!("{conn}/part/{subscription}"),
        format!("{conn}/inventory/{subscription}"),
        [&group(frame.subscription), "part", "inventory"],
        json!({"entries": entries, "last": frame.last}),
    )
}

fn deliver(conn: u64, lane: Lane, frame: &Deliver) -> Value {
    let key = frame.change.key();
    let mut beside = json!({"resource": key.resource().to_string()});
    let (operation, version, content) = match &frame.change {
        Change::Upsert(object) => {
            if !object.dependencies.is_empty() {
                beside["dependencies"] = object.dependencies.iter().map(self::key).collect();
            }
            ("update", Some(&object.version), with_revision(object))
        }
        Change::Delete { version, .. } => ("delete", version.as_ref(), identity(key, version.as_ref())),
        Change::Absent { .. } => ("absent", None, Value::Null),
        Change::Unreadable { .. } => ("unreadable", None, Value::Null),
        Change::Adopt { version, .. } => ("adopt", Some(version), identity(key, Some(version))),
    };
    let body = content.as_object().is_some_and(|object| object.contains_key("kind"));
    let raw = body.then(|| content.to_string());
    let kind = kubeedge::kind_name(key.resource(), raw.as_deref().map(str::as_bytes));
    let kind = kind.map_or_else(|| key.resource().name.to_string(), |kind| kind.to_ascii_lowercase());
    let namespace = if key.namespace().is_empty() { "null" } else { key.namespace() };
    let resource = format!("{namespace}/{kind}/{}", key.name());
    let id = format!("{conn}/{}/{}", word(lane), frame.seq.0);
    let mut json = frame_json(id, [&group(frame.subscription), operation, &resource], content);
    if let Some(version) = version {
        json["header"]["resourceversion"] = version.revision.to_string().into();
        beside["uid"] = version.uid.as_str().into();
        beside["hash"] = format!("{:016x}", { version.hash.0 }).into();
    }
    json["deliver"] = beside;
    json
}

fn with_revision(object: &tombolo_proto::SharedObject) -> Value {
    let whole = object.with_revision().map(|content| content.as_json().clone());
    let bytes = whole.unwrap_or_else(|| object.body.clone());
    serde_json::from_slice(&bytes).unwrap_or_default()
}

fn identity(key: &ObjectKey, version: Option<&ObjectVersion>) -> Value {
    let mut metadata = json!({"name": key.name()});
    if !key.namespace().is_empty() {
        metadata["namespace"] = key.namespace().into();
    }
    if let Some(version) = version {
        metadata["uid"] = version.uid.as_str().into();
        metadata["resourceVersion"] = version.revision.to_string().into();
    }
    json!({"metadata": metadata})
}

fn refusal(conn: u64, frame: &Refusal) -> Value {
    let reason = match frame.reason {
        RefusalReason::StorageFull => "StorageFull",
        RefusalReason::Storage => "Storage",
        RefusalReason::Malformed => "Malformed",
        RefusalReason::TooLarge => "TooLarge",
        RefusalReason::Other => "Other",
    };
    let position = format!("{}/{}", word(frame.lane), frame.seq.0);
    answer(
        format!("{conn}/refuse/{position}"),
        format!("{conn}/{position}"),
        ["session", "refuse", "session"],
        json!({"reason": reason, "message": frame.message}),
    )
}

fn request(conn: u64, frame: &Request) -> Value {
    let id = format!("{conn}/request/{}", frame.id.0);
    let mut beside = json!({"timeout_millis": millis(frame.timeout)});
    if let Some(token) = &frame.caller_token {
        beside["caller_token"] = token.as_str().into();
    }
    let mut json = match &frame.body {
        RequestBody::Message(message) => with_message(message, &id, None, &mut beside),
        RequestBody::Api(call) => {
            frame_json(id, ["api", &call.method, &call.path_and_query], api_request(call))
        }
    };
    json["request"] = beside;
    json
}

fn reply(conn: u64, frame: &Reply) -> Value {
    let (id, parent) = (format!("{conn}/reply/{}", frame.id.0), format!("{conn}/request/{}", frame.id.0));
    match &frame.body {
        ReplyBody::Message(message) => {
            let mut beside = json!({});
            let mut json = with_message(message, &id, Some(&parent), &mut beside);
            json["request"] = beside;
            json
        }
        ReplyBody::Api(reply) => answer(id, parent, ["api", "response", ""], api_reply(reply)),
    }
}

/// A message with the id of its request; the message's own ids are kept beside it.
fn with_message(message: &Message, id: &str, parent: Option<&str>, beside: &mut Value) -> Value {
    let bytes = tombolo_proto::kubeedge::encode(message);
    let mut json: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    beside["msg_id"] = json["header"]["msg_id"].take();
    if let Some(own) = json["header"].as_object_mut().and_then(|header| header.remove("parent_msg_id")) {
        beside["parent_msg_id"] = own;
    }
    json["header"]["msg_id"] = id.into();
    if let Some(parent) = parent {
        json["header"]["parent_msg_id"] = parent.into();
    }
    json
}

fn api_request(call: &ApiRequest) -> Value {
    json!({"content_type": call.content_type, "accept": call.accept, "body": document(&call.body)})
}

fn api_reply(reply: &ApiReply) -> Value {
    json!({"code": reply.code, "content_type": reply.content_type, "body": document(&reply.body)})
}

/// A body that is JSON as JSON, any other body as base64 text.
fn document(body: &[u8]) -> Value {
    match serde_json::from_slice(body) {
        Ok(json @ (Value::Object(_) | Value::Array(_))) => json,
        _ if body.is_empty() => Value::Null,
        _ => STANDARD.encode(body).into(),
    }
}

fn subscribe(conn: u64, frame: &Subscribe) -> Value {
    let content = json!({
        "namespace": frame.namespace,
        "label_selector": frame.label_selector,
        "field_selector": frame.field_selector,
        "epoch": frame.epoch.as_ref().map(epoch),
        "inventory": inventory(&frame.inventory),
    });
    let id = format!("{conn}/subscription/{}", frame.subscription.0);
    let mut json =
        frame_json(id, [&group(frame.subscription), "subscribe", &frame.resource.to_string()], content);
    if let Some(token) = &frame.caller_token {
        json["request"] = json!({"caller_token": token});
    }
    json
}

fn goodbye(frame: &Goodbye) -> Value {
    let message = &frame.message;
    json!({"reason": format!("{:?}", frame.reason), "message": message, "retry_after_millis": millis(frame.retry_after)})
}

#[cfg(test)]
mod tests;
