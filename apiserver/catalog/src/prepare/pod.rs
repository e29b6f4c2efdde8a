//! Fields that the server writes into a pod, and fields that a resize keeps.

use serde_json::{Map, Value, json};

use tombolo_apicore::value::restrict;
use tombolo_apicore::value::{at_mut, items, items_mut};

const AFFINITIES: [&str; 2] = ["podAffinity", "podAntiAffinity"];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Turns the pod's labels that its selectors name in `matchLabelKeys` and `mismatchLabelKeys` into expressions
/// (pkg/registry/core/pod/strategy.go, `mutatePodAffinity` and `mutateTopologySpreadConstraints`).
pub(super) fn select_own_labels(pod: &mut Map<String, Value>) {
    let labels = pod.get("metadata").map(|metadata| metadata["labels"].clone()).unwrap_or_default();
    let Some(spec) = pod.get_mut("spec") else { return };
    for constraint in items_mut(spec, &["topologySpreadConstraints"]) {
        expand(constraint, &labels, &[("matchLabelKeys", "In")]);
    }
    let both = [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")];
    for kind in AFFINITIES {
        for term in items_mut(spec, &["affinity", kind, REQUIRED]) {
            expand(term, &labels, &both);
        }
        for term in items_mut(spec, &["affinity", kind, PREFERRED]) {
            term.get_mut("podAffinityTerm").into_iter().for_each(|term| expand(term, &labels, &both));
        }
    }
}

fn expand(term: &mut Value, labels: &Value, lists: &[(&str, &str)]) {
    let mut added = Vec::new();
    for (list, operator) in lists {
        for key in items(term, &[list]).iter().filter_map(Value::as_str) {
            if let Some(value) = labels.get(key) {
                added.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    let Some(Value::Object(selector)) = at_mut(term, &["labelSelector"]).filter(|_| !added.is_empty()) else {
        return;
    };
    match selector.entry("matchExpressions").or_insert_with(|| json!([])) {
        Value::Array(list) => list.append(&mut added),
        other => *other = Value::Array(added),
    }
}

/// Removes fields of features that are off by default (pkg/api/pod/util.go, `DropDisabledPodFields`).
pub(super) fn drop_disabled(group_kind: (&str, &str), object: &mut Value) {
    let path: &[&str] = match group_kind {
        ("", "Pod") => &["spec"],
        ("", "PodTemplate") => &["template", "spec"],
        ("batch", "CronJob") => &["spec", "jobTemplate", "spec", "template", "spec"],
        ("", "ReplicationController") | ("apps" | "batch", _) => &["spec", "template", "spec"],
        _ => return,
    };
    let Some(Value::Object(spec)) = at_mut(object, path) else { return };
    spec.remove("schedulingGroup");
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let Value::Object(container) = container else { continue };
            let Some(Value::Object(lifecycle)) = container.get_mut("lifecycle") else { continue };
            if lifecycle.remove("stopSignal").is_some() && lifecycle.is_empty() {
                container.remove("lifecycle");
            }
        }
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        for source in items_mut(volume, &["projected", "sources"]) {
            if let Value::Object(source) = source {
                source.remove("clusterTrustBundle");
                source.remove("podCertificate");
            }
        }
    }
}

/// Keeps only changes of resources. If the list has other containers, validation refuses it.
pub(super) fn resize_only(new: &mut Value, old: &Value) {
    let wanted = new["spec"].clone();
    restrict(new, old);
    match &wanted["resources"] {
        Value::Null => drop(new["spec"].as_object_mut().map(|spec| spec.remove("resources"))),
        resources => new["spec"]["resources"] = resources.clone(),
    }
    let names = |list: &[Value]| list.iter().map(|one| one["name"].clone()).collect::<Vec<_>>();
    for list in ["containers", "initContainers"] {
        let asked = items(&wanted, &[list]);
        if names(asked) != names(items(old, &["spec", list])) {
            new["spec"][list] = wanted[list].clone();
            continue;
        }
        for (container, asked) in items_mut(new, &["spec", list]).iter_mut().zip(asked) {
            let Value::Object(container) = container else { continue };
            for key in ["resources", "resizePolicy"] {
                match &asked[key] {
                    Value::Null => container.remove(key),
                    value => container.insert(key.to_owned(), value.clone()),
                };
            }
        }
    }
}
