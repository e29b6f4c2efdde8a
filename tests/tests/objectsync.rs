//! A cluster in which KubeEdge cloudcore ran: its ObjectSyncs seed the delivery ledgers, and can be written back.

use std::process::Command;

use serde_json::json;
use tombolo_testkit::{cluster_or_skip, wait_for, wait_for_value};
use tombolo_tests::kubeedge::KubeEdgeNode;
use tombolo_tests::world::objects::{NAMESPACE, Objects};
use tombolo_tests::world::{Api, DEADLINE, Transport, World, binary};

/// KubeEdge's definitions, as far as this test needs them.
fn definitions() -> String {
    let text = json!({"type": "string"});
    let spec = json!({"objectAPIVersion": text, "objectKind": text, "objectName": text});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "properties": spec},
        "status": {"type": "object", "properties": {"objectResourceVersion": text}},
    }}});
    let version = json!({"name": "v1alpha1", "served": true, "storage": true, "schema": schema, "subresources": {"status": {}}});
    let one = |kind: &str, scope: &str| {
        let plural = format!("{}s", kind.to_lowercase());
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.reliablesyncs.kubeedge.io")},
            "spec": {"group": "reliablesyncs.kubeedge.io", "scope": scope, "versions": [version],
                     "names": {"kind": kind, "plural": plural}},
        })
    };
    let items = [one("ObjectSync", "Namespaced"), one("ClusterObjectSync", "Cluster")];
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn apply(world: &World, manifest: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), manifest).unwrap();
    world.kubectl(&["apply", "-f", &file.path().display().to_string()]).unwrap();
}

/// Creates the record of an object that was delivered to `edge-1` in this version.
fn record(world: &World, kind: &str, object: &str, uid: &str, version: &str) {
    let name = format!("edge-1.{uid}");
    apply(
        world,
        &json!({
            "apiVersion": "reliablesyncs.kubeedge.io/v1alpha1", "kind": "ObjectSync",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"objectAPIVersion": "v1", "objectKind": kind, "objectName": object},
        })
        .to_string(),
    );
    let status = json!({"status": {"objectResourceVersion": version}}).to_string();
    world
        .kubectl(&[
            "patch",
            "objectsync",
            &name,
            "-n",
            NAMESPACE,
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ])
        .unwrap();
}

fn field(world: &World, resource: &str, namespace: &str, path: &str) -> Result<String, String> {
    let output = format!("jsonpath={path}");
    world.kubectl(&["get", resource, "-n", namespace, "-o", &output]).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_deleted_before_the_migration_are_deleted_at_kubeedge_edges() {
    cluster_or_skip!("objects_deleted_before_the_migration_are_deleted_at_kubeedge_edges");
    let mut world = World::start(Api::Real, Transport::WebSocket).await.unwrap();
    world.kill_cloud();
    apply(&world, &definitions());
    for plural in ["objectsyncs", "clusterobjectsyncs"] {
        let crd = format!("crd/{plural}.reliablesyncs.kubeedge.io");
        world.kubectl(&["wait", "--for=condition=Established", &crd, "--timeout=60s"]).unwrap();
    }
    let objects = Objects::new(world.client().await.unwrap()).await.unwrap();
    apply(&world, &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "edge-1"}}).to_string());
    objects.config_map("kept", "1").await.unwrap();
    objects.accepted_pod("web", "edge-1", &["kept"], &[]).await;
    let kept = field(&world, "configmap/kept", NAMESPACE, "{.metadata.uid}").unwrap();
    let version = field(&world, "configmap/kept", NAMESPACE, "{.metadata.resourceVersion}").unwrap();
    record(&world, "ConfigMap", "kept", &kept, &version);
    record(&world, "ConfigMap", "gone", "11111111-1111-4111-8111-111111111111", "5");
    record(&world, "Service", "front", "22222222-2222-4222-8222-222222222222", "5");
    objects.config_map("kept", "2").await.unwrap();

    world.start_cloud().await.unwrap();
    assert!(world.cloud_log().contains("seeded from KubeEdge cloudcore"), "{}", world.cloud_log());
    let mut node = KubeEdgeNode::join(&world, "edge-1").await.unwrap();
    node.connect().await.unwrap();
    let path = |name: &str| format!("{NAMESPACE}/configmap/{name}");
    node.until("missing objects to be deleted and changed objects to be sent", |store| {
        let told = |operation: &str, path: &str| {
            store
                .delivered
                .iter()
                .any(|delivery| delivery.operation == operation && delivery.resource == path)
        };
        let value = store.row(&path("kept")).and_then(|row| row.pointer("/data/value"));
        told("delete", &path("gone")) && value.is_some_and(|value| value == "2")
    })
    .await;
    let service =
        node.look(|store| store.delivered.iter().any(|delivery| delivery.resource.contains("front")));
    assert!(!service, "Services are delivered by watches");

    // Once is enough: KubeEdge's records are not read again.
    field(&world, "configmap/tombolo-objectsync-import", "kubeedge", "{.metadata.name}").unwrap();

    // The way back to KubeEdge.
    node.disconnect();
    let pod = field(&world, "pod/web", NAMESPACE, "{.metadata.uid}").unwrap();
    let exported = format!("objectsync/edge-1.{pod}");
    let acknowledged = wait_for_value("the ledger with the acknowledged version", DEADLINE, async || {
        let printed = export(&world)?;
        let version = field(&world, &exported, NAMESPACE, "{.status.objectResourceVersion}")?;
        if version == "0" { Err(printed) } else { Ok(version) }
    })
    .await;
    assert!(acknowledged.parse::<u64>().is_ok(), "{acknowledged}");
    assert_eq!(
        field(&world, &exported, NAMESPACE, "{.spec.objectKind}/{.spec.objectName}").unwrap(),
        "Pod/web"
    );
    wait_for("the newer version in an existing record", DEADLINE, async || {
        export(&world)?;
        let newest = field(&world, "configmap/kept", NAMESPACE, "{.metadata.resourceVersion}")?;
        let recorded = format!("objectsync/edge-1.{kept}");
        match field(&world, &recorded, NAMESPACE, "{.status.objectResourceVersion}")? {
            version if version == newest => Ok(()),
            other => Err(format!("{other}, not {newest}")),
        }
    })
    .await;

    one_refusal_does_not_keep_the_rest(&world, &mut node).await;
}

/// A terminating namespace accepts no new record. All other records are written nevertheless, and the exit code reports
/// it.
async fn one_refusal_does_not_keep_the_rest(world: &World, node: &mut KubeEdgeNode) {
    let client = world.client().await.unwrap();
    node.connect().await.unwrap();
    // One namespace before and one after the terminating one, in the ledger's order.
    for namespace in ["a-shop", "b-closed", "c-shop"] {
        let objects = Objects::in_namespace(client.clone(), namespace).await.unwrap();
        objects.config_map("made", "1").await.unwrap();
        objects.accepted_pod("uses", "edge-1", &["made"], &[]).await;
    }
    node.until("all ConfigMaps", |store| {
        ["a-shop", "b-closed", "c-shop"]
            .iter()
            .all(|namespace| store.has(&format!("{namespace}/configmap/made")))
    })
    .await;
    node.disconnect();
    world.kubectl(&["delete", "namespace", "b-closed", "--wait=false"]).unwrap();
    let told = wait_for_value("the ledger with all ConfigMaps", DEADLINE, async || {
        let told = export(world).expect_err("b-closed accepted a record");
        match field(world, "objectsync", "c-shop", "{.items[*].spec.objectName}")? {
            written if written.contains("made") && written.contains("uses") => Ok(told),
            other => Err(format!("{other:?}: {told}")),
        }
    })
    .await;
    assert!(told.contains("incomplete") && told.contains("b-closed"), "{told}");
    assert!(!told.contains("a-shop") && !told.contains("c-shop"), "{told}");
    let written = field(world, "objectsync", "a-shop", "{.items[*].spec.objectName}").unwrap();
    assert!(written.contains("made"), "{written}");
}

/// Returns the output of the export command.
fn export(world: &World) -> Result<String, String> {
    let mut command = Command::new(binary("cloudcore").map_err(|error| error.to_string())?);
    let output = command.arg("--export-objectsync").arg("--kubeconfig").arg(world.kubeconfig()).output();
    let output = output.map_err(|error| error.to_string())?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(text.into_owned()) } else { Err(errors.into_owned()) }
}
