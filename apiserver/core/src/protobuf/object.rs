//! Converts messages to the JSON form of the object, along its type.

use std::cell::Cell;

use serde_json::{Map, Value};

use super::Malformed;
use super::reader::{Payload, Reader};
use super::scalar;
use crate::schema::canonical::is_zero;
use crate::schema::types::{Cursor, Field, Presence, SchemaPosition, Shape, StructShape, WireForm};
use crate::schema::{DEPTH_MAX, Schema};
use crate::tree::{ARRAY_BYTES, BODY_TREE_MAX, ITEM_BYTES, MEMBER_BYTES, OBJECT_BYTES, read_bytes};

/// Name of the type of JSON schemas, to which untyped fields of definitions refer.
const JSON_SCHEMA: &str = "apiextensions.v1.JSONSchemaProps";

/// Reads a message of a built-in struct. Unknown fields are skipped. Zero values that Go's JSON encoder omits are
/// dropped, because protobuf clients send all of them.
///
/// # Errors
/// [`Malformed`] when the bytes are not such a message.
pub(super) fn object(schema: &Schema, message: &[u8]) -> Result<Map<String, Value>, Malformed> {
    let mut map = Map::new();
    let cursor = schema.cursor();
    let Shape::Struct(shape) = &cursor.node().shape else { return Err(Malformed::Formless) };
    let room = DecodeBudget(Cell::new(BODY_TREE_MAX));
    let struct_at = StructAt { cursor, shape, above: &[], room: &room };
    struct_at.read(message, DEPTH_MAX, &mut map)?;
    Ok(map)
}

/// Memory in bytes that is left for the object: two bytes of a message can create a part of hundreds.
struct DecodeBudget(Cell<usize>);

impl DecodeBudget {
    fn take(&self, bytes: usize) -> Result<(), Malformed> {
        self.0.set(self.0.get().checked_sub(bytes).ok_or(Malformed::TooLarge)?);
        Ok(())
    }
}

/// A struct, or one of the messages that JSON inlines in it.
struct StructAt<'a> {
    cursor: Cursor<'a>,
    shape: &'a StructShape,
    /// Field numbers that lead from the struct to the inlined message.
    above: &'a [u32],
    room: &'a DecodeBudget,
}

impl<'a> StructAt<'a> {
    fn read(&self, message: &[u8], depth: usize, map: &mut Map<String, Value>) -> Result<(), Malformed> {
        let depth = depth.checked_sub(1).ok_or(Malformed::TooDeep(DEPTH_MAX))?;
        let mut fields = Reader::new(message);
        while let Some((number, payload)) = fields.next()? {
            match self.find(number) {
                Some(FieldTarget::Field(field, form)) => {
                    self.room.take(if map.is_empty() { OBJECT_BYTES } else { MEMBER_BYTES })?;
                    let held = map.entry(field.name.as_ref()).or_insert(Value::Null);
                    let slot = ValueSlot { cursor: self.cursor.at(field.node), form, depth, room: self.room };
                    slot.add(payload, held).map_err(|problem| problem.below(&field.name))?;
                }
                Some(FieldTarget::Inlined) => {
                    let above = [self.above, &[number]].concat();
                    StructAt { above: &above, ..*self }.read(payload.bytes()?, depth, map)?;
                }
                None => {}
            }
        }
        map.retain(|name, value| !self.is_left_out(name, value));
        Ok(())
    }

    fn find(&self, number: u32) -> Option<FieldTarget<'a>> {
        let mut inlined = None;
        for field in &self.shape.fields {
            let Some(wire) = &field.wire else { continue };
            match wire.path.strip_prefix(self.above) {
                Some([last]) if *last == number => return Some(FieldTarget::Field(field, wire.form)),
                Some([next, _, ..]) if *next == number => inlined = Some(FieldTarget::Inlined),
                _ => {}
            }
        }
        inlined
    }

    /// Whether Go's JSON encoder would omit the value.
    fn is_left_out(&self, name: &str, value: &Value) -> bool {
        let omit = |field: &Field| {
            let empty = value.as_object().is_some_and(Map::is_empty);
            let position = SchemaPosition(Some(self.cursor.at(field.node)));
            field.presence == Presence::Omit && (empty || is_zero(position, value))
        };
        value.is_null() || self.shape.field(name).is_some_and(omit)
    }
}

/// The target of a field number.
enum FieldTarget<'a> {
    Field(&'a Field, WireForm),
    /// A separate message whose fields JSON writes into the outer struct.
    Inlined,
}

/// The destination of a value.
#[derive(Clone, Copy)]
struct ValueSlot<'a> {
    cursor: Cursor<'a>,
    form: WireForm,
    /// How many more levels of messages are allowed.
    depth: usize,
    room: &'a DecodeBudget,
}

impl<'a> ValueSlot<'a> {
    /// Reads one occurrence of a field: it extends lists and maps, messages are merged, otherwise the last one wins.
    fn add(self, payload: Payload<'_>, held: &mut Value) -> Result<(), Malformed> {
        match &self.cursor.node().shape {
            Shape::List(list) => {
                if !held.is_array() {
                    *held = Value::Array(Vec::new());
                }
                let Value::Array(items) = held else { return Ok(()) };
                ValueSlot { cursor: self.cursor.at(list.item), ..self }.item(payload, items)
            }
            Shape::Map { value, .. } => {
                if !held.is_object() {
                    *held = Value::Object(Map::new());
                }
                let Value::Object(map) = held else { return Ok(()) };
                ValueSlot { cursor: self.cursor.at(*value), ..self }.entry(payload.bytes()?, map)
            }
            Shape::Struct(shape) => {
                if !held.is_object() {
                    *held = Value::Object(Map::new());
                }
                let Value::Object(map) = held else { return Ok(()) };
                let inner = StructAt { cursor: self.cursor, shape, above: &[], room: self.room };
                inner.read(payload.bytes()?, self.depth, map)
            }
            _ => {
                *held = self.scalar(payload)?;
                Ok(())
            }
        }
    }

    /// Appends to a list; `self` is its item.
    fn item(self, payload: Payload<'_>, items: &mut Vec<Value>) -> Result<(), Malformed> {
        if let (Shape::Integer { bits }, Payload::Bytes(packed)) = (&self.cursor.node().shape, payload) {
            let mut numbers = Reader::new(packed);
            while let Some(number) = numbers.packed()? {
                self.room.take(ITEM_BYTES)?;
                items.push(scalar::integer(*bits, number));
            }
            return Ok(());
        }
        self.room.take(if items.is_empty() { ARRAY_BYTES } else { ITEM_BYTES })?;
        items.push(self.single(payload)?);
        Ok(())
    }

    /// Adds an entry (key in field 1, value in field 2) to a map; `self` is its value.
    fn entry(self, message: &[u8], map: &mut Map<String, Value>) -> Result<(), Malformed> {
        self.room.take(if map.is_empty() { OBJECT_BYTES } else { MEMBER_BYTES })?;
        let (mut key, mut value) = ("", Value::Null);
        let mut fields = Reader::new(message);
        while let Some((number, payload)) = fields.next()? {
            match number {
                1 => key = payload.text()?,
                2 => value = self.single(payload)?,
                _ => {}
            }
        }
        if value.is_null() {
            value = self.absent();
        }
        map.insert(key.to_owned(), value);
        Ok(())
    }

    /// A separate value: the item of a list or the value of a map.
    fn single(self, payload: Payload<'_>) -> Result<Value, Malformed> {
        let mut value = Value::Null;
        let Shape::List(list) = &self.cursor.node().shape else {
            self.add(payload, &mut value)?;
            return Ok(value);
        };
        // A list that is not itself a field is a message with the items in field 1.
        let mut items = Vec::new();
        let item = ValueSlot { cursor: self.cursor.at(list.item), ..self };
        let mut fields = Reader::new(payload.bytes()?);
        while let Some((number, payload)) = fields.next()? {
            if number == 1 {
                item.item(payload, &mut items)?;
            }
        }
        Ok(Value::Array(items))
    }

    /// The value of a map entry that has only a key.
    fn absent(self) -> Value {
        match &self.cursor.node().shape {
            Shape::Bool => false.into(),
            Shape::Integer { .. } | Shape::Number | Shape::IntOrString => 0.into(),
            Shape::String(_) => "".into(),
            Shape::Quantity => "0".into(),
            Shape::Struct(_) => Value::Object(Map::new()),
            Shape::Map { .. } | Shape::List(_) | Shape::Any { .. } => Value::Null,
        }
    }

    fn scalar(self, payload: Payload<'_>) -> Result<Value, Malformed> {
        Ok(match &self.cursor.node().shape {
            Shape::Bool => (payload.varint()? != 0).into(),
            Shape::Integer { bits } => scalar::integer(*bits, payload.varint()?),
            Shape::Number => scalar::number(payload)?,
            Shape::String(kind) => scalar::string(*kind, payload)?,
            Shape::IntOrString => scalar::int_or_string(payload.bytes()?)?,
            Shape::Quantity => scalar::quantity(payload.bytes()?)?,
            Shape::Any { .. } => self.untyped(payload.bytes()?)?,
            Shape::Struct(_) | Shape::Map { .. } | Shape::List(_) => return Err(Malformed::Formless),
        })
    }

    fn untyped(self, message: &[u8]) -> Result<Value, Malformed> {
        let (schema_at, other_at) = match self.form {
            WireForm::Text => {
                self.room.take(read_bytes(message, false))?;
                return scalar::json_text(message);
            }
            WireForm::SchemaOrBool => (2, 1),
            WireForm::SchemaOrList | WireForm::SchemaOrNames => (1, 2),
        };
        let (mut schema, mut allowed, mut many) = (Value::Null, false, Vec::new());
        let mut fields = Reader::new(message);
        while let Some((number, payload)) = fields.next()? {
            match self.form {
                _ if number == schema_at => schema = self.json_schema(payload)?,
                _ if number != other_at => {}
                WireForm::SchemaOrBool => allowed = payload.varint()? != 0,
                WireForm::SchemaOrNames => {
                    self.room.take(ITEM_BYTES)?;
                    many.push(payload.text()?.into());
                }
                WireForm::SchemaOrList | WireForm::Text => many.push(self.json_schema(payload)?),
            }
        }
        Ok(match self.form {
            _ if !many.is_empty() => Value::Array(many),
            WireForm::SchemaOrBool if schema.is_null() => allowed.into(),
            _ => schema,
        })
    }

    fn json_schema(self, payload: Payload<'_>) -> Result<Value, Malformed> {
        let id = self.cursor.named(JSON_SCHEMA).ok_or(Malformed::Formless)?;
        let mut value = Value::Null;
        ValueSlot { cursor: self.cursor.at(id), form: WireForm::Text, ..self }.add(payload, &mut value)?;
        Ok(value)
    }
}
