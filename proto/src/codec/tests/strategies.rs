//! Strategies for any frame that the types can express and the wire can carry.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::frame::*;
use crate::ids::*;
use crate::limits;
use crate::message::strategies::message;
use crate::object::*;

pub(super) fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        hello().prop_map(Frame::Hello),
        welcome().prop_map(Frame::Welcome),
        subscription().prop_map(|subscription| Frame::InventoryRequest { subscription }),
        (subscription(), vec(entry(), 0..5), any::<bool>()).prop_map(|(subscription, entries, last)| {
            Frame::InventoryPart(InventoryPart { subscription, entries, last })
        }),
        (any::<u64>(), subscription(), change()).prop_map(|(seq, subscription, change)| Frame::Deliver(
            Deliver { seq: Seq(seq), subscription, change }
        )),
        vec((lane(), any::<u64>().prop_map(Seq)), 0..4).prop_map(|lanes| Frame::Ack { lanes }),
        (lane(), any::<u64>(), refusal_reason(), ".{0,20}").prop_map(|(lane, seq, reason, message)| {
            Frame::Refuse(Refusal { lane, seq: Seq(seq), reason, message })
        }),
        (subscription(), epoch(), any::<u64>()).prop_map(|(subscription, epoch, revision)| Frame::CaughtUp {
            subscription,
            epoch,
            revision: CloudRevision(revision)
        }),
        request().prop_map(Frame::Request),
        reply().prop_map(Frame::Reply),
        subscribe().prop_map(Frame::Subscribe),
        subscription().prop_map(|subscription| Frame::Unsubscribe { subscription }),
        (subscription(), 100u16..1000, ".{0,20}").prop_map(|(subscription, code, reason)| {
            Frame::SubscriptionClosed { subscription, code, reason }
        }),
        any::<i64>().prop_map(|renew_time_micros| Frame::LeaseRenew { renew_time_micros }),
        (any::<i64>(), 100u16..1000)
            .prop_map(|(renew_time_micros, code)| Frame::LeaseRenewed { renew_time_micros, code }),
        proof().prop_map(|proof| Frame::Attestation { proof }),
        any::<u64>().prop_map(|id| Frame::Ping { id }),
        any::<u64>().prop_map(|id| Frame::Pong { id }),
        (goodbye_reason(), ".{0,20}", millis()).prop_map(|(reason, message, retry_after)| {
            Frame::Goodbye(Goodbye { reason, message, retry_after })
        }),
    ]
}

fn hello() -> impl Strategy<Value = Hello> {
    let versions = (any::<u32>(), any::<u32>());
    let rest = (any::<u32>(), any::<u64>(), inventory(), "[ -~]{0,20}", any::<u64>(), proof());
    (versions, node(), any::<[u8; 16]>(), option::of(epoch()), rest).prop_map(
        |(versions, node, store, epoch, rest)| {
            let (trim_version, features, inventory, agent, instance, attestation) = rest;
            Hello {
                versions,
                node,
                store: StoreId(store),
                epoch,
                trim_version,
                features,
                inventory,
                agent,
                instance,
                attestation,
            }
        },
    )
}

fn proof() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..=limits::ATTESTATION_LEN_MAX).prop_map(Bytes::from)
}

fn welcome() -> impl Strategy<Value = Welcome> {
    let numbers = (any::<u32>(), any::<u64>(), any::<u32>(), any::<u64>());
    (numbers, epoch(), millis(), millis(), "[ -~]{0,20}").prop_map(
        |((version, features, trim_version, unix_millis), epoch, ping_interval, idle_timeout, agent)| {
            Welcome {
                version,
                epoch,
                features,
                trim_version,
                ping_interval,
                idle_timeout,
                unix_millis,
                agent,
            }
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    let api = ("[A-Z]{1,7}", "/[ -~]{0,30}", "[a-z/+]{0,20}", "[a-z/+]{0,20}", body()).prop_map(
        |(method, path_and_query, content_type, accept, body)| {
            RequestBody::Api(ApiRequest { method, path_and_query, content_type, accept, body })
        },
    );
    let body = prop_oneof![message().prop_map(|message| RequestBody::Message(Box::new(message))), api];
    (any::<u64>(), millis(), body, option::of("[ -~]{0,20}")).prop_map(|(id, timeout, body, caller_token)| {
        Request { id: RequestId(id), timeout, body, caller_token }
    })
}

fn reply() -> impl Strategy<Value = Reply> {
    let api = (100u16..1000, "[a-z/+]{0,20}", body())
        .prop_map(|(code, content_type, body)| ReplyBody::Api(ApiReply { code, content_type, body }));
    let body = prop_oneof![message().prop_map(|message| ReplyBody::Message(Box::new(message))), api];
    (any::<u64>(), body).prop_map(|(id, body)| Reply { id: RequestId(id), body })
}

fn subscribe() -> impl Strategy<Value = Subscribe> {
    let selectors = ("[ -~]{0,20}", "[ -~]{0,20}", "[a-z]{0,5}");
    let held = (option::of(epoch()), inventory());
    (subscription(), resource(), selectors, option::of("[ -~]{0,20}"), held).prop_map(
        |(
            subscription,
            resource,
            (label_selector, field_selector, namespace),
            caller_token,
            (epoch, inventory),
        )| {
            Subscribe {
                subscription,
                resource,
                namespace,
                label_selector,
                field_selector,
                caller_token,
                epoch,
                inventory,
            }
        },
    )
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (key(), version(), body(), vec(key(), 0..4)).prop_map(|(key, version, body, dependencies)| {
            Change::Upsert(Arc::new(SharedObject::new(key, version, body, dependencies)))
        }),
        (key(), option::of(version())).prop_map(|(key, version)| Change::Delete { key, version }),
        key().prop_map(|key| Change::Absent { key }),
        key().prop_map(|key| Change::Unreadable { key }),
        (key(), version()).prop_map(|(key, version)| Change::Adopt { key, version }),
    ]
}

fn inventory() -> impl Strategy<Value = Inventory> {
    prop_oneof![
        vec(entry(), 0..5).prop_map(Inventory::Full),
        (any::<u64>(), any::<[u8; 16]>()).prop_map(|(count, digest)| Inventory::Digest { count, digest }),
    ]
}

fn entry() -> impl Strategy<Value = InventoryEntry> {
    let held = prop_oneof![
        version().prop_map(HeldState::Present),
        Just(HeldState::Absent),
        Just(HeldState::Unreadable)
    ];
    (key(), held).prop_map(|(key, held)| InventoryEntry { key, held })
}

fn key() -> impl Strategy<Value = ObjectKey> {
    (resource(), "[a-z]{0,5}", "[a-z.:-]{3,9}")
        .prop_map(|(resource, namespace, name)| ObjectKey::new(resource, &namespace, &name))
}

fn resource() -> impl Strategy<Value = Resource> {
    ("[a-z.]{0,1}", "v[1-9]", "[a-z]{1,9}")
        .prop_filter("a segment of dots only", |(group, ..)| group != ".")
        .prop_map(|(group, version, name)| Resource::new(&group, &version, &name))
}

fn version() -> impl Strategy<Value = ObjectVersion> {
    (uid(), any::<u64>(), any::<u128>()).prop_map(|(uid, revision, hash)| ObjectVersion {
        uid,
        revision: CloudRevision(revision),
        hash: ContentHash(hash),
    })
}

fn uid() -> impl Strategy<Value = Uid> {
    let uuid = any::<[u8; 16]>().prop_map(|bytes| uuid::Uuid::from_bytes(bytes).to_string());
    let upper = any::<[u8; 16]>().prop_map(|bytes| uuid::Uuid::from_bytes(bytes).to_string().to_uppercase());
    prop_oneof![uuid, upper, "[!-~]{1,16}"].prop_map(|text| Uid::parse(&text).expect("printable"))
}

fn epoch() -> impl Strategy<Value = Epoch> {
    (uid(), any::<u64>()).prop_map(|(cluster, generation)| Epoch { cluster, generation })
}

fn body() -> impl Strategy<Value = Bytes> {
    let text = prop_oneof![Just(b"{\"kind\":\"ConfigMap\"}".repeat(500)), vec(any::<u8>(), 0..40)];
    text.prop_map(Bytes::from)
}

fn node() -> impl Strategy<Value = NodeId> {
    "[a-z]{1,5}(-[a-z0-9]{1,3})?".prop_map(|name| NodeId::parse(&name).expect("a node name"))
}

fn subscription() -> impl Strategy<Value = SubscriptionId> {
    any::<u32>().prop_map(SubscriptionId)
}

fn lane() -> impl Strategy<Value = Lane> {
    prop::sample::select(Lane::ALL.to_vec())
}

fn millis() -> impl Strategy<Value = Duration> {
    any::<u64>().prop_map(Duration::from_millis)
}

fn refusal_reason() -> impl Strategy<Value = RefusalReason> {
    use RefusalReason as Reason;
    prop::sample::select(vec![
        Reason::StorageFull,
        Reason::Storage,
        Reason::Malformed,
        Reason::TooLarge,
        Reason::Other,
    ])
}

fn goodbye_reason() -> impl Strategy<Value = GoodbyeReason> {
    use GoodbyeReason as Reason;
    prop::sample::select(vec![
        Reason::Draining,
        Reason::Replaced,
        Reason::NodeDeleted,
        Reason::ProtocolError,
        Reason::VersionMismatch,
        Reason::Forbidden,
        Reason::Timeout,
        Reason::Overloaded,
        Reason::Other,
    ])
}
