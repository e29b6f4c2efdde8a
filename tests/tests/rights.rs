//! What a node may do: node A's requests for its own things and for node B's, every verb and kind that it could try.
//!
//! The same table holds against the embedded server and against kube-apiserver, whose audit log must name the node.

use serde_json::{Value, json};
use tombolo_proto::frame::GoodbyeReason;
use tombolo_testkit::{AuditEvent, cluster_or_skip, wait_for};
use tombolo_tests::node::RawNode;
use tombolo_tests::world::objects::{NAMESPACE, Objects};
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

const MERGE: &str = "application/merge-patch+json";

/// One request of node A and the code that the API server answers.
struct Row {
    method: &'static str,
    path: String,
    body: Value,
    code: u16,
}

fn row(method: &'static str, path: impl Into<String>, body: Value, code: u16) -> Row {
    Row { method, path: path.into(), body, code }
}

fn table() -> Vec<Row> {
    let ns = format!("/api/v1/namespaces/{NAMESPACE}");
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let none = || Value::Null;
    let status = || json!({"status": {"phase": "Running"}});
    let label = |key: &str| json!({"metadata": {"labels": {key: "x"}}});
    let lease = |node: &str| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node},
               "spec": {"holderIdentity": node, "leaseDurationSeconds": 40}})
    };
    let token = || json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    let at_once = || json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
    vec![
        // Nodes.
        row("GET", "/api/v1/nodes/node-a", none(), 200),
        row("GET", "/api/v1/nodes/node-b", none(), 200),
        row("PATCH", "/api/v1/nodes/node-a/status", json!({"status": {"phase": "Running"}}), 200),
        row("PATCH", "/api/v1/nodes/node-b/status", json!({"status": {"phase": "Running"}}), 403),
        row("PATCH", "/api/v1/nodes/node-a", label("example.com/mine"), 200),
        row("PATCH", "/api/v1/nodes/node-a", label("node-restriction.kubernetes.io/x"), 403),
        row("PATCH", "/api/v1/nodes/node-a", label("node-role.kubernetes.io/control-plane"), 403),
        row("PATCH", "/api/v1/nodes/node-b", label("example.com/mine"), 403),
        row("DELETE", "/api/v1/nodes/node-b", none(), 403),
        // Pods.
        row("GET", format!("{ns}/pods/pod-a"), none(), 200),
        row("GET", format!("{ns}/pods/pod-b"), none(), 403),
        row("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a", none(), 200),
        row("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-b", none(), 403),
        row("GET", "/api/v1/pods", none(), 403),
        row("PATCH", format!("{ns}/pods/pod-a/status"), status(), 200),
        row("PATCH", format!("{ns}/pods/pod-b/status"), status(), 403),
        row("PATCH", format!("{ns}/pods/pod-a"), label("x"), 403),
        row("DELETE", format!("{ns}/pods/pod-b"), at_once(), 403),
        // What pods refer to.
        row("GET", format!("{ns}/secrets/secret-a"), none(), 200),
        row("GET", format!("{ns}/secrets/secret-b"), none(), 403),
        row("GET", format!("{ns}/configmaps/map-a"), none(), 200),
        row("GET", format!("{ns}/configmaps/map-b"), none(), 403),
        row("GET", format!("{ns}/secrets"), none(), 403),
        row("GET", format!("{ns}/configmaps"), none(), 403),
        row("PATCH", format!("{ns}/secrets/secret-a"), label("x"), 403),
        row("DELETE", format!("{ns}/secrets/secret-a"), none(), 403),
        row("GET", "/api/v1/namespaces/kubeedge/secrets/casecret", none(), 403),
        // Leases.
        row("POST", leases, lease("node-a"), 201),
        row("GET", format!("{leases}/node-a"), none(), 200),
        row("PATCH", format!("{leases}/node-a"), json!({"spec": {"leaseDurationSeconds": 41}}), 200),
        row("POST", leases, lease("node-b"), 403),
        row("GET", format!("{leases}/node-b"), none(), 403),
        // Tokens: only for the account of a pod that is bound here.
        row("POST", format!("{ns}/serviceaccounts/default/token"), token(), 403),
        row("POST", "/api/v1/namespaces/kube-system/serviceaccounts/default/token", token(), 403),
        // What no node may.
        row("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", none(), 403),
        row(
            "POST",
            "/api/v1/namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}),
            403,
        ),
        row("GET", "/apis/apps/v1/deployments", none(), 403),
        // Last: the node's own pod goes.
        row("DELETE", format!("{ns}/pods/pod-a"), at_once(), 200),
    ]
}

async fn ask(node: &RawNode, row: &Row) -> u16 {
    let content_type = match row.method {
        "PATCH" => MERGE,
        "GET" => "",
        _ => "application/json",
    };
    let body = if row.body.is_null() { String::new() } else { row.body.to_string() };
    let reply = node.api(row.method, &row.path, content_type, &body).await.unwrap();
    assert!(!reply.body.is_empty(), "{} {}: an answer without a body", row.method, row.path);
    reply.code
}

async fn prepared(world: &mut World) -> RawNode {
    let client = world.client().await.unwrap();
    let objects = Objects::new(client).await.unwrap();
    for name in ["a", "b"] {
        let node = json!({"metadata": {"name": format!("node-{name}"), "labels": {"node-role.kubernetes.io/edge": ""}}});
        let node = serde_json::from_value(node).unwrap();
        objects.nodes().create(&kube::api::PostParams::default(), &node).await.unwrap();
        let (map, secret) = (format!("map-{name}"), format!("secret-{name}"));
        objects.config_map(&map, "1").await.unwrap();
        objects.secret(&secret, "1").await.unwrap();
        objects.accepted_pod(&format!("pod-{name}"), &format!("node-{name}"), &[&map], &[&secret]).await;
    }
    let node = world.raw_node("node-a", "node-a").await.unwrap();
    wait_for("the authorizer to know the pod", DEADLINE, || async {
        match ask(
            &node,
            &row("GET", format!("/api/v1/namespaces/{NAMESPACE}/secrets/secret-a"), Value::Null, 200),
        )
        .await
        {
            200 => Ok(()),
            code => Err(code.to_string()),
        }
    })
    .await;
    node
}

async fn check_table(world: &mut World) {
    let node = prepared(world).await;
    let mut wrong = Vec::new();
    for row in table() {
        let code = ask(&node, &row).await;
        if code != row.code {
            wrong.push(format!("{} {} {}: {code}, should be {}", row.method, row.path, row.body, row.code));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_holds_on_the_embedded_server() {
    let mut world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    check_table(&mut world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_holds_on_kube_apiserver_and_the_audit_log_names_the_node() {
    cluster_or_skip!("the_table_holds_on_kube_apiserver_and_the_audit_log_names_the_node");
    table_and_audit_log(World::start(Api::Real, Transport::Quic).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_holds_without_constrained_impersonation() {
    cluster_or_skip!("the_same_holds_without_constrained_impersonation");
    table_and_audit_log(World::start(Api::RealLegacy, Transport::WebSocket).await.unwrap()).await;
}

async fn table_and_audit_log(mut world: World) {
    check_table(&mut world).await;
    let events = world.plane.as_ref().unwrap().audit_events().unwrap();
    let allowed = table().into_iter().filter(|row| row.method != "GET" && row.code < 300).count();
    let done = |event: &&AuditEvent| event.is_write() && event.code < 300;
    let by_node = events
        .iter()
        .filter(done)
        .filter(|event| event.impersonated.as_deref() == Some("system:node:node-a"));
    assert_eq!(by_node.count(), allowed, "every write that the table allows is logged as the node's");
    let own = events.iter().filter(done).filter(|event| {
        event.user == "system:serviceaccount:kubeedge:cloudcore" && event.impersonated.is_none()
    });
    for event in own {
        let known = ["secrets", "configmaps", "subjectaccessreviews", "selfsubjectaccessreviews"];
        assert!(known.contains(&event.resource.as_str()), "cloudcore wrote as itself: {event:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_one_node_does_not_open_the_session_of_another() {
    let world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let goodbye = world.raw_node("node-a", "node-b").await.unwrap().ended().await.unwrap();
    assert_eq!(goodbye.reason, GoodbyeReason::Forbidden);
    assert!(goodbye.message.contains("node-a") && goodbye.message.contains("node-b"), "{}", goodbye.message);
}
