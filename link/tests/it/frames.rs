//! Every kind of frame crosses every transport, and the tap sees it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tombolo_link::{Direction, Link, Tap, mem};
use tombolo_proto::frame::*;
use tombolo_proto::inventory::content_hash;
use tombolo_proto::*;

use crate::world::{BOTH, frame, large, pair, soon};

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", name)
}

fn version(body: &[u8]) -> ObjectVersion {
    let uid = Uid::parse("11111111-2222-3333-4444-555555555555").unwrap();
    ObjectVersion { uid, revision: CloudRevision(7), hash: content_hash(body) }
}

fn epoch() -> Epoch {
    Epoch { cluster: Uid::parse("cluster").unwrap(), generation: 3 }
}

fn object(name: &str, len: usize) -> Arc<SharedObject> {
    let body = format!("{{\"data\":{{\"text\":\"{}\"}}}}", "tide ".repeat(len / 5)).into_bytes();
    Arc::new(SharedObject::new(key(name), version(&body), body.into(), vec![key("other")]))
}

fn deliver(seq: u64, change: Change) -> Frame {
    Frame::Deliver(Deliver { seq: Seq(seq), subscription: SubscriptionId::NODE, change })
}

/// Frames that a cloud sends.
fn down() -> Vec<(Lane, Frame)> {
    let welcome = Welcome {
        version: 1,
        epoch: epoch(),
        features: features::ZSTD,
        trim_version: 2,
        ping_interval: Duration::from_secs(30),
        idle_timeout: Duration::from_secs(75),
        unix_millis: 1_800_000_000_000,
        agent: "cloud".into(),
    };
    let reply =
        ApiReply { code: 200, content_type: "application/json".into(), body: vec![b'x'; 100_000].into() };
    let gone = Change::Delete { key: key("a"), version: Some(version(b"a")) };
    vec![
        (Lane::Control, Frame::Welcome(welcome)),
        (Lane::Control, Frame::InventoryRequest { subscription: SubscriptionId(3) }),
        (Lane::Delivery, deliver(1, Change::Upsert(object("a", 100)))),
        (Lane::Delivery, deliver(2, Change::Upsert(object("b", 40_000)))),
        (Lane::Bulk, deliver(1, Change::Upsert(object("c", 3_000_000)))),
        (Lane::Delivery, deliver(3, gone)),
        (Lane::Delivery, deliver(4, Change::Absent { key: key("d") })),
        (Lane::Delivery, deliver(5, Change::Adopt { key: key("e"), version: version(b"e") })),
        (
            Lane::Control,
            Frame::CaughtUp {
                subscription: SubscriptionId::NODE,
                epoch: epoch(),
                revision: CloudRevision(9),
            },
        ),
        (Lane::Control, Frame::Reply(Reply { id: RequestId(1), body: ReplyBody::Api(reply) })),
        (
            Lane::Control,
            Frame::SubscriptionClosed { subscription: SubscriptionId(3), code: 410, reason: "old".into() },
        ),
        (Lane::Control, Frame::LeaseRenewed { renew_time_micros: 5, code: 200 }),
        (Lane::Control, Frame::Ping { id: 1 }),
        (Lane::Control, goodbye(GoodbyeReason::Draining)),
    ]
}

/// Frames that an edge sends.
fn up() -> Vec<(Lane, Frame)> {
    let entry = InventoryEntry { key: key("a"), held: HeldState::Present(version(b"a")) };
    let hello = Hello {
        versions: (1, 1),
        node: NodeId::parse("edge-1").unwrap(),
        store: StoreId([7; 16]),
        epoch: Some(epoch()),
        trim_version: 2,
        features: features::ZSTD,
        inventory: Inventory::Full(vec![entry.clone()]),
        agent: "edge".into(),
        instance: 5,
        attestation: Bytes::new(),
    };
    let subscribe = Subscribe {
        subscription: SubscriptionId(3),
        resource: Resource::new("discovery.k8s.io", "v1", "endpointslices"),
        namespace: String::new(),
        label_selector: "a=b".into(),
        field_selector: String::new(),
        caller_token: Some("token".into()),
        epoch: None,
        inventory: Inventory::Digest { count: 0, digest: [0; 16] },
    };
    let refusal = Refusal {
        lane: Lane::Delivery,
        seq: Seq(2),
        reason: RefusalReason::StorageFull,
        message: "no space left".into(),
    };
    let part = InventoryPart { subscription: SubscriptionId::NODE, entries: vec![entry], last: true };
    vec![
        (Lane::Control, Frame::Hello(hello)),
        (Lane::Bulk, Frame::InventoryPart(part)),
        (Lane::Control, Frame::Ack { lanes: vec![(Lane::Delivery, Seq(5)), (Lane::Bulk, Seq(1))] }),
        (Lane::Control, Frame::Refuse(refusal)),
        (Lane::Control, large(1, 10)),
        (Lane::Bulk, large(2, 500_000)),
        (Lane::Delivery, Frame::Subscribe(subscribe)),
        (Lane::Delivery, Frame::Unsubscribe { subscription: SubscriptionId(3) }),
        (Lane::Control, Frame::LeaseRenew { renew_time_micros: 5 }),
        (Lane::Control, Frame::Pong { id: 1 }),
        (Lane::Control, goodbye(GoodbyeReason::Other)),
    ]
}

fn goodbye(reason: GoodbyeReason) -> Frame {
    Frame::Goodbye(Goodbye { reason, message: "until later".into(), retry_after: Duration::from_secs(1) })
}

#[derive(Default)]
struct Recorder(Mutex<Vec<(Direction, Lane, Frame)>>);

impl Tap for Recorder {
    fn frame(&self, _at: Instant, direction: Direction, lane: Lane, frame: &Frame) {
        self.0.lock().unwrap().push((direction, lane, frame.clone()));
    }
}

fn by_lane(frames: &[(Lane, Frame)], lane: Lane) -> Vec<&Frame> {
    frames.iter().filter(|(of, _)| *of == lane).map(|(_, frame)| frame).collect()
}

/// Sends the frames in one direction and checks that each lane delivers its own frames in order.
async fn cross(from: &mut Link, to: &mut Link, frames: Vec<(Lane, Frame)>) {
    let recorder = Arc::new(Recorder::default());
    from.set_tap(recorder.clone());
    let mut got = Vec::new();
    let mut waiting = frames.clone().into_iter().peekable();
    while got.len() < frames.len() {
        while let Some((lane, frame)) = waiting.next_if(|(lane, _)| from.can_send(*lane)) {
            from.send(lane, frame).unwrap();
        }
        tokio::select! {
            event = from.next() => assert!(!matches!(event, tombolo_link::LinkEvent::Closed(_)), "{event:?}"),
            one = frame(to) => got.push(one),
        }
    }
    for lane in Lane::ALL {
        assert_eq!(by_lane(&got, lane), by_lane(&frames, lane), "lane {lane:?}");
    }
    let seen = recorder.0.lock().unwrap();
    assert_eq!(seen.len(), frames.len());
    let sent = seen.iter().zip(&frames);
    for ((direction, lane, frame), expected) in sent {
        assert_eq!((*direction, *lane, frame), (Direction::Out, expected.0, &expected.1));
    }
}

async fn cross_both_ways(cloud: &mut Link, edge: &mut Link) {
    cross(edge, cloud, up()).await;
    cross(cloud, edge, down()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_sockets() {
    for choice in BOTH {
        let mut pair = pair(choice).await;
        soon("all frames", cross_both_ways(&mut pair.cloud, &mut pair.edge)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn in_memory() {
    let (mut cloud, mut edge, _) = mem::pair(NodeId::parse("edge-1").unwrap());
    cross_both_ways(&mut cloud, &mut edge).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_goodbye_reaches_the_peer_before_the_end() {
    for choice in BOTH {
        for cloud_leaves in [true, false] {
            let pair = pair(choice).await;
            let (mut leaver, mut stayer) = (pair.cloud, pair.edge);
            if !cloud_leaves {
                std::mem::swap(&mut leaver, &mut stayer);
            }
            // The remaining side has bytes in transit as well; they must not destroy the goodbye.
            stayer.send(Lane::Control, Frame::Ping { id: 9 }).unwrap();
            stayer.flush().await.unwrap();
            leaver.send(Lane::Control, goodbye(GoodbyeReason::Draining)).unwrap();
            let leaving = tokio::spawn(leaver.close(Duration::from_secs(20)));
            assert_eq!(frame(&mut stayer).await, (Lane::Control, goodbye(GoodbyeReason::Draining)));
            let end = crate::world::ending(&mut stayer).await;
            assert!(matches!(end, tombolo_link::LinkError::ClosedByPeer), "{choice:?}: {end:?}");
            drop(stayer);
            soon("closing", leaving).await.unwrap();
        }
    }
}
