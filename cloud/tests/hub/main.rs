//! cloudcore against a real API server, with exactly the rights that `deploy/` ships, and with minimal edges.

mod edge;
mod world;

use std::time::Duration;

use edge::{LEASES, Store};
use serde_json::{Value, json};
use tombolo_proto::frame::GoodbyeReason;
use tombolo_proto::message::{Message, ObjectPath, Operation, Outcome, ResourceType};
use tombolo_proto::{Resource, SubscriptionId};
use world::World;

const STRATEGIC: &str = "application/strategic-merge-patch+json";

fn object(message: &Message) -> Value {
    match Outcome::read(&message.content).expect("a wrapped answer") {
        Outcome::Done(content) => content.read().expect("JSON"),
        Outcome::Failed(error) => panic!("{}: {}", error.code, error.message),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_main_flows_run_under_the_shipped_rights() {
    tombolo_testkit::cluster_or_skip!("the_main_flows_run_under_the_shipped_rights");
    let world = World::start().await;
    registration_and_reports(&world).await;
    objects_follow_their_pods(&world).await;
    a_pod_bound_before_its_node_exists(&world).await;
    a_deleted_node_hears_of_it_and_comes_back(&world).await;
    a_newer_connection_takes_over(&world).await;
    nothing_of_another_node(&world).await;
    subscriptions(&world).await;
    writes_carry_the_names_of_nodes(&world);
    let mut edge = world.connect("first", Store::default());
    edge.until("the first objects", |edge| !edge.caught_up.is_empty()).await;
    world.stop().await;
    edge.until("a goodbye", |edge| edge.goodbye.is_some()).await;
    assert_eq!(edge.goodbye.expect("said").reason, GoodbyeReason::Draining);
}

/// Two machines with the same disk image connect to two replicas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_distinguishes_two_processes_at_two_replicas() {
    tombolo_testkit::cluster_or_skip!("lease_distinguishes_two_processes_at_two_replicas");
    let world = World::start().await;
    let replica = world.replica().await;
    let mut edge = world.connect_process("first", 7);
    edge.register().await;
    world.lease_namespace().await;
    edge.create_lease().await;
    let renewed = async |edge: &mut edge::Edge| {
        edge.renew_lease(1_790_000_001_000_001);
        edge.until("a lease answer", |edge| edge.lease.is_some() || edge.goodbye.is_some()).await;
        edge.lease
    };
    for _ in 0..2 {
        assert_eq!(renewed(&mut edge).await, Some(200));
    }
    let mut copy = replica.connect("first", Store::default(), 8);
    for _ in 0..2 {
        assert_eq!(renewed(&mut copy).await, Some(200));
    }
    assert_eq!(renewed(&mut edge).await, None);
    let goodbye = edge.goodbye.as_ref().expect("said");
    assert_eq!((goodbye.reason, goodbye.retry_after), (GoodbyeReason::Replaced, Duration::from_secs(30)));
    tombolo_testkit::wait_for("the event", Duration::from_secs(30), || async {
        let events = world.admin("GET", "/api/v1/namespaces/default/events", &Value::Null).await;
        let text = events.to_string();
        if text.contains("IdentityUsedTwice") { Ok(()) } else { Err(text) }
    })
    .await;
    replica.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_cluster_is_a_new_epoch() {
    tombolo_testkit::cluster_or_skip!("a_restored_cluster_is_a_new_epoch");
    let mut world = World::start().await;
    world.config("configmaps", "settings", &json!({"k": "before"})).await;
    world.config("secrets", "password", &json!({"k": "s"})).await;
    let mut edge = world.connect("first", Store::default());
    edge.register().await;
    world.pod("web", "first", "settings", "password").await;
    edge.until("the pod's objects", |edge| {
        edge.has("v1/configmaps/default/settings") && !edge.caught_up.is_empty()
    })
    .await;
    let before = world.status.snapshot().epoch_generation;

    let snapshot = world.plane.snapshot().expect("a copy of etcd");
    world
        .patch_until_done("/api/v1/namespaces/default/configmaps/settings", &json!({"data": {"k": "after"}}))
        .await;
    edge.until("the later version", |edge| {
        edge.row(0, "v1/configmaps/default/settings").is_some_and(|row| row.body["data"]["k"] == "after")
    })
    .await;
    world.plane.restore(snapshot.path()).await.expect("restored");
    edge.until("a goodbye", |edge| edge.goodbye.is_some()).await;
    assert_eq!(edge.goodbye.as_ref().expect("said").reason, GoodbyeReason::Other);
    assert!(world.status.snapshot().epoch_generation > before);

    let old = edge.store.epoch.clone();
    let mut edge = world.connect("first", std::mem::take(&mut edge.store));
    edge.until("the restored version", |edge| {
        edge.row(0, "v1/configmaps/default/settings").is_some_and(|row| row.body["data"]["k"] == "before")
            && !edge.caught_up.is_empty()
    })
    .await;
    assert_ne!(edge.store.epoch, old);
    assert!(edge.has("v1/pods/default/web") && edge.has("v1/secrets/default/password"));
    world.stop().await;
}

async fn registration_and_reports(world: &World) {
    let mut edge = world.connect("first", Store::default());
    // Its session is served: this request is answered.
    assert_eq!(edge.api("GET", "/api/v1/nodes/first", "", &Value::Null).await.code, 404);
    assert_eq!(
        (&edge.caught_up, &edge.delivered),
        (&vec![], &vec![]),
        "an unregistered node receives nothing"
    );
    let node = object(&edge.register().await);
    let labels = &node["metadata"]["labels"];
    assert_eq!(labels["node-role.kubernetes.io/edge"], "", "added by cloudcore: {labels}");
    assert_eq!(labels["kubernetes.io/hostname"], "first");
    assert!(labels.get("node-restriction.kubernetes.io/team").is_none(), "{labels}");
    edge.until("its Node", |edge| edge.has("v1/nodes/first") && edge.caught_up == [SubscriptionId::NODE])
        .await;

    edge.renew_lease(1_790_000_000_000_000);
    edge.until("a lease answer", |edge| edge.lease.is_some()).await;
    assert_eq!(edge.lease, Some(404), "the lease has to be created first");
    world.lease_namespace().await;
    edge.create_lease().await;
    edge.renew_lease(1_790_000_001_000_001);
    edge.until("a lease answer", |edge| edge.lease.is_some()).await;
    assert_eq!(edge.lease, Some(200));
    let lease = world.admin("GET", &format!("{LEASES}/first"), &Value::Null).await;
    assert_eq!(lease["spec"]["renewTime"], "2026-09-21T14:13:21.000001Z");

    edge.delivered.clear();
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}});
    assert_eq!(edge.api("PATCH", "/api/v1/nodes/first/status", STRATEGIC, &status).await.code, 200);
    edge.until("its condition", |edge| {
        edge.row(0, "v1/nodes/first")
            .is_some_and(|row| row.body.pointer("/status/conditions/0/type").is_some())
    })
    .await;
    edge.delivered.clear();
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:01:00Z"}]}});
    assert_eq!(edge.api("PATCH", "/api/v1/nodes/first/status", STRATEGIC, &status).await.code, 200);
    world.fence(&mut edge, "first").await;
    for round in ["1", "2"] {
        world.admin("PATCH", "/api/v1/nodes/first", &json!({"metadata": {"labels": {"fence": round}}})).await;
        edge.until("its label", |edge| {
            edge.row(0, "v1/nodes/first").is_some_and(|row| row.body["metadata"]["labels"]["fence"] == round)
        })
        .await;
    }
    assert_eq!(edge.delivered, ["v1/nodes/first"; 2], "the labels, and no heartbeat");

    let path = ObjectPath::new("default", ResourceType::Lease, "first");
    let refused = edge.message(Operation::Publish, path, &Value::Null).await;
    assert_eq!(refused.route.operation, Operation::Error);
    assert!(refused.content.as_text().expect("a sentence").contains("unknown operation"));
    let again = edge.register().await;
    assert!(matches!(Outcome::read(&again.content), Ok(Outcome::Failed(error)) if error.code == 409));
}

async fn objects_follow_their_pods(world: &World) {
    world.config("configmaps", "settings", &json!({"k": "1"})).await;
    world.config("secrets", "password", &json!({"k": "s1"})).await;
    world.config("secrets", "foreign", &json!({"k": "other"})).await;
    let mut edge = world.connect("first", Store::default());
    edge.until("its first objects", |edge| !edge.caught_up.is_empty()).await;
    assert!(!edge.has("v1/secrets/default/password"), "no pod needs it yet");
    let pod = world.pod("web", "first", "settings", "password").await;
    edge.until("pod and references", |edge| {
        ["pods", "configmaps", "secrets"]
            .iter()
            .zip(["web", "settings", "password"])
            .all(|(kind, name)| edge.has(&format!("v1/{kind}/default/{name}")))
    })
    .await;
    let row = edge.row(0, "v1/pods/default/web").expect("held").clone();
    assert_eq!(row.dependencies, ["v1/configmaps/default/settings", "v1/secrets/default/password"]);
    assert!(row.body["metadata"].get("managedFields").is_none());

    world
        .admin("PATCH", "/api/v1/namespaces/default/configmaps/settings", &json!({"data": {"k": "2"}}))
        .await;
    edge.until("the update", |edge| {
        edge.row(0, "v1/configmaps/default/settings").is_some_and(|row| row.body["data"]["k"] == "2")
    })
    .await;

    edge.delivered.clear();
    let uid = &pod["metadata"]["uid"];
    let status = json!({"metadata": {"uid": uid}, "status": {"phase": "Running"}});
    let path = "/api/v1/namespaces/default/pods/web/status";
    assert_eq!(edge.api("PATCH", path, STRATEGIC, &status).await.code, 200);
    world.fence(&mut edge, "first").await;
    assert_eq!(edge.delivered, Vec::<String>::new(), "a status is not sent back to its writer");

    let query = edge
        .message(Operation::Query, ObjectPath::new("default", ResourceType::Secret, "password"), &Value::Null)
        .await;
    let secret: Value = query.content.read().expect("a Secret");
    assert_eq!(
        (secret["kind"].as_str(), secret["metadata"]["name"].as_str()),
        (Some("Secret"), Some("password"))
    );
    assert_eq!(secret["metadata"]["resourceVersion"], query.header.resource_version);
    let token = json!({"spec": {"audiences": null, "expirationSeconds": 3607, "boundObjectRef": {
        "kind": "Pod", "apiVersion": "v1", "name": "web", "uid": uid}}});
    let path = ObjectPath::new("default", ResourceType::ServiceAccountToken, "default");
    let token = edge.message(Operation::Query, path, &token).await;
    let token: Value =
        token.content.read().unwrap_or_else(|_| panic!("no token: {:?}", token.content.as_text()));
    assert!(token["status"]["token"].as_str().is_some_and(|token| token.starts_with("ey")), "{token}");

    world.delete_pod("web").await;
    edge.until("all objects of the pod to be deleted", |edge| edge.names() == ["v1/nodes/first"]).await;
    edge.delivered.clear();
    world
        .admin("PATCH", "/api/v1/namespaces/default/secrets/password", &json!({"stringData": {"k": "s2"}}))
        .await;
    world.fence(&mut edge, "first").await;
    assert_eq!(
        edge.delivered,
        Vec::<String>::new(),
        "a Secret is no longer delivered once its last pod is gone"
    );
}

async fn a_pod_bound_before_its_node_exists(world: &World) {
    world.pod("early", "second", "settings", "missing").await;
    let mut edge = world.connect("second", Store::default());
    edge.register().await;
    edge.until("the pod", |edge| edge.has("v1/pods/default/early") && !edge.caught_up.is_empty()).await;
    edge.until("the known absence", |edge| edge.row(0, "v1/secrets/default/missing").is_some()).await;
    assert!(!edge.has("v1/secrets/default/missing"));
    world.config("secrets", "missing", &json!({"k": "late"})).await;
    edge.until("the late secret", |edge| edge.has("v1/secrets/default/missing")).await;
}

async fn a_deleted_node_hears_of_it_and_comes_back(world: &World) {
    let mut edge = world.connect("second", Store::default());
    edge.until("its objects", |edge| edge.has("v1/pods/default/early") && !edge.caught_up.is_empty()).await;
    world.admin("DELETE", "/api/v1/nodes/second", &Value::Null).await;
    edge.until("a goodbye", |edge| edge.goodbye.is_some()).await;
    assert_eq!(edge.goodbye.as_ref().expect("said").reason, GoodbyeReason::NodeDeleted);

    let store = std::mem::take(&mut edge.store);
    let mut edge = world.connect("second", store);
    world
        .admin("PATCH", "/api/v1/namespaces/default/configmaps/settings", &json!({"data": {"k": "3"}}))
        .await;
    // Another node receives a later change, and this session is served.
    let mut other = world.connect("first", Store::default());
    other.until("its first objects", |edge| !edge.caught_up.is_empty()).await;
    world.fence(&mut other, "first").await;
    drop(other);
    assert_eq!(edge.api("GET", "/api/v1/nodes/second", "", &Value::Null).await.code, 404);
    assert_eq!(edge.delivered, Vec::<String>::new(), "no object is delivered, and none is deleted");
    assert!(edge.has("v1/pods/default/early"));
    edge.register().await;
    edge.until("the change that happened meanwhile", |edge| {
        edge.row(0, "v1/configmaps/default/settings").is_some_and(|row| row.body["data"]["k"] == "3")
            && !edge.caught_up.is_empty()
    })
    .await;
    world.fence(&mut edge, "second").await;
    assert!(edge.has("v1/pods/default/early"));
    assert!(!edge.delivered.contains(&"v1/pods/default/early".to_owned()), "it was held all the time");
}

async fn a_newer_connection_takes_over(world: &World) {
    let mut old = world.connect("second", Store::default());
    old.until("its objects", |edge| !edge.caught_up.is_empty()).await;
    let mut new = world.connect("second", std::mem::take(&mut old.store));
    old.until("a goodbye", |edge| edge.goodbye.is_some()).await;
    assert_eq!(old.goodbye.expect("said").reason, GoodbyeReason::Replaced);
    new.until("its objects", |edge| !edge.caught_up.is_empty()).await;
    world.fence(&mut new, "second").await;
    assert_eq!(new.delivered, Vec::<String>::new(), "without a change, nothing is sent");
    assert_eq!(
        world.status.snapshot().nodes.iter().filter(|node| node.connected && node.name == "second").count(),
        1
    );
}

async fn nothing_of_another_node(world: &World) {
    let mut edge = world.connect("first", Store::default());
    edge.until("its objects", |edge| !edge.caught_up.is_empty()).await;
    let none = Value::Null;
    let secret = edge.api("GET", "/api/v1/namespaces/default/secrets/foreign", "", &none).await;
    assert_eq!(secret.code, 403, "{}", String::from_utf8_lossy(&secret.body));
    let query = ObjectPath::new("default", ResourceType::Secret, "foreign");
    let query = edge.message(Operation::Query, query, &none).await;
    assert_eq!(query.route.operation, Operation::Error);
    for (method, path, body, code) in [
        ("PATCH", "/api/v1/nodes/second/status", json!({"status": {}}), 403),
        // A report about another node's pod has to end: for this node, the pod does not exist.
        (
            "PATCH",
            "/api/v1/namespaces/default/pods/early/status",
            json!({"status": {"phase": "Failed"}}),
            404,
        ),
        ("DELETE", "/api/v1/namespaces/default/pods/early", json!({"gracePeriodSeconds": 0}), 403),
        (
            "PATCH",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/second",
            json!({"spec": {}}),
            403,
        ),
        (
            "PATCH",
            "/api/v1/nodes/first",
            json!({"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}}),
            403,
        ),
    ] {
        let content_type = if method == "PATCH" { STRATEGIC } else { "application/json" };
        let content_type =
            if path.contains("leases") { "application/merge-patch+json" } else { content_type };
        let reply = edge.api(method, path, content_type, &body).await;
        assert_eq!(reply.code, code, "{method} {path}: {}", String::from_utf8_lossy(&reply.body));
    }
    let endless = edge.api("GET", "/api/v1/nodes?watch=true", "", &none).await;
    assert_eq!(endless.code, 400);
}

async fn subscriptions(world: &World) {
    let mut edge = world.connect("first", Store::default());
    edge.until("its objects", |edge| !edge.caught_up.is_empty()).await;
    let subscription = edge.subscribe(Resource::new("", "v1", "services"));
    edge.until("the services", |edge| edge.caught_up.contains(&subscription)).await;
    let row = edge.row(subscription.0, "v1/services/default/kubernetes").expect("every cluster has it");
    assert_eq!((&row.body["kind"], &row.body["apiVersion"]), (&json!("Service"), &json!("v1")));
    let service = json!({"metadata": {"name": "shop"}, "spec": {"ports": [{"port": 80}]}});
    world.admin("POST", "/api/v1/namespaces/default/services", &service).await;
    edge.until("a new service", |edge| edge.row(subscription.0, "v1/services/default/shop").is_some()).await;
    world.admin("DELETE", "/api/v1/namespaces/default/services/shop", &Value::Null).await;
    edge.until("its deletion", |edge| edge.row(subscription.0, "v1/services/default/shop").is_none()).await;
    for (resource, code) in [
        (Resource::new("", "v1", "secrets"), 403),
        (Resource::new("apps", "v1", "deployments"), 403),
        (Resource::new("", "v1", "pods"), 403),
    ] {
        edge.closed = None;
        edge.subscribe(resource.clone());
        edge.until("a refusal", |edge| edge.closed.is_some()).await;
        let (got, reason) = edge.closed.clone().expect("refused");
        assert_eq!(got, code, "{resource}: {reason}");
    }
}

/// Every write about nodes appears in the audit log under the name of a node; deliveries are not written anywhere.
fn writes_carry_the_names_of_nodes(world: &World) {
    let account = "system:serviceaccount:kubeedge:tombolo-cloudcore";
    let events = world.plane.audit_events().expect("audit log");
    let writes: Vec<_> = events.iter().filter(|event| event.user == account && event.is_write()).collect();
    for resource in ["nodes/status", "pods/status", "leases"] {
        let of_kind: Vec<_> = writes.iter().filter(|event| event.resource == resource).collect();
        assert!(!of_kind.is_empty(), "{resource}");
        for event in of_kind {
            let node = event.impersonated.as_deref().unwrap_or_default();
            assert!(node.starts_with("system:node:"), "{event:?}");
        }
    }
    let own = ["secrets", "configmaps", "nodes", "subjectaccessreviews", "tokenreviews"];
    for event in writes.iter().filter(|event| event.impersonated.is_none()) {
        assert!(own.contains(&event.resource.as_str()), "{event:?}");
        assert!(event.resource != "nodes" || event.verb == "patch", "{event:?}");
    }
}
