//! Bytes, frames and messages that no real node sends.

use tombolo_proto::frame::{Frame, Goodbye, GoodbyeReason, ReplyBody, RequestBody};
use tombolo_proto::message::{
    Content, Group, Message, MessageId, ObjectPath, Operation, Outcome, ResourceType, Route, Source,
};
use tombolo_proto::package::Header;
use tombolo_proto::{Lane, RequestId};
use tombolo_testkit::wait_for;
use tombolo_tests::hub::RawHub;
use tombolo_tests::node::RawNode;
use tombolo_tests::raw::{RawQuic, RawWebSocket};
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

use super::{refusal, says};

fn broken(goodbye: &Goodbye, part: &str) {
    assert_eq!(goodbye.reason, GoodbyeReason::ProtocolError, "{}", goodbye.message);
    says(&goodbye.message, &["protocol error", part]);
    assert!(goodbye.retry_after.as_secs() >= 10, "the peer would repeat the mistake at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_and_endless_frames_are_answered_and_end_one_session() {
    let mut world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let garbage = vec![0xff; 100];
    let undecodable =
        [&Header { lane: Lane::Control, more: false, len: 40 }.encode()[..], &[0xff; 40]].concat();
    let endless = Header { lane: Lane::Bulk, more: false, len: u32::MAX }.encode();
    for (bytes, part) in [(&garbage, "another protocol"), (&undecodable, "undecodable frame in lane Control")]
    {
        let mut socket = RawWebSocket::connect(&world, "edge-a").await.unwrap();
        socket.message(bytes.clone()).await.unwrap();
        broken(&socket.goodbye().await.unwrap(), part);
        let mut quic = RawQuic::connect(&world, "edge-a").await.unwrap();
        quic.bytes(Lane::Control, bytes).await.unwrap();
        broken(&quic.goodbye().await.unwrap(), part);
    }
    let mut quic = RawQuic::connect(&world, "edge-a").await.unwrap();
    quic.bytes(Lane::Bulk, &endless).await.unwrap();
    broken(&quic.goodbye().await.unwrap(), "exceeds the limit");
    let mut socket = RawWebSocket::connect(&world, "edge-a").await.unwrap();
    // A binary WebSocket frame, masked, with a length of 4 GiB; the payload never arrives.
    let head = [&[0x82, 0xff][..], &(4_u64 << 30).to_be_bytes(), &[0; 4]].concat();
    socket.bytes(&head).await.unwrap();
    broken(&socket.goodbye().await.unwrap(), "exceeds the limit");
    says(&world.cloud_log(), &["the edge violated the protocol", "node=edge-a", "exceeds the limit"]);
    world.check_cloud().unwrap();
    let after = world.raw_node("edge-a", "edge-a").await.unwrap();
    after.api("GET", "/api/v1/nodes/edge-a", "", "").await.unwrap();
}

fn message(operation: Operation, name: &str) -> RequestBody {
    let path = ObjectPath::new("default", ResourceType::Lease, name);
    let route = Route::new(Source::Edged, Group::Meta, operation, path.into());
    let content = Content::from_value(&serde_json::json!({})).unwrap();
    RequestBody::Message(Box::new(Message::new(MessageId::from_random_bytes([7; 16]), 0, route, content)))
}

async fn ask(node: &RawNode, operation: Operation, name: &str) -> Message {
    match node.ask(message(operation, name)).await.unwrap() {
        ReplyBody::Message(reply) => *reply,
        ReplyBody::Api(reply) => panic!("not a message: {reply:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsupported_messages_are_answered() {
    let mut world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let node = world.raw_node("edge-a", "edge-a").await.unwrap();
    let unknown = ask(&node, Operation::Publish, "edge-a").await;
    assert_eq!(unknown.route.operation, Operation::Error, "{unknown:?}");
    let sentence = unknown.content.as_text().unwrap().into_owned();
    says(&sentence, &["unknown operation", "publish", "lease", "is not supported"]);
    // Objects of another node, connected or not: the API server decides, and its answer is returned.
    let elsewhere = ask(&node, Operation::Query, "edge-b").await;
    let Ok(Outcome::Failed(status)) = Outcome::read(&elsewhere.content) else { panic!("{elsewhere:?}") };
    assert_eq!(status.code, 403, "{status:?}");
    says(&status.message, &["edge-a", "edge-b"]);
    let reply = node.api("FROBNICATE", "/api/v1/nodes/edge-a", "", "").await.unwrap();
    assert_eq!(reply.code, 400);
    says(&String::from_utf8_lossy(&reply.body), &["FROBNICATE"]);
    world.check_cloud().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_node_a_does_not_serve_node_b() {
    let mut world = World::start(Api::Embedded, Transport::Quic).await.unwrap();
    let goodbye = world.raw_node("edge-a", "edge-b").await.unwrap().ended().await.unwrap();
    assert_eq!(goodbye.reason, GoodbyeReason::Forbidden);
    says(&goodbye.message, &["hello names node \"edge-b\"", "the certificate \"edge-a\"", "join again"]);
    world.check_cloud().unwrap();

    let hub = RawHub::start().await.unwrap();
    world.prepare_edge("edge-b").unwrap();
    hub.authority.enlist("edge-a", &world.edge_dir("edge-b")).unwrap();
    let text = refusal(&world.edge_command("edge-b", &[]).unwrap());
    says(
        &text,
        &["node.pem", "for system:node:edge-a, not for system:node:edge-b", "run edgecore join again"],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edge_leaves_a_cloud_that_breaks_the_protocol_and_says_why() {
    let mut hub = RawHub::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut agent = hub.agent(folder.path(), None).unwrap();
    let mut edge = hub.edge().await.unwrap();
    edge.welcome(0).await.unwrap();
    let request = tombolo_proto::frame::Request {
        id: RequestId(1),
        timeout: std::time::Duration::from_secs(1),
        caller_token: None,
        body: message(Operation::Query, "x"),
    };
    edge.say(Lane::Control, Frame::Request(request)).await.unwrap();
    let goodbye = edge
        .until("a goodbye", |frame| match frame {
            Frame::Goodbye(goodbye) => Some(goodbye.clone()),
            _ => None,
        })
        .await
        .unwrap();
    assert_eq!(goodbye.reason, GoodbyeReason::ProtocolError);
    wait_for("the agent to log it", DEADLINE, || async {
        let log = agent.log();
        if log.contains("the cloud broke the protocol") { Ok(()) } else { Err(log) }
    })
    .await;
    agent.check_running().unwrap();
}
