//! Exact scenes with a KubeEdge edge.

use std::time::Duration;

use bytes::Bytes;
use tombolo_proto::frame::RefusalReason;
use tombolo_proto::limits::KUBEEDGE_FOLLOWED_MAX;
use tombolo_proto::message::{Content, Group, Message, MessageId, Operation, ResourcePath, Route, Source};
use tombolo_proto::session::CloudEvent;
use tombolo_proto::session::kubeedge::{CloudConfig, CloudSession, Ledger};
use tombolo_proto::{SubscriptionId, kubeedge};

use super::cluster::{epoch, key, node, wire_path};
use super::selection::{SUBSCRIPTION, Selection};
use super::world::{World, object};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn settled(objects: &[(&str, &str)]) -> World {
    let mut world = World::new(3);
    for (kind, name) in objects {
        world.cluster.put(&key(kind, name));
        world.cluster.want(&key(kind, name), true);
    }
    world.connect();
    world.run_for(seconds(5));
    world.check();
    world.pushes.clear();
    world.events.clear();
    world
}

fn pushed(world: &World) -> Vec<(String, String)> {
    world.pushes.iter().map(|(path, operation, _)| (path.clone(), operation.to_string())).collect()
}

fn push(path: &str, operation: &str) -> (String, String) {
    (path.to_owned(), operation.to_owned())
}

#[test]
fn first_deliveries_are_inserts_but_secrets_and_the_node_are_updates() {
    let mut world = World::new(3);
    for (kind, name) in [("pods", "p"), ("configmaps", "c"), ("secrets", "s")] {
        world.cluster.put(&key(kind, name));
        world.cluster.want(&key(kind, name), true);
    }
    world.kubeedge.registered = true;
    world.connect();
    world.run_for(seconds(3));
    let mut given = pushed(&world);
    given.sort();
    let expected = [
        push("default/configmap/c", "insert"),
        push("default/pod/p", "insert"),
        push("default/secret/s", "update"),
        push("null/node/edge1", "update"),
    ];
    assert_eq!(given, expected);
    assert!(world.events.iter().any(|event| matches!(event, CloudEvent::CaughtUp { .. })));
}

#[test]
fn changes_during_an_absence_arrive_within_a_second() {
    for orderly in [true, false] {
        let mut world = settled(&[("pods", "p"), ("configmaps", "c"), ("secrets", "s")]);
        world.cut(orderly);
        world.cluster.put(&key("configmaps", "c"));
        world.cluster.delete(&key("secrets", "s"));
        world.cluster.want(&key("secrets", "s"), false);
        world.cluster.want(&key("pods", "p"), false);
        world.cluster.put(&key("pods", "q"));
        world.cluster.want(&key("pods", "q"), true);
        world.run_for(seconds(60));
        world.connect();
        world.run_for(seconds(1));
        world.check();
        if orderly {
            assert!(world.pushes.iter().all(|(path, ..)| path != "null/node/edge1"), "nothing else is sent");
        }
    }
}

#[test]
fn a_new_incarnation_is_a_deletion_and_a_creation() {
    let mut world = settled(&[("pods", "p")]);
    world.cluster.delete(&key("pods", "p"));
    world.cluster.put(&key("pods", "p"));
    world.offer(&key("pods", "p"));
    world.run_for(seconds(2));
    assert_eq!(pushed(&world), [push("default/pod/p", "delete"), push("default/pod/p", "insert")]);
    world.check();
}

/// A view may only keep a share of a node's objects. A session that kept everything that it has delivered would keep
/// every version that was ever large.
#[test]
fn session_keeps_only_the_version_of_a_large_delivered_object() {
    let mut world = settled(&[("pods", "small")]);
    let (small, large) = (key("pods", "small"), key("pods", "large"));
    world.cluster.put_large(&large, 64 * 1024);
    world.cluster.want(&large, true);
    world.offer(&large);
    world.run_for(seconds(2));
    assert_eq!(pushed(&world), [push("default/pod/large", "insert")]);
    let kept = |world: &World, key| std::sync::Arc::strong_count(&world.cluster.objects[key]) - 1;
    assert_eq!((kept(&world, &large), kept(&world, &small)), (0, 1));
    world.offer(&large);
    world.run_for(seconds(2));
    assert_eq!(world.pushes.len(), 1, "the row is known to exist");
    world.cluster.delete(&large);
    world.cluster.want(&large, false);
    world.offer(&large);
    world.run_for(seconds(2));
    assert_eq!(pushed(&world)[1..], [push("default/pod/large", "delete")]);
    world.check();
}

#[test]
fn an_edge_that_lost_its_store_gets_everything_again() {
    let mut world = settled(&[("pods", "p"), ("configmaps", "c")]);
    world.cut(true);
    world.kubeedge.killed();
    world.kubeedge.rows.clear();
    world.run_for(seconds(2));
    world.connect();
    world.run_for(seconds(3));
    world.check();
    assert!(world.kubeedge.registered, "the kubelet has found its node");
}

#[test]
fn failing_object_is_parked_and_reported() {
    let mut world = settled(&[("configmaps", "c"), ("configmaps", "d")]);
    world.kubeedge.failing = Some(wire_path(&key("configmaps", "c")));
    for name in ["c", "d"] {
        world.cluster.put(&key("configmaps", name));
        world.offer(&key("configmaps", name));
    }
    world.run_for(seconds(2));
    let refused = world.events.iter().find_map(|event| match event {
        CloudEvent::Refused { message, reason, .. } => Some((message.clone(), *reason)),
        _ => None,
    });
    assert_eq!(refused, Some(("the database is locked".to_owned(), RefusalReason::Storage)));
    world.kubeedge.failing = None;
    world.run_for(seconds(20));
    world.check();
}

#[test]
fn a_silent_edge_is_dead_after_thirty_seconds_and_any_traffic_is_life() {
    let mut world = settled(&[]);
    world.silent = true;
    world.run_for(seconds(14));
    assert!(world.connection.is_some());
    world.run_for(seconds(17));
    assert!(world.connection.is_none(), "30 s of silence");
    let mut world = settled(&[]);
    for _ in 0..8 {
        world.silent = true;
        world.run_for(seconds(10));
        let connection = world.connection.as_mut().expect("alive");
        // Not even a message.
        connection.session.handle_document(world.now, &Bytes::from_static(b"{}")).expect("patient");
    }
    assert_eq!(world.connection.expect("alive").session.stats().malformed, 8);
}

#[test]
fn an_object_that_is_never_acknowledged_is_given_up_after_five_copies() {
    let mut world = settled(&[("configmaps", "c")]);
    world.kubeedge.stalled_until = world.now + seconds(60);
    world.cluster.put(&key("configmaps", "c"));
    world.offer(&key("configmaps", "c"));
    world.run_for(seconds(24));
    let stats = world.connection.as_ref().expect("alive").session.stats();
    assert_eq!((stats.resent, stats.refused, stats.window), (4, 0, 1));
    world.run_for(seconds(4));
    let stats = world.connection.as_ref().expect("alive").session.stats();
    assert_eq!(stats.refused, 1);
    world.run_for(seconds(60));
    world.check();
}

#[test]
fn document_is_not_resent_before_it_has_left_the_socket() {
    let mut world = settled(&[("configmaps", "c")]);
    let now = world.now;
    world.cluster.put(&key("configmaps", "c"));
    let session = &mut world.connection.as_mut().expect("alive").session;
    session.offer(SubscriptionId::NODE, key("configmaps", "c"), &world.cluster);
    let first = session.poll_transmit(now, &world.cluster).expect("a push");
    let late = now + seconds(12);
    session.heard(late);
    session.handle_timeout(late);
    assert!(session.poll_transmit(late, &world.cluster).is_none(), "it waits in the socket");
    session.transmitted(late, first.number);
    session.handle_timeout(late + seconds(4));
    assert!(session.poll_transmit(late + seconds(4), &world.cluster).is_none());
    session.handle_timeout(late + seconds(5));
    let second = session.poll_transmit(late + seconds(5), &world.cluster).expect("a resend");
    assert_eq!(second.to_bytes(), first.to_bytes(), "the same message under the same id");
    assert_ne!(second.number, first.number);
}

#[test]
fn control_messages_and_device_twins_are_answered() {
    let mut world = settled(&[]);
    let now = world.now;
    let session = &mut world.connection.as_mut().expect("alive").session;
    let say = |text: &'static str| Bytes::from_static(text.as_bytes());
    let ping = say(
        r#"{"header":{"msg_id":"a","timestamp":1},"route":{"source":"x","group":"g","operation":"ping","resource":"r"},"content":null}"#,
    );
    session.handle_document(now, &ping).expect("good");
    let detail = say(
        r#"{"header":{"msg_id":"b","timestamp":1},"route":{"source":"twin","group":"resource","operation":"get","resource":"membership/detail"},"content":"{}"}"#,
    );
    session.handle_document(now, &detail).expect("good");
    let mut answer = || {
        let document = session.poll_transmit(now, &world.cluster).expect("an answer").to_bytes();
        kubeedge::decode(&document).expect("a message")
    };
    let ack = answer();
    assert_eq!((ack.content, ack.route.operation), (Content::text("ack"), Operation::Response));
    let confirmed = answer();
    assert_eq!(confirmed.route.group.as_str(), "twin");
    assert_eq!(confirmed.route.resource.to_wire(), "twin");
    assert_eq!(confirmed.header.parent.expect("a parent").to_string(), "b");
}

/// A device twin's reports are data: they are never confirmed, unless they may be discarded. An edge repeats
/// unconfirmed reports every minute, and does not receive a reason for each of them.
#[test]
fn reports_of_devices_are_refused_unless_they_are_to_be_discarded() {
    for discard_devices in [false, true] {
        let world = settled(&[]);
        let config = CloudConfig::new(node(), epoch(), 0, [7; 16]);
        let config = CloudConfig { discard_devices, ..config };
        let mut session = CloudSession::new(config, Ledger::default(), world.now, &world.cluster);
        let report = |id: u32| {
            Bytes::from(format!(
                r#"{{"header":{{"msg_id":"r{id}","timestamp":1}},"route":{{"source":"twin","group":"resource","operation":"update","resource":"device/d/sensor/twin/edge_updated"}},"content":"{{}}"}}"#
            ))
        };
        let mut now = world.now;
        let mut answers = Vec::new();
        for id in 0..200 {
            session.handle_document(now, &report(id)).expect("good");
            while let Some(document) = session.poll_transmit(now, &world.cluster) {
                let message = kubeedge::decode(&document.to_bytes()).expect("a message");
                if message.header.parent.as_ref().is_some_and(|parent| parent.to_string().starts_with('r')) {
                    answers.push((id, message));
                }
            }
            now = now + Duration::from_secs(if id == 150 { 61 } else { 0 });
        }
        let told: Vec<u32> = answers.iter().map(|(id, _)| *id).collect();
        if discard_devices {
            assert_eq!(told, (0..200).collect::<Vec<_>>());
            assert!(answers.iter().all(|(_, answer)| answer.route.group.as_str() == "twin"));
            continue;
        }
        assert_eq!(told, (0..64).chain(151..200).collect::<Vec<_>>());
        for (_, refusal) in &answers {
            // Any answer to the group of twins would count as a confirmation.
            assert_eq!(
                (refusal.route.group.as_str(), &refusal.route.operation),
                ("resource", &Operation::Error)
            );
            assert!(refusal.content.as_text().expect("a text").contains("kubeedge.devices: discard"));
        }
        let events: Vec<_> = std::iter::from_fn(|| session.poll_event()).collect();
        let counted =
            events.iter().filter(|event| **event == CloudEvent::DeviceReport { discarded: false }).count();
        assert_eq!(counted, 200);
    }
}

#[test]
fn objects_of_a_subscription_share_the_rows_of_the_node() {
    let mut world = settled(&[("configmaps", "c")]);
    let (shared, slice) = (key("configmaps", "c"), key("endpointslices", "e"));
    world.cluster.put(&slice);
    world.cluster.wanted.insert(1, [shared.clone(), slice.clone()].into());
    let session = &mut world.connection.as_mut().expect("alive").session;
    session.open_subscription(SubscriptionId(1), &world.cluster);
    world.pump();
    world.run_for(seconds(2));
    let slice_path = "default/endpointslice/e".to_owned();
    let expected = [(slice_path.clone(), Operation::Insert, "dynamiccontroller".to_owned())];
    assert_eq!(world.pushes, expected, "the edge has the ConfigMap already");
    world.check();
    world.cluster.wanted.remove(&1);
    world.connection.as_mut().expect("alive").session.close_subscription(SubscriptionId(1));
    world.pump();
    world.run_for(seconds(2));
    assert_eq!(world.pushes[1..], [(slice_path, Operation::Delete, "dynamiccontroller".to_owned())]);
    world.check();
}

#[test]
fn a_reply_with_an_object_counts_as_its_delivery() {
    let mut world = settled(&[]);
    let config = key("configmaps", "c");
    world.cluster.put(&config);
    world.cluster.want(&config, true);
    world.kubeedge.ask(Operation::Query, "default/configmap/c", object("null"));
    world.pump();
    world.run_for(seconds(3));
    world.offer(&config);
    world.run_for(seconds(3));
    assert_eq!(world.pushes, []);
    world.check();
    world.cluster.want(&config, false);
    world.offer(&config);
    world.run_for(seconds(3));
    assert_eq!(pushed(&world), [push("default/configmap/c", "delete")]);
    world.check();
}

#[test]
fn change_during_a_reply_is_delivered() {
    let config = key("configmaps", "c");
    let mut world = settled(&[("configmaps", "c")]);
    for delay in (0..600).step_by(15) {
        // Objects that the edge holds are confirmed, and nothing is sent.
        world.kubeedge.ask(Operation::Query, "default/configmap/c", object("null"));
        world.pump();
        world.run_for(seconds(2));
        assert_eq!(world.pushes, []);
        // The answer is being prepared, in transit, or acknowledged: each case once.
        world.kubeedge.ask(Operation::Query, "default/configmap/c", object("null"));
        world.pump();
        world.run_for(Duration::from_millis(delay));
        world.cluster.put(&config);
        world.offer(&config);
        world.run_for(seconds(8));
        world.check();
        world.pushes.clear();
    }
}

#[test]
fn failed_requests_leave_nothing_at_the_edge() {
    let mut world = settled(&[]);
    for path in ["default/configmap/none", "default/secret/none"] {
        world.kubeedge.ask(Operation::Query, path, object("null"));
    }
    world.kubeedge.ask(Operation::Patch, "default/podpatch/none", object(r#""{}""#));
    world.kubeedge.ask(Operation::Query, "kube-node-lease/lease/edge1", object("null"));
    world.pump();
    world.run_for(seconds(3));
    world.check();
    assert_eq!(world.kubeedge.answered.get("error"), Some(&2), "{:?}", world.kubeedge.answered);
}

#[test]
fn own_reports_of_the_edge_are_not_sent_back() {
    let (pod, node) = (key("pods", "p"), super::cluster::node_key());
    let mut world = settled(&[("pods", "p")]);
    for path in ["default/podpatch/p", "null/nodepatch/edge1"] {
        world.kubeedge.ask(Operation::Patch, path, object(r#""{}""#));
    }
    world.pump();
    world.run_for(seconds(10));
    assert_eq!(world.pushes, []);
    // Nor after the next connection.
    world.cut(true);
    world.run_for(seconds(2));
    world.connect();
    world.run_for(seconds(10));
    assert_eq!(world.pushes, []);
    world.check();
    // Changes by other clients still arrive.
    for key in [&pod, &node] {
        world.cluster.put(key);
        world.offer(key);
    }
    world.run_for(seconds(2));
    assert_eq!(pushed(&world), [push("default/pod/p", "update"), push("null/node/edge1", "update")]);
    world.check();
}

#[test]
fn empty_object_is_replaced_by_the_real_one_or_when_needed() {
    let (config, path) = (key("configmaps", "c"), "default/configmap/c");
    let asked = || {
        let mut world = settled(&[]);
        world.cluster.want(&config, true);
        world.cluster.optional.insert(config.clone());
        world.kubeedge.ask(Operation::Query, path, object("null"));
        world.pump();
        world.run_for(seconds(3));
        assert_eq!(world.pushes, []);
        assert!(world.kubeedge.rows.contains_key(path), "the kubelet receives an empty object");
        world.check();
        world
    };
    let mut world = asked();
    world.cut(true);
    world.connect();
    world.run_for(seconds(3));
    assert_eq!(world.pushes, [], "it is remembered over a reconnect");
    world.cluster.put(&config);
    world.offer(&config);
    world.run_for(seconds(3));
    assert_eq!(pushed(&world), [push(path, "delete"), push(path, "insert")]);
    world.check();
    let mut world = asked();
    world.cluster.optional.clear();
    world.offer(&config);
    world.run_for(seconds(3));
    assert_eq!(pushed(&world), [push(path, "delete")], "a pod that needs it must not start without it");
    world.check();
    let mut world = asked();
    world.cluster.want(&config, false);
    world.offer(&config);
    world.run_for(seconds(3));
    assert_eq!(pushed(&world), [push(path, "delete")]);
    world.check();
}

#[test]
fn kubeedge_session_does_not_wait_for_unreadable_objects() {
    let (secret, held) = (key("secrets", "s"), key("configmaps", "c"));
    let mut world = settled(&[("configmaps", "c")]);
    world.cut(true);
    world.cluster.want(&secret, true);
    world.cluster.unreadable = [secret.clone(), held.clone()].into();
    world.connect();
    world.run_for(seconds(3));
    let caught_up =
        |world: &World| world.events.iter().any(|event| matches!(event, CloudEvent::CaughtUp { .. }));
    assert!(caught_up(&world));
    assert_eq!(world.pushes, [], "the edge keeps its object and has no state of the other one");
    assert!(world.kubeedge.rows.contains_key("default/configmap/c"));
    world.cluster.put(&secret);
    world.cluster.put(&held);
    world.cluster.unreadable.clear();
    world.offer(&secret);
    world.offer(&held);
    world.run_for(seconds(3));
    let mut given = pushed(&world);
    given.sort();
    assert_eq!(given, [push("default/configmap/c", "update"), push("default/secret/s", "update")]);
    world.check();
}

#[test]
fn unreadable_object_never_starts_a_pod_with_an_empty_one() {
    let (config, path) = (key("configmaps", "c"), "default/configmap/c");
    let mut world = settled(&[]);
    world.cluster.want(&config, true);
    world.cluster.optional.insert(config.clone());
    world.kubeedge.ask(Operation::Query, path, object("null"));
    world.pump();
    world.run_for(seconds(3));
    world.cluster.unreadable.insert(config.clone());
    world.offer(&config);
    world.run_for(seconds(3));
    assert_eq!(world.pushes, [], "pods that work without it may continue");
    world.cluster.optional.clear();
    world.offer(&config);
    world.run_for(seconds(3));
    assert_eq!(pushed(&world), [push(path, "delete")]);
    assert!(!world.kubeedge.rows.contains_key(path));
}

#[test]
fn session_of_an_edge_that_does_not_read_ends() {
    let mut world = settled(&[("configmaps", "c")]);
    let begin = world.now;
    world.cluster.put(&key("configmaps", "c"));
    let session = &mut world.connection.as_mut().expect("alive").session;
    session.offer(SubscriptionId::NODE, key("configmaps", "c"), &world.cluster);
    let waits = session.poll_transmit(begin, &world.cluster).expect("a push").number;
    for late in [10, 20, 29] {
        session.heard(begin + seconds(late));
        session.handle_timeout(begin + seconds(late));
        assert!(!session.is_closed(), "{late} s");
    }
    // A peer that reads anything, however slowly, stays connected.
    session.transmitted(begin + seconds(29), waits);
    session.heard(begin + seconds(40));
    session.handle_timeout(begin + seconds(40));
    assert!(!session.is_closed());
    let again = session.poll_transmit(begin + seconds(40), &world.cluster).expect("a resend");
    assert!(again.number > waits);
    for late in [50, 60, 69] {
        session.heard(begin + seconds(late));
        session.handle_timeout(begin + seconds(late));
        assert!(!session.is_closed(), "{late} s");
    }
    assert!(session.next_timeout().is_some_and(|due| due <= begin + seconds(70)));
    session.heard(begin + seconds(70));
    session.handle_timeout(begin + seconds(70));
    assert!(session.is_closed(), "keepalives alone do not keep the session alive");
}

/// A request of MetaServer with an id and a body of these sizes in bytes.
fn application(number: usize, id: usize, body: usize) -> Bytes {
    let record = format!(
        r#"{{"ID":"{}","Key":"/version","Verb":"get","ReqBody":"{}","Status":"InApplying"}}"#,
        "x".repeat(id),
        "A".repeat(body / 4 * 4)
    );
    let content = Content::from_json(&Bytes::from(record)).expect("JSON");
    let (from, to) = (Source::MetaServer, Group::parse("dynamiccontroller"));
    let route = Route::new(from, to, Operation::parse("null"), ResourcePath::Null);
    let id = MessageId::parse(&format!("id{number}")).expect("an id");
    kubeedge::encode(&Message::new(id, 1, route, content))
}

/// Unread answers are counted, an error does not repeat a large request, and an edge that continues is disconnected.
#[test]
fn unread_refusals_are_bounded_in_bytes() {
    let world = World::new(3);
    let now = tombolo_proto::Moment::default();
    let session = || {
        let config = CloudConfig::new(node(), epoch(), 1_700_000_000_000, [1; 16]);
        let mut session = CloudSession::new(config, Ledger::default(), now, &world.cluster);
        for number in 0..tombolo_proto::limits::REQUESTS_MAX {
            session.handle_document(now, &application(number, 1, 0)).expect("fine");
        }
        session
    };
    for (id, body) in [(1, 3_000_000), (3_000_000, 0)] {
        let mut session = session();
        let before = session.memory();
        session.handle_document(now, &application(1000, id, body)).expect("refused");
        let more = session.memory() - before;
        assert!((1..16 * 1024).contains(&more), "a refusal of {more} bytes");
        let document = session.poll_transmit(now, &world.cluster).expect("a refusal");
        let answer = kubeedge::decode(&document.to_bytes()).expect("a message");
        let said = String::from_utf8_lossy(answer.content.as_json()).into_owned();
        assert!(said.contains("retry later") && said.contains(r#""Key":"/version""#) == (id == 1), "{said}");
        assert_eq!(session.memory(), before, "the answer has been sent");
    }
    let (mut session, mut refused) = (session(), 0);
    let before = session.memory();
    let error = loop {
        match session.handle_document(now, &application(1000 + refused, 1, 12_000)) {
            Ok(()) => refused += 1,
            Err(error) => break error.to_string(),
        }
        let kept = session.memory() - before;
        assert!(kept > refused * 12_000 && kept <= 1024 * 1024, "{kept} bytes of {refused} refusals");
    };
    assert!(refused > 64 && error.contains("does not read"), "{refused} refusals: {error}");
    assert!(session.is_closed());
}

/// A KubeEdge edge is not notified that it follows too much; the session's owner is.
#[test]
fn kubeedge_edge_follows_a_bounded_number_of_objects() {
    let now = tombolo_proto::Moment::default();
    let config = CloudConfig::new(node(), epoch(), 1_700_000_000_000, [1; 16]);
    let mut selection = Selection::default();
    let mut session = CloudSession::new(config, Ledger::default(), now, &selection);
    assert!(session.open_subscription(SUBSCRIPTION, &selection));
    while session.poll_event().is_some() {}
    for number in 0..KUBEEDGE_FOLLOWED_MAX {
        session.offer(SUBSCRIPTION, selection.create(number), &selection);
    }
    assert_eq!(session.poll_event(), None, "the maximum is allowed");
    session.offer(SUBSCRIPTION, selection.create(KUBEEDGE_FOLLOWED_MAX), &selection);
    let ended = session.poll_event();
    assert!(
        matches!(ended, Some(CloudEvent::Ended { subscription: SUBSCRIPTION, code: 413, .. })),
        "{ended:?}"
    );
    let slots = session.stats().dirty;
    assert_eq!(slots, KUBEEDGE_FOLLOWED_MAX + 1);
    assert!(session.memory() > slots * 64, "{}", session.memory());
    session.offer(SUBSCRIPTION, selection.create(KUBEEDGE_FOLLOWED_MAX + 1), &selection);
    assert_eq!(session.stats().dirty, slots, "the subscription is closed");
    assert!(!session.open_subscription(SUBSCRIPTION, &selection), "the edge follows too much already");
}
