//! Rules: results are counted, and the target of a rule is never contacted.

use std::net::TcpListener;

use serde_json::{Value, json};
use tombolo_proto::frame::{ReplyBody, RequestBody};
use tombolo_proto::message::{Content, Group, Message, MessageId, Operation, ResourcePath, Route, Source};
use tombolo_testkit::{cluster_or_skip, wait_for};
use tombolo_tests::kubeedge::KubeEdgeNode;
use tombolo_tests::node::RawNode;
use tombolo_tests::source;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

const RULES: &str = r#"
apiVersion: rules.kubeedge.io/v1
kind: RuleEndpoint
metadata: {name: cloud, namespace: default}
spec: {ruleEndpointType: rest}
---
apiVersion: rules.kubeedge.io/v1
kind: RuleEndpoint
metadata: {name: bus, namespace: default}
spec: {ruleEndpointType: eventbus}
---
apiVersion: rules.kubeedge.io/v1
kind: Rule
metadata: {name: up, namespace: default}
spec:
  source: bus
  sourceResource: {topic: temperature, node_name: edge-1}
  target: cloud
  targetResource: {resource: "http://127.0.0.1:1/"}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_websocket() {
    play(Api::Embedded, Transport::WebSocket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_quic() {
    cluster_or_skip!("real_quic");
    play(Api::Real, Transport::Quic).await;
}

/// CVE-2022-31078: the target of a Rule could answer with an endless body. Here nothing ever contacts the target: not
/// when the rule is created or deleted, nor for messages from an edge, nor for requests of applications on an edge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_target_of_a_rule_is_never_contacted() {
    let world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    // Connections would wait in its backlog, whenever they are made.
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    target.set_nonblocking(true).unwrap();
    let url = format!("http://{}/", target.local_addr().unwrap());
    make(&world, &RULES.replace("http://127.0.0.1:1/", &url));

    let mut kubeedge = KubeEdgeNode::join(&world, "edge-1").await.unwrap();
    kubeedge.connect().await.unwrap();
    // Upwards: what MQTT delivers for the rule, what an application sends to the target, and its answer to a call from
    // there.
    let messages = [
        ("servicebus", url.as_str(), json!("aGk=")),
        ("servicebus", "temperature", json!("aGk=")),
        ("bus", "temperature", json!("21")),
        ("bus", "default/temperature", json!("21")),
    ];
    let sent = messages
        .map(|(source, resource, content)| kubeedge.ask_as(source, "user", "upload", resource, content));
    // MQTT does not wait for an answer; the report that follows shows that the message was processed.
    let answers = futures::future::join_all(sent).await;
    assert!(answers[0].is_ok(), "an application is answered: {:?}", answers[0]);
    kubeedge.send_unanswered("update", "default/rulestatus/up", json!({"Status": "SUCCESS"})).await.unwrap();
    counted(&world, "1").await;
    // Downwards, a rule's source in the cloud would be a port of cloudcore, but only the hub has ports.
    world.kubectl(&["delete", "rule", "up"]).unwrap();
    let contacted = target.accept().map(|(_, from)| from);
    assert!(
        contacted.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock),
        "the target was contacted"
    );
}

async fn play(api: Api, transport: Transport) {
    let world = World::start(api, transport).await.unwrap();
    make(&world, RULES);

    let edge_1 = world.raw_node("edge-1", "edge-1").await.unwrap();
    for result in [json!({"Status": "SUCCESS"}), json!({"Status": "FAIL", "Error": {"Detail": "no broker"}})]
    {
        let reply = report(&edge_1, "default/rulestatus/up", &result).await;
        assert!(reply.content.is_ok(), "{:?}", reply.content);
    }
    // The same from a KubeEdge edge of that name, which replaces the other connection.
    let mut kubeedge = KubeEdgeNode::join(&world, "edge-1").await.unwrap();
    kubeedge.connect().await.unwrap();
    kubeedge.send_unanswered("update", "default/rulestatus/up", json!({"Status": "SUCCESS"})).await.unwrap();
    // A KubeEdge edge receives no answer.
    counted(&world, "2").await;
    kubeedge.disconnect();
    let edge_1 = world.raw_node("edge-1", "edge-1").await.unwrap();
    let status = world.kubectl(&["get", "rule", "up", "-o", "jsonpath={.status}"]).unwrap();
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status, json!({"successMessages": 2, "failMessages": 1, "errors": ["no broker"]}));
    let edge_2 = world.raw_node("edge-2", "edge-2").await.unwrap();
    for (node, path, content, says) in [
        (&edge_2, "default/rulestatus/up", json!({"Status": "SUCCESS"}), "does not belong to"),
        (&edge_1, "default/rulestatus/none", json!({"Status": "SUCCESS"}), "not found"),
        (&edge_1, "default/rulestatus/up", json!({"Status": "MAYBE"}), "not a result of a rule"),
    ] {
        let reply = report(node, path, &content).await;
        assert_eq!(reply.route.operation, Operation::Error, "{path} {content}");
        let sentence = reply.content.as_text().unwrap().into_owned();
        assert!(sentence.contains(says), "{path} {content}: {sentence}");
    }
}

/// Creates the definitions, and these objects.
fn make(world: &World, objects: &str) {
    let definitions = source::root().join("deploy/crds/rules.yaml").display().to_string();
    world.kubectl(&["apply", "-f", &definitions]).unwrap();
    for name in ["rules", "ruleendpoints"] {
        let crd = format!("crd/{name}.rules.kubeedge.io");
        world.kubectl(&["wait", "--for=condition=Established", &crd, "--timeout=60s"]).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), objects).unwrap();
    world.kubectl(&["apply", "-f", &file.path().display().to_string()]).unwrap();
}

/// Waits until this many successes of the rule `up` are counted.
async fn counted(world: &World, successes: &str) {
    wait_for("a result to be counted", DEADLINE, async || {
        match world.kubectl(&["get", "rule", "up", "-o", "jsonpath={.status.successMessages}"]) {
            Ok(count) if count == successes => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

async fn report(node: &RawNode, path: &str, content: &Value) -> Message {
    let path = ResourcePath::parse_wire(path).unwrap();
    let route = Route::new(Source::Edged, Group::Resource, Operation::Update, path);
    let id = MessageId::parse("report").unwrap();
    let message = Message::new(id, 1, route, Content::from_value(content).unwrap());
    match node.ask(RequestBody::Message(Box::new(message))).await.unwrap() {
        ReplyBody::Message(reply) => *reply,
        ReplyBody::Api(reply) => panic!("an API reply: {reply:?}"),
    }
}
