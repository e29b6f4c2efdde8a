//! API calls caused by a fleet that reconnects, counted by kind: the figure of `cargo xtask bench --calls` without a
//! clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tombolo_proto::documents::{IN_EVERY_SESSION, WARM_SET};
use tombolo_proto::frame::{ApiRequest, RequestBody, Subscribe};
use tombolo_proto::message::{
    Content, Group, Message, MessageId, ObjectPath, Operation, ResourceType, Route, Source,
};
use tombolo_proto::{NodeId, Resource, SubscriptionId};

use super::{Edge, hub, subscribe};
use crate::kube::Kube;
use crate::kube::tests::double::answering;

/// Number of nodes that reconnect.
const NODES: usize = 60;

/// Maximum calls for each node that reconnects. A change that raises a number must say what the fleet gets for it.
const OF_EACH: [(&str, usize); 3] = [
    // One renewal, without a question about its holder.
    ("lease", 1),
    ("status", 1),
    // The version that the status patch is based on, when no watch has shown it.
    ("read", 1),
];

/// Maximum calls for all nodes together.
const OF_ALL: [(&str, usize); 2] = [
    ("document", IN_EVERY_SESSION.len()),
    // Two questions, list and watch, asked once a second for the nodes that arrived during the previous question.
    ("review", 3 * 2 * WARM_SET.len()),
];

type Counts = Arc<Mutex<BTreeMap<&'static str, usize>>>;

/// An API server that has every object, and counts the calls that it receives.
fn counting(counts: &Counts) -> Kube {
    let counts = Arc::clone(counts);
    let client = answering(move |call, _| {
        let counts = Arc::clone(&counts);
        async move {
            let (kind, code, answer) = answer(&call.method, call.uri.path(), call.uri.query());
            *counts.lock().entry(kind).or_default() += 1;
            if kind == "watch" {
                // No event ever arrives.
                std::future::pending::<()>().await;
            }
            (code, answer)
        }
    });
    client.into()
}

/// The kind of a call, and its answer.
fn answer(method: &Method, path: &str, query: Option<&str>) -> (&'static str, u16, Value) {
    let object = json!({"metadata": {"name": "x", "uid": "u", "resourceVersion": "7"}});
    let there = json!({"kind": "Status", "code": 409, "reason": "AlreadyExists", "message": "it is there"});
    let list = WARM_SET.iter().any(|(_, _, plural)| path.ends_with(plural));
    match (method.as_str(), path) {
        (_, "/apis/authorization.k8s.io/v1/subjectaccessreviews") => {
            ("review", 201, json!({"status": {"allowed": true}}))
        }
        ("POST", "/api/v1/nodes") => ("register", 409, there),
        ("POST", path) if path.ends_with("/leases") => ("lease", 409, there),
        (_, path) if path.contains("/leases/") => ("lease", 200, object),
        ("PATCH", path) if path.ends_with("/status") => ("status", 200, object),
        ("GET", _) if list && query.is_some_and(|query| query.contains("watch")) => ("watch", 200, json!({})),
        ("GET", _) if list => ("list", 200, json!({"metadata": {"resourceVersion": "7"}, "items": []})),
        ("GET", path) if path.starts_with("/api/v1/nodes/") => ("read", 200, object),
        ("GET", path) if crate::kube::is_document(path) => {
            let kinds = WARM_SET.map(|(_, _, plural)| json!({"name": plural, "kind": "Thing"}));
            ("document", 200, json!({"resources": kinds}))
        }
        _ => ("other", 404, json!({"kind": "Status", "code": 404, "message": path})),
    }
}

fn api(method: &str, path: String, accept: &str, content_type: &str) -> RequestBody {
    let body = if method == "GET" { "" } else { r#"{"status":{}}"# };
    RequestBody::Api(ApiRequest {
        content_type: content_type.to_owned(),
        accept: accept.to_owned(),
        body: body.into(),
        ..ApiRequest::new(method, path)
    })
}

/// The objects that an agent without a Node creates.
fn made(node: &NodeId) -> Vec<RequestBody> {
    let path = ObjectPath::new("", ResourceType::Node, node.as_str());
    let route = Route::new(Source::Edged, Group::Meta, Operation::Insert, path.into());
    let content = Content::from_value(&json!({"metadata": {"name": node.as_str()}})).expect("JSON");
    let id = MessageId::parse("question").expect("an id");
    let register = RequestBody::Message(Box::new(Message::new(id, 1, route, content)));
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases".to_owned();
    vec![register, api("POST", lease, "", "application/json")]
}

/// The requests of an agent in every session.
fn questions(node: &NodeId) -> Vec<RequestBody> {
    let status = format!("/api/v1/nodes/{node}/status");
    let status = api("PATCH", status, "", "application/strategic-merge-patch+json");
    let documents = IN_EVERY_SESSION.map(|(path, form)| api("GET", path.to_owned(), form, ""));
    std::iter::once(status).chain(documents).collect()
}

/// Connects a node, which sends its requests and follows what it needs. It stays connected until the edge is dropped.
async fn come(hub: &Arc<super::Hub>, number: usize, returns: bool) -> Edge {
    let node = NodeId::parse(&format!("n{number}")).expect("a name");
    let mut edge = Edge::connect_as(hub, node.clone());
    let mut questions = questions(&node);
    if !returns {
        questions.extend(made(&node));
    }
    let awaited = questions.len();
    for question in questions {
        let now = edge.clock.now();
        edge.session.request(now, Duration::from_secs(60), question, None).expect("room for one");
    }
    edge.session.renew_lease(1_790_000_001_000_001);
    for (group, version, plural) in WARM_SET {
        let subscription = edge.session.next_subscription();
        let (namespace, label_selector) = Default::default();
        let resource = Resource::new(group, version, plural);
        let wanted = Subscribe { resource, namespace, label_selector, ..subscribe(subscription) };
        edge.session.subscribe(wanted).expect("room for one");
    }
    let deadline = Instant::now() + Duration::from_secs(120);
    while edge.replies.len() < awaited || edge.heard.len() < WARM_SET.len() || edge.leases == 0 {
        assert!(Instant::now() < deadline, "{node}: {} answers, {:?}", edge.replies.len(), edge.heard);
        edge.step(deadline).await;
    }
    assert!(
        edge.heard.iter().all(|(subscription, end)| *subscription != SubscriptionId::NODE && end.is_none()),
        "{:?}",
        edge.heard
    );
    edge
}

#[tokio::test(start_paused = true)]
async fn reconnecting_node_costs_few_api_calls() {
    let counts = Counts::default();
    let hub = hub(&counting(&counts));
    let all = |returns: bool| join_all((0..NODES).map(|number| come(&hub, number, returns)));
    drop(all(false).await);
    // Longer than a copy stays fresh, shorter than a watch without followers is kept.
    tokio::time::sleep(Duration::from_secs(60)).await;
    counts.lock().clear();
    let fleet = all(true).await;
    let counts = counts.lock().clone();
    drop(fleet);
    let bound = |kind: &str| {
        let find =
            |table: &[(&str, usize)]| table.iter().find(|(name, _)| *name == kind).map_or(0, |(_, n)| *n);
        find(&OF_EACH) * NODES + find(&OF_ALL)
    };
    let above: Vec<_> = counts.iter().filter(|(kind, count)| **count > bound(kind)).collect();
    assert!(above.is_empty(), "{NODES} nodes reconnected: {above:?} of {counts:?}");
    assert_eq!(counts["lease"], bound("lease"), "the nodes have made calls: {counts:?}");
}
