//! All messages against a scripted API server: the call that each becomes, and the form of its reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tombolo_proto::frame::ApiRequest;
use tombolo_proto::message::{
    Content, Group, Message, ObjectPath, Operation, Outcome, ResourcePath, ResourceType, Route, Source,
};
use tombolo_proto::{CloudRevision, RequestId, Uid};

use super::*;
use crate::edgecontroller::observed_versions::ObservedVersion;
use crate::kube::resources;
use crate::kube::tests::double::answering;

mod bounded;
mod concurrent_writes;
mod contents;
mod registering;
mod token;

/// One call as received by the API server.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    line: String,
    user: String,
    body: Value,
}

type Log = Arc<Mutex<Vec<Seen>>>;

/// A client whose API server answers each call from a function.
fn scripted(answer: impl Fn(&str) -> (u16, Value) + Clone + Send + Sync + 'static) -> (Client, Log) {
    sometimes_silent(move |line| Some(answer(line)))
}

/// The same with an API server that never answers where the function returns nothing.
fn sometimes_silent(
    answer: impl Fn(&str) -> Option<(u16, Value)> + Clone + Send + Sync + 'static,
) -> (Client, Log) {
    let log = Log::default();
    let seen = Arc::clone(&log);
    let client = answering(move |call, body| {
        let line = format!("{} {}", call.method, call.uri.path());
        let user = call.headers.get("impersonate-user").and_then(|user| user.to_str().ok());
        let reply = answer(&line);
        let (user, body) =
            (user.unwrap_or("cloudcore").to_owned(), serde_json::from_slice(&body).unwrap_or_default());
        seen.lock().push(Seen { line, user, body });
        async move {
            match reply {
                Some(reply) => reply,
                None => std::future::pending().await,
            }
        }
    });
    (client, log)
}

fn node() -> NodeId {
    NodeId::parse("n").expect("valid")
}

/// An upstream whose watches have shown newer revisions than any object here has.
fn upstream(client: Client) -> Upstream {
    upstream_that_has_seen(1000, client)
}

fn upstream_that_has_seen(revision: u64, client: Client) -> Upstream {
    let (key, uid) = (ObjectKey::new(resources::pods(), "d", "other"), Uid::parse("u").expect("valid"));
    let down = NodeObjectCache::default();
    down.saw(ObservedVersion { key, uid, revision: CloudRevision(revision) });
    Upstream::new(client.into(), Arc::new(down))
}

fn message(operation: Operation, path: impl Into<ResourcePath>, content: &Value) -> Message {
    let route = Route::new(Source::Edged, Group::Meta, operation, path.into());
    let id = MessageId::parse("question").expect("valid");
    Message::new(id, 1, route, Content::from_value(content).expect("JSON"))
}

fn path(namespace: &str, kind: ResourceType, name: &str) -> ObjectPath {
    ObjectPath::new(namespace, kind, name)
}

const GOOD: fn(&str) -> (u16, Value) =
    |_| (200, json!({"kind": "Thing", "metadata": {"name": "x", "resourceVersion": "77"}}));

#[tokio::test]
async fn every_message_becomes_its_call_in_the_name_of_the_node() {
    use {Operation as Op, ResourceType as Type};
    let text = |value: Value| Value::String(value.to_string());
    for (operation, at, content, line, shape) in [
        (Op::Query, path("", Type::Node, "n"), json!(null), "GET /api/v1/nodes/n", "object"),
        (Op::Update, path("", Type::Node, "n"), json!({"metadata": {}}), "PATCH /api/v1/nodes/n", "ok"),
        (Op::Insert, path("", Type::NodeStatus, "n"), json!({}), "GET /api/v1/nodes/n", "ok"),
        (
            Op::Patch,
            path("", Type::NodePatch, "n"),
            text(json!({"status": {}})),
            "PATCH /api/v1/nodes/n/status",
            "wrap",
        ),
        (
            Op::Patch,
            path("d", Type::PodPatch, "p"),
            text(json!({})),
            "PATCH /api/v1/namespaces/d/pods/p/status",
            "wrap",
        ),
        (
            Op::Insert,
            path("d", Type::Pod, "p"),
            json!({"metadata": {}}),
            "POST /api/v1/namespaces/d/pods",
            "wrap",
        ),
        (
            Op::Delete,
            path("d", Type::Pod, "p"),
            json!({"gracePeriodSeconds": 0}),
            "DELETE /api/v1/namespaces/d/pods/p",
            "ok",
        ),
        (Op::Delete, path("d", Type::Pod, "p"), json!("uid-1"), "DELETE /api/v1/namespaces/d/pods/p", "ok"),
        (
            Op::Insert,
            path("l", Type::Lease, "n"),
            json!({}),
            "POST /apis/coordination.k8s.io/v1/namespaces/l/leases",
            "wrap",
        ),
        (
            Op::Update,
            path("l", Type::Lease, "n"),
            json!({}),
            "PUT /apis/coordination.k8s.io/v1/namespaces/l/leases/n",
            "wrap",
        ),
        (
            Op::Query,
            path("l", Type::Lease, "n"),
            json!(null),
            "GET /apis/coordination.k8s.io/v1/namespaces/l/leases/n",
            "wrap",
        ),
        (
            Op::Query,
            path("d", Type::ConfigMap, "c"),
            json!(null),
            "GET /api/v1/namespaces/d/configmaps/c",
            "object",
        ),
        (
            Op::Query,
            path("d", Type::Secret, "s"),
            json!(null),
            "GET /api/v1/namespaces/d/secrets/s",
            "object",
        ),
        (
            Op::Query,
            path("d", Type::ServiceAccountToken, "a"),
            json!({}),
            "POST /api/v1/namespaces/d/serviceaccounts/a/token",
            "object",
        ),
        (
            Op::Query,
            path("d", Type::PersistentVolume, "v"),
            json!(null),
            "GET /api/v1/persistentvolumes/v",
            "object",
        ),
        (
            Op::Query,
            path("d", Type::PersistentVolumeClaim, "v"),
            json!(null),
            "GET /api/v1/namespaces/d/persistentvolumeclaims/v",
            "object",
        ),
        (
            Op::Query,
            path("d", Type::VolumeAttachment, "v"),
            json!(null),
            "GET /apis/storage.k8s.io/v1/volumeattachments/v",
            "object",
        ),
        (
            Op::Insert,
            path("", Type::CertificateSigningRequest, "c"),
            json!({}),
            "POST /apis/certificates.k8s.io/v1/certificatesigningrequests",
            "wrap",
        ),
        (
            Op::Query,
            path("", Type::CertificateSigningRequest, "c"),
            json!(null),
            "GET /apis/certificates.k8s.io/v1/certificatesigningrequests/c",
            "object",
        ),
        (Op::Insert, path("d", Type::Event, "e"), json!({}), "POST /api/v1/namespaces/d/events", "ok"),
        (Op::Update, path("d", Type::Event, "e"), json!({}), "PUT /api/v1/namespaces/d/events/e", "ok"),
        (
            Op::Patch,
            path("d", Type::Event, "e"),
            json!({"event": {}, "patchData": "{}"}),
            "PATCH /api/v1/namespaces/d/events/e",
            "ok",
        ),
    ] {
        let (client, log) = scripted(GOOD);
        let request = message(operation, at, &content);
        let what = request.route.clone();
        let reply = upstream(client).answer_message(&node(), request, None).await.0;
        let seen = log.lock().clone();
        assert_eq!(seen.iter().map(|seen| seen.line.as_str()).collect::<Vec<_>>(), [line], "{what:?}");
        assert_eq!(seen[0].user, "system:node:n", "{what:?}");
        assert_eq!(
            (&reply.route.operation, &reply.route.source),
            (&Op::Response, &Source::EdgeController),
            "{what:?}"
        );
        assert_eq!(reply.header.parent, Some(MessageId::parse("question").expect("valid")));
        let is = match shape {
            "ok" => reply.content.is_ok(),
            "wrap" => matches!(Outcome::read(&reply.content), Ok(Outcome::Done(_))),
            _ => reply.content.read::<Value>().is_ok_and(|object| object["metadata"]["name"] == "x"),
        };
        assert!(is, "{what:?} answers as {shape}: {:?}", reply.content.as_json());
    }
}

/// A server with one Node and one pod, which is being deleted.
fn older_edges_world(line: &str) -> (u16, Value) {
    let metadata = json!({"name": "x", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "77"});
    match line {
        "GET /api/v1/namespaces/d/pods/gone" => (404, json!({"reason": "NotFound", "message": "gone"})),
        "GET /api/v1/namespaces/d/pods/foreign" => {
            (200, json!({"metadata": {"name": "foreign", "uid": "u"}, "spec": {"nodeName": "other"}}))
        }
        "GET /api/v1/pods" => (200, json!({"items": [{"metadata": {"name": "p"}}]})),
        _ => (200, json!({"kind": "Thing", "metadata": metadata, "spec": {"nodeName": "n"}})),
    }
}

#[tokio::test]
async fn reports_of_older_edges_are_merged_into_the_present_status() {
    use {Operation as Op, ResourceType as Type};
    let ask = async |operation, at: ObjectPath, content: Value| {
        let (client, log) = scripted(older_edges_world);
        let answered = upstream(client).answer_message(&node(), message(operation, at, &content), None).await;
        let lines: Vec<String> =
            log.lock().iter().map(|seen| format!("{} {}", seen.user, seen.line)).collect();
        let bodies: Vec<Value> = log.lock().iter().map(|seen| seen.body.clone()).collect();
        (answered, lines, bodies)
    };
    let report = json!({"UID": "u", "Status": {"phase": "x"}, "ExtendResources": {"a/b": [{"name": "c"}]}});
    let ((reply, _), lines, bodies) = ask(Op::Update, path("d", Type::NodeStatus, "n"), report).await;
    assert_eq!(lines, ["system:node:n GET /api/v1/nodes/n", "system:node:n PATCH /api/v1/nodes/n/status"]);
    assert_eq!(bodies[1]["metadata"]["annotations"], json!({"a/b": r#"[{"name":"c"}]"#}));
    assert!(reply.content.is_ok() && reply.header.resource_version == "77");
    assert_eq!(reply.route.resource.to_wire(), "d/node/n");

    let pod = "/api/v1/namespaces/d/pods/p";
    let report = json!({"UID": "u", "Name": "p", "Status": {"phase": "Succeeded"}});
    let ((reply, deleted_pods), lines, bodies) =
        ask(Op::Update, path("d", Type::PodStatus, "p"), report).await;
    let expected = [
        format!("cloudcore GET {pod}"),
        format!("system:node:n PATCH {pod}/status"),
        format!("system:node:n DELETE {pod}"),
    ];
    assert_eq!((lines, reply.content.is_ok(), deleted_pods), (expected.to_vec(), true, Vec::new()));
    assert_eq!(bodies[1]["metadata"], json!({"uid": "u", "resourceVersion": "77"}), "on what was read");
    assert_eq!(bodies[2], json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}}));

    let all = ObjectPath { name: None, ..path("d", Type::PodStatus, "") };
    let reports = json!([
        {"Name": "gone", "Status": {}},
        {"Name": "foreign", "UID": "u", "Status": {}},
        {"Name": "p", "UID": "another", "Status": {}},
    ]);
    let ((reply, deleted_pods), lines, _) = ask(Op::Update, all, reports).await;
    assert!(
        lines.len() == 3 && lines.iter().all(|line| line.contains(" GET ")),
        "nothing is written: {lines:?}"
    );
    let names: Vec<&str> = deleted_pods.iter().map(ObjectKey::name).collect();
    assert_eq!(
        (names, reply.content.is_ok()),
        (vec!["gone", "foreign", "p"], true),
        "and the reason is not disclosed"
    );

    let list = ObjectPath { name: None, ..path("d", Type::PodList, "") };
    let ((reply, _), _, _) = ask(Op::Query, list, Value::Null).await;
    let pods: Value = reply.content.read().expect("JSON");
    assert_eq!(pods, json!([{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}}]));
}

#[tokio::test]
async fn cluster_authority_is_answered_as_text() {
    let (client, _) = scripted(|_| (200, json!({"data": {"ca.crt": "PEM"}})));
    let request = message(Operation::Query, ResourcePath::CaCertificate, &Value::Null);
    let (reply, _) = upstream(client).answer_message(&node(), request, None).await;
    assert_eq!(reply.content.as_text().as_deref(), Some("PEM"));
}

#[tokio::test]
async fn refusals_are_answers() {
    use {Operation as Op, ResourceType as Type};
    let gone = |_: &str| {
        (404, json!({"kind": "Status", "reason": "NotFound", "message": "no such thing", "code": 404}))
    };
    for (operation, at, content, shape) in [
        (Op::Insert, path("", Type::Node, "n"), json!({"metadata": {}}), "wrap"),
        (Op::Query, path("l", Type::Lease, "n"), json!(null), "wrap"),
        (Op::Query, path("d", Type::ConfigMap, "c"), json!(null), "error"),
        (Op::Query, path("d", Type::ServiceAccountToken, "a"), json!({}), "error"),
        (Op::Update, path("", Type::Node, "n"), json!({}), "error"),
        (Op::Delete, path("d", Type::Pod, "p"), json!({}), "ok"),
        (Op::Update, path("d", Type::PodStatus, ""), json!([{"Name": "p", "Status": {}}]), "ok"),
    ] {
        let (client, _) = scripted(gone);
        let request = message(operation, at, &content);
        let what = request.route.clone();
        let reply = upstream(client).answer_message(&node(), request, None).await.0;
        let is = match shape {
            "ok" => reply.content.is_ok(),
            "wrap" => matches!(Outcome::read(&reply.content), Ok(Outcome::Failed(error))
                if error.code == 404 && error.reason == "NotFound" && error.message == "no such thing"),
            _ => {
                reply.route.operation == Op::Error
                    && reply.content.as_text().as_deref() == Some("no such thing")
            }
        };
        assert!(is, "{what:?} answers as {shape}: {:?}", reply.content.as_json());
    }
}

#[tokio::test]
async fn malformed_messages_are_answered_without_a_call() {
    use {Operation as Op, ResourceType as Type};
    let wire = |text: &str| ResourcePath::parse_wire(text).expect(text);
    for (operation, at, content, says) in [
        (Op::Publish, wire("d/pod/p"), json!(null), "unknown operation"),
        (Op::Insert, wire("d/nonsense/p"), json!(null), "unknown operation"),
        (Op::Query, wire("membership"), json!(null), "names no object"),
        (Op::Query, wire("../configmap/c"), json!(null), "Kubernetes names"),
        (Op::Insert, wire("null/node/n"), json!([1]), "not a Node object"),
        (Op::Insert, wire("l/lease/n"), json!("x"), "not an object"),
        (Op::Insert, wire("d/pod/p"), json!([]), "not an object"),
        (Op::Patch, wire("d/podpatch/p"), json!(null), "not a patch"),
        (Op::Query, wire("d/secret"), json!(null), "names no object"),
        (Op::Query, wire("null/secret/s"), json!(null), "lacks the namespace"),
        (Op::Upgrade, wire("task/t/node/n"), json!({}), "node tasks"),
        (Op::Delete, path("d", Type::Pod, "p").into(), json!(7), "DeleteOptions"),
        (Op::Patch, path("d", Type::Event, "e").into(), json!({}), "patchData"),
    ] {
        let (client, log) = scripted(GOOD);
        let request = message(operation, at, &content);
        let what = request.route.clone();
        let reply = upstream(client).answer_message(&node(), request, None).await.0;
        let sentence = match Outcome::read(&reply.content) {
            Ok(Outcome::Failed(error)) if error.code == 400 => error.message,
            _ if reply.route.operation == Op::Error => reply.content.as_text().expect(says).into_owned(),
            other => panic!("{what:?} is no refusal: {other:?}"),
        };
        assert!(sentence.contains(says), "{what:?}: {sentence}");
        assert_eq!(*log.lock(), []);
    }
}

#[tokio::test]
async fn registration_adds_granted_labels_in_our_name() {
    let (client, log) = scripted(GOOD);
    let labels =
        json!({"node-role.kubernetes.io/edge": "", "node-restriction.kubernetes.io/a": "b", "shop": "7"});
    let object = json!({"metadata": {"name": "other", "labels": labels}});
    let request = message(Operation::Insert, path("", ResourceType::Node, "n"), &object);
    upstream(client).answer_message(&node(), request, None).await;
    let seen = log.lock().clone();
    assert_eq!(seen[0].line, "POST /api/v1/nodes");
    assert_eq!(seen[0].user, "system:node:n");
    assert_eq!(seen[0].body["metadata"], json!({"name": "n", "labels": {"shop": "7"}}));
    assert_eq!((seen[1].line.as_str(), seen[1].user.as_str()), ("PATCH /api/v1/nodes/n", "cloudcore"));
    assert_eq!(seen[1].body, json!({"metadata": {"labels": {"node-role.kubernetes.io/edge": ""}}}));
}

/// The status code of a renewal.
async fn renewed(upstream: &Upstream, micros: i64, process: u64) -> u16 {
    match upstream.renew_lease(&node(), micros, process).await {
        Renewal::Answered(code) => code,
        Renewal::OfAnother(held) => panic!("{held:?}"),
    }
}

#[tokio::test]
async fn leases_are_renewed_with_one_patch() {
    let (client, log) = scripted(GOOD);
    assert_eq!(renewed(&upstream(client), 1_790_000_001_000_001, 0).await, 200);
    let seen = log.lock().clone();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].line, "PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n");
    assert_eq!(seen[0].body, json!({"spec": {"renewTime": "2026-09-21T14:13:21.000001Z"}}));
    // The renewal of a process that identifies itself costs no more, and does not count as another's.
    let (client, log) = scripted(GOOD);
    assert_eq!(renewed(&upstream(client), 1_790_000_001_000_001, 0x2a).await, 200);
    let seen = log.lock().clone();
    assert_eq!(seen.len(), 1);
    let test = json!({"op": "test", "path": "/metadata/annotations/tombolo~1process", "value": "2a"});
    let time = json!({"op": "add", "path": "/spec/renewTime", "value": "2026-09-21T14:13:21.000001Z"});
    assert_eq!(seen[0].body, json!([test, time]));
    let (client, log) = scripted(GOOD);
    assert_eq!(renewed(&upstream(client), i64::MAX, 1).await, 400, "a clock beyond all calendars");
    assert_eq!(*log.lock(), []);
}

#[tokio::test]
async fn client_tokens_are_never_combined_with_our_own_rights() {
    let (client, log) = scripted(GOOD);
    let call = ApiRequest::new("GET", "/api/v1/pods");
    let request = Asked { token: Some("t"), body: RequestBody::Api(call) };
    let ReplyBody::Api(reply) = request.ask(&upstream(client)).await else { panic!("an API reply") };
    assert_eq!(reply.code, 501, "this client has no way to pass a token on");
    assert_eq!(*log.lock(), []);
    let status: Value = serde_json::from_slice(&reply.body).expect("a Status");
    assert_eq!(status["kind"], "Status");
}

fn report(kind: ResourceType, name: &str) -> RequestBody {
    let request = message(Operation::Query, path("d", kind, name), &json!(null));
    RequestBody::Message(Box::new(request))
}

async fn refusal_of(upstream: &Upstream, body: RequestBody) -> String {
    let ReplyBody::Message(reply) = (Asked { token: None, body }).ask(upstream).await else {
        panic!("a message")
    };
    assert_eq!(reply.route.operation, Operation::Error);
    reply.content.as_text().expect("a sentence").into_owned()
}

#[tokio::test]
async fn cloudcore_without_edge_controller_logs_it() {
    let (client, log) = scripted(GOOD);
    let settings = UpstreamSettings { enabled: false, ..UpstreamSettings::default() };
    let upstream = upstream(client).with_settings(&settings);
    let sentence = refusal_of(&upstream, report(ResourceType::ConfigMap, "c")).await;
    assert!(sentence.contains("edgeController.enable"), "{sentence}");
    assert_eq!(renewed(&upstream, 1_790_000_001_000_001, 1).await, 503);
    assert_eq!(*log.lock(), []);
}

#[tokio::test]
async fn requests_of_a_crowded_kind_are_refused_and_others_pass() {
    let bound = RequestBound { running: std::num::NonZeroU32::MIN, waiting: 0 };
    let bounds =
        RequestBounds::from([(RequestKind::QueryConfigMap, bound), (RequestKind::WriteLease, bound)]);
    let (client, log) = scripted(GOOD);
    let upstream =
        upstream(client).with_settings(&UpstreamSettings { bounds, ..UpstreamSettings::default() });
    let held = [RequestKind::QueryConfigMap, RequestKind::WriteLease];
    let other = NodeId::parse("other").expect("a name");
    let held = futures::future::join_all(held.map(|kind| upstream.gates.pass_kind(&other, kind))).await;
    let sentence = refusal_of(&upstream, report(ResourceType::ConfigMap, "c")).await;
    assert!(sentence.contains("try again later"), "{sentence}");
    assert_eq!(renewed(&upstream, 1_790_000_001_000_001, 1).await, 429);
    assert_eq!(*log.lock(), []);
    Asked { token: None, body: report(ResourceType::Secret, "s") }.ask(&upstream).await;
    drop(held);
    Asked { token: None, body: report(ResourceType::ConfigMap, "c") }.ask(&upstream).await;
    let lines: Vec<_> = log.lock().iter().map(|seen| seen.line.clone()).collect();
    assert_eq!(lines, ["GET /api/v1/namespaces/d/secrets/s", "GET /api/v1/namespaces/d/configmaps/c"]);
}

struct Asked {
    token: Option<&'static str>,
    body: RequestBody,
}

impl Asked {
    async fn ask(self, upstream: &Upstream) -> ReplyBody {
        let request = tombolo_proto::frame::Request {
            id: RequestId(1),
            timeout: Duration::from_secs(5),
            body: self.body,
            caller_token: self.token.map(str::to_owned),
        };
        upstream.answer(&node(), upstream.receive(&node(), request)).await.reply.body
    }
}

/// When edge nodes are granted a list that the node itself is refused, cloudcore makes it. It must not be wider than
/// the one that was authorized, which it would be if the API server parsed the text differently.
#[tokio::test]
async fn ambiguous_call_is_refused_before_any_review() {
    let list = "/api/v1/namespaces/d/secrets?fieldSelector=metadata.name%3Ds";
    let odd = [
        format!("{list},metadata.namespace%21%3Dx;"),
        format!("{list},metadata.namespace%21%3D%zz"),
        list.replace('?', "?x=1#&"),
    ];
    for (path, code, calls) in odd.iter().map(|path| (path.as_str(), 400, 0)).chain([(list, 403, 3)]) {
        let (client, log) = scripted(|line| match line {
            line if line.ends_with("/subjectaccessreviews") => (201, json!({"status": {"allowed": true}})),
            _ => (403, json!({"kind": "Status", "code": 403})),
        });
        let body = RequestBody::Api(ApiRequest::new("GET", path));
        let ReplyBody::Api(reply) = (Asked { token: None, body }).ask(&upstream(client)).await else {
            panic!("an API reply")
        };
        let seen = log.lock().clone();
        assert_eq!((reply.code, seen.len()), (code, calls), "{path}: {seen:?}");
    }
}

#[tokio::test]
async fn an_update_from_an_edge_keeps_the_annotation_that_edges_are_not_sent() {
    let annotation = "kubectl.kubernetes.io/last-applied-configuration";
    let now = json!({"metadata": {"name": "a", "resourceVersion": "7", "annotations": {annotation: "{}"}}});
    let (client, log) = scripted(move |_| (200, now.clone()));
    let call = ApiRequest {
        content_type: "application/json".to_owned(),
        body: r#"{"metadata":{"name":"a","resourceVersion":"7"},"data":{"k":"v"}}"#.into(),
        ..ApiRequest::new("PUT", "/api/v1/namespaces/shop/configmaps/a?fieldManager=x")
    };
    Asked { token: None, body: RequestBody::Api(call) }.ask(&upstream(client)).await;
    let seen = log.lock().clone();
    let lines: Vec<(&str, &str)> = seen.iter().map(|seen| (seen.line.as_str(), seen.user.as_str())).collect();
    let path = "/api/v1/namespaces/shop/configmaps/a";
    let user = "system:node:n";
    assert_eq!(lines, [(&*format!("GET {path}"), user), (&*format!("PUT {path}"), user)]);
    assert_eq!(seen[1].body["metadata"]["annotations"], json!({annotation: "{}"}));
    assert_eq!(seen[1].body["data"], json!({"k": "v"}));
}

#[tokio::test]
async fn a_kubelet_that_registers_its_node_gets_an_edge_node() {
    let created = json!({"metadata": {"name": "n"}});
    let (client, log) = scripted(move |line| {
        if line.starts_with("POST") { (201, created.clone()) } else { (200, json!({"labelled": true})) }
    });
    let call = ApiRequest {
        content_type: "application/json".to_owned(),
        body: r#"{"metadata":{"name":"n"}}"#.into(),
        ..ApiRequest::new("POST", "/api/v1/nodes?fieldManager=kubelet")
    };
    let asked = Asked { token: None, body: RequestBody::Api(call) };
    let ReplyBody::Api(reply) = asked.ask(&upstream(client)).await else { panic!("an API reply") };
    let answer: Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!((reply.code, answer), (201, json!({"labelled": true})), "the node as it is with its label");
    let seen = log.lock().clone();
    assert_eq!((seen[0].line.as_str(), seen[0].user.as_str()), ("POST /api/v1/nodes", "system:node:n"));
    assert_eq!((seen[1].line.as_str(), seen[1].user.as_str()), ("PATCH /api/v1/nodes/n", "cloudcore"));
    assert_eq!(seen[1].body, json!({"metadata": {"labels": {"node-role.kubernetes.io/edge": ""}}}));
}

/// The labels that cloudcore grants go to the node of the connection, even if the server has no NodeRestriction.
#[tokio::test]
async fn node_can_register_only_itself() {
    for kind in [ResourceType::Node, ResourceType::NodeStatus] {
        let (client, log) = scripted(|line| match line.split(' ').next() {
            Some("GET") => (404, json!({"message": "none"})),
            _ => (201, json!({"metadata": {"name": "other"}})),
        });
        let object = json!({"metadata": {"labels": {"node-role.kubernetes.io/edge": ""}}});
        let request = message(Operation::Insert, path("", kind, "other"), &object);
        upstream(client).answer_message(&node(), request, None).await;
        assert!(log.lock().iter().all(|call| call.line.starts_with("GET")), "{:?}", log.lock());
    }
}

/// A rule's status is written as cloudcore, so the rule itself must name the node.
#[tokio::test]
async fn only_the_node_named_by_a_rule_writes_its_status() {
    for (source, allowed) in [
        (json!({"node_name": "n", "topic": "t"}), true),
        (json!({"node_name": "other", "topic": "t"}), false),
        (json!({"path": "/a"}), false),
        (Value::Null, false),
    ] {
        let rule = json!({"metadata": {"resourceVersion": "3"}, "spec": {"sourceResource": source}});
        let (client, log) = scripted(move |_| (200, rule.clone()));
        let result = json!({"Status": "FAIL", "Error": {"Detail": "x".repeat(100_000)}});
        let request = message(Operation::Update, path("d", ResourceType::RuleStatus, "r"), &result);
        let (reply, _) = upstream(client).answer_message(&node(), request, None).await;
        assert_eq!(reply.content.is_ok(), allowed, "{source}");
        let writes: Vec<Value> = log
            .lock()
            .iter()
            .filter(|call| call.line.starts_with("PATCH"))
            .map(|call| call.body.clone())
            .collect();
        assert_eq!(writes.len(), usize::from(allowed), "{source}");
        assert!(writes.iter().all(|write| write.to_string().len() < 2048), "a text without a bound");
    }
}

#[tokio::test(start_paused = true)]
async fn labels_are_tried_again_while_the_server_is_busy_and_not_when_it_refuses() {
    for (codes, attempts) in [(&[500, 429, 200][..], 3), (&[403, 200], 1), (&[503], 9)] {
        let asked = Arc::new(AtomicUsize::new(0));
        let (client, log) = scripted(move |line| {
            if line.starts_with("POST") {
                return (201, json!({"metadata": {"name": "n"}}));
            }
            (codes[asked.fetch_add(1, Ordering::SeqCst).min(codes.len() - 1)], json!({"message": "busy"}))
        });
        let object = json!({"metadata": {"labels": {"node-role.kubernetes.io/edge": ""}}});
        let request = message(Operation::Insert, path("", ResourceType::Node, "n"), &object);
        upstream(client).answer_message(&node(), request, None).await;
        let patches = log.lock().iter().filter(|call| call.line.starts_with("PATCH")).count();
        assert_eq!(patches, attempts, "{codes:?}");
    }
}
