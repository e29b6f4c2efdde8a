//! Scopes that the edge opens.

use std::time::Duration;

use tombolo_proto::frame::{Change, Frame, Inventory, InventoryPart, Subscribe};
use tombolo_proto::limits::{FOLLOWED_MAX, SUBSCRIPTIONS_MAX};
use tombolo_proto::session::{CloudEvent, EdgeEvent, SubscribeError};
use tombolo_proto::{Held, InventoryEntry, Lane, ScopeId};

use super::harness::cloud::key;
use super::harness::oracle::Coverage;
use super::harness::solo::Solo;
use super::harness::world::{Settings, World, subscription};
use super::selection::Selection;

pub(crate) fn subscribe(scope: u32) -> Subscribe {
    subscription(ScopeId(scope), 1)
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
        // Its epoch is its own: a store that lost it compares content and sends nothing.
        world.cut();
        world.oracle.coverage = Coverage::default();
        world.store.areas[1].epoch = None;
        world.heal();
        assert_eq!((world.oracle.coverage.upserts, world.oracle.coverage.adoptions), (0, 0));
    }
}

#[test]
fn each_scope_is_caught_up_for_itself() {
    let mut world = followed(2);
    world.cut();
    world.accept_at_once = false;
    world.connect();
    world.run_for(Duration::from_secs(1));
    let caught_up = |world: &World| {
        let scopes = world.edge_events.iter().filter_map(|event| match event {
            EdgeEvent::CaughtUp { scope, .. } => Some(scope.0),
            _ => None,
        });
        scopes.collect::<Vec<_>>()
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
    assert!(world.store.areas[1].rows.is_empty(), "nobody follows it");
    let stats = world.connection.as_ref().expect("up").cloud.stats();
    assert_eq!((stats.in_flight, stats.subscriptions), (0, 0), "the window is free again");
    world.follow(1, true);
    world.heal();
    assert_eq!(world.store.areas[1].rows.len(), 50);
}

#[test]
fn scope_ids_only_grow() {
    let mut solo = Solo::new(0).greeted();
    solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(5))).expect("fresh");
    solo.session.close_subscription(ScopeId(5), 403, "not allowed");
    let closed = solo.sent(Lane::Control);
    let refused = |frame: &Frame| matches!(frame, Frame::SubscriptionClosed { code: 403, reason, .. } if reason == "not allowed");
    assert!(closed.iter().any(refused), "{closed:?}");
    for reused in [5, 3, 0] {
        let mut solo = Solo::new(0).greeted();
        solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(5))).expect("fresh");
        let error = solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(reused))).expect_err("used");
        assert!(error.to_string().contains("scope ids must grow"), "{error}");
    }
    let mut world = followed(0);
    let edge = &mut world.connection.as_mut().expect("up").edge;
    assert_eq!(edge.next_scope(), ScopeId(2));
    assert_eq!(edge.subscribe(subscribe(1)), Err(SubscribeError::ScopeUsed(ScopeId(1))));
}

#[test]
fn subscriptions_are_bounded_on_both_sides() {
    let limit = u32::try_from(SUBSCRIPTIONS_MAX).expect("small");
    let mut solo = Solo::new(0).greeted();
    for scope in 1..=limit + 1 {
        solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(scope))).expect("answered, not punished");
    }
    let closed = solo.sent(Lane::Control);
    let closed: Vec<_> = closed.iter().filter(|f| matches!(f, Frame::SubscriptionClosed { .. })).collect();
    assert!(
        matches!(closed[..], [Frame::SubscriptionClosed { scope: ScopeId(129), code: 429, .. }]),
        "{closed:?}"
    );
    assert_eq!(solo.session.stats().subscriptions, SUBSCRIPTIONS_MAX);

    let mut world = followed(0);
    let edge = &mut world.connection.as_mut().expect("up").edge;
    for scope in 2..=limit {
        edge.subscribe(subscribe(scope)).expect("room");
    }
    assert_eq!(edge.subscribe(subscribe(limit + 1)), Err(SubscribeError::Full));
}

#[test]
fn a_peer_that_opens_subscriptions_and_reads_no_answer_is_dropped() {
    let mut solo = Solo::new(0).greeted();
    let mut scope = 0;
    let ended = loop {
        scope += 1;
        solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(scope))).expect("well-formed");
        solo.session.close_subscription(ScopeId(scope), 403, "not allowed");
        if let Some(CloudEvent::Closed(goodbye)) = solo.events().pop() {
            break goodbye;
        }
        assert!(scope < 2000, "the answers pile up without bound");
    };
    assert!(ended.message.contains("are not read"), "{ended:?}");
}

#[test]
fn an_unsubscribe_is_told_once_and_its_races_are_borne() {
    let mut solo = Solo::new(0).greeted();
    solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(1))).expect("fresh");
    solo.feed(Lane::Delivery, Frame::Unsubscribe { scope: ScopeId(1) }).expect("open");
    solo.feed(Lane::Delivery, Frame::Unsubscribe { scope: ScopeId(1) }).expect("a race");
    let ends = solo.events().into_iter().filter(|e| matches!(e, CloudEvent::Unsubscribe { .. })).count();
    assert_eq!(ends, 1);
    // The decision comes too late: nothing happens.
    solo.view.scopes.remove(&ScopeId(1));
    solo.session.open_subscription(ScopeId(1), &solo.view);
    solo.session.close_subscription(ScopeId(1), 200, "late");
    assert!(!solo.sent(Lane::Control).iter().any(|f| matches!(f, Frame::SubscriptionClosed { .. })));
}

/// What the copy of a subscription does not have is no proof: its watch may be behind that of another replica.
#[test]
fn a_subscription_takes_nothing_away_before_the_api_server_has_confirmed_it() {
    let mut solo = Solo::new(0).greeted();
    solo.view.asks = true;
    solo.view.put(&key(1, 0), 16);
    let version = solo.view.truth.objects[&key(1, 0)].shared(&key(1, 0), 1).version.clone();
    solo.view.take_offers();
    solo.view.scopes.insert(ScopeId(1), 1);
    let entry = InventoryEntry { key: key(1, 0), held: Held::Present(version) };
    let (inventory, epoch) = (Inventory::Full(vec![entry]), Some(solo.view.epoch()));
    let resumes = Subscribe { epoch, inventory, ..subscribe(1) };
    solo.feed(Lane::Delivery, Frame::Subscribe(resumes)).expect("in order");
    assert!(solo.session.open_subscription(ScopeId(1), &solo.view));
    assert!(solo.events().contains(&CloudEvent::CaughtUp { scope: ScopeId(1) }), "nobody waits for it");
    solo.wait(Duration::from_secs(9));
    assert!(solo.sent(Lane::Delivery).is_empty(), "no time makes it true");
    solo.view.answer_doubts();
    for key in solo.view.take_offers() {
        solo.session.offer(ScopeId(1), key, &solo.view);
    }
    let sent = solo.sent(Lane::Delivery);
    assert!(
        matches!(&sent[..], [Frame::Deliver(deliver)] if matches!(deliver.change, Change::Delete { .. })),
        "{sent:?}"
    );
}

#[test]
fn whoever_opens_a_subscription_is_told_when_it_is_not_open() {
    let mut solo = Solo::new(0).greeted();
    for number in 0..=FOLLOWED_MAX {
        solo.view.put(&key(1, number), 1);
        solo.view.want(1, &key(1, number), true);
    }
    solo.view.take_offers();
    solo.view.scopes.insert(ScopeId(1), 1);
    solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(1))).expect("in order");
    assert!(!solo.session.open_subscription(ScopeId(1), &solo.view), "too large");
    let control = solo.sent(Lane::Control);
    let refused = |frame: &Frame| matches!(frame, Frame::SubscriptionClosed { code: 413, .. });
    assert!(control.iter().any(refused), "{control:?}");
    assert!(!solo.session.open_subscription(ScopeId(2), &solo.view), "it was never begun");
}

/// A subscription whose inventory has not come counts with what it will have, and what it is then is looked at again.
#[test]
fn what_a_node_follows_is_bounded_however_late_its_inventories_come() {
    let mut solo = Solo::new(0).greeted();
    let (objects, scopes) = (1_000, 64_u32);
    for number in 0..objects {
        solo.view.put(&key(1, number), 1);
        solo.view.want(1, &key(1, number), true);
    }
    solo.view.take_offers();
    let mut opened = Vec::new();
    for scope in 1..=scopes {
        solo.view.scopes.insert(ScopeId(scope), 1);
        let mut asked = subscribe(scope);
        asked.inventory = Inventory::Digest { count: 1, digest: [1; 16] };
        solo.feed(Lane::Delivery, Frame::Subscribe(asked)).expect("in order");
        if solo.session.open_subscription(ScopeId(scope), &solo.view) {
            opened.push(scope);
        }
    }
    assert_eq!(opened.len(), FOLLOWED_MAX / objects, "what will be followed counts");
    // Meanwhile there are more objects.
    for number in objects..objects + 100 {
        solo.view.put(&key(1, number), 1);
        solo.view.want(1, &key(1, number), true);
    }
    solo.view.take_offers();
    solo.events();
    for scope in opened {
        let part = InventoryPart { scope: ScopeId(scope), entries: Vec::new(), last: true };
        solo.feed(Lane::Bulk, Frame::InventoryPart(part)).expect("asked for");
        assert!(solo.session.stats().dirty <= FOLLOWED_MAX, "{}", solo.session.stats().dirty);
    }
    let ended = |event: &CloudEvent| matches!(event, CloudEvent::Ended { code: 413, .. });
    assert!(solo.events().iter().any(ended), "the owner is told");
    let dirty = solo.session.stats().dirty;
    assert!(dirty > FOLLOWED_MAX / 2, "the others are followed");
    assert!(solo.session.memory() > dirty * 64, "{} bytes of {dirty} slots", solo.session.memory());
}

/// What matches later counts as what has matched at the beginning.
#[test]
fn a_subscription_that_grows_beyond_what_a_node_follows_ends() {
    let mut solo = Solo::new(0).greeted();
    solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(1))).expect("in order");
    let mut selection = Selection::default();
    assert!(solo.session.open_subscription(ScopeId(1), &selection));
    solo.events();
    for number in 0..FOLLOWED_MAX {
        solo.session.offer(ScopeId(1), selection.create(number), &selection);
    }
    assert_eq!(solo.events(), [], "as many as may");
    solo.session.offer(ScopeId(1), selection.create(0), &selection);
    assert_eq!(solo.events(), [], "no new one");
    solo.session.offer(ScopeId(1), selection.create(FOLLOWED_MAX), &selection);
    let events = solo.events();
    assert!(
        matches!(events.as_slice(), [CloudEvent::Ended { scope: ScopeId(1), code: 413, .. }]),
        "{events:?}"
    );
    let control = solo.sent(Lane::Control);
    assert_eq!(solo.session.memory(), 0, "nothing of it is kept");
    let told = |frame: &Frame| matches!(frame, Frame::SubscriptionClosed { code: 413, .. });
    assert!(control.iter().any(told), "{control:?}");
}
