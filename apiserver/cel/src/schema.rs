//! Types of structural schemas: how expressions see the values of a custom resource.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::escape::escape;
use crate::limits::REQUEST_BYTES_MAX;
use crate::types::{Field, ListKind, ObjectType, Type};

/// A type with the minimum JSON size of its values, from which maximum counts follow.
#[derive(Debug, Clone)]
pub(crate) struct Declared {
    pub(crate) ty: Type,
    pub(crate) bytes_min: u64,
}

/// Size of a date in JSON in bytes.
const DATE_BYTES: u64 = 12;

/// The type of a schema's values; `None` if expressions cannot see them, because the schema does not describe them.
/// `root` is set for whole objects: their type, name and name prefix are always visible.
pub(crate) fn declare(schema: &Value, root: bool) -> Option<Declared> {
    if schema["x-kubernetes-int-or-string"] == true {
        let size = schema["maxLength"].as_u64().map_or(REQUEST_BYTES_MAX - 2, |max| max.saturating_mul(4));
        return Some(Declared { ty: Type::Dyn(size), bytes_min: 1 });
    }
    match schema["type"].as_str()? {
        "array" => array(schema),
        "object" => object(schema, root),
        "string" => Some(string(schema)),
        "boolean" => Some(Declared { ty: Type::Bool, bytes_min: 4 }),
        "number" => Some(Declared { ty: Type::Double, bytes_min: 1 }),
        "integer" => Some(Declared { ty: Type::Int, bytes_min: 1 }),
        _ => None,
    }
}

fn below(schema: &Value) -> Option<Declared> {
    declare(schema, schema["x-kubernetes-embedded-resource"] == true)
}

fn array(schema: &Value) -> Option<Declared> {
    let item = below(schema.get("items")?)?;
    let size = schema["maxItems"].as_u64().unwrap_or((REQUEST_BYTES_MAX - 2) / (item.bytes_min + 1));
    Some(Declared { ty: Type::List(Arc::new(item.ty), size, list_kind(schema)), bytes_min: 2 })
}

fn list_kind(schema: &Value) -> ListKind {
    match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => ListKind::Set,
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
            ListKind::Map(keys.filter_map(Value::as_str).map(str::to_owned).collect())
        }
        _ => ListKind::Atomic,
    }
}

fn object(schema: &Value, root: bool) -> Option<Declared> {
    let additional = &schema["additionalProperties"];
    if additional.is_object() {
        let value = below(additional)?;
        let most = (REQUEST_BYTES_MAX - 2) / (value.bytes_min + 6);
        let size = schema["maxProperties"].as_u64().unwrap_or(most);
        let ty = Type::Map(Arc::new(Type::STRING), Arc::new(value.ty), size);
        return Some(Declared { ty, bytes_min: 2 });
    }
    let required = |name: &str| {
        schema["required"].as_array().is_some_and(|list| list.iter().any(|one| one.as_str() == Some(name)))
    };
    let mut fields = BTreeMap::new();
    let mut bytes_min = 2_u64;
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let Some(declared) = below(property) else { continue };
        if required(name) && property["default"].is_null() {
            bytes_min = bytes_min.saturating_add(name.len() as u64 + declared.bytes_min + 4);
        }
        if let Some(escaped) = escape(name) {
            fields.insert(escaped, Field { json: name.clone(), ty: declared.ty });
        }
    }
    if root {
        whole(&mut fields);
    }
    let name = "object".to_owned();
    Some(Declared { ty: Type::Object(Arc::new(ObjectType { fields, name })), bytes_min })
}

/// Adds the fields that every whole object has: its type, and the names in its metadata.
fn whole(fields: &mut BTreeMap<String, Field>) {
    let text = json!({"type": "string"});
    let metadata = json!({"type": "object", "properties": {"name": text, "generateName": text}});
    for (name, schema) in [("apiVersion", &text), ("kind", &text), ("metadata", &metadata)] {
        if let Some(declared) = declare(schema, false) {
            fields.insert(name.to_owned(), Field { json: name.to_owned(), ty: declared.ty });
        }
    }
}

fn string(schema: &Value) -> Declared {
    let length = schema["maxLength"].as_u64();
    let unlimited = REQUEST_BYTES_MAX - 2;
    let (ty, bytes_min) = match schema["format"].as_str().unwrap_or_default() {
        "byte" => (Type::Bytes(length.unwrap_or(unlimited)), 2),
        "duration" => (Type::Duration, 3),
        "date" => (Type::Timestamp, DATE_BYTES),
        "date-time" => (Type::Timestamp, 21),
        _ => {
            let longest = |list: &Vec<Value>| {
                list.iter().filter_map(Value::as_str).map(|text| text.len() as u64).max().unwrap_or(0)
            };
            let listed = schema["enum"].as_array().filter(|list| !list.is_empty()).map(longest);
            // The limit counts characters, which take up to four bytes each.
            let size = length.map(|max| max.saturating_mul(4)).or(listed).unwrap_or(unlimited);
            (Type::String(size), 2)
        }
    };
    Declared { ty, bytes_min }
}

/// Maximum number of values if only the request size bounds it (`maxCardinality`).
pub(crate) fn cardinality_max(declared: &Declared) -> u64 {
    REQUEST_BYTES_MAX / (declared.bytes_min + 1)
}
