//! The definitions are installed, and restored when they change.

use kube::api::DeleteParams;
use serde_json::{Value, json};
use tombolo_testkit::{cluster_or_skip, wait_for};
use tombolo_tests::world::{Api, DEADLINE};

use super::{Grids, condition, grid};

async fn come_back(api: Api) {
    let grids = Grids::start(api).await;
    // Immediately after a start without any prepared objects.
    grids.create("ServiceGrid", grid("early", "zone", &json!({"ports": [{"port": 80}]}))).await;
    grids.until("Service", "early-svc", Value::is_object).await;
    let name = "deploymentgrids.superedge.io";
    let established = |definition: &Value| condition(definition, "Established")["status"] == "True";
    let first = grids.until("CustomResourceDefinition", name, established).await;
    grids.patch("CustomResourceDefinition", name, json!({"spec": {"names": {"shortNames": ["mine"]}}})).await;
    let restored = |definition: &Value| definition["spec"]["names"]["shortNames"] == json!(["dg"]);
    grids.until("CustomResourceDefinition", name, restored).await;
    grids.api("CustomResourceDefinition").delete(name, &DeleteParams::default()).await.unwrap();
    let again = |definition: &Value| {
        established(definition) && definition["metadata"]["uid"] != first["metadata"]["uid"]
    };
    grids.until("CustomResourceDefinition", name, again).await;
    grids.node("n1", &[("zone", "a")]).await;
    grids.create("DeploymentGrid", grid("late", "zone", &super::deployment())).await;
    grids.until("Deployment", "late-a", Value::is_object).await;
    let columns = grids.world.kubectl(&["get", "dg,sg"]).unwrap();
    for word in ["late", "0/1", "early", "True"] {
        assert!(columns.contains(word), "{word}: {columns}");
    }
    let headings = columns.lines().filter(|line| line.starts_with("NAME"));
    let headings: Vec<Vec<&str>> = headings.map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        headings,
        [["NAME", "KEY", "UNITS", "READY", "AGE"], ["NAME", "KEY", "UNITS", "READY", "AGE"]]
    );
    let early = grids.until("ServiceGrid", "early", |grid| grid["status"]["units"] == 1).await;
    assert_eq!(condition(&early, "Synced")["status"], "True");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_definitions_are_restored_on_the_embedded_server() {
    come_back(Api::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_definitions_are_restored_on_kube_apiserver() {
    cluster_or_skip!("deleted_definitions_are_restored_on_kube_apiserver");
    come_back(Api::Real).await;
}

/// With definitions that another party installs, the controllers wait for them and name the missing ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_definitions_are_awaited() {
    cluster_or_skip!("foreign_definitions_are_awaited");
    let grids = Grids::start_with(Api::Embedded, json!({"installDefinitions": false})).await;
    wait_for("a line that says what to do", DEADLINE, || async {
        let log = grids.world.cloud_log();
        let says = |name: &str| {
            log.lines().any(|line| {
                line.contains(name) && line.contains("is missing") && line.contains("apply deploy/crds")
            })
        };
        let all = ["deploymentgrids", "statefulsetgrids", "servicegrids"].into_iter().all(says);
        if all { Ok(()) } else { Err(log) }
    })
    .await;
    let folder = tombolo_tests::source::root().join("deploy/crds");
    grids.world.kubectl(&["apply", "-f", folder.to_str().unwrap()]).unwrap();
    grids.node("n1", &[("zone", "a")]).await;
    grids.create("DeploymentGrid", grid("web", "zone", &super::deployment())).await;
    grids.until("Deployment", "web-a", Value::is_object).await;
}

async fn refuse(api: Api) {
    let grids = Grids::start(api).await;
    grids.create("ServiceGrid", grid("first", "zone", &json!({"ports": [{"port": 80}]}))).await;
    let long = "g".repeat(60);
    for (manifest, part) in [
        (grid("no-key", "", &json!({})), "gridUniqKey"),
        (json!({"metadata": {"name": "keyless"}, "spec": {}}), "gridUniqKey"),
        (grid(&long, "zone", &json!({})), "at most 59"),
        (grid("1st", "zone", &json!({})), "beginning with a letter"),
        (grid("portless", "zone", &json!({"ports": [{"name": "x"}]})), "port"),
    ] {
        let mut manifest = manifest;
        manifest["apiVersion"] = "superedge.io/v1".into();
        manifest["kind"] = "ServiceGrid".into();
        let object = serde_json::from_value(manifest.clone()).unwrap();
        let refused = grids.api("ServiceGrid").create(&kube::api::PostParams::default(), &object).await;
        let text = refused.expect_err(&format!("{manifest}")).to_string();
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_grids_are_refused_by_the_embedded_server() {
    refuse(Api::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_grids_are_refused_by_kube_apiserver() {
    cluster_or_skip!("impossible_grids_are_refused_by_kube_apiserver");
    refuse(Api::Real).await;
}
