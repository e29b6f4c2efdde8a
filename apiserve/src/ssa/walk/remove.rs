//! Removing fields from a value.

use serde_json::{Map, Value};

use super::{Form, form, identify};
use crate::schema::types::Place;
use crate::ssa::path::Element;
use crate::ssa::set::Set;

/// `value` without the fields and items of `set`. Containers that become empty go with their content.
pub(in crate::ssa) fn remove(place: Place<'_>, value: &Value, set: &Set) -> Value {
    kept(place, value, set).unwrap_or_else(|| Value::Object(Map::new()))
}

fn kept(place: Place<'_>, value: &Value, set: &Set) -> Option<Value> {
    match (form(place, value), value) {
        (Form::Map, Value::Object(map)) => {
            let mut out = Map::new();
            for (key, item) in map {
                let element = Element::field(key);
                if set.has(&element) {
                    continue;
                }
                let item = match set.below(&element) {
                    Some(below) => kept(place.child(key).0, item, below),
                    None => Some(item.clone()),
                };
                if let Some(item) = item {
                    out.insert(key.clone(), item);
                }
            }
            (!out.is_empty()).then_some(Value::Object(out))
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
                match set.below(&element) {
                    Some(below) => out.extend(kept(place.item(), item, below)),
                    None => out.push(item.clone()),
                }
            }
            (!out.is_empty()).then_some(Value::Array(out))
        }
        // A whole that is named only in part does not exist in this type; it goes.
        (Form::Leaf, Value::Array(_) | Value::Object(_)) => None,
        (_, scalar) => Some(scalar.clone()),
    }
}
