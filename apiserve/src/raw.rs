//! JSON text of objects without parsing them: finding and replacing a few members in place.

use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::store::Revision;

#[cfg(test)]
mod tests;

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow, rename = "apiVersion")]
    api_version: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(borrow, default, rename = "resourceVersion", deserialize_with = "present")]
    resource_version: Option<&'a RawValue>,
}

/// A member that is there, also when it is null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// The text with `metadata.resourceVersion` set.
///
/// # Errors
/// What is wrong, when the text is not a JSON object with a `metadata` object.
pub fn with_revision(body: &[u8], revision: Revision) -> Result<Bytes, String> {
    // A JSON array would be read as the members in order.
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

/// The text with `apiVersion` replaced; `None` when it has that value already (or none at all).
#[must_use]
pub fn with_api_version(body: &[u8], api_version: &str) -> Option<Bytes> {
    let object: Object<'_> = serde_json::from_slice(body).ok()?;
    let old = object.api_version?;
    let new = format!("\"{api_version}\"");
    (old.get() != new).then(|| splice(body, span(body, old), &new))
}

fn starts_object(text: &[u8]) -> bool {
    text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}

/// Where a part that was borrowed from `body` lies in it.
fn span(body: &[u8], part: &RawValue) -> Range<usize> {
    let start = (part.get().as_ptr() as usize).saturating_sub(body.as_ptr() as usize);
    start..start + part.get().len()
}

fn splice(body: &[u8], place: Range<usize>, text: &str) -> Bytes {
    let mut out = Vec::with_capacity(body.len() - place.len() + text.len());
    out.extend_from_slice(&body[..place.start]);
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(&body[place.end..]);
    out.into()
}
