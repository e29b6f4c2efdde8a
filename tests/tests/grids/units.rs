//! Children follow the grid, the nodes' labels, and changes by other clients.
//! A letter with a number is a row of docs/reference/superedge.md#rows.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tombolo_testkit::cluster_or_skip;
use tombolo_tests::world::Api;

use super::{Grids, condition, deployment, grid};

async fn follow(api: Api) {
    let grids = Grids::start(api).await;
    // G1, G5, G26.
    for (name, unit) in [("n1", "a"), ("n2", "a"), ("n3", "b"), ("n4", ""), ("n5", "Zone_A")] {
        grids.node(name, &[("zone", unit)]).await;
    }
    let mut wanted = grid("web", "zone", &deployment());
    wanted["metadata"]["labels"] = json!({"team": "x", "argocd.argoproj.io/instance": "y"});
    wanted["spec"]["template"]["template"]["spec"]["nodeSelector"] = json!({"disk": "ssd"});
    let made = grids.create("DeploymentGrid", wanted).await;
    let child = grids.until("Deployment", "web-b", Value::is_object).await;
    grids.until("Deployment", "web-a", Value::is_object).await;
    assert_eq!(grids.names("Deployment").await, ["web-a", "web-b"]);
    // G2.
    assert_eq!(child["spec"]["template"]["spec"]["nodeSelector"], json!({"disk": "ssd", "zone": "b"}));
    let labels =
        json!({"team": "x", "superedge.io/grid-selector": "web", "superedge.io/grid-uniq-key": "zone"});
    assert_eq!(child["metadata"]["labels"], labels);
    assert_eq!(child["metadata"]["ownerReferences"][0]["uid"], made["metadata"]["uid"]);
    grids.event("InvalidUnitName", "web").await;
    let states = |grid: &Value| grid["status"]["states"].as_object().map_or(0, serde_json::Map::len);
    let seen = grids.until("DeploymentGrid", "web", |grid| states(grid) == 3).await;
    assert_eq!(seen["spec"], made["spec"], "the controller does not write to the grid's spec");
    assert_eq!(condition(&seen, "Synced")["status"], "False");
    assert_eq!(seen["status"]["states"]["Zone_A"]["error"]["reason"], "InvalidUnitName");
    grids.api("Node").delete("n5", &DeleteParams::default()).await.unwrap();
    grids.until("DeploymentGrid", "web", |grid| condition(grid, "Synced")["status"] == "True").await;
    // G13, G15, G16, G18: fields that the grid states are restored, others stay.
    grids
        .patch(
            "Deployment",
            "web-a",
            json!({
                "metadata": {"annotations": {"foreign": "x"}, "labels": {"foreign": "x"}},
                "spec": {"replicas": 5, "minReadySeconds": 7},
            }),
        )
        .await;
    let mended = |child: &Value| child["spec"]["replicas"] == 2;
    let child = grids.until("Deployment", "web-a", mended).await;
    assert_eq!(child["spec"]["minReadySeconds"], 7);
    assert_eq!(child["metadata"]["annotations"]["foreign"], "x");
    assert_eq!(child["metadata"]["labels"]["foreign"], "x");
    // G14: co-owners of the spec are reported.
    let shared = |grid: &Value| grid["status"]["states"]["a"]["sharedWith"] == json!(["a-user"]);
    grids.until("DeploymentGrid", "web", shared).await;
    // G19.
    let before = child["spec"]["template"].clone();
    grids.patch("DeploymentGrid", "web", json!({"spec": {"template": {"revisionHistoryLimit": 3}}})).await;
    let child = grids.until("Deployment", "web-a", |child| child["spec"]["revisionHistoryLimit"] == 3).await;
    assert_eq!(child["spec"]["template"], before);
    // G17: a grid without a replica count lets others scale.
    grids.patch("DeploymentGrid", "web", json!({"spec": {"template": {"replicas": null}}})).await;
    let is_let_go = |child: &Value| {
        let fields = child["metadata"]["managedFields"].as_array().unwrap();
        let own = fields.iter().find(|entry| entry["manager"] == "tombolo-grid").unwrap();
        own["fieldsV1"]["f:spec"]["f:replicas"].is_null()
    };
    grids.until("Deployment", "web-a", is_let_go).await;
    grids.patch("Deployment", "web-a", json!({"spec": {"replicas": 5}})).await;
    // G4, and a node that moves to another unit.
    grids.patch("Node", "n3", json!({"metadata": {"labels": {"zone": "c"}}})).await;
    grids.until("Deployment", "web-b", Value::is_null).await;
    grids.until("Deployment", "web-c", Value::is_object).await;
    assert_eq!(grids.get("Deployment", "web-a").await["spec"]["replicas"], 5);
    // G29.
    for node in ["n1", "n2", "n3"] {
        grids.patch("Node", node, json!({"metadata": {"labels": {"zone": null}}})).await;
    }
    let seen = grids.until("DeploymentGrid", "web", |grid| states(grid) == 0).await;
    assert_eq!(seen["status"]["ready"], "0/0");
    grids.until("Deployment", "web-a", Value::is_null).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deployments_follow_their_grid_on_the_embedded_server() {
    follow(Api::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deployments_follow_their_grid_on_kube_apiserver() {
    cluster_or_skip!("deployments_follow_their_grid_on_kube_apiserver");
    follow(Api::Real).await;
}

async fn serve(api: Api) {
    let grids = Grids::start(api).await;
    let template = json!({
        "type": "NodePort",
        "selector": {"appGrid": "echo", "extra": "x"},
        "ports": [{"name": "a", "port": 80, "nodePort": 0}, {"name": "b", "port": 81}],
    });
    grids.create("ServiceGrid", grid("servicegrid-demo", "zone1", &template)).await;
    let name = "servicegrid-demo-svc";
    let service = grids.until("Service", name, Value::is_object).await;
    assert_eq!(service["metadata"]["annotations"]["topologyKeys"], r#"["zone1"]"#);
    assert_eq!(service["metadata"]["labels"]["superedge.io/grid-selector"], "servicegrid-demo");
    assert_eq!(service["metadata"]["ownerReferences"][0]["kind"], "ServiceGrid");
    let (address, port) = (&service["spec"]["clusterIP"], &service["spec"]["ports"][0]["nodePort"]);
    assert!(port.as_i64().is_some_and(|port| port >= 30_000));
    // G9, G10, G11.
    grids.patch("ServiceGrid", "servicegrid-demo", json!({"spec": {"template": {
        "selector": {"appGrid": "echo", "extra": null}, "ports": [{"name": "a", "port": 80, "nodePort": 0}],
    }}})).await;
    let less = |service: &Value| service["spec"]["ports"].as_array().is_some_and(|ports| ports.len() == 1);
    let after = grids.until("Service", name, less).await;
    assert_eq!(after["spec"]["selector"], json!({"appGrid": "echo"}));
    assert_eq!((&after["spec"]["clusterIP"], &after["spec"]["ports"][0]["nodePort"]), (address, port));
    // G12, G8.
    grids.patch("Service", name, json!({"metadata": {"annotations": {"topologyKeys": null}}})).await;
    let keys = |wanted: &'static str| {
        move |service: &Value| service["metadata"]["annotations"]["topologyKeys"] == wanted
    };
    grids.until("Service", name, keys(r#"["zone1"]"#)).await;
    grids.patch("ServiceGrid", "servicegrid-demo", json!({"spec": {"gridUniqKey": "zone2"}})).await;
    let service = grids.until("Service", name, keys(r#"["zone2"]"#)).await;
    assert_eq!(service["metadata"]["labels"]["superedge.io/grid-uniq-key"], "zone2");
    // A condition reports the error, and then its end.
    grids.patch("ServiceGrid", "servicegrid-demo", json!({"spec": {"template": {"type": "Nonsense"}}})).await;
    let synced = |wanted: &'static str| move |grid: &Value| condition(grid, "Synced")["status"] == wanted;
    let broken = grids.until("ServiceGrid", "servicegrid-demo", synced("False")).await;
    assert_eq!(condition(&broken, "Synced")["reason"], "Invalid");
    assert_eq!(condition(&broken, "Synced")["observedGeneration"], broken["metadata"]["generation"]);
    grids.event("Invalid", "servicegrid-demo").await;
    grids
        .patch("ServiceGrid", "servicegrid-demo", json!({"spec": {"template": {"type": "ClusterIP"}}}))
        .await;
    grids.until("ServiceGrid", "servicegrid-demo", synced("True")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_follow_their_grid_on_the_embedded_server() {
    serve(Api::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_follow_their_grid_on_kube_apiserver() {
    cluster_or_skip!("services_follow_their_grid_on_kube_apiserver");
    serve(Api::Real).await;
}

/// How long the workload of a unit without nodes is kept in its test.
const GRACE: Duration = Duration::from_secs(10);

async fn stay(api: Api) {
    let grids = Grids::start_with(api, json!({"unitGraceSeconds": GRACE.as_secs()})).await;
    grids.node("n1", &[("zone", "a")]).await;
    grids.create("DeploymentGrid", grid("web", "zone", &deployment())).await;
    let child = grids.until("Deployment", "web-a", Value::is_object).await;
    let units = |wanted: u64| move |grid: &Value| grid["status"]["units"] == wanted;
    grids.until("DeploymentGrid", "web", units(1)).await;
    // A node that registers again: its unit has no nodes for a moment.
    let zone = |value: Value| json!({"metadata": {"labels": {"zone": value}}});
    grids.patch("Node", "n1", zone(Value::Null)).await;
    grids.until("DeploymentGrid", "web", units(0)).await;
    grids.patch("Node", "n1", zone("a".into())).await;
    grids.until("DeploymentGrid", "web", units(1)).await;
    assert_eq!(grids.get("Deployment", "web-a").await["metadata"]["uid"], child["metadata"]["uid"]);
    // The grace period starts again, and ends without any other event.
    let left = Instant::now();
    grids.patch("Node", "n1", zone(Value::Null)).await;
    grids.until("Deployment", "web-a", Value::is_null).await;
    assert!(left.elapsed() >= GRACE, "{:?}", left.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_without_nodes_has_a_grace_on_the_embedded_server() {
    stay(Api::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_without_nodes_has_a_grace_on_kube_apiserver() {
    cluster_or_skip!("a_unit_without_nodes_has_a_grace_on_kube_apiserver");
    stay(Api::Real).await;
}

/// G30: a change that the API rejects for a while is retried until it succeeds, without any other event.
async fn recover(api: Api) {
    let grids = Grids::start(api).await;
    grids.node("n1", &[("zone", "a")]).await;
    let none = json!({"count/deployments.apps": "0"});
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": none}});
    let quotas: kube::Api<ResourceQuota> = kube::Api::namespaced(grids.client.clone(), "default");
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    // Acts as the quota controller: a quota without a status limits nothing.
    let counted = Patch::Merge(json!({"status": {"hard": none, "used": none}}));
    quotas.patch_status("none", &PatchParams::default(), &counted).await.unwrap();
    grids.create("DeploymentGrid", grid("web", "zone", &deployment())).await;
    let refused = |grid: &Value| grid["status"]["states"]["a"]["error"]["reason"] == "Forbidden";
    let seen = grids.until("DeploymentGrid", "web", refused).await;
    let said = condition(&seen, "Synced")["message"].as_str().unwrap();
    assert!(said.contains("quota"), "{said}");
    quotas.delete("none", &DeleteParams::default()).await.unwrap();
    grids.until("Deployment", "web-a", Value::is_object).await;
    let seen =
        grids.until("DeploymentGrid", "web", |grid| condition(grid, "Synced")["status"] == "True").await;
    assert!(seen["status"]["states"]["a"]["error"].is_null(), "{seen:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_children_are_retried_on_the_embedded_server() {
    recover(Api::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_children_are_retried_on_kube_apiserver() {
    cluster_or_skip!("refused_children_are_retried_on_kube_apiserver");
    recover(Api::Real).await;
}
