//! Sets of fields, as `metadata.managedFields` records them (structured-merge-diff).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::shapes::{FieldShapes, ListShape, key_of};

/// A field, in the notation of `fieldsV1`: `f:spec`, `k:{"name":"c"}`.
pub(super) type FieldPath = Vec<String>;

/// Fields. A path that has others below it stands for the field itself.
pub(super) type FieldSet = BTreeSet<FieldPath>;

/// Stands in `fieldsV1` for the field itself when others below it are named.
const ITSELF: &str = ".";

/// Fields of metadata that no manager owns.
const UNOWNED: [&str; 10] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "generation",
    "managedFields",
    "resourceVersion",
    "generateName",
    "deletionTimestamp",
];

/// The fields of an object with their values. A container that is a field of its own has none.
pub(super) type FieldValues<'v> = BTreeMap<FieldPath, Option<&'v Value>>;

struct FieldWalk<'v> {
    shapes: FieldShapes,
    /// Whether maps and lists are fields of their own, as in a comparison, or only what is in them, as in an apply.
    containers: bool,
    found: FieldValues<'v>,
}

/// All fields of an object.
pub(super) fn field_values(shapes: FieldShapes, object: &Value, containers: bool) -> FieldValues<'_> {
    let mut walk = FieldWalk { shapes, containers, found: BTreeMap::new() };
    for (name, value) in object.as_object().into_iter().flatten() {
        if !matches!(name.as_str(), "apiVersion" | "kind") {
            walk.visit(value, &mut vec![format!("f:{name}")], &mut vec![name.as_str()]);
        }
    }
    walk.found.retain(|path, _| is_owned(path));
    walk.found
}

/// The fields that a configuration states.
pub(super) fn stated(shapes: FieldShapes, config: &Value) -> FieldSet {
    field_values(shapes, config, false).into_keys().collect()
}

fn is_owned(path: &FieldPath) -> bool {
    match path.as_slice() {
        [only] => only != "f:metadata",
        [first, second, ..] if first == "f:metadata" => {
            second.strip_prefix("f:").is_none_or(|name| !UNOWNED.contains(&name))
        }
        _ => true,
    }
}

impl<'v> FieldWalk<'v> {
    fn visit(&mut self, value: &'v Value, path: &mut FieldPath, names: &mut Vec<&'v str>) {
        match value {
            Value::Object(members) if !members.is_empty() && !self.shapes.is_whole_map(names) => {
                if self.containers && !self.shapes.is_always_there(names) {
                    self.found.insert(path.clone(), None);
                }
                for (name, member) in members {
                    path.push(format!("f:{name}"));
                    names.push(name);
                    self.visit(member, path, names);
                    names.pop();
                    path.pop();
                }
            }
            Value::Array(items) if !items.is_empty() => self.visit_list(value, items, path, names),
            leaf => drop(self.found.insert(path.clone(), Some(leaf))),
        }
    }

    fn visit_list(
        &mut self,
        list: &'v Value,
        items: &'v [Value],
        path: &mut FieldPath,
        names: &mut Vec<&'v str>,
    ) {
        let shape = self.shapes.list(names);
        if shape == ListShape::Whole {
            self.found.insert(path.clone(), Some(list));
            return;
        }
        if self.containers && !self.shapes.is_always_there(names) {
            self.found.insert(path.clone(), None);
        }
        for item in items {
            path.push(element(item, shape));
            self.found.insert(path.clone(), None);
            if let (ListShape::Keyed(_), Some(members)) = (shape, item.as_object()) {
                for (name, member) in members {
                    path.push(format!("f:{name}"));
                    names.push(name);
                    self.visit(member, path, names);
                    names.pop();
                    path.pop();
                }
            }
            path.pop();
        }
    }
}

/// The path element of an item.
pub(super) fn element(item: &Value, shape: ListShape) -> String {
    match shape {
        ListShape::Keyed(keys) => format!("k:{}", key_of(item, keys)),
        ListShape::Set | ListShape::Whole => format!("v:{item}"),
    }
}

/// What a write has changed.
#[derive(Debug, Default)]
pub(super) struct FieldChanges {
    /// Fields that are new or have another value.
    pub(super) set: FieldSet,
    pub(super) removed: FieldSet,
}

/// Compares two states of an object.
pub(super) fn compare(shapes: FieldShapes, old: &Value, new: &Value) -> FieldChanges {
    let (old, new) = (field_values(shapes, old, true), field_values(shapes, new, true));
    let mut changes = FieldChanges::default();
    for (path, value) in &new {
        if old.get(path) != Some(value) {
            changes.set.insert(path.clone());
        }
    }
    changes.removed = old.into_keys().filter(|path| !new.contains_key(path)).collect();
    changes
}

/// A set as `fieldsV1`.
pub(super) fn to_fields_v1(set: &FieldSet) -> Value {
    let mut root = Map::new();
    for path in set {
        insert(&mut root, path);
    }
    Value::Object(root)
}

/// Paths come in order, so a field comes before those below it.
fn insert(node: &mut Map<String, Value>, path: &[String]) {
    let Some((first, rest)) = path.split_first() else { return };
    let is_new = !node.contains_key(first);
    let child = node.entry(first.clone()).or_insert_with(|| json!({}));
    let Value::Object(members) = child else { return };
    if !is_new && members.is_empty() && !rest.is_empty() {
        members.insert(ITSELF.to_owned(), json!({}));
    }
    insert(members, rest);
}

/// Reads `fieldsV1`.
pub(super) fn from_fields_v1(fields: &Value) -> FieldSet {
    fn read(node: &Value, path: &mut FieldPath, set: &mut FieldSet) {
        let members = node.as_object().into_iter().flatten();
        let mut is_leaf = true;
        for (name, below) in members {
            is_leaf = false;
            if name == ITSELF {
                set.insert(path.clone());
                continue;
            }
            path.push(name.clone());
            read(below, path, set);
            path.pop();
        }
        if is_leaf && !path.is_empty() {
            set.insert(path.clone());
        }
    }
    let mut set = FieldSet::new();
    read(fields, &mut Vec::new(), &mut set);
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILT_IN: FieldShapes = FieldShapes { built_in: true };

    #[test]
    fn what_a_configuration_states_is_written_as_an_api_server_writes_it() {
        let config = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {
                "name": "d", "labels": {"a": "b"}, "finalizers": ["x/y"],
                "ownerReferences": [{"uid": "u", "name": "n"}],
            },
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"spec": {"containers": [
                    {"name": "c", "ports": [{"containerPort": 80}], "resources": {}},
                ]}},
            },
        });
        let fields = to_fields_v1(&stated(BUILT_IN, &config));
        let expected = json!({
            "f:metadata": {
                "f:labels": {"f:a": {}}, "f:finalizers": {"v:\"x/y\"": {}},
                "f:ownerReferences": {"k:{\"uid\":\"u\"}": {".": {}, "f:name": {}, "f:uid": {}}},
            },
            "f:spec": {
                "f:selector": {},
                "f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {
                    ".": {}, "f:name": {}, "f:resources": {},
                    "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
                }}}},
            },
        });
        assert_eq!(fields, expected);
        assert_eq!(to_fields_v1(&from_fields_v1(&fields)), fields);
    }

    #[test]
    fn a_comparison_names_what_is_new_other_or_gone() {
        let old = json!({"metadata": {"labels": {"a": "1", "b": "1"}}, "data": {"x": "1"}});
        let new = json!({"metadata": {"labels": {"a": "1", "b": "2"}, "annotations": {"n": ""}}});
        let changes = compare(BUILT_IN, &old, &new);
        let path = |text: &str| -> FieldPath { text.split('/').map(|part| format!("f:{part}")).collect() };
        assert_eq!(
            changes.set,
            FieldSet::from([
                path("metadata/annotations"),
                path("metadata/annotations/n"),
                path("metadata/labels/b")
            ])
        );
        assert_eq!(changes.removed, FieldSet::from([path("data"), path("data/x")]));
    }
}
