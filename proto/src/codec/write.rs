//! Frames to protobuf.

use bytes::Bytes;

use super::parts::{
    agent, sentence, write_entries, write_epoch, write_inventory, write_key, write_millis, write_version,
};
use super::wire::{self, frame::Kind};
use crate::frame::{
    ApiReply, ApiRequest, Change, Frame, Goodbye, GoodbyeReason, Hello, InventoryPart, Refusal,
    RefusalReason, Reply, ReplyBody, Request, RequestBody, Subscribe, Welcome,
};
use crate::ids::{Lane, Seq};
use crate::message::{Message, MessageId};
use crate::object::SharedObject;

/// A frame in its protobuf form; an upsert lacks its body: `deliver::Upsert` writes whole ones.
pub(super) fn frame(frame: &Frame) -> wire::Frame {
    let kind = match frame {
        Frame::Hello(hello) => Kind::Hello(write_hello(hello)),
        Frame::Welcome(welcome) => Kind::Welcome(write_welcome(welcome)),
        Frame::InventoryRequest { subscription } => {
            Kind::InventoryRequest(wire::InventoryRequest { subscription: subscription.0 })
        }
        Frame::InventoryPart(part) => Kind::InventoryPart(write_part(part)),
        Frame::Deliver(deliver) => Kind::Deliver(wire::Deliver {
            seq: deliver.seq.0,
            subscription: deliver.subscription.0,
            ..write_change(&deliver.change)
        }),
        // Never sent; a delivery without a kind decodes as `Undecodable` again.
        Frame::Undecodable(lost) => Kind::Deliver(wire::Deliver {
            seq: lost.seq.0,
            subscription: lost.subscription.0,
            ..wire::Deliver::default()
        }),
        Frame::Ack { lanes } => Kind::Ack(wire::Ack { lanes: lanes.iter().map(write_position).collect() }),
        Frame::Refuse(refusal) => Kind::Refuse(write_refusal(refusal)),
        Frame::CaughtUp { subscription, epoch, revision } => Kind::CaughtUp(wire::CaughtUp {
            subscription: subscription.0,
            epoch: Some(write_epoch(epoch)),
            revision: revision.0,
        }),
        Frame::Request(request) => Kind::Request(self::request(request)),
        Frame::Reply(reply) => Kind::Reply(write_reply(reply)),
        Frame::Subscribe(subscribe) => Kind::Subscribe(write_subscribe(subscribe)),
        Frame::Unsubscribe { subscription } => {
            Kind::Unsubscribe(wire::Unsubscribe { subscription: subscription.0 })
        }
        Frame::SubscriptionClosed { subscription, code, reason } => {
            let (code, reason) = (u32::from(*code), sentence(reason.clone()));
            Kind::SubscriptionClosed(wire::SubscriptionClosed { subscription: subscription.0, code, reason })
        }
        Frame::LeaseRenew { renew_time_micros } => {
            Kind::LeaseRenew(wire::LeaseRenew { renew_time_micros: *renew_time_micros })
        }
        Frame::LeaseRenewed { renew_time_micros, code } => Kind::LeaseRenewed(wire::LeaseRenewed {
            renew_time_micros: *renew_time_micros,
            code: u32::from(*code),
        }),
        Frame::Attestation { proof } => Kind::Attestation(wire::Attestation { proof: proof.clone() }),
        Frame::Ping { id } => Kind::Ping(wire::Ping { id: *id }),
        Frame::Pong { id } => Kind::Pong(wire::Pong { id: *id }),
        Frame::Goodbye(goodbye) => Kind::Goodbye(write_goodbye(goodbye)),
    };
    wire::Frame { kind: Some(kind) }
}

fn write_hello(hello: &Hello) -> wire::Hello {
    let (inventory, inventory_digest) = write_inventory(&hello.inventory);
    wire::Hello {
        version_min: hello.versions.0,
        version_max: hello.versions.1,
        node: hello.node.as_str().to_owned(),
        store: Bytes::copy_from_slice(&hello.store.0),
        epoch: hello.epoch.as_ref().map(write_epoch),
        trim_version: hello.trim_version,
        features: hello.features,
        agent: agent(hello.agent.clone()),
        inventory,
        inventory_digest,
        instance: hello.instance,
        attestation: hello.attestation.clone(),
    }
}

fn write_welcome(welcome: &Welcome) -> wire::Welcome {
    wire::Welcome {
        version: welcome.version,
        epoch: Some(write_epoch(&welcome.epoch)),
        features: welcome.features,
        trim_version: welcome.trim_version,
        ping_interval_millis: write_millis(welcome.ping_interval),
        idle_timeout_millis: write_millis(welcome.idle_timeout),
        unix_millis: welcome.unix_millis,
        agent: agent(welcome.agent.clone()),
    }
}

fn write_part(part: &InventoryPart) -> wire::InventoryPart {
    wire::InventoryPart {
        subscription: part.subscription.0,
        entries: write_entries(&part.entries),
        last: part.last,
    }
}

/// The part of a delivery that is the same for every node, without the body.
fn write_change(change: &Change) -> wire::Deliver {
    let (kind, version) = match change {
        Change::Upsert(object) => return write_head(object),
        Change::Delete { version, .. } => (wire::ChangeKind::Delete, version.as_ref()),
        Change::Absent { .. } => (wire::ChangeKind::Absent, None),
        Change::Unreadable { .. } => (wire::ChangeKind::Unreadable, None),
        Change::Adopt { version, .. } => (wire::ChangeKind::Adopt, Some(version)),
    };
    wire::Deliver {
        kind: kind.into(),
        key: Some(write_key(change.key())),
        version: version.map(write_version),
        ..wire::Deliver::default()
    }
}

/// An upsert without position and body.
pub(super) fn write_head(object: &SharedObject) -> wire::Deliver {
    wire::Deliver {
        kind: wire::ChangeKind::Upsert.into(),
        key: Some(write_key(&object.key)),
        version: Some(write_version(&object.version)),
        dependencies: object.dependencies.iter().map(write_key).collect(),
        ..wire::Deliver::default()
    }
}

fn write_position((lane, seq): &(Lane, Seq)) -> wire::LanePosition {
    wire::LanePosition { lane: *lane as u32, seq: seq.0 }
}

fn write_refusal(refusal: &Refusal) -> wire::Refuse {
    let reason = match refusal.reason {
        RefusalReason::StorageFull => wire::RefusalReason::StorageFull,
        RefusalReason::Storage => wire::RefusalReason::Storage,
        RefusalReason::Malformed => wire::RefusalReason::Malformed,
        RefusalReason::TooLarge => wire::RefusalReason::TooLarge,
        RefusalReason::Other => wire::RefusalReason::Other,
    };
    wire::Refuse {
        lane: refusal.lane as u32,
        seq: refusal.seq.0,
        reason: reason.into(),
        message: sentence(refusal.message.clone()),
    }
}

pub(super) fn request(request: &Request) -> wire::Request {
    let body = match &request.body {
        RequestBody::Message(message) => wire::request::Body::Message(write_message(message)),
        RequestBody::Api(ApiRequest { method, path_and_query, content_type, accept, body }) => {
            wire::request::Body::Api(wire::ApiRequest {
                method: method.clone(),
                path_and_query: path_and_query.clone(),
                content_type: content_type.clone(),
                accept: accept.clone(),
                body: body.clone(),
            })
        }
    };
    wire::Request {
        id: request.id.0,
        timeout_millis: write_millis(request.timeout),
        body: Some(body),
        caller_token: request.caller_token.clone(),
    }
}

fn write_reply(reply: &Reply) -> wire::Reply {
    let body = match &reply.body {
        ReplyBody::Message(message) => wire::reply::Body::Message(write_message(message)),
        ReplyBody::Api(ApiReply { code, content_type, body }) => wire::reply::Body::Api(wire::ApiReply {
            code: u32::from(*code),
            content_type: content_type.clone(),
            body: body.clone(),
        }),
    };
    wire::Reply { id: reply.id.0, body: Some(body) }
}

fn write_message(message: &Message) -> wire::Message {
    let (header, route) = (&message.header, &message.route);
    wire::Message {
        header: Some(wire::MessageHeader {
            id: header.id.to_string(),
            parent_id: header.parent.as_ref().map(MessageId::to_string).unwrap_or_default(),
            timestamp: header.timestamp_millis,
            sync: header.sync,
            message_type: header.context_type.clone(),
            resource_version: header.resource_version.clone(),
        }),
        router: Some(wire::MessageRouter {
            source: route.source.as_str().to_owned(),
            group: route.group.as_str().to_owned(),
            operation: route.operation.as_str().to_owned(),
            resouce: route.resource.to_wire(),
            destination: route.destination.clone(),
        }),
        content: message.content.as_json().clone(),
    }
}

fn write_subscribe(subscribe: &Subscribe) -> wire::Subscribe {
    let (inventory, inventory_digest) = write_inventory(&subscribe.inventory);
    wire::Subscribe {
        subscription: subscribe.subscription.0,
        group: subscribe.resource.group.to_string(),
        version: subscribe.resource.version.to_string(),
        resource: subscribe.resource.name.to_string(),
        namespace: subscribe.namespace.clone(),
        label_selector: subscribe.label_selector.clone(),
        field_selector: subscribe.field_selector.clone(),
        caller_token: subscribe.caller_token.clone(),
        epoch: subscribe.epoch.as_ref().map(write_epoch),
        inventory,
        inventory_digest,
    }
}

fn write_goodbye(goodbye: &Goodbye) -> wire::Goodbye {
    let reason = match goodbye.reason {
        GoodbyeReason::Draining => wire::GoodbyeReason::Draining,
        GoodbyeReason::Replaced => wire::GoodbyeReason::Replaced,
        GoodbyeReason::NodeDeleted => wire::GoodbyeReason::NodeDeleted,
        GoodbyeReason::ProtocolError => wire::GoodbyeReason::ProtocolError,
        GoodbyeReason::VersionMismatch => wire::GoodbyeReason::VersionMismatch,
        GoodbyeReason::Forbidden => wire::GoodbyeReason::Forbidden,
        GoodbyeReason::Timeout => wire::GoodbyeReason::Timeout,
        GoodbyeReason::Overloaded => wire::GoodbyeReason::Overloaded,
        GoodbyeReason::Other => wire::GoodbyeReason::Other,
    };
    wire::Goodbye {
        reason: reason.into(),
        message: sentence(goodbye.message.clone()),
        retry_after_millis: write_millis(goodbye.retry_after),
    }
}
