//! Warnings about accepted but probably unintended values, as in kube-apiserver's strategies.

mod definition;
mod labels;
mod network;
mod paths;
mod pod;
mod secret;
mod storage;
mod volumes;

use serde_json::Value;

use self::labels::old_label;
use super::{KindInfo, names};
use tombolo_apicore::value::{at, text};

/// Warnings about a new object, or about an update of `old`, also through a subresource.
pub(crate) fn of(kind: &KindInfo, object: &Value, old: Option<&Value>, subresource: &str) -> Vec<String> {
    let mut warnings = match old {
        None => create(kind, object),
        Some(old) => update(kind, object, old, subresource),
    };
    if subresource.is_empty() {
        beside_old(kind.group_kind(), object, old, &mut warnings);
    }
    warnings
}

fn create(kind: &KindInfo, object: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    match kind.group_kind() {
        ("", "Pod") => {
            pod_name(object, "the Pod's hostname", &mut warnings);
            pod::app_armor(object, &mut warnings);
            pod::check(object, "", &mut warnings);
        }
        ("" | "apps" | "batch", kind) => {
            if matches!(kind, "ReplicationController" | "Deployment" | "ReplicaSet" | "Job" | "CronJob") {
                pod_name(object, "Pod names and hostnames", &mut warnings);
            }
            templates(kind, object, object, &mut warnings);
            volumes::claim_templates(kind, object, "", &mut warnings);
        }
        _ => {}
    }
    every_time(kind.group_kind(), object, &mut warnings);
    warnings
}

fn update(kind: &KindInfo, new: &Value, old: &Value, subresource: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    match (kind.group_kind(), subresource) {
        (("", kind), "status") => network::status(kind, new, &mut warnings),
        ((group, kind), "") => {
            let counter = if kind == "DaemonSet" { "template" } else { "generation" };
            let changed = match counter {
                "template" => new["spec"]["template"] != old["spec"]["template"],
                _ => at(new, &["metadata", "generation"]) != at(old, &["metadata", "generation"]),
            };
            if changed && matches!(group, "" | "apps" | "batch") {
                // The warning about a replication controller is about its old template.
                let shown = if kind == "ReplicationController" { old } else { new };
                templates(kind, new, shown, &mut warnings);
            }
            volumes::claim_templates(kind, new, ".Spec", &mut warnings);
            every_time((group, kind), new, &mut warnings);
        }
        _ => {}
    }
    warnings
}

fn every_time(group_kind: (&str, &str), object: &Value, warnings: &mut Vec<String>) {
    match group_kind {
        ("", "Service") => network::service(object, warnings),
        ("", "Node") => network::node(object, warnings),
        ("", "PersistentVolume") => volumes::volume(object, warnings),
        ("", "PersistentVolumeClaim") => volumes::claim(object, warnings),
        _ => {}
    }
}

/// Warnings that are given at every write, or if the update introduces the problem.
fn beside_old(group_kind: (&str, &str), object: &Value, old: Option<&Value>, warnings: &mut Vec<String>) {
    match group_kind {
        ("", "Secret") => secret::check(object, warnings),
        ("storage.k8s.io", "CSIDriver") => storage::driver(object, old, warnings),
        ("storage.k8s.io", "StorageClass") => storage::topologies(object, warnings),
        ("storage.k8s.io", "CSIStorageCapacity") => storage::node_topology(&object["nodeTopology"], warnings),
        ("node.k8s.io", "RuntimeClass") => {
            let labels = object["scheduling"]["nodeSelector"].as_object().into_iter().flatten();
            let found = labels.filter_map(|(key, _)| old_label(key));
            warnings.extend(found.map(|why| format!("scheduling.nodeSelector: {why}")));
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition::formats(object, old, warnings),
        _ => {}
    }
}

/// Warns of names that become host names: those of pods, and of objects that pass their names to pods.
fn pod_name(object: &Value, used: &str, warnings: &mut Vec<String>) {
    let name = text(object, &["metadata", "name"]);
    if let Some(problem) = names::dns1123_label(name) {
        warnings.push(format!(
            "metadata.name: this is used in {used}, which can result in surprising behavior; a DNS label is recommended: [{problem}]"
        ));
    }
}

/// Warnings about the template of a kind that creates pods.
fn templates(kind: &str, object: &Value, shown: &Value, warnings: &mut Vec<String>) {
    let path: &[&str] = match kind {
        "PodTemplate" => &["template"],
        "CronJob" => &["spec", "jobTemplate", "spec", "template"],
        _ => &["spec", "template"],
    };
    if at(object, path).is_object() {
        pod::check(at(shown, path), &path.join("."), warnings);
    }
}
