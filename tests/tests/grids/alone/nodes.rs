//! Only the labels of a node count.

use super::*;

/// Row G6 of docs/reference/superedge.md#reconcile-rows: a node that is not ready, is cordoned, or is being removed
/// from the cluster still counts (docs/reference/superedge.md#units).
#[tokio::test]
async fn unready_node_stays_in_its_unit() {
    let world = World::with_controllers().await;
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

    // Node events arrive in order: once the next node has its unit, all events of the first have been handled.
    world.node("n2", "b").await;
    let seen = until(&grids, "web", |grid| grid["status"]["units"] == 2).await;
    assert_eq!(seen["status"]["states"]["a"], state);
    assert_eq!(get(&deployments, "web-a").await, before);
    // The unit is removed with its last node.
    patch(&nodes, "n1", json!({"metadata": {"finalizers": null}})).await;
    until(&deployments, "web-a", Value::is_null).await;
}

/// A Node of which only identity, labels and owners are read.
#[tokio::test]
async fn large_node_stays_in_its_unit() {
    let world = World::with_controllers().await;
    let (grids, deployments) = (world.of::<DeploymentGrid>("default"), world.of::<Deployment>("default"));
    let nodes = world.all::<Node>();
    make(&grids, grid("web", 2)).await;
    make(
        &nodes,
        json!({"metadata": {"name": "n1", "labels": {"zone": "a"}, "annotations": many("n", 30_000)}}),
    )
    .await;
    until(&deployments, "web-a", Value::is_object).await;
    world.node("n2", "b").await;
    until(&grids, "web", |grid| grid["status"]["units"] == 2).await;
    nodes.delete("n1", &DeleteParams::default()).await.unwrap();
    until(&deployments, "web-a", Value::is_null).await;
}

#[tokio::test]
async fn no_workload_is_deleted_while_a_node_may_belong_to_its_unit() {
    let world = World::with_controllers().await;
    let (grids, deployments) = (world.of::<DeploymentGrid>("default"), world.of::<Deployment>("default"));
    let nodes = world.all::<Node>();
    make(&grids, grid("web", 2)).await;
    world.node("n1", "a").await;
    until(&deployments, "web-a", Value::is_object).await;
    let before = get(&deployments, "web-a").await;
    let mut labels = many("l", 30_000);
    labels["zone"] = "b".into();
    make(&nodes, json!({"metadata": {"name": "n2", "labels": labels}})).await;
    nodes.delete("n1", &DeleteParams::default()).await.unwrap();
    let reason = |grid: &Value| {
        let conditions = grid["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions
            .iter()
            .any(|one| one["reason"] == "NodeUnread" && one["message"].to_string().contains("n2"))
    };
    until(&grids, "web", reason).await;
    assert_eq!(get(&deployments, "web-a").await, before);
    // Once the node's unit is known, children that belong to no unit are removed.
    nodes
        .replace("n2", &PostParams::default(), &{
            let mut node = nodes.get("n2").await.unwrap();
            node.metadata.labels = Some([("zone".to_owned(), "b".to_owned())].into());
            node
        })
        .await
        .unwrap();
    until(&deployments, "web-b", Value::is_object).await;
    until(&deployments, "web-a", Value::is_null).await;
}

/// Members that take much more memory than their text.
fn many(prefix: &str, count: usize) -> Value {
    (0..count)
        .map(|number| (format!("{prefix}{number}"), Value::from("")))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
