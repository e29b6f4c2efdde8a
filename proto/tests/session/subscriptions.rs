//! Subscriptions that the edge opens.

use std::time::Duration;

use tombolo_proto::frame::{Change, Frame, Inventory, InventoryPart, Subscribe};
use tombolo_proto::limits::{FOLLOWED_MAX, SUBSCRIPTIONS_MAX};
use tombolo_proto::session::{CloudEvent, EdgeEvent, SubscribeError};
use tombolo_proto::{HeldState, InventoryEntry, Lane, SubscriptionId};

use super::harness::cloud::key;
use super::harness::oracle::Coverage;
use super::harness::solo::Solo;
use super::harness::world::{Settings, World, subscribe_to};
use super::selection::Selection;

pub(crate) fn subscribe(subscription: u32) -> Subscribe {
    subscribe_to(SubscriptionId(subscription), 1)
}

fn followed(objects: usize) -> World {
    let mut world = World::new(Settings::default());
    for number in 0..objects {
        world.cloud.put(&key(1, number), 16);
        world.cloud.want(1, &key(1, number), true);
    }
    world.follow(1, true);
    world.heal();
    world.oracle.coverage = Coverage::default();
    world.keep_events = true;
    world
}

#[test]
fn a_subscription_resumes_on_its_own_with_the_exact_difference() {
    for objects in [3, 600] {
        let mut world = followed(objects);
        world.cut();
        world.cloud.put(&key(1, 0), 16);
        world.heal();
        assert_eq!(world.oracle.coverage.upserts, 1, "{objects} objects");
        // Its epoch is its own: a store that lost it compares content and receives nothing.
        world.cut();
        world.oracle.coverage = Coverage::default();
        world.store.areas[1].epoch = None;
        world.heal();
        assert_eq!((world.oracle.coverage.upserts, world.oracle.coverage.adoptions), (0, 0));
    }
}

#[test]
fn each_subscription_is_caught_up_for_itself() {
    let mut world = followed(2);
    world.cut();
    world.accept_at_once = false;
    world.connect();
    world.run_for(Duration::from_secs(1));
    let caught_up = |world: &World| {
        let subscriptions = world.edge_events.iter().filter_map(|event| match event {
            EdgeEvent::CaughtUp { subscription, .. } => Some(subscription.0),
            _ => None,
        });
        subscriptions.collect::<Vec<_>>()
    };
    assert_eq!(caught_up(&world), [0], "the subscription waits for the owner's decision");
    world.accept_subscriptions();
    world.run_for(Duration::from_secs(1));
    assert_eq!(caught_up(&world), [0, 1]);
}

#[test]
fn deliveries_of_an_ended_subscription_are_dropped_and_acknowledged() {
    let mut world = followed(0);
    world.settings.delays =
        [Duration::from_millis(1), Duration::from_millis(200), Duration::from_millis(200)];
    world.cut();
    world.connect();
    world.run_for(Duration::from_secs(1));
    for number in 0..50 {
        world.cloud.put(&key(1, number), 16);
        world.cloud.want(1, &key(1, number), true);
    }
    world.offer_changes();
    world.follow(1, false);
    world.run_for(Duration::from_secs(2));
    assert!(world.store.areas[1].rows.is_empty(), "the area is not followed");
    let stats = world.connection.as_ref().expect("up").cloud.stats();
    assert_eq!((stats.in_flight, stats.subscriptions), (0, 0), "the window is free again");
    world.follow(1, true);
    world.heal();
    assert_eq!(world.store.areas[1].rows.len(), 50);
}

#[test]
fn subscription_ids_only_grow() {
    let mut solo = Solo::new(0).greeted();
    solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(5))).expect("fresh");
    solo.session.close_subscription(SubscriptionId(5), 403, "not allowed");
    let closed = solo.sent(Lane::Control);
    let refused = |frame: &Frame| matches!(frame, Frame::SubscriptionClosed { code: 403, reason, .. } if reason == "not allowed");
    assert!(closed.iter().any(refused), "{closed:?}");
    for reused in [5, 3, 0] {
        let mut solo = Solo::new(0).greeted();
        solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(5))).expect("fresh");
        let error = solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(reused))).expect_err("used");
        assert!(error.to_string().contains("subscription ids must increase"), "{error}");
    }
    let mut world = followed(0);
    let edge = &mut world.connection.as_mut().expect("up").edge;
    assert_eq!(edge.next_subscription(), SubscriptionId(2));
    assert_eq!(edge.subscribe(subscribe(1)), Err(SubscribeError::SubscriptionUsed(SubscriptionId(1))));
}

#[test]
fn subscriptions_are_bounded_on_both_sides() {
    let limit = u32::try_from(SUBSCRIPTIONS_MAX).expect("small");
    let mut solo = Solo::new(0).greeted();
    for subscription in 1..=limit + 1 {
        solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(subscription))).expect("answered, not punished");
    }
    let closed = solo.sent(Lane::Control);
    let closed: Vec<_> = closed.iter().filter(|f| matches!(f, Frame::SubscriptionClosed { .. })).collect();
    assert!(
        matches!(
            closed[..],
            [Frame::SubscriptionClosed { subscription: SubscriptionId(129), code: 429, .. }]
        ),
        "{closed:?}"
    );
    assert_eq!(solo.session.stats().subscriptions, SUBSCRIPTIONS_MAX);

    let mut world = followed(0);
    let edge = &mut world.connection.as_mut().expect("up").edge;
    for subscription in 2..=limit {
        edge.subscribe(subscribe(subscription)).expect("room");
    }
    assert_eq!(edge.subscribe(subscribe(limit + 1)), Err(SubscribeError::Full));
}

#[test]
fn a_peer_that_opens_subscriptions_and_reads_no_answer_is_dropped() {
    let mut solo = Solo::new(0).greeted();
    let mut subscription = 0;
    let ended = loop {
        subscription += 1;
        solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(subscription))).expect("well-formed");
        solo.session.close_subscription(SubscriptionId(subscription), 403, "not allowed");
        if let Some(CloudEvent::Closed(goodbye)) = solo.events().pop() {
            break goodbye;
        }
        assert!(subscription < 2000, "the answers pile up without bound");
    };
    assert!(ended.message.contains("does not read"), "{ended:?}");
}

#[test]
fn unsubscribe_is_sent_once_and_races_are_tolerated() {
    let mut solo = Solo::new(0).greeted();
    solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(1))).expect("fresh");
    solo.feed(Lane::Delivery, Frame::Unsubscribe { subscription: SubscriptionId(1) }).expect("open");
    solo.feed(Lane::Delivery, Frame::Unsubscribe { subscription: SubscriptionId(1) }).expect("a race");
    let ends = solo.events().into_iter().filter(|e| matches!(e, CloudEvent::Unsubscribe { .. })).count();
    assert_eq!(ends, 1);
    // The decision comes too late and has no effect.
    solo.view.subscriptions.remove(&SubscriptionId(1));
    solo.session.open_subscription(SubscriptionId(1), &solo.view);
    solo.session.close_subscription(SubscriptionId(1), 200, "late");
    assert!(!solo.sent(Lane::Control).iter().any(|f| matches!(f, Frame::SubscriptionClosed { .. })));
}

/// An object that is missing in a subscription's copy is not proven deleted: its watch may be behind that of another
/// replica.
#[test]
fn subscription_removes_nothing_before_the_api_server_confirms() {
    let mut solo = Solo::new(0).greeted();
    solo.view.asks = true;
    solo.view.put(&key(1, 0), 16);
    let version = solo.view.truth.objects[&key(1, 0)].shared(&key(1, 0), 1).version.clone();
    solo.view.take_offers();
    solo.view.subscriptions.insert(SubscriptionId(1), 1);
    let entry = InventoryEntry { key: key(1, 0), held: HeldState::Present(version) };
    let (inventory, epoch) = (Inventory::Full(vec![entry]), Some(solo.view.epoch()));
    let resumes = Subscribe { epoch, inventory, ..subscribe(1) };
    solo.feed(Lane::Delivery, Frame::Subscribe(resumes)).expect("in order");
    assert!(solo.session.open_subscription(SubscriptionId(1), &solo.view));
    assert!(
        solo.events().contains(&CloudEvent::CaughtUp { subscription: SubscriptionId(1) }),
        "the subscription must be caught up"
    );
    solo.wait(Duration::from_secs(9));
    assert!(solo.sent(Lane::Delivery).is_empty(), "waiting does not confirm it");
    solo.view.answer_doubts();
    for key in solo.view.take_offers() {
        solo.session.offer(SubscriptionId(1), key, &solo.view);
    }
    let sent = solo.sent(Lane::Delivery);
    assert!(
        matches!(&sent[..], [Frame::Deliver(deliver)] if matches!(deliver.change, Change::Delete { .. })),
        "{sent:?}"
    );
}

#[test]
fn refused_subscription_is_reported_to_its_opener() {
    let mut solo = Solo::new(0).greeted();
    for number in 0..=FOLLOWED_MAX {
        solo.view.put(&key(1, number), 1);
        solo.view.want(1, &key(1, number), true);
    }
    solo.view.take_offers();
    solo.view.subscriptions.insert(SubscriptionId(1), 1);
    solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(1))).expect("in order");
    assert!(!solo.session.open_subscription(SubscriptionId(1), &solo.view), "too large");
    let control = solo.sent(Lane::Control);
    let refused = |frame: &Frame| matches!(frame, Frame::SubscriptionClosed { code: 413, .. });
    assert!(control.iter().any(refused), "{control:?}");
    assert!(!solo.session.open_subscription(SubscriptionId(2), &solo.view), "it was never opened");
}

/// A subscription whose inventory has not arrived counts with its expected size, and the actual size is checked
/// afterwards.
#[test]
fn followed_objects_are_bounded_even_with_late_inventories() {
    let mut solo = Solo::new(0).greeted();
    let (objects, subscriptions) = (1_000, 64_u32);
    for number in 0..objects {
        solo.view.put(&key(1, number), 1);
        solo.view.want(1, &key(1, number), true);
    }
    solo.view.take_offers();
    let mut opened = Vec::new();
    for subscription in 1..=subscriptions {
        solo.view.subscriptions.insert(SubscriptionId(subscription), 1);
        let mut asked = subscribe(subscription);
        asked.inventory = Inventory::Digest { count: 1, digest: [1; 16] };
        solo.feed(Lane::Delivery, Frame::Subscribe(asked)).expect("in order");
        if solo.session.open_subscription(SubscriptionId(subscription), &solo.view) {
            opened.push(subscription);
        }
    }
    assert_eq!(opened.len(), FOLLOWED_MAX / objects, "what will be followed counts");
    // Meanwhile more objects are created.
    for number in objects..objects + 100 {
        solo.view.put(&key(1, number), 1);
        solo.view.want(1, &key(1, number), true);
    }
    solo.view.take_offers();
    solo.events();
    for subscription in opened {
        let part =
            InventoryPart { subscription: SubscriptionId(subscription), entries: Vec::new(), last: true };
        solo.feed(Lane::Bulk, Frame::InventoryPart(part)).expect("asked for");
        assert!(solo.session.stats().dirty <= FOLLOWED_MAX, "{}", solo.session.stats().dirty);
    }
    let ended = |event: &CloudEvent| matches!(event, CloudEvent::Ended { code: 413, .. });
    assert!(solo.events().iter().any(ended), "the owner must be notified");
    let dirty = solo.session.stats().dirty;
    assert!(dirty > FOLLOWED_MAX / 2, "the others are followed");
    assert!(solo.session.memory() > dirty * 64, "{} bytes of {dirty} slots", solo.session.memory());
}

/// Later matches count like those at the beginning.
#[test]
fn subscription_that_outgrows_the_node_bound_ends() {
    let mut solo = Solo::new(0).greeted();
    solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(1))).expect("in order");
    let mut selection = Selection::default();
    assert!(solo.session.open_subscription(SubscriptionId(1), &selection));
    solo.events();
    for number in 0..FOLLOWED_MAX {
        solo.session.offer(SubscriptionId(1), selection.create(number), &selection);
    }
    assert_eq!(solo.events(), [], "the maximum is allowed");
    solo.session.offer(SubscriptionId(1), selection.create(0), &selection);
    assert_eq!(solo.events(), [], "no new event");
    solo.session.offer(SubscriptionId(1), selection.create(FOLLOWED_MAX), &selection);
    let events = solo.events();
    assert!(
        matches!(events.as_slice(), [CloudEvent::Ended { subscription: SubscriptionId(1), code: 413, .. }]),
        "{events:?}"
    );
    let control = solo.sent(Lane::Control);
    assert_eq!(solo.session.memory(), 0, "none of its memory is kept");
    let told = |frame: &Frame| matches!(frame, Frame::SubscriptionClosed { code: 413, .. });
    assert!(control.iter().any(told), "{control:?}");
}
