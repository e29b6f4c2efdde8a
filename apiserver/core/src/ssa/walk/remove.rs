//! Removing fields from a value.

use serde_json::{Map, Value};

use super::{Form, form, identify};
use crate::schema::types::Place;
use crate::ssa::path::Element;
use crate::ssa::set::Set;

/// `value` without the fields and items of `set`. A container whose last part goes is null, as structured-merge-diff
/// has it: of a built-in type that is as good as absent, in a custom resource it can be seen.
pub(in crate::ssa) fn remove(place: Place<'_>, value: &Value, set: &Set) -> Value {
    match (form(place, value), value) {
        (Form::Map, Value::Object(map)) => {
            let mut out = Map::new();
            for (key, item) in map {
                let element = Element::field(key);
                if set.has(&element) {
                    continue;
                }
                let item = match set.below(&element) {
                    Some(below) => remove(place.child(key).0, item, below),
                    None => item.clone(),
                };
                out.insert(key.clone(), item);
            }
            if out.is_empty() { Value::Null } else { Value::Object(out) }
        }
        (Form::List(list), Value::Array(items)) => {
            let mut out = Vec::new();
            for item in items {
                let Ok(element) = identify(place, list, item) else {
                    out.push(item.clone());
                    continue;
                };
                if set.has(&element) {
                    continue;
                }
                out.push(match set.below(&element) {
                    Some(below) => remove(place.item(), item, below),
                    None => item.clone(),
                });
            }
            if out.is_empty() { Value::Null } else { Value::Array(out) }
        }
        // A whole that is named only in part does not exist in this type; it goes.
        (Form::Leaf, Value::Array(_) | Value::Object(_)) => Value::Null,
        (_, scalar) => scalar.clone(),
    }
}
