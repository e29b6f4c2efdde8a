//! Finds fields of a default that its own schema would prune.

use serde_json::Value;

use crate::schema::types::{Rest, SchemaPosition, Shape};

/// Whether a value has fields that its type does not have.
pub(super) fn has_unknown_fields(position: SchemaPosition<'_>, value: &Value) -> bool {
    match (&position.node().shape, value) {
        (Shape::Struct(shape), Value::Object(map)) => map.iter().any(|(key, value)| {
            let (child, known) = position.child(key);
            let of_every_object = shape.embedded && matches!(key.as_str(), "apiVersion" | "kind");
            match known || of_every_object {
                true => has_unknown_fields(child, value),
                false => shape.rest == Rest::Pruned,
            }
        }),
        (Shape::Map { .. }, Value::Object(map)) => {
            map.iter().any(|(key, value)| has_unknown_fields(position.child(key).0, value))
        }
        (Shape::List(_), Value::Array(items)) => {
            items.iter().any(|item| has_unknown_fields(position.item(), item))
        }
        _ => false,
    }
}
