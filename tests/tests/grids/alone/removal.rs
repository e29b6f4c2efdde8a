//! Children that cannot be removed, and lists that other managers have changed.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::events::v1::Event;

use super::*;

/// Makes the API server refuse to delete Deployments with this label.
async fn protect(world: &World) {
    let policy = json!({
        "metadata": {"name": "keep"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [
                {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["deployments"]},
            ]},
            "validations": [{"expression": "false", "message": "this one stays"}],
        },
    });
    let binding = json!({
        "metadata": {"name": "keep"},
        "spec": {"policyName": "keep", "validationActions": ["Deny"]},
    });
    make(&world.all::<ValidatingAdmissionPolicy>(), policy).await;
    make(&world.all::<ValidatingAdmissionPolicyBinding>(), binding).await;
    let deployments = world.of::<Deployment>("default");
    make(&deployments, json!({"metadata": {"name": "probe"}, "spec": workload(1)})).await;
    let rehearsal = DeleteParams { dry_run: true, ..DeleteParams::default() };
    wait_for("deletions to be refused", DEADLINE, || async {
        match deployments.delete("probe", &rehearsal).await {
            Err(_) => Ok(()),
            Ok(_) => Err("a deletion is allowed".to_owned()),
        }
    })
    .await;
}

/// A refused deletion hides nothing else: the other units are reconciled, and status and events report the problem.
#[tokio::test]
async fn one_refused_deletion_hides_neither_the_status_nor_the_events_of_the_grid() {
    let world = World::with_controllers().await;
    let (grids, deployments) = (world.of::<DeploymentGrid>("default"), world.of::<Deployment>("default"));
    world.node("n1", "a").await;
    world.node("n2", "b").await;
    make(&grids, grid("web", 1)).await;
    until(&grids, "web", |grid| grid["status"]["units"] == 2).await;
    protect(&world).await;
    world.all::<Node>().delete("n2", &DeleteParams::default()).await.unwrap();
    world.node("n3", "c").await;
    until(&deployments, "web-c", Value::is_object).await;

    let synced = |grid: &Value| {
        let conditions = grid["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|one| one["type"] == "Synced").unwrap_or_default()
    };
    let names_it =
        |text: &Value| text.as_str().is_some_and(|text| text.starts_with("cannot remove Deployment web-b: "));
    let said = until(&grids, "web", |grid| {
        grid["status"]["states"]["c"].is_object() && synced(grid)["status"] == "False"
    })
    .await;
    assert!(names_it(&synced(&said)["message"]), "{said:#}");
    assert_eq!((&said["status"]["units"], &said["status"]["states"]["b"]), (&json!(2), &Value::Null));
    wait_for("an event", DEADLINE, || async {
        let events = world.of::<Event>("default").list(&Default::default()).await.unwrap();
        let notes: Vec<Value> = events.items.iter().map(|event| event.note.clone().into()).collect();
        if notes.iter().any(names_it) { Ok(()) } else { Err(format!("{notes:?}")) }
    })
    .await;
    // Once the deletion is allowed, the child is removed, and no problem remains to report.
    world.all::<ValidatingAdmissionPolicyBinding>().delete("keep", &DeleteParams::default()).await.unwrap();
    until(&deployments, "web-b", Value::is_null).await;
    until(&grids, "web", |grid| synced(grid)["status"] == "True").await;
}

/// Rows G13 and G14 of docs/reference/superedge.md#reconcile-rows: the grid owns the list of arguments as a whole, but
/// not a container that another manager added.
#[tokio::test]
async fn changed_arguments_are_restored_and_added_containers_stay() {
    let world = World::with_controllers().await;
    let (grids, deployments) = (world.of::<DeploymentGrid>("default"), world.of::<Deployment>("default"));
    world.node("n1", "a").await;
    let mut made = grid("web", 1);
    let arguments = json!(["--one", "--two"]);
    made["spec"]["template"]["template"]["spec"]["containers"][0]["args"] = arguments.clone();
    make(&grids, made).await;
    let container =
        |child: &Value, index: usize| child["spec"]["template"]["spec"]["containers"][index].clone();
    until(&deployments, "web-a", |child| container(child, 0)["args"] == arguments).await;
    // A sidecar that another manager applies stays its own.
    let sidecar = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web-a"},
        "spec": {"template": {"spec": {"containers": [{"name": "sidecar", "image": "s:1"}]}}},
    });
    deployments.patch("web-a", &PatchParams::apply("somebody"), &Patch::Apply(&sidecar)).await.unwrap();
    for (index, other) in [json!(["--one", "--two", "--three"]), json!(["--two", "--one"])].iter().enumerate()
    {
        let change =
            json!([{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": other}]);
        let change: Patch<Deployment> = Patch::Json(serde_json::from_value(change).unwrap());
        let changed = deployments.patch("web-a", &PatchParams::default(), &change).await.unwrap();
        let generation = changed.metadata.generation.unwrap();
        let back = until(&deployments, "web-a", |child| container(child, 0)["args"] == arguments).await;
        assert!(
            back["metadata"]["generation"].as_i64() > Some(generation),
            "{index}: it was changed, and changed back"
        );
        assert_eq!(container(&back, 1)["name"], "sidecar", "{back:#}");
    }
    let shared = until(&grids, "web", |grid| !grid["status"]["states"]["a"]["sharedWith"].is_null()).await;
    assert!(shared["status"]["states"]["a"]["sharedWith"].as_array().unwrap().contains(&json!("somebody")));
}
