//! The tables of facts about the built-in kinds are those of kube-apiserver and its Go modules.

use std::process::Command;

use serde_json::{Value, json};
use tombolo_testkit::{ControlPlane, ControlPlaneOptions};
use tombolo_tests::world::binary;

/// Set by `cargo xtask nightly`: the folder `k8s.io` of the Go module cache.
const SOURCES: &str = "TOMBOLO_GO_SOURCES";

/// A Deployment: the generator reads the columns of a Scale from one.
fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "registry.example/c:1"}]},
            },
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "compares data that changes only with the version of Kubernetes; cargo xtask nightly runs it"]
async fn the_tables_of_facts_are_those_of_kube_apiserver() {
    let sources = std::env::var_os(SOURCES).expect("TOMBOLO_GO_SOURCES is not set: run cargo xtask nightly");
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let manifest = plane.folder().join("deployment.json");
    std::fs::write(&manifest, deployment().to_string()).unwrap();
    let created = plane.kubectl(&["create", "-f", manifest.to_str().unwrap()]).unwrap();
    assert!(created.status.success(), "{created:?}");
    let kubeconfig = std::fs::read(plane.kubeconfig()).unwrap();
    let kubeconfig: Value = serde_json::from_slice(&kubeconfig).unwrap();
    let token = kubeconfig["users"][0]["user"]["token"].as_str().unwrap();
    let kubectl = tombolo_testkit::components().unwrap().binary("kubectl");
    let mut compare = Command::new(binary("xtask").unwrap());
    compare.current_dir(tombolo_tests::source::root()).args(["facts", "--check", "--server", &plane.url()]);
    compare.args(["--token", token]).arg("--kubectl").arg(kubectl).arg("--sources").arg(sources);
    let status = compare.status().unwrap();
    assert!(status.success(), "cargo xtask facts --check: {status}");
}
