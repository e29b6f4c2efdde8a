//! A kubelet's reactions to what it receives: its own reports, and objects that it can do without.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tombolo_tests::kubeedge::{KubeEdgeNode, Store};

use super::{Stage, value};

/// Number of comparisons of the node with its row during which nothing may be reported or sent.
const COMPARISONS: u64 = 5;

/// Once everything is reported, neither side repeats it.
pub(crate) async fn nothing_travels_to_and_fro(stage: &Stage, node: &KubeEdgeNode, pod: &str) {
    let row = format!("null/node/{}", node.name);
    // Waits until the last messages of the start have been sent.
    after_comparisons(node, COMPARISONS).await;
    let before = node.look(|store| {
        assert!(
            store.row(&row).is_some_and(|row| row["status"]["images"].is_array()),
            "the images it reported"
        );
        store.delivered.clear();
        store.reported.clone()
    });
    after_comparisons(node, COMPARISONS).await;
    node.look(|store| assert_eq!(store.reported, before, "repeated reports"));
    // These changes arrive after what was to be sent before.
    let label = Patch::Merge(json!({"metadata": {"labels": {"fence": "yes"}}}));
    let (nodes, pods, params) = (stage.objects.nodes(), stage.objects.pods(), PatchParams::default());
    nodes.patch(&node.name, &params, &label).await.unwrap();
    pods.patch(pod.rsplit('/').next().unwrap(), &params, &label).await.unwrap();
    let rows = [row.as_str(), pod];
    let labelled = |row: &Value| row["metadata"]["labels"]["fence"] == "yes";
    node.until("the labels", |store| rows.iter().all(|row| store.row(row).is_some_and(labelled))).await;
    node.look(|store| {
        for row in rows {
            let sent = store.delivered.iter().filter(|sent| sent.resource == row).count();
            assert_eq!(sent, 1, "the edge's own report about {row} was pushed back to it");
        }
    });
}

async fn after_comparisons(node: &KubeEdgeNode, count: u64) {
    let target = node.look(|store| store.compared) + count;
    node.until("comparisons of the node with its row", |store| store.compared >= target).await;
}

/// A pod whose sources are all optional and missing: a volume, a part of a volume, a variable, and a whole environment.
pub(crate) fn pod_without_its_sources(name: &str, stage: &Stage) -> Value {
    let optional = |name: &str| json!({"name": name, "optional": true});
    let key = json!({"name": "key-of-one", "key": "k", "optional": true});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": stage.namespace}, "spec": {
        "nodeName": stage.name,
        "containers": [{"name": "shop", "image": "registry.example/shop:1",
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": key}}],
            "envFrom": [{"configMapRef": optional("environment")}]}],
        "volumes": [
            {"name": "whole", "configMap": optional("extra")},
            {"name": "part", "projected": {"sources": [{"secret": optional("part")}]}}]}})
}

/// The real object replaces the empty one, and an empty object does not satisfy a pod that needs the real one.
pub(crate) async fn rows_follow_what_is_created(node: &KubeEdgeNode, stage: &Stage) {
    let rows = ["configmap/extra", "configmap/environment", "secret/part", "secret/key-of-one"];
    for row in rows.map(|row| stage.path(row)) {
        let kept = node.look(|store| store.row(&row).cloned()).unwrap();
        assert!(kept["data"].is_null() && kept["kind"].is_string(), "{kept}");
    }
    let (extra, needed) = (stage.path("configmap/extra"), stage.path("configmap/environment"));
    stage.objects.config_map("extra", "1").await.unwrap();
    node.until("the real object", |store| value(store.row(&extra)) == json!("1")).await;
    stage.objects.config_maps().delete("extra", &kube::api::DeleteParams::default()).await.unwrap();
    node.until("the object's deletion", |store| !store.has(&extra)).await;

    stage.objects.accepted_pod("strict", &stage.name, &["environment"], &[]).await;
    node.until("the deletion of the empty object", |store: &Store| !store.has(&needed)).await;
    // A later pod runs first.
    stage.objects.accepted_pod("beside", &stage.name, &[], &[]).await;
    stage.phase("beside", "Running").await;
    let phase = stage.objects.pods().get("strict").await.unwrap().status.unwrap().phase;
    assert_ne!(phase.as_deref(), Some("Running"), "the pod needs the missing object");
    stage.objects.config_map("environment", "1").await.unwrap();
    stage.phase("strict", "Running").await;
}
