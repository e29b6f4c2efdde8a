//! Frames of version 1 as files: every later version must understand their content.
//!
//! A new kind of frame, and a new option of one, needs a line in [`expected`]. Its file is created by
//! `cargo test -p tombolo-proto --test fixtures_v1 -- --ignored write_missing`, which never changes an existing file.
//! A fixture that no longer decodes to its value means a broken protocol, not an outdated fixture. The other direction,
//! what this version sends to a peer of version 1, is tested in `proto/src/codec/tests/version_1.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tombolo_proto::frame::*;
use tombolo_proto::ids::*;
use tombolo_proto::message::{
    Content, Group, Message, MessageId, ObjectPath, Operation, ResourceType, Route, Source,
};
use tombolo_proto::object::*;
use tombolo_proto::{Frame, codec};

fn uid() -> Uid {
    Uid::parse("7c9e6679-7425-40de-944b-e07fc1f90ae7").expect("a uid")
}

fn epoch() -> Epoch {
    Epoch { cluster: uid(), generation: 2 }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", name)
}

fn version() -> ObjectVersion {
    ObjectVersion { uid: uid(), revision: CloudRevision(4711), hash: ContentHash(0x0123_4567_89ab_cdef) }
}

/// A version with both halves of the content's hash and a UID that is not a UUID.
fn wide() -> ObjectVersion {
    let hash = ContentHash::of_halves(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
    ObjectVersion { uid: Uid::parse("not-a-uuid").expect("a uid"), hash, ..version() }
}

fn deliver(change: Change) -> Frame {
    Frame::Deliver(Deliver { seq: Seq(9), subscription: SubscriptionId::NODE, change })
}

fn upsert(body: Vec<u8>) -> Frame {
    deliver(Change::Upsert(Arc::new(SharedObject::new(key("web"), version(), body.into(), vec![key("ca")]))))
}

fn entries() -> Vec<InventoryEntry> {
    let foreign = ObjectVersion { uid: Uid::parse("not-a-uuid").expect("a uid"), ..version() };
    vec![
        InventoryEntry { key: key("web"), held: HeldState::Present(version()) },
        InventoryEntry { key: key("foreign"), held: HeldState::Present(foreign) },
        InventoryEntry { key: key("gone"), held: HeldState::Absent },
    ]
}

fn unreadable_part() -> Frame {
    let entries = vec![InventoryEntry { key: key("locked"), held: HeldState::Unreadable }];
    Frame::InventoryPart(InventoryPart { subscription: SubscriptionId(0), entries, last: true })
}

fn hello(inventory: Inventory, epoch: Option<Epoch>) -> Frame {
    Frame::Hello(Hello {
        versions: (1, 1),
        node: NodeId::parse("edge1").expect("a node"),
        store: StoreId([0xa5; 16]),
        epoch,
        trim_version: 3,
        features: features::ZSTD,
        inventory,
        agent: "edgecore/0.1.0".to_owned(),
        instance: 0,
        attestation: Bytes::new(),
    })
}

/// The hello of an edge that stores attestations.
fn attested(hello: Frame) -> Frame {
    let Frame::Hello(hello) = hello else { unreachable!("a hello") };
    let features = hello.features | features::ATTESTATION;
    Frame::Hello(Hello { features, attestation: Bytes::from_static(&[0x3c; 49]), ..hello })
}

fn message(operation: Operation, content: Content) -> Box<Message> {
    let resource = ObjectPath::new("default", ResourceType::ConfigMap, "web").into();
    let mut route = Route::new(Source::Edged, Group::Meta, operation, resource);
    route.destination = "cloud".to_owned();
    let mut message = Message::new(MessageId::from_random_bytes([7; 16]), 1_786_000_000_300, route, content);
    message.header.parent = Some(MessageId::parse("G").expect("an id"));
    message.header.sync = true;
    message.header.context_type = "channel".to_owned();
    Box::new(message.with_resource_version("380"))
}

fn request(body: RequestBody) -> Frame {
    let timeout = Duration::from_millis(2500);
    Frame::Request(Request { id: RequestId(5), timeout, body, caller_token: Some("token".to_owned()) })
}

fn reply(body: ReplyBody) -> Frame {
    Frame::Reply(Reply { id: RequestId(5), body })
}

/// File name without extension, and the frame in the file.
fn expected() -> Vec<(&'static str, Frame)> {
    let mut frames = deliveries();
    frames.extend(handshake());
    frames.extend(requests());
    frames.extend(control());
    frames.extend(options());
    frames.extend(reasons());
    frames
}

fn deliveries() -> Vec<(&'static str, Frame)> {
    let refusal = Refusal {
        lane: Lane::Bulk,
        seq: Seq(10),
        reason: RefusalReason::StorageFull,
        message: "no space left".to_owned(),
    };
    vec![
        ("deliver_upsert", upsert(br#"{"kind":"ConfigMap","data":{"n":"9007199254740993"}}"#.to_vec())),
        ("deliver_upsert_zstd", upsert(b"{\"kind\":\"ConfigMap\"} ".repeat(400))),
        ("deliver_delete", deliver(Change::Delete { key: key("web"), version: Some(version()) })),
        ("deliver_absent", deliver(Change::Absent { key: key("web") })),
        ("deliver_unreadable", deliver(Change::Unreadable { key: key("web") })),
        ("deliver_adopt", deliver(Change::Adopt { key: key("web"), version: version() })),
        ("ack", Frame::Ack { lanes: vec![(Lane::Delivery, Seq(9)), (Lane::Bulk, Seq(300))] }),
        ("refuse", Frame::Refuse(refusal)),
        (
            "caught_up",
            Frame::CaughtUp {
                subscription: SubscriptionId(3),
                epoch: epoch(),
                revision: CloudRevision(u64::MAX),
            },
        ),
    ]
}

fn handshake() -> Vec<(&'static str, Frame)> {
    let welcome = Welcome {
        version: 1,
        epoch: epoch(),
        features: features::ZSTD,
        trim_version: 3,
        ping_interval: Duration::from_secs(30),
        idle_timeout: Duration::from_secs(75),
        unix_millis: 1_786_000_000_000,
        agent: "cloudcore/0.1.0".to_owned(),
    };
    let digest = Inventory::Digest { count: 600, digest: [0x5a; 16] };
    vec![
        ("hello_empty", hello(Inventory::Full(Vec::new()), None)),
        ("hello_full", hello(Inventory::Full(entries()), Some(epoch()))),
        ("hello_digest", hello(digest, Some(epoch()))),
        ("hello_attested", attested(hello(Inventory::Full(Vec::new()), Some(epoch())))),
        ("welcome", Frame::Welcome(welcome)),
        ("inventory_request", Frame::InventoryRequest { subscription: SubscriptionId(0) }),
        (
            "inventory_part",
            Frame::InventoryPart(InventoryPart {
                subscription: SubscriptionId(0),
                entries: entries(),
                last: true,
            }),
        ),
        ("inventory_part_unreadable", unreadable_part()),
    ]
}

fn requests() -> Vec<(&'static str, Frame)> {
    let json = "application/json".to_owned();
    let api = ApiRequest {
        content_type: "application/strategic-merge-patch+json".to_owned(),
        accept: json.clone(),
        body: Bytes::from_static(b"{}"),
        ..ApiRequest::new("PATCH", "/api/v1/nodes/edge1/status?fieldManager=kubelet")
    };
    let answer =
        ApiReply { code: 409, content_type: json, body: Bytes::from_static(b"{\"kind\":\"Status\"}") };
    let object = Content::from_json(&Bytes::from_static(b"{\"n\":9007199254740993}")).expect("JSON");
    let subscribe = Subscribe {
        subscription: SubscriptionId(3),
        resource: Resource::new("discovery.k8s.io", "v1", "endpointslices"),
        namespace: "default".to_owned(),
        label_selector: "app=web".to_owned(),
        field_selector: "metadata.name=web".to_owned(),
        caller_token: None,
        epoch: Some(epoch()),
        inventory: Inventory::Full(entries()),
    };
    let reason = "forbidden".to_owned();
    vec![
        ("request_message", request(RequestBody::Message(message(Operation::Query, Content::null())))),
        ("request_api", request(RequestBody::Api(api))),
        ("reply_message", reply(ReplyBody::Message(message(Operation::Response, object)))),
        ("reply_api", reply(ReplyBody::Api(answer))),
        ("subscribe", Frame::Subscribe(subscribe)),
        ("unsubscribe", Frame::Unsubscribe { subscription: SubscriptionId(3) }),
        (
            "subscription_closed",
            Frame::SubscriptionClosed { subscription: SubscriptionId(3), code: 403, reason },
        ),
    ]
}

fn control() -> Vec<(&'static str, Frame)> {
    let goodbye = Goodbye {
        reason: GoodbyeReason::Draining,
        message: "moving".to_owned(),
        retry_after: Duration::from_millis(1500),
    };
    let renew_time_micros = 1_786_000_000_123_456;
    vec![
        ("lease_renew", Frame::LeaseRenew { renew_time_micros }),
        ("lease_renewed", Frame::LeaseRenewed { renew_time_micros, code: 200 }),
        ("attestation", Frame::Attestation { proof: Bytes::from_static(&[0x3c; 49]) }),
        ("ping", Frame::Ping { id: 77 }),
        ("pong", Frame::Pong { id: 77 }),
        ("goodbye", Frame::Goodbye(goodbye)),
    ]
}

/// What the frames above leave out: the other value of every optional field and flag.
fn options() -> Vec<(&'static str, Frame)> {
    let object = SharedObject::new(key("web"), wide(), Bytes::from_static(b"{}"), Vec::new());
    let change = Change::Upsert(Arc::new(object));
    let followed = Deliver { seq: Seq(u64::MAX), subscription: SubscriptionId(3), change };
    let Frame::Hello(all) = hello(Inventory::Full(Vec::new()), None) else { unreachable!("a hello") };
    let all =
        Hello { versions: (1, u32::MAX), trim_version: 0, features: features::ALL, instance: 77, ..all };
    let part = InventoryPart { subscription: SubscriptionId(3), entries: entries(), last: false };
    let call = ApiRequest { body: Bytes::new(), ..ApiRequest::new("GET", "/api/v1/nodes/edge1") };
    let node = Request {
        id: RequestId(u64::MAX),
        timeout: Duration::ZERO,
        body: RequestBody::Api(call),
        caller_token: None,
    };
    let cluster = Epoch { cluster: wide().uid, generation: 0 };
    let caught_up =
        Frame::CaughtUp { subscription: SubscriptionId::NODE, epoch: cluster, revision: CloudRevision(0) };
    let nothing = ApiReply { code: 204, content_type: String::new(), body: Bytes::new() };
    let short = Message::new(
        MessageId::parse("F").expect("an id"),
        -1,
        Route::new(
            Source::parse("a"),
            Group::parse("b"),
            Operation::parse("c"),
            ObjectPath::new("d", ResourceType::parse("e"), "f").into(),
        ),
        Content::null(),
    );
    let subscribe = Subscribe {
        subscription: SubscriptionId(u32::MAX),
        resource: Resource::new("", "v1", "nodes"),
        namespace: String::new(),
        label_selector: String::new(),
        field_selector: String::new(),
        caller_token: Some("token".to_owned()),
        epoch: None,
        inventory: Inventory::Digest { count: 600, digest: [0x5a; 16] },
    };
    vec![
        ("deliver_upsert_followed", Frame::Deliver(followed)),
        ("deliver_adopt_wide", deliver(Change::Adopt { key: key("web"), version: wide() })),
        ("deliver_delete_unknown", deliver(Change::Delete { key: key("web"), version: None })),
        ("hello_features_instance", Frame::Hello(all)),
        ("inventory_part_first", Frame::InventoryPart(part)),
        ("ack_nothing", Frame::Ack { lanes: Vec::new() }),
        ("ack_control", Frame::Ack { lanes: vec![(Lane::Control, Seq(1))] }),
        ("request_api_of_node", Frame::Request(node)),
        ("request_message_unknown", request(RequestBody::Message(Box::new(short)))),
        ("reply_api_empty", reply(ReplyBody::Api(nothing))),
        ("subscribe_digest", Frame::Subscribe(subscribe)),
        ("caught_up_cluster", caught_up),
        ("lease_renew_before_1970", Frame::LeaseRenew { renew_time_micros: -1 }),
    ]
}

/// One refusal and one goodbye of each reason.
fn reasons() -> Vec<(&'static str, Frame)> {
    let refuse =
        |reason| Frame::Refuse(Refusal { lane: Lane::Delivery, seq: Seq(1), reason, message: String::new() });
    let goodbye =
        |reason| Frame::Goodbye(Goodbye { reason, message: String::new(), retry_after: Duration::ZERO });
    let refusals = REFUSAL_REASONS.map(|reason| (refusal_name(reason), refuse(reason)));
    let goodbyes = GOODBYE_REASONS.map(|reason| (goodbye_name(reason), goodbye(reason)));
    refusals.into_iter().chain(goodbyes).collect()
}

const REFUSAL_REASONS: [RefusalReason; 5] = [
    RefusalReason::StorageFull,
    RefusalReason::Storage,
    RefusalReason::Malformed,
    RefusalReason::TooLarge,
    RefusalReason::Other,
];

const GOODBYE_REASONS: [GoodbyeReason; 9] = [
    GoodbyeReason::Draining,
    GoodbyeReason::Replaced,
    GoodbyeReason::NodeDeleted,
    GoodbyeReason::ProtocolError,
    GoodbyeReason::VersionMismatch,
    GoodbyeReason::Forbidden,
    GoodbyeReason::Timeout,
    GoodbyeReason::Overloaded,
    GoodbyeReason::Other,
];

/// A new reason does not compile without a name here; add it to the list above as well.
fn refusal_name(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::StorageFull => "refuse_storage_full",
        RefusalReason::Storage => "refuse_storage",
        RefusalReason::Malformed => "refuse_malformed",
        RefusalReason::TooLarge => "refuse_too_large",
        RefusalReason::Other => "refuse_other",
    }
}

/// See [`refusal_name`].
fn goodbye_name(reason: GoodbyeReason) -> &'static str {
    match reason {
        GoodbyeReason::Draining => "goodbye_draining",
        GoodbyeReason::Replaced => "goodbye_replaced",
        GoodbyeReason::NodeDeleted => "goodbye_node_deleted",
        GoodbyeReason::ProtocolError => "goodbye_protocol_error",
        GoodbyeReason::VersionMismatch => "goodbye_version_mismatch",
        GoodbyeReason::Forbidden => "goodbye_forbidden",
        GoodbyeReason::Timeout => "goodbye_timeout",
        GoodbyeReason::Overloaded => "goodbye_overloaded",
        GoodbyeReason::Other => "goodbye_other",
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/v1")
}

#[test]
fn fixtures_decode_as_always() {
    for (name, frame) in expected() {
        let path = folder().join(name).with_extension("bin");
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let bytes = Bytes::from(bytes);
        let decoded = codec::decode(bytes.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(decoded, frame, "{name}");
        // The fixtures are frames of version 1 indeed.
        tombolo_proto_v1::decode(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// The schema of version 1 is frozen with its decoder: each of its frames and fields has a fixture in which it is set.
#[test]
fn every_field_of_version_1_is_set_in_a_fixture() {
    let said: Vec<String> = fs::read_dir(folder())
        .expect("fixtures")
        .map(|entry| fs::read(entry.expect("an entry").path()).expect("readable"))
        .map(|bytes| format!("{:?}", tombolo_proto_v1::decode(bytes.into()).expect("a frame")))
        .collect();
    let default =
        |value: &str| matches!(value, "0" | "false" | "\"\"" | "b\"\"" | "None" | "[]" | "Unspecified");
    let is_set = |field: &str| {
        let field = format!(" {field}: ");
        said.iter().flat_map(|text| text.split(&field).skip(1)).any(|rest| {
            let value = rest.split([',', ' ']).next().unwrap_or_default();
            !default(value)
        })
    };
    for field in schema_fields(include_str!("../compat/v1/protocol/tombolo.proto")) {
        // A decoded body says nothing of its encoding; `deliver_upsert_zstd` has one.
        let is_body = matches!(&*field, "encoding" | "decoded_len");
        assert!(is_body || is_set(&field), "no fixture sets {field}");
    }
}

/// Names of the fields in messages of a schema, outside `oneof`s and enums.
fn schema_fields(schema: &str) -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    let (mut depth, mut in_message) = (0, false);
    for line in schema.lines().map(str::trim) {
        if line.ends_with('{') {
            in_message = if depth == 0 { line.starts_with("message ") } else { in_message };
            depth += 1;
        } else if line == "}" {
            depth -= 1;
        } else if depth == 1 && in_message && line.ends_with(';') {
            let name = line.split(" = ").next().and_then(|field| field.split(' ').next_back());
            fields.extend(name.map(str::to_owned));
        }
    }
    assert!(fields.len() > 40, "{fields:?}");
    fields
}

#[test]
fn every_file_is_expected() {
    let files: BTreeSet<String> = fs::read_dir(folder())
        .expect("fixtures")
        .map(|entry| {
            entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned()
        })
        .collect();
    let names: BTreeSet<String> = expected().into_iter().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(files, names);
}

/// No frame kind can be forgotten: without it the match does not compile, and a fixture's name must begin with its
/// name.
#[test]
fn every_kind_has_a_fixture() {
    let kind = |frame: &Frame| match frame {
        Frame::Hello(_) => "hello",
        Frame::Welcome(_) => "welcome",
        Frame::InventoryRequest { .. } => "inventory_request",
        Frame::InventoryPart(_) => "inventory_part",
        Frame::Deliver(_) => "deliver",
        Frame::Undecodable(_) => unreachable!("what every version reads can be read"),
        Frame::Ack { .. } => "ack",
        Frame::Refuse(_) => "refuse",
        Frame::CaughtUp { .. } => "caught_up",
        Frame::Request(_) => "request",
        Frame::Reply(_) => "reply",
        Frame::Subscribe(_) => "subscribe",
        Frame::Unsubscribe { .. } => "unsubscribe",
        Frame::SubscriptionClosed { .. } => "subscription_closed",
        Frame::LeaseRenew { .. } => "lease_renew",
        Frame::LeaseRenewed { .. } => "lease_renewed",
        Frame::Attestation { .. } => "attestation",
        Frame::Ping { .. } => "ping",
        Frame::Pong { .. } => "pong",
        Frame::Goodbye(_) => "goodbye",
    };
    let kinds: BTreeSet<&str> = expected().iter().map(|(_, frame)| kind(frame)).collect();
    assert_eq!(kinds.len(), 19);
    for (name, frame) in expected() {
        assert!(name.starts_with(kind(&frame)), "{name}");
    }
}

#[test]
#[ignore = "writes files; only for a new kind of frame"]
fn write_missing() {
    for (name, frame) in expected() {
        let path = folder().join(name).with_extension("bin");
        if !path.exists() {
            fs::write(&path, codec::encode(&frame, true)).expect("fixtures are writable");
        }
    }
}
