//! Windows, coalescing, refusals, lanes.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tombolo_proto::frame::{
    ApiRequest, Change, Deliver, Frame, Refusal, RefusalReason, RequestBody, Undecodable,
};
use tombolo_proto::limits::{
    API_PATH_LEN_MAX, BULK_OBJECT_MIN, OBJECT_LEN_MAX, PARK_DELAY_MAX, PARK_DELAY_MIN, SELECTOR_LEN_MAX,
    TOKEN_LEN_MAX,
};
use tombolo_proto::session::{ACK_TIMEOUT, CloudEvent, RequestError, SessionError, SubscribeError};
use tombolo_proto::{CloudRevision, Lane, ObjectKey, Seq, SharedObject, SubscriptionId};

use super::harness::cloud::key;
use super::harness::solo::{Solo, deliveries};
use super::harness::world::{Connection, Settings, World, subscribe_to};

fn names(frames: &[Frame]) -> Vec<String> {
    deliveries(frames).into_iter().map(|(_, name)| name).collect()
}

fn revision(frame: &Frame) -> u64 {
    match frame {
        Frame::Deliver(deliver) => match &deliver.change {
            Change::Upsert(object) => object.version.revision.0,
            other => panic!("an object expected, not {other:?}"),
        },
        other => panic!("a delivery expected, not {other:?}"),
    }
}

/// Deliveries that our cloud never sends cost only that one delivery. The bytes are altered in transit, so that the
/// edge reads them as its connection does.
#[test]
fn undecodable_delivery_is_refused_alone() {
    for spoil in SPOILERS {
        let mut world = World::new(Settings::default());
        world.keep_events = true;
        for number in 0..3 {
            world.cloud.put(&key(0, number), 16);
            world.cloud.want(0, &key(0, number), true);
        }
        world.connect();
        let under_way =
            |world: &World| world.connection.as_ref().expect("connected").down.len(Lane::Delivery);
        while under_way(&world) < 3 {
            world.now = world.next_event().expect("the handshake continues");
            world.step();
        }
        let lost = world.connection.as_mut().expect("connected").down.spoil(Lane::Delivery, 1, spoil);
        world.run_for(PARK_DELAY_MIN / 2);
        let refused = |event: &CloudEvent| match event {
            CloudEvent::Refused { key, reason: RefusalReason::Malformed, message, .. } => {
                assert!(message.starts_with("the delivery cannot be decoded: "), "{message}");
                Some(key.clone())
            }
            _ => None,
        };
        let refused: Vec<ObjectKey> = world.cloud_events.iter().filter_map(refused).collect();
        assert_eq!(refused, [lost.change.key().clone()], "only that delivery is refused");
        let held = |world: &World, number| world.store.areas[0].rows.contains_key(&key(0, number));
        let others = (0..3).filter(|number| key(0, *number) != *lost.change.key());
        assert!(others.clone().all(|number| held(&world, number)), "the others are stored");
        let caught_up = CloudEvent::CaughtUp { subscription: SubscriptionId::NODE };
        assert!(world.cloud_events.contains(&caught_up), "and the subscription is caught up");
        world.run_for(PARK_DELAY_MIN);
        assert!((0..3).all(|number| held(&world, number)), "it is sent again, and the session continues");
        let Connection { edge, .. } = world.connection.as_mut().expect("connected");
        let lost =
            Undecodable { seq: Seq(9), subscription: SubscriptionId::NODE, reason: "no name".to_owned() };
        let gap = edge.handle_frame(world.now, Lane::Delivery, Frame::Undecodable(lost), &world.store);
        assert!(gap.is_err(), "the position counts as any other");
    }
}

/// Deliveries that our cloud never sends: one with a name that could escape from a path, and one with a reference
/// without a name.
const SPOILERS: [fn(&Deliver) -> Change; 2] = [
    |sent| Change::Absent { key: renamed(sent.change.key(), "../etc") },
    |sent| match &sent.change {
        Change::Upsert(object) => {
            let (key, version, body) = (object.key.clone(), object.version.clone(), object.body.clone());
            let nameless = vec![renamed(&key, "")];
            Change::Upsert(SharedObject::new(key, version, body, nameless).into())
        }
        other => panic!("an object expected, not {other:?}"),
    },
];

fn renamed(key: &ObjectKey, name: &str) -> ObjectKey {
    ObjectKey::new(key.resource().clone(), key.namespace(), name)
}

proptest! {
    /// An API server stores names that no edge can hold: these are reported, and do not affect other objects.
    #[test]
    fn no_object_name_ends_a_session(name in "[a-z:/%. \u{0}-\u{9}ä]{1,6}|[a-z]{250,300}") {
        let odd = ObjectKey::new(key(0, 0).resource().clone(), key(0, 0).namespace(), &name);
        let mut world = World::new(Settings::default());
        world.keep_events = true;
        for key in [&odd, &key(0, 0), &key(0, 1)] {
            world.cloud.put(key, 16);
            world.cloud.want(0, key, true);
        }
        world.connect();
        world.run_for(Duration::from_secs(2));
        let refused = world.cloud_events.iter().any(
            |event| matches!(event, CloudEvent::Refused { key, retry_in: Duration::MAX, .. } if *key == odd),
        );
        let rows = &world.store.areas[0].rows;
        prop_assert_ne!(refused, rows.contains_key(&odd), "stored or reported");
        prop_assert_eq!(refused, !tombolo_proto::codec::carries(&odd));
        prop_assert!(rows.contains_key(&key(0, 0)) && rows.contains_key(&key(0, 1)));
        let caught_up = CloudEvent::CaughtUp { subscription: SubscriptionId::NODE };
        prop_assert!(world.cloud_events.contains(&caught_up), "the subscription is not delayed");
        prop_assert!(world.connection.is_some(), "the session continues");
    }
}

/// A client of the edge chooses these texts; the cloud would end the session because of them.
#[test]
fn edge_sends_nothing_that_the_cloud_would_reject() {
    let mut world = World::new(Settings::default());
    world.connect();
    world.run_for(Duration::from_secs(1));
    let edge = &mut world.connection.as_mut().expect("connected").edge;
    let mut asked = subscribe_to(edge.next_subscription(), 1);
    asked.label_selector = "x".repeat(SELECTOR_LEN_MAX + 1);
    let mut elsewhere = subscribe_to(edge.next_subscription(), 1);
    elsewhere.namespace = "a/b".to_owned();
    for subscribe in [asked, elsewhere] {
        let taken = edge.subscribe(subscribe);
        assert!(matches!(taken, Err(SubscribeError::Invalid(_))), "{taken:?}");
    }
    let call = |path: String| {
        RequestBody::Api(ApiRequest { body: Vec::new().into(), ..ApiRequest::new("GET", path) })
    };
    let long = call(format!("/{}", "x".repeat(API_PATH_LEN_MAX)));
    let taken = edge.request(world.now, Duration::from_secs(1), long, None);
    assert!(matches!(taken, Err(RequestError::Invalid(_))), "{taken:?}");
    let token = Some("x".repeat(TOKEN_LEN_MAX + 1));
    let taken = edge.request(world.now, Duration::from_secs(1), call("/api".to_owned()), token);
    assert!(matches!(taken, Err(RequestError::Invalid(_))), "{taken:?}");
}

#[test]
fn ten_updates_of_a_slow_node_become_one_delivery_of_the_newest() {
    let mut solo = Solo::new(0).greeted();
    for _ in 0..10 {
        solo.change(|view| {
            view.put(&key(0, 0), 16);
            view.want(0, &key(0, 0), true);
        });
    }
    let sent = solo.sent(Lane::Delivery);
    assert_eq!(sent.len(), 1);
    assert_eq!(revision(&sent[0]), 10);
    for _ in 0..5 {
        solo.change(|view| view.put(&key(0, 0), 16));
    }
    assert!(solo.sent(Lane::Delivery).is_empty(), "one version in flight at a time");
    solo.ack(Lane::Delivery, 1);
    let sent = solo.sent(Lane::Delivery);
    assert_eq!(sent.iter().map(revision).collect::<Vec<_>>(), [15]);
    solo.ack(Lane::Delivery, 2);
    assert!(solo.sent(Lane::Delivery).is_empty());
}

#[test]
fn offer_of_a_held_version_sends_nothing() {
    let mut solo = Solo::new(2).greeted();
    assert_eq!(solo.sent(Lane::Delivery).len(), 2);
    solo.ack(Lane::Delivery, 2);
    solo.session.offer(SubscriptionId::NODE, key(0, 0), &solo.view);
    solo.session.offer(SubscriptionId::NODE, key(0, 9), &solo.view);
    solo.session.offer(SubscriptionId(5), key(0, 0), &solo.view);
    assert!(solo.sent(Lane::Delivery).is_empty());
    let stats = solo.session.stats();
    assert_eq!((stats.held, stats.dirty, stats.delivered, stats.acked), (2, 0, 2, 2));
}

#[test]
fn the_window_counts_deliveries() {
    let mut solo = Solo::with(10, |config| config.window_count = 3).greeted();
    assert_eq!(names(&solo.sent(Lane::Delivery)), ["object0", "object4", "object8"]);
    solo.ack(Lane::Delivery, 2);
    assert_eq!(names(&solo.sent(Lane::Delivery)), ["object3", "object7"]);
    solo.ack(Lane::Delivery, 2);
    assert!(solo.sent(Lane::Delivery).is_empty(), "a repeated acknowledgement does not open the window");
}

#[test]
fn the_window_counts_bytes_and_a_large_object_travels_alone() {
    let mut solo = Solo::with(0, |config| config.window_bytes = 3 * BULK_OBJECT_MIN).greeted();
    solo.change(|view| {
        for (number, len) in
            [BULK_OBJECT_MIN, BULK_OBJECT_MIN, 5 * BULK_OBJECT_MIN, BULK_OBJECT_MIN].iter().enumerate()
        {
            view.put(&key(0, number), *len);
            view.want(0, &key(0, number), true);
        }
    });
    assert!(solo.sent(Lane::Delivery).is_empty(), "all of them are for the bulk lane");
    assert_eq!(names(&solo.sent(Lane::Bulk)), ["object0", "object3"]);
    solo.ack(Lane::Bulk, 1);
    assert!(solo.sent(Lane::Bulk).is_empty(), "the large one waits for an empty lane, and is not overtaken");
    solo.ack(Lane::Bulk, 2);
    assert_eq!(names(&solo.sent(Lane::Bulk)), ["object2"]);
    solo.ack(Lane::Bulk, 3);
    assert_eq!(names(&solo.sent(Lane::Bulk)), ["object1"]);
}

#[test]
fn a_key_keeps_one_version_in_flight_over_all_lanes() {
    let mut solo = Solo::new(1).greeted();
    assert_eq!(solo.sent(Lane::Delivery).len(), 1);
    solo.change(|view| view.put(&key(0, 0), BULK_OBJECT_MIN));
    assert!(solo.sent(Lane::Delivery).is_empty() && solo.sent(Lane::Bulk).is_empty());
    solo.ack(Lane::Delivery, 1);
    assert!(solo.sent(Lane::Delivery).is_empty(), "the object now belongs to the bulk lane");
    assert_eq!(names(&solo.sent(Lane::Bulk)), ["object0"]);
}

#[test]
fn large_objects_delay_neither_leases_nor_small_objects() {
    let bulk = Duration::from_secs(20);
    let control = Duration::from_millis(10);
    let mut world = World::new(Settings { delays: [control, control, bulk], ..Settings::default() });
    world.keep_events = true;
    world.connect();
    world.run_for(Duration::from_millis(50));
    for number in 0..4 {
        world.cloud.put(&key(0, number), if number == 3 { 16 } else { 1024 * 1024 });
        world.cloud.want(0, &key(0, number), true);
    }
    world.offer_changes();
    world.run_for(Duration::from_millis(50));
    world.renew_lease();
    world.run_for(2 * control);
    assert_eq!(world.oracle.newest_lease, 1, "the renewal reached the cloud");
    assert!(
        world.edge_events.iter().any(|e| matches!(e, tombolo_proto::session::EdgeEvent::LeaseRenewed { .. }))
    );
    assert!(world.store.areas[0].rows.contains_key(&key(0, 3)), "the small object is there");
    assert_eq!(world.store.areas[0].rows.len(), 1, "the large ones are still under way");
    world.heal();
}

/// Time passes, and the peer sends heartbeats meanwhile.
fn stay_alive(solo: &mut Solo, mut time: Duration) {
    while time > Duration::ZERO {
        let part = time.min(Duration::from_secs(10));
        solo.wait(part);
        solo.feed(Lane::Control, Frame::Ping { id: 0 }).expect("any frame counts as a heartbeat");
        time -= part;
    }
}

fn refuse(solo: &mut Solo, seq: u64) -> Duration {
    let message = "no space left on device".to_owned();
    let refusal =
        Refusal { lane: Lane::Delivery, seq: Seq(seq), reason: RefusalReason::StorageFull, message };
    solo.feed(Lane::Control, Frame::Refuse(refusal)).expect("in flight");
    solo.ack(Lane::Delivery, seq);
    let refused = solo.events().into_iter().find_map(|event| match event {
        CloudEvent::Refused { retry_in, key, .. } => Some((retry_in, key)),
        _ => None,
    });
    refused.expect("the owner must be notified").0
}

#[test]
fn refused_object_is_parked_with_back_off_and_blocks_no_other() {
    let mut solo = Solo::new(1).greeted();
    let mut waits = Vec::new();
    for seq in (1..).step_by(2).take(11) {
        assert_eq!(deliveries(&solo.sent(Lane::Delivery)), [(seq, "object0".to_owned())]);
        let wait = refuse(&mut solo, seq);
        assert!(
            !solo.events().iter().any(|event| matches!(event, CloudEvent::Acked { .. })),
            "skipped, not stored"
        );
        // Another key is delivered at once.
        solo.change(|view| {
            view.put(&key(0, 1), 16);
            view.want(0, &key(0, 1), true);
        });
        assert_eq!(deliveries(&solo.sent(Lane::Delivery)), [(seq + 1, "object1".to_owned())]);
        solo.ack(Lane::Delivery, seq + 1);
        // The same version, offered again, waits until its retry time.
        stay_alive(&mut solo, wait - Duration::from_millis(1));
        solo.session.offer(SubscriptionId::NODE, key(0, 0), &solo.view);
        assert!(solo.sent(Lane::Delivery).is_empty(), "too early after {wait:?}");
        solo.wait(Duration::from_millis(1));
        waits.push(wait.as_secs());
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    assert_eq!(PARK_DELAY_MAX, Duration::from_secs(300));
}

#[test]
fn a_newer_version_of_a_parked_object_is_sent_at_once() {
    let mut solo = Solo::new(1).greeted();
    solo.sent(Lane::Delivery);
    refuse(&mut solo, 1);
    assert_eq!(solo.session.stats().parked, 1);
    solo.change(|view| view.put(&key(0, 0), 16));
    assert_eq!(deliveries(&solo.sent(Lane::Delivery)), [(2, "object0".to_owned())]);
    solo.ack(Lane::Delivery, 2);
    let stats = solo.session.stats();
    assert_eq!((stats.parked, stats.refused, stats.acked, stats.held), (0, 1, 1, 1));
}

#[test]
fn newer_version_offered_before_the_refusal_is_sent_at_once() {
    let mut solo = Solo::new(1).greeted();
    solo.sent(Lane::Delivery);
    solo.change(|view| view.put(&key(0, 0), 16));
    refuse(&mut solo, 1);
    assert_eq!(deliveries(&solo.sent(Lane::Delivery)), [(2, "object0".to_owned())]);
}

#[test]
fn an_object_above_the_limit_is_never_sent_and_reported_once() {
    let mut solo = Solo::new(0).greeted();
    solo.change(|view| {
        view.put(&key(0, 0), OBJECT_LEN_MAX);
        view.want(0, &key(0, 0), true);
        view.put(&key(0, 1), 16);
        view.want(0, &key(0, 1), true);
    });
    assert_eq!(names(&solo.sent(Lane::Delivery)), ["object1"]);
    assert!(solo.sent(Lane::Bulk).is_empty());
    let refused: Vec<_> =
        solo.events().into_iter().filter(|e| matches!(e, CloudEvent::Refused { .. })).collect();
    let [CloudEvent::Refused { reason, message, retry_in, .. }] = &refused[..] else { panic!("{refused:?}") };
    assert_eq!((*reason, *retry_in), (RefusalReason::TooLarge, Duration::MAX));
    assert!(message.contains("area0/object0") && message.contains("3145728"), "{message}");
    solo.session.offer(SubscriptionId::NODE, key(0, 0), &solo.view);
    assert!(solo.sent(Lane::Delivery).is_empty());
    assert!(
        !solo.events().iter().any(|event| matches!(event, CloudEvent::Refused { .. })),
        "reported once per version"
    );
    solo.change(|view| view.put(&key(0, 0), 16));
    assert_eq!(names(&solo.sent(Lane::Delivery)), ["object0"], "a smaller version is sent");
}

#[test]
fn subscriptions_take_turns() {
    let mut solo = Solo::with(6, |config| config.window_count = 6).greeted();
    for number in 0..6 {
        solo.view.put(&key(1, number), 16);
        solo.view.want(1, &key(1, number), true);
    }
    solo.view.take_offers();
    solo.view.subscriptions.insert(SubscriptionId(1), 1);
    solo.feed(Lane::Delivery, Frame::Subscribe(super::subscriptions::subscribe(1))).expect("the first one");
    solo.session.open_subscription(SubscriptionId(1), &solo.view);
    let subscriptions: Vec<_> = solo
        .sent(Lane::Delivery)
        .iter()
        .map(|frame| match frame {
            Frame::Deliver(deliver) => deliver.subscription.0,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(subscriptions, [1, 0, 1, 0, 1, 0]);
}

#[test]
fn acknowledgement_of_an_unsent_position_ends_the_session() {
    for (lanes, text) in [
        (
            vec![(Lane::Delivery, Seq(2))],
            "position 2 of lane Delivery was acknowledged, but only 1 were sent",
        ),
        (vec![(Lane::Bulk, Seq(u64::MAX))], "but only 0 were sent"),
        (vec![(Lane::Control, Seq(1))], "lane Control carries no deliveries"),
        (vec![(Lane::Bulk, Seq(0)); 4], "names 4 lanes"),
    ] {
        let mut solo = Solo::new(1).greeted();
        solo.sent(Lane::Delivery);
        let error = solo.feed(Lane::Control, Frame::Ack { lanes }).expect_err(text);
        assert!(matches!(&error, SessionError::Protocol(found) if found.contains(text)), "{error}");
    }
}

#[test]
fn edge_that_answers_pings_without_storing_objects_is_disconnected() {
    let mut solo = Solo::new(1).greeted();
    solo.sent(Lane::Delivery);
    for _ in 0..ACK_TIMEOUT.as_secs() / 10 - 1 {
        solo.wait(Duration::from_secs(10));
        solo.feed(Lane::Control, Frame::Ping { id: 1 }).expect("alive");
        solo.sent(Lane::Control);
    }
    assert!(!solo.session.is_closed());
    solo.wait(Duration::from_secs(10));
    let goodbye = solo.sent(Lane::Control);
    assert!(
        matches!(&goodbye[..], [Frame::Goodbye(bye)] if bye.message.contains("no delivery was acknowledged")),
        "{goodbye:?}"
    );
}

#[test]
fn a_key_that_is_not_fetched_yet_waits_for_its_offer() {
    let mut solo = Solo::new(2);
    solo.view.pending.insert(key(0, 0));
    let mut solo = solo.greeted();
    assert_eq!(names(&solo.sent(Lane::Delivery)), ["object1"]);
    solo.ack(Lane::Delivery, 1);
    assert!(!solo.events().contains(&CloudEvent::CaughtUp { subscription: SubscriptionId::NODE }));
    solo.view.pending.clear();
    solo.session.offer(SubscriptionId::NODE, key(0, 0), &solo.view);
    assert_eq!(names(&solo.sent(Lane::Delivery)), ["object0"]);
    solo.ack(Lane::Delivery, 2);
    assert!(solo.events().contains(&CloudEvent::CaughtUp { subscription: SubscriptionId::NODE }));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// In any order of updates, sends and acknowledgements: each delivery carries the newest version at its time, a key
    /// is in flight only once, and in the end the newest version of every key was delivered.
    #[test]
    fn coalescing_keeps_the_newest(steps in proptest::collection::vec((0_u8..4, 0_usize..3), 0..60)) {
        let mut solo = Solo::with(0, |config| config.window_count = 2).greeted();
        let mut newest: BTreeMap<String, u64> = BTreeMap::new();
        let mut delivered: BTreeMap<String, u64> = BTreeMap::new();
        let mut in_flight: Vec<(u64, String)> = Vec::new();
        let mut updates = 0;
        let settle = [(2, 0), (3, 0)].repeat(40);
        for (kind, number) in steps.into_iter().chain(settle) {
            match kind {
                0 | 1 => {
                    solo.change(|view| {
                        view.put(&key(0, number), 16);
                        view.want(0, &key(0, number), true);
                    });
                    newest.insert(format!("object{number}"), solo.view.truth.revision);
                    updates += 1;
                }
                2 => {
                    let frame = solo.session.poll_transmit(solo.now, Lane::Delivery, &solo.view);
                    let Some(frame) = frame else { continue };
                    let (seq, name) = deliveries(std::slice::from_ref(&frame)).remove(0);
                    prop_assert_eq!(Some(&revision(&frame)), newest.get(&name));
                    prop_assert!(!in_flight.iter().any(|(_, other)| *other == name), "{} twice in flight", name);
                    delivered.insert(name.clone(), revision(&frame));
                    in_flight.push((seq, name));
                    prop_assert!(in_flight.len() <= 2);
                }
                _ if !in_flight.is_empty() => {
                    let (seq, _) = in_flight.remove(0);
                    solo.ack(Lane::Delivery, seq);
                }
                _ => {}
            }
        }
        prop_assert_eq!(&delivered, &newest);
        prop_assert!(solo.session.stats().delivered <= updates);
        let held: Vec<_> = solo.events().into_iter().filter_map(|event| match event {
            CloudEvent::Acked { key, version, .. } => Some((key.name().to_owned(), version)),
            _ => None,
        }).collect();
        for (name, revision) in newest {
            let last = held.iter().rfind(|(acked, _)| *acked == name).and_then(|(_, version)| version.clone());
            prop_assert_eq!(last.map(|version| version.revision), Some(CloudRevision(revision)));
        }
    }
}
