//! Compiles the structural schema of a CustomResourceDefinition to types.

mod extensions;
mod unknown;
mod values;

use serde_json::{Map, Value};

use super::Schema;
use super::node_checks::JsonType;
use super::rules::Scope;
use super::types::{
    Field, ListShape, Name, Node, NodeId, Presence, Rest, SchemaPosition, Shape, StringKind, StructShape,
    Topology, Types,
};
use crate::field_error::{CAUSES_MAX, FieldError};

/// Keywords that structural schemas may not use.
const REFUSED: &[(&str, &str)] = &[
    ("$ref", "$ref is not supported"),
    ("definitions", "definitions is not supported"),
    ("dependencies", "dependencies is not supported"),
    ("patternProperties", "patternProperties is not supported"),
    ("additionalItems", "additionalItems is not supported"),
    ("id", "id is not supported"),
];

/// Compiles `openAPIV3Schema`. `path` is its path in the definition, for errors; `metadata` is the arena that contains
/// `meta.v1.ObjectMeta`.
///
/// # Errors
/// Every incorrectly used keyword, and every rule that cannot be evaluated here.
pub(crate) fn compile(schema: &Value, path: &str, metadata: &Types) -> Result<Schema, Vec<FieldError>> {
    let mut compiler = Compiler {
        types: Types::default(),
        metadata,
        errors: Vec::new(),
        scope: Scope::default(),
        has_dialect: false,
    };
    let root = compiler.root(schema, path);
    if compiler.has_dialect {
        compiler.errors.push(FieldError::invalid(path, "", "OpenAPIV3Schema 'schema' is not supported"));
    }
    let wrong_rules = compiler.scope.finish(path);
    compiler.errors.extend(wrong_rules);
    if compiler.errors.is_empty() {
        compiler.defaults_fit(root, schema, path);
    }
    if compiler.errors.is_empty() {
        return Ok(Schema::new(std::sync::Arc::new(compiler.types), root));
    }
    compiler.errors.truncate(CAUSES_MAX);
    Err(compiler.errors)
}

struct Compiler<'a> {
    types: Types,
    metadata: &'a Types,
    errors: Vec<FieldError>,
    scope: Scope,
    /// Some schema has `$schema`, for which the definition is refused as a whole.
    has_dialect: bool,
}

/// The position of a schema, which determines its requirements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Root,
    Property,
    Item,
}

impl Compiler<'_> {
    fn root(&mut self, schema: &Value, path: &str) -> NodeId {
        match schema["type"].as_str() {
            Some("object") => {}
            // A root that preserves unknown fields may omit its type.
            Some("") | None if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
            Some("") | None => {
                self.errors
                    .push(FieldError::required(format!("{path}.type"), "must not be empty at the root"));
            }
            Some(other) => self.errors.push(FieldError::invalid(
                format!("{path}.type"),
                other,
                "must be object at the root",
            )),
        }
        if schema["nullable"] == true {
            let at = format!("{path}.nullable");
            self.errors.push(FieldError::forbidden(at, "nullable cannot be true at the root"));
        }
        let root = self.node(schema, path, Position::Root);
        self.as_object(root);
        root
    }

    /// Adds the metadata of a whole object, and marks that it has apiVersion and kind.
    fn as_object(&mut self, id: NodeId) {
        let known =
            self.metadata.named("meta.v1.ObjectMeta").expect("the table of facts has object metadata");
        let metadata = self.types.import(self.metadata, known);
        let node = self.types.node_mut(id);
        let Shape::Struct(shape) = &mut node.shape else { return };
        shape.embedded = true;
        let mut fields: Vec<Field> = std::mem::take(&mut shape.fields).into_vec();
        fields.retain(|field| !matches!(field.name.as_ref(), "metadata" | "apiVersion" | "kind"));
        fields.push(field("metadata", metadata, false));
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        shape.fields = fields.into();
    }

    fn node(&mut self, schema: &Value, path: &str, position: Position) -> NodeId {
        let Some(map) = schema.as_object() else {
            self.errors.push(FieldError::invalid(path, schema.clone(), "must be a schema"));
            return self.types.add(Node::new(Shape::Any { atomic: false }));
        };
        self.refuse(map, path);
        extensions::check(map, path, position == Position::Root, &mut self.errors);
        let mut checks = values::checks(schema, path, &mut self.errors);
        let shape = self.shape(schema, path, position);
        let is_embedded = schema["x-kubernetes-embedded-resource"] == true;
        if self.errors.is_empty() {
            // The types of expressions follow from the schema, so it must be valid.
            let is_object = is_embedded || position == Position::Root;
            let engine = self.metadata.engine();
            checks.rules = self.scope.compile(engine, schema, is_object, path);
        }
        let mut node = Node::new(shape);
        node.nullable = schema["nullable"] == true;
        node.checks = Some(Box::new(checks));
        node.default = map.get("default").map(|value| Box::new(value.clone()));
        let id = self.types.add(node);
        if is_embedded {
            self.as_object(id);
        }
        id
    }

    fn refuse(&mut self, map: &Map<String, Value>, path: &str) {
        self.has_dialect |= map.get("$schema").and_then(Value::as_str).is_some_and(|text| !text.is_empty());
        for (key, text) in REFUSED {
            if map.get(*key).is_some_and(|value| !value.is_null()) {
                self.errors.push(FieldError::forbidden(format!("{path}.{key}"), *text));
            }
        }
        if map.get("uniqueItems") == Some(&Value::Bool(true)) {
            let text = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.errors.push(FieldError::forbidden(format!("{path}.uniqueItems"), text));
        }
    }

    fn shape(&mut self, schema: &Value, path: &str, position: Position) -> Shape {
        let preserve = schema["x-kubernetes-preserve-unknown-fields"] == true;
        if schema["x-kubernetes-int-or-string"] == true {
            return Shape::IntOrString;
        }
        match schema["type"].as_str().unwrap_or_default() {
            "object" => self.object(schema, path, preserve),
            "array" => self.array(schema, path),
            "string" => Shape::String(StringKind::Plain),
            "integer" => Shape::Integer { bits: 64 },
            "number" => Shape::Number,
            "boolean" => Shape::Bool,
            "" => {
                // A reference is refused as such, not because of a missing type.
                if !preserve && position != Position::Root && schema["$ref"].is_null() {
                    let what = match position {
                        Position::Item => "array items",
                        _ => "object fields",
                    };
                    let text = format!("must not be empty for specified {what}");
                    self.errors.push(FieldError::required(format!("{path}.type"), text));
                }
                match position == Position::Root || schema["properties"].is_object() {
                    true => self.object(schema, path, preserve),
                    false => Shape::Any { atomic: false },
                }
            }
            other => {
                let supported = ["array", "boolean", "integer", "number", "object", "string"];
                self.errors.push(FieldError::not_supported(format!("{path}.type"), other, &supported));
                if other == "null" {
                    let text = "type cannot be set to null, use nullable as an alternative";
                    self.errors.push(FieldError::forbidden(format!("{path}.type"), text));
                }
                Shape::Any { atomic: false }
            }
        }
    }

    fn object(&mut self, schema: &Value, path: &str, preserve: bool) -> Shape {
        let atomic = schema["x-kubernetes-map-type"] == "atomic";
        let additional = &schema["additionalProperties"];
        if additional.is_object() {
            if schema["properties"].is_object() {
                let at = format!("{path}.additionalProperties");
                let text = "additionalProperties and properties are mutual exclusive";
                self.errors.push(FieldError::forbidden(at, text));
            }
            let below = self.scope.surroundings.times(schema["maxProperties"].as_u64());
            let outer = std::mem::replace(&mut self.scope.surroundings, below);
            let value = self.node(additional, &format!("{path}.additionalProperties"), Position::Property);
            self.scope.surroundings = outer;
            return Shape::Map { value, atomic };
        }
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut fields = Vec::new();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let node = self.node(property, &format!("{path}.properties[{name}]"), Position::Property);
            fields.push(field(name, node, required.contains(&name.as_str())));
        }
        for name in required {
            if !fields.iter().any(|field| field.name == name) {
                // A required field without a schema is still required; its value is not restricted.
                let mut node = Node::new(Shape::Any { atomic: false });
                node.checks = Some(Box::default());
                let node = self.types.add(node);
                fields.push(field(name, node, true));
            }
        }
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        let open = preserve || additional == &Value::Bool(true);
        let rest = if open { Rest::Kept } else { Rest::Pruned };
        Shape::Struct(StructShape { fields: fields.into(), rest, atomic, embedded: false })
    }

    fn array(&mut self, schema: &Value, path: &str) -> Shape {
        let items = &schema["items"];
        match items {
            Value::Object(_) => {}
            Value::Array(several) if !several.is_empty() => {
                let text = "items must be a schema object and not an array";
                self.errors.push(FieldError::forbidden(format!("{path}.items"), text));
            }
            _ => self.errors.push(FieldError::required(format!("{path}.items"), "must be specified")),
        }
        let item = match items.is_object() {
            true => self.items(schema, path),
            false => self.types.add(Node::new(Shape::Any { atomic: false })),
        };
        let topology = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => Topology::Set,
            Some("map") => Topology::Map(map_keys(schema)),
            _ => Topology::Atomic,
        };
        Shape::List(ListShape { item, topology, merge: None })
    }

    /// The items of a list: only those of lists of type map correspond to items of the list that is replaced.
    fn items(&mut self, schema: &Value, path: &str) -> NodeId {
        let mut below = self.scope.surroundings.times(schema["maxItems"].as_u64());
        if schema["x-kubernetes-list-type"] != "map" {
            below.uncorrelated.get_or_insert_with(|| path.to_owned());
        }
        let outer = std::mem::replace(&mut self.scope.surroundings, below);
        let item = self.node(&schema["items"], &format!("{path}.items"), Position::Item);
        self.scope.surroundings = outer;
        item
    }

    /// A default must be a valid value of its type.
    fn defaults_fit(&mut self, id: NodeId, schema: &Value, path: &str) {
        let node = self.types.node(id);
        if let Some(default) = &node.default {
            let position = SchemaPosition(Some(super::types::Cursor::new(&self.types, id)));
            let mut wrong = super::check::check(position, default, None);
            if wrong.is_empty() && unknown::has_unknown_fields(position, default) {
                wrong.push(FieldError::invalid("<nil>", (**default).clone(), "must not have unknown fields"));
            }
            if wrong.is_empty() {
                wrong = super::judge::judge(position, default, None).errors;
            }
            for error in wrong {
                let below = if error.field == "<nil>" { String::new() } else { format!(".{}", error.field) };
                let field = format!("{path}.default{below}");
                self.errors.push(FieldError { field, ..error });
            }
        }
        let mut children = Vec::new();
        match &self.types.node(id).shape {
            Shape::Struct(shape) => {
                for field in &shape.fields {
                    let property = &schema["properties"][field.name.as_ref()];
                    if property.is_object() {
                        children.push((field.node, property, format!("{path}.properties[{}]", field.name)));
                    }
                }
            }
            Shape::Map { value, .. } => {
                children.push((
                    *value,
                    &schema["additionalProperties"],
                    format!("{path}.additionalProperties"),
                ));
            }
            Shape::List(list) => children.push((list.item, &schema["items"], format!("{path}.items"))),
            _ => {}
        }
        for (child, schema, path) in children {
            // Metadata is a built-in type without defaults.
            if self.types.node(child).checks.is_some() {
                self.defaults_fit(child, schema, &path);
            }
        }
    }
}

fn map_keys(schema: &Value) -> Box<[Name]> {
    let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
    keys.filter_map(Value::as_str).map(|key| Name::Owned(key.to_owned())).collect()
}

fn field(name: &str, node: NodeId, required: bool) -> Field {
    Field {
        name: Name::Owned(name.to_owned()),
        node,
        required,
        presence: Presence::Keep,
        retain_keys: false,
        default: None,
        go: None,
        wire: None,
    }
}

/// The type that a schema declares.
fn json_type(schema: &Value) -> Option<JsonType> {
    if schema["x-kubernetes-int-or-string"] == true {
        return Some(JsonType::IntOrString);
    }
    Some(match schema["type"].as_str()? {
        "object" => JsonType::Object,
        "array" => JsonType::Array,
        "string" => JsonType::String,
        "integer" => JsonType::Integer,
        "number" => JsonType::Number,
        "boolean" => JsonType::Boolean,
        _ => return None,
    })
}
