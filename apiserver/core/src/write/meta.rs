//! Small helpers on `metadata` of parsed objects.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// A field of `metadata`.
pub(super) fn get<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    object.get("metadata")?.get(field).filter(|value| !value.is_null())
}

/// A text field of `metadata`; empty when it is not there.
pub(super) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    get(object, field).and_then(Value::as_str).unwrap_or_default()
}

/// Sets a field of `metadata`; a null removes it.
pub(super) fn set(object: &mut Value, field: &str, value: Value) {
    let Value::Object(members) = object else { return };
    let metadata = members.entry("metadata").or_insert_with(|| json!({}));
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    let Value::Object(metadata) = metadata else { return };
    if value.is_null() {
        metadata.remove(field);
    } else {
        metadata.insert(field.to_owned(), value);
    }
}

/// Copies fields of `metadata` from another object, also their absence.
pub(super) fn copy(object: &mut Value, from: &Value, fields: &[&str]) {
    for field in fields {
        set(object, field, get(from, field).cloned().unwrap_or_default());
    }
}

/// `metadata.finalizers`.
pub(super) fn finalizers(object: &Value) -> Vec<String> {
    let list = get(object, "finalizers").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|one| one.as_str().map(str::to_owned)).collect()
}

/// Whether deletion has begun.
pub(super) fn is_deleting(object: &Value) -> bool {
    get(object, "deletionTimestamp").is_some()
}

/// Formats a time as Kubernetes does: UTC, whole seconds.
pub(super) fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
