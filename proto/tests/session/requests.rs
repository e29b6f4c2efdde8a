//! Requests, answers, deadlines, leases.

use std::time::Duration;

use tombolo_proto::frame::{ApiReply, ApiRequest, Frame, Reply, ReplyBody, Request, RequestBody};
use tombolo_proto::limits::{BULK_OBJECT_MIN, FRAME_LEN_MAX, REQUEST_TIMEOUT_MAX, REQUESTS_MAX};
use tombolo_proto::session::{CloudEvent, EdgeEvent, RequestError};
use tombolo_proto::{Lane, RequestId};

use super::harness::solo::Solo;
use super::harness::world::{Settings, World};

fn api(len: usize) -> RequestBody {
    RequestBody::Api(ApiRequest {
        body: vec![b' '; len].into(),
        ..ApiRequest::new("GET", "/api/v1/nodes/edge-1")
    })
}

fn request(id: u64, timeout: Duration) -> Frame {
    Frame::Request(Request { id: RequestId(id), timeout, body: api(0), caller_token: None })
}

fn reply(id: u64, len: usize) -> Reply {
    let (content_type, body) = ("application/json".to_owned(), vec![b' '; len].into());
    Reply { id: RequestId(id), body: ReplyBody::Api(ApiReply { code: 200, content_type, body }) }
}

fn code(frame: &Frame) -> (u64, u16) {
    match frame {
        Frame::Reply(Reply { id, body: ReplyBody::Api(reply) }) => (id.0, reply.code),
        other => panic!("a reply expected, not {other:?}"),
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn connected() -> World {
    let mut world = World::new(Settings::default());
    world.keep_events = true;
    world.connect();
    world.run_for(SECOND);
    world
}

#[test]
fn edge_refuses_requests_beyond_the_limit_at_once() {
    let mut world = connected();
    world.mute = true;
    let edge = &mut world.connection.as_mut().expect("up").edge;
    for _ in 0..REQUESTS_MAX {
        edge.request(world.now, 20 * SECOND, api(0), None).expect("room");
    }
    assert_eq!(edge.request(world.now, SECOND, api(0), None), Err(RequestError::Busy));
    let large = FRAME_LEN_MAX;
    let mut world = connected();
    let edge = &mut world.connection.as_mut().expect("up").edge;
    let error = edge.request(world.now, SECOND, api(large), None).expect_err("too large");
    assert!(matches!(error, RequestError::TooLarge(_)), "{error}");
}

#[test]
fn a_request_without_answer_times_out_on_both_sides_and_a_late_answer_is_ignored() {
    let mut world = connected();
    world.mute = true;
    world.ask(2 * SECOND, 10);
    world.run_for(SECOND);
    let cloud = &world.connection.as_ref().expect("up").cloud;
    assert_eq!((cloud.stats().requests, cloud.awaits_reply(RequestId(1))), (1, true));
    world.run_for(2 * SECOND);
    assert!(world.edge_events.contains(&EdgeEvent::RequestTimedOut(RequestId(1))));
    let connection = world.connection.as_mut().expect("up");
    assert_eq!(connection.cloud.stats().requests, 0, "the cloud has forgotten it");
    assert!(!connection.cloud.awaits_reply(RequestId(1)));
    connection.cloud.reply(reply(1, 10));
    // One that was in transit when its time was over, and one that was never requested.
    for id in [1, 99] {
        let late = Frame::Reply(reply(id, 10));
        connection.edge.handle_frame(world.now, Lane::Control, late, &world.store).expect("ignored");
    }
    world.pump();
    world.run_for(SECOND);
    assert!(!world.edge_events.iter().any(|event| matches!(event, EdgeEvent::Reply(_))));
}

#[test]
fn timeouts_are_cut_and_shrink_while_a_request_waits_for_the_link() {
    let mut solo = Solo::new(0).greeted();
    solo.feed(Lane::Control, request(1, Duration::MAX)).expect("cut, not refused");
    let asked = solo.events().into_iter().find_map(|event| match event {
        CloudEvent::Request(request) => Some(request.timeout),
        _ => None,
    });
    assert_eq!(asked, Some(REQUEST_TIMEOUT_MAX));

    let mut world = connected();
    let connection = world.connection.as_mut().expect("up");
    connection.edge.request(world.now, 10 * SECOND, api(0), None).expect("room");
    let frame = connection.edge.poll_transmit(world.now + 4 * SECOND, Lane::Control);
    assert!(matches!(&frame, Some(Frame::Request(request)) if request.timeout == 6 * SECOND), "{frame:?}");
}

#[test]
fn too_many_requests_are_answered_with_429_and_in_the_end_with_a_goodbye() {
    let mut solo = Solo::new(0).greeted();
    solo.sent(Lane::Control);
    for id in 0..REQUESTS_MAX as u64 + 2 {
        solo.feed(Lane::Control, request(id, SECOND)).expect("answered");
    }
    let answers: Vec<_> =
        solo.sent(Lane::Control).iter().filter(|f| matches!(f, Frame::Reply(_))).map(code).collect();
    assert_eq!(answers, [(256, 429), (257, 429)]);
    let unread = (1000..2000).map(|id| solo.feed(Lane::Control, request(id, SECOND))).find_map(Result::err);
    let text = unread.expect("refusals that are not read are bounded").to_string();
    assert!(text.contains("more than 256 requests are pending"), "{text}");
}

#[test]
fn pending_request_id_cannot_be_reused() {
    let mut solo = Solo::new(0).greeted();
    solo.feed(Lane::Control, request(7, SECOND)).expect("fresh");
    let error = solo.feed(Lane::Control, request(7, SECOND)).expect_err("twice");
    assert!(error.to_string().contains("request 7 arrived twice"), "{error}");
}

#[test]
fn large_answers_take_the_bulk_lane_and_impossible_ones_become_errors() {
    let mut solo = Solo::new(0).greeted();
    solo.sent(Lane::Control);
    for id in 1..=3 {
        solo.feed(Lane::Control, request(id, SECOND)).expect("fresh");
    }
    solo.session.reply(reply(1, BULK_OBJECT_MIN));
    solo.session.reply(reply(2, 10));
    solo.session.reply(reply(3, FRAME_LEN_MAX));
    solo.session.reply(reply(3, 10));
    solo.session.reply(reply(4, 10));
    assert_eq!(solo.sent(Lane::Control).iter().map(code).collect::<Vec<_>>(), [(2, 200), (3, 500)]);
    assert_eq!(solo.sent(Lane::Bulk).iter().map(code).collect::<Vec<_>>(), [(1, 200)]);
    assert_eq!(solo.session.stats().requests, 0);
}

#[test]
fn large_request_uses_the_bulk_lane() {
    let mut world = connected();
    world.keep_trace = true;
    world.ask(SECOND, BULK_OBJECT_MIN);
    world.ask(SECOND, 10);
    let lanes: Vec<_> =
        world.trace.iter().filter(|(_, _, f)| matches!(f, Frame::Request(_))).map(|t| t.1).collect();
    assert_eq!(lanes, [Lane::Bulk, Lane::Control]);
    world.run_for(SECOND);
    assert_eq!(world.oracle.open_requests(), 0, "both are answered");
}

#[test]
fn requests_made_before_the_welcome_leave_after_it() {
    let mut world = World::new(Settings::default());
    world.connect();
    world.ask(SECOND, 10);
    world.run_for(SECOND);
    assert_eq!(world.oracle.open_requests(), 0);
}

#[test]
fn only_the_newest_lease_renewal_and_its_newest_answer_travel() {
    let mut world = connected();
    let connection = world.connection.as_mut().expect("up");
    for micros in [10, 30, 20] {
        connection.edge.renew_lease(micros);
    }
    let frame = connection.edge.poll_transmit(world.now, Lane::Control);
    assert_eq!(frame, Some(Frame::LeaseRenew { renew_time_micros: 30 }));
    assert_eq!(connection.edge.poll_transmit(world.now, Lane::Control), None);
    for (micros, code) in [(10, 200), (30, 409), (20, 200)] {
        connection.cloud.lease_renewed(micros, code);
    }
    let frame = connection.cloud.poll_transmit(world.now, Lane::Control, &world.cloud);
    assert_eq!(frame, Some(Frame::LeaseRenewed { renew_time_micros: 30, code: 409 }));
}

#[test]
fn ended_session_accepts_nothing() {
    let mut world = connected();
    world.say_goodbye();
    let connection = world.connection.as_mut().expect("still draining");
    connection.edge.say_goodbye(tombolo_proto::frame::Goodbye {
        reason: tombolo_proto::frame::GoodbyeReason::Draining,
        message: String::new(),
        retry_after: Duration::ZERO,
    });
    assert_eq!(connection.edge.request(world.now, SECOND, api(0), None), Err(RequestError::Closed));
}
