use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::frame::{Change, Deliver, Hello, Inventory, InventoryPart};
use crate::ids::{CloudRevision, NodeId, Seq, StoreId, SubscriptionId, Uid};
use crate::object::{
    ContentHash, HeldState, InventoryEntry, ObjectKey, ObjectVersion, Resource, SharedObject,
};

mod strategies;
mod version_1;

/// Protobuf of a frame, modified before it is decoded.
fn tampered(frame: &Frame, change: impl FnOnce(&mut wire::frame::Kind)) -> Result<Frame, CodecError> {
    let wire = wire::Frame::decode(encode(frame, false)).expect("own bytes");
    let mut kind = wire.kind.expect("always set");
    change(&mut kind);
    read_whole(wire::Frame { kind: Some(kind) }.encode_to_vec().into())
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", name)
}

fn upsert(body: Vec<u8>) -> Frame {
    let version = ObjectVersion {
        uid: Uid::parse("3f0c1d2e-0000-4000-8000-00000000000a").expect("a uid"),
        revision: CloudRevision(7),
        hash: ContentHash(8),
    };
    let object = SharedObject::new(key("web"), version, body.into(), vec![key("other")]);
    Frame::Deliver(Deliver {
        seq: Seq(1),
        subscription: SubscriptionId::NODE,
        change: Change::Upsert(Arc::new(object)),
    })
}

fn hello(inventory: Inventory) -> Frame {
    Frame::Hello(Hello {
        versions: (1, 1),
        node: NodeId::parse("edge1").expect("a node"),
        store: StoreId([1; 16]),
        epoch: None,
        trim_version: 1,
        features: 1,
        inventory,
        agent: "x".repeat(1000),
        instance: 0,
        attestation: Bytes::new(),
    })
}

#[test]
fn delivery_without_a_position_is_no_frame() {
    // Field 1 of a frame is a delivery, and field 1 of a delivery is its position, here 0 in several encodings.
    for bytes in [&[0x0a, 0][..], &[0x0a, 2, 0x08, 0], &[0x0a, 4, 0x08, 0, 0x10, 7]] {
        decode(Bytes::copy_from_slice(bytes)).expect_err("it cannot be told from one without a position");
    }
}

proptest! {
    #[test]
    fn every_frame_round_trips(frame in strategies::frame(), zstd in any::<bool>()) {
        let bytes = encode(&frame, zstd);
        prop_assert_eq!(decode(bytes.clone()).expect("own frame"), frame.clone());
        let package = encode_package(Lane::Bulk, &frame, zstd).expect("below the limit");
        prop_assert_eq!(&package[HEADER_LEN..], &bytes[..]);
    }

    /// For any stored object, and any change of it by a peer, only that one delivery is lost.
    #[test]
    fn undecodable_delivery_keeps_its_position(
        texts in proptest::collection::vec(any::<String>(), 6),
        tail in proptest::collection::vec(any::<u8>(), 0..40),
        seq in 1..u64::MAX,
        subscription in any::<u32>(),
    ) {
        let found = |bytes: Bytes| match decode(bytes) {
            Ok(Frame::Deliver(deliver)) => (deliver.seq.0, deliver.subscription.0),
            Ok(Frame::Undecodable(lost)) => {
                assert!(lost.reason.len() <= limits::SENTENCE_LEN_MAX && !lost.reason.is_empty());
                (lost.seq.0, lost.subscription.0)
            }
            other => panic!("{other:?}"),
        };
        let mut deliver = write::frame(&upsert(b"{}".to_vec()));
        let Some(wire::frame::Kind::Deliver(inner)) = &mut deliver.kind else { unreachable!("a delivery") };
        (inner.seq, inner.subscription) = (seq, subscription);
        for (position, text) in texts.iter().enumerate() {
            let mut odd = inner.clone();
            match (position, odd.key.as_mut(), odd.version.as_mut()) {
                (0, Some(key), _) => key.name.clone_from(text),
                (1, Some(key), _) => key.namespace.clone_from(text),
                (2, Some(key), _) => key.group.clone_from(text),
                (3, _, Some(version)) => (version.uuid, version.uid) = (Bytes::new(), text.clone()),
                (4, ..) => odd.dependencies[0].name.clone_from(text),
                _ => odd.dependencies[0].resource.clone_from(text),
            }
            let frame = wire::Frame { kind: Some(wire::frame::Kind::Deliver(odd)) };
            prop_assert_eq!(found(frame.encode_to_vec().into()), (seq, subscription));
        }
        // Invalid protobuf after position and subscription; some of it may state other values, as a later field may.
        let mut body = wire::Deliver { seq, subscription, ..wire::Deliver::default() }.encode_to_vec();
        body.extend(tail);
        let mut bytes = vec![1 << 3 | 2];
        prost::encode_length_delimiter(body.len(), &mut bytes).expect("a Vec grows");
        bytes.extend(body);
        found(bytes.into());
    }

    /// The decoder accepts exactly what the encoder sends.
    #[test]
    fn everything_sent_can_be_decoded(name in ".{0,300}", namespace in "\\PC{0,4}|[a-z]{0,300}", odd in "[./%a-z\u{0}-\u{20}]{0,3}") {
        for name in [&name, &odd] {
            let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), &namespace, name);
            let version = ObjectVersion {
                uid: Uid::parse("u").expect("a uid"), revision: CloudRevision(1), hash: ContentHash(1),
            };
            for (object, dependency) in [(key.clone(), super::tests::key("a")), (super::tests::key("a"), key)] {
                let object = SharedObject::new(object, version.clone(), Bytes::new(), vec![dependency]);
                let sent = obstacle(&object).is_none();
                let change = Change::Upsert(Arc::new(object));
                let frame = Frame::Deliver(Deliver { seq: Seq(1), subscription: SubscriptionId::NODE, change });
                prop_assert_eq!(sent, matches!(decode(encode(&frame, false)), Ok(Frame::Deliver(_))), "{}", name);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(bytes.into());
    }

    #[test]
    fn damaged_frames_never_panic(
        frame in strategies::frame(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encode(&frame, true).to_vec();
        prop_assume!(!bytes.is_empty());
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(keep.index(bytes.len()) + 1);
        let _ = decode(bytes.into());
    }
}

#[test]
fn bodies_are_compressed_only_where_allowed_and_useful() {
    let large = upsert(b"{\"a\":\"b\"}".repeat(10_000));
    let (plain, packed) = (encode(&large, false), encode(&large, true));
    assert!(plain.len() > 90_000 && packed.len() < 2_000, "{} {}", plain.len(), packed.len());
    assert_eq!(decode(packed).expect("own frame"), large);
    let small = upsert(b"{}".to_vec());
    assert_eq!(encode(&small, true), encode(&small, false));
}

#[test]
fn a_decompression_bomb_is_refused_before_memory_is_taken() {
    let packed = zstd::bulk::compress(&vec![0; 64 * 1024 * 1024], 3).expect("compressible");
    let bomb = |decoded_len: u32| {
        tampered(&upsert(Vec::new()), |kind| {
            let wire::frame::Kind::Deliver(deliver) = kind else { unreachable!("a delivery") };
            deliver.set_encoding(wire::BodyEncoding::Zstd);
            (deliver.body, deliver.decoded_len) = (packed.clone().into(), decoded_len);
        })
    };
    assert!(matches!(bomb(64 * 1024 * 1024), Err(CodecError::Limit { field: "deliver.decoded_len", .. })));
    assert!(
        matches!(bomb(1000), Err(CodecError::Compression(_))),
        "the decompressed body is longer than announced"
    );
}

#[test]
fn a_short_or_damaged_compressed_body_is_refused() {
    let packed = zstd::bulk::compress(&vec![7; 5000], 3).expect("compressible");
    let damaged = packed.get(..packed.len() - 1).expect("not empty").to_vec();
    for (body, decoded_len) in [(packed, 6000), (damaged, 5000), (b"not zstd".to_vec(), 5000)] {
        let result = tampered(&upsert(Vec::new()), |kind| {
            let wire::frame::Kind::Deliver(deliver) = kind else { unreachable!("a delivery") };
            deliver.set_encoding(wire::BodyEncoding::Zstd);
            (deliver.body, deliver.decoded_len) = (body.into(), decoded_len);
        });
        assert!(matches!(result, Err(CodecError::Compression(_))), "{result:?}");
    }
}

/// Each entry has two bytes on the wire.
fn empty_entries(kind: u8, list: u8, count: usize) -> Bytes {
    let entries = [list << 3 | 2, 0].repeat(count);
    let mut payload = vec![kind << 3 | 2];
    prost::encode_length_delimiter(entries.len(), &mut payload).expect("a Vec grows");
    payload.extend_from_slice(&entries);
    payload.into()
}

#[test]
fn lists_are_counted_before_they_take_memory() {
    let cases = [
        (1, 6, limits::DEPENDENCIES_MAX),
        (2, 1, 3),
        (11, 9, limits::HELLO_INVENTORY_MAX),
        (14, 2, limits::INVENTORY_PART_MAX),
        (15, 10, limits::HELLO_INVENTORY_MAX),
    ];
    for (kind, list, allowed) in cases {
        let over = decode(empty_entries(kind, list, allowed + 1));
        assert!(
            matches!(over, Err(CodecError::Limit { size, max, .. }) if size == allowed + 1 && max == allowed),
            "{over:?}"
        );
        let within = decode(empty_entries(kind, list, allowed));
        assert!(!matches!(within, Err(CodecError::Limit { .. })), "{within:?}");
    }
}

/// The guard knows lists by field number. A list that is added to the schema must be added there.
#[test]
fn every_list_of_the_schema_is_guarded() {
    let schema = include_str!("../../protocol/tombolo.proto");
    let lists = schema.lines().filter(|line| line.trim_start().starts_with("repeated ")).count();
    assert_eq!(lists, 5, "a new `repeated` field needs a line in codec/guard.rs and in the test above");
}

#[test]
fn payloads_other_than_one_known_frame_are_distinguished() {
    let ping = encode(&Frame::Ping { id: 300 }, false);
    let twice = [&ping[..], &ping[..]].concat();
    assert!(matches!(decode(Bytes::new()), Err(CodecError::Empty)));
    assert!(matches!(decode(twice.into()), Err(CodecError::Several { first: 5, second: 5 })));
    // Field 99 of `Frame`, an empty message: a frame of a later version.
    assert!(matches!(decode(Bytes::from_static(&[0x9a, 0x06, 0])), Err(CodecError::UnknownKind { tag: 99 })));
    let extended = [&ping[..], &[0x9a, 0x06, 0][..]].concat();
    assert_eq!(decode(extended.into()).expect("later additions are ignored"), Frame::Ping { id: 300 });
    assert!(matches!(decode(Bytes::from_static(b"GET / HTTP/1.1")), Err(CodecError::Protobuf(_))));
}

#[test]
fn an_attestation_of_any_bytes_is_carried_up_to_its_limit() {
    let proof = |len: usize| Bytes::from(vec![0xff; len]);
    let with = |attestation| {
        let Frame::Hello(hello) = hello(Inventory::Full(Vec::new())) else { unreachable!("a hello") };
        Frame::Hello(Hello { attestation, agent: String::new(), ..hello })
    };
    for frame in [with(proof(limits::ATTESTATION_LEN_MAX)), with(Bytes::new())] {
        assert_eq!(decode(encode(&frame, false)).expect("within the limit"), frame);
    }
    let beyond = proof(limits::ATTESTATION_LEN_MAX + 1);
    for frame in [with(beyond.clone()), Frame::Attestation { proof: beyond }] {
        let error = decode(encode(&frame, false)).expect_err("beyond the limit");
        assert!(matches!(error, CodecError::Limit { size: 129, max: 128, .. }), "{error}");
    }
}

#[test]
fn unknown_frame_number_is_a_later_frame() {
    assert!(matches!(decode(Bytes::from_static(&[0x9a, 0x01, 0])), Err(CodecError::UnknownKind { tag: 19 })));
}

#[test]
fn open_sets_read_as_other_and_closed_sets_refuse() {
    use crate::frame::{Goodbye, GoodbyeReason};
    let goodbye = Goodbye {
        reason: GoodbyeReason::Draining,
        message: String::new(),
        retry_after: std::time::Duration::ZERO,
    };
    let later = tampered(&Frame::Goodbye(goodbye), |kind| {
        let wire::frame::Kind::Goodbye(goodbye) = kind else { unreachable!("a goodbye") };
        goodbye.reason = 77;
    });
    assert!(matches!(later, Ok(Frame::Goodbye(Goodbye { reason: GoodbyeReason::Other, .. }))));
    for unknown in [0, 6, -1] {
        let result = tampered(&upsert(Vec::new()), |kind| {
            let wire::frame::Kind::Deliver(deliver) = kind else { unreachable!("a delivery") };
            deliver.kind = unknown;
        });
        assert!(matches!(result, Err(CodecError::Value { field: "deliver.kind", .. })), "{result:?}");
    }
}

/// A cloud that does not know the field treats an unreadable object as absent, and sends it when it can be read.
#[test]
fn an_older_cloud_reads_an_unreadable_entry_as_absent() {
    let entry = |held| InventoryEntry { key: key("web"), held };
    let read = |held| {
        tampered(&hello(Inventory::Full(vec![entry(held)])), |kind| {
            let wire::frame::Kind::Hello(hello) = kind else { unreachable!("a hello") };
            hello.inventory.iter_mut().for_each(|entry| entry.unreadable = false);
        })
    };
    let expected = read(HeldState::Absent).expect("own frame");
    assert_eq!(read(HeldState::Unreadable).expect("own frame"), expected);
    let whole = decode(encode(&hello(Inventory::Full(vec![entry(HeldState::Unreadable)])), false));
    assert_ne!(whole.expect("own frame"), expected);
}

#[test]
fn objects_without_identity_are_refused() {
    type Change = fn(&mut wire::Deliver);
    let cases: [(Change, &str); 7] = [
        (|deliver| deliver.version = None, "deliver.version is missing"),
        (|deliver| deliver.key = None, "object key is missing"),
        (|deliver| uid(deliver, "", &[]), "object uid"),
        (|deliver| uid(deliver, "", &[1; 15]), "object uid is 15, expected 16 bytes"),
        (|deliver| name(deliver, ""), "object name is missing"),
        (|deliver| name(deliver, "../../etc"), "object name: bad path segment"),
        (|deliver| name(deliver, &"x".repeat(254)), "object name: bad path segment"),
    ];
    for (change, expected) in cases {
        let result = tampered(&upsert(Vec::new()), |kind| {
            let wire::frame::Kind::Deliver(deliver) = kind else { unreachable!("a delivery") };
            change(deliver);
        });
        let text = result.expect_err(expected).to_string();
        assert!(text.contains(expected), "{text}");
    }
}

fn uid(deliver: &mut wire::Deliver, text: &str, uuid: &[u8]) {
    let version = deliver.version.as_mut().expect("set");
    (version.uid, version.uuid) = (text.to_owned(), Bytes::copy_from_slice(uuid));
}

fn name(deliver: &mut wire::Deliver, name: &str) {
    deliver.key.as_mut().expect("set").name = name.to_owned();
}

#[test]
fn agents_are_cut_and_bad_nodes_refused() {
    let read = decode(encode(&hello(Inventory::Full(Vec::new())), false)).expect("own frame");
    assert!(matches!(read, Frame::Hello(hello) if hello.agent.len() == limits::AGENT_LEN_MAX));
    let result = tampered(&hello(Inventory::Full(Vec::new())), |kind| {
        let wire::frame::Kind::Hello(hello) = kind else { unreachable!("a hello") };
        hello.node = "Not A Node".to_owned();
    });
    assert!(matches!(result, Err(CodecError::Id { field: "hello.node", .. })));
}

#[test]
fn oversized_payloads_are_refused_unread() {
    let huge = Bytes::from(vec![0; limits::FRAME_LEN_MAX + 1]);
    assert!(matches!(decode(huge), Err(CodecError::Limit { field: "frame", .. })));
}

#[test]
fn cutting_respects_characters() {
    assert_eq!(parts::cut("aé".to_owned(), 2), "a");
    assert_eq!(parts::cut("aé".to_owned(), 3), "aé");
}

#[test]
fn durations_round_up() {
    let millis = |nanos| parts::write_millis(std::time::Duration::from_nanos(nanos));
    assert_eq!((millis(0), millis(1), millis(1_000_000), millis(1_000_001)), (0, 1, 1, 2));
}

#[test]
fn a_frame_in_pieces_is_the_frame() {
    use crate::frame::{ApiReply, Deliver, Reply, ReplyBody};
    use crate::ids::{CloudRevision, RequestId, Seq, SubscriptionId, Uid};
    use crate::object::{ContentHash, ObjectKey, ObjectVersion, Resource, SharedObject};

    for len in [0, 5, limits::BULK_OBJECT_MIN, limits::BULK_OBJECT_MIN + 70_000] {
        let body: Bytes = (0..len).map(|at| (at % 7) as u8 + b'a').collect::<Vec<_>>().into();
        let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "d", "a");
        let uid = Uid::parse("u").expect("a UID");
        let version = ObjectVersion { uid, revision: CloudRevision(7), hash: ContentHash(1) };
        let object = std::sync::Arc::new(SharedObject::new(key, version, body.clone(), Vec::new()));
        for id in [0, 1, 300, u64::MAX] {
            let api = ApiReply { code: 200, content_type: "application/json".to_owned(), body: body.clone() };
            let reply = Frame::Reply(Reply { id: RequestId(id), body: ReplyBody::Api(api) });
            let change = Change::Upsert(std::sync::Arc::clone(&object));
            let deliver = Frame::Deliver(Deliver { seq: Seq(id), subscription: SubscriptionId(3), change });
            for (frame, zstd) in [(&reply, false), (&reply, true), (&deliver, false), (&deliver, true)] {
                let (head, rest) = encode_pieces(frame, zstd);
                assert_eq!([head, rest].concat(), encode(frame, zstd), "{len} bytes, id {id}");
            }
        }
    }
}

/// Two bytes on the wire are hundreds in memory.
#[test]
fn frame_weight_is_the_memory_of_its_decoded_entries() {
    let entry = |number: usize| InventoryEntry {
        key: ObjectKey::new(Resource::new("", "v1", "pods"), "d", &number.to_string()),
        held: HeldState::Absent,
    };
    let part = |count| {
        let part = InventoryPart {
            subscription: SubscriptionId(1),
            entries: (0..count).map(entry).collect(),
            last: false,
        };
        encode(&Frame::InventoryPart(part), false)
    };
    let (one, many) = (part(1), part(1000));
    assert!(weight(&one) > one.len() && weight(&many) > 1000 * 384 + many.len());
    let ping = encode(&Frame::Ping { id: 7 }, false);
    assert_eq!((weight(&ping), weight(&[]), weight(&[0xff; 9])), (ping.len(), 0, 9));
}
