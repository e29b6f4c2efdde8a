//! Validation of persistent volumes.

use serde_json::Value;

use super::field::{Errors, Field};
use super::pod::affinity::node_selector;
use super::pod::sources::{self, VolumeOwner};
use super::quantities::parse;
use super::{FieldError, IMMUTABLE, claims, names};
use tombolo_apicore::value::{at, text};

const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// Sources in kube-apiserver's order: the name, how a second source is reported, and the path of errors in it.
const SOURCES: [(&str, &str, &str); 22] = [
    ("hostPath", "hostPath", "hostPath"),
    ("gcePersistentDisk", "gcePersistentDisk", "persistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore", "awsElasticBlockStore"),
    ("glusterfs", "glusterfs", "glusterfs"),
    ("flocker", "flocker", "flocker"),
    ("nfs", "nfs", "nfs"),
    ("rbd", "rbd", "rbd"),
    ("quobyte", "quobyte", "quobyte"),
    ("cephfs", "cephFS", "cephfs"),
    ("iscsi", "iscsi", "iscsi"),
    ("cinder", "cinder", "cinder"),
    ("fc", "fc", "fc"),
    ("flexVolume", "", "flexVolume"),
    ("azureFile", "azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk", "azureDisk"),
    ("scaleIO", "scaleIO", "scaleIO"),
    ("local", "local", "local"),
    ("storageos", "storageos", "storageos"),
    ("csi", "csi", "csi"),
];

/// Sources that support mount options in an annotation.
const WITH_OPTIONS: [&str; 13] = [
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "nfs",
    "rbd",
    "quobyte",
    "iscsi",
    "cinder",
    "cephfs",
    "azureFile",
    "vsphereVolume",
    "azureDisk",
    "photonPersistentDisk",
];

/// Checks a persistent volume.
pub(super) fn check(volume: &Value, errors: &mut Errors) {
    specification(volume, errors);
    let spec = Field::root("spec", &volume["spec"]);
    let annotation = at(volume, &["metadata", "annotations", MOUNT_OPTIONS]);
    if !annotation.is_null() && !WITH_OPTIONS.iter().any(|source| spec.child(source).is_set()) {
        let text = "may not specify mount options for this volume type";
        errors.push(FieldError::forbidden(format!("metadata.annotations.{MOUNT_OPTIONS}"), text));
    }
}

fn specification(volume: &Value, errors: &mut Errors) {
    let spec = Field::root("spec", &volume["spec"]);
    claims::modes(&spec, "", errors);
    capacity(&spec.child("capacity"), errors);
    let policy = spec.child("persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        policy.one_of(&["Delete", "Recycle", "Retain"], errors);
    }
    let affinity = spec.child("nodeAffinity");
    if affinity.is_set() {
        let required = affinity.child("required");
        match required.is_set() {
            true => node_selector(&required, errors),
            false => errors.push(required.required("must specify required node constraints")),
        }
    }
    sources(volume, &spec, errors);
    let root = spec.child("hostPath");
    let root = root.child("path");
    if policy.text() == "Recycle" && is_root(root.text()) {
        errors.push(policy.forbidden("may not be 'recycle' for a hostPath mount of '/'"));
    }
    spec.child("storageClassName").check(names::dns1123_subdomain, errors);
    spec.child("volumeMode").one_of(&["Block", "Filesystem"], errors);
    let class = spec.child("volumeAttributesClassName");
    if class.is_set() {
        if class.is_empty() {
            errors.push(class.required("an empty string is disallowed"));
        }
        class.check(names::dns1123_subdomain, errors);
        if !spec.child("csi").is_set() {
            let text = "has to be specified when using volumeAttributesClassName";
            errors.push(spec.child("csi").required(text));
        }
    }
}

/// Whether a path is the root, in any notation.
fn is_root(path: &str) -> bool {
    path.starts_with('/') && path.split('/').all(|part| part.is_empty() || part == ".")
}

fn capacity(capacity: &Field<'_, '_>, errors: &mut Errors) {
    if capacity.is_empty() {
        errors.push(capacity.required(""));
    }
    if !capacity.child("storage").is_set() || capacity.entries().count() > 1 {
        let value = if capacity.is_set() { capacity.value().clone() } else { serde_json::json!({}) };
        errors.push(FieldError::not_supported(capacity.path(), value, &["storage"]));
    }
    for (_, amount) in capacity.entries() {
        let Ok(quantity) = parse(&amount) else { continue };
        let units = quantity.rounded_up().units().unwrap_or_default();
        if units < 0 {
            errors.push(amount.invalid_value(units, "must be a valid resource quantity"));
        }
        if !quantity.sign().is_gt() {
            errors.push(amount.invalid("must be greater than zero"));
        }
    }
}

fn sources(volume: &Value, spec: &Field<'_, '_>, errors: &mut Errors) {
    let name = text(volume, &["metadata", "name"]);
    let mut given = false;
    for (key, second, shown) in SOURCES {
        let source = spec.with(shown, &spec.value()[key]);
        if !source.is_set() {
            continue;
        }
        if given && !second.is_empty() {
            errors.push(spec.child(second).forbidden("may not specify more than 1 volume type"));
            continue;
        }
        given = true;
        sources::source(key, &source, VolumeOwner::Volume { name }, errors);
        if key == "local" && !spec.child("nodeAffinity").is_set() {
            errors.push(spec.child("nodeAffinity").required("Local volume requires node affinity"));
        }
    }
    if !given {
        errors.push(spec.required("must specify a volume type"));
    }
}

/// Checks what an update changes.
pub(super) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    if new["spec"] != old["spec"] {
        // Checked once more, as in kube-apiserver: its list of causes has these errors twice.
        specification(new, errors);
    }
    let (now, before) = (&new["spec"], &old["spec"]);
    let differs = |(key, ..): &(&str, &str, &str)| {
        let mut now = now[*key].clone();
        if before[*key]["controllerExpandSecretRef"].is_null()
            && let Some(source) = now.as_object_mut().filter(|_| *key == "csi" && before["csi"].is_object())
        {
            // This field may be added later.
            source.remove("controllerExpandSecretRef");
        }
        now != before[*key]
    };
    if SOURCES.iter().any(differs) {
        let text = "spec.persistentvolumesource is immutable after creation";
        errors.push(FieldError::forbidden("spec.persistentvolumesource", text));
    }
    if now["volumeMode"] != before["volumeMode"] {
        errors.push(FieldError::invalid("volumeMode", now["volumeMode"].clone(), IMMUTABLE));
    }
    let mut affinity = before["nodeAffinity"].clone();
    settle_labels(&mut affinity, &now["nodeAffinity"]);
    if !before["nodeAffinity"].is_null() && affinity != now["nodeAffinity"] {
        let text = format!("{IMMUTABLE}, except for updating from beta label to GA");
        errors.push(FieldError::invalid("nodeAffinity", now["nodeAffinity"].clone(), text));
    }
    let class = "volumeAttributesClassName";
    if !before[class].is_null() && now[class].is_null() {
        let text = "update from non-nil value to nil is forbidden";
        errors.push(FieldError::forbidden(format!("spec.{class}"), text));
    }
}

/// Deprecated names of node labels, with their final names.
const FINAL_LABELS: [(&str, &str); 5] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

/// Renames labels to their final names if the update does.
fn settle_labels(old: &mut Value, new: &Value) {
    match (old, new) {
        (Value::String(old), Value::String(new)) if FINAL_LABELS.contains(&(old.as_str(), new.as_str())) => {
            old.clone_from(new);
        }
        (Value::Array(old), Value::Array(new)) => {
            old.iter_mut().zip(new).for_each(|(old, new)| settle_labels(old, new));
        }
        (Value::Object(old), Value::Object(new)) => {
            for (key, old) in old.iter_mut().filter(|(key, _)| *key != "values") {
                settle_labels(old, new.get(key).unwrap_or(&Value::Null));
            }
        }
        _ => {}
    }
}
