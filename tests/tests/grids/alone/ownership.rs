//! Ownership of children whose names are reused.

use tombolo_cloud::grids::MANAGER;
use tombolo_cloud::grids::api::GridKind;
use tombolo_grid::reconcile::child::Child;
use tombolo_grid::reconcile::plan::plan;

use super::*;

/// Row A8 of docs/reference/superedge.md#ownership-rows: an object that replaced an orphan or a child since it was seen
/// is not adopted, and a deleted one does not come back as another object.
#[tokio::test]
async fn replaced_child_is_not_taken_over() {
    let world = World::start().await;
    let deployments = world.of::<Deployment>("default");
    let applied = PatchParams::apply(MANAGER).force();
    let mut made: DeploymentGrid = serde_json::from_value(grid("web", 2)).unwrap();
    made.metadata.namespace = Some("default".to_owned());
    made.metadata.uid = Some("b0a1ce14-5a13-4d8b-8a2e-6f2f3a5f0001".to_owned());
    let owned = json!([{
        "apiVersion": "superedge.io/v1", "kind": "DeploymentGrid", "name": "web", "controller": true,
        "uid": made.metadata.uid,
    }]);
    for owners in [json!([]), owned] {
        let seen = json!({"metadata": {"name": "web-a", "labels": {GRID_SELECTOR: "web"}, "ownerReferences": owners}, "spec": workload(1)});
        let seen = make(&deployments, seen).await;
        let mut planned = plan(&made.grid(), &["a"], &[Child(&seen)]).unwrap();
        let manifest = planned.wanted.remove(0).manifest(&made.grid());
        remove(&deployments, "web-a").await;
        let manifest = Patch::Apply(&manifest);
        deployments.patch("web-a", &applied, &manifest).await.expect_err("no object has this UID");
        assert_eq!(get(&deployments, "web-a").await, Value::Null);

        let other = make(&deployments, json!({"metadata": {"name": "web-a"}, "spec": workload(1)})).await;
        deployments.patch("web-a", &applied, &manifest).await.expect_err("it is another object");
        assert_eq!(get(&deployments, "web-a").await, other);
        remove(&deployments, "web-a").await;
    }
}

/// Deletes a Deployment; one that no longer exists is fine.
async fn remove(deployments: &Api<Deployment>, name: &str) {
    match deployments.delete(name, &DeleteParams::background()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        outcome => drop(outcome.unwrap()),
    }
    until(deployments, name, Value::is_null).await;
}

/// Row A10 of docs/reference/superedge.md#ownership-rows: a grid that is created again adopts the children of its
/// predecessor, and no pod is restarted.
#[tokio::test]
async fn children_that_a_grid_left_behind_are_adopted_as_they_are() {
    let world = World::with_controllers().await;
    let (grids, deployments) = (world.of::<DeploymentGrid>("default"), world.of::<Deployment>("default"));
    world.node("n1", "a").await;
    let first = make(&grids, grid("web", 2)).await;
    until(&deployments, "web-a", |child| *owner(child) == first["metadata"]["uid"]).await;
    grids.delete("web", &DeleteParams::orphan()).await.unwrap();
    until(&grids, "web", Value::is_null).await;
    let left = until(&deployments, "web-a", |child| owner(child).is_null()).await;
    assert_eq!(left["metadata"]["labels"][GRID_SELECTOR], "web");

    let second = make(&grids, grid("web", 2)).await;
    let taken = until(&deployments, "web-a", |child| *owner(child) == second["metadata"]["uid"]).await;
    assert_eq!(taken["metadata"]["uid"], left["metadata"]["uid"]);
    assert_eq!(taken["spec"], left["spec"], "what pods are made from is as it was");
}

/// Row A12 of docs/reference/superedge.md#ownership-rows: grids of the same name in two namespaces are independent.
#[tokio::test]
async fn grids_of_one_name_in_two_namespaces_are_independent() {
    let world = World::with_controllers().await;
    let grids = NAMESPACES.map(|namespace| world.of::<DeploymentGrid>(namespace));
    let deployments = NAMESPACES.map(|namespace| world.of::<Deployment>(namespace));
    world.node("n1", "a").await;
    for (index, replicas) in [(0, 1), (1, 2)] {
        let made = make(&grids[index], grid("web", replicas)).await;
        let child = until(&deployments[index], "web-a", Value::is_object).await;
        assert_eq!((owner(&child), &child["spec"]["replicas"]), (&made["metadata"]["uid"], &json!(replicas)));
        until(&grids[index], "web", |grid| grid["status"]["units"] == 1).await;
    }
    let other = get(&deployments[1], "web-a").await;
    // The first one changes, loses its child, and is deleted.
    patch(&grids[0], "web", json!({"spec": {"template": {"replicas": 5}}})).await;
    let child = until(&deployments[0], "web-a", |child| child["spec"]["replicas"] == 5).await;
    deployments[0].delete("web-a", &DeleteParams::background()).await.unwrap();
    let anew = |again: &Value| again.is_object() && again["metadata"]["uid"] != child["metadata"]["uid"];
    until(&deployments[0], "web-a", anew).await;
    grids[0].delete("web", &DeleteParams::background()).await.unwrap();
    until(&deployments[0], "web-a", Value::is_null).await;
    assert_eq!(get(&deployments[1], "web-a").await, other);
    // The other one still works.
    patch(&grids[1], "web", json!({"spec": {"template": {"replicas": 7}}})).await;
    until(&deployments[1], "web-a", |child| child["spec"]["replicas"] == 7).await;
    assert_eq!(get(&deployments[0], "web-a").await, Value::Null);
}
