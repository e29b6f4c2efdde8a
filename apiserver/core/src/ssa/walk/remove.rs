//! Removes fields from a value.

use serde_json::{Map, Value};

use super::{Form, form, identify};
use crate::schema::types::SchemaPosition;
use crate::ssa::path::Element;
use crate::ssa::set::Set;

/// `value` without the fields and items of `set`. A container whose last part is removed becomes null, as in
/// structured-merge-diff: in a built-in type this is equivalent to absent, in a custom resource it is visible.
pub(in crate::ssa) fn remove(position: SchemaPosition<'_>, value: &Value, set: &Set) -> Value {
    match (form(position, value), value) {
        (Form::Map, Value::Object(map)) => {
            let mut out = Map::new();
            for (key, item) in map {
                let element = Element::field(key);
                if set.has(&element) {
                    continue;
                }
                let item = match set.below(&element) {
                    Some(below) => remove(position.child(key).0, item, below),
                    None => item.clone(),
                };
                out.insert(key.clone(), item);
            }
            if out.is_empty() { Value::Null } else { Value::Object(out) }
        }
        (Form::List(list), Value::Array(items)) => {
            let mut out = Vec::new();
            for item in items {
                let Ok(element) = identify(position, list, item) else {
                    out.push(item.clone());
                    continue;
                };
                if set.has(&element) {
                    continue;
                }
                out.push(match set.below(&element) {
                    Some(below) => remove(position.item(), item, below),
                    None => item.clone(),
                });
            }
            if out.is_empty() { Value::Null } else { Value::Array(out) }
        }
        // A value that is a leaf in this type cannot be owned in parts; it is removed.
        (Form::Leaf, Value::Array(_) | Value::Object(_)) => Value::Null,
        (_, scalar) => scalar.clone(),
    }
}
