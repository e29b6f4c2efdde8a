//! What is taken, but probably not meant: the warnings of kube-apiserver's strategies.

mod network;
mod paths;
mod pod;
mod volumes;

use serde_json::Value;

use super::super::value::{at, text};
use super::field::Field;
use super::{KindInfo, names};

/// Warnings of a new object.
pub(crate) fn create(kind: &KindInfo, object: &Value) -> Vec<String> {
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

/// Warnings of an update, also through a subresource.
pub(crate) fn update(kind: &KindInfo, new: &Value, old: &Value, subresource: &str) -> Vec<String> {
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
                // That of a replication controller speaks of the template that it had.
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

/// Names of pods, and of what gives its name to pods, become names of hosts.
fn pod_name(object: &Value, used: &str, warnings: &mut Vec<String>) {
    let name = text(object, &["metadata", "name"]);
    if let Some(problem) = names::dns1123_label(name) {
        warnings.push(format!(
            "metadata.name: this is used in {used}, which can result in surprising behavior; a DNS label is recommended: [{problem}]"
        ));
    }
}

/// The template of a kind that makes pods.
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

/// Labels of nodes that are no longer in use, and what to do instead.
const OLD_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

fn old_label(key: &str) -> Option<&'static str> {
    OLD_LABELS.iter().find(|(label, _)| *label == key).map(|(_, advice)| *advice)
}

/// Labels in a term that selects nodes. Values of preferred terms are not validated, only warned of.
fn node_term(term: &Field<'_, '_>, preferred: bool, warnings: &mut Vec<String>) {
    for expression in term.child("matchExpressions").items() {
        let key = expression.child("key");
        if let Some(advice) = old_label(key.text()) {
            warnings.push(format!("{key}: {} is {advice}", key.text()));
        }
        if preferred {
            for value in expression.child("values").items() {
                let problems = names::label_value(value.text()).into_iter();
                warnings.extend(
                    problems.map(|problem| format!("{value}: {} is invalid, {problem}", value.text())),
                );
            }
        }
    }
}
