//! A JSON parser that notices duplicate fields.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::STRICT_ERRORS_MAX;

/// Parses one JSON document; the second part names the fields that came twice.
pub(super) fn parse(body: &[u8]) -> Result<(Value, Vec<String>), String> {
    let state = State::default();
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = Seed(&state).deserialize(&mut deserializer).map_err(|e| e.to_string())?;
    deserializer.end().map_err(|e| e.to_string())?;
    Ok((value, state.duplicates.into_inner()))
}

#[derive(Default)]
struct State {
    path: RefCell<String>,
    duplicates: RefCell<Vec<String>>,
}

impl State {
    /// Runs `inner` with the path extended, and takes the extension off again.
    fn below<T>(&self, extend: impl FnOnce(&mut String), inner: impl FnOnce() -> T) -> T {
        let length = self.path.borrow().len();
        extend(&mut self.path.borrow_mut());
        let out = inner();
        self.path.borrow_mut().truncate(length);
        out
    }

    fn duplicate(&self, key: &str) {
        let mut duplicates = self.duplicates.borrow_mut();
        if duplicates.len() < STRICT_ERRORS_MAX {
            let path = self.path.borrow();
            let dot = if path.is_empty() { "" } else { "." };
            duplicates.push(format!("duplicate field \"{path}{dot}{key}\""));
        }
    }
}

struct Seed<'a>(&'a State);

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
        let mut items = Vec::new();
        loop {
            let extend = |path: &mut String| {
                let _ = write!(path, "[{}]", items.len());
            };
            match self.0.below(extend, || access.next_element_seed(Seed(self.0)))? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let extend = |path: &mut String| {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(&key);
            };
            let value = self.0.below(extend, || access.next_value_seed(Seed(self.0)))?;
            if map.contains_key(&key) {
                self.0.duplicate(&key);
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
