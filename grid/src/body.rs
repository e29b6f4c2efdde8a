//! JSON text of objects: the few members that decide, and changes of parts of the text in place.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use thiserror::Error;

/// A body that is no object, or in which a member that decides has a wrong type.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the object cannot be read: {0}")]
pub struct BodyError(String);

impl From<serde_json::Error> for BodyError {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// What decides in the metadata of any object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Metadata {
    /// Name.
    #[serde(default)]
    pub name: String,
    /// Namespace; empty for objects of the whole cluster.
    #[serde(default)]
    pub namespace: String,
    /// Labels.
    #[serde(default, deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
}

impl Metadata {
    /// Reads the metadata of an object.
    ///
    /// # Errors
    /// [`BodyError`] for text that is no object with metadata.
    pub fn of(body: &[u8]) -> Result<Self, BodyError> {
        #[derive(Deserialize)]
        struct Object {
            metadata: Metadata,
        }
        Ok(view::<Object>(body)?.metadata)
    }
}

/// Reads a view of an object.
pub(crate) fn view<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, BodyError> {
    // A JSON array would be read as the members in order.
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(BodyError("it is no JSON object".to_owned()));
    }
    Ok(serde_json::from_slice(body)?)
}

/// A member whose absence and null mean the same, as for Go.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A member that is there, also when it is null.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Changes of a text, to be made together.
pub(crate) struct Edits<'a> {
    text: &'a [u8],
    edits: Vec<(Range<usize>, String)>,
}

impl<'a> Edits<'a> {
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self { text, edits: Vec::new() }
    }

    /// Replaces a part that was borrowed from the text.
    pub(crate) fn replace(&mut self, part: &RawValue, by: String) {
        let start = (part.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        self.edits.push((start..start + part.get().len(), by));
    }

    /// Replaces the value of a member of the object, or adds the member.
    pub(crate) fn put(&mut self, name: &str, old: Option<&RawValue>, value: String) {
        if let Some(old) = old {
            return self.replace(old, value);
        }
        // The object has metadata, so there is a member before this one.
        let end = self.text.iter().rposition(|byte| *byte == b'}').unwrap_or(self.text.len());
        self.edits.push((end..end, format!(",\"{name}\":{value}")));
    }

    /// The text itself when there is nothing to change, or else with all changes made.
    pub(crate) fn apply_any(self) -> Cow<'a, [u8]> {
        if self.edits.is_empty() { Cow::Borrowed(self.text) } else { Cow::Owned(self.apply()) }
    }

    /// The text with all changes made.
    pub(crate) fn apply(mut self) -> Vec<u8> {
        self.edits.sort_by_key(|(range, _)| range.start);
        let mut out = Vec::with_capacity(self.text.len());
        let mut taken = 0;
        for (range, by) in &self.edits {
            out.extend_from_slice(self.text.get(taken..range.start).unwrap_or_default());
            out.extend_from_slice(by.as_bytes());
            taken = range.end;
        }
        out.extend_from_slice(self.text.get(taken..).unwrap_or_default());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::Metadata;

    #[test]
    fn metadata_takes_nulls_for_nothing_and_refuses_what_is_no_object() {
        let read = |text: &str| Metadata::of(text.as_bytes());
        let metadata =
            read(r#"{"metadata":{"name":"a","labels":null,"annotations":{"k":"v"},"uid":"u"}}"#).unwrap();
        assert_eq!((metadata.name.as_str(), metadata.labels.len()), ("a", 0));
        assert_eq!(metadata.annotations["k"], "v");
        for text in ["", "null", "[]", "{}", r#"[{"name":"a"}]"#, r#"{"metadata":{"labels":{"a":1}}}"#] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
