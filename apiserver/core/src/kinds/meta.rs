//! Validation of object metadata.

use std::collections::HashSet;

use serde_json::Value;

use super::KindInfo;
use crate::field_error::FieldError;
use crate::names;
use crate::value::{at, items, text};

/// The message of kube-apiserver about a change of an immutable field.
pub const IMMUTABLE: &str = "field is immutable";

/// Maximum size of the keys and values of all annotations together.
const ANNOTATIONS_LEN_MAX: usize = 256 * 1024;

/// Finalizers that ask the garbage collector to leave dependents, or to delete them first.
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Finalizers whose names need no domain.
const PLAIN_FINALIZERS: [&str; 3] = ["kubernetes", ORPHAN, FOREGROUND];

/// Checks the metadata of an object.
pub(super) fn object(kind: &KindInfo, object: &Value, errors: &mut Vec<FieldError>) {
    let metadata = &object["metadata"];
    name(kind, metadata, errors);
    let namespace = text(metadata, &["namespace"]);
    if kind.namespaced {
        if namespace.is_empty() {
            errors.push(FieldError::required("metadata.namespace", ""));
        } else if let Some(problem) = names::dns1123_label(namespace) {
            errors.push(FieldError::invalid("metadata.namespace", namespace, problem));
        }
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type"));
    }
    labels(&metadata["labels"], "metadata.labels", errors);
    annotations(&metadata["annotations"], "metadata.annotations", errors);
    owners(metadata, errors);
    finalizers(kind, items(metadata, &["finalizers"]), errors);
}

fn finalizers(kind: &KindInfo, list: &[Value], errors: &mut Vec<FieldError>) {
    let path = "metadata.finalizers";
    let names: Vec<&str> = list.iter().map(|finalizer| finalizer.as_str().unwrap_or_default()).collect();
    for name in &names {
        for problem in names::qualified_name(name) {
            errors.push(FieldError::invalid(path, *name, problem));
        }
    }
    if [ORPHAN, FOREGROUND].iter().all(|name| names.contains(name)) {
        let text = format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set");
        errors.push(FieldError::invalid(path, list.to_vec(), text));
    }
    // Definitions have a finalizer without a domain; kube-apiserver checks neither theirs nor those of custom kinds.
    if kind.custom || &*kind.resource.group == "apiextensions.k8s.io" {
        return;
    }
    for (index, name) in names.iter().enumerate() {
        if !name.contains('/') && !PLAIN_FINALIZERS.contains(name) {
            let text = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(format!("{path}[{index}]"), *name, text));
        }
    }
}

fn name(kind: &KindInfo, metadata: &Value, errors: &mut Vec<FieldError>) {
    let name = text(metadata, &["name"]);
    let generate = text(metadata, &["generateName"]);
    if !generate.is_empty() {
        // The server appends a suffix, so the prefix may end with a dash or a dot.
        let prefix = generate.trim_end_matches('-');
        let probe = if prefix.len() == generate.len() { generate.to_owned() } else { format!("{prefix}-a") };
        if let Some(problem) = name_problem(kind, &probe) {
            errors.push(FieldError::invalid("metadata.generateName", generate, problem));
        }
    }
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else if let Some(problem) = name_problem(kind, name) {
        errors.push(FieldError::invalid("metadata.name", name, problem));
    }
}

fn name_problem(kind: &KindInfo, name: &str) -> Option<String> {
    match kind.custom {
        true => names::dns1123_subdomain(name),
        false => kind.strategy.name_problem(kind, name),
    }
}

/// Checks a map of labels.
pub fn labels(labels: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        for problem in names::qualified_name(key) {
            errors.push(FieldError::invalid(path, key.as_str(), problem));
        }
        let value = value.as_str().unwrap_or_default();
        for problem in names::label_value(value) {
            errors.push(FieldError::invalid(path, value, problem));
        }
    }
}

/// Checks a map of annotations.
pub fn annotations(annotations: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut size = 0;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        for problem in names::qualified_name(&key.to_lowercase()) {
            errors.push(FieldError::invalid(path, key.as_str(), problem));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_LEN_MAX {
        errors.push(FieldError::too_long(path, ANNOTATIONS_LEN_MAX));
    }
}

/// Maximum number of surplus controllers that a refusal reports, each with all owners.
const CONTROLLERS_TOLD_MAX: usize = 8;

/// Checks the owner references. kube-apiserver does not say which of them is wrong.
fn owners(metadata: &Value, errors: &mut Vec<FieldError>) {
    let path = "metadata.ownerReferences";
    let mut controllers = Vec::new();
    for owner in items(metadata, &["ownerReferences"]) {
        let [api_version, kind, name] = ["apiVersion", "kind", "name"].map(|field| text(owner, &[field]));
        let version = api_version.split_once('/').map_or(api_version, |(_, version)| version);
        if version.is_empty() || version.contains('/') {
            let text = "version must not be empty";
            errors.push(FieldError::invalid(format!("{path}.apiVersion"), api_version, text));
        }
        for field in ["kind", "name", "uid"] {
            if text(owner, &[field]).is_empty() {
                errors.push(FieldError::invalid(format!("{path}.{field}"), "", "must not be empty"));
            }
        }
        if (api_version, kind) == ("v1", "Event") {
            let text = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(path, owner.clone(), text));
        }
        if owner["controller"] == true {
            controllers.push(format!("{kind}/{name}"));
        }
    }
    let Some((first, others)) = controllers.split_first() else { return };
    for other in others.iter().take(CONTROLLERS_TOLD_MAX) {
        let text = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {other}"
        );
        errors.push(FieldError::invalid(path, metadata["ownerReferences"].clone(), text));
    }
}

/// Checks the changes of an update to the metadata.
pub(super) fn update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    for key in ["name", "namespace", "uid", "creationTimestamp"] {
        let (now, before) = (at(new, &["metadata", key]), at(old, &["metadata", key]));
        if now != before {
            let shown = if now.is_null() { Value::from("") } else { now.clone() };
            errors.push(FieldError::invalid(format!("metadata.{key}"), shown, IMMUTABLE));
        }
    }
    let deletion = ["deletionTimestamp", "deletionGracePeriodSeconds"];
    // kube-apiserver reports these twice: once for the kind and once for all kinds.
    for key in deletion.into_iter().chain(deletion) {
        let (now, before) = (at(new, &["metadata", key]), at(old, &["metadata", key]));
        if now != before {
            errors.push(FieldError::invalid(format!("metadata.{key}"), now.clone(), IMMUTABLE));
        }
    }
    if !at(old, &["metadata", "deletionTimestamp"]).is_null() {
        let before: HashSet<&Value> = items(old, &["metadata", "finalizers"]).iter().collect();
        let added: Vec<&str> = items(new, &["metadata", "finalizers"])
            .iter()
            .filter(|finalizer| !before.contains(finalizer))
            .filter_map(Value::as_str)
            .collect();
        if !added.is_empty() {
            let text = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers {}",
                shown_list(&added)
            );
            errors.push(FieldError::forbidden("metadata.finalizers", text));
        }
    }
}

/// A list of strings as Go's `%#v` prints slices.
fn shown_list(list: &[&str]) -> String {
    let quoted: Vec<String> = list.iter().map(|text| format!("{text:?}")).collect();
    format!("[]string{{{}}}", quoted.join(", "))
}
