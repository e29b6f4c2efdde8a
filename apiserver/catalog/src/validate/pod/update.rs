//! Which fields of an existing pod may change.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{Errors, Field, FieldError, annotations, scheduling};
use tombolo_apicore::value::{at, items, items_mut, text};

const MAY_CHANGE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Checks an update of the pod itself.
pub(in super::super) fn pod(new: &Value, old: &Value, errors: &mut Errors) {
    let (Some(_), Some(_)) = (new["spec"].as_object(), old["spec"].as_object()) else { return };
    annotations::update(new, old, errors);
    if new["spec"] == old["spec"] {
        return;
    }
    let spec = Field::root("spec", &new["spec"]);
    if !containers(&spec, &old["spec"], errors) || !deadline(&spec, &old["spec"], errors) {
        return;
    }
    tolerations(&spec, &old["spec"], errors);
    gates(&spec, &old["spec"], errors);
    let mut wanted = new["spec"].clone();
    if let Value::Object(wanted) = &mut wanted {
        allow(wanted, &old["spec"]);
        if !items(&old["spec"], &["schedulingGates"]).is_empty() {
            narrower(&spec, &old["spec"], errors);
            allow_narrower(wanted, &old["spec"]);
        }
    }
    if wanted != old["spec"] {
        errors.push(FieldError::forbidden("spec", MAY_CHANGE));
    }
}

/// Resets mutable fields to their old values, so that a comparison finds any other change.
fn allow(wanted: &mut Map<String, Value>, old: &Value) {
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
    let mut keys = vec!["activeDeadlineSeconds", "tolerations", "schedulingGates"];
    if at(old, &["terminationGracePeriodSeconds"]).as_i64().is_some_and(|seconds| seconds < 0) {
        keys.push("terminationGracePeriodSeconds");
    }
    for key in keys {
        put_back(wanted, old, key);
    }
}

fn put_back(wanted: &mut Map<String, Value>, old: &Value, key: &str) {
    match &old[key] {
        Value::Null => wanted.remove(key),
        value => wanted.insert(key.to_owned(), value.clone()),
    };
}

/// Like [`allow`], for a pod with scheduling gates.
fn allow_narrower(wanted: &mut Map<String, Value>, old: &Value) {
    put_back(wanted, old, "nodeSelector");
    let before = &old["affinity"]["nodeAffinity"];
    let plain = |affinity: &Value| affinity["podAffinity"].is_null() && affinity["podAntiAffinity"].is_null();
    match wanted.get_mut("affinity") {
        None | Some(Value::Null) if before.is_null() => {}
        None | Some(Value::Null) => put_back(wanted, old, "affinity"),
        Some(affinity) if old["affinity"].is_null() && plain(affinity) => {
            wanted.remove("affinity");
        }
        Some(Value::Object(affinity)) => put_back(affinity, &old["affinity"], "nodeAffinity"),
        Some(_) => {}
    }
}

/// Checks that the number of containers stays the same. Returns whether to check the rest.
fn containers(spec: &Field<'_, '_>, old: &Value, errors: &mut Errors) -> bool {
    for list in ["containers", "initContainers"] {
        let (now, before) = (spec.child(list), items(old, &[list]));
        if now.list().len() != before.len() {
            errors.push(now.forbidden("pod updates may not add or remove containers"));
            return false;
        }
        for container in now.items() {
            container.child("image").demand(errors);
            super::containers::image_padding(&container, errors);
        }
    }
    true
}

/// A deadline may only get shorter. Returns whether to check the rest.
fn deadline(spec: &Field<'_, '_>, old: &Value, errors: &mut Errors) -> bool {
    let deadline = spec.child("activeDeadlineSeconds");
    let before = old["activeDeadlineSeconds"].as_i64();
    match (deadline.value().as_i64(), before) {
        (None, Some(_)) => {
            errors.push(deadline.invalid("must not update from a positive integer to nil value"));
            true
        }
        (Some(now), _) if !(0..=i64::from(i32::MAX)).contains(&now) => {
            errors.push(deadline.invalid("must be between 0 and 2147483647, inclusive"));
            false
        }
        (Some(now), Some(before)) if now > before => {
            errors.push(deadline.invalid("must be less than or equal to previous value"));
            false
        }
        _ => true,
    }
}

fn tolerations(spec: &Field<'_, '_>, old: &Value, errors: &mut Errors) {
    let list = spec.child("tolerations");
    for before in items(old, &["tolerations"]) {
        let same = |toleration: &Value| {
            ["key", "operator", "value", "effect"].iter().all(|key| toleration[*key] == before[*key])
        };
        if !list.list().iter().any(same) {
            errors
                .push(list.forbidden("existing toleration can not be modified except its tolerationSeconds"));
            return;
        }
    }
    scheduling::tolerations(&list, errors);
}

/// Scheduling gates may only be removed.
fn gates(spec: &Field<'_, '_>, old: &Value, errors: &mut Errors) {
    let before = items(old, &["schedulingGates"]);
    for gate in spec.child("schedulingGates").items() {
        if !before.contains(gate.value()) {
            let name = gate.child("name");
            let text = format!("only deletion is allowed, but found new scheduling gate '{}'", name.text());
            errors.push(name.forbidden(&text));
        }
    }
}

/// While a pod has scheduling gates, its node selection may only get narrower.
fn narrower(spec: &Field<'_, '_>, old: &Value, errors: &mut Errors) {
    let selector = spec.child("nodeSelector");
    let before = old["nodeSelector"].as_object().into_iter().flatten();
    if before.into_iter().any(|(key, value)| selector.value().get(key) != Some(value)) {
        let text = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.push(selector.invalid(text));
    }
    let path = ["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
    let before = items(at(old, &path), &["nodeSelectorTerms"]);
    let required = at(spec.value(), &path);
    let root = format!("spec.{}", path.join("."));
    let root = Field::root(&root, required);
    let terms = root.child("nodeSelectorTerms");
    if before.is_empty() {
        return;
    }
    if terms.list().len() != before.len() {
        let text = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(terms.invalid(text));
        return;
    }
    for (term, before) in terms.items().zip(before) {
        if !only_added(term.value(), before) {
            errors.push(term.invalid("only additions are allowed (no mutations or deletions)"));
        }
    }
}

fn only_added(new: &Value, old: &Value) -> bool {
    let lists = ["matchExpressions", "matchFields"];
    let empty = |term: &Value| lists.iter().all(|list| items(term, &[list]).is_empty());
    if empty(old) {
        return empty(new);
    }
    lists.iter().all(|list| items(new, &[list]).starts_with(items(old, &[list])))
}

/// Checks an update of the ephemeral containers: they can only be added.
pub(in super::super) fn ephemeral(new: &Value, old: &Value, errors: &mut Errors) {
    annotations::update(new, old, errors);
    let now = items(new, &["spec", "ephemeralContainers"]);
    let by_name: HashMap<&str, &Value> =
        now.iter().map(|container| (text(container, &["name"]), container)).collect();
    for before in items(old, &["spec", "ephemeralContainers"]) {
        let name = text(before, &["name"]);
        let problem = match by_name.get(name) {
            None => "removed",
            Some(found) if *found != before => "changed",
            Some(_) => continue,
        };
        let text = format!("existing ephemeral containers {name:?} may not be {problem}\n");
        errors.push(FieldError::forbidden("spec.ephemeralContainers", text));
    }
}
