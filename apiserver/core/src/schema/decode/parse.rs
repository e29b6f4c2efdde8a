//! A JSON parser that reports unknown and duplicate fields in document order.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::strict::STRICT_ERRORS_MAX;
use crate::schema::types::{SchemaPosition, Shape};

/// What the parser knows about the next value.
#[derive(Clone, Copy)]
pub(super) enum Expected<'a> {
    /// Nothing; duplicate fields are reported.
    Untyped,
    /// A value of a Go type: unknown and duplicate fields are reported.
    Typed(SchemaPosition<'a>),
    /// The operations of a JSON patch.
    Operations,
    /// One operation of a JSON patch.
    Operation,
    /// A value that the Go decoder skips or keeps as text.
    Unread,
}

impl Expected<'_> {
    /// The expected value of a field; none for an unknown field.
    fn field(self, key: &str) -> Option<Self> {
        match self {
            Self::Typed(position) => match &position.node().shape {
                Shape::Struct(_) => position.child(key).1.then(|| Self::typed(position.child(key).0)),
                Shape::Map { .. } => Some(Self::typed(position.child(key).0)),
                _ => Some(Self::Unread),
            },
            Self::Operation => matches!(key, "op" | "path" | "from" | "value").then_some(Self::Untyped),
            Self::Operations => Some(Self::Unread),
            Self::Untyped | Self::Unread => Some(self),
        }
    }

    fn item(self) -> Self {
        match self {
            Self::Typed(position) => Self::typed(position.item()),
            Self::Operations => Self::Operation,
            Self::Operation => Self::Unread,
            Self::Untyped | Self::Unread => self,
        }
    }
}

impl<'a> Expected<'a> {
    /// Values that a Go type parses itself are not inspected.
    fn typed(position: SchemaPosition<'a>) -> Self {
        match position.node().shape {
            Shape::Any { .. } => Self::Unread,
            _ => Self::Typed(position),
        }
    }
}

/// Parses one JSON document. The second part lists its unknown and duplicate fields. The last duplicate wins, except
/// that objects of Go types are merged.
pub(super) fn parse(body: &[u8], expected: Expected<'_>) -> Result<(Value, Vec<String>), String> {
    let state = ParseState::default();
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = Seed { state: &state, expected }.deserialize(&mut deserializer).map_err(|e| e.to_string())?;
    deserializer.end().map_err(|e| e.to_string())?;
    Ok((value, state.found.into_inner()))
}

#[derive(Default)]
struct ParseState {
    path: RefCell<String>,
    found: RefCell<Vec<String>>,
}

impl ParseState {
    /// Runs `inner` with an extended path.
    fn below<T>(&self, extend: impl FnOnce(&mut String), inner: impl FnOnce() -> T) -> T {
        let length = self.path.borrow().len();
        extend(&mut self.path.borrow_mut());
        let out = inner();
        self.path.borrow_mut().truncate(length);
        out
    }

    /// Records a field, once.
    fn note(&self, what: &str, key: &str) {
        let mut found = self.found.borrow_mut();
        if found.len() < STRICT_ERRORS_MAX {
            let path = self.path.borrow();
            let dot = if path.is_empty() { "" } else { "." };
            let note = format!("{what} field \"{path}{dot}{key}\"");
            if !found.contains(&note) {
                found.push(note);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Seed<'a> {
    state: &'a ParseState,
    expected: Expected<'a>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        use std::fmt::Write as _;
        let item = Self { expected: self.expected.item(), ..self };
        let mut items = Vec::new();
        loop {
            let extend = |path: &mut String| {
                let _ = write!(path, "[{}]", items.len());
            };
            match self.state.below(extend, || access.next_element_seed(item))? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let expected = self.expected.field(&key);
            match expected {
                // Reported only as unknown, even if it is also a duplicate.
                None => self.state.note("unknown", &key),
                Some(Expected::Unread) if matches!(self.expected, Expected::Unread) => {}
                Some(_) if map.contains_key(&key) => self.state.note("duplicate", &key),
                Some(_) => {}
            }
            let extend = |path: &mut String| {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(&key);
            };
            let value = Self { expected: expected.unwrap_or(Expected::Unread), ..self };
            let value = self.state.below(extend, || access.next_value_seed(value))?;
            match (expected, map.get_mut(&key)) {
                (Some(Expected::Typed(position)), Some(earlier)) => merge(position, earlier, value),
                _ => drop(map.insert(key, value)),
            }
        }
        Ok(Value::Object(map))
    }
}

/// Merges into an existing value: fields of structs and entries of maps are added to it.
fn merge(position: SchemaPosition<'_>, earlier: &mut Value, later: Value) {
    match (&position.node().shape, earlier, later) {
        (Shape::Struct(_), Value::Object(earlier), Value::Object(later)) => {
            for (key, value) in later {
                match earlier.get_mut(&key) {
                    Some(earlier) => merge(position.child(&key).0, earlier, value),
                    None => drop(earlier.insert(key, value)),
                }
            }
        }
        (Shape::Map { .. }, Value::Object(earlier), Value::Object(later)) => earlier.extend(later),
        (_, earlier, later) => *earlier = later,
    }
}
