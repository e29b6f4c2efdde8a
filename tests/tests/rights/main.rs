//! What a node may do: node A's requests for its own objects and for node B's, with every verb and kind that it could
//! try, as API calls, as KubeEdge's messages and as subscriptions.
//!
//! The same table holds against the embedded server and against kube-apiserver, whose audit log must name the node.

mod granted;
mod messages;
mod table;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tombolo_proto::Resource;
use tombolo_proto::frame::GoodbyeReason;
use tombolo_testkit::{AuditEvent, ControlPlane, cluster_or_skip, wait_for, wait_for_value};
use tombolo_tests::node::RawNode;
use tombolo_tests::rights::CLOUDCORE;
use tombolo_tests::world::objects::{NAMESPACE, Objects};
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

use messages::{WRITTEN, listed_pods, messages, register};
use table::{ATTACHMENTS, CORE, CSI_NODES, LEASES, Row, Uids, farewell, lease, named, of, row, table};

const MERGE: &str = "application/merge-patch+json";

async fn ask(node: &RawNode, row: &Row) -> (u16, String) {
    let content_type = match row.method {
        "PATCH" => MERGE,
        "GET" => "",
        _ => "application/json",
    };
    let body = if row.body.is_null() { String::new() } else { row.body.to_string() };
    let reply = node.api(row.method, &row.path, content_type, &body).await.unwrap();
    assert!(!reply.body.is_empty(), "{} {}: an answer without a body", row.method, row.path);
    (reply.code, String::from_utf8_lossy(&reply.body).into_owned())
}

/// A client that creates any JSON object as the administrator.
struct Administrator(kube::Client);

impl Administrator {
    async fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", "application/json");
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let answer = self.0.request_text(request.body(body).unwrap()).await;
        let text = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        serde_json::from_str(&text).unwrap()
    }

    async fn create(&self, path: &str, body: &Value) -> Value {
        self.send("POST", path, body).await
    }
}

/// Creates everything that a node can have, for two nodes.
async fn prepared(world: &World) -> (RawNode, Uids) {
    let client = world.client().await.unwrap();
    let objects = Objects::new(client.clone()).await.unwrap();
    let administrator = Administrator(client);
    administrator.create(&of("services"), &service()).await;
    let mut uids = Vec::new();
    let uid_of = |object: &Value| object["metadata"]["uid"].as_str().unwrap().to_owned();
    for letter in ["a", "b"] {
        let node = format!("node-{letter}");
        let object = json!({"metadata": {"name": node, "labels": {"node-role.kubernetes.io/edge": ""}},
                            "spec": {"taints": [{"key": "edge", "effect": "NoSchedule"}]}});
        let created = administrator.create(&format!("{CORE}/nodes"), &object).await;
        objects.config_map(&format!("map-{letter}"), "1").await.unwrap();
        objects.secret(&format!("secret-{letter}"), "1").await.unwrap();
        let account = named("ServiceAccount", &format!("account-{letter}"));
        administrator.create(&of("serviceaccounts"), &account).await;
        administrator.create(&of("persistentvolumeclaims"), &claim(letter)).await;
        let pod = administrator.create(&of("pods"), &pod(letter, &node)).await;
        uids.extend([uid_of(&created), uid_of(&pod)]);
    }
    administrator.create(LEASES, &lease("node-b")).await;
    let csi_node = json!({"metadata": {"name": "node-b"}, "spec": {"drivers": []}});
    administrator.create(CSI_NODES, &csi_node).await;
    administrator.create(&format!("{CORE}/persistentvolumes"), &volume()).await;
    let attachment = json!({"metadata": {"name": "attachment-b"}, "spec": {
        "attacher": "csi.example.com", "nodeName": "node-b", "source": {"persistentVolumeName": "volume-b"}}});
    administrator.create(ATTACHMENTS, &attachment).await;

    let node = world.raw_node("node-a", "node-a").await.unwrap();
    wait_for("the authorizer to know the pod", DEADLINE, || async {
        match ask(&node, &row("GET", of("secrets/secret-a"), Value::Null, 200)).await {
            (200, _) => Ok(()),
            (code, body) => Err(format!("{code}: {body}")),
        }
    })
    .await;
    let [own_node, own_pod, other_node, other_pod] = uids.try_into().unwrap();
    (node, Uids { own_node, other_node, own_pod, other_pod })
}

fn service() -> Value {
    json!({"metadata": {"name": "till"}, "spec": {"ports": [{"port": 80}], "selector": {"app": "till"}}})
}

fn claim(letter: &str) -> Value {
    json!({"metadata": {"name": format!("claim-{letter}")}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": {"requests": {"storage": "1Gi"}}}})
}

fn volume() -> Value {
    json!({"metadata": {"name": "volume-b"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "by-hand",
        "csi": {"driver": "csi.example.com", "volumeHandle": "b"}}})
}

fn pod(letter: &str, node: &str) -> Value {
    json!({"metadata": {"name": format!("pod-{letter}")}, "spec": {
    "nodeName": node, "serviceAccountName": format!("account-{letter}"),
    "containers": [{"name": "shop", "image": "registry.example/shop:1"}],
    "volumes": [
        {"name": "map", "configMap": {"name": format!("map-{letter}")}},
        {"name": "secret", "secret": {"secretName": format!("secret-{letter}")}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": format!("claim-{letter}")}},
    ]}})
}

/// Objects of node B that only node A could have changed meanwhile, with their revisions.
async fn revisions_of_b(world: &World) -> BTreeMap<String, String> {
    let administrator = Administrator(world.client().await.unwrap());
    let mut revisions = BTreeMap::new();
    for path in [
        of("secrets/secret-b"),
        of("configmaps/map-b"),
        of("serviceaccounts/account-b"),
        format!("{LEASES}/node-b"),
        format!("{CSI_NODES}/node-b"),
    ] {
        let object = administrator.send("GET", &path, &Value::Null).await;
        revisions.insert(path, object["metadata"]["resourceVersion"].to_string());
    }
    let pod = administrator.send("GET", &of("pods/pod-b"), &Value::Null).await;
    revisions.insert("phase of pod-b".to_owned(), pod["status"]["phase"].to_string());
    revisions
}

/// The resources that node A tries to follow: resource, namespace, code.
const FOLLOWED: [(&str, &str, &str, u16); 7] = [
    ("", "pods", NAMESPACE, 403),
    ("", "secrets", NAMESPACE, 403),
    ("", "configmaps", NAMESPACE, 403),
    ("coordination.k8s.io", "leases", "kube-node-lease", 403),
    ("", "events", NAMESPACE, 403),
    ("", "services", NAMESPACE, 200),
    ("discovery.k8s.io", "endpointslices", "", 200),
];

async fn check_table(world: &World) {
    let (node, uids) = prepared(world).await;
    let before = revisions_of_b(world).await;
    let mut wrong = Vec::new();
    for row in table(&uids) {
        let (code, body) = ask(&node, &row).await;
        if code != row.code {
            wrong.push(format!(
                "{} {} {}: {code}, should be {}: {body}",
                row.method, row.path, row.body, row.code
            ));
        }
    }
    for message in messages(&uids) {
        wrong.extend(message.check(&node).await);
    }
    for (group, name, namespace, wanted) in FOLLOWED {
        let outcome = node.follow(Resource::new(group, "v1", name), namespace, None).await.unwrap();
        let code = outcome.as_ref().err().map_or(200, |(code, _)| *code);
        if code != wanted {
            wrong.push(format!("following {name} in {namespace:?}: {outcome:?}, should be {wanted}"));
        }
    }
    let listed = listed_pods(&node).await;
    if listed.iter().any(|name| name == "pod-b") || !listed.iter().any(|name| name == "pod-a") {
        wrong.push(format!("the pods of the node are listed as {listed:?}"));
    }
    for row in farewell() {
        let (code, body) = ask(&node, &row).await;
        if code != row.code {
            wrong.push(format!("{} {}: {code}, should be {}: {body}", row.method, row.path, row.code));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(revisions_of_b(world).await, before, "something of node B has changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_table_holds_on_the_embedded_server() {
    let world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    check_table(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_table_holds_on_kube_apiserver_and_the_audit_log_names_the_node() {
    cluster_or_skip!("rights_table_holds_on_kube_apiserver_and_the_audit_log_names_the_node");
    table_and_audit_log(World::start(Api::Real, Transport::Quic).await.unwrap(), true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_hold_without_constrained_impersonation() {
    cluster_or_skip!("rights_hold_without_constrained_impersonation");
    table_and_audit_log(World::start(Api::RealLegacy, Transport::WebSocket).await.unwrap(), false).await;
}

/// The audit log once it contains cloudcore's watches, which are logged when they end.
async fn with_watches(plane: &ControlPlane) -> Vec<AuditEvent> {
    wait_for_value("the ends of cloudcore's watches", DEADLINE, || async {
        let events = plane.audit_events().map_err(|error| error.to_string())?;
        let watched = |resource: &str| {
            events
                .iter()
                .any(|event| event.verb == "watch" && event.resource == resource && event.user == CLOUDCORE)
        };
        let missing =
            ["nodes", "pods", "configmaps", "secrets"].into_iter().find(|resource| !watched(resource));
        missing.map_or(Ok(events.clone()), |resource| Err(format!("no watch of {resource}")))
    })
    .await
}

/// A write as in the audit log: verb, resource and name.
type Write = (String, String, String);

fn write_of(event: &AuditEvent) -> Write {
    (event.verb.clone(), event.resource.clone(), event.name.clone())
}

/// The write of a row.
fn write_in(row: &Row) -> Write {
    let verb = match row.method {
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        _ => "delete",
    };
    let path = row.path.rsplit_once("/v1/").map_or(row.path.as_str(), |(_, path)| path);
    let mut parts: Vec<&str> = path.split('/').collect();
    if parts.len() > 2 && parts[0] == "namespaces" {
        parts.drain(..2);
    }
    let name = parts.get(1).copied().or_else(|| row.body["metadata"]["name"].as_str()).unwrap_or_default();
    let resource = match parts.get(2) {
        Some(subresource) => format!("{}/{subresource}", parts[0]),
        None => parts[0].to_owned(),
    };
    (verb.to_owned(), resource, name.to_owned())
}

/// Makes cloudcore do the work that the table does not need: label a new node, and review a token.
async fn newcomer(world: &World) {
    let node = world.raw_node("node-n", "node-n").await.unwrap();
    assert_eq!(register(&node, "node-n").await, 200);
    let administrator = Administrator(world.client().await.unwrap());
    let object = administrator.send("GET", "/api/v1/nodes/node-n", &Value::Null).await;
    assert_eq!(object["metadata"]["labels"]["node-role.kubernetes.io/edge"], "", "{object}");
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    let issued = administrator.create(&of("serviceaccounts/account-b/token"), &request).await;
    let token = issued["status"]["token"].as_str().unwrap();
    let refused = node.follow(Resource::new("", "v1", "services"), NAMESPACE, Some(token)).await.unwrap();
    let (code, reason) = refused.unwrap_err();
    assert!(code == 403 && reason.contains("account-b"), "{code}: {reason}");
}

/// Applies the manifests of `deploy/` in a dry run.
fn dry_run(plane: &ControlPlane) {
    let folder = tombolo_tests::source::root().join("deploy/cloudcore");
    let folder = folder.to_str().unwrap();
    let output = plane.kubectl(&["apply", "--dry-run=server", "-f", folder]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

async fn table_and_audit_log(mut world: World, constrained: bool) {
    check_table(&world).await;
    newcomer(&world).await;
    if constrained {
        dry_run(world.plane.as_ref().unwrap());
        world.kill_cloud();
        granted::check(&with_watches(world.plane.as_ref().unwrap()).await);
    }
    let events = world.plane.as_ref().unwrap().audit_events().unwrap();
    let rows = table(&Uids::default()).into_iter().chain(farewell());
    let mut allowed: Vec<Write> =
        rows.filter(|row| row.method != "GET" && row.code < 300).map(|row| write_in(&row)).collect();
    allowed.extend(
        WRITTEN.map(|(verb, resource, name)| (verb.to_owned(), resource.to_owned(), name.to_owned())),
    );
    allowed.sort();
    let done = |event: &&AuditEvent| event.is_write() && event.code < 300;
    let by_node = events
        .iter()
        .filter(done)
        .filter(|event| event.impersonated.as_deref() == Some("system:node:node-a"));
    let mut logged: Vec<Write> = by_node.map(write_of).collect();
    logged.sort();
    assert_eq!(logged, allowed, "the allowed writes must be exactly those that are logged as the node's");

    let own =
        events.iter().filter(done).filter(|event| event.user == CLOUDCORE && event.impersonated.is_none());
    for event in own {
        let (_, resource, name) = write_of(event);
        let known = match resource.as_str() {
            "secrets" => {
                ["casecret", "tombolo-server"].contains(&name.as_str())
                    || name.starts_with("tombolo-identities-")
                    || name == "tombolo-join-tokens"
            }
            "configmaps" => name == "tombolo-epoch",
            "nodes" => name == "node-n" && event.verb == "patch",
            "subjectaccessreviews" | "selfsubjectaccessreviews" | "tokenreviews" => true,
            _ => false,
        };
        assert!(known, "cloudcore wrote as itself: {event:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_one_node_does_not_open_the_session_of_another() {
    let world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let goodbye = world.raw_node("node-a", "node-b").await.unwrap().ended().await.unwrap();
    assert_eq!(goodbye.reason, GoodbyeReason::Forbidden);
    assert!(goodbye.message.contains("node-a") && goodbye.message.contains("node-b"), "{}", goodbye.message);
}
