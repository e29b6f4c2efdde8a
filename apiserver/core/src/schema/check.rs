//! Value validation by structural schemas: OpenAPI v3 without references, with the messages of apiextensions.

mod lists;

use serde_json::Value;

use super::correlate;
use super::node_checks::{join, type_error, type_name};
use super::types::{SchemaPosition, Shape};
use crate::field_error::{CAUSES_MAX, FieldError};
use crate::names;

/// Checks a custom resource against its type. Values that equal those of the `old` object are accepted, because
/// definitions may become stricter while objects exist (CRD validation ratcheting).
pub(crate) fn check(position: SchemaPosition<'_>, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(position, value, old, "", &mut errors);
    errors.truncate(CAUSES_MAX);
    errors
}

fn walk(
    position: SchemaPosition<'_>,
    value: &Value,
    old: Option<&Value>,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    if errors.len() >= CAUSES_MAX || old == Some(value) {
        return;
    }
    let node = position.node();
    // Nodes without rules are untyped, or object metadata, which is checked elsewhere.
    let Some(checks) = &node.checks else { return };
    if value.is_null() && node.nullable {
        return;
    }
    if !checks.value(value, old, path, errors) {
        return;
    }
    match (&node.shape, value) {
        (Shape::Struct(shape), Value::Object(map)) => {
            for (key, item) in map {
                let before = correlate::member(node, old, key);
                walk(position.child(key).0, item, before, &join(path, key), errors);
            }
            for field in shape.fields.iter().filter(|field| field.required) {
                if !map.contains_key(field.name.as_ref()) {
                    errors.push(FieldError::required(join(path, &field.name), ""));
                }
            }
            if shape.embedded && !path.is_empty() {
                embedded(map, path, errors);
            }
        }
        (Shape::Map { .. }, Value::Object(map)) => {
            for (key, item) in map {
                let before = correlate::member(node, old, key);
                walk(position.child(key).0, item, before, &join(path, key), errors);
            }
        }
        (Shape::List(list), Value::Array(items)) => {
            lists::unique(list, items, path, errors);
            let before = correlate::Items::new(list, old);
            for (index, item) in items.iter().enumerate() {
                walk(position.item(), item, before.find(item), &format!("{path}[{index}]"), errors);
            }
        }
        _ => {}
    }
}

/// An embedded object must have its type and, in its metadata, a name.
fn embedded(map: &serde_json::Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) {
    for key in ["apiVersion", "kind"] {
        let at = join(path, key);
        match map.get(key) {
            None => errors.push(FieldError::required(at, "")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid(at, "", "must not be empty"));
            }
            Some(Value::String(text)) => {
                if let Some(problem) = type_name_problem(key, text) {
                    errors.push(FieldError::invalid(at, text.as_str(), problem));
                }
            }
            Some(other) => errors.push(type_error(&at, "string", type_name(other))),
        }
    }
    if let Some(other) = map.get("metadata").filter(|metadata| !metadata.is_object()) {
        errors.push(type_error(&join(path, "metadata"), "object", type_name(other)));
    }
}

fn type_name_problem(key: &str, text: &str) -> Option<String> {
    match key {
        "kind" => names::dns1035_label(&text.to_lowercase())
            .map(|problem| format!("may have mixed case, but should otherwise match: {problem}")),
        _ => (text.matches('/').count() > 1).then(|| format!("unexpected GroupVersion string: {text}")),
    }
}
