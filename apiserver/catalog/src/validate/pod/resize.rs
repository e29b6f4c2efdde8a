//! Validation of in-place resource changes of a running pod.

use serde_json::{Map, Value};

use super::{Errors, Field, FieldError, MIRROR};
use crate::qos::qos_class;
use tombolo_apicore::value::{at, items, text};

const ONLY: &str = "only cpu and memory resources are mutable";

/// Checks an update of the resources.
pub(in super::super) fn resize(new: &Value, old: &Value, errors: &mut Errors) {
    let refused = if !at(old, &["metadata", "annotations", MIRROR]).is_null() {
        Some("static pods cannot be resized")
    } else if text(old, &["spec", "os", "name"]) == "windows" {
        Some("windows pods cannot be resized")
    } else {
        None
    };
    if let Some(text) = refused {
        *errors = vec![FieldError::forbidden("[]", text)];
        return;
    }
    let class = match text(old, &["status", "qosClass"]) {
        "" => qos_class(&old["spec"]),
        class => class,
    };
    let spec = Field::root("spec", &new["spec"]);
    if class != qos_class(&new["spec"]) {
        let shown = text(new, &["status", "qosClass"]);
        errors.push(spec.invalid_value(shown, "Pod QOS Class may not change as a result of resizing"));
    }
    if !supported(old) {
        errors.push(spec.forbidden("Pod running on node without support for resize"));
    }
    of_pod(&spec, &old["spec"], errors);
    if !same_containers(&spec, &old["spec"], errors) {
        return;
    }
    for list in ["initContainers", "containers"] {
        containers(&spec, list, &old["spec"], errors);
    }
}

/// Checks that the list has the same containers as before.
fn same_containers(spec: &Field<'_, '_>, old: &Value, errors: &mut Errors) -> bool {
    let before = errors.len();
    for list in ["containers", "initContainers"] {
        let (now, had) = (spec.child(list), items(old, &[list]));
        if now.list().len() != had.len() {
            errors.push(now.forbidden(&format!("{list} may not be added or removed on resize")));
            continue;
        }
        for (container, had) in now.items().zip(had) {
            let name = container.child("name");
            if name.value() != &had["name"] {
                errors.push(name.forbidden(&format!("{list} may not be renamed or reordered on resize")));
            }
        }
    }
    errors.len() == before
}

/// Whether the kubelet supports resizing: it then reports the resources of running containers.
fn supported(pod: &Value) -> bool {
    let running = |status: &&Value| !at(status, &["state", "running"]).is_null();
    let statuses = items(pod, &["status", "containerStatuses"]);
    statuses.iter().find(running).is_none_or(|status| !status["resources"].is_null())
}

/// Resources with the amounts of CPU and memory reset to the old ones.
fn masked(resources: &Value, old: &Value) -> Value {
    let mut masked = Map::new();
    for list in ["limits", "requests"] {
        let mut amounts = resources[list].as_object().cloned().unwrap_or_default();
        for name in ["cpu", "memory"] {
            match &old[list][name] {
                Value::Null => amounts.remove(name),
                amount => amounts.insert(name.to_owned(), amount.clone()),
            };
        }
        masked.insert(list.to_owned(), Value::Object(amounts));
    }
    Value::Object(masked)
}

fn removed(resources: &Field<'_, '_>, old: &Value, what: &str, errors: &mut Errors) {
    for (list, name) in [("requests", "requests"), ("limits", "limits")] {
        let now = resources.child(list);
        let before = old[list].as_object().into_iter().flatten();
        if before.into_iter().any(|(key, _)| now.value().get(key).is_none()) {
            errors.push(now.forbidden(&format!("{what} {name} cannot be removed")));
        }
    }
}

fn of_pod(spec: &Field<'_, '_>, old: &Value, errors: &mut Errors) {
    let (resources, before) = (spec.child("resources"), &old["resources"]);
    if before.is_object() {
        removed(&resources, before, "pod-level resource", errors);
    }
    if masked(resources.value(), before) != masked(before, before) {
        errors.push(spec.forbidden("only cpu and memory resources are mutable at pod-level"));
    }
}

fn containers(spec: &Field<'_, '_>, list: &str, old: &Value, errors: &mut Errors) {
    for (container, before) in spec.child(list).items().zip(items(old, &[list])) {
        let resources = container.child("resources");
        removed(&resources, &before["resources"], "resource", errors);
        let other = masked(resources.value(), &before["resources"])
            != masked(&before["resources"], &before["resources"]);
        if other && list == "containers" {
            errors.push(spec.forbidden(ONLY));
        } else if other {
            let text = "only cpu and memory resources for init or sidecar containers are mutable";
            errors.push(container.forbidden(text));
        }
    }
}
