//! Small questions about objects as JSON.

use serde_json::Value;

/// Members of `metadata` that a version has anew, or that say nothing to an edge.
const VOLATILE: [&str; 3] = ["resourceVersion", "managedFields", "selfLink"];

/// Whether two versions of an object differ in nothing but their status.
pub(crate) fn same_but_status(one: &Value, other: &Value) -> bool {
    let bare = |object: &Value| {
        let mut object = object.clone();
        strip(&mut object, &VOLATILE);
        if let Some(members) = object.as_object_mut() {
            members.remove("status");
            members.remove("kind");
            members.remove("apiVersion");
        }
        without_empty(object)
    };
    bare(one) == bare(other)
}

/// Whether two versions of an object differ in nothing that is more than bookkeeping.
pub(crate) fn same_content(one: &Value, other: &Value) -> bool {
    let status = |object: &Value| without_empty(object.get("status").cloned().unwrap_or_default());
    same_but_status(one, other) && status(one) == status(other)
}

/// Takes members out of an object's metadata.
pub(crate) fn strip(object: &mut Value, members: &[&str]) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for member in members {
            metadata.remove(*member);
        }
    }
}

/// The value without members that are `null`, which Go's encoder writes and leaves out as types demand.
pub(crate) fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (name, without_empty(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_empty).collect()),
        other => other,
    }
}
