//! Hello, welcome, versions, liveness, goodbyes.

use std::time::Duration;

use bytes::Bytes;
use tombolo_proto::frame::{Change, Deliver, Frame, Goodbye, GoodbyeReason, Hello, features};
use tombolo_proto::session::{
    CloudEvent, EARLY_BYTES_MAX, EdgeConfig, EdgeEvent, EdgeSession, PATIENCE, SessionError,
};
use tombolo_proto::{Lane, Moment, NodeId, Seq, StoreId, SubscriptionId};

use super::harness::cloud::key;
use super::harness::edge::Store;
use super::harness::solo::Solo;
use super::harness::world::{Settings, World, node};

fn goodbye_of(solo: &mut Solo) -> Goodbye {
    match &solo.sent(Lane::Control)[..] {
        [Frame::Goodbye(goodbye)] => goodbye.clone(),
        other => panic!("one goodbye expected, not {other:?}"),
    }
}

fn edge() -> (EdgeSession, Store) {
    let mut store = Store::new(1);
    store.subscriptions = [(SubscriptionId::NODE, 0)].into();
    (EdgeSession::new(EdgeConfig::new(node(), StoreId([1; 16])), Moment::default(), &store), store)
}

fn at(seconds: u64) -> Moment {
    Moment::after_origin(Duration::from_secs(seconds))
}

#[test]
fn incompatible_versions_end_with_both_ranges_named() {
    let mut solo = Solo::new(0);
    let mut hello = solo.hello();
    hello.versions = (2, 5);
    let error = solo.feed(Lane::Control, Frame::Hello(hello)).expect_err("no common version");
    assert!(matches!(error, SessionError::VersionMismatch { peer_oldest: 2, peer_newest: 5, .. }), "{error}");
    let goodbye = goodbye_of(&mut solo);
    assert_eq!(goodbye.reason, GoodbyeReason::VersionMismatch);
    assert!(goodbye.message.contains("versions 2 to 5"), "{}", goodbye.message);
    assert!(goodbye.retry_after >= Duration::from_secs(30), "only an upgrade helps");
    assert!(solo.session.is_closed());
    assert_eq!(solo.events(), [CloudEvent::Closed(goodbye)]);
}

#[test]
fn a_newer_edge_that_still_speaks_version_1_is_welcome() {
    let mut solo = Solo::new(0);
    let mut hello = solo.hello();
    hello.versions = (1, 5);
    solo.feed(Lane::Control, Frame::Hello(hello)).expect("version 1 is common");
    assert!(matches!(&solo.sent(Lane::Control)[0], Frame::Welcome(welcome) if welcome.version == 1));
}

#[test]
fn the_hello_must_name_the_node_of_the_certificate() {
    let mut solo = Solo::new(1);
    let mut hello = solo.hello();
    hello.node = NodeId::parse("edge-2").expect("valid");
    let error = solo.feed(Lane::Control, Frame::Hello(hello)).expect_err("another node");
    assert!(error.to_string().contains("\"edge-2\"") && error.to_string().contains("\"edge-1\""), "{error}");
    assert_eq!(goodbye_of(&mut solo).reason, GoodbyeReason::Forbidden);
    assert!(solo.sent(Lane::Delivery).is_empty(), "the node's objects are not shown to another node");
}

#[test]
fn frames_out_of_state_are_named() {
    for (greeted, frame, text) in [
        (false, Frame::LeaseRenew { renew_time_micros: 1 }, "a lease renewal arrived before the hello"),
        (
            true,
            Frame::InventoryRequest { subscription: SubscriptionId(1) },
            "an inventory request arrived from an edge",
        ),
        (
            true,
            Frame::Unsubscribe { subscription: SubscriptionId::NODE },
            "the pushed set cannot be unsubscribed",
        ),
        (true, Frame::Hello(Solo::new(0).hello()), "a second hello"),
    ] {
        let mut solo = if greeted { Solo::new(0).greeted() } else { Solo::new(0) };
        solo.sent(Lane::Control);
        let error = solo.feed(Lane::Control, frame).expect_err(text);
        assert!(error.to_string().contains(text), "{error} should contain {text:?}");
        assert_eq!(goodbye_of(&mut solo).reason, GoodbyeReason::ProtocolError);
    }
}

#[test]
fn an_edge_names_frames_out_of_state_too() {
    for (frame, text) in [
        (Frame::Ping { id: 1 }, "a ping arrived before the welcome"),
        (Frame::Ack { lanes: Vec::new() }, "an acknowledgement arrived before the welcome"),
    ] {
        let (mut edge, store) = edge();
        let error = edge.handle_frame(at(0), Lane::Control, frame, &store).expect_err(text);
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn a_silent_peer_is_given_ten_seconds() {
    let mut solo = Solo::new(0);
    assert_eq!(solo.session.next_timeout(), Some(at(10)));
    solo.wait(Duration::from_secs(9));
    assert!(solo.events().is_empty());
    solo.wait(Duration::from_secs(1));
    let goodbye = goodbye_of(&mut solo);
    assert_eq!((goodbye.reason, goodbye.message.contains("no hello")), (GoodbyeReason::Timeout, true));

    let (mut edge, _) = edge();
    edge.poll_transmit(at(0), Lane::Control).expect("the hello");
    edge.handle_timeout(at(10));
    let closed = edge.poll_event();
    assert!(
        matches!(&closed, Some(EdgeEvent::Closed(bye)) if bye.message.contains("no welcome")),
        "{closed:?}"
    );
}

#[test]
fn frames_after_a_goodbye_are_ignored() {
    let mut solo = Solo::new(1).greeted();
    let retry_after = Duration::from_secs(7);
    let message = "rolling update".to_owned();
    let goodbye = Goodbye { reason: GoodbyeReason::Draining, message, retry_after };
    solo.session.say_goodbye(goodbye.clone());
    solo.feed(Lane::Control, Frame::Hello(solo.hello())).expect("ignored");
    assert_eq!(goodbye_of(&mut solo), goodbye);
    solo.feed(Lane::Control, Frame::Welcome(welcome())).expect("ignored");
    assert!(solo.session.is_closed());
    assert_eq!(solo.session.next_timeout(), None);
}

fn welcome() -> tombolo_proto::frame::Welcome {
    let mut solo = Solo::new(0).greeted();
    match solo.sent(Lane::Control).remove(0) {
        Frame::Welcome(welcome) => welcome,
        other => panic!("a welcome comes first, not {other:?}"),
    }
}

#[test]
fn the_retry_after_of_a_goodbye_reaches_the_edge() {
    let mut world = World::new(Settings::default());
    world.keep_events = true;
    world.connect();
    world.run_for(Duration::from_millis(50));
    world.say_goodbye();
    world.run_for(Duration::from_millis(50));
    let closed = world.edge_events.iter().rfind(|event| matches!(event, EdgeEvent::Closed(_)));
    assert!(
        matches!(closed, Some(EdgeEvent::Closed(bye)) if bye.retry_after == Duration::from_secs(1)),
        "{closed:?}"
    );
}

#[test]
fn silence_is_filled_with_pings_whose_round_trip_is_measured() {
    let mut world = World::new(Settings { delays: [Duration::from_millis(150); 3], ..Settings::default() });
    world.keep_events = true;
    world.connect();
    world.run_for(Duration::from_secs(3600));
    assert!(world.connection.is_some(), "pings keep an otherwise silent session alive");
    let trip = Duration::from_millis(300);
    assert!(world.cloud_events.contains(&CloudEvent::RoundTrip(trip)), "{:?}", world.cloud_events);
    let edge_trips = world.edge_events.iter().filter(|event| **event == EdgeEvent::RoundTrip(trip)).count();
    assert!(
        (2..=121).contains(&edge_trips),
        "{edge_trips} round trips: one by the hello, at most one in 30 s"
    );
}

#[test]
fn a_dead_link_is_noticed_by_both_sides() {
    let mut world = World::new(Settings::default());
    world.keep_events = true;
    world.connect();
    world.run_for(Duration::from_secs(1));
    world.blackhole = true;
    world.run_for(Duration::from_secs(80));
    let by_cloud = world
        .cloud_events
        .iter()
        .any(|event| matches!(event, CloudEvent::Closed(bye) if bye.reason == GoodbyeReason::Timeout));
    let by_edge = world
        .edge_events
        .iter()
        .any(|event| matches!(event, EdgeEvent::Closed(bye) if bye.reason == GoodbyeReason::Timeout));
    assert!(by_cloud && by_edge, "idle timeouts: cloud {by_cloud}, edge {by_edge}");
}

#[test]
fn useless_frames_are_tolerated_up_to_a_limit() {
    let mut solo = Solo::new(0).greeted();
    for id in 0..u64::from(PATIENCE) {
        solo.feed(Lane::Control, Frame::Pong { id }).expect("a few are tolerated");
    }
    let error = solo.feed(Lane::Control, Frame::Pong { id: 0 }).expect_err("too many are not tolerated");
    assert!(error.to_string().contains("a pong without a ping"), "{error}");
}

fn delivery(seq: u64, name: usize) -> Frame {
    let change = Change::Absent { key: key(0, name) };
    Frame::Deliver(Deliver { seq: Seq(seq), subscription: SubscriptionId::NODE, change })
}

#[test]
fn a_delivery_may_overtake_the_welcome_in_its_own_lane() {
    let (mut edge, store) = edge();
    edge.poll_transmit(at(0), Lane::Control).expect("the hello");
    edge.handle_frame(at(0), Lane::Bulk, delivery(1, 0), &store).expect("kept");
    edge.handle_frame(at(0), Lane::Delivery, delivery(1, 1), &store).expect("kept");
    assert_eq!(edge.poll_event(), None, "nothing is stored before the epoch is known");
    edge.handle_frame(at(1), Lane::Control, Frame::Welcome(welcome()), &store).expect("in time");
    let events: Vec<_> = std::iter::from_fn(|| edge.poll_event()).collect();
    assert!(matches!(events[0], EdgeEvent::Welcomed { .. }), "{events:?}");
    let deliveries = events.iter().filter(|event| matches!(event, EdgeEvent::Deliver { .. })).count();
    assert_eq!(deliveries, 2);
}

#[test]
fn deliveries_before_the_welcome_are_bounded() {
    let (mut edge, store) = edge();
    edge.poll_transmit(at(0), Lane::Control).expect("the hello");
    let object = super::harness::cloud::Object { uid: 1, revision: 1, content: 1, len: EARLY_BYTES_MAX / 4 };
    let change = Change::Upsert(object.shared(&key(0, 0), 1));
    let frame = |seq| {
        Frame::Deliver(Deliver { seq: Seq(seq), subscription: SubscriptionId::NODE, change: change.clone() })
    };
    for seq in 1..=3 {
        edge.handle_frame(at(0), Lane::Bulk, frame(seq), &store).expect("fits");
    }
    assert!(edge.handle_frame(at(0), Lane::Bulk, frame(4), &store).is_err());
}

#[test]
fn positions_must_follow_each_other() {
    let (mut edge, store) = edge();
    edge.poll_transmit(at(0), Lane::Control).expect("the hello");
    edge.handle_frame(at(0), Lane::Control, Frame::Welcome(welcome()), &store).expect("in time");
    edge.handle_frame(at(0), Lane::Delivery, delivery(1, 0), &store).expect("the first");
    edge.handle_frame(at(0), Lane::Delivery, delivery(1, 0), &store).expect("a repeat is harmless");
    let delivered =
        std::iter::from_fn(|| edge.poll_event()).filter(|e| matches!(e, EdgeEvent::Deliver { .. }));
    assert_eq!(delivered.count(), 1, "and is not passed on");
    let error = edge.handle_frame(at(0), Lane::Delivery, delivery(3, 0), &store).expect_err("2 is missing");
    assert!(error.to_string().contains("position 3 of lane Delivery arrived after 1"), "{error}");
}

#[test]
fn welcome_contains_the_present_wall_clock() {
    let mut solo = Solo::new(0);
    solo.now = at(3);
    let mut solo = solo.greeted();
    let welcome = solo.sent(Lane::Control).remove(0);
    assert!(matches!(&welcome, Frame::Welcome(w) if w.unix_millis == 1_700_000_003_000), "{welcome:?}");
}

#[test]
fn attestation_is_sent_once_before_the_pushed_set_is_caught_up() {
    let mut solo = Solo::new(0);
    let mut hello = solo.hello();
    hello.features = features::ATTESTATION;
    let (first, second) = (Bytes::from_static(b"first"), Bytes::from_static(b"second"));
    solo.session.attest(&first);
    solo.feed(Lane::Control, Frame::Hello(hello)).expect("a good hello");
    solo.session.attest(&first);
    solo.session.attest(&first);
    let said = solo.sent(Lane::Control);
    let [Frame::Welcome(welcome), Frame::Attestation { proof }, rest @ ..] = &said[..] else {
        panic!("{said:?}")
    };
    assert_eq!((welcome.features, proof), (features::ATTESTATION, &first));
    assert!(rest.iter().any(|frame| matches!(frame, Frame::CaughtUp { .. })), "{rest:?}");
    assert!(!rest.iter().any(|frame| matches!(frame, Frame::Attestation { .. })), "{rest:?}");
    solo.session.attest(&first);
    assert_eq!(solo.sent(Lane::Control), [], "the edge has this attestation");
    // If two are waiting, only the newest is sent.
    solo.session.attest(&Bytes::from_static(b"between"));
    solo.session.attest(&second);
    assert_eq!(solo.sent(Lane::Control), [Frame::Attestation { proof: second }]);
}

#[test]
fn edge_without_the_feature_gets_no_attestation() {
    let mut solo = Solo::new(0);
    let hello = Hello { features: features::ALL & !features::ATTESTATION, ..solo.hello() };
    solo.feed(Lane::Control, Frame::Hello(hello)).expect("a good hello");
    solo.session.attest(&Bytes::from_static(b"unknown there"));
    let said = solo.sent(Lane::Control);
    assert!(matches!(&said[0], Frame::Welcome(welcome) if welcome.features & features::ATTESTATION == 0));
    assert!(!said.iter().any(|frame| matches!(frame, Frame::Attestation { .. })), "{said:?}");
}

#[test]
fn edge_presents_its_attestation_and_passes_new_ones_on() {
    let (_, store) = edge();
    let mut config = EdgeConfig::new(node(), StoreId([1; 16]));
    config.attestation = Bytes::from_static(b"before");
    let mut edge = EdgeSession::new(config, Moment::default(), &store);
    let hello = edge.poll_transmit(at(0), Lane::Control);
    let Some(Frame::Hello(hello)) = hello else { panic!("{hello:?}") };
    assert_eq!(hello.attestation, "before");
    assert_ne!(hello.features & features::ATTESTATION, 0);
    let mut solo = Solo::new(0);
    solo.feed(Lane::Control, Frame::Hello(hello)).expect("a good hello");
    solo.session.attest(&Bytes::from_static(b"now"));
    for frame in solo.sent(Lane::Control) {
        edge.handle_frame(at(0), Lane::Control, frame, &store).expect("a good frame");
    }
    let events: Vec<_> = std::iter::from_fn(|| edge.poll_event()).collect();
    let attested = events.iter().position(|event| *event == EdgeEvent::Attested(Bytes::from_static(b"now")));
    let caught_up = events.iter().position(|event| matches!(event, EdgeEvent::CaughtUp { .. }));
    assert!(attested.is_some() && attested < caught_up, "{events:?}");
}
