//! Rows of volumes, claims and the storage group.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{dated, name, named, or_none};
use crate::value::{at, items, text};

/// Rows of the storage kinds.
pub(super) fn storage(kind: &str, object: &Value, now: Timestamp) -> Vec<Value> {
    match kind {
        "PersistentVolume" => volume(object, now),
        "PersistentVolumeClaim" => claim(object, now),
        "StorageClass" => class(object, now),
        "CSINode" => named(object, now, [json!(items(object, &["spec", "drivers"]).len())]),
        "CSIDriver" => driver(object, now),
        "VolumeAttachment" => named(
            object,
            now,
            [
                json!(text(object, &["spec", "attacher"])),
                json!(text(object, &["spec", "source", "persistentVolumeName"])),
                json!(text(object, &["spec", "nodeName"])),
                json!(at(object, &["status", "attached"]) == &Value::Bool(true)),
            ],
        ),
        "VolumeAttributesClass" => named(object, now, [json!(text(object, &["driverName"]))]),
        _ => dated(object),
    }
}

fn access_modes(list: &[Value]) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| list.iter().any(|found| found == mode);
    SHORT.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

fn phase(object: &Value) -> &str {
    match at(object, &["metadata", "deletionTimestamp"]) {
        Value::Null => text(object, &["status", "phase"]),
        _ => "Terminating",
    }
}

fn or_default<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    at(object, path).as_str().unwrap_or("<unset>")
}

fn class_name<'a>(object: &'a Value, annotation: &str) -> &'a str {
    match text(object, &["metadata", "annotations", annotation]) {
        "" => text(object, &["spec", "storageClassName"]),
        class => class,
    }
}

const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

fn volume(object: &Value, now: Timestamp) -> Vec<Value> {
    let claim = at(object, &["spec", "claimRef"]);
    let claim = match claim.is_object() {
        true => format!("{}/{}", text(claim, &["namespace"]), text(claim, &["name"])),
        false => String::new(),
    };
    let capacity = match text(object, &["spec", "capacity", "storage"]) {
        "" => "0",
        capacity => capacity,
    };
    let mut row = named(
        object,
        now,
        [
            json!(capacity),
            json!(access_modes(items(object, &["spec", "accessModes"]))),
            json!(text(object, &["spec", "persistentVolumeReclaimPolicy"])),
            json!(phase(object)),
            json!(claim),
            json!(class_name(object, CLASS_ANNOTATION)),
            json!(or_default(object, &["spec", "volumeAttributesClassName"])),
            json!(text(object, &["status", "reason"])),
        ],
    );
    row.push(json!(or_default(object, &["spec", "volumeMode"])));
    row
}

fn claim(object: &Value, now: Timestamp) -> Vec<Value> {
    let volume = text(object, &["spec", "volumeName"]);
    let (capacity, modes) = match volume {
        "" => (String::new(), String::new()),
        _ => {
            let capacity = match text(object, &["status", "capacity", "storage"]) {
                "" => "0",
                capacity => capacity,
            };
            (capacity.to_owned(), access_modes(items(object, &["status", "accessModes"])))
        }
    };
    let mut row = named(
        object,
        now,
        [
            json!(phase(object)),
            json!(volume),
            json!(capacity),
            json!(modes),
            json!(class_name(object, CLASS_ANNOTATION)),
            json!(or_default(object, &["spec", "volumeAttributesClassName"])),
        ],
    );
    row.push(json!(or_default(object, &["spec", "volumeMode"])));
    row
}

fn class(object: &Value, now: Timestamp) -> Vec<Value> {
    let annotations = at(object, &["metadata", "annotations"]);
    let default =
        ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    let default = default.iter().any(|key| annotations[*key] == "true");
    let mut row = named(
        object,
        now,
        [
            json!(text(object, &["provisioner"])),
            json!(object["reclaimPolicy"].as_str().unwrap_or("Delete")),
            json!(object["volumeBindingMode"].as_str().unwrap_or("Immediate")),
            json!(object["allowVolumeExpansion"] == true),
        ],
    );
    if default {
        row[0] = json!(format!("{} (default)", name(object).as_str().unwrap_or_default()));
    }
    row
}

fn driver(object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    let flag = |field: &str, default: bool| json!(spec[field].as_bool().unwrap_or(default));
    let modes: Vec<&str> = items(spec, &["volumeLifecycleModes"]).iter().filter_map(Value::as_str).collect();
    let audiences = match spec["tokenRequests"].as_array() {
        None => "<unset>".to_owned(),
        Some(list) => list.iter().map(|t| text(t, &["audience"])).collect::<Vec<_>>().join(","),
    };
    named(
        object,
        now,
        [
            flag("attachRequired", true),
            flag("podInfoOnMount", false),
            flag("storageCapacity", false),
            json!(audiences),
            flag("requiresRepublish", false),
            json!(or_none(&modes.join(","))),
        ],
    )
}
