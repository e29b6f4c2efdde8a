//! The special keys of a strategic merge patch.

use serde_json::{Map, Value};

use super::PatchError;
use crate::gofmt;

/// `$patch`: how to treat the object that contains it.
pub(super) const PATCH: &str = "$patch";
/// `$retainKeys`: fields that are not listed are removed.
pub(super) const RETAIN_KEYS: &str = "$retainKeys";
/// `$deleteFromPrimitiveList/FIELD`: values to remove from a list of scalars.
pub(super) const DELETE_FROM: &str = "$deleteFromPrimitiveList";
/// `$setElementOrder/FIELD`: the order of the merged list.
const ORDER: &str = "$setElementOrder";

/// The key that states the order of the list in a field.
pub(super) fn order_of(field: &str) -> String {
    format!("{ORDER}/{field}")
}

/// The value of `$patch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Directive {
    Replace,
    Delete,
}

/// The meaning of a key of a patch.
pub(super) enum PatchKey<'a> {
    /// A field of the object.
    Field(&'a str),
    /// Values to remove from the list in a field.
    DeleteFrom(&'a str),
    /// The order of the list in a field.
    Order(&'a str),
    /// A directive about the object as a whole.
    Own,
}

/// Reads a key of a patch.
pub(super) fn key(key: &str) -> PatchKey<'_> {
    let of = |prefix: &str| key.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/'));
    if key == PATCH || key == RETAIN_KEYS {
        return PatchKey::Own;
    }
    match (of(DELETE_FROM), of(ORDER)) {
        (Some(field), _) => PatchKey::DeleteFrom(field),
        (_, Some(field)) => PatchKey::Order(field),
        _ => PatchKey::Field(key),
    }
}

/// The `$patch` of an object.
pub(super) fn directive(map: &Map<String, Value>) -> Result<Option<Directive>, PatchError> {
    let Some(value) = map.get(PATCH) else { return Ok(None) };
    match value.as_str() {
        Some("replace") => Ok(Some(Directive::Replace)),
        Some("delete") => Ok(Some(Directive::Delete)),
        _ => {
            let shown = match value {
                Value::String(text) => text.clone(),
                // Formatted as Go prints a non-string where it expects a string.
                other => format!("%!s({}={})", gofmt::type_name(other), gofmt::value(other)),
            };
            let map = gofmt::value(&Value::Object(map.clone()));
            Err(PatchError::Unmergeable(format!("unknown patch type: {shown} in map: {map}")))
        }
    }
}

/// The `$patch` of an item of a list.
pub(super) fn item_directive(map: &Map<String, Value>) -> Result<Option<Directive>, PatchError> {
    match map.get(PATCH).and_then(Value::as_str) {
        Some("merge") => {
            Err(PatchError::Unmergeable("merging lists cannot yet be specified in the patch".to_owned()))
        }
        _ => directive(map),
    }
}

/// A value of the patch without directives and nulls, as it is inserted where nothing was. An object with a directive
/// becomes nothing.
pub(super) fn stripped(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let is_directive = |value: &Value| value.get(PATCH).is_some();
            let kept = map.iter().filter(|(name, value)| {
                !value.is_null() && !is_directive(value) && matches!(key(name), PatchKey::Field(_))
            });
            Value::Object(kept.map(|(name, value)| (name.clone(), stripped(value))).collect())
        }
        Value::Array(items) => {
            let kept = items.iter().filter(|item| item.get(PATCH).is_none());
            Value::Array(kept.map(stripped).collect())
        }
        scalar => scalar.clone(),
    }
}
