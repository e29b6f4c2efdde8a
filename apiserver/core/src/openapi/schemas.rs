//! Component schemas: built-in types from the arena, custom ones from their definitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::descriptions::Descriptions;
use super::dialect::Dialect;
use super::published;
use super::type_names::{INT_OR_STRING, METADATA, QUANTITY, full_name, group_version_kind, schema_name};
use crate::kinds::{KindInfo, Kinds};
use crate::schema::types::{
    Field, ListShape, NodeId, Presence, Rest, Shape, StringKind, StructShape, Topology, Types,
};

/// The schemas that the kinds need, by name.
pub(super) fn schemas<'a>(
    kinds: &Kinds,
    served: impl IntoIterator<Item = &'a Arc<KindInfo>>,
    dialect: Dialect,
) -> BTreeMap<String, Value> {
    // Version 2 is one document that is kept in memory, so it has only the common descriptions.
    let descriptions = match dialect {
        Dialect::V2 => Descriptions::default(),
        Dialect::V3 => Descriptions::of(kinds),
    };
    let types = kinds.builtin_types();
    let mut writer = SchemaWriter { types, dialect, descriptions, done: BTreeMap::new() };
    let mut own = BTreeMap::new();
    for kind in served {
        match custom(kind, dialect, &writer.descriptions) {
            Some(schema) => {
                writer.reference(METADATA);
                own.insert(schema_name(kind), schema);
            }
            None => writer.kind(kind),
        }
    }
    writer.done.extend(own);
    writer.done
}

/// The schema of a custom kind. Its only reference is to the metadata of objects.
pub(super) fn custom(kind: &KindInfo, dialect: Dialect, descriptions: &Descriptions) -> Option<Value> {
    Some(published::schema(kind, kind.definition()?, dialect, descriptions))
}

struct SchemaWriter<'a> {
    types: &'a Types,
    dialect: Dialect,
    descriptions: Descriptions,
    done: BTreeMap<String, Value>,
}

impl SchemaWriter<'_> {
    fn kind(&mut self, kind: &KindInfo) {
        let id = kind.schema().cursor().id();
        let Some(name) = self.types.node(id).name.as_deref().map(full_name) else { return };
        self.named(id);
        if let Some(Value::Object(schema)) = self.done.get_mut(&name) {
            let list = schema.entry("x-kubernetes-group-version-kind").or_insert_with(|| json!([]));
            if let Value::Array(list) = list {
                list.push(group_version_kind(kind));
            }
        }
    }

    fn reference(&mut self, short: &str) -> Value {
        if let Some(id) = self.types.named(short) {
            self.named(id);
        }
        self.dialect.property(&full_name(short))
    }

    /// Writes a named struct and everything that it refers to, once.
    fn named(&mut self, id: NodeId) {
        let node = self.types.node(id);
        let (Some(name), Shape::Struct(shape)) = (node.name.as_deref().map(full_name), &node.shape) else {
            return;
        };
        if self.done.contains_key(&name) {
            return;
        }
        // The name is reserved first, because types may refer to themselves.
        self.done.insert(name.clone(), Value::Null);
        let mut schema = self.structure(shape);
        self.descriptions.describe(&name, node.name.as_deref().unwrap_or_default(), &mut schema);
        unwrap_references(&mut schema);
        self.done.insert(name, schema);
    }

    fn structure(&mut self, shape: &StructShape) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in &shape.fields {
            properties.insert(field.name.to_string(), self.field(field));
            if field.required {
                required.push(field.name.to_string());
            }
        }
        let mut schema = Map::new();
        schema.insert("type".into(), "object".into());
        if !properties.is_empty() {
            schema.insert("properties".into(), Value::Object(properties));
        }
        if !required.is_empty() {
            schema.insert("required".into(), required.into());
        }
        if shape.atomic {
            schema.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        if shape.rest == Rest::Kept {
            schema.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
        }
        Value::Object(schema)
    }

    fn field(&mut self, field: &Field) -> Value {
        let mut schema = self.schema(field.node);
        let Value::Object(map) = &mut schema else { return schema };
        let stated = field.default.as_deref().and_then(|json| serde_json::from_str(json).ok());
        let written = || self.zero(field.node).filter(|_| field.presence == Presence::Emit);
        if let Some(default) = stated.or_else(written) {
            map.insert("default".into(), default);
        }
        if field.retain_keys {
            let strategy = match map.contains_key("x-kubernetes-patch-strategy") {
                true => "merge,retainKeys",
                false => "retainKeys",
            };
            map.insert("x-kubernetes-patch-strategy".into(), strategy.into());
        }
        schema
    }

    fn schema(&mut self, id: NodeId) -> Value {
        let node = self.types.node(id);
        match &node.shape {
            Shape::Any { .. } => self.dialect.anything(),
            Shape::Bool => json!({"type": "boolean"}),
            Shape::Integer { bits } => json!({"type": "integer", "format": format!("int{bits}")}),
            Shape::Number => json!({"type": "number", "format": "double"}),
            Shape::String(StringKind::Plain) => json!({"type": "string"}),
            Shape::String(StringKind::Bytes) => json!({"type": "string", "format": "byte"}),
            Shape::String(kind) => {
                let time = json!({"type": "string", "format": "date-time"});
                self.scalar(
                    if *kind == StringKind::Time { "meta.v1.Time" } else { "meta.v1.MicroTime" },
                    time,
                )
            }
            Shape::IntOrString => self.scalar(INT_OR_STRING, self.dialect.int_or_string()),
            Shape::Quantity => self.scalar(QUANTITY, self.dialect.quantity()),
            Shape::Struct(shape) => match node.name.as_deref() {
                Some(name) => self.reference(name),
                None => self.structure(shape),
            },
            Shape::Map { value, atomic } => {
                let mut schema = json!({"type": "object", "additionalProperties": self.item(*value)});
                if let Some(Value::Object(value)) = schema.get_mut("additionalProperties") {
                    // Lists within maps have no list type.
                    value.remove("x-kubernetes-list-type");
                }
                if *atomic {
                    schema["x-kubernetes-map-type"] = "atomic".into();
                }
                schema
            }
            Shape::List(list) => self.list(list),
        }
    }

    /// A scalar that has its own name in version 3.
    fn scalar(&mut self, short: &str, schema: Value) -> Value {
        if self.dialect == Dialect::V2 {
            return schema;
        }
        let name = full_name(short);
        if !self.done.contains_key(&name) {
            let mut schema = schema;
            self.descriptions.describe(&name, short, &mut schema);
            self.done.insert(name.clone(), schema);
        }
        self.dialect.property(&name)
    }

    /// An item of a list or a value of a map.
    fn item(&mut self, id: NodeId) -> Value {
        let mut schema = self.schema(id);
        if let Some(zero) = self.zero(id) {
            schema["default"] = zero;
        }
        schema
    }

    /// The default that version 3 states for a value that Go always writes.
    fn zero(&self, id: NodeId) -> Option<Value> {
        if self.dialect == Dialect::V2 {
            return None;
        }
        match &self.types.node(id).shape {
            Shape::Bool => Some(false.into()),
            Shape::Integer { .. } | Shape::Number => Some(0.into()),
            Shape::String(StringKind::Plain) => Some("".into()),
            Shape::Struct(_) => Some(json!({})),
            _ => None,
        }
    }

    fn list(&mut self, list: &ListShape) -> Value {
        let mut schema = json!({"type": "array", "items": self.item(list.item)});
        match &list.topology {
            Topology::Atomic => schema["x-kubernetes-list-type"] = "atomic".into(),
            Topology::Set => schema["x-kubernetes-list-type"] = "set".into(),
            Topology::Map(keys) => {
                let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
                schema["x-kubernetes-list-type"] = "map".into();
                schema["x-kubernetes-list-map-keys"] = keys.into();
            }
        }
        if let Some(merge) = &list.merge {
            schema["x-kubernetes-patch-strategy"] = "merge".into();
            if let Some(key) = &merge.key {
                schema["x-kubernetes-patch-merge-key"] = key.to_string().into();
            }
        }
        schema
    }
}

/// Unwraps references that have no other keywords beside them.
fn unwrap_references(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    let alone = map.len() == 1;
    if let Some(Value::Array(list)) = map.get_mut("allOf").filter(|_| alone)
        && let [reference] = list.as_mut_slice()
    {
        *schema = reference.take();
        return;
    }
    for key in ["items", "additionalProperties"] {
        map.get_mut(key).into_iter().for_each(unwrap_references);
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(unwrap_references);
    }
}
