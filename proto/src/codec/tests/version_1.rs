//! Whatever is encoded now means the same to a peer of version 1, whose decoder is frozen in `proto/compat/v1`.
//!
//! The frozen types are filled in here independently of the codec. A field that a later version adds is not in them: an
//! older peer ignores it. What a later version does not send to a peer of version 1 is left out by the test.

use std::time::Duration;

use proptest::prelude::*;
use tombolo_proto_v1::frame::Kind;
use tombolo_proto_v1::{self as v1, Receiver};

use super::*;
use crate::frame::{
    ApiReply, ApiRequest, Goodbye, GoodbyeReason, Refusal, RefusalReason, Reply, ReplyBody, Request,
    RequestBody, Subscribe, Welcome,
};
use crate::ids::Epoch;
use crate::message::{Message, MessageId};
use crate::package;

/// What version 1 receives when this frame is sent.
fn received(frame: &Frame, lane: Lane, zstd: bool) -> Result<(usize, Kind), String> {
    let mut receiver = Receiver::default();
    let mut received = None;
    for package in package::fragments(lane, encode(frame, zstd)).expect("below the limit") {
        assert!(received.is_none(), "the frame ended before its last package");
        received = receiver.accept(&package)?;
    }
    received.ok_or_else(|| "the frame did not end".to_owned())
}

proptest! {
    #[test]
    fn version_1_decodes_present_frames(
        frame in strategies::frame(),
        lane in prop::sample::select(Lane::ALL.to_vec()),
        zstd in any::<bool>(),
    ) {
        let read = received(&frame, lane, zstd);
        prop_assert_eq!(read, Ok((lane.index(), expected(&frame))));
        let whole = encode_package(lane, &frame, zstd).expect("below the limit");
        if whole.len() <= limits::FRAGMENT_LEN {
            prop_assert_eq!(Receiver::default().accept(&whole), Ok(Some((lane.index(), expected(&frame)))));
        }
    }
}

#[test]
fn a_large_body_reaches_version_1_in_pieces() {
    let body: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    for zstd in [false, true] {
        let frame = upsert(body.clone());
        assert_eq!(received(&frame, Lane::Bulk, zstd), Ok((2, expected(&frame))));
    }
}

/// The frozen decoder refuses what version 1 refuses: it would not notice a broken frame otherwise.
#[test]
fn version_1_refuses_unknown_frames() {
    let ping = encode(&Frame::Ping { id: 7 }, false);
    assert_eq!(v1::decode(ping.clone()), Ok(Kind::Ping(v1::Ping { id: 7 })));
    for unknown in [&[0x9a, 0x06, 0][..], &[0x9a, 0x01, 0], &[], &[&ping[..], &ping[..]].concat()] {
        assert!(v1::decode(Bytes::copy_from_slice(unknown)).is_err(), "{unknown:02x?}");
    }
    let mut package = encode_package(Lane::Control, &Frame::Ping { id: 7 }, false).expect("small").to_vec();
    assert!(Receiver::default().accept(&package).is_ok());
    package[5] = 0x08;
    assert!(Receiver::default().accept(&package).is_err(), "an unknown flag");
}

fn expected(frame: &Frame) -> Kind {
    match frame {
        Frame::Hello(sent) => Kind::Hello(hello_1(sent)),
        Frame::Welcome(sent) => Kind::Welcome(welcome_1(sent)),
        Frame::InventoryRequest { subscription } => {
            Kind::InventoryRequest(v1::InventoryRequest { subscription: subscription.0 })
        }
        Frame::InventoryPart(part) => Kind::InventoryPart(v1::InventoryPart {
            subscription: part.subscription.0,
            entries: part.entries.iter().map(entry_1).collect(),
            last: part.last,
        }),
        Frame::Deliver(sent) => Kind::Deliver(deliver_1(sent)),
        Frame::Undecodable(_) => unreachable!("never sent"),
        Frame::Ack { lanes } => {
            let position = |(lane, seq): &(Lane, Seq)| v1::LanePosition { lane: lane_1(*lane), seq: seq.0 };
            Kind::Ack(v1::Ack { lanes: lanes.iter().map(position).collect() })
        }
        Frame::Refuse(sent) => Kind::Refuse(refuse_1(sent)),
        Frame::CaughtUp { subscription, epoch, revision } => Kind::CaughtUp(v1::CaughtUp {
            subscription: subscription.0,
            epoch: Some(epoch_1(epoch)),
            revision: revision.0,
        }),
        Frame::Request(sent) => Kind::Request(request_1(sent)),
        Frame::Reply(sent) => Kind::Reply(reply_1(sent)),
        Frame::Subscribe(sent) => Kind::Subscribe(subscribe_1(sent)),
        Frame::Unsubscribe { subscription } => {
            Kind::Unsubscribe(v1::Unsubscribe { subscription: subscription.0 })
        }
        Frame::SubscriptionClosed { subscription, code, reason } => {
            Kind::SubscriptionClosed(v1::SubscriptionClosed {
                subscription: subscription.0,
                code: u32::from(*code),
                reason: reason.clone(),
            })
        }
        Frame::LeaseRenew { renew_time_micros } => {
            Kind::LeaseRenew(v1::LeaseRenew { renew_time_micros: *renew_time_micros })
        }
        Frame::LeaseRenewed { renew_time_micros, code } => Kind::LeaseRenewed(v1::LeaseRenewed {
            renew_time_micros: *renew_time_micros,
            code: u32::from(*code),
        }),
        Frame::Attestation { proof } => Kind::Attestation(v1::Attestation { proof: proof.clone() }),
        Frame::Ping { id } => Kind::Ping(v1::Ping { id: *id }),
        Frame::Pong { id } => Kind::Pong(v1::Pong { id: *id }),
        Frame::Goodbye(sent) => Kind::Goodbye(goodbye_1(sent)),
    }
}

fn lane_1(lane: Lane) -> u32 {
    match lane {
        Lane::Control => 0,
        Lane::Delivery => 1,
        Lane::Bulk => 2,
    }
}

fn millis_1(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("the strategies have whole milliseconds")
}

/// A UUID in lower case is sent as 16 bytes, any other text as it is.
fn uid_1(uid: &Uid) -> (Bytes, String) {
    match uuid::Uuid::try_parse(uid.as_str()) {
        Ok(uuid) if uuid.to_string() == uid.as_str() => {
            (Bytes::copy_from_slice(uuid.as_bytes()), String::new())
        }
        _ => (Bytes::new(), uid.as_str().to_owned()),
    }
}

fn epoch_1(epoch: &Epoch) -> v1::Epoch {
    let (uuid, text) = uid_1(&epoch.cluster);
    v1::Epoch { cluster: Some(v1::Uid { uuid, text }), generation: epoch.generation }
}

fn key_1(key: &ObjectKey) -> v1::ObjectKey {
    v1::ObjectKey {
        group: key.resource().group.to_string(),
        version: key.resource().version.to_string(),
        resource: key.resource().name.to_string(),
        namespace: key.namespace().to_owned(),
        name: key.name().to_owned(),
    }
}

fn version_1(version: &ObjectVersion) -> v1::ObjectVersion {
    let (uuid, uid) = uid_1(&version.uid);
    let (hash, hash_upper) = version.hash.halves();
    v1::ObjectVersion { uuid, uid, revision: version.revision.0, hash, hash_upper }
}

fn entry_1(entry: &InventoryEntry) -> v1::InventoryEntry {
    let (version, unreadable) = match &entry.held {
        HeldState::Present(version) => (Some(version_1(version)), false),
        HeldState::Absent => (None, false),
        HeldState::Unreadable => (None, true),
    };
    v1::InventoryEntry { key: Some(key_1(&entry.key)), version, unreadable }
}

fn inventory_1(inventory: &Inventory) -> (Vec<v1::InventoryEntry>, Option<v1::InventoryDigest>) {
    match inventory {
        Inventory::Full(entries) => (entries.iter().map(entry_1).collect(), None),
        Inventory::Digest { count, digest } => {
            let digest = Bytes::copy_from_slice(digest);
            (Vec::new(), Some(v1::InventoryDigest { count: *count, digest }))
        }
    }
}

fn hello_1(hello: &Hello) -> v1::Hello {
    let (inventory, inventory_digest) = inventory_1(&hello.inventory);
    v1::Hello {
        version_min: hello.versions.0,
        version_max: hello.versions.1,
        node: hello.node.as_str().to_owned(),
        store: Bytes::copy_from_slice(&hello.store.0),
        epoch: hello.epoch.as_ref().map(epoch_1),
        trim_version: hello.trim_version,
        features: hello.features,
        agent: hello.agent.clone(),
        inventory,
        inventory_digest,
        instance: hello.instance,
        attestation: hello.attestation.clone(),
    }
}

fn welcome_1(welcome: &Welcome) -> v1::Welcome {
    v1::Welcome {
        version: welcome.version,
        epoch: Some(epoch_1(&welcome.epoch)),
        features: welcome.features,
        trim_version: welcome.trim_version,
        ping_interval_millis: millis_1(welcome.ping_interval),
        idle_timeout_millis: millis_1(welcome.idle_timeout),
        unix_millis: welcome.unix_millis,
        agent: welcome.agent.clone(),
    }
}

fn deliver_1(deliver: &Deliver) -> v1::Deliver {
    let mut expected =
        v1::Deliver { seq: deliver.seq.0, subscription: deliver.subscription.0, ..v1::Deliver::default() };
    let (kind, key, version) = match &deliver.change {
        Change::Upsert(object) => {
            expected.dependencies = object.dependencies.iter().map(key_1).collect();
            expected.body = object.body.clone();
            (v1::ChangeKind::Upsert, &object.key, Some(&object.version))
        }
        Change::Delete { key, version } => (v1::ChangeKind::Delete, key, version.as_ref()),
        Change::Absent { key } => (v1::ChangeKind::Absent, key, None),
        Change::Unreadable { key } => (v1::ChangeKind::Unreadable, key, None),
        Change::Adopt { key, version } => (v1::ChangeKind::Adopt, key, Some(version)),
    };
    expected.set_kind(kind);
    v1::Deliver { key: Some(key_1(key)), version: version.map(version_1), ..expected }
}

fn refuse_1(refusal: &Refusal) -> v1::Refuse {
    let reason = match refusal.reason {
        RefusalReason::Other => 0,
        RefusalReason::StorageFull => 1,
        RefusalReason::Storage => 2,
        RefusalReason::Malformed => 3,
        RefusalReason::TooLarge => 4,
    };
    v1::Refuse { lane: lane_1(refusal.lane), seq: refusal.seq.0, reason, message: refusal.message.clone() }
}

fn goodbye_1(goodbye: &Goodbye) -> v1::Goodbye {
    let reason = match goodbye.reason {
        GoodbyeReason::Other => 0,
        GoodbyeReason::Draining => 1,
        GoodbyeReason::Replaced => 2,
        GoodbyeReason::NodeDeleted => 3,
        GoodbyeReason::ProtocolError => 4,
        GoodbyeReason::VersionMismatch => 5,
        GoodbyeReason::Forbidden => 6,
        GoodbyeReason::Timeout => 7,
        GoodbyeReason::Overloaded => 8,
    };
    let (message, retry_after_millis) = (goodbye.message.clone(), millis_1(goodbye.retry_after));
    v1::Goodbye { reason, message, retry_after_millis }
}

fn request_1(request: &Request) -> v1::Request {
    let body = match &request.body {
        RequestBody::Message(message) => v1::request::Body::Message(message_1(message)),
        RequestBody::Api(ApiRequest { method, path_and_query, content_type, accept, body }) => {
            v1::request::Body::Api(v1::ApiRequest {
                method: method.clone(),
                path_and_query: path_and_query.clone(),
                content_type: content_type.clone(),
                accept: accept.clone(),
                body: body.clone(),
            })
        }
    };
    v1::Request {
        id: request.id.0,
        timeout_millis: millis_1(request.timeout),
        body: Some(body),
        caller_token: request.caller_token.clone(),
    }
}

fn reply_1(reply: &Reply) -> v1::Reply {
    let body = match &reply.body {
        ReplyBody::Message(message) => v1::reply::Body::Message(message_1(message)),
        ReplyBody::Api(ApiReply { code, content_type, body }) => v1::reply::Body::Api(v1::ApiReply {
            code: u32::from(*code),
            content_type: content_type.clone(),
            body: body.clone(),
        }),
    };
    v1::Reply { id: reply.id.0, body: Some(body) }
}

fn message_1(message: &Message) -> v1::Message {
    let (header, route) = (&message.header, &message.route);
    v1::Message {
        header: Some(v1::MessageHeader {
            id: header.id.to_string(),
            parent_id: header.parent.as_ref().map(MessageId::to_string).unwrap_or_default(),
            timestamp: header.timestamp_millis,
            sync: header.sync,
            message_type: header.context_type.clone(),
            resource_version: header.resource_version.clone(),
        }),
        router: Some(v1::MessageRouter {
            source: route.source.to_string(),
            group: route.group.to_string(),
            operation: route.operation.to_string(),
            resouce: route.resource.to_wire(),
            destination: route.destination.clone(),
        }),
        content: message.content.as_json().clone(),
    }
}

fn subscribe_1(subscribe: &Subscribe) -> v1::Subscribe {
    let (inventory, inventory_digest) = inventory_1(&subscribe.inventory);
    v1::Subscribe {
        subscription: subscribe.subscription.0,
        group: subscribe.resource.group.to_string(),
        version: subscribe.resource.version.to_string(),
        resource: subscribe.resource.name.to_string(),
        namespace: subscribe.namespace.clone(),
        label_selector: subscribe.label_selector.clone(),
        field_selector: subscribe.field_selector.clone(),
        caller_token: subscribe.caller_token.clone(),
        epoch: subscribe.epoch.as_ref().map(epoch_1),
        inventory,
        inventory_digest,
    }
}
