//! Small accessors on JSON values.

use serde_json::{Map, Value};

/// The value at a path of field names; `Null` when something is missing.
pub(crate) fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |value, key| &value[*key])
}

/// The text at a path; empty when missing.
pub(crate) fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

/// The integer at a path; zero when missing.
pub(crate) fn int(value: &Value, path: &[&str]) -> i64 {
    at(value, path).as_i64().unwrap_or_default()
}

/// The items of the list at a path; none when missing.
pub(crate) fn items<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

/// The mutable value at a path, when it is there.
pub(crate) fn at_mut<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, key| value.get_mut(*key)).filter(|value| !value.is_null())
}

/// The mutable items of the list at a path.
pub(crate) fn items_mut<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut [Value] {
    at_mut(value, path).and_then(Value::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
}

/// Puts a value where there is none, or where there is null or an empty string.
pub(crate) fn or_insert(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    match map.get(key) {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) if text.is_empty() => {}
        Some(_) => return,
    }
    map.insert(key.to_owned(), value.into());
}

/// Puts a value where there is none, or null: an empty string is a value of fields that Go points to.
pub(crate) fn or_default(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    if map.get(key).is_none_or(Value::is_null) {
        map.insert(key.to_owned(), value.into());
    }
}

/// Puts a number where there is none or zero.
pub(crate) fn or_number(map: &mut Map<String, Value>, key: &str, value: i64) {
    let absent = map.get(key).is_none_or(|found| found.is_null() || found.as_i64() == Some(0));
    if absent {
        map.insert(key.to_owned(), value.into());
    }
}
