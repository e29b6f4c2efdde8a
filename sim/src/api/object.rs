//! Reads and changes the metadata of objects.

use serde_json::{Map, Value, json};

/// A text in an object; empty when it is missing.
pub(super) fn text<'o>(object: &'o Value, pointer: &str) -> &'o str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub(super) fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

pub(super) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// `metadata.resourceVersion`; zero when it is missing.
pub(super) fn version(object: &Value) -> u64 {
    text(object, "/metadata/resourceVersion").parse().unwrap_or_default()
}

pub(super) fn is_being_deleted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

pub(super) fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
}

/// The metadata as a map. An object without any gets an empty one.
pub(super) fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    member(object, "metadata")
}

/// A member as a map; anything else in its place is replaced.
pub(super) fn member<'o>(object: &'o mut Value, name: &str) -> &'o mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let slot = &mut object[name];
    if !slot.is_object() {
        *slot = json!({});
    }
    match slot {
        Value::Object(members) => members,
        _ => unreachable!("it was just made a map"),
    }
}

/// Sets a member to a default when it is missing or null.
pub(super) fn default(object: &mut Map<String, Value>, name: &str, value: Value) {
    let slot = object.entry(name.to_owned()).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value;
    }
}

/// Copies a member from one object to another; removes it where the first has none.
pub(super) fn take_over(from: &Value, to: &mut Value, name: &str) {
    let Some(members) = to.as_object_mut() else { return };
    match from.get(name) {
        Some(value) => drop(members.insert(name.to_owned(), value.clone())),
        None => drop(members.remove(name)),
    }
}

/// Removes members that are null, and metadata that is empty, as the typed objects of a server lose them.
pub(super) fn tidy(object: &mut Value) {
    let Some(members) = object.as_object_mut() else { return };
    members.retain(|_, member| !member.is_null());
    let Some(metadata) = members.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    metadata.retain(|_, member| match member {
        Value::Null => false,
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => true,
    });
}

/// An object as it appears in a list of its kind: lists of built-in kinds name the kind only once.
pub(super) fn in_list(object: &Value, built_in: bool) -> Value {
    let mut item = object.clone();
    if let Some(members) = item.as_object_mut().filter(|_| built_in) {
        members.remove("kind");
        members.remove("apiVersion");
    }
    item
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_typed_object_would_lose_is_lost() {
        let mut object = json!({
            "metadata": {"name": "a", "labels": {}, "finalizers": [], "generateName": "", "creationTimestamp": null},
            "data": {}, "status": null,
        });
        tidy(&mut object);
        assert_eq!(object, json!({"metadata": {"name": "a"}, "data": {}}));
    }

    #[test]
    fn members_are_taken_over_or_removed() {
        let mut object = json!({"spec": 1, "status": 2});
        take_over(&json!({"status": 3}), &mut object, "status");
        take_over(&json!({"status": 3}), &mut object, "spec");
        assert_eq!(object, json!({"status": 3}));
    }
}
