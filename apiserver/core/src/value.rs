//! Accessors for JSON values.

use bytes::Bytes;
use serde_json::{Map, Value};

/// The value at a path of field names; `Null` when something is missing.
#[must_use]
pub fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |value, key| &value[*key])
}

/// The text at a path; empty when missing.
#[must_use]
pub fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

/// The integer at a path; zero when missing.
#[must_use]
pub fn int(value: &Value, path: &[&str]) -> i64 {
    at(value, path).as_i64().unwrap_or_default()
}

/// The items of the list at a path; none when missing.
#[must_use]
pub fn items<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

/// The JSON name of a value's type, as in messages of the Go decoder.
pub(crate) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The mutable value at a path, if it exists.
#[must_use]
pub fn at_mut<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, key| value.get_mut(*key)).filter(|value| !value.is_null())
}

/// The mutable items of the list at a path.
#[must_use]
pub fn items_mut<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut [Value] {
    at_mut(value, path).and_then(Value::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
}

/// Sets a member that is absent, null or an empty string.
pub fn or_insert(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    match map.get(key) {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) if text.is_empty() => {}
        Some(_) => return,
    }
    map.insert(key.to_owned(), value.into());
}

/// Sets a member that is absent or null: an empty string is a value of pointer fields in Go.
pub fn or_default(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    if map.get(key).is_none_or(Value::is_null) {
        map.insert(key.to_owned(), value.into());
    }
}

/// Sets a number that is absent or zero.
pub fn or_number(map: &mut Map<String, Value>, key: &str, value: i64) {
    let absent = map.get(key).is_none_or(|found| found.is_null() || found.as_i64() == Some(0));
    if absent {
        map.insert(key.to_owned(), value.into());
    }
}

/// The members below a key, which is made an object if it is absent.
pub fn object_at<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    object(map.entry(key.to_owned()).or_insert_with(|| Value::Object(Map::new())))
}

/// The members of a value, which is made an object if it is not one.
pub fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("made an object above")
}

/// Sets a member of the object below `outer`; null removes it.
pub fn put_below(target: &mut Value, outer: &str, key: &str, value: &Value) {
    let map = object_at(object(target), outer);
    match value {
        Value::Null => map.remove(key),
        value => map.insert(key.to_owned(), value.clone()),
    };
}

/// Takes everything from `old` except what identifies the version and the writers.
pub fn restrict(new: &mut Value, old: &Value) {
    let metadata = std::mem::take(&mut new["metadata"]);
    new.clone_from(old);
    for key in ["resourceVersion", "managedFields"] {
        put_below(new, "metadata", key, &metadata[key]);
    }
}

/// JSON text of a value. Values always have one.
pub fn to_bytes(value: &Value) -> Bytes {
    serde_json::to_vec(value).map(Bytes::from).unwrap_or_default()
}
