//! Of a node its labels count, and nothing else.

use super::*;

/// Row G6 of docs/reference/superedge.md#reconcile-rows: a node that is not ready, is cordoned, or is on its way out of
/// the cluster counts as before (docs/reference/superedge.md#units).
#[tokio::test]
async fn a_node_in_trouble_is_in_its_unit_as_before() {
    let world = World::with_controller().await;
    let (grids, deployments) = (world.of::<DeploymentGrid>("default"), world.of::<Deployment>("default"));
    let nodes = world.all::<Node>();
    let node = json!({"metadata": {"name": "n1", "labels": {"zone": "a"}, "finalizers": ["test/stays"]}});
    make(&nodes, node).await;
    make(&grids, grid("web", 2)).await;
    until(&grids, "web", |grid| grid["status"]["units"] == 1).await;
    let before = get(&deployments, "web-a").await;
    let state = get(&grids, "web").await["status"]["states"]["a"].clone();

    let lost = json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = Patch::Merge(json!({"status": {"conditions": [lost]}}));
    nodes.patch_status("n1", &PatchParams::default(), &status).await.unwrap();
    let unreachable = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
    patch(&nodes, "n1", json!({"spec": {"unschedulable": true, "taints": unreachable}})).await;
    nodes.delete("n1", &DeleteParams::default()).await.unwrap();
    assert!(get(&nodes, "n1").await["metadata"]["deletionTimestamp"].is_string());

    // Nodes are heard of in order: once the next one has its unit, all that was to come of the first has come.
    world.node("n2", "b").await;
    let seen = until(&grids, "web", |grid| grid["status"]["units"] == 2).await;
    assert_eq!(seen["status"]["states"]["a"], state);
    assert_eq!(get(&deployments, "web-a").await, before);
    // With the node the unit goes.
    patch(&nodes, "n1", json!({"metadata": {"finalizers": null}})).await;
    until(&deployments, "web-a", Value::is_null).await;
}
