//! Edges that hold more than a hub keeps of one inventory can still reconnect.

use std::time::Duration;

use tombolo_proto::frame::{Frame, Inventory, InventoryPart};
use tombolo_proto::limits::{INVENTORY_BYTES_MAX, INVENTORY_PART_MAX, INVENTORY_ROUNDS_MAX};
use tombolo_proto::session::EdgeEvent;
use tombolo_proto::{HeldState, InventoryEntry, Lane, ObjectKey, Resource, SubscriptionId};

use super::harness::cloud::key;
use super::harness::edge::Row;
use super::harness::solo::Solo;
use super::harness::world::{Settings, World};

/// A ConfigMap to which some pod has referred, and which never existed.
fn absent(number: usize, len: usize) -> ObjectKey {
    let name = format!("{number:x>len$}");
    ObjectKey::new(Resource::new("", "v1", "configmaps"), "area0", &name)
}

/// A world whose edge holds everything that it should, and many rows of objects that never existed, some of which the
/// cloud still wants.
fn overfull(rows: usize, len: usize, wanted: usize) -> World {
    let mut world = World::new(Settings::default());
    for number in 0..8 {
        world.cloud.put(&key(0, number), 16);
        world.cloud.want(0, &key(0, number), true);
    }
    for number in 0..wanted {
        world.cloud.want(0, &absent(number, len), true);
    }
    world.assume_synced();
    world.store.areas[0].rows.extend((0..rows).map(|number| (absent(number, len), Row::Absent)));
    // This makes the digest differ.
    world.cloud.put(&key(0, 0), 16);
    world.keep_events = true;
    world.keep_trace = true;
    world
}

/// Lets the node reconnect, in one session, and returns how often its inventory was requested.
fn come_back(world: &mut World) -> usize {
    world.connect();
    world.heal();
    let connections = world.oracle.coverage.connections;
    assert_eq!(connections, 1, "the edge is never disconnected");
    let caught_up = |event: &EdgeEvent| matches!(event, EdgeEvent::CaughtUp { .. });
    assert!(world.edge_events.iter().any(caught_up), "and catches up");
    let asked = |frame: &Frame| matches!(frame, Frame::InventoryRequest { .. });
    world.trace.iter().filter(|(_, _, frame)| asked(frame)).count()
}

/// Four pods with 4,096 references each leave this many rows behind.
#[test]
fn node_with_an_oversized_inventory_reconnects() {
    let mut world = overfull(16_384, 40, 0);
    assert!(come_back(&mut world) > 1, "piece by piece");
    assert_eq!(world.store.areas[0].rows.len(), 8);
    // Also when all of it is still wanted, which is not a claim of the edge.
    let mut world = overfull(16_384, 40, 16_384);
    assert_eq!(come_back(&mut world), 1);
    // And between two epochs, where digests are ignored.
    let mut world = overfull(12_500, 253, 3);
    world.cloud.snapshot = world.cloud.truth.clone();
    world.cloud.restore();
    assert!(come_back(&mut world) > 1);
    assert_eq!(world.store.areas[0].rows.len(), 11);
}

/// While the rest is pending, keys that were left out may become wanted, and deleted objects may be deleted again.
#[test]
fn objects_left_out_of_an_inventory_converge_despite_changes() {
    let mut world = overfull(16_384, 40, 0);
    world.connect();
    for round in 0..60 {
        world.run_for(Duration::from_millis(40));
        for step in 0..40 {
            // The cloud does not know what the edge holds of a key that was left out, so it might report an absence
            // twice.
            let key = absent((round * 40 + step) * 7 % 16_384, 40);
            world.cloud.put(&key, 16);
            world.cloud.want(0, &key, (round + step) % 3 != 0);
            let other = absent((round * 40 + step) * 3 % 16_384, 40);
            world.cloud.put(&other, 16);
            world.cloud.want(0, &other, step % 2 == 0);
        }
        world.offer_changes();
    }
    world.heal();
    assert_eq!(world.oracle.coverage.connections, 1);
}

/// The memory for an edge's claims is bounded, whatever it claims and however often it is asked.
#[test]
fn endless_inventory_ends_the_session() {
    let mut solo = Solo::new(3);
    let mut hello = solo.hello();
    hello.inventory = Inventory::Digest { count: 600_000, digest: [1; 16] };
    solo.feed(Lane::Control, Frame::Hello(hello)).expect("a good hello");
    let (mut made_up, mut asked, mut acked) = (0, 0, 0);
    let end = loop {
        let requests = solo.sent(Lane::Control);
        if let Some(goodbye) = requests.iter().find(|frame| matches!(frame, Frame::Goodbye(_))) {
            break format!("{goodbye:?}");
        }
        if requests.iter().any(|frame| matches!(frame, Frame::InventoryRequest { .. })) {
            asked += 1;
            for part in 0..8 {
                let entries = (0..INVENTORY_PART_MAX).map(|number| InventoryEntry {
                    key: absent(made_up + part * INVENTORY_PART_MAX + number, 40),
                    held: HeldState::Absent,
                });
                let entries = entries.collect();
                let part = InventoryPart { subscription: SubscriptionId::NODE, entries, last: part == 7 };
                solo.feed(Lane::Bulk, Frame::InventoryPart(part)).expect("a good part");
                let memory = solo.session.memory();
                assert!(memory <= INVENTORY_BYTES_MAX + 64 * 1024, "{memory} bytes");
            }
            made_up += 8 * INVENTORY_PART_MAX;
        }
        let sent = solo.sent(Lane::Delivery).len();
        acked += u64::try_from(sent).expect("few");
        let lanes = vec![(Lane::Delivery, tombolo_proto::Seq(acked))];
        let _ = solo.feed(Lane::Control, Frame::Ack { lanes });
    };
    assert!(end.contains("Overloaded"), "{end}");
    assert_eq!(asked, 1 + usize::try_from(INVENTORY_ROUNDS_MAX).expect("small"));
}
