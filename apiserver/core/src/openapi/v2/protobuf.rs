//! OpenAPI 2.0 documents as the protobuf messages that Go clients read (`openapi.v2` of gnostic-models).
//!
//! Messages are tables of field numbers for the members that our documents have; one walk over the JSON value writes
//! them. Members without a table entry are left out, except extensions, which every message collects.

use bytes::Bytes;
use serde_json::Value;

/// A message: its fields by JSON name, and the number under which it collects `x-` members (0: none).
struct Message {
    fields: &'static [(&'static str, u32, FieldEncoding)],
    extensions: u32,
}

/// The encoding of a member.
enum FieldEncoding {
    /// A string.
    Text,
    /// A list of strings.
    Texts,
    /// A boolean.
    Flag,
    /// An `int64`.
    Integer,
    /// A `double`.
    Double,
    /// Any value, as YAML text in a message of its own.
    Any,
    /// A list of any values.
    Anys,
    /// A message.
    One(&'static Message),
    /// A list of messages.
    Many(&'static Message),
    /// A message with one field that contains the member.
    Within(u32, &'static Self),
    /// A message that lists the members of an object by name, in the given field.
    Named(u32, &'static Self),
    /// A schema, or a boolean.
    SchemaOrFlag,
    /// Parameters of an operation.
    Parameters,
}

static DOCUMENT: Message = Message {
    fields: &[
        ("swagger", 1, FieldEncoding::Text),
        ("info", 2, FieldEncoding::One(&INFO)),
        ("paths", 8, FieldEncoding::Named(2, &FieldEncoding::One(&PATH_ITEM))),
        ("definitions", 9, FieldEncoding::Named(1, &FieldEncoding::One(&SCHEMA))),
    ],
    extensions: 16,
};

static INFO: Message = Message {
    fields: &[("title", 1, FieldEncoding::Text), ("version", 2, FieldEncoding::Text)],
    extensions: 7,
};

static PATH_ITEM: Message = Message {
    fields: &[
        ("get", 2, FieldEncoding::One(&OPERATION)),
        ("put", 3, FieldEncoding::One(&OPERATION)),
        ("post", 4, FieldEncoding::One(&OPERATION)),
        ("delete", 5, FieldEncoding::One(&OPERATION)),
        ("patch", 8, FieldEncoding::One(&OPERATION)),
        ("parameters", 9, FieldEncoding::Parameters),
    ],
    extensions: 10,
};

static OPERATION: Message = Message {
    fields: &[
        ("description", 3, FieldEncoding::Text),
        ("operationId", 5, FieldEncoding::Text),
        ("parameters", 8, FieldEncoding::Parameters),
        // Responses, by code; each is either a response or a reference to one.
        ("responses", 9, FieldEncoding::Named(1, &FieldEncoding::Within(1, &FieldEncoding::One(&RESPONSE)))),
    ],
    extensions: 13,
};

static RESPONSE: Message = Message {
    // The schema is either a schema or a file.
    fields: &[
        ("description", 1, FieldEncoding::Text),
        ("schema", 2, FieldEncoding::Within(1, &FieldEncoding::One(&SCHEMA))),
    ],
    extensions: 5,
};

static BODY_PARAMETER: Message = Message {
    fields: &[
        ("description", 1, FieldEncoding::Text),
        ("name", 2, FieldEncoding::Text),
        ("in", 3, FieldEncoding::Text),
        ("required", 4, FieldEncoding::Flag),
        ("schema", 5, FieldEncoding::One(&SCHEMA)),
    ],
    extensions: 6,
};

static QUERY_PARAMETER: Message = Message {
    fields: &[
        ("required", 1, FieldEncoding::Flag),
        ("in", 2, FieldEncoding::Text),
        ("description", 3, FieldEncoding::Text),
        ("name", 4, FieldEncoding::Text),
        ("type", 6, FieldEncoding::Text),
        ("uniqueItems", 20, FieldEncoding::Flag),
    ],
    extensions: 23,
};

static PATH_PARAMETER: Message = Message {
    fields: &[
        ("required", 1, FieldEncoding::Flag),
        ("in", 2, FieldEncoding::Text),
        ("description", 3, FieldEncoding::Text),
        ("name", 4, FieldEncoding::Text),
        ("type", 5, FieldEncoding::Text),
        ("uniqueItems", 19, FieldEncoding::Flag),
    ],
    extensions: 22,
};

static SCHEMA: Message = Message {
    fields: &[
        ("$ref", 1, FieldEncoding::Text),
        ("format", 2, FieldEncoding::Text),
        ("title", 3, FieldEncoding::Text),
        ("description", 4, FieldEncoding::Text),
        ("default", 5, FieldEncoding::Any),
        ("multipleOf", 6, FieldEncoding::Double),
        ("maximum", 7, FieldEncoding::Double),
        ("exclusiveMaximum", 8, FieldEncoding::Flag),
        ("minimum", 9, FieldEncoding::Double),
        ("exclusiveMinimum", 10, FieldEncoding::Flag),
        ("maxLength", 11, FieldEncoding::Integer),
        ("minLength", 12, FieldEncoding::Integer),
        ("pattern", 13, FieldEncoding::Text),
        ("maxItems", 14, FieldEncoding::Integer),
        ("minItems", 15, FieldEncoding::Integer),
        ("uniqueItems", 16, FieldEncoding::Flag),
        ("maxProperties", 17, FieldEncoding::Integer),
        ("minProperties", 18, FieldEncoding::Integer),
        ("required", 19, FieldEncoding::Texts),
        ("enum", 20, FieldEncoding::Anys),
        ("additionalProperties", 21, FieldEncoding::SchemaOrFlag),
        ("type", 22, FieldEncoding::Within(1, &FieldEncoding::Text)),
        ("items", 23, FieldEncoding::Within(1, &FieldEncoding::One(&SCHEMA))),
        ("allOf", 24, FieldEncoding::Many(&SCHEMA)),
        ("properties", 25, FieldEncoding::Named(1, &FieldEncoding::One(&SCHEMA))),
        ("externalDocs", 29, FieldEncoding::One(&EXTERNAL_DOCS)),
        ("example", 30, FieldEncoding::Any),
    ],
    extensions: 31,
};

static EXTERNAL_DOCS: Message = Message {
    fields: &[("description", 1, FieldEncoding::Text), ("url", 2, FieldEncoding::Text)],
    extensions: 3,
};

/// Field numbers of a named value: the name and the value.
const NAME: u32 = 1;
const VALUE: u32 = 2;

/// Field of `Any` that holds YAML text; JSON is YAML.
const YAML: u32 = 2;

/// Encodes a document, or some of its members.
pub(super) fn document(value: &Value) -> Bytes {
    message(&DOCUMENT, value).into()
}

fn message(table: &Message, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let Value::Object(map) = value else { return out };
    for (key, value) in map {
        if let Some((_, number, form)) = table.fields.iter().find(|(name, ..)| name == key) {
            field(*number, form, value, &mut out);
        } else if key.starts_with("x-") && table.extensions != 0 {
            named(table.extensions, key, &FieldEncoding::Any, value, &mut out);
        }
    }
    out
}

fn field(number: u32, form: &FieldEncoding, value: &Value, out: &mut Vec<u8>) {
    let list = || value.as_array().into_iter().flatten();
    match form {
        FieldEncoding::Text => {
            if let Some(text) = value.as_str() {
                bytes(number, text.as_bytes(), out);
            }
        }
        FieldEncoding::Texts => {
            list().filter_map(Value::as_str).for_each(|text| bytes(number, text.as_bytes(), out));
        }
        FieldEncoding::Flag => {
            if let Some(flag) = value.as_bool() {
                tag(number, VARINT, out);
                out.push(u8::from(flag));
            }
        }
        FieldEncoding::Integer => {
            if let Some(integer) = value.as_i64().or_else(|| whole(value)) {
                tag(number, VARINT, out);
                varint(integer.cast_unsigned(), out);
            }
        }
        FieldEncoding::Double => {
            if let Some(double) = value.as_f64() {
                tag(number, FIXED64, out);
                out.extend_from_slice(&double.to_le_bytes());
            }
        }
        FieldEncoding::Any => bytes(number, &any(value), out),
        FieldEncoding::Anys => list().for_each(|value| bytes(number, &any(value), out)),
        FieldEncoding::One(table) => bytes(number, &message(table, value), out),
        FieldEncoding::Many(table) => list().for_each(|value| bytes(number, &message(table, value), out)),
        FieldEncoding::Within(inner, form) => {
            let mut wrapped = Vec::new();
            field(*inner, form, value, &mut wrapped);
            bytes(number, &wrapped, out);
        }
        FieldEncoding::Named(inner, form) => {
            let mut members = Vec::new();
            let all = value.as_object().into_iter().flatten();
            all.for_each(|(name, value)| named(*inner, name, form, value, &mut members));
            bytes(number, &members, out);
        }
        FieldEncoding::SchemaOrFlag => {
            let mut wrapped = Vec::new();
            match value {
                Value::Bool(_) => field(2, &FieldEncoding::Flag, value, &mut wrapped),
                schema => field(1, &FieldEncoding::One(&SCHEMA), schema, &mut wrapped),
            }
            bytes(number, &wrapped, out);
        }
        FieldEncoding::Parameters => list().for_each(|value| bytes(number, &parameter(value), out)),
    }
}

/// One entry of a list of named values.
fn named(number: u32, name: &str, form: &FieldEncoding, value: &Value, out: &mut Vec<u8>) {
    let mut entry = Vec::new();
    bytes(NAME, name.as_bytes(), &mut entry);
    field(VALUE, form, value, &mut entry);
    bytes(number, &entry, out);
}

fn any(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    bytes(YAML, value.to_string().as_bytes(), &mut out);
    out
}

/// A parameter is one of several messages, depending on its location in a request.
fn parameter(value: &Value) -> Vec<u8> {
    // Field numbers from the inside out: the kind of parameter, whether it is the body, and that it is not a reference.
    let (table, levels): (&Message, &[u32]) = match value["in"].as_str() {
        Some("body") => (&BODY_PARAMETER, &[1, 1]),
        Some("path") => (&PATH_PARAMETER, &[4, 2, 1]),
        _ => (&QUERY_PARAMETER, &[3, 2, 1]),
    };
    levels.iter().fold(message(table, value), |inner, number| {
        let mut outer = Vec::with_capacity(inner.len() + 4);
        bytes(*number, &inner, &mut outer);
        outer
    })
}

/// A number without a fraction that JSON writes as a float.
fn whole(value: &Value) -> Option<i64> {
    let float = value.as_f64().filter(|float| float.fract() == 0.0)?;
    Some(float as i64)
}

/// Wire types.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;

fn tag(number: u32, wire_type: u32, out: &mut Vec<u8>) {
    varint(u64::from(number << 3 | wire_type), out);
}

fn bytes(number: u32, content: &[u8], out: &mut Vec<u8>) {
    tag(number, LENGTH, out);
    varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
