//! What may change in a pod once it exists.

use serde_json::{Map, Value};

use super::super::value::{at, items, items_mut, text};
use super::FieldError;

const MAY_CHANGE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Checks an update of the pod itself.
pub(super) fn pod(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let (Some(_), Some(_)) = (new["spec"].as_object(), old["spec"].as_object()) else { return };
    containers(new, old, errors);
    deadline(new, old, errors);
    tolerations(new, old, errors);
    let mut wanted = new["spec"].clone();
    if let Value::Object(wanted) = &mut wanted {
        allow(wanted, &old["spec"], new);
    }
    if wanted != old["spec"] {
        errors.push(FieldError::forbidden("spec", MAY_CHANGE));
    }
}

/// Replaces what may change by what was there, so that equality tells whether anything else changed.
fn allow(wanted: &mut Map<String, Value>, old: &Value, new: &Value) {
    for list in ["containers", "initContainers"] {
        let before = items(old, &[list]);
        for (index, container) in
            wanted.get_mut(list).map_or(&mut [][..], |l| items_mut(l, &[])).iter_mut().enumerate()
        {
            if let (Value::Object(container), Some(before)) = (container, before.get(index)) {
                container.insert("image".into(), before["image"].clone());
            }
        }
    }
    let mut keys = vec!["activeDeadlineSeconds", "tolerations"];
    if at(old, &["terminationGracePeriodSeconds"]).as_i64().is_some_and(|seconds| seconds < 0) {
        keys.push("terminationGracePeriodSeconds");
    }
    // Scheduling gates may be removed one by one; the node selector may narrow while a gate is closed.
    if removed_only(items(new, &["spec", "schedulingGates"]), items(old, &["schedulingGates"])) {
        keys.push("schedulingGates");
    }
    if !items(old, &["schedulingGates"]).is_empty() {
        keys.extend(["nodeSelector", "affinity"]);
    }
    for key in keys {
        match &old[key] {
            Value::Null => wanted.remove(key),
            value => wanted.insert(key.to_owned(), value.clone()),
        };
    }
}

fn removed_only(new: &[Value], old: &[Value]) -> bool {
    new.iter().all(|gate| old.contains(gate))
}

fn containers(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    for list in ["containers", "initContainers"] {
        let (now, before) = (items(new, &["spec", list]), items(old, &["spec", list]));
        if now.len() != before.len() {
            let text = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(format!("spec.{list}"), text));
            return;
        }
    }
}

fn deadline(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let (now, before) =
        (at(new, &["spec", "activeDeadlineSeconds"]), at(old, &["spec", "activeDeadlineSeconds"]));
    if let Some(before) = before.as_i64() {
        let text = match now.as_i64() {
            None => "must not update from a positive integer to nil value",
            Some(now) if now > before => "must be less than or equal to previous value",
            Some(_) => return,
        };
        errors.push(FieldError::invalid("spec.activeDeadlineSeconds", now.clone(), text));
    }
}

fn tolerations(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let now = items(new, &["spec", "tolerations"]);
    for before in items(old, &["spec", "tolerations"]) {
        let same = |toleration: &Value| {
            ["key", "operator", "value", "effect"].iter().all(|key| toleration[*key] == before[*key])
        };
        if !now.iter().any(same) {
            let text = "existing toleration can not be modified except its tolerationSeconds";
            errors.push(FieldError::forbidden("spec.tolerations", text));
            return;
        }
    }
}

/// Checks an update of the ephemeral containers: they can be added, nothing else.
pub(super) fn ephemeral(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let now = items(new, &["spec", "ephemeralContainers"]);
    for (index, before) in items(old, &["spec", "ephemeralContainers"]).iter().enumerate() {
        let name = text(before, &["name"]);
        match now.iter().find(|container| text(container, &["name"]) == name) {
            None => {
                let text = format!("existing ephemeral containers \"{name}\" may not be removed\n");
                errors.push(FieldError::forbidden("spec.ephemeralContainers", text));
            }
            Some(found) if found != before => {
                let text = format!("existing ephemeral containers \"{name}\" may not be changed\n");
                errors.push(FieldError::forbidden(format!("spec.ephemeralContainers[{index}]"), text));
            }
            Some(_) => {}
        }
    }
}
