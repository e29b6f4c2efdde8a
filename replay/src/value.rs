//! Small helpers for objects as JSON.

use serde_json::Value;

/// Members of `metadata` that every version changes, or that mean nothing to an edge.
const VOLATILE: [&str; 3] = ["resourceVersion", "managedFields", "selfLink"];

/// Whether two versions of an object differ only in their status.
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

/// Whether two versions of an object differ only in bookkeeping.
pub(crate) fn same_content(one: &Value, other: &Value) -> bool {
    let status = |object: &Value| without_empty(object.get("status").cloned().unwrap_or_default());
    same_but_status(one, other) && status(one) == status(other)
}

/// Removes members from an object's metadata.
pub(crate) fn strip(object: &mut Value, members: &[&str]) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for member in members {
            metadata.remove(*member);
        }
    }
}

/// Whether two frames agree about one version: members that deliveries leave out may be missing in one of them.
pub(crate) fn agree(one: &Value, other: &Value) -> bool {
    const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let (mut one, mut other) = (one.clone(), other.clone());
    drop_unless_both([&mut one, &mut other], "/metadata/annotations", APPLIED);
    if one["kind"] == "Node" || other["kind"] == "Node" {
        drop_unless_both([&mut one, &mut other], "/status", "images");
    }
    let conditions = one.pointer("/status/conditions").and_then(Value::as_array).map_or(0, Vec::len);
    for index in 0..conditions {
        drop_unless_both([&mut one, &mut other], &format!("/status/conditions/{index}"), "lastHeartbeatTime");
    }
    same_content(&one, &other)
}

fn drop_unless_both(sides: [&mut Value; 2], pointer: &str, member: &str) {
    let has = |side: &Value| side.pointer(pointer).is_some_and(|value| value.get(member).is_some());
    if !sides.iter().all(|side| has(side)) {
        for side in sides {
            if let Some(members) = side.pointer_mut(pointer).and_then(Value::as_object_mut) {
                members.remove(member);
            }
        }
    }
}

/// The value without members that are `null` or empty. Go's encoder writes or omits them depending on the type.
#[must_use]
pub fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let clean = members.into_iter().map(|(name, value)| (name, without_empty(value)));
            let says = |value: &Value| {
                !value.is_null() && value.as_object().is_none_or(|members| !members.is_empty())
            };
            Value::Object(clean.filter(|(_, value)| says(value)).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_empty).collect()),
        other => other,
    }
}
