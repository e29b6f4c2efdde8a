//! Edits the JSON text of objects without parsing it completely: finds, replaces and removes single members.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::revision::Revision;
use crate::value::to_bytes;

#[cfg(test)]
mod tests;

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(borrow, default, rename = "resourceVersion", deserialize_with = "present")]
    resource_version: Option<&'a RawValue>,
}

/// A member that is present, even if it is null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Members that come first in the text of an object, in this order.
const HEAD: [&str; 3] = ["kind", "apiVersion", "metadata"];

/// The text of an object with kind, apiVersion and metadata before everything else: parts of such a text can be found
/// without reading all of it (see [`Layout`]).
#[must_use]
pub fn object_text(object: &Value) -> Bytes {
    struct HeadFirst<'a>(&'a serde_json::Map<String, Value>);
    impl Serialize for HeadFirst<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut out = serializer.serialize_map(Some(self.0.len()))?;
            for key in HEAD {
                if let Some(value) = self.0.get(key) {
                    out.serialize_entry(key, value)?;
                }
            }
            for (key, value) in self.0.iter().filter(|(key, _)| !HEAD.contains(&key.as_str())) {
                out.serialize_entry(key, value)?;
            }
            out.end()
        }
    }
    match object {
        Value::Object(members) => {
            serde_json::to_vec(&HeadFirst(members)).map(Bytes::from).unwrap_or_default()
        }
        other => to_bytes(other),
    }
}

/// The positions of the parts of an object's text, for texts that begin as [`object_text`] writes them. Other texts
/// have no layout: a store may hold bodies that were written elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Just behind `{"kind":"…","apiVersion":"…",`.
    head_end: u32,
    metadata: Range<u32>,
    /// The value of `metadata.resourceVersion`, with its quotes.
    revision: Range<u32>,
}

impl Layout {
    /// Locates the parts. Reads the text only up to the end of the metadata.
    #[must_use]
    pub fn of(body: &[u8]) -> Option<Self> {
        let head_end = head_end(body)?;
        let rest = body[head_end..].strip_prefix(b"\"metadata\":").filter(|rest| rest.starts_with(b"{"))?;
        let metadata = serde_json::Deserializer::from_slice(rest).into_iter::<&RawValue>().next()?.ok()?;
        let inner: Metadata<'_> = serde_json::from_str(metadata.get()).ok()?;
        Some(Self {
            head_end: u32::try_from(head_end).ok()?,
            metadata: small(span(body, metadata))?,
            revision: small(span(body, inner.resource_version?))?,
        })
    }

    /// The offset of the metadata: the text from there on, after another head, is an object with the same content.
    pub(crate) fn rest(&self) -> usize {
        self.head_end as usize
    }

    /// The text of the metadata.
    pub(crate) fn metadata<'a>(&self, body: &'a [u8]) -> &'a [u8] {
        &body[large(&self.metadata)]
    }

    /// The text with another revision.
    pub(crate) fn revised(&self, body: &[u8], revision: Revision) -> Bytes {
        splice(body, large(&self.revision), &format!("\"{revision}\""))
    }
}

/// The rest of the text after a JSON string whose opening quote was read; none when the string has escapes.
fn after_text(text: &[u8]) -> Option<&[u8]> {
    let end = text.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    (text[end] == b'"').then(|| &text[end + 1..])
}

fn small(range: Range<usize>) -> Option<Range<u32>> {
    Some(u32::try_from(range.start).ok()?..u32::try_from(range.end).ok()?)
}

fn large(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

/// The text without its kind and apiVersion; `None` when it is not a JSON object.
#[must_use]
pub fn without_type(body: &[u8]) -> Option<Bytes> {
    let members: Members<'_> = serde_json::from_slice(body).ok()?;
    Some(members.text(|name| !matches!(name, "kind" | "apiVersion")).into())
}

/// The text with kind, apiVersion and metadata before everything else, so that its parts can be located (see
/// [`Layout`]); `None` when it is not a JSON object.
#[must_use]
pub fn head_first(body: &Bytes) -> Option<Bytes> {
    if head_end(body).is_some_and(|end| body[end..].starts_with(b"\"metadata\":{")) {
        return Some(body.clone());
    }
    let mut members: Members<'_> = serde_json::from_slice(body).ok()?;
    let rank = |name: &str| HEAD.iter().position(|head| *head == name).unwrap_or(HEAD.len());
    members.0.sort_by_key(|(name, _)| rank(name));
    Some(members.text(|_| true).into())
}

/// The end of the leading kind and apiVersion of a text.
fn head_end(body: &[u8]) -> Option<usize> {
    let rest = after_text(body.strip_prefix(b"{\"kind\":\"")?)?;
    let rest = after_text(rest.strip_prefix(b",\"apiVersion\":\"")?)?.strip_prefix(b",")?;
    Some(body.len() - rest.len())
}

/// The members of an object, as text.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl Members<'_> {
    /// An object with the members that `wanted` selects.
    fn text(&self, wanted: impl Fn(&str) -> bool) -> String {
        let mut text = String::from("{");
        for (name, value) in self.0.iter().filter(|(name, _)| wanted(name)) {
            let comma = if text.len() > 1 { "," } else { "" };
            text.extend([comma, &Value::from(&**name).to_string(), ":", value.get()]);
        }
        text.push('}');
        text
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Members<'de>, A::Error> {
                let mut found = Vec::new();
                while let Some(member) = members.next_entry()? {
                    found.push(member);
                }
                Ok(Members(found))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// The text with `metadata.resourceVersion` set.
///
/// # Errors
/// The reason, when the text is not a JSON object with a `metadata` object.
pub fn with_revision(body: &[u8], revision: Revision) -> Result<Bytes, String> {
    // A JSON array would be deserialized as the members in order.
    if !starts_object(body) {
        return Err("it is no JSON object".to_owned());
    }
    let object: Object<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let metadata = object.metadata.filter(|part| starts_object(part.get().as_bytes()));
    let metadata = metadata.ok_or("it has no metadata")?;
    let inner: Metadata<'_> = serde_json::from_str(metadata.get()).map_err(|error| error.to_string())?;
    if let Some(old) = inner.resource_version {
        return Ok(splice(body, span(body, old), &format!("\"{revision}\"")));
    }
    let start = span(body, metadata).start + 1;
    let empty = metadata.get().trim_start_matches('{').trim_start().starts_with('}');
    let comma = if empty { "" } else { "," };
    Ok(splice(body, start..start, &format!("\"resourceVersion\":\"{revision}\"{comma}")))
}

/// `metadata.resourceVersion` of an object; empty without one.
#[must_use]
pub fn revision(body: &[u8]) -> String {
    let object: Option<Object<'_>> = serde_json::from_slice(body).ok();
    let metadata = object.and_then(|object| object.metadata);
    let inner: Option<Metadata<'_>> = metadata.and_then(|metadata| serde_json::from_str(metadata.get()).ok());
    let text = inner.and_then(|inner| inner.resource_version);
    text.and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default()
}

fn starts_object(text: &[u8]) -> bool {
    text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}

/// The range in `body` of a part that was borrowed from it.
#[must_use]
pub fn span(body: &[u8], part: &RawValue) -> Range<usize> {
    let start = (part.get().as_ptr() as usize).saturating_sub(body.as_ptr() as usize);
    start..start + part.get().len()
}

/// Replaces a range of the text.
#[must_use]
pub fn splice(body: &[u8], range: Range<usize>, text: &str) -> Bytes {
    let mut out = Vec::with_capacity(body.len() - range.len() + text.len());
    out.extend_from_slice(&body[..range.start]);
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(&body[range.end..]);
    out.into()
}
