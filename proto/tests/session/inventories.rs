//! A reconnect sends exactly the difference.

use std::time::Duration;

use tombolo_proto::frame::{Change, Frame, Inventory, InventoryPart};
use tombolo_proto::limits::{HELLO_INVENTORY_MAX, INVENTORY_MAX, INVENTORY_PART_MAX};
use tombolo_proto::session::{CloudEvent, EdgeEvent, EdgeView, summarise};
use tombolo_proto::{HeldState, InventoryEntry, Lane, StoreId, SubscriptionId};

use super::harness::cloud::key;
use super::harness::oracle::Coverage;
use super::harness::solo::Solo;
use super::harness::world::{Settings, World};

/// A world whose edge holds `objects` objects and is caught up.
fn synced(objects: usize) -> World {
    let mut world = World::new(Settings::default());
    for number in 0..objects {
        world.cloud.put(&key(0, number), 16);
        world.cloud.want(0, &key(0, number), true);
    }
    world.assume_synced();
    world.keep_events = true;
    world.keep_trace = true;
    world
}

/// Cuts the connection, lets the cloud change, reconnects and converges. Returns what reached the disk: upserts,
/// adoptions, deletions.
fn reconnect(world: &mut World, change: impl FnOnce(&mut World)) -> (u64, u64, u64) {
    world.cut();
    change(world);
    world.connect();
    world.heal();
    let Coverage { upserts, adoptions, deletions, .. } = world.oracle.coverage;
    (upserts, adoptions, deletions)
}

fn count(world: &World, wanted: impl Fn(&Frame) -> bool) -> usize {
    world.trace.iter().filter(|(_, _, frame)| wanted(frame)).count()
}

#[test]
fn unchanged_reconnect_costs_only_hello_and_welcome() {
    for objects in [0, 5, HELLO_INVENTORY_MAX, HELLO_INVENTORY_MAX + 1] {
        let mut world = synced(objects);
        assert_eq!(reconnect(&mut world, |_| {}), (0, 0, 0), "{objects} objects");
        assert_eq!(world.trace.len(), 3, "hello, welcome, caught up: {:?}", world.trace);
        assert!(matches!(world.edge_events[0], EdgeEvent::Welcomed { resumed: true, .. }));
        let digested = count(
            &world,
            |frame| matches!(frame, Frame::Hello(hello) if matches!(hello.inventory, Inventory::Digest { .. })),
        );
        assert_eq!(digested, usize::from(objects > HELLO_INVENTORY_MAX));
    }
}

#[test]
fn only_the_difference_is_sent_below_and_above_the_hello_limit() {
    for objects in [8, HELLO_INVENTORY_MAX, HELLO_INVENTORY_MAX + 100] {
        let mut world = synced(objects);
        let sent = reconnect(&mut world, |world| {
            world.cloud.put(&key(0, 1), 16);
            world.cloud.remove(&key(0, 2));
            world.cloud.put(&key(0, 2), 16);
            world.cloud.want(0, &key(0, 3), false);
            world.cloud.put(&key(0, objects), 16);
            world.cloud.want(0, &key(0, objects), true);
            world.cloud.remove(&key(0, 4));
        });
        assert_eq!(sent, (3, 0, 1), "updated, re-created, new; not wanted: {objects} objects");
        assert_eq!(world.oracle.coverage.absences, 1, "wanted and deleted");
        let requests = count(&world, |frame| matches!(frame, Frame::InventoryRequest { .. }));
        assert_eq!(requests, usize::from(objects > HELLO_INVENTORY_MAX), "{objects} objects");
    }
}

#[test]
fn a_large_inventory_comes_in_parts() {
    let objects = 2 * INVENTORY_PART_MAX + 1;
    let mut world = synced(objects);
    let sent = reconnect(&mut world, |world| world.cloud.put(&key(0, 0), 16));
    assert_eq!(sent, (1, 0, 0));
    assert_eq!(count(&world, |frame| matches!(frame, Frame::InventoryPart(_))), 3);
}

#[test]
fn after_a_restore_equal_content_is_adopted_and_only_differences_are_sent() {
    for objects in [5, HELLO_INVENTORY_MAX + 10] {
        let mut world = World::new(Settings::default());
        for number in 0..objects {
            world.cloud.put(&key(0, number), 16);
            world.cloud.want(0, &key(0, number), true);
        }
        world.cloud.snapshot = world.cloud.truth.clone();
        // After the backup: one object changes its content, one only its revision, and one is added.
        world.cloud.put(&key(0, 0), 16);
        world.cloud.touch(&key(0, 1));
        world.cloud.put(&key(0, objects), 16);
        world.cloud.want(0, &key(0, objects), true);
        world.heal();
        world.oracle.coverage = Coverage::default();
        world.keep_events = true;
        let sent = reconnect(&mut world, |world| world.cloud.restore());
        assert_eq!(sent, (1, 1, 1), "older content, older revision, deleted: {objects} objects");
        assert!(matches!(world.edge_events[0], EdgeEvent::Welcomed { resumed: false, .. }));
        // The revisions are correct: within the new epoch, the next reconnect finds no difference.
        world.oracle.coverage = Coverage::default();
        assert_eq!(reconnect(&mut world, |_| {}), (0, 0, 0));
    }
}

/// Revisions are equal then, and so is the digest: a match must not be accepted.
#[test]
fn changed_trimming_rules_resend_only_affected_objects() {
    for objects in [4, HELLO_INVENTORY_MAX + 1] {
        let mut world = synced(objects);
        let sent = reconnect(&mut world, |world| world.cloud.change_rules());
        assert_eq!(sent, (objects as u64, 0, 0), "the rules are part of the body here");
        assert_eq!(world.store.trim_version, 2);
        world.oracle.coverage = Coverage::default();
        assert_eq!(reconnect(&mut world, |_| {}), (0, 0, 0));
    }
}

#[test]
fn a_revision_without_new_content_is_adopted_in_a_running_session_too() {
    let mut world = synced(2);
    world.heal();
    world.cloud.touch(&key(0, 0));
    world.offer_changes();
    world.heal();
    assert_eq!((world.oracle.coverage.upserts, world.oracle.coverage.adoptions), (0, 1));
}

#[test]
fn refused_adoption_is_followed_by_the_whole_object() {
    let mut world = synced(2);
    world.heal();
    world.refuse_next = 1;
    world.cloud.touch(&key(0, 0));
    world.offer_changes();
    world.run_for(Duration::from_secs(1));
    world.heal();
    assert_eq!((world.oracle.coverage.upserts, world.oracle.coverage.adoptions), (1, 0));
}

#[test]
fn a_refused_object_does_not_keep_a_subscription_from_being_caught_up() {
    let mut world = World::new(Settings::default());
    world.keep_events = true;
    world.cloud.put(&key(0, 0), 16);
    world.cloud.want(0, &key(0, 0), true);
    world.refuse_next = usize::MAX;
    world.connect();
    world.run_for(Duration::from_secs(1));
    assert!(world.edge_events.iter().any(|event| matches!(event, EdgeEvent::CaughtUp { .. })));
    world.heal();
}

#[test]
fn refused_object_delays_caught_up_between_epochs() {
    let mut world = synced(1);
    world.cut();
    world.cloud.snapshot = world.cloud.truth.clone();
    world.cloud.restore();
    world.cloud.put(&key(0, 0), 16);
    world.refuse_next = usize::MAX;
    world.connect();
    world.run_for(Duration::from_secs(10));
    assert!(!world.edge_events.iter().any(|event| matches!(event, EdgeEvent::CaughtUp { .. })));
    assert_eq!(world.store.areas[0].epoch, None, "the store follows no epoch and reports that");
    world.heal();
    assert!(world.edge_events.iter().any(|event| matches!(event, EdgeEvent::CaughtUp { .. })));
}

/// The object that the edge holds and the view does not want: a pod, which is needed only by itself.
const HELD: usize = 2;

/// A session with an edge that holds one object in this revision. A view that asks the API server does not want it, and
/// has seen revision 10.
fn lagging(held: u64, configure: impl FnOnce(&mut Solo)) -> Solo {
    let mut solo = Solo::new(HELD + 1);
    solo.view.asks = true;
    solo.view.want(0, &key(0, HELD), false);
    while solo.view.truth.revision < 10 {
        solo.view.touch(&key(0, 0));
    }
    let mut ahead = solo.view.truth.objects[&key(0, HELD)].clone();
    configure(&mut solo);
    solo.view.take_offers();
    let mut hello = solo.hello();
    ahead.revision = held;
    let held = HeldState::Present(ahead.shared(&key(0, HELD), 1).version.clone());
    hello.inventory = Inventory::Full(vec![InventoryEntry { key: key(0, HELD), held }]);
    solo.feed(Lane::Control, Frame::Hello(hello)).expect("a good hello");
    solo
}

fn deletes(frames: &[Frame]) -> usize {
    count_of(frames, |change| matches!(change, Change::Delete { .. }))
}

fn count_of(frames: &[Frame], kind: impl Fn(&Change) -> bool) -> usize {
    frames.iter().filter(|frame| matches!(frame, Frame::Deliver(deliver) if kind(&deliver.change))).count()
}

/// The watches of a replica are independent: the position of one says nothing about another.
#[test]
fn unknown_object_is_deleted_only_after_the_api_server_confirms() {
    for held in [9, 11] {
        let mut solo = lagging(held, |_| {});
        assert_eq!(deletes(&solo.sent(Lane::Delivery)), 0);
        solo.ack(Lane::Delivery, 2);
        assert!(
            solo.events().contains(&CloudEvent::CaughtUp { subscription: SubscriptionId::NODE }),
            "the subscription must be caught up"
        );
        assert_eq!(solo.view.doubts.borrow_mut().pop_first(), Some(key(0, HELD)));
        solo.wait(Duration::from_secs(9));
        assert_eq!(deletes(&solo.sent(Lane::Delivery)), 0, "waiting does not confirm it");
        solo.session.offer(SubscriptionId::NODE, key(0, HELD), &solo.view);
        assert_eq!(deletes(&solo.sent(Lane::Delivery)), 0, "an offer does not confirm it");
        solo.view.certain.insert(key(0, HELD));
        solo.session.offer(SubscriptionId::NODE, key(0, HELD), &solo.view);
        assert_eq!(deletes(&solo.sent(Lane::Delivery)), 1);
    }
}

#[test]
fn object_that_a_replica_learns_of_late_is_never_removed() {
    let mut solo = lagging(11, |_| {});
    solo.sent(Lane::Delivery);
    solo.ack(Lane::Delivery, 2);
    solo.change(|view| {
        view.want(0, &key(0, HELD), true);
        view.touch(&key(0, HELD));
    });
    assert!(solo.sent(Lane::Delivery).is_empty(), "the edge holds it");
    // From here on the view knows what the edge holds, and needs no confirmation for what its watch shows.
    solo.view.doubts.borrow_mut().clear();
    solo.change(|view| view.want(0, &key(0, HELD), false));
    assert_eq!(deletes(&solo.sent(Lane::Delivery)), 1);
    assert!(solo.view.doubts.borrow().is_empty());
}

/// The same for an object that is wanted and that the view considers absent.
#[test]
fn absence_that_contradicts_the_edge_is_confirmed_first() {
    let mut solo = lagging(9, |solo| {
        solo.view.want(0, &key(0, HELD), true);
        solo.view.remove(&key(0, HELD));
    });
    let absences = |frames: &[Frame]| count_of(frames, |change| matches!(change, Change::Absent { .. }));
    assert_eq!(absences(&solo.sent(Lane::Delivery)), 0);
    solo.ack(Lane::Delivery, 2);
    solo.view.certain.insert(key(0, HELD));
    solo.session.offer(SubscriptionId::NODE, key(0, HELD), &solo.view);
    assert_eq!(absences(&solo.sent(Lane::Delivery)), 1);
}

/// A ConfigMap's own watch is ahead, and the view has not seen the pod yet that refers to it now: only the need of an
/// older pod has ended.
#[test]
fn end_of_a_need_is_confirmed_even_if_a_newer_object_was_seen() {
    // Held since an earlier session, or first delivered in this one.
    for held in [true, false] {
        let mut solo = Solo::new(1);
        solo.view.asks = true;
        let mut hello = solo.hello();
        if held {
            let version = solo.view.truth.objects[&key(0, 0)].shared(&key(0, 0), 1).version.clone();
            let entry = InventoryEntry { key: key(0, 0), held: HeldState::Present(version) };
            hello.inventory = Inventory::Full(vec![entry]);
        }
        solo.view.put(&key(0, 0), 16);
        solo.view.take_offers();
        solo.feed(Lane::Control, Frame::Hello(hello)).expect("a good hello");
        assert_eq!(count_of(&solo.sent(Lane::Delivery), |change| matches!(change, Change::Upsert(_))), 1);
        solo.ack(Lane::Delivery, 1);
        solo.change(|view| view.want(0, &key(0, 0), false));
        assert_eq!(deletes(&solo.sent(Lane::Delivery)), 0);
        assert!(solo.view.doubts.borrow().contains(&key(0, 0)), "the view must ask the API server");
        solo.view.answer_doubts();
        solo.change(|_| {});
        assert_eq!(deletes(&solo.sent(Lane::Delivery)), 1);
    }
}

/// Such a replica may show an older incarnation, which ends before the replica has seen the newer one.
#[test]
fn late_deletion_of_an_older_version_keeps_the_newer_one() {
    let mut solo = lagging(20, |solo| solo.view.want(0, &key(0, HELD), true));
    assert_eq!(solo.sent(Lane::Delivery).len(), HELD, "the edge holds a newer version of this object");
    solo.ack(Lane::Delivery, 2);
    solo.change(|view| view.want(0, &key(0, HELD), false));
    assert_eq!(deletes(&solo.sent(Lane::Delivery)), 0);
    assert!(solo.view.doubts.borrow().contains(&key(0, HELD)), "the view must ask the API server");
}

#[test]
fn lagging_replica_sends_no_older_version() {
    let mut solo = Solo::new(1);
    let mut hello = solo.hello();
    let mut ahead = solo.view.truth.objects[&key(0, 0)].clone();
    ahead.revision += 5;
    ahead.content += 1;
    let held = HeldState::Present(ahead.shared(&key(0, 0), 1).version.clone());
    hello.inventory = Inventory::Full(vec![InventoryEntry { key: key(0, 0), held }]);
    solo.feed(Lane::Control, Frame::Hello(hello)).expect("a good hello");
    assert!(solo.sent(Lane::Delivery).is_empty());
    assert!(solo.events().contains(&CloudEvent::CaughtUp { subscription: SubscriptionId::NODE }));
}

fn absent(number: usize) -> InventoryEntry {
    InventoryEntry { key: key(0, number), held: HeldState::Absent }
}

/// A session that waits for an inventory, because the digest differs.
fn collecting() -> Solo {
    let mut solo = Solo::new(1);
    let mut hello = solo.hello();
    hello.inventory = Inventory::Digest { count: 513, digest: [1; 16] };
    solo.feed(Lane::Control, Frame::Hello(hello)).expect("a good hello");
    assert!(matches!(&solo.sent(Lane::Control)[..], [Frame::Welcome(_), Frame::InventoryRequest { .. }]));
    assert!(solo.sent(Lane::Delivery).is_empty(), "nothing is delivered before the comparison");
    solo
}

fn part(entries: Vec<InventoryEntry>, last: bool) -> Frame {
    Frame::InventoryPart(InventoryPart { subscription: SubscriptionId::NODE, entries, last })
}

#[test]
fn inventories_that_break_the_rules_are_refused_with_a_reason() {
    let too_long = (0..=INVENTORY_PART_MAX).map(absent).collect();
    for (frame, text) in [
        (part(vec![absent(3), absent(3)], true), "lists v1/nodes/area0/object3 twice"),
        (part(too_long, false), "2049 entries is more than the 2048"),
        (part(Vec::new(), false), "empty, but not the last"),
    ] {
        let error = collecting().feed(Lane::Bulk, frame).expect_err(text);
        assert!(error.to_string().contains(text), "{error}");
    }
    let mut solo = Solo::new(0);
    let mut hello = solo.hello();
    hello.inventory = Inventory::Full((0..=HELLO_INVENTORY_MAX).map(absent).collect());
    let error = solo.feed(Lane::Control, Frame::Hello(hello)).expect_err("too long for a hello");
    assert!(error.to_string().contains("513 entries was sent in full"), "{error}");
    let mut solo = Solo::new(0);
    let mut hello = solo.hello();
    hello.inventory = Inventory::Digest { count: INVENTORY_MAX as u64 + 1, digest: [0; 16] };
    let error = solo.feed(Lane::Control, Frame::Hello(hello)).expect_err("too many entries");
    assert!(error.to_string().contains("1000001 entries is more than the 1000000"), "{error}");
}

#[test]
fn missing_inventory_ends_the_session() {
    let mut solo = collecting();
    solo.wait(Duration::from_secs(9));
    solo.feed(Lane::Bulk, part(vec![absent(7)], false)).expect("progress");
    solo.wait(Duration::from_secs(9));
    // The ping that measures a new session.
    assert!(matches!(&solo.sent(Lane::Control)[..], [Frame::Ping { .. }]), "a part is progress");
    solo.wait(Duration::from_secs(1));
    let goodbye = solo.sent(Lane::Control);
    assert!(
        matches!(&goodbye[..], [Frame::Goodbye(bye)] if bye.message.contains("inventory of subscription 0")),
        "{goodbye:?}"
    );
}

#[test]
fn offers_before_the_comparison_are_not_lost() {
    let mut solo = collecting();
    solo.change(|view| view.put(&key(0, 0), 16));
    let newest = solo.view.truth.revision;
    solo.feed(Lane::Bulk, part(Vec::new(), true)).expect("an empty inventory");
    let sent = solo.sent(Lane::Delivery);
    assert!(
        matches!(&sent[..], [Frame::Deliver(d)] if matches!(&d.change, Change::Upsert(o) if o.version.revision.0 == newest)),
        "{sent:?}"
    );
}

/// A digest belongs to one store: a digest of another store, or of an agent that computes digests differently, requires
/// the list.
#[test]
fn digest_is_valid_only_for_the_store_of_the_hello() {
    let (mut world, mut asked) = (synced(HELLO_INVENTORY_MAX + 1), Vec::new());
    world.heal();
    let entries = world.store.inventory(SubscriptionId::NODE);
    for store in [StoreId([7; 16]), StoreId([8; 16])] {
        let mut solo = Solo::new(HELLO_INVENTORY_MAX + 1);
        let mut hello = solo.hello();
        hello.inventory = summarise(store, entries.clone());
        solo.feed(Lane::Control, Frame::Hello(hello)).expect("a good hello");
        asked.push(
            solo.sent(Lane::Control).iter().any(|frame| matches!(frame, Frame::InventoryRequest { .. })),
        );
    }
    assert_eq!(asked, [false, true]);
}
