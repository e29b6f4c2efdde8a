//! Field managers: who owns which fields of an object, and server-side apply.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::fields::{FieldPath, FieldSet, compare, element, from_fields_v1, stated, to_fields_v1};
use super::object;
use super::shapes::{FieldShapes, ListShape, key_of};

/// Identity of an entry of `managedFields`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ManagerId {
    /// `Apply` or `Update`: in this order the entries are written.
    pub(super) operation: String,
    pub(super) name: String,
    pub(super) api_version: String,
    pub(super) subresource: String,
}

impl ManagerId {
    /// The manager as a refusal names it.
    pub(super) fn shown(&self) -> String {
        match self.operation.as_str() {
            "Apply" => format!("{:?}", self.name),
            _ => format!("{:?} using {}", self.name, self.api_version),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct ManagedEntry {
    fields: FieldSet,
    time: String,
}

/// All managers of an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct FieldManagers(BTreeMap<ManagerId, ManagedEntry>);

/// Fields that others own and that an apply would change: each manager with its fields.
pub(super) type FieldConflicts = Vec<(ManagerId, FieldSet)>;

impl FieldManagers {
    pub(super) fn of(object: &Value) -> Self {
        let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
        let read = entries.map(|entry| {
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            let id = ManagerId {
                operation: text("operation"),
                name: text("manager"),
                api_version: text("apiVersion"),
                subresource: text("subresource"),
            };
            (id, ManagedEntry { fields: from_fields_v1(&entry["fieldsV1"]), time: text("time") })
        });
        Self(read.collect())
    }

    /// Writes the managers into an object; none removes the member.
    pub(super) fn write(&self, object: &mut Value) {
        let metadata = object::metadata(object);
        if self.0.is_empty() {
            metadata.remove("managedFields");
            return;
        }
        let entries = self.0.iter().map(|(id, entry)| {
            let mut written = json!({
                "manager": id.name, "operation": id.operation, "apiVersion": id.api_version,
                "fieldsType": "FieldsV1", "fieldsV1": to_fields_v1(&entry.fields),
            });
            if !entry.time.is_empty() {
                written["time"] = entry.time.clone().into();
            }
            if !id.subresource.is_empty() {
                written["subresource"] = id.subresource.clone().into();
            }
            written
        });
        metadata.insert("managedFields".to_owned(), entries.collect());
    }

    /// Records an update by a manager.
    pub(super) fn update(
        &mut self,
        shapes: FieldShapes,
        (old, new): (&Value, &Value),
        id: &ManagerId,
        time: &str,
    ) {
        let changes = compare(shapes, old, new);
        if changes.set.is_empty() && changes.removed.is_empty() {
            return;
        }
        for (other, entry) in &mut self.0 {
            let is_same = other == id;
            entry
                .fields
                .retain(|path| !changes.removed.contains(path) && (is_same || !changes.set.contains(path)));
        }
        if !changes.set.is_empty() {
            let own = ManagedEntry { fields: FieldSet::new(), time: time.to_owned() };
            let own = self.0.entry(id.clone()).or_insert(own);
            own.fields.extend(changes.set);
            time.clone_into(&mut own.time);
        }
        self.0.retain(|_, entry| !entry.fields.is_empty());
    }

    /// Applies a configuration to an object as it is now. Returns the merged object; the managers are those after it.
    ///
    /// # Errors
    /// The fields that others own, unless the apply is forced.
    pub(super) fn apply(
        &mut self,
        shapes: FieldShapes,
        (live, config): (&Value, &Value),
        id: &ManagerId,
        (time, force): (&str, bool),
    ) -> Result<Value, FieldConflicts> {
        let wanted = stated(shapes, config);
        let before = self.0.get(id).map(|entry| entry.fields.clone()).unwrap_or_default();
        let mut merged = live.clone();
        merge(shapes, &mut merged, config, &mut Vec::new());
        self.remove_dropped(shapes, &mut merged, before.difference(&wanted), id);
        let changes = compare(shapes, live, &merged);
        let conflicts: FieldConflicts = self
            .0
            .iter()
            .filter(|(other, _)| *other != id)
            .map(|(other, entry)| (other.clone(), entry.fields.intersection(&changes.set).cloned().collect()))
            .filter(|(_, fields): &(ManagerId, FieldSet)| !fields.is_empty())
            .collect();
        if !conflicts.is_empty() && !force {
            return Err(conflicts);
        }
        for (other, entry) in &mut self.0 {
            let is_same = other == id;
            entry
                .fields
                .retain(|path| is_same || !(changes.set.contains(path) || changes.removed.contains(path)));
        }
        let is_same = before == wanted && changes.set.is_empty() && changes.removed.is_empty();
        if !is_same {
            self.0.insert(id.clone(), ManagedEntry { fields: wanted, time: time.to_owned() });
        }
        self.0.retain(|_, entry| !entry.fields.is_empty());
        Ok(merged)
    }

    /// Removes what the applier owned and no longer states, unless another manager owns it as well.
    fn remove_dropped<'p>(
        &self,
        shapes: FieldShapes,
        merged: &mut Value,
        dropped: impl Iterator<Item = &'p FieldPath>,
        id: &ManagerId,
    ) {
        let others: Vec<&FieldSet> =
            self.0.iter().filter(|(other, _)| *other != id).map(|(_, entry)| &entry.fields).collect();
        let is_kept = |path: &FieldPath| {
            others
                .iter()
                .any(|fields| fields.range(path.clone()..).next().is_some_and(|next| next.starts_with(path)))
        };
        // The deepest first, so that a container is empty when its own turn comes.
        let mut dropped: Vec<&FieldPath> = dropped.filter(|path| !is_kept(path)).collect();
        dropped.sort_by_key(|path| std::cmp::Reverse(path.len()));
        for path in dropped {
            remove(shapes, merged, path, &mut Vec::new());
        }
    }
}

/// Merges a configuration into an object.
fn merge<'c>(shapes: FieldShapes, live: &mut Value, config: &'c Value, names: &mut Vec<&'c str>) {
    match config {
        Value::Object(stated) if !stated.is_empty() && !shapes.is_whole_map(names) => {
            if !live.is_object() {
                *live = json!({});
            }
            for (name, value) in stated {
                names.push(name);
                merge(shapes, &mut live[name.as_str()], value, names);
                names.pop();
            }
        }
        Value::Array(stated) if live.is_array() => match shapes.list(names) {
            ListShape::Whole => *live = config.clone(),
            shape => merge_list(shapes, live, (stated, shape), names),
        },
        // An empty map or list says that there is one, and removes nothing from it.
        Value::Object(stated) if stated.is_empty() && live.is_object() => {
            if shapes.is_whole_map(names) {
                *live = config.clone();
            }
        }
        _ => *live = config.clone(),
    }
}

/// Items that only the object has stay before the ones that they were before.
fn merge_list<'c>(
    shapes: FieldShapes,
    live: &mut Value,
    (stated, shape): (&'c [Value], ListShape),
    names: &mut Vec<&'c str>,
) {
    let mut left = live.as_array().cloned().unwrap_or_default();
    let mut merged = Vec::new();
    let wanted: Vec<String> = stated.iter().map(|item| element(item, shape)).collect();
    for (item, place) in stated.iter().zip(&wanted) {
        match left.iter().position(|one| element(one, shape) == *place) {
            Some(at) => {
                let mut before: Vec<Value> = left.drain(..=at).collect();
                let mut found = before.pop().unwrap_or_default();
                let (shared, alone): (Vec<Value>, Vec<Value>) =
                    before.into_iter().partition(|one| wanted.contains(&element(one, shape)));
                merged.extend(alone);
                left.splice(0..0, shared);
                merge(shapes, &mut found, item, names);
                merged.push(found);
            }
            None => merged.push(item.clone()),
        }
    }
    merged.append(&mut left);
    *live = Value::Array(merged);
}

/// Removes one field, and containers that become empty by it.
fn remove(shapes: FieldShapes, value: &mut Value, path: &[String], names: &mut Vec<String>) {
    let Some((first, rest)) = path.split_first() else { return };
    if let Some(name) = first.strip_prefix("f:") {
        let Some(members) = value.as_object_mut() else { return };
        if rest.is_empty() {
            members.remove(name);
            return;
        }
        let Some(below) = members.get_mut(name) else { return };
        names.push(name.to_owned());
        remove(shapes, below, rest, names);
        names.pop();
        if is_empty(below) {
            members.remove(name);
        }
        return;
    }
    let borrowed: Vec<&str> = names.iter().map(String::as_str).collect();
    let shape = shapes.list(&borrowed);
    let Some(items) = value.as_array_mut() else { return };
    let Some(at) = items.iter().position(|item| element(item, shape) == *first) else { return };
    if rest.is_empty() {
        items.remove(at);
    } else if !is_key(&items[at], shape, rest) {
        remove(shapes, &mut items[at], rest, names);
    }
}

/// Whether a path below an item leads to a part of its key: without it the item could not be found again.
fn is_key(item: &Value, shape: ListShape, rest: &[String]) -> bool {
    let ListShape::Keyed(keys) = shape else { return false };
    let key = key_of(item, keys);
    match rest {
        [only] => only.strip_prefix("f:").is_some_and(|name| key.get(name).is_some()),
        _ => false,
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

#[cfg(test)]
mod tests;
