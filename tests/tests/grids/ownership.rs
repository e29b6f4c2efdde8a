//! Ownership: names that other objects have, orphans, children without their label, and recreated grids.
//! A letter with a number is a row of docs/reference/superedge.md#rows.

use kube::api::{DeleteParams, PropagationPolicy};
use serde_json::{Value, json};
use tombolo_testkit::cluster_or_skip;
use tombolo_tests::world::Api;

use super::{Grids, deployment, grid};

fn labelled(name: &str, grid: Option<&str>) -> Value {
    let labels = grid.map_or_else(|| json!({}), |grid| json!({"superedge.io/grid-selector": grid}));
    json!({"metadata": {"name": name, "labels": labels}, "spec": deployment()})
}

async fn own(api: Api) {
    let grids = Grids::start(api).await;
    for (node, unit) in [("n1", "a"), ("n2", "b-c"), ("n3", "c")] {
        grids.node(node, &[("zone", unit)]).await;
    }
    grids.create("ServiceGrid", grid("first", "zone", &json!({"ports": [{"port": 80}]}))).await;
    // A1, A2, and an object of the user's own under a child's name.
    grids.create("Deployment", labelled("web-a", Some("web"))).await;
    grids.create("Deployment", labelled("web-x", Some("web"))).await;
    grids.create("Deployment", labelled("web-c", None)).await;
    let made = grids.create("DeploymentGrid", grid("web", "zone", &deployment())).await;
    let is_owned = |child: &Value| child["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"];
    grids.until("Deployment", "web-a", is_owned).await;
    grids.event("UnownedChild", "web").await;
    let conflict = grids.event("ChildNameConflict", "web").await;
    assert!(conflict["message"].as_str().unwrap().contains("web-c"), "{conflict}");
    assert!(grids.get("Deployment", "web-c").await["metadata"]["ownerReferences"].is_null());
    // The solution that the message names.
    grids.api("Deployment").delete("web-c", &DeleteParams::default()).await.unwrap();
    grids.until("Deployment", "web-c", is_owned).await;
    let stranger = grids.get("Deployment", "web-x").await;
    assert!(
        stranger["metadata"]["ownerReferences"].is_null()
            && stranger["metadata"]["deletionTimestamp"].is_null()
    );
    // A4.
    let before = grids.get("Deployment", "web-a").await;
    grids
        .patch("Deployment", "web-a", json!({"metadata": {"labels": {"superedge.io/grid-selector": null}}}))
        .await;
    let anew = |child: &Value| is_owned(child) && child["metadata"]["uid"] != before["metadata"]["uid"];
    grids.until("Deployment", "web-a", anew).await;
    // G25: the child web-b of unit c would have the same name as web's child of unit b-c.
    grids.until("Deployment", "web-b-c", is_owned).await;
    grids.create("DeploymentGrid", grid("web-b", "zone", &deployment())).await;
    grids.event("ChildNameConflict", "web-b").await;
    grids.until("Deployment", "web-b-a", Value::is_object).await;
    assert!(is_owned(&grids.get("Deployment", "web-b-c").await));
    // G24: deleted and created again at once.
    let background =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..DeleteParams::default() };
    grids.api("DeploymentGrid").delete("web", &background).await.unwrap();
    let again = grids.create("DeploymentGrid", grid("web", "zone", &deployment())).await;
    let is_new = |child: &Value| child["metadata"]["ownerReferences"][0]["uid"] == again["metadata"]["uid"];
    grids.until("Deployment", "web-a", is_new).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_have_one_owner_on_the_embedded_server() {
    own(Api::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_have_one_owner_on_kube_apiserver() {
    cluster_or_skip!("children_have_one_owner_on_kube_apiserver");
    own(Api::Real).await;
}

async fn refused(api: Api) {
    let grids = Grids::start(api).await;
    grids.node("n1", &[("zone", "a")]).await;
    grids.node("n2", &[("zone", "b")]).await;
    grids.create("ServiceGrid", grid("first", "zone", &json!({"ports": [{"port": 80}]}))).await;
    let mut template = deployment();
    template["serviceName"] = "one".into();
    let mut wanted = grid("db", "zone", &template);
    wanted["spec"]["templates"] = json!({"b": "missing"});
    grids.create("StatefulSetGrid", wanted).await;
    grids.until("StatefulSet", "db-a", Value::is_object).await;
    // G21.
    grids.event("TemplateNotFound", "db").await;
    // G28: immutable fields are reported, and all others are applied.
    grids
        .patch(
            "StatefulSetGrid",
            "db",
            json!({"spec": {"template": {"serviceName": "two"}, "templates": null}}),
        )
        .await;
    let said = |grid: &Value| grid["status"]["states"]["a"]["error"]["reason"] == "Invalid";
    grids.until("StatefulSetGrid", "db", said).await;
    grids.until("StatefulSet", "db-b", |child| child["spec"]["serviceName"] == "two").await;
    assert_eq!(grids.get("StatefulSet", "db-a").await["spec"]["serviceName"], "one");
    // G22.
    let pool = json!({"t1": deployment(), "t2": deployment(), "t3": deployment()});
    let mut wanted = grid("pool", "zone", &deployment());
    wanted["spec"]["templatePool"] = pool;
    wanted["spec"]["templates"] = json!({"a": "t1"});
    wanted["spec"]["defaultTemplateName"] = "t2".into();
    wanted["spec"]["autoDeleteUnusedTemplate"] = true.into();
    grids.create("DeploymentGrid", wanted).await;
    let names =
        |grid: &Value| grid["spec"]["templatePool"].as_object().map(|pool| pool.keys().cloned().collect());
    let left: Option<Vec<String>> = Some(vec!["t1".to_owned(), "t2".to_owned()]);
    grids.until("DeploymentGrid", "pool", |grid| names(grid) == left).await;
    grids.until("Deployment", "pool-b", Value::is_object).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_of_the_embedded_server_are_reported() {
    refused(Api::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_of_kube_apiserver_are_reported() {
    cluster_or_skip!("refusals_of_kube_apiserver_are_reported");
    refused(Api::Real).await;
}
