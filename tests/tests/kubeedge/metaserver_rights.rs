//! Additional rights of applications through MetaServer, beyond those of their node: `deploy/optional/metaserver.yaml`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tombolo_testkit::{cluster_or_skip, wait_for};
use tombolo_tests::kubeedge::{KubeEdgeNode, application_result};
use tombolo_tests::source;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

use super::metaserver::ask;

const CONFIGMAPS: &str = "/core/v1/configmaps/default/null";
const MINE: &str = "/core/v1/configmaps/default/mine";
const DEPLOYMENTS: &str = "/apps/v1/deployments/null/null";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applications_have_the_rights_of_the_optional_role() {
    cluster_or_skip!("applications_have_the_rights_of_the_optional_role");
    let world = World::start(Api::Real, Transport::WebSocket).await.unwrap();
    let mut node = KubeEdgeNode::join(&world, "kubeedge-1").await.unwrap();
    node.connect().await.unwrap();
    node.register().await.unwrap();
    for (verb, key, body) in
        [("list", CONFIGMAPS, None), ("create", CONFIGMAPS, Some(mine("1"))), ("list", DEPLOYMENTS, None)]
    {
        refused(&node, verb, key, body).await;
    }
    let manifest = source::root().join("deploy/optional/metaserver.yaml").display().to_string();
    world.kubectl(&["apply", "-f", &manifest]).unwrap();
    wait_for("the rights to be effective", DEADLINE, async || {
        let [maps, deployments] =
            [CONFIGMAPS, DEPLOYMENTS].map(|key| ask(&node, "list", key, json!({}), None));
        match (maps.await["Status"].clone(), deployments.await["Status"].clone()) {
            (maps, deployments) if maps == "Approved" && deployments == "Approved" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    writes_reach_the_api(&world, &node).await;
    watches_follow(&world, &node).await;
    // No other requests are allowed.
    for (verb, key, body) in [
        ("create", "/core/v1/configmaps/kube-system/null", Some(mine("1"))),
        ("list", "/core/v1/configmaps/kube-system/null", None),
        ("create", "/apps/v1/deployments/default/null", Some(json!({"metadata": {"name": "x"}}))),
        ("list", "/core/v1/secrets/default/null", None),
    ] {
        refused(&node, verb, key, body).await;
    }
    node.look(|store| assert!(store.harms.is_empty() && store.unanswered.is_empty(), "{:?}", store.harms));
}

fn mine(value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine", "namespace": "default"},
        "data": {"value": value}})
}

async fn refused(node: &KubeEdgeNode, verb: &str, key: &str, body: Option<Value>) {
    let answer = ask(node, verb, key, json!({}), body).await;
    assert_eq!(answer["Error"]["ErrStatus"]["code"], 403, "{verb} {key}: {answer}");
}

async fn writes_reach_the_api(world: &World, node: &KubeEdgeNode) {
    let value =
        || world.kubectl(&["get", "configmap", "mine", "-n", "default", "-o", "jsonpath={.data.value}"]);
    let patch = json!({"data": {"value": "3"}}).to_string();
    let patch = json!({"Name": "mine", "PatchType": "application/merge-patch+json",
        "Data": STANDARD.encode(patch), "Options": {}, "Subresources": []});
    for (verb, key, option, body, expected) in [
        ("create", CONFIGMAPS, json!({}), Some(mine("1")), "1"),
        ("update", MINE, json!({}), Some(mine("2")), "2"),
        ("patch", MINE, patch, None, "3"),
    ] {
        let done = ask(node, verb, key, option, body).await;
        assert_eq!(done["Status"], "Approved", "{verb}: {done}");
        assert_eq!(application_result(&done).unwrap()["data"]["value"], expected);
        assert_eq!(value().unwrap(), expected);
    }
    let deleted = ask(node, "delete", MINE, json!({}), None).await;
    assert_eq!(deleted["Status"], "Approved", "{deleted}");
    assert!(value().unwrap_err().to_string().contains("NotFound"));
}

async fn watches_follow(world: &World, node: &KubeEdgeNode) {
    for key in [CONFIGMAPS, DEPLOYMENTS] {
        let opened = ask(node, "watch", key, json!({"watch": true}), None).await;
        assert_eq!(opened["Status"], "Approved", "{opened}");
    }
    world.kubectl(&["create", "configmap", "later", "-n", "default"]).unwrap();
    world
        .kubectl(&["create", "deployment", "shop", "-n", "default", "--image=registry.example/shop:1"])
        .unwrap();
    node.until("both", |store| store.has("default/configmap/later") && store.has("default/deployment/shop"))
        .await;
}
