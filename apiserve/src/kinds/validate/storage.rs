//! Validation of volumes and claims.

use serde_json::Value;

use super::super::value::text;
use super::field::Field;
use super::{FieldError, names, same};
use crate::schema::format::Quantity;

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// Checks one of these kinds.
pub(super) fn create(kind: &str, object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    match kind {
        "PersistentVolume" => {
            access_modes(&Field::root("spec", spec), "", errors);
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
            claim_spec(&Field::root("spec", spec), errors);
        }
        _ => {}
    }
}

/// Checks the spec of a claim, also as a template of a StatefulSet.
pub(super) fn claim_spec(spec: &Field<'_, '_>, errors: &mut Vec<FieldError>) {
    access_modes(spec, "at least 1 access mode is required", errors);
    spec.child("selector").selector(errors);
    let requests = spec.below("resources.requests");
    let resources = spec.child("resources").path();
    match &requests.value()["storage"] {
        Value::Null => errors.push(FieldError::required(format!("{resources}[storage]"), "")),
        _ => storage(requests.value(), &resources, errors),
    }
    let (class, mode) = (spec.child("storageClassName"), spec.child("volumeMode"));
    class.check(names::dns1123_subdomain, errors);
    mode.one_of(&["Block", "Filesystem"], errors);
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

fn access_modes(spec: &Field<'_, '_>, detail: &str, errors: &mut Vec<FieldError>) {
    let modes = spec.child("accessModes");
    if modes.is_empty() {
        errors.push(modes.required(detail));
    }
    for mode in modes.texts().into_iter().filter(|mode| !MODES.contains(mode)) {
        errors.push(FieldError::not_supported(modes.path(), mode, &MODES));
    }
    let single = modes.texts().contains(&"ReadWriteOncePod");
    if single && modes.texts().iter().any(|mode| MODES[..3].contains(mode)) {
        errors.push(modes.forbidden("may not use ReadWriteOncePod with other access modes"));
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
        _ => {}
    }
}

/// The part of a volume that says where it is.
fn source(spec: &Value) -> Vec<(String, Value)> {
    let sources = ["hostPath", "local", "nfs", "csi", "iscsi", "fc", "rbd", "cephfs", "azureFile"];
    let found = sources.into_iter().filter(|key| !spec[*key].is_null());
    found.map(|key| (key.to_owned(), spec[key].clone())).collect()
}
