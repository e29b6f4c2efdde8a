//! Walks a parsed body along its type: removes unknown fields and finds values of wrong types.

use std::fmt::Write as _;

use base64::Engine as _;
use serde_json::{Map, Value};

use super::STRICT_ERRORS_MAX;
use crate::schema::format;
use crate::schema::types::{Node, Rest, SchemaPosition, Shape, StringKind, StructShape};
use crate::value::json_type;

#[derive(Default)]
pub(super) struct Walk {
    /// Fields that the types do not have.
    unknown: Unknown,
    /// Path with indexes, for unknown fields.
    path: String,
    /// Path without indexes, as the Go decoder prints it.
    go_path: Vec<String>,
    /// Go struct that holds the current field.
    go_struct: String,
}

/// Unknown fields by the stage at which kube-apiserver finds them. It checks custom resources three times.
#[derive(Default)]
struct Unknown {
    /// In the metadata of the object.
    metadata: Vec<String>,
    /// In other places.
    fields: Vec<String>,
    /// In the metadata of embedded objects.
    embedded: Vec<String>,
    /// The part that is being walked.
    part: ObjectPart,
}

#[derive(Clone, Copy, Default)]
enum ObjectPart {
    Metadata,
    #[default]
    Fields,
    Embedded,
}

impl Unknown {
    fn note(&mut self, path: &str, key: &str) {
        let list = match self.part {
            ObjectPart::Metadata => &mut self.metadata,
            ObjectPart::Fields => &mut self.fields,
            ObjectPart::Embedded => &mut self.embedded,
        };
        if list.len() < STRICT_ERRORS_MAX {
            let dot = if path.is_empty() { "" } else { "." };
            list.push(format!("unknown field \"{path}{dot}{key}\""));
        }
    }
}

impl Walk {
    /// The unknown fields that were found, in report order.
    pub(super) fn into_unknown(self) -> Vec<String> {
        let Unknown { metadata, mut fields, mut embedded, .. } = self.unknown;
        fields.sort();
        embedded.sort();
        metadata.into_iter().chain(fields).chain(embedded).take(STRICT_ERRORS_MAX).collect()
    }

    /// Checks a value and everything below it.
    pub(super) fn value(&mut self, position: SchemaPosition<'_>, value: &mut Value) -> Result<(), String> {
        let node = position.node();
        match (&node.shape, value) {
            (Shape::Struct(shape), Value::Object(map)) => self.fields(position, shape, map),
            (Shape::Map { .. }, Value::Object(map)) => self.entries(position, map),
            (Shape::List(_), Value::Array(items)) => self.items(position, items),
            (_, Value::Null) | (Shape::Any { .. }, _) => Ok(()),
            // Values of custom resources are left to validation, which reports every wrong field.
            (_, value) if node.checks.is_none() => self.scalar(position, value),
            _ => Ok(()),
        }
    }

    fn fields(
        &mut self,
        position: SchemaPosition<'_>,
        shape: &StructShape,
        map: &mut Map<String, Value>,
    ) -> Result<(), String> {
        let node = position.node();
        let custom = node.checks.is_some();
        let outer = node.name.as_ref().map(|name| {
            let short = name.rsplit('.').next().unwrap_or_default();
            std::mem::replace(&mut self.go_struct, short.to_owned())
        });
        let mut gone = Vec::new();
        for (key, value) in map.iter_mut() {
            if shape.embedded && matches!(key.as_str(), "apiVersion" | "kind") {
                continue;
            }
            let (child, known) = position.child(key);
            if !known {
                if shape.rest == Rest::Pruned {
                    self.unknown.note(&self.path, key);
                    gone.push(key.clone());
                }
            } else if value.is_null() && !custom {
                gone.push(key.clone());
            } else if custom && child.node().checks.is_none() {
                self.custom_metadata(child, key, value)?;
            } else {
                self.below(key, |walk| walk.value(child, value))?;
            }
        }
        for key in &gone {
            map.remove(key);
        }
        if let Some(outer) = outer {
            self.go_struct = outer;
        }
        Ok(())
    }

    /// Metadata of custom resources and of embedded objects is decoded separately, so its Go path starts there.
    fn custom_metadata(
        &mut self,
        position: SchemaPosition<'_>,
        key: &str,
        value: &mut Value,
    ) -> Result<(), String> {
        let part = if self.path.is_empty() { ObjectPart::Metadata } else { ObjectPart::Embedded };
        let outer_part = std::mem::replace(&mut self.unknown.part, part);
        let outer_path = std::mem::take(&mut self.go_path);
        self.below(key, |walk| {
            walk.go_path.clear();
            walk.value(position, value)
        })?;
        self.go_path = outer_path;
        self.unknown.part = outer_part;
        Ok(())
    }

    fn entries(&mut self, position: SchemaPosition<'_>, map: &mut Map<String, Value>) -> Result<(), String> {
        for (key, value) in map.iter_mut() {
            let length = self.path.len();
            let _ = write!(self.path, ".{key}");
            self.entry(position.child(key).0, value)?;
            self.path.truncate(length);
        }
        Ok(())
    }

    fn items(&mut self, position: SchemaPosition<'_>, items: &mut [Value]) -> Result<(), String> {
        for (index, value) in items.iter_mut().enumerate() {
            let length = self.path.len();
            let _ = write!(self.path, "[{index}]");
            self.entry(position.item(), value)?;
            self.path.truncate(length);
        }
        Ok(())
    }

    /// A map's value or a list's item: the Go decoder replaces null with the zero value there.
    fn entry(&mut self, position: SchemaPosition<'_>, value: &mut Value) -> Result<(), String> {
        let node = position.node();
        if value.is_null() && node.checks.is_none() && position.0.is_some() {
            *value = zero(node);
        }
        self.value(position, value)
    }

    fn below<T>(&mut self, key: &str, inner: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        self.go_path.push(key.to_owned());
        let out = inner(self);
        self.go_path.pop();
        self.path.truncate(length);
        out
    }

    fn scalar(&self, position: SchemaPosition<'_>, value: &mut Value) -> Result<(), String> {
        let node = position.node();
        let fits = match (&node.shape, &*value) {
            (Shape::Bool, Value::Bool(_)) | (Shape::Number, Value::Number(_)) => true,
            (Shape::IntOrString, Value::String(_)) => true,
            (Shape::Integer { bits }, Value::Number(number)) => match number.as_i64() {
                Some(number) => *bits == 64 || i32::try_from(number).is_ok(),
                None => false,
            },
            (Shape::IntOrString, Value::Number(number)) => {
                number.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
            }
            (Shape::String(kind), Value::String(text)) => return string(*kind, text),
            (Shape::Quantity, Value::String(text)) => return quantity(text),
            (Shape::Quantity, Value::Number(number)) => {
                let text = number.to_string();
                quantity(&text)?;
                *value = Value::String(text);
                return Ok(());
            }
            _ => false,
        };
        if fits { Ok(()) } else { Err(self.mismatch(position, value)) }
    }

    fn mismatch(&self, position: SchemaPosition<'_>, value: &Value) -> String {
        let found = match (value, &position.node().shape) {
            (Value::Number(number), Shape::Integer { .. }) => format!("number {number}"),
            _ => json_type(value).to_owned(),
        };
        let path = self.go_path.join(".");
        let ty = go_type(position);
        match self.go_struct.as_str() {
            "" => format!("json: cannot unmarshal {found} into Go value of type {ty}"),
            name => format!("json: cannot unmarshal {found} into Go struct field {name}.{path} of type {ty}"),
        }
    }
}

/// The zero value by which the Go decoder replaces a null.
fn zero(node: &Node) -> Value {
    match &node.shape {
        Shape::Bool => Value::Bool(false),
        Shape::Integer { .. } | Shape::Number | Shape::IntOrString => 0.into(),
        Shape::String(_) => "".into(),
        Shape::Quantity => "0".into(),
        Shape::Struct(_) => Value::Object(Map::new()),
        Shape::Map { .. } | Shape::List(_) | Shape::Any { .. } => Value::Null,
    }
}

fn string(kind: StringKind, text: &str) -> Result<(), String> {
    match kind {
        StringKind::Plain => Ok(()),
        StringKind::Bytes => match base64::engine::general_purpose::STANDARD.decode(text) {
            Ok(_) => Ok(()),
            Err(base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _)) => {
                Err(format!("illegal base64 data at input byte {at}"))
            }
            Err(_) => Err(format!("illegal base64 data at input byte {}", text.len().saturating_sub(1))),
        },
        StringKind::Time => time(text, "2006-01-02T15:04:05Z07:00"),
        StringKind::MicroTime => {
            const LAYOUT: &str = "2006-01-02T15:04:05.000000Z07:00";
            time(text, LAYOUT)?;
            // Exactly six decimals.
            let tail = text.get(19..).unwrap_or_default();
            let decimals =
                tail.strip_prefix('.').map_or(0, |t| t.bytes().take_while(u8::is_ascii_digit).count());
            match decimals {
                6 => Ok(()),
                _ => Err(format!(
                    "parsing time \"{text}\" as \"{LAYOUT}\": cannot parse \"{tail}\" as \".000000\""
                )),
            }
        }
    }
}

fn time(text: &str, layout: &str) -> Result<(), String> {
    match text.parse::<jiff::Timestamp>() {
        Ok(_) => Ok(()),
        Err(_) => {
            Err(format!("parsing time \"{text}\" as \"{layout}\": cannot parse \"{text}\" as \"2006\""))
        }
    }
}

fn quantity(text: &str) -> Result<(), String> {
    format::Quantity::parse(text).map(|_| ()).map_err(|error| error.to_string())
}

/// The Go type that the decoder's message names.
fn go_type(position: SchemaPosition<'_>) -> String {
    let node = position.node();
    match &node.shape {
        Shape::Bool => "bool".into(),
        Shape::Integer { bits } => format!("int{bits}"),
        Shape::Number => "float64".into(),
        Shape::String(StringKind::Bytes) => "[]uint8".into(),
        Shape::String(StringKind::Time) => "v1.Time".into(),
        Shape::String(_) => "string".into(),
        Shape::IntOrString => "intstr.IntOrString".into(),
        Shape::Quantity => "resource.Quantity".into(),
        Shape::Any { .. } => "interface {}".into(),
        Shape::Map { .. } => format!("map[string]{}", go_type(position.child("").0)),
        Shape::List(_) => format!("[]{}", go_type(position.item())),
        Shape::Struct(_) => match node.name.as_ref().and_then(|name| name.split_once('.')) {
            Some((_, name)) => name.to_owned(),
            None => "map[string]interface {}".into(),
        },
    }
}
