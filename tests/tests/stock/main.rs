//! Stock KubeEdge nodes on our cloud: they join unchanged and hold what they should, whatever is interrupted.

mod metaserver;

use std::time::Duration;

use kube::api::DeleteParams;
use serde_json::{Value, json};
use tombolo_testkit::{cluster_or_skip, wait_for_value};
use tombolo_tests::stock::{self, Delivery, StockNode, Store};
use tombolo_tests::world::objects::Objects;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

/// Within this of a reconnect everything that was missed has arrived; the machine may be busy.
const CAUGHT_UP: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_embedded_api() {
    play(Api::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_real_api() {
    cluster_or_skip!("on_a_real_api");
    play(Api::Real).await;
}

async fn play(api: Api) {
    let mut world = World::start(api, Transport::WebSocket).await.unwrap();
    let objects = Objects::new(world.client().await.unwrap()).await.unwrap();
    other_names_are_refused(&world).await;
    let mut node = StockNode::join(&world, "stock-1").await.unwrap();
    node.connect().await.unwrap();
    a_node_registers_and_is_ready(&node, &objects).await;
    a_pod_runs_with_what_it_refers_to(&node, &objects).await;
    changes_arrive(&node, &objects).await;
    a_pod_is_deleted_with_grace(&node, &objects).await;
    what_was_missed_arrives_after_a_reconnect(&mut node, &objects).await;
    what_was_missed_arrives_after_a_restart_of_the_cloud(&mut world, &mut node, &objects).await;
    a_quick_reconnect_replaces_the_old_socket(&mut node, &objects).await;
    a_node_that_lost_its_database_gets_everything_again(&mut node).await;
    metaserver::requests_are_calls_of_the_node(&node).await;
    metaserver::watches_deliver_and_outlive_connections(&mut world, &mut node, &objects).await;
    world.check_cloud().unwrap();
}

async fn other_names_are_refused(world: &World) {
    let node = StockNode::join(world, "stranger").await.unwrap();
    for (path, headers) in [
        ("/p/stranger/events", [("node_id", "stock-1"), ("ConnectionUse", "msg")]),
        ("/p/stock-1/events", [("node_id", "stranger"), ("ConnectionUse", "msg")]),
    ] {
        let refused = node.upgrade(path, &headers).await.unwrap_err().to_string();
        assert!(refused.starts_with("403"), "{refused}");
    }
}

async fn a_node_registers_and_is_ready(node: &StockNode, objects: &Objects) {
    let created = node.register().await.unwrap();
    assert_eq!(created["metadata"]["name"], "stock-1");
    node.until("its Node as a push", |store| store.has("null/node/stock-1")).await;
    let found = objects.nodes().get("stock-1").await.unwrap();
    assert_eq!(found.metadata.labels.unwrap()["node-role.kubernetes.io/edge"], "");
    let conditions = found.status.unwrap().conditions.unwrap();
    assert!(conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"));
    let again =
        node.ask("insert", "null/node/stock-1", json!({"metadata": {"name": "stock-1"}})).await.unwrap();
    assert_eq!(again["content"]["Err"]["ErrStatus"]["reason"], "AlreadyExists");
    assert!(again["content"]["Object"].is_object(), "the edge dereferences it: {again}");
}

async fn a_pod_runs_with_what_it_refers_to(node: &StockNode, objects: &Objects) {
    objects.config_map("settings", "1").await.unwrap();
    objects.secret("password", "1").await.unwrap();
    objects.accepted_pod("web", "stock-1", &["settings"], &["password"]).await;
    node.until("the pod", |store| store.has("shops/pod/web")).await;
    let pod = node.look(|store| store.row("shops/pod/web").cloned()).unwrap();
    assert_eq!((&pod["kind"], &pod["spec"]["nodeName"]), (&json!("Pod"), &json!("stock-1")));
    let uid = &pod["metadata"]["uid"];

    let query = |resource: &'static str| node.ask("query", resource, Value::Null);
    for (resource, kind) in [
        ("shops/configmap/settings", "ConfigMap"),
        ("shops/secret/password", "Secret"),
        ("shops/configmap/kube-root-ca.crt", "ConfigMap"),
    ] {
        // The authority's ConfigMap follows its namespace a moment later.
        let reply = wait_for_value(resource, DEADLINE, || async {
            let reply = query(resource).await.map_err(|error| error.to_string())?;
            if reply["route"]["operation"] == "response" { Ok(reply) } else { Err(reply.to_string()) }
        })
        .await;
        assert_eq!(
            (&reply["content"]["kind"], &reply["route"]["resource"]),
            (&json!(kind), &json!(resource))
        );
        assert_eq!(reply["content"]["metadata"]["resourceVersion"], reply["header"]["resourceversion"]);
    }
    let missing = query("shops/configmap/missing").await.unwrap();
    assert_eq!(missing["route"]["operation"], "error", "nothing that would be stored: {missing}");

    let request = json!({"spec": {"audiences": null, "expirationSeconds": 3607, "boundObjectRef": {
        "kind": "Pod", "apiVersion": "v1", "name": "web", "uid": uid}}});
    let token = node.ask("query", "shops/serviceaccounttoken/default", request).await.unwrap();
    assert!(
        token["content"]["status"]["token"].as_str().is_some_and(|token| token.starts_with("ey")),
        "{token}"
    );

    let patch = json!({"metadata": {"uid": uid}, "status": {"phase": "Running"}}).to_string();
    let patched = node.ask("patch", "shops/podpatch/web", patch.into()).await.unwrap();
    assert_eq!(stock::done(&patched).unwrap()["status"]["phase"], "Running");
    assert_eq!(objects.pods().get("web").await.unwrap().status.unwrap().phase.unwrap(), "Running");
}

async fn changes_arrive(node: &StockNode, objects: &Objects) {
    objects.config_map("settings", "2").await.unwrap();
    objects.secret("password", "2").await.unwrap();
    node.until("both changes", |store| {
        value(store.row("shops/configmap/settings")) == json!("2")
            && store.row("shops/secret/password").is_some_and(|row| row["data"]["value"] == "Mg==")
    })
    .await;
    let pushed = node.look(|store| store.delivered.clone());
    let config = pushed.iter().rfind(|pushed| pushed.resource == "shops/configmap/settings").unwrap();
    let (header, route) = (&config.message["header"], &config.message["route"]);
    assert!(header.get("parent_msg_id").is_none() && header["resourceversion"].is_string(), "{header}");
    assert_eq!((&route["source"], &route["group"]), (&json!("edgecontroller"), &json!("resource")));
}

async fn a_pod_is_deleted_with_grace(node: &StockNode, objects: &Objects) {
    let grace = DeleteParams { grace_period_seconds: Some(30), ..DeleteParams::default() };
    objects.pods().delete("web", &grace).await.unwrap();
    node.until("the mark", |store| {
        store.row("shops/pod/web").is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_string())
    })
    .await;
    let uid = node.look(|store| store.row("shops/pod/web").unwrap()["metadata"]["uid"].clone());
    let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
    for _ in 0..2 {
        let deleted = node.ask("delete", "shops/pod/web", options.clone()).await.unwrap();
        assert_eq!(deleted["content"], "OK", "also when it is gone");
    }
    node.until("the end of the pod and of what only it needed", |store| {
        !["shops/pod/web", "shops/configmap/settings", "shops/secret/password"]
            .iter()
            .any(|row| store.has(row))
    })
    .await;
}

/// What is done while a node is away.
async fn work_behind_its_back(objects: &Objects, round: &str) {
    objects.config_map("settings", round).await.unwrap();
    objects.remove_pod("old").await.unwrap();
    objects.accepted_pod("new", "stock-1", &["settings"], &[]).await;
}

async fn before_its_absence(node: &StockNode, objects: &Objects) {
    objects.secret("password", "3").await.unwrap();
    objects.accepted_pod("stays", "stock-1", &["settings"], &[]).await;
    objects.accepted_pod("old", "stock-1", &[], &["password"]).await;
    node.until("both pods and what they need", |store| {
        ["pod/stays", "pod/old", "configmap/settings", "secret/password"]
            .iter()
            .all(|row| store.has(&format!("shops/{row}")))
    })
    .await;
}

async fn after_its_absence(node: &StockNode, objects: &Objects, round: &str) {
    node.until_within(CAUGHT_UP, "everything that it missed", |store| {
        value(store.row("shops/configmap/settings")) == json!(round)
            && store.has("shops/pod/new")
            && !store.has("shops/pod/old")
            && !store.has("shops/secret/password")
    })
    .await;
    for pod in ["new", "stays"] {
        objects.remove_pod(pod).await.unwrap();
    }
    node.until("an empty store", |store| store.paths().iter().all(|path| !path.contains("/pod/"))).await;
}

async fn what_was_missed_arrives_after_a_reconnect(node: &mut StockNode, objects: &Objects) {
    before_its_absence(node, objects).await;
    node.disconnect();
    work_behind_its_back(objects, "away").await;
    node.look(|store| store.delivered.clear());
    node.connect().await.unwrap();
    after_its_absence(node, objects, "away").await;
    nothing_was_sent_again(node);
}

/// The ledger knew that the edge held the pod that did not change.
fn nothing_was_sent_again(node: &StockNode) {
    let pushed = node.look(|store| store.delivered.clone());
    let ends = |pushed: &Delivery| {
        let mark = pushed.message.pointer("/content/metadata/deletionTimestamp");
        pushed.operation == "delete" || mark.is_some()
    };
    let again = |pushed: &&Delivery| pushed.resource == "shops/pod/stays" && !ends(pushed);
    assert_eq!(pushed.iter().find(again), None);
}

async fn what_was_missed_arrives_after_a_restart_of_the_cloud(
    world: &mut World,
    node: &mut StockNode,
    objects: &Objects,
) {
    before_its_absence(node, objects).await;
    world.kill_cloud();
    node.disconnect();
    if world.plane.is_some() {
        work_behind_its_back(objects, "restart").await;
        world.start_cloud().await.unwrap();
    } else {
        // The API ends with cloudcore.
        world.start_cloud().await.unwrap();
        work_behind_its_back(objects, "restart").await;
    }
    node.connect().await.unwrap();
    after_its_absence(node, objects, "restart").await;
}

async fn a_quick_reconnect_replaces_the_old_socket(node: &mut StockNode, objects: &Objects) {
    before_its_absence(node, objects).await;
    let old = node.connect_beside().await.unwrap();
    old.ended().await.unwrap();
    node.look(|store| store.delivered.clear());
    work_behind_its_back(objects, "quick").await;
    after_its_absence(node, objects, "quick").await;
    nothing_was_sent_again(node);
}

async fn a_node_that_lost_its_database_gets_everything_again(node: &mut StockNode) {
    node.until("its Node", |store| store.has("null/node/stock-1")).await;
    node.disconnect();
    node.look(Store::wipe);
    node.connect().await.unwrap();
    node.register().await.unwrap();
    node.until("its Node again", |store| store.has("null/node/stock-1")).await;
}

fn value(config: Option<&Value>) -> Value {
    config.map(|config| config["data"]["value"].clone()).unwrap_or_default()
}
