//! Defaults of volumes, claims and the storage group.

use serde_json::{Map, Value, json};

use tombolo_apicore::value::object_at;
use tombolo_apicore::value::{or_default, or_insert};

/// Defaults of a persistent volume's spec.
pub(super) fn volume(spec: &mut Map<String, Value>) {
    or_insert(spec, "persistentVolumeReclaimPolicy", "Retain");
    or_default(spec, "volumeMode", "Filesystem");
    if let Some(Value::Object(path)) = spec.get_mut("hostPath")
        && path.get("type").is_none_or(Value::is_null)
    {
        path.insert("type".into(), "".into());
    }
    super::pod::disks(spec);
}

/// Defaults of a claim, also in the claim templates of a StatefulSet.
pub(super) fn claim(map: &mut Map<String, Value>) {
    or_default(object_at(map, "spec"), "volumeMode", "Filesystem");
    or_insert(object_at(map, "status"), "phase", "Pending");
}

/// Defaults of a kind of storage.k8s.io.
pub(super) fn default(kind: &str, map: &mut Map<String, Value>) {
    match kind {
        "StorageClass" => {
            or_default(map, "reclaimPolicy", "Delete");
            or_default(map, "volumeBindingMode", "Immediate");
        }
        "CSIDriver" => {
            let spec = object_at(map, "spec");
            or_insert(spec, "attachRequired", true);
            or_insert(spec, "podInfoOnMount", false);
            or_insert(spec, "storageCapacity", false);
            or_default(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
            or_insert(spec, "requiresRepublish", false);
            or_insert(spec, "seLinuxMount", false);
            if spec.get("volumeLifecycleModes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
                spec.insert("volumeLifecycleModes".into(), json!(["Persistent"]));
            }
        }
        _ => {}
    }
}
