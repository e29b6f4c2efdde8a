//! Validation of volumes, claims and the storage group.

use serde_json::Value;

use super::super::value::{at, items, text};
use super::network::fixed;
use super::{FieldError, same};
use crate::schema::format::Quantity;

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// Checks one of these kinds.
pub(super) fn create(kind: &str, object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    match kind {
        "PersistentVolume" => {
            access_modes(spec, "", errors);
            if spec["capacity"].as_object().is_none_or(serde_json::Map::is_empty) {
                errors.push(FieldError::required("spec.capacity", ""));
            } else {
                storage(&spec["capacity"], "spec.capacity", errors);
            }
            if !has_source(spec) {
                errors.push(FieldError::required("spec", "must specify a volume type"));
            }
        }
        "PersistentVolumeClaim" => {
            access_modes(spec, "at least 1 access mode is required", errors);
            match at(spec, &["resources", "requests", "storage"]) {
                Value::Null => errors.push(FieldError::required("spec.resources[storage]", "")),
                _ => storage(at(spec, &["resources", "requests"]), "spec.resources", errors),
            }
        }
        "StorageClass" if text(object, &["provisioner"]).is_empty() => {
            errors.push(FieldError::required("provisioner", ""));
        }
        "CSINode" => {
            for (index, driver) in items(spec, &["drivers"]).iter().enumerate() {
                for field in ["name", "nodeID"] {
                    if text(driver, &[field]).is_empty() {
                        errors.push(FieldError::required(format!("spec.drivers[{index}].{field}"), ""));
                    }
                }
            }
        }
        "VolumeAttachment" => {
            for field in ["attacher", "nodeName"] {
                if text(spec, &[field]).is_empty() {
                    errors.push(FieldError::required(format!("spec.{field}"), ""));
                }
            }
        }
        _ => {}
    }
}

/// Whether a persistent volume says where it is.
fn has_source(spec: &Value) -> bool {
    const OTHER: [&str; 9] = [
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeMode",
        "volumeAttributesClassName",
    ];
    spec.as_object().is_some_and(|spec| spec.keys().any(|key| !OTHER.contains(&key.as_str())))
}

fn access_modes(spec: &Value, detail: &str, errors: &mut Vec<FieldError>) {
    let modes = items(spec, &["accessModes"]);
    if modes.is_empty() {
        errors.push(FieldError::required("spec.accessModes", detail));
    }
    for mode in modes {
        let mode = mode.as_str().unwrap_or_default();
        if !MODES.contains(&mode) {
            errors.push(FieldError::not_supported("spec.accessModes", mode, &MODES));
        }
    }
}

fn storage(list: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let value = &list["storage"];
    let positive = Quantity::parse(value.as_str().unwrap_or_default()).is_ok_and(|q| q.sign().is_gt());
    if !positive {
        let text = "must be greater than zero";
        errors.push(FieldError::invalid(format!("{path}[storage]"), value.clone(), text));
    }
}

const CLAIM: &str = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";

/// Checks what an update changes.
pub(super) fn update(kind: &str, new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    match kind {
        "PersistentVolume" => {
            if source(&new["spec"]) != source(&old["spec"]) {
                let text = "spec.persistentvolumesource is immutable after creation";
                errors.push(FieldError::forbidden("spec.persistentvolumesource", text));
            }
            same(new, old, &["spec", "volumeMode"], errors);
        }
        "PersistentVolumeClaim" => {
            // Binding writes the volume's name; a bound claim may grow.
            let fixed = |object: &Value| {
                let mut spec = object["spec"].clone();
                if let Value::Object(map) = &mut spec {
                    for key in ["resources", "volumeAttributesClassName"] {
                        map.remove(key);
                    }
                    if text(old, &["spec", "volumeName"]).is_empty() {
                        map.remove("volumeName");
                        map.remove("storageClassName");
                    }
                }
                spec
            };
            if fixed(new) != fixed(old) {
                errors.push(FieldError::forbidden("spec", CLAIM));
            }
        }
        "StorageClass" => {
            for key in ["provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"] {
                fixed(new, old, key, errors);
            }
        }
        "VolumeAttachment" => fixed(new, old, "spec", errors),
        _ => {}
    }
}

/// The part of a volume that says where it is.
fn source(spec: &Value) -> Vec<(String, Value)> {
    let sources = ["hostPath", "local", "nfs", "csi", "iscsi", "fc", "rbd", "cephfs", "azureFile"];
    let found = sources.into_iter().filter(|key| !spec[*key].is_null());
    found.map(|key| (key.to_owned(), spec[key].clone())).collect()
}
