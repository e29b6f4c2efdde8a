//! Finds fields of a default that its own schema would prune.

use serde_json::Value;

use crate::schema::types::{Rest, SchemaPosition, Shape};

/// Whether a value has fields that its type does not have.
pub(super) fn has_unknown_fields(place: SchemaPosition<'_>, value: &Value) -> bool {
    match (&place.node().shape, value) {
        (Shape::Struct(shape), Value::Object(map)) => map.iter().any(|(key, value)| {
            let (child, known) = place.child(key);
            let of_every_object = shape.embedded && matches!(key.as_str(), "apiVersion" | "kind");
            match known || of_every_object {
                true => has_unknown_fields(child, value),
                false => shape.rest == Rest::Pruned,
            }
        }),
        (Shape::Map { .. }, Value::Object(map)) => {
            map.iter().any(|(key, value)| has_unknown_fields(place.child(key).0, value))
        }
        (Shape::List(_), Value::Array(items)) => {
            items.iter().any(|item| has_unknown_fields(place.item(), item))
        }
        _ => false,
    }
}
