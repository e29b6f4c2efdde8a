//! Which manager owns which field of a child (`metadata.managedFields`), and how the controller takes over fields that
//! must be removed.
//!
//! The API server removes fields that an applier owned and no longer states, unless another manager owns them as well.
//! So a conflicting member ([`super::union`]) first becomes the controller's alone, and the next apply removes it. The
//! content of a child is only written by that apply. Any other write would make the controller a second manager of
//! everything that it changes: a field that the template drops later would stay forever. It would also have to repeat
//! the API server's merge, to keep what belongs to others.

use serde_json::{Map, Value, json};

use super::union::Path;

#[cfg(test)]
mod tests;

/// Represents a field itself, when fields below it are named too.
const ITSELF: &str = ".";

/// The managed fields of a child, changed so that these fields belong to one applier alone.
#[must_use]
pub fn claimed(managed: &Value, paths: &[Path], manager: &str, api_version: &str) -> Value {
    let mut entries = managed.as_array().cloned().unwrap_or_default();
    let is_ours = |entry: &Value| {
        let is_whole = entry["subresource"].as_str().unwrap_or_default().is_empty();
        entry["manager"] == manager && entry["operation"] == "Apply" && is_whole
    };
    let mut ours = match entries.iter().position(is_ours) {
        Some(index) => entries.remove(index),
        None => {
            json!({"manager": manager, "operation": "Apply", "apiVersion": api_version, "fieldsType": "FieldsV1"})
        }
    };
    for path in paths {
        for entry in &mut entries {
            take(&mut entry["fieldsV1"], path);
        }
        put(&mut ours["fieldsV1"], path);
    }
    entries.retain(|entry| entry["fieldsV1"].as_object().is_some_and(|fields| !fields.is_empty()));
    entries.push(ours);
    Value::Array(entries)
}

/// Removes a field and everything below it. Parents that become empty are removed too: an empty parent would represent
/// the field itself.
fn take(fields: &mut Value, path: &[String]) {
    let Some(members) = fields.as_object_mut() else { return };
    match path {
        [] => {}
        [last] => drop(members.remove(last)),
        [first, rest @ ..] => {
            let Some(below) = members.get_mut(first).filter(|below| !is_leaf(below)) else { return };
            take(below, rest);
            if is_leaf(below) {
                members.remove(first);
            }
        }
    }
}

/// Adds a field; parents on the way keep their meaning.
fn put(fields: &mut Value, path: &[String]) {
    let Some((first, rest)) = path.split_first() else { return };
    if !fields.is_object() {
        *fields = Value::Object(Map::new());
    }
    let Some(members) = fields.as_object_mut() else { return };
    let is_new = !members.contains_key(first);
    let below = members.entry(first.clone()).or_insert_with(|| json!({}));
    let means_itself = if rest.is_empty() { !is_leaf(below) } else { !is_new && is_leaf(below) };
    if means_itself {
        below[ITSELF] = json!({});
    }
    put(below, rest);
}

fn is_leaf(fields: &Value) -> bool {
    fields.as_object().is_none_or(Map::is_empty)
}
