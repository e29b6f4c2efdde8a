//! Protobuf to frames: every value is checked here, once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::CodecError;
use super::parts::{
    agent, bounded, read_code, read_entries, read_epoch, read_inventory, read_key, read_lane, read_resource,
    read_version, segment, sentence, sixteen,
};
use super::wire::{self, frame::Kind};
use crate::frame::{
    ApiReply, ApiRequest, Change, Deliver, Frame, Goodbye, GoodbyeReason, Hello, InventoryPart, Refusal,
    RefusalReason, Reply, ReplyBody, Request, RequestBody, Subscribe, Welcome,
};
use crate::ids::{CloudRevision, NodeId, RequestId, Seq, StoreId, SubscriptionId};
use crate::limits;
use crate::message::{Content, Message, RawMessage};
use crate::object::SharedObject;

pub(super) fn frame(kind: Kind) -> Result<Frame, CodecError> {
    Ok(match kind {
        Kind::Hello(hello) => Frame::Hello(read_hello(hello)?),
        Kind::Welcome(welcome) => Frame::Welcome(read_welcome(welcome)?),
        Kind::InventoryRequest(request) => {
            Frame::InventoryRequest { subscription: SubscriptionId(request.subscription) }
        }
        Kind::InventoryPart(part) => Frame::InventoryPart(InventoryPart {
            subscription: SubscriptionId(part.subscription),
            entries: read_entries(part.entries)?,
            last: part.last,
        }),
        Kind::Deliver(deliver) => Frame::Deliver(read_deliver(deliver)?),
        Kind::Ack(ack) => {
            let lane = |at: wire::LanePosition| Ok((read_lane("ack.lane", at.lane)?, Seq(at.seq)));
            Frame::Ack { lanes: ack.lanes.into_iter().map(lane).collect::<Result<_, CodecError>>()? }
        }
        Kind::Refuse(refusal) => Frame::Refuse(read_refusal(refusal)?),
        Kind::CaughtUp(caught_up) => Frame::CaughtUp {
            subscription: SubscriptionId(caught_up.subscription),
            epoch: read_epoch(required("caught_up.epoch", caught_up.epoch)?)?,
            revision: CloudRevision(caught_up.revision),
        },
        Kind::Request(request) => Frame::Request(read_request(request)?),
        Kind::Reply(reply) => Frame::Reply(read_reply(reply)?),
        Kind::Subscribe(subscribe) => Frame::Subscribe(read_subscribe(subscribe)?),
        Kind::Unsubscribe(end) => Frame::Unsubscribe { subscription: SubscriptionId(end.subscription) },
        Kind::SubscriptionClosed(closed) => Frame::SubscriptionClosed {
            subscription: SubscriptionId(closed.subscription),
            code: read_code("subscription_closed.code", closed.code)?,
            reason: sentence(closed.reason),
        },
        Kind::LeaseRenew(renew) => Frame::LeaseRenew { renew_time_micros: renew.renew_time_micros },
        Kind::LeaseRenewed(renewed) => Frame::LeaseRenewed {
            renew_time_micros: renewed.renew_time_micros,
            code: read_code("lease_renewed.code", renewed.code)?,
        },
        Kind::Attestation(attestation) => {
            Frame::Attestation { proof: read_proof("attestation.proof", &attestation.proof)? }
        }
        Kind::Ping(ping) => Frame::Ping { id: ping.id },
        Kind::Pong(pong) => Frame::Pong { id: pong.id },
        Kind::Goodbye(goodbye) => Frame::Goodbye(read_goodbye(goodbye)),
    })
}

fn required<T>(field: &'static str, value: Option<T>) -> Result<T, CodecError> {
    value.ok_or(CodecError::Missing { field })
}

fn read_hello(hello: wire::Hello) -> Result<Hello, CodecError> {
    Ok(Hello {
        versions: (hello.version_min, hello.version_max),
        node: NodeId::parse(&hello.node).map_err(|source| CodecError::Id { field: "hello.node", source })?,
        store: StoreId(sixteen("hello.store", &hello.store)?),
        epoch: hello.epoch.map(read_epoch).transpose()?,
        trim_version: hello.trim_version,
        features: hello.features,
        inventory: read_inventory(hello.inventory, hello.inventory_digest)?,
        agent: agent(hello.agent),
        instance: hello.instance,
        attestation: read_proof("hello.attestation", &hello.attestation)?,
    })
}

/// A copy, so that the kept proof does not hold the whole frame's memory.
fn read_proof(field: &'static str, proof: &[u8]) -> Result<Bytes, CodecError> {
    if proof.len() > limits::ATTESTATION_LEN_MAX {
        return Err(CodecError::Limit { field, size: proof.len(), max: limits::ATTESTATION_LEN_MAX });
    }
    Ok(Bytes::copy_from_slice(proof))
}

fn read_welcome(welcome: wire::Welcome) -> Result<Welcome, CodecError> {
    Ok(Welcome {
        version: welcome.version,
        epoch: read_epoch(required("welcome.epoch", welcome.epoch)?)?,
        features: welcome.features,
        trim_version: welcome.trim_version,
        ping_interval: Duration::from_millis(welcome.ping_interval_millis),
        idle_timeout: Duration::from_millis(welcome.idle_timeout_millis),
        unix_millis: welcome.unix_millis,
        agent: agent(welcome.agent),
    })
}

fn read_deliver(deliver: wire::Deliver) -> Result<Deliver, CodecError> {
    let number = deliver.kind;
    let unknown = CodecError::Value {
        field: "deliver.kind",
        value: u64::from(number.unsigned_abs()),
        rule: "upsert (1), delete (2), absent (3), adopt (4) or unreadable (5)",
    };
    let (seq, subscription) = (Seq(deliver.seq), SubscriptionId(deliver.subscription));
    let key = read_key(deliver.key.clone())?;
    let version = deliver.version.as_ref().map(read_version).transpose()?;
    let change = match wire::ChangeKind::try_from(number) {
        Ok(wire::ChangeKind::Upsert) => {
            let version = required("deliver.version", version)?;
            let dependencies = deliver.dependencies.iter().cloned().map(|key| read_key(Some(key)));
            let dependencies = dependencies.collect::<Result<_, _>>()?;
            Change::Upsert(Arc::new(SharedObject::new(key, version, read_body(deliver)?, dependencies)))
        }
        Ok(wire::ChangeKind::Delete) => Change::Delete { key, version },
        Ok(wire::ChangeKind::Absent) => Change::Absent { key },
        Ok(wire::ChangeKind::Unreadable) => Change::Unreadable { key },
        Ok(wire::ChangeKind::Adopt) => Change::Adopt { key, version: required("deliver.version", version)? },
        Ok(wire::ChangeKind::Unspecified) | Err(_) => return Err(unknown),
    };
    Ok(Deliver { seq, subscription, change })
}

fn read_body(deliver: wire::Deliver) -> Result<Bytes, CodecError> {
    match wire::BodyEncoding::try_from(deliver.encoding) {
        Ok(wire::BodyEncoding::Identity) => Ok(deliver.body),
        Ok(wire::BodyEncoding::Zstd) => decompress(&deliver.body, deliver.decoded_len),
        Err(_) => Err(CodecError::Value {
            field: "deliver.encoding",
            value: u64::from(deliver.encoding.unsigned_abs()),
            rule: "identity (0) or zstd (1)",
        }),
    }
}

/// The announced length bounds the memory: a body that is longer than announced fails, whatever length it states
/// itself.
fn decompress(packed: &[u8], decoded_len: u32) -> Result<Bytes, CodecError> {
    let size = usize::try_from(decoded_len).unwrap_or(usize::MAX);
    if size > limits::FRAME_LEN_MAX {
        return Err(CodecError::Limit { field: "deliver.decoded_len", size, max: limits::FRAME_LEN_MAX });
    }
    let body =
        zstd::bulk::decompress(packed, size).map_err(|error| CodecError::Compression(error.to_string()))?;
    if body.len() != size {
        let text = format!("it decompresses to {} bytes, but {size} were announced", body.len());
        return Err(CodecError::Compression(text));
    }
    Ok(body.into())
}

fn read_refusal(refusal: wire::Refuse) -> Result<Refusal, CodecError> {
    let reason = match refusal.reason() {
        wire::RefusalReason::StorageFull => RefusalReason::StorageFull,
        wire::RefusalReason::Storage => RefusalReason::Storage,
        wire::RefusalReason::Malformed => RefusalReason::Malformed,
        wire::RefusalReason::TooLarge => RefusalReason::TooLarge,
        // `reason()` gives the zero value for reasons of later versions: the set is open.
        wire::RefusalReason::Other => RefusalReason::Other,
    };
    Ok(Refusal {
        lane: read_lane("refuse.lane", refusal.lane)?,
        seq: Seq(refusal.seq),
        reason,
        message: sentence(refusal.message),
    })
}

fn read_request(request: wire::Request) -> Result<Request, CodecError> {
    let body = match required("request.body", request.body)? {
        wire::request::Body::Message(message) => RequestBody::Message(Box::new(read_message(message)?)),
        wire::request::Body::Api(api) => RequestBody::Api(ApiRequest {
            method: bounded("request.method", api.method, limits::WORD_LEN_MAX)?,
            path_and_query: bounded("request.path", api.path_and_query, limits::API_PATH_LEN_MAX)?,
            content_type: bounded("request.content_type", api.content_type, limits::WORD_LEN_MAX)?,
            accept: bounded("request.accept", api.accept, limits::ACCEPT_LEN_MAX)?,
            body: api.body,
        }),
    };
    Ok(Request {
        id: RequestId(request.id),
        timeout: Duration::from_millis(request.timeout_millis),
        body,
        caller_token: read_token(request.caller_token)?,
    })
}

pub(super) fn check_request(request: wire::Request) -> Result<(), CodecError> {
    read_request(request).map(drop)
}

fn read_token(token: Option<String>) -> Result<Option<String>, CodecError> {
    token.map(|token| bounded("caller_token", token, limits::TOKEN_LEN_MAX)).transpose()
}

fn read_reply(reply: wire::Reply) -> Result<Reply, CodecError> {
    let body = match required("reply.body", reply.body)? {
        wire::reply::Body::Message(message) => ReplyBody::Message(Box::new(read_message(message)?)),
        wire::reply::Body::Api(api) => ReplyBody::Api(ApiReply {
            code: read_code("reply.code", api.code)?,
            content_type: bounded("reply.content_type", api.content_type, limits::WORD_LEN_MAX)?,
            body: api.body,
        }),
    };
    Ok(Reply { id: RequestId(reply.id), body })
}

fn read_message(message: wire::Message) -> Result<Message, CodecError> {
    let header = required("message.header", message.header)?;
    let route = required("message.router", message.router)?;
    let content = Content::from_json(&message.content)?;
    let raw = RawMessage {
        id: header.id.into(),
        parent: header.parent_id.into(),
        timestamp_millis: header.timestamp,
        resource_version: header.resource_version.into(),
        sync: header.sync,
        context_type: header.message_type.into(),
        source: route.source.into(),
        destination: route.destination.into(),
        group: route.group.into(),
        operation: route.operation.into(),
        resource: route.resouce.into(),
    };
    Ok(raw.check(content)?)
}

pub(super) fn check_subscribe(subscribe: &Subscribe) -> Result<(), CodecError> {
    let Subscribe { resource, namespace, label_selector, field_selector, caller_token, .. } = subscribe;
    read_subscribe(wire::Subscribe {
        group: resource.group.to_string(),
        version: resource.version.to_string(),
        resource: resource.name.to_string(),
        namespace: namespace.clone(),
        label_selector: label_selector.clone(),
        field_selector: field_selector.clone(),
        caller_token: caller_token.clone(),
        ..wire::Subscribe::default()
    })
    .map(drop)
}

fn read_subscribe(subscribe: wire::Subscribe) -> Result<Subscribe, CodecError> {
    segment("subscribe.namespace", &subscribe.namespace)?;
    let selector = |field, text| bounded(field, text, limits::SELECTOR_LEN_MAX);
    Ok(Subscribe {
        subscription: SubscriptionId(subscribe.subscription),
        resource: read_resource(&subscribe.group, &subscribe.version, &subscribe.resource)?,
        namespace: subscribe.namespace,
        label_selector: selector("subscribe.label_selector", subscribe.label_selector)?,
        field_selector: selector("subscribe.field_selector", subscribe.field_selector)?,
        caller_token: read_token(subscribe.caller_token)?,
        epoch: subscribe.epoch.map(read_epoch).transpose()?,
        inventory: read_inventory(subscribe.inventory, subscribe.inventory_digest)?,
    })
}

fn read_goodbye(goodbye: wire::Goodbye) -> Goodbye {
    let reason = match goodbye.reason() {
        wire::GoodbyeReason::Draining => GoodbyeReason::Draining,
        wire::GoodbyeReason::Replaced => GoodbyeReason::Replaced,
        wire::GoodbyeReason::NodeDeleted => GoodbyeReason::NodeDeleted,
        wire::GoodbyeReason::ProtocolError => GoodbyeReason::ProtocolError,
        wire::GoodbyeReason::VersionMismatch => GoodbyeReason::VersionMismatch,
        wire::GoodbyeReason::Forbidden => GoodbyeReason::Forbidden,
        wire::GoodbyeReason::Timeout => GoodbyeReason::Timeout,
        wire::GoodbyeReason::Overloaded => GoodbyeReason::Overloaded,
        wire::GoodbyeReason::Other => GoodbyeReason::Other,
    };
    Goodbye {
        reason,
        message: sentence(goodbye.message),
        retry_after: Duration::from_millis(goodbye.retry_after_millis),
    }
}
