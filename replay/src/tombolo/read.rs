//! Reads frames of dialect `tombolo` from a transcript.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::Value;
use thiserror::Error;
use tombolo_proto::frame::{
    ApiReply, ApiRequest, Change, Deliver, Goodbye, GoodbyeReason, Hello, Inventory, InventoryPart, Refusal,
    RefusalReason, Reply, ReplyBody, Request, RequestBody, Subscribe, Welcome,
};
use tombolo_proto::{
    CloudRevision, ContentHash, Epoch, Frame as Wire, HeldState, InventoryEntry, Lane, Message, NodeId,
    ObjectKey, ObjectVersion, RequestId, Resource, Seq, SharedObject, StoreId, SubscriptionId, Uid, kubeedge,
};

/// A line that is not a valid frame: the member, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{member}: {problem}")]
pub struct ReadError {
    member: String,
    problem: String,
}

type Read<T> = Result<T, ReadError>;

fn fault<T>(member: &str, problem: impl std::fmt::Display) -> Read<T> {
    Err(ReadError { member: member.to_owned(), problem: problem.to_string() })
}

fn text<'a>(json: &'a Value, pointer: &str) -> Read<&'a str> {
    match json.pointer(pointer) {
        Some(Value::String(text)) => Ok(text),
        None | Some(Value::Null) => Ok(""),
        Some(other) => fault(pointer, format!("must be a text, not {other}")),
    }
}

fn number(json: &Value, pointer: &str) -> Read<u64> {
    let value = json.pointer(pointer).and_then(Value::as_u64);
    value.map_or_else(|| fault(pointer, "must be a number"), Ok)
}

fn small<T: TryFrom<u64>>(json: &Value, pointer: &str) -> Read<T> {
    T::try_from(number(json, pointer)?).or_else(|_| fault(pointer, "is too large"))
}

fn millis(json: &Value, pointer: &str) -> Read<Duration> {
    number(json, pointer).map(Duration::from_millis)
}

fn parsed<T, E: std::fmt::Display>(member: &str, value: Result<T, E>) -> Read<T> {
    value.or_else(|error| fault(member, error))
}

pub(super) fn frame(json: &Value) -> Read<(Lane, Wire)> {
    let lane = lane("/lane", text(json, "/lane")?)?;
    let (group, operation) = (text(json, "/route/group")?, text(json, "/route/operation")?);
    if json["request"]["msg_id"].is_string() {
        return Ok((lane, message(json)?));
    }
    let wire = match (group, operation) {
        ("session", "hello") => Wire::Hello(hello(json)?),
        ("session", "welcome") => Wire::Welcome(welcome(json)?),
        ("session", "ack") => ack(json)?,
        ("session", "refuse") => Wire::Refuse(refusal(json)?),
        ("session", "renew") => Wire::LeaseRenew { renew_time_micros: time(json, "/header/msg_id")? },
        ("session", "renewed") => Wire::LeaseRenewed {
            renew_time_micros: time(json, "/header/msg_id")?,
            code: small(json, "/content/code")?,
        },
        ("session", "attestation") => Wire::Attestation { proof: proof(json, "/content/proof")? },
        ("session", "ping") => Wire::Ping { id: position(json, "/header/msg_id")? },
        ("session", "pong") => Wire::Pong { id: position(json, "/header/msg_id")? },
        ("session", "goodbye") => Wire::Goodbye(goodbye(json)?),
        ("api", "response") => Wire::Reply(Reply {
            id: RequestId(position(json, "/header/parent_msg_id")?),
            body: ReplyBody::Api(api_reply(json)?),
        }),
        ("api", _) => Wire::Request(request(json, RequestBody::Api(api_request(json)?))?),
        (_, "inventory" | "part" | "caughtup" | "subscribe" | "unsubscribe" | "closed")
            if group.starts_with("subscription/") =>
        {
            scoped(json, operation)?
        }
        _ if group.starts_with("subscription/") => Wire::Deliver(deliver(json)?),
        _ => return fault("/route", format!("no frame has group {group:?} and operation {operation:?}")),
    };
    Ok((lane, wire))
}

fn lane(member: &str, word: &str) -> Read<Lane> {
    match word {
        "control" => Ok(Lane::Control),
        "delivery" => Ok(Lane::Delivery),
        "bulk" => Ok(Lane::Bulk),
        other => fault(member, format!("must be control, delivery or bulk, not {other:?}")),
    }
}

/// The number at the end of an id.
fn position(json: &Value, pointer: &str) -> Read<u64> {
    let id = text(json, pointer)?;
    parsed(pointer, id.rsplit('/').next().unwrap_or_default().parse())
}

fn time(json: &Value, pointer: &str) -> Read<i64> {
    let id = text(json, pointer)?;
    parsed(pointer, id.rsplit('/').next().unwrap_or_default().parse())
}

fn subscription(json: &Value) -> Read<SubscriptionId> {
    let number = position(json, "/route/group")?;
    Ok(SubscriptionId(parsed("/route/group", u32::try_from(number))?))
}

fn scoped(json: &Value, operation: &str) -> Read<Wire> {
    let subscription = subscription(json)?;
    Ok(match operation {
        "inventory" => Wire::InventoryRequest { subscription },
        "part" => {
            let last = json["content"]["last"] == true;
            Wire::InventoryPart(InventoryPart { subscription, entries: entries(&json["content"])?, last })
        }
        "caughtup" => {
            let Some(epoch) = epoch(&json["content"]["epoch"])? else {
                return fault("/content/epoch", "is missing");
            };
            Wire::CaughtUp {
                subscription,
                epoch,
                revision: CloudRevision(number(json, "/content/revision")?),
            }
        }
        "subscribe" => Wire::Subscribe(subscribe(json, subscription)?),
        "closed" => Wire::SubscriptionClosed {
            subscription,
            code: small(json, "/content/code")?,
            reason: text(json, "/content/reason")?.to_owned(),
        },
        _ => Wire::Unsubscribe { subscription },
    })
}

fn message(json: &Value) -> Read<Wire> {
    let is_reply = !text(json, "/header/parent_msg_id")?.is_empty();
    let mut own = json.clone();
    own["header"]["msg_id"] = json["request"]["msg_id"].clone();
    own["header"]["parent_msg_id"] = json["request"]["parent_msg_id"].clone();
    let message: Message = parsed("message", kubeedge::decode(&Bytes::from(own.to_string())))?;
    if is_reply {
        let id = RequestId(position(json, "/header/parent_msg_id")?);
        return Ok(Wire::Reply(Reply { id, body: ReplyBody::Message(Box::new(message)) }));
    }
    Ok(Wire::Request(request(json, RequestBody::Message(Box::new(message)))?))
}

fn request(json: &Value, body: RequestBody) -> Read<Request> {
    Ok(Request {
        id: RequestId(position(json, "/header/msg_id")?),
        timeout: millis(json, "/request/timeout_millis")?,
        body,
        caller_token: token(json)?,
    })
}

fn token(json: &Value) -> Read<Option<String>> {
    let token = text(json, "/request/caller_token")?;
    Ok((!token.is_empty()).then(|| token.to_owned()))
}

fn document(json: &Value, pointer: &str) -> Read<Bytes> {
    match json.pointer(pointer) {
        None | Some(Value::Null) => Ok(Bytes::new()),
        Some(Value::String(text)) => Ok(parsed(pointer, STANDARD.decode(text))?.into()),
        Some(document) => Ok(document.to_string().into()),
    }
}

fn api_request(json: &Value) -> Read<ApiRequest> {
    Ok(ApiRequest {
        method: text(json, "/route/operation")?.to_owned(),
        path_and_query: text(json, "/route/resource")?.to_owned(),
        content_type: text(json, "/content/content_type")?.to_owned(),
        accept: text(json, "/content/accept")?.to_owned(),
        body: document(json, "/content/body")?,
    })
}

fn api_reply(json: &Value) -> Read<ApiReply> {
    Ok(ApiReply {
        code: small(json, "/content/code")?,
        content_type: text(json, "/content/content_type")?.to_owned(),
        body: document(json, "/content/body")?,
    })
}

fn hello(json: &Value) -> Read<Hello> {
    let content = &json["content"];
    Ok(Hello {
        versions: (small(content, "/versions/0")?, small(content, "/versions/1")?),
        node: parsed("/content/node", NodeId::parse(text(content, "/node")?))?,
        store: StoreId(sixteen(content, "/store")?),
        epoch: epoch(&content["epoch"])?,
        trim_version: small(content, "/trim_version")?,
        features: number(content, "/features")?,
        inventory: inventory(&content["inventory"])?,
        agent: text(content, "/agent")?.to_owned(),
        // Recordings do not distinguish processes.
        instance: 0,
        attestation: proof(content, "/attestation")?,
    })
}

fn proof(json: &Value, pointer: &str) -> Read<Bytes> {
    Ok(parsed(pointer, STANDARD.decode(text(json, pointer)?))?.into())
}

fn sixteen(json: &Value, pointer: &str) -> Read<[u8; 16]> {
    Ok(parsed(pointer, u128::from_str_radix(text(json, pointer)?, 16))?.to_be_bytes())
}

fn epoch(json: &Value) -> Read<Option<Epoch>> {
    if json.is_null() {
        return Ok(None);
    }
    let cluster = parsed("/epoch/cluster", Uid::parse(text(json, "/cluster")?))?;
    Ok(Some(Epoch { cluster, generation: number(json, "/generation")? }))
}

fn welcome(json: &Value) -> Read<Welcome> {
    let content = &json["content"];
    let Some(epoch) = epoch(&content["epoch"])? else { return fault("/content/epoch", "is missing") };
    Ok(Welcome {
        version: small(content, "/version")?,
        epoch,
        features: number(content, "/features")?,
        trim_version: small(content, "/trim_version")?,
        ping_interval: millis(content, "/ping_interval_millis")?,
        idle_timeout: millis(content, "/idle_timeout_millis")?,
        unix_millis: number(content, "/unix_millis")?,
        agent: text(content, "/agent")?.to_owned(),
    })
}

/// The inventory of an edge from a transcript.
///
/// # Errors
/// Names the member that is missing or wrong.
fn inventory(json: &Value) -> Read<Inventory> {
    if json.get("entries").is_some() {
        return entries(json).map(Inventory::Full);
    }
    Ok(Inventory::Digest { count: number(json, "/count")?, digest: sixteen(json, "/digest")? })
}

fn entries(json: &Value) -> Read<Vec<InventoryEntry>> {
    let listed = json.get("entries").and_then(Value::as_array);
    listed.into_iter().flatten().map(entry).collect()
}

fn entry(json: &Value) -> Read<InventoryEntry> {
    let held = match text(json, "/uid")? {
        "" if json["unreadable"] == true => HeldState::Unreadable,
        "" => HeldState::Absent,
        _ => HeldState::Present(version(json)?),
    };
    Ok(InventoryEntry { key: key(json)?, held })
}

fn version(json: &Value) -> Read<ObjectVersion> {
    Ok(ObjectVersion {
        uid: parsed("/uid", Uid::parse(text(json, "/uid")?))?,
        revision: parsed("/resourceVersion", CloudRevision::parse(text(json, "/resourceVersion")?))?,
        hash: ContentHash(parsed("/hash", u128::from_str_radix(text(json, "/hash")?, 16))?),
    })
}

fn resource(path: &str) -> Read<Resource> {
    match *path.split('/').collect::<Vec<_>>() {
        [group, version, name] => Ok(Resource::new(group, version, name)),
        [version, name] => Ok(Resource::new("", version, name)),
        _ => fault("/resource", format!("must be GROUP/VERSION/NAME, not {path:?}")),
    }
}

fn key(json: &Value) -> Read<ObjectKey> {
    let resource = resource(text(json, "/resource")?)?;
    Ok(ObjectKey::new(resource, text(json, "/namespace")?, text(json, "/name")?))
}

fn deliver(json: &Value) -> Read<Deliver> {
    let mut parts = text(json, "/route/resource")?.splitn(3, '/');
    let (namespace, _, name) = (parts.next(), parts.next(), parts.next());
    let (Some(namespace), Some(name)) = (namespace, name) else {
        return fault("/route/resource", "must be NAMESPACE/KIND/NAME");
    };
    let namespace = if namespace == "null" { "" } else { namespace };
    let key = ObjectKey::new(resource(text(json, "/deliver/resource")?)?, namespace, name);
    let mut delivery = json["deliver"].clone();
    delivery["resourceVersion"] = json["header"]["resourceversion"].clone();
    let known = !text(&delivery, "/uid")?.is_empty();
    let change = match text(json, "/route/operation")? {
        "absent" => Change::Absent { key },
        "unreadable" => Change::Unreadable { key },
        "adopt" => Change::Adopt { key, version: version(&delivery)? },
        "delete" => Change::Delete { key, version: known.then(|| version(&delivery)).transpose()? },
        _ => {
            let mut body = json["content"].clone();
            if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("resourceVersion");
            }
            let listed = json["deliver"]["dependencies"].as_array();
            let dependencies = listed.into_iter().flatten().map(self::key).collect::<Read<_>>()?;
            let body = Bytes::from(body.to_string());
            Change::Upsert(SharedObject::new(key, version(&delivery)?, body, dependencies).into())
        }
    };
    Ok(Deliver { seq: Seq(position(json, "/header/msg_id")?), subscription: subscription(json)?, change })
}

fn ack(json: &Value) -> Read<Wire> {
    let lanes = json["content"].as_object().into_iter().flatten();
    let lanes = lanes.map(|(word, seq)| {
        let seq = seq.as_u64().map_or_else(|| fault("/content", "must have positions"), Ok)?;
        Ok((lane("/content", word)?, Seq(seq)))
    });
    Ok(Wire::Ack { lanes: lanes.collect::<Read<_>>()? })
}

fn refusal(json: &Value) -> Read<Refusal> {
    let position_of = text(json, "/header/parent_msg_id")?;
    let word = position_of.rsplit('/').nth(1).unwrap_or_default();
    Ok(Refusal {
        lane: lane("/header/parent_msg_id", word)?,
        seq: Seq(position(json, "/header/parent_msg_id")?),
        reason: match text(json, "/content/reason")? {
            "StorageFull" => RefusalReason::StorageFull,
            "Storage" => RefusalReason::Storage,
            "Malformed" => RefusalReason::Malformed,
            "TooLarge" => RefusalReason::TooLarge,
            _ => RefusalReason::Other,
        },
        message: text(json, "/content/message")?.to_owned(),
    })
}

fn subscribe(json: &Value, subscription: SubscriptionId) -> Read<Subscribe> {
    let content = &json["content"];
    Ok(Subscribe {
        subscription,
        resource: resource(text(json, "/route/resource")?)?,
        namespace: text(content, "/namespace")?.to_owned(),
        label_selector: text(content, "/label_selector")?.to_owned(),
        field_selector: text(content, "/field_selector")?.to_owned(),
        caller_token: token(json)?,
        epoch: epoch(&content["epoch"])?,
        inventory: inventory(&content["inventory"])?,
    })
}

fn goodbye(json: &Value) -> Read<Goodbye> {
    Ok(Goodbye {
        reason: match text(json, "/content/reason")? {
            "Draining" => GoodbyeReason::Draining,
            "Replaced" => GoodbyeReason::Replaced,
            "NodeDeleted" => GoodbyeReason::NodeDeleted,
            "ProtocolError" => GoodbyeReason::ProtocolError,
            "VersionMismatch" => GoodbyeReason::VersionMismatch,
            "Forbidden" => GoodbyeReason::Forbidden,
            "Timeout" => GoodbyeReason::Timeout,
            "Overloaded" => GoodbyeReason::Overloaded,
            _ => GoodbyeReason::Other,
        },
        message: text(json, "/content/message")?.to_owned(),
        retry_after: millis(json, "/content/retry_after_millis")?,
    })
}
