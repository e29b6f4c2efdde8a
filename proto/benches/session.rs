//! What one delivered update costs in the sessions and the codec, and what an idle node costs in memory.
//!
//! `cargo bench -p tombolo-proto --bench session`. The cloud's side of an update: offer, lookup, encoding the delivery,
//! decoding the acknowledgement, its event. Both sides: that plus decoding, handing out and acknowledging at the edge.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use tombolo_proto::frame::Frame;
use tombolo_proto::inventory::content_hash;
use tombolo_proto::session::{
    CloudConfig, CloudSession, EdgeConfig, EdgeEvent, EdgeSession, EdgeView, Lookup, NodeView,
};
use tombolo_proto::{
    CloudRevision, Epoch, InventoryEntry, Lane, Moment, NodeId, ObjectKey, ObjectVersion, Resource, Seq,
    SharedObject, StoreId, SubscriptionId, Uid, codec,
};

const KEYS: usize = 20;
const NOW: Moment = Moment { micros: 0 };

/// Twenty objects of 1 KiB that one node needs.
struct View {
    keys: Vec<ObjectKey>,
    objects: HashMap<ObjectKey, Arc<SharedObject>>,
    revision: u64,
}

impl View {
    fn new() -> Self {
        let name = |n: usize| {
            ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", &format!("settings-{n}"))
        };
        let keys: Vec<_> = (0..KEYS).map(name).collect();
        let mut view = Self { keys: keys.clone(), objects: HashMap::new(), revision: 0 };
        keys.iter().for_each(|key| view.update(key));
        view
    }

    fn update(&mut self, key: &ObjectKey) {
        self.revision += 1;
        let head = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","data":{{"revision":"{:010}","text":""#,
            self.revision
        );
        let body = format!("{head}{}\"}}}}", "x".repeat(1024 - head.len() - 3));
        let version = ObjectVersion {
            uid: Uid::parse("8a7b61a4-5d3c-4c44-9a07-0d9c8d0f4c11").expect("a UID"),
            revision: CloudRevision(self.revision),
            hash: content_hash(body.as_bytes()),
        };
        assert_eq!(body.len(), 1024);
        let object = SharedObject::new(key.clone(), version, body.into(), Vec::new());
        self.objects.insert(key.clone(), Arc::new(object));
    }
}

impl NodeView for View {
    fn wanted(&self, _: SubscriptionId) -> Vec<ObjectKey> {
        self.keys.clone()
    }

    fn lookup(&self, _: SubscriptionId, key: &ObjectKey) -> Lookup {
        self.objects.get(key).map_or(Lookup::Unwanted(None), |object| Lookup::Present(object.clone()))
    }

    fn revision(&self, _: SubscriptionId) -> CloudRevision {
        CloudRevision(self.revision)
    }
}

struct Empty;

impl EdgeView for Empty {
    fn inventory(&self, _: SubscriptionId) -> Vec<InventoryEntry> {
        Vec::new()
    }
}

/// Both ends of a connection whose edge holds everything.
struct Pair {
    cloud: CloudSession,
    edge: EdgeSession,
}

impl Pair {
    fn synced(view: &View) -> Self {
        let node = NodeId::parse("edge-1").expect("a name");
        let cluster = Uid::parse("5f1d0a9c-0000-4000-8000-000000000001").expect("a UID");
        let config = CloudConfig::new(node.clone(), Epoch { cluster, generation: 1 }, 1, 0);
        let cloud = CloudSession::new(config, NOW);
        let edge = EdgeSession::new(EdgeConfig::new(node, StoreId([1; 16])), NOW, &Empty);
        let mut pair = Self { cloud, edge };
        while pair.exchange(view) {}
        assert_eq!(pair.cloud.stats().held, KEYS);
        pair
    }

    fn exchange(&mut self, view: &View) -> bool {
        let mut moved = false;
        for lane in Lane::ALL {
            while let Some(frame) = self.edge.poll_transmit(NOW, lane) {
                self.cloud.handle_frame(NOW, lane, recode(&frame), view).expect("a correct edge");
                moved = true;
            }
            while let Some(frame) = self.cloud.poll_transmit(NOW, lane, view) {
                self.edge.handle_frame(NOW, lane, recode(&frame), &Empty).expect("a correct cloud");
                moved = true;
            }
        }
        self.store();
        while self.cloud.poll_event().is_some() {}
        moved
    }

    /// Commits what was handed out, at once.
    fn store(&mut self) {
        while let Some(event) = self.edge.poll_event() {
            if let EdgeEvent::Deliver { lane, seq, .. } = event {
                self.edge.committed(lane, seq);
            }
        }
    }
}

fn recode(frame: &Frame) -> Frame {
    codec::decode(codec::encode(frame, true)).expect("own frames")
}

/// Times `run` for each of `count` updates; making the new version is not part of it.
fn updates(count: u64, view: &mut View, mut run: impl FnMut(&View, &ObjectKey)) -> Duration {
    let mut total = Duration::ZERO;
    let mut left = usize::try_from(count).expect("a 64-bit machine");
    while left > 0 {
        let keys: Vec<_> = view.keys.iter().take(left).cloned().collect();
        keys.iter().for_each(|key| view.update(key));
        let start = Instant::now();
        keys.iter().for_each(|key| run(view, key));
        total += start.elapsed();
        left -= keys.len();
    }
    total
}

fn bench(criterion: &mut Criterion) {
    let mut view = View::new();
    let mut pair = Pair::synced(&view);
    criterion.bench_function("update of 1 KiB and its ack, both sides", |bencher| {
        bencher.iter_custom(|count| {
            updates(count, &mut view, |view, key| {
                pair.cloud.offer(SubscriptionId::NODE, key.clone(), view);
                while pair.exchange(view) {}
            })
        });
    });
    let mut cloud = Pair::synced(&view).cloud;
    let mut seq = cloud.stats().delivered;
    criterion.bench_function("update of 1 KiB and its ack, cloud side", |bencher| {
        bencher.iter_custom(|count| {
            updates(count, &mut view, |view, key| {
                cloud.offer(SubscriptionId::NODE, key.clone(), view);
                let frame = cloud.poll_transmit(NOW, Lane::Delivery, view).expect("a new version");
                black_box(codec::encode(&frame, true));
                seq += 1;
                let ack = codec::encode(&Frame::Ack { lanes: vec![(Lane::Delivery, Seq(seq))] }, true);
                let ack = codec::decode(ack).expect("own frames");
                cloud.handle_frame(NOW, Lane::Control, ack, view).expect("a correct edge");
                while let Some(event) = cloud.poll_event() {
                    black_box(event);
                }
                black_box(cloud.next_timeout());
            })
        });
    });
    memory();
}

/// Resident memory of idle cloud sessions with twenty held objects each, all of one shared view.
fn memory() {
    const SESSIONS: usize = 10_000;
    let view = View::new();
    let before = resident();
    let mut sessions = Vec::with_capacity(SESSIONS);
    for _ in 0..SESSIONS {
        sessions.push(Pair::synced(&view).cloud);
    }
    let per_session = (resident() - before) / SESSIONS;
    println!("idle CloudSession, {KEYS} held objects: {per_session} bytes each, of {SESSIONS} sessions");
    println!("of these, size_of::<CloudSession>() = {} bytes", size_of::<CloudSession>());
    black_box(sessions);
}

/// Resident set of this process in bytes; 0 where there is no /proc.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<usize>().ok());
    kilobytes.unwrap_or(0) * 1024
}

criterion_group!(benches, bench);
criterion_main!(benches);
