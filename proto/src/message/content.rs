//! The content of a message: raw JSON that is parsed only when necessary.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::shared_bytes;

/// Exactly one JSON value, as bytes, without white space around it.
///
/// Numbers are never read as floats on the way through, so integers above 2^53 survive
/// (docs/reference/kubeedge.md#content).
#[derive(Clone, PartialEq, Eq)]
pub struct Content(Bytes);

/// Bytes that are not one JSON value, or a value that JSON cannot express.
#[derive(Debug, Error)]
pub enum ContentError {
    /// The bytes are not valid JSON, or something follows the value.
    #[error("message content is not one JSON value: {0}")]
    NotJson(#[source] serde_json::Error),
    /// A Rust value has no JSON form (for example a map with keys that are not text).
    #[error("message content cannot be written as JSON: {0}")]
    NotWritable(#[source] serde_json::Error),
}

impl Content {
    /// `null`: a message without content.
    #[must_use]
    pub fn null() -> Self {
        Self(Bytes::from_static(b"null"))
    }

    /// `"OK"`: acknowledgement and success.
    #[must_use]
    pub fn ok() -> Self {
        Self(Bytes::from_static(b"\"OK\""))
    }

    /// `"ping"`: content of a keepalive.
    #[must_use]
    pub fn ping() -> Self {
        Self(Bytes::from_static(b"\"ping\""))
    }

    /// A JSON string. Patches travel like this (docs/reference/kubeedge.md#content).
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self(serde_json::Value::from(text).to_string().into())
    }

    /// Takes raw JSON; the bytes are checked and shared, not copied.
    ///
    /// # Errors
    /// [`ContentError::NotJson`] when the bytes are not exactly one JSON value.
    pub fn from_json(bytes: &Bytes) -> Result<Self, ContentError> {
        let raw: &RawValue = serde_json::from_slice(bytes).map_err(ContentError::NotJson)?;
        Ok(Self(bytes.slice_ref(raw.get().as_bytes())))
    }

    /// Writes a value as JSON.
    ///
    /// # Errors
    /// [`ContentError::NotWritable`] when the value has no JSON form.
    pub fn from_value(value: &impl Serialize) -> Result<Self, ContentError> {
        serde_json::to_vec(value).map(|json| Self(json.into())).map_err(ContentError::NotWritable)
    }

    /// Wraps text that a JSON parser has already accepted as one value.
    pub(crate) fn from_checked(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// The content without the rest of the `whole` document that it arrived in, when that is large.
    pub(crate) fn kept(self, whole: usize) -> Self {
        Self(shared_bytes::part(self.0, whole))
    }

    /// The JSON as bytes.
    #[must_use]
    pub fn as_json(&self) -> &Bytes {
        &self.0
    }

    /// Whether there is no content.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.0 == b"null"[..]
    }

    /// Whether this is the literal `OK`.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.as_text().as_deref() == Some("OK")
    }

    /// Whether this is a JSON object.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.0.first() == Some(&b'{')
    }

    /// The text when this is a JSON string.
    #[must_use]
    pub fn as_text(&self) -> Option<Cow<'_, str>> {
        let quoted = self.0.first() == Some(&b'"');
        // A string may hold half of a surrogate pair, which is valid JSON but not text.
        quoted.then(|| serde_json::from_slice::<BorrowedText<'_>>(&self.0).ok()).flatten().map(|text| text.0)
    }

    /// KubeEdge's "content as bytes": the text of a JSON string, the JSON of anything else
    /// (docs/reference/kubeedge.md#content).
    ///
    /// An object and a string that holds the object's JSON give the same bytes, as at a KubeEdge receiver.
    #[must_use]
    pub fn payload(&self) -> Cow<'_, [u8]> {
        match self.as_text() {
            Some(Cow::Borrowed(text)) => Cow::Borrowed(text.as_bytes()),
            Some(Cow::Owned(text)) => Cow::Owned(text.into_bytes()),
            None => Cow::Borrowed(&self.0),
        }
    }

    /// Reads the payload as a typed value.
    ///
    /// # Errors
    /// [`ContentError::NotJson`] when the payload is not JSON of that type; the text says where.
    pub fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T, ContentError> {
        serde_json::from_slice(&self.payload()).map_err(ContentError::NotJson)
    }
}

/// A JSON string, copied only when it has escapes.
#[derive(serde::Deserialize)]
pub(crate) struct BorrowedText<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Content may be a Secret: logs show only its size.
        write!(f, "Content({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &'static str) -> Content {
        Content::from_json(&Bytes::from_static(text.as_bytes())).expect(text)
    }

    #[test]
    fn large_integers_and_member_order_survive() {
        let text = r#"{"z":9007199254740993,"a":1.50}"#;
        assert_eq!(json(text).as_json(), text);
    }

    #[test]
    fn white_space_around_the_value_is_cut() {
        assert_eq!(json(" {\"a\": 1}\n").as_json(), "{\"a\": 1}");
    }

    #[test]
    fn text_other_than_one_value_is_refused() {
        for text in ["", "{", "{} {}", "nul", "\u{1}", "OK"] {
            assert!(Content::from_json(&Bytes::from(text)).is_err(), "{text:?}");
        }
    }

    #[test]
    fn payload_follows_the_three_branches() {
        let cases = [
            (r#""{\"a\":1}""#, r#"{"a":1}"#),
            (r#"{"a":1}"#, r#"{"a":1}"#),
            ("null", "null"),
            ("[1]", "[1]"),
            (r#""aGk=""#, "aGk="),
            (r#""\u003c""#, "<"),
        ];
        for (content, payload) in cases {
            assert_eq!(json(content).payload(), payload.as_bytes(), "{content}");
        }
    }

    #[test]
    fn patch_text_reads_as_the_object_in_it() {
        let patch = Content::text(r#"{"status":{"phase":"Running"}}"#);
        let value: serde_json::Value = patch.read().expect("the string holds JSON");
        assert_eq!(value["status"]["phase"], "Running");
    }

    #[test]
    fn literals_are_recognised() {
        assert!(Content::ok().is_ok() && json(r#""\u004fK""#).is_ok());
        assert!(!Content::ping().is_ok() && !Content::null().is_ok());
        assert!(Content::null().is_null() && Content::null().as_text().is_none());
    }

    #[test]
    fn a_lone_surrogate_is_content_but_not_text() {
        let content = json(r#""\ud800""#);
        assert_eq!(content.as_text(), None);
        assert_eq!(content.payload().as_ref(), br#""\ud800""#);
    }

    #[test]
    fn debug_text_shows_no_content() {
        assert_eq!(format!("{:?}", Content::text("hunter2")), "Content(9 bytes)");
    }
}
