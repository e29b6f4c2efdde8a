//! Real sessions over real links.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::sleep_until;
use tombolo_link::{Clock, Link, LinkEvent, mem, pump};
use tombolo_proto::frame::Change;
use tombolo_proto::inventory::content_hash;
use tombolo_proto::session::*;
use tombolo_proto::*;

use crate::world::{BOTH, pair, soon};

const OBJECTS: u64 = 1000;

/// Objects of very different sizes, some above the threshold of the bulk lane.
struct Catalogue(BTreeMap<ObjectKey, Arc<SharedObject>>);

impl Catalogue {
    fn new() -> Self {
        let object = |number: u64| {
            let key =
                ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", &format!("object-{number}"));
            let len = if number.is_multiple_of(100) { 200_000 } else { 100 + (number as usize * 37) % 3000 };
            let body = format!("{{\"data\":\"{}\"}}", "abcdefgh".repeat(len / 8)).into_bytes();
            let uid = Uid::parse(&format!("uid-{number}")).unwrap();
            let version =
                ObjectVersion { uid, revision: CloudRevision(number + 1), hash: content_hash(&body) };
            (key.clone(), Arc::new(SharedObject::new(key, version, body.into(), Vec::new())))
        };
        Self((0..OBJECTS).map(object).collect())
    }
}

impl NodeView for Catalogue {
    fn wanted(&self, _: SubscriptionId) -> Vec<ObjectKey> {
        self.0.keys().cloned().collect()
    }

    fn lookup(&self, _: SubscriptionId, key: &ObjectKey) -> Lookup {
        self.0.get(key).map_or(Lookup::Absent, |object| Lookup::Present(object.clone()))
    }

    fn revision(&self, _: SubscriptionId) -> CloudRevision {
        CloudRevision(OBJECTS)
    }
}

struct Nothing;

impl EdgeView for Nothing {
    fn inventory(&self, _: SubscriptionId) -> Vec<InventoryEntry> {
        Vec::new()
    }
}

fn node() -> NodeId {
    NodeId::parse("edge-1").unwrap()
}

/// Drives the cloud's side until everything has been acknowledged.
async fn cloud(mut link: Link, catalogue: &Catalogue) -> CloudStats {
    let clock = Clock::start();
    let epoch = Epoch { cluster: Uid::parse("cluster").unwrap(), generation: 1 };
    let mut session = CloudSession::new(CloudConfig::new(node(), epoch, 1, 0), clock.now());
    loop {
        pump(&mut link, |lane| session.poll_transmit(clock.now(), lane, catalogue)).unwrap();
        while let Some(event) = session.poll_event() {
            assert!(!matches!(event, CloudEvent::Closed(_) | CloudEvent::Refused { .. }), "{event:?}");
        }
        if session.stats().acked == OBJECTS {
            link.close(std::time::Duration::from_secs(5)).await;
            return session.stats();
        }
        let timeout = session.next_timeout().map(|at| clock.instant(at));
        tokio::select! {
            event = link.next() => match event {
                LinkEvent::Frame(lane, frame) => {
                    session.handle_frame(clock.now(), lane, frame, catalogue).unwrap();
                }
                LinkEvent::Writable => {}
                LinkEvent::Closed(error) => panic!("cloud: {error}"),
            },
            () = sleep_until(timeout.unwrap()), if timeout.is_some() => session.handle_timeout(clock.now()),
        }
    }
}

/// Drives the edge's side until the cloud closes; returns the stored objects.
async fn edge(mut link: Link) -> BTreeMap<ObjectKey, Arc<SharedObject>> {
    let clock = Clock::start();
    let mut session = EdgeSession::new(EdgeConfig::new(node(), StoreId([1; 16])), clock.now(), &Nothing);
    let mut store = BTreeMap::new();
    loop {
        while let Some(event) = session.poll_event() {
            if let EdgeEvent::Deliver { lane, seq, change: Change::Upsert(object), .. } = event {
                store.insert(object.key.clone(), object);
                session.committed(lane, seq);
            }
        }
        pump(&mut link, |lane| session.poll_transmit(clock.now(), lane)).unwrap();
        let timeout = session.next_timeout().map(|at| clock.instant(at));
        tokio::select! {
            event = link.next() => match event {
                LinkEvent::Frame(lane, frame) => session.handle_frame(clock.now(), lane, frame, &Nothing).unwrap(),
                LinkEvent::Writable => {}
                LinkEvent::Closed(_) => return store,
            },
            () = sleep_until(timeout.unwrap()), if timeout.is_some() => session.handle_timeout(clock.now()),
        }
    }
}

async fn deliver_all(cloud_link: Link, edge_link: Link) {
    let catalogue = Catalogue::new();
    let (stats, store) = tokio::join!(cloud(cloud_link, &catalogue), edge(edge_link));
    assert_eq!(stats.delivered, OBJECTS, "each object is sent once");
    assert_eq!(store.len(), catalogue.0.len());
    for (key, object) in &catalogue.0 {
        let stored = &store[key];
        assert_eq!((&stored.version, &stored.body), (&object.version, &object.body), "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_objects_in_memory() {
    let (cloud, edge, faults) = mem::pair(node());
    for lane in Lane::ALL {
        faults.set_delay(mem::Way::Down, lane, std::time::Duration::from_millis(40));
        faults.set_delay(mem::Way::Up, lane, std::time::Duration::from_millis(40));
    }
    deliver_all(cloud, edge).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_objects_over_sockets() {
    for choice in BOTH {
        let pair = pair(choice).await;
        soon("all objects", deliver_all(pair.cloud, pair.edge)).await;
    }
}
