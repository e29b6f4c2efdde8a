//! A volume of a CSI driver, and a pod that claims it.

use serde_json::{Value, json};
use sha2::Digest as _;
use tombolo_tests::kubeedge::{KubeEdgeNode, Store};
use tombolo_tests::world::World;

use super::Stage;

/// Creates an object as the administrator.
pub(crate) fn create(world: &World, object: &Value) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), object.to_string()).unwrap();
    world.kubectl(&["create", "-f", &file.path().display().to_string()]).unwrap();
}

/// The volume, its claim in the namespace, and its attachment to the node, which is not attached yet.
pub(crate) fn objects(namespace: &str, node: &str) -> [Value; 3] {
    let (driver, handle) = ("csi.example", namespace);
    let digest = hex::encode(sha2::Sha256::digest(format!("{handle}{driver}{node}")));
    let (size, modes) = (json!({"storage": "1Gi"}), json!(["ReadWriteOnce"]));
    let claim =
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": "data"});
    [
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": namespace}, "spec": {
            "capacity": size, "accessModes": modes, "storageClassName": "none", "claimRef": claim,
            "csi": {"driver": driver, "volumeHandle": handle}}}),
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": namespace}, "spec": {"resources": {"requests": size},
            "accessModes": modes, "storageClassName": "none", "volumeName": namespace}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": format!("csi-{digest}")},
            "spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": namespace}}}),
    ]
}

/// A pod that uses the claim.
pub(crate) fn pod(namespace: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stores", "namespace": namespace}, "spec": {
        "nodeName": node, "containers": [{"name": "shop", "image": "registry.example/shop:1"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}})
}

/// The edge receives changes and deletions of the objects that it has queried, including those that happened while it
/// was disconnected.
pub(crate) async fn are_followed(stage: &Stage, node: &mut KubeEdgeNode) {
    let (claim, volume) =
        (stage.path("persistentvolumeclaim/data"), format!("null/persistentvolume/{}", stage.namespace));
    let labelled = |path: &str, value: &str| {
        let (path, value) = (path.to_owned(), value.to_owned());
        move |store: &Store| {
            store.row(&path).is_some_and(|row| row["metadata"]["labels"]["turn"].as_str() == Some(&value))
        }
    };
    let label = |kind: &str, name: &str, value: &str| {
        let (namespace, turn) = (&stage.namespace, format!("turn={value}"));
        stage.world.kubectl(&["label", kind, name, "-n", namespace, "--overwrite", &turn]).unwrap();
    };
    label("pvc", "data", "1");
    label("pv", &stage.namespace, "1");
    node.until("the changed claim", labelled(&claim, "1")).await;
    node.until("the changed volume", labelled(&volume, "1")).await;
    node.disconnect();
    label("pvc", "data", "2");
    // A volume that is bound is protected: on a cluster with controllers, by a finalizer that they restore as long as
    // the volume is not being deleted.
    stage.world.kubectl(&["delete", "pv", &stage.namespace, "--wait=false"]).unwrap();
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    stage.world.kubectl(&["patch", "pv", &stage.namespace, "--type=merge", "-p", patch]).unwrap();
    node.boot().await.unwrap();
    node.until("the claim that changed meanwhile", labelled(&claim, "2")).await;
    node.until("the deletion of the volume", |store| !store.has(&volume)).await;
}
