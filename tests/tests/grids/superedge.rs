//! Objects that SuperEdge's controllers have left in a cluster are adopted unchanged
//! (docs/reference/superedge.md#words-of-the-api).

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tombolo_testkit::cluster_or_skip;
use tombolo_tests::world::Api;

use super::{Grids, condition, deployment};

/// A template as SuperEdge's controller rewrites it: with its hash among the pods' labels.
fn hashed() -> Value {
    let mut template = deployment();
    template["template"]["metadata"]["labels"]["superedge.io/template-hash-key"] =
        "8412365092817364512".into();
    template
}

/// A child as SuperEdge's controllers create it.
fn child(kind: &str, grid: &Value, name: &str, spec: &Value) -> Value {
    let grid_name = &grid["metadata"]["name"];
    json!({
        "metadata": {
            "name": name,
            "labels": {"superedge.io/grid-selector": grid_name, "superedge.io/grid-uniq-key": "zone"},
            "ownerReferences": [{
                "apiVersion": "superedge.io/v1", "kind": kind, "name": grid_name, "uid": grid["metadata"]["uid"],
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": spec,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_stored_by_superedge_are_read_unchanged() {
    cluster_or_skip!("objects_stored_by_superedge_are_read_unchanged");
    let mut grids = Grids::start(Api::Real).await;
    grids.node("n1", &[("zone", "a")]).await;
    let is_established = |definition: &Value| condition(definition, "Established")["status"] == "True";
    for plural in ["deploymentgrids", "statefulsetgrids", "servicegrids"] {
        grids.until("CustomResourceDefinition", &format!("{plural}.superedge.io"), is_established).await;
    }
    // SuperEdge's controllers run, and Tombolo does not.
    grids.world.kill_cloud();
    let spec = json!({
        "gridUniqKey": "zone", "template": hashed(), "defaultTemplateName": "default",
        "templatePool": {"t1": hashed()}, "templates": {"b": "t1"}, "autoDeleteUnusedTemplate": false,
    });
    let web = grids.create("DeploymentGrid", json!({"metadata": {"name": "web"}, "spec": spec})).await;
    let mut of_unit = hashed();
    of_unit["template"]["spec"]["nodeSelector"] = json!({"zone": "a"});
    let before = grids.create("Deployment", child("DeploymentGrid", &web, "web-a", &of_unit)).await;
    let states = json!({"a": {"replicas": 2, "readyReplicas": 2, "conditions": [
        {"type": "Available", "status": "True", "lastTransitionTime": "2022-01-02T03:04:05Z"}]}});
    status(&grids, "DeploymentGrid", "web", json!({"states": states})).await;
    let ports = json!({"ports": [{"protocol": "TCP", "port": 80, "targetPort": 8080}], "selector": {"appGrid": "echo"}});
    let service_spec = json!({"gridUniqKey": "zone", "template": ports});
    let shop = grids.create("ServiceGrid", json!({"metadata": {"name": "web"}, "spec": service_spec})).await;
    let mut service = child("ServiceGrid", &shop, "web-svc", &ports);
    service["metadata"]["annotations"] = json!({"topologyKeys": r#"["zone"]"#});
    let service = grids.create("Service", service).await;
    let error = json!({"type": "UpdateError", "status": "True", "reason": "UpdateError", "message": "it was long ago",
                       "lastTransitionTime": "2022-01-02T03:04:05Z"});
    status(&grids, "ServiceGrid", "web", json!({"loadBalancer": {}, "conditions": [error]})).await;

    grids.world.start_cloud().await.unwrap();
    for kind in ["DeploymentGrid", "ServiceGrid"] {
        let seen = grids.until(kind, "web", |grid| condition(grid, "Synced")["status"] == "True").await;
        assert!(condition(&seen, "UpdateError").is_null(), "an outdated condition is removed: {seen:#}");
    }
    let after = grids.get("Deployment", "web-a").await;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["spec"], before["spec"], "no pod is restarted");
    assert_eq!(grids.get("DeploymentGrid", "web").await["spec"], spec, "stored as it was written");
    let same = grids.get("Service", "web-svc").await;
    assert_eq!(same["metadata"]["uid"], service["metadata"]["uid"]);
    assert_eq!(same["spec"], service["spec"]);
}

async fn status(grids: &Grids, kind: &str, name: &str, status: Value) {
    let patch = Patch::Merge(json!({ "status": status }));
    grids.api(kind).patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}
