//! A volume of a CSI driver, and a pod that claims it.

use serde_json::{Value, json};
use sha2::Digest as _;
use tombolo_tests::world::World;

/// Creates an object as the administrator.
pub(crate) fn create(world: &World, object: &Value) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), object.to_string()).unwrap();
    world.kubectl(&["create", "-f", &file.path().display().to_string()]).unwrap();
}

/// The volume, its claim in the namespace, and its attachment to the node, which nothing has attached yet.
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

/// A pod that claims it.
pub(crate) fn pod(namespace: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stores", "namespace": namespace}, "spec": {
        "nodeName": node, "containers": [{"name": "shop", "image": "registry.example/shop:1"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}})
}
