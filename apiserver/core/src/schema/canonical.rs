//! The form in which the Go types would write an object: zero values are omitted or written, times and quantities have
//! one spelling. Clients compare what they sent with what they read, so the form matters.

use serde_json::{Map, Value};

use super::format::{self, Quantity};
use super::types::{Presence, SchemaPosition, Shape, StringKind, StructShape};

/// Brings a decoded object of a built-in type into canonical form. Idempotent.
pub(crate) fn canonical(position: SchemaPosition<'_>, value: &mut Value) {
    match (&position.node().shape, value) {
        (Shape::Struct(shape), Value::Object(map)) => fields(position, shape, map),
        (Shape::Map { .. }, Value::Object(map)) => {
            for (key, item) in map.iter_mut() {
                canonical(position.child(key).0, item);
            }
        }
        (Shape::List(_), Value::Array(items)) => {
            for item in items {
                canonical(position.item(), item);
            }
        }
        (Shape::String(kind), Value::String(text)) => {
            let spelled = match kind {
                StringKind::Time => format::time(text),
                StringKind::MicroTime => format::micro_time(text),
                StringKind::Plain | StringKind::Bytes => None,
            };
            if let Some(spelled) = spelled {
                *text = spelled;
            }
        }
        (Shape::Quantity, Value::String(text)) => {
            if let Ok(quantity) = Quantity::parse(text) {
                *text = quantity.to_string();
            }
        }
        _ => {}
    }
}

fn fields(position: SchemaPosition<'_>, shape: &StructShape, map: &mut Map<String, Value>) {
    for field in &shape.fields {
        let (child, _) = position.child(&field.name);
        match map.get_mut(field.name.as_ref()) {
            Some(Value::Null) | None => match field.presence {
                Presence::Emit => {
                    map.insert(field.name.to_string(), zero(child));
                }
                Presence::Null => {
                    map.insert(field.name.to_string(), Value::Null);
                }
                Presence::Keep | Presence::Omit => {
                    map.remove(field.name.as_ref());
                }
            },
            Some(value) => {
                canonical(child, value);
                if field.presence == Presence::Omit && is_zero(child, value) {
                    map.remove(field.name.as_ref());
                }
            }
        }
    }
}

fn zero(position: SchemaPosition<'_>) -> Value {
    match &position.node().shape {
        Shape::Bool => Value::Bool(false),
        Shape::Integer { .. } | Shape::Number | Shape::IntOrString => 0.into(),
        Shape::String(_) => "".into(),
        Shape::Quantity => "0".into(),
        Shape::Struct(_) => {
            let mut value = Value::Object(Map::new());
            canonical(position, &mut value);
            value
        }
        Shape::Map { .. } | Shape::List(_) | Shape::Any { .. } => Value::Null,
    }
}

/// Whether Go's JSON encoder treats a value as the zero value of its type.
pub(crate) fn is_zero(position: SchemaPosition<'_>, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => match &position.node().shape {
            Shape::Struct(_) => *value == zero(position),
            _ => map.is_empty(),
        },
    }
}
