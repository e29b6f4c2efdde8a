//! Computes the strategic merge patch between two states of an object, as clients do: it contains only differences, so
//! that concurrent changes of others are kept.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};

use super::directives::{DELETE_FROM, PATCH};
use super::strategic::merges;
use crate::schema::types::SchemaPosition;

/// The patch that turns `old` into `new`.
pub(super) fn between(
    position: SchemaPosition<'_>,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
) -> Map<String, Value> {
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    let mut patch: Map<String, Value> = gone.map(|name| (name.clone(), Value::Null)).collect();
    for (name, value) in new {
        match old.get(name) {
            Some(old) if old == value => {}
            Some(old) => field(position.child(name).0, name, old, value, &mut patch),
            None => drop(patch.insert(name.clone(), value.clone())),
        }
    }
    patch
}

fn field(position: SchemaPosition<'_>, name: &str, old: &Value, new: &Value, patch: &mut Map<String, Value>) {
    let change = match (old, new) {
        (Value::Object(old), Value::Object(new)) => between(position, old, new).into(),
        (Value::Array(old), Value::Array(new)) => match merges(position) {
            None => new.clone().into(),
            Some(merge) => match merge.key {
                Some(key) => items(position.item(), &key, old, new).unwrap_or_else(|| replaced(new)),
                None => {
                    let (had, has): (HashSet<_>, HashSet<_>) = (old.iter().collect(), new.iter().collect());
                    let gone: Vec<_> = old.iter().filter(|item| !has.contains(item)).cloned().collect();
                    if !gone.is_empty() {
                        patch.insert(format!("{DELETE_FROM}/{name}"), gone.into());
                    }
                    new.iter().filter(|item| !had.contains(item)).cloned().collect()
                }
            },
        },
        (_, new) => new.clone(),
    };
    patch.insert(name.to_owned(), change);
}

/// The differing items of a list with a merge key; none when the key does not identify them.
fn items(position: SchemaPosition<'_>, key: &str, old: &[Value], new: &[Value]) -> Option<Value> {
    let (before, after) = (by_key(key, old)?, by_key(key, new)?);
    let named = |value: &Value| Map::from_iter([(key.to_owned(), value.clone())]);
    let mut changes: Vec<Value> = Vec::new();
    for item in new {
        let item = item.as_object()?;
        let id = item.get(key)?;
        match before.get(&id.to_string()) {
            Some(old) if *old == item => {}
            Some(old) => {
                let mut change = named(id);
                change.extend(between(position, old, item));
                changes.push(change.into());
            }
            None => changes.push(item.clone().into()),
        }
    }
    for (_, item) in before.iter().filter(|(id, _)| !after.contains_key(*id)) {
        let mut removal = named(item.get(key)?);
        removal.insert(PATCH.to_owned(), "delete".into());
        changes.push(removal.into());
    }
    Some(changes.into())
}

fn by_key<'a>(key: &str, list: &'a [Value]) -> Option<BTreeMap<String, &'a Map<String, Value>>> {
    let mut items = BTreeMap::new();
    for item in list {
        let item = item.as_object()?;
        let id = item.get(key).filter(|id| !id.is_null())?;
        if items.insert(id.to_string(), item).is_some() {
            return None;
        }
    }
    Some(items)
}

/// A patch that replaces the whole list.
fn replaced(items: &[Value]) -> Value {
    let marker = json!({PATCH: "replace"});
    std::iter::once(marker).chain(items.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::kinds::Kinds;
    use crate::patch::{strategic_merge_difference, strategic_merge_patch};
    use crate::schema::Schema;

    static POD: LazyLock<Schema> = LazyLock::new(|| {
        Kinds::builtin().by_kind("", "v1", "Pod").expect("a built-in kind").schema().clone()
    });

    fn status(conditions: &Value) -> Value {
        json!({"status": {"phase": "Running", "conditions": conditions}})
    }

    #[test]
    fn conditions_of_others_are_not_touched() {
        let ready = |status: &str| json!({"type": "Ready", "status": status, "reason": "R"});
        let other = json!({"type": "example.org/other", "status": "True"});
        let old = status(&json!([ready("False"), other]));
        let new = status(&json!([ready("True"), other]));
        let patch = strategic_merge_difference(&POD, &old, &new);
        assert_eq!(patch, json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
        let gone = strategic_merge_difference(&POD, &old, &status(&json!([other])));
        assert_eq!(gone, json!({"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}));
        let meanwhile = status(&json!([ready("False"), {"type": "example.org/other", "status": "False"}]));
        let merged = strategic_merge_patch(&POD, &meanwhile, &patch).unwrap();
        assert_eq!(merged["status"]["conditions"][1]["status"], "False", "what was written meanwhile stays");
    }

    #[test]
    fn lists_without_merge_key_are_replaced_as_a_whole() {
        let list = |names: &[&str]| -> Value {
            names.iter().map(|name| json!({"name": name, "image": "i"})).collect()
        };
        let (old, new) = (
            json!({"status": {"containerStatuses": list(&["a", "b"])}}),
            json!({"status": {"containerStatuses": list(&["b"])}}),
        );
        assert_eq!(strategic_merge_difference(&POD, &old, &new), new);
        let twice = json!({"status": {"conditions": [{"type": "A"}, {"type": "A"}]}});
        let patch = strategic_merge_difference(&POD, &status(&json!([])), &twice);
        assert_eq!(patch["status"]["conditions"][0], json!({"$patch": "replace"}));
    }

    /// A pod with some conditions, addresses, finalizers and labels.
    fn pods() -> impl Strategy<Value = Value> {
        let names = || proptest::collection::btree_set("[a-d]", 0..4);
        let conditions = proptest::collection::btree_map("[a-d]", proptest::option::of("[x-z]"), 0..4);
        let labels = proptest::collection::btree_map("[a-c]", "[x-z]", 0..3);
        (conditions, names(), names(), labels, proptest::option::of("[a-b]")).prop_map(
            |(conditions, addresses, finalizers, labels, phase)| {
                let conditions: Vec<Value> = conditions
                    .into_iter()
                    .map(|(kind, reason)| match reason {
                        Some(reason) => json!({"type": kind, "reason": reason}),
                        None => json!({"type": kind}),
                    })
                    .collect();
                let addresses: Vec<Value> = addresses.into_iter().map(|ip| json!({"ip": ip})).collect();
                let mut status = json!({"conditions": conditions, "podIPs": addresses});
                if let Some(phase) = phase {
                    status["phase"] = phase.into();
                }
                json!({"metadata": {"finalizers": finalizers, "labels": labels}, "status": status})
            },
        )
    }

    /// Merging does not preserve the order of lists with a merge key.
    fn sorted(mut pod: Value) -> Value {
        for list in ["/status/conditions", "/status/podIPs", "/metadata/finalizers"] {
            if let Some(Value::Array(items)) = pod.pointer_mut(list) {
                items.sort_by_key(Value::to_string);
            }
        }
        pod
    }

    proptest! {
        #[test]
        fn difference_transforms_one_state_into_the_other(old in pods(), new in pods()) {
            let patch = strategic_merge_difference(&POD, &old, &new);
            let merged = strategic_merge_patch(&POD, &old, &patch).unwrap();
            prop_assert_eq!(sorted(merged), sorted(new), "{}", patch);
        }
    }
}
