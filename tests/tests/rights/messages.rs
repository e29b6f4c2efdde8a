//! The same requests as KubeEdge's messages, for the objects of both nodes, and the outcome of each.

use serde_json::{Value, json};
use tombolo_proto::frame::{ReplyBody, RequestBody};
use tombolo_proto::message::{
    Content, Group, Message, MessageId, ObjectPath, Operation, Outcome, ResourceType, Route, Source,
};
use tombolo_testkit::fresh;
use tombolo_tests::node::RawNode;
use tombolo_tests::world::objects::NAMESPACE;

use super::table::{Uids, certificate, event, lease, mirror, named, token};

/// A message that node A sends.
pub(super) struct Told {
    operation: Operation,
    kind: ResourceType,
    namespace: &'static str,
    name: &'static str,
    content: Value,
    /// Code of the outcome; 200 also for requests that are answered without a write.
    code: u16,
}

const LEASE_NAMESPACE: &str = "kube-node-lease";

/// A patch, which messages contain as text.
fn patch() -> Value {
    Value::String(json!({"status": {"phase": "Running"}}).to_string())
}

/// Every message about node B's objects, then those about its own that must be allowed.
pub(super) fn messages(uids: &Uids) -> Vec<Told> {
    use {Operation as Op, ResourceType as Type};
    let told = |operation, kind, namespace, name, content, code| Told {
        operation,
        kind,
        namespace,
        name,
        content,
        code,
    };
    let report = |name: &str| json!({"Name": name, "UID": "", "Status": {"phase": "Succeeded"}});
    let node_report = || json!({"UID": "", "Status": {"phase": "Running"}});
    let here = NAMESPACE;
    vec![
        told(Op::Query, Type::Node, "", "node-b", Value::Null, 200),
        told(Op::Insert, Type::Node, "", "node-b", named("Node", "node-b"), 403),
        told(Op::Update, Type::Node, "", "node-b", named("Node", "node-b"), 403),
        // The node exists, so nothing is created.
        told(Op::Insert, Type::NodeStatus, "", "node-b", named("Node", "node-b"), 200),
        told(Op::Update, Type::NodeStatus, "", "node-b", node_report(), 403),
        told(Op::Patch, Type::NodePatch, "", "node-b", patch(), 403),
        told(Op::Patch, Type::PodPatch, here, "pod-b", patch(), 404),
        // Answered with the deletion of a pod that is not on this node; nothing is written.
        told(Op::Update, Type::PodStatus, here, "pod-b", report("pod-b"), 200),
        told(Op::Insert, Type::Pod, here, "mirror-c", mirror("mirror-c", "node-b", &uids.other_node), 403),
        told(Op::Delete, Type::Pod, here, "pod-b", json!({"gracePeriodSeconds": 0}), 403),
        told(Op::Insert, Type::Lease, LEASE_NAMESPACE, "node-b", lease("node-b"), 403),
        told(Op::Update, Type::Lease, LEASE_NAMESPACE, "node-b", lease("node-b"), 403),
        told(Op::Query, Type::Lease, LEASE_NAMESPACE, "node-b", Value::Null, 403),
        told(Op::Query, Type::ConfigMap, here, "map-b", Value::Null, 403),
        told(Op::Query, Type::Secret, here, "secret-b", Value::Null, 403),
        told(Op::Query, Type::ServiceAccountToken, here, "account-b", token("pod-b", &uids.other_pod), 403),
        told(Op::Query, Type::PersistentVolume, here, "volume-b", Value::Null, 403),
        told(Op::Query, Type::PersistentVolumeClaim, here, "claim-b", Value::Null, 403),
        told(Op::Query, Type::VolumeAttachment, here, "attachment-b", Value::Null, 403),
        told(
            Op::Insert,
            Type::CertificateSigningRequest,
            "",
            "request-d",
            certificate("request-d", "node-b"),
            403,
        ),
        // The node's own objects.
        told(Op::Patch, Type::NodePatch, "", "node-a", patch(), 200),
        told(Op::Patch, Type::PodPatch, here, "pod-a", patch(), 200),
        told(Op::Query, Type::Lease, LEASE_NAMESPACE, "node-a", Value::Null, 200),
        told(Op::Query, Type::ConfigMap, here, "map-a", Value::Null, 200),
        told(Op::Query, Type::Secret, here, "secret-a", Value::Null, 200),
        told(Op::Query, Type::PersistentVolumeClaim, here, "claim-a", Value::Null, 200),
        told(Op::Query, Type::ServiceAccountToken, here, "account-a", token("pod-a", &uids.own_pod), 200),
        told(Op::Insert, Type::Event, here, "told-a", event("told-a", "pod-a"), 200),
        told(
            Op::Insert,
            Type::CertificateSigningRequest,
            "",
            "request-c",
            certificate("request-c", "node-a"),
            200,
        ),
    ]
}

/// The writes of the allowed messages: verb, resource and name.
pub(super) const WRITTEN: [(&str, &str, &str); 5] = [
    ("patch", "nodes/status", "node-a"),
    ("patch", "pods/status", "pod-a"),
    ("create", "serviceaccounts/token", "account-a"),
    ("create", "events", "told-a"),
    ("create", "certificatesigningrequests", "request-c"),
];

impl Told {
    /// Sends the message; returns what is wrong with the outcome, if anything.
    pub(super) async fn check(&self, node: &RawNode) -> Option<String> {
        let reply = self.send(node).await;
        let code = code_of(&reply);
        (code != self.code).then(|| {
            let (operation, kind) = (self.operation.as_str(), self.kind.as_str());
            let said = String::from_utf8_lossy(reply.content.as_json()).into_owned();
            format!("{operation} {kind} {}: {code}, should be {}: {said}", self.name, self.code)
        })
    }

    async fn send(&self, node: &RawNode) -> Message {
        let mut path = ObjectPath::new(self.namespace, self.kind.clone(), self.name);
        path.name = path.name.filter(|name| !name.is_empty());
        let route = Route::new(Source::Edged, Group::Meta, self.operation.clone(), path.into());
        let id = MessageId::from_random_bytes(u128::from(fresh()).to_be_bytes());
        let message = Message::new(id, 1, route, Content::from_value(&self.content).unwrap());
        match node.ask(RequestBody::Message(Box::new(message))).await.unwrap() {
            ReplyBody::Message(reply) => *reply,
            ReplyBody::Api(reply) => panic!("not a message: {reply:?}"),
        }
    }
}

/// The outcome as a code: errors of queries contain the API server's message.
fn code_of(reply: &Message) -> u16 {
    if reply.route.operation == Operation::Error {
        let sentence = reply.content.as_text().unwrap_or_default();
        return if sentence.contains("forbidden") { 403 } else { 500 };
    }
    let content: Value = reply.content.read().unwrap_or_default();
    if content.get("Err").is_none() {
        return 200;
    }
    match Outcome::read(&reply.content).unwrap() {
        Outcome::Done(_) => 200,
        Outcome::Failed(status) => status.code,
    }
}

/// Registers a node as older edges do; returns the code of the outcome.
pub(super) async fn register(node: &RawNode, name: &'static str) -> u16 {
    let labels = json!({"node-role.kubernetes.io/edge": ""});
    let told = Told {
        operation: Operation::Insert,
        kind: ResourceType::Node,
        namespace: "",
        name,
        content: json!({"metadata": {"name": name, "labels": labels}}),
        code: 200,
    };
    code_of(&told.send(node).await)
}

/// Names of the pods in the answer to a node's query for its own pods.
pub(super) async fn listed_pods(node: &RawNode) -> Vec<String> {
    let ask = Told {
        operation: Operation::Query,
        kind: ResourceType::PodList,
        namespace: NAMESPACE,
        name: "",
        content: Value::Null,
        code: 200,
    };
    let pods: Value = ask.send(node).await.content.read().unwrap();
    let names = pods.as_array().unwrap().iter();
    names.map(|pod| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}
