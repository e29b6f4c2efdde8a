//! Nodes that are not connected, or never were connected.

use serde_json::Value;
use tombolo_tests::world::objects::{NAMESPACE, Objects};
use tombolo_tests::world::{Api, Transport, World};

use super::says;

const NODE: &str = "edge-a";

/// Number of updates while the node is disconnected.
const UPDATES: u32 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_for_a_node_that_is_away_are_not_queued() {
    let mut world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let objects = Objects::new(world.client().await.unwrap()).await.unwrap();
    objects.config_map("settings", "0").await.unwrap();
    world.start_edge(NODE).await.unwrap();
    objects.accepted_pod("shop", NODE, &["settings"], &[]).await;
    world.converges(NODE).await;
    let local = world.edge_client(NODE).await.unwrap();
    let held = objects.seen_by(local.clone()).config_maps().get("settings").await.unwrap();
    let seen = held.metadata.resource_version.unwrap();
    world.kill_edge(NODE);
    gone(&world).await;

    let acknowledged = acknowledged(&world).await;
    for value in 1..=UPDATES {
        objects.config_map("settings", &value.to_string()).await.unwrap();
    }

    world.start_edge(NODE).await.unwrap();
    world.converges(NODE).await;
    // One delivery of the newest version; a second one if cloudcore's watch had not seen the newest when the edge
    // returned.
    let delivered = deliveries(&local, &seen).await;
    assert_eq!(delivered.last(), Some(&UPDATES.to_string()), "{delivered:?}");
    assert!(delivered.len() <= 2, "{delivered:?}");
    // In addition, the node's own Node object may have changed.
    let more = self::acknowledged(&world).await - acknowledged;
    assert!((1.0..f64::from(UPDATES)).contains(&more), "{more} deliveries for the pending updates");
    world.kill_edge(NODE);
    questions(&world).await;
    world.check_cloud().unwrap();
}

async fn acknowledged(world: &World) -> f64 {
    world.cloud_metric("tombolo_cloud_acknowledged_total").await.unwrap()
}

async fn gone(world: &World) {
    tombolo_testkit::wait_for("the session to be over", tombolo_tests::world::DEADLINE, || async {
        match world.cloud_metric("tombolo_cloud_sessions").await {
            Ok(0.0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// The answers that another node receives about a disconnected node and about one that never existed.
async fn questions(world: &World) {
    let asker = world.raw_node("edge-b", "edge-b").await.unwrap();
    for (path, code, part) in [
        ("/api/v1/nodes/edge-a", 200, "edge-a"),
        ("/api/v1/nodes/never", 404, "not found"),
        ("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge-a", 403, "edge-a"),
        ("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/never", 403, "never"),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dedge-a", 403, "edge-b"),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dnever", 403, "edge-b"),
    ] {
        let reply = asker.api("GET", path, "", "").await.unwrap();
        let body = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(reply.code, code, "{path}: {body}");
        says(&body, &[part]);
    }
}

/// Values of the ConfigMap that the node's clients received since a revision.
async fn deliveries(local: &kube::Client, since: &str) -> Vec<String> {
    let path =
        format!("/api/v1/namespaces/{NAMESPACE}/configmaps?watch=1&timeoutSeconds=1&resourceVersion={since}");
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let events = local.request_text(request).await.unwrap();
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events
        .filter(|event| event["object"]["metadata"]["name"] == "settings")
        .map(|event| event["object"]["data"]["value"].as_str().unwrap_or_default().to_owned())
        .collect()
}
