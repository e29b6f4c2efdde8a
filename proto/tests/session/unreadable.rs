//! Objects that the node needs and that the API does not let cloudcore read.

use std::time::Duration;

use tombolo_proto::frame::{Change, Frame, Hello, Inventory, Subscribe, features};
use tombolo_proto::limits::HELLO_INVENTORY_MAX;
use tombolo_proto::session::{CloudEvent, Lookup, NodeView, summarise};
use tombolo_proto::{CloudRevision, HeldState, InventoryEntry, Lane, ObjectVersion, SubscriptionId};

use super::harness::cloud::{Cloud, key};
use super::harness::edge::Row;
use super::harness::solo::Solo;
use super::harness::world::{Settings, World, subscribe_to};

const CAUGHT_UP: CloudEvent = CloudEvent::CaughtUp { subscription: SubscriptionId::NODE };

/// The frames of the delivery lane, one word for each change.
fn said(solo: &mut Solo) -> Vec<String> {
    let word = |frame: Frame| match frame {
        Frame::Deliver(deliver) => {
            let name = deliver.change.key().name().to_owned();
            let what = match deliver.change {
                Change::Upsert(_) => "upsert",
                Change::Delete { .. } => "delete",
                Change::Absent { .. } => "absent",
                Change::Unreadable { .. } => "unreadable",
                Change::Adopt { .. } => "adopt",
            };
            format!("{what} {name}")
        }
        other => panic!("a delivery expected, not {other:?}"),
    };
    solo.sent(Lane::Delivery).into_iter().map(word).collect()
}

/// A session whose edge holds nothing and needs two objects, of which the second cannot be read.
fn half_readable() -> Solo {
    let mut solo = Solo::new(2);
    solo.view.set_readable(&key(0, 1), false);
    solo.view.take_offers();
    solo
}

#[test]
fn unreadable_object_is_reported_once_and_delays_nothing() {
    let mut solo = half_readable().greeted();
    assert_eq!(said(&mut solo), ["upsert object0", "unreadable object1"]);
    solo.ack(Lane::Delivery, 1);
    assert!(!solo.events().contains(&CAUGHT_UP), "the outcome is not on the edge's disk yet");
    solo.ack(Lane::Delivery, 2);
    assert!(solo.events().contains(&CAUGHT_UP));
    // Another code, or another pod that refers to it, is not new for the edge.
    solo.session.offer(SubscriptionId::NODE, key(0, 1), &solo.view);
    assert!(said(&mut solo).is_empty());
    solo.change(|view| view.set_readable(&key(0, 1), true));
    assert_eq!(said(&mut solo), ["upsert object1"]);
    solo.ack(Lane::Delivery, 3);
    solo.change(|view| view.set_readable(&key(0, 1), false));
    assert!(said(&mut solo).is_empty(), "the edge keeps its object");
}

#[test]
fn unreadable_state_ends_with_the_object_or_its_need() {
    type Turn = fn(&mut Cloud);
    let changes: [(Turn, &str); 2] =
        [(|view| view.remove(&key(0, 1)), "absent"), (|view| view.want(0, &key(0, 1), false), "delete")];
    for (change, expected) in changes {
        let mut solo = half_readable().greeted();
        said(&mut solo);
        solo.ack(Lane::Delivery, 2);
        solo.change(|view| {
            change(view);
            view.set_readable(&key(0, 1), true);
        });
        assert_eq!(said(&mut solo), [format!("{expected} object1")]);
    }
}

#[test]
fn edge_without_the_unreadable_feature_is_not_told_and_not_delayed() {
    let mut solo = half_readable();
    let hello = Hello { features: features::ZSTD, ..solo.hello() };
    solo.feed(Lane::Control, Frame::Hello(hello)).expect("a good hello");
    assert_eq!(solo.session.features(), features::ZSTD);
    assert_eq!(said(&mut solo), ["upsert object0"]);
    solo.ack(Lane::Delivery, 1);
    assert!(solo.events().contains(&CAUGHT_UP));
}

#[test]
fn unreadable_entries_are_part_of_the_inventory() {
    let held = |solo: &Solo, number| match number {
        1 => HeldState::Unreadable,
        _ => match solo.view.lookup(SubscriptionId::NODE, &key(0, number)) {
            Lookup::Present(object) => HeldState::Present(object.version.clone()),
            other => panic!("an object expected, not {other:?}"),
        },
    };
    for count in [2, HELLO_INVENTORY_MAX + 1] {
        let mut solo = Solo::new(count);
        solo.view.set_readable(&key(0, 1), false);
        solo.view.take_offers();
        let entries = (0..count).map(|n| InventoryEntry { key: key(0, n), held: held(&solo, n) }).collect();
        let inventory = summarise(solo.hello().store, entries);
        assert_eq!(matches!(inventory, Inventory::Digest { .. }), count > HELLO_INVENTORY_MAX);
        let hello = Hello { inventory, ..solo.hello() };
        solo.feed(Lane::Control, Frame::Hello(hello)).expect("a good hello");
        let asked = |frame: &Frame| matches!(frame, Frame::InventoryRequest { .. });
        assert!(!solo.sent(Lane::Control).iter().any(asked), "the digest spares the list");
        assert!(said(&mut solo).is_empty(), "objects that the edge holds are not sent again");
        assert!(solo.events().contains(&CAUGHT_UP));
    }
}

/// Older versions of objects cannot prevent a subscription from following one history.
#[test]
fn unreadable_object_does_not_delay_caught_up_between_epochs() {
    let mut world = World::new(Settings::default());
    world.cloud.put(&key(0, 0), 16);
    world.cloud.want(0, &key(0, 0), true);
    world.connect();
    world.run_for(Duration::from_secs(1));
    let held = world.store.areas[0].rows[&key(0, 0)].clone();
    let Row::Present { version, body } = held else { panic!("it was delivered") };
    world.cloud.snapshot = world.cloud.truth.clone();
    world.cloud.restore();
    world.cloud.set_readable(&key(0, 0), false);
    world.connect();
    world.run_for(Duration::from_secs(1));
    let area = &world.store.areas[0];
    assert_eq!(area.epoch, Some(world.cloud.epoch()), "the subscription follows the new epoch");
    let kept = Row::Present {
        version: ObjectVersion { revision: CloudRevision(0), ..version.clone() },
        body: body.clone(),
    };
    assert_eq!(area.rows[&key(0, 0)], kept, "the edge keeps its object, and nothing is older");
    world.keep_trace = true;
    world.cloud.set_readable(&key(0, 0), true);
    world.offer_changes();
    world.run_for(Duration::from_secs(1));
    let adopted = |(_, _, frame): &(bool, Lane, Frame)| match frame {
        Frame::Deliver(deliver) => Some(matches!(deliver.change, Change::Adopt { .. })),
        _ => None,
    };
    let deliveries: Vec<bool> = world.trace.iter().filter_map(adopted).collect();
    assert_eq!(deliveries, [true], "equal content is not sent again");
    assert_eq!(world.store.areas[0].rows[&key(0, 0)], Row::Present { version, body });
}

/// A session whose edge follows this many objects, of which the second cannot be read, and claims to hold this
/// inventory.
fn following(objects: usize, inventory: impl FnOnce(&Solo) -> Inventory) -> Solo {
    let mut solo = Solo::new(0).greeted();
    for number in 0..objects {
        solo.view.put(&key(1, number), 16);
        solo.view.want(1, &key(1, number), true);
    }
    solo.view.set_readable(&key(1, 1), false);
    solo.view.take_offers();
    solo.view.subscriptions.insert(SubscriptionId(1), 1);
    solo.events();
    let subscribe = Subscribe {
        epoch: Some(solo.view.epoch()),
        inventory: inventory(&solo),
        ..subscribe_to(SubscriptionId(1), 1)
    };
    solo.feed(Lane::Delivery, Frame::Subscribe(subscribe)).expect("in order");
    assert!(solo.session.open_subscription(SubscriptionId(1), &solo.view));
    solo
}

/// As in the pushed set, it is reported once, stored, and part of the edge's inventory.
#[test]
fn unreadable_followed_object_is_reported_and_delays_nothing() {
    let caught_up = CloudEvent::CaughtUp { subscription: SubscriptionId(1) };
    let mut solo = following(2, |_| Inventory::Full(Vec::new()));
    assert_eq!(said(&mut solo), ["upsert object0", "unreadable object1"]);
    solo.ack(Lane::Delivery, 2);
    assert!(solo.events().contains(&caught_up));
    solo.session.offer(SubscriptionId(1), key(1, 1), &solo.view);
    assert!(said(&mut solo).is_empty(), "nothing new");
    solo.view.set_readable(&key(1, 1), true);
    solo.session.offer(SubscriptionId(1), key(1, 1), &solo.view);
    assert_eq!(said(&mut solo), ["upsert object1"]);

    let count = HELLO_INVENTORY_MAX + 1;
    let mut solo = following(count, |solo| {
        let held = |number| match solo.view.lookup(SubscriptionId(1), &key(1, number)) {
            Lookup::Present(object) => HeldState::Present(object.version.clone()),
            _ => HeldState::Unreadable,
        };
        let entries = (0..count).map(|n| InventoryEntry { key: key(1, n), held: held(n) }).collect();
        summarise(solo.hello().store, entries)
    });
    let asked = |frame: &Frame| matches!(frame, Frame::InventoryRequest { .. });
    assert!(!solo.sent(Lane::Control).iter().any(asked), "the digest spares the list");
    assert!(said(&mut solo).is_empty() && solo.events().contains(&caught_up));
}

/// An older edge would refuse the unexpected change.
#[test]
fn edge_without_the_subscription_feature_gets_unreadable_only_in_the_pushed_set() {
    let mut solo = half_readable();
    let hello = Hello { features: features::ALL & !features::UNREADABLE_FOLLOWED, ..solo.hello() };
    solo.feed(Lane::Control, Frame::Hello(hello)).expect("a good hello");
    assert_eq!(said(&mut solo), ["upsert object0", "unreadable object1"]);
    solo.view.put(&key(1, 1), 16);
    solo.view.want(1, &key(1, 1), true);
    solo.view.set_readable(&key(1, 1), false);
    solo.view.subscriptions.insert(SubscriptionId(1), 1);
    solo.view.take_offers();
    solo.feed(Lane::Delivery, Frame::Subscribe(subscribe_to(SubscriptionId(1), 1))).expect("in order");
    assert!(solo.session.open_subscription(SubscriptionId(1), &solo.view));
    assert!(said(&mut solo).is_empty());
    assert!(
        solo.events().contains(&CloudEvent::CaughtUp { subscription: SubscriptionId(1) }),
        "the subscription must be caught up"
    );
}

/// A subscription with an object from the history before the restore can follow the new history nevertheless.
#[test]
fn after_a_restore_a_subscription_with_unreadable_objects_is_caught_up() {
    let mut world = World::new(Settings::default());
    world.cloud.put(&key(1, 0), 16);
    world.cloud.want(1, &key(1, 0), true);
    world.follow(1, true);
    world.heal();
    world.cloud.snapshot = world.cloud.truth.clone();
    world.cloud.restore();
    world.cloud.set_readable(&key(1, 0), false);
    world.cut();
    world.connect();
    world.run_for(Duration::from_secs(1));
    let area = &world.store.areas[1];
    assert_eq!(area.epoch, Some(world.cloud.epoch()), "the subscription follows the new epoch");
    assert!(
        matches!(&area.rows[&key(1, 0)], Row::Present { version, .. } if version.revision.0 == 0),
        "the edge keeps the object"
    );
    world.heal();
}
