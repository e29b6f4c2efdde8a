//! The schema of a custom kind as clients see it.

use serde_json::{Map, Value, json};

use super::descriptions::Descriptions;
use super::dialect::Dialect;
use super::type_names::{group_version_kind, metadata};
use crate::kinds::KindInfo;
use crate::kinds::custom::Custom;

/// The keyword that allows any fields.
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

/// Keywords that Swagger 2.0 does not have.
const ABSENT_IN_V2: [&str; 4] = ["allOf", "anyOf", "oneOf", "not"];

/// The published schema: the schema of the definition, the fields that every object has, and the group, version and
/// kind.
pub(super) fn schema(
    kind: &KindInfo,
    definition: &Custom,
    dialect: Dialect,
    descriptions: &Descriptions,
) -> Value {
    let written = &definition.openapi;
    let mut schema = match dialect {
        // With any property, kubectl would refuse the fields that the schema does not name.
        Dialect::V2 if written[PRESERVE] == true => json!({"type": "object"}),
        _ => of_object(written, dialect, descriptions),
    };
    schema["x-kubernetes-group-version-kind"] = json!([group_version_kind(kind)]);
    let fields: Vec<Value> = definition.selectable_fields().map(|path| json!({"fieldPath": path})).collect();
    if !fields.is_empty() {
        schema["x-kubernetes-selectable-fields"] = fields.into();
    }
    schema
}

/// The schema of a whole object.
fn of_object(written: &Value, dialect: Dialect, descriptions: &Descriptions) -> Value {
    let mut schema = published(written, dialect, descriptions);
    if let Value::Object(map) = &mut schema {
        add_object_fields(map, dialect, descriptions);
    }
    schema
}

fn add_object_fields(schema: &mut Map<String, Value>, dialect: Dialect, descriptions: &Descriptions) {
    let slot = schema.entry("properties").or_insert_with(|| json!({}));
    let Value::Object(properties) = slot else { return };
    for name in ["apiVersion", "kind"] {
        let text = descriptions.of_object(name);
        properties.insert(name.to_owned(), json!({"type": "string", "description": text}));
    }
    properties.insert("metadata".to_owned(), metadata(dialect, descriptions));
}

/// Converts a schema and its subschemas to a dialect.
fn published(written: &Value, dialect: Dialect, descriptions: &Descriptions) -> Value {
    let Value::Object(map) = written else { return written.clone() };
    let mut schema = Map::new();
    for (key, value) in map {
        let within = match key.as_str() {
            "properties" => each(value, dialect, descriptions),
            "items" | "additionalProperties" => published(value, dialect, descriptions),
            _ => value.clone(),
        };
        if !is_empty(&within) || matches!(key.as_str(), "default" | "example" | "items") {
            schema.insert(key.clone(), within);
        }
    }
    if dialect == Dialect::V2 {
        prune(written, &mut schema);
    }
    let any_fields = dialect == Dialect::V2 && written[PRESERVE] == true;
    if written["x-kubernetes-embedded-resource"] == true && !any_fields {
        add_object_fields(&mut schema, dialect, descriptions);
        require(&mut schema, &["kind", "apiVersion"]);
    }
    Value::Object(schema)
}

fn each(properties: &Value, dialect: Dialect, descriptions: &Descriptions) -> Value {
    let Value::Object(properties) = properties else { return properties.clone() };
    properties.iter().map(|(name, schema)| (name.clone(), published(schema, dialect, descriptions))).collect()
}

/// Whether a value is empty. Clients that read and write documents drop empty values and expect the same of others.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// Removes what Swagger 2.0 cannot express and what kubectl's reader refuses, as kube-apiserver does.
fn prune(written: &Value, schema: &mut Map<String, Value>) {
    for keyword in ABSENT_IN_V2 {
        schema.remove(keyword);
    }
    let (nullable, preserve) = (written["nullable"] == true, written[PRESERVE] == true);
    if nullable || preserve {
        schema.remove("items");
        schema.remove("properties");
    }
    if nullable {
        schema.remove("nullable");
        schema.remove("type");
    }
    let untyped_list = schema.get("type") == Some(&json!("array")) && !schema.contains_key("items");
    if untyped_list || (preserve && schema.get("type") == Some(&json!("object"))) {
        schema.remove("type");
    }
    // A nullable field cannot be required, because Swagger 2.0 does not know null.
    let is_nullable =
        |name: &Value| written["properties"][name.as_str().unwrap_or_default()]["nullable"] == true;
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| !is_nullable(name));
        if required.is_empty() || written["additionalProperties"]["nullable"] == true {
            schema.remove("required");
        }
    }
}

fn require(schema: &mut Map<String, Value>, names: &[&str]) {
    let slot = schema.entry("required").or_insert_with(|| json!([]));
    let Value::Array(required) = slot else { return };
    for name in names {
        if !required.iter().any(|known| known == name) {
            required.push((*name).into());
        }
    }
}
