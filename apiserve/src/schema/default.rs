//! Defaults of structural schemas, put into objects of custom resources.

use serde_json::{Map, Value};

use super::types::{Place, Shape};

/// Fills absent fields from the schema's defaults, and replaces nulls that the type does not allow.
pub(crate) fn default(place: Place<'_>, value: &mut Value) {
    match (&place.node().shape, value) {
        (Shape::Struct(shape), Value::Object(map)) => {
            for field in &shape.fields {
                let (child, _) = place.child(&field.name);
                fill(child, map, &field.name);
            }
            for (key, item) in map.iter_mut() {
                let (child, known) = place.child(key);
                if known {
                    default(child, item);
                }
            }
        }
        (Shape::Map { .. }, Value::Object(map)) => {
            let node = place.child("").0.node();
            for item in map.values_mut() {
                if item.is_null()
                    && !node.nullable
                    && let Some(value) = &node.default
                {
                    *item = (**value).clone();
                }
                default(place.child("").0, item);
            }
        }
        (Shape::List(_), Value::Array(items)) => {
            let node = place.item().node();
            for item in items {
                if item.is_null()
                    && !node.nullable
                    && let Some(value) = &node.default
                {
                    *item = (**value).clone();
                }
                default(place.item(), item);
            }
        }
        _ => {}
    }
}

fn fill(child: Place<'_>, map: &mut Map<String, Value>, name: &str) {
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
