//! Applies the defaults of structural schemas to custom resources.

use serde_json::{Map, Value};

use super::types::{SchemaPosition, Shape};

/// How to treat nulls that the type does not allow and for which it has no default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nulls {
    /// They are removed, as in objects sent by clients.
    Removed,
    /// They stay and validation refuses them: for results of a server-side apply, as in kube-apiserver.
    Kept,
}

/// Fills absent fields from the schema's defaults, which also replace nulls that the type does not allow.
pub(crate) fn default(position: SchemaPosition<'_>, value: &mut Value, nulls: Nulls) {
    match (&position.node().shape, value) {
        (Shape::Struct(shape), Value::Object(map)) => {
            for field in &shape.fields {
                let (child, _) = position.child(&field.name);
                fill(child, map, &field.name);
            }
            map.retain(|key, item| {
                let (child, known) = position.child(key);
                if known {
                    default(child, item, nulls);
                }
                !known || nulls == Nulls::Kept || !is_misplaced_null(child, item)
            });
        }
        (Shape::Map { .. }, Value::Object(map)) => {
            let node = position.child("").0.node();
            for item in map.values_mut() {
                if item.is_null()
                    && !node.nullable
                    && let Some(value) = &node.default
                {
                    *item = (**value).clone();
                }
                default(position.child("").0, item, nulls);
            }
            map.retain(|key, item| nulls == Nulls::Kept || !is_misplaced_null(position.child(key).0, item));
        }
        (Shape::List(_), Value::Array(items)) => {
            let node = position.item().node();
            for item in items {
                if item.is_null()
                    && !node.nullable
                    && let Some(value) = &node.default
                {
                    *item = (**value).clone();
                }
                default(position.item(), item, nulls);
            }
        }
        _ => {}
    }
}

/// A null in a custom type without `nullable`.
fn is_misplaced_null(child: SchemaPosition<'_>, item: &Value) -> bool {
    let node = child.node();
    item.is_null() && !node.nullable && node.checks.is_some()
}

fn fill(child: SchemaPosition<'_>, map: &mut Map<String, Value>, name: &str) {
    let node = child.node();
    let Some(value) = &node.default else {
        return;
    };
    match map.get(name) {
        None => {}
        Some(Value::Null) if !node.nullable => {}
        Some(_) => return,
    }
    map.insert(name.to_owned(), (**value).clone());
}
