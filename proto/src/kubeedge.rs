//! The JSON message dialect of KubeEdge (`kubeedge`): one message, one JSON document
//! (docs/reference/kubeedge.md#json-envelope).
//!
//! Decoding is as lenient as Go's: unknown members are ignored, member names match in any case, the last of two equal
//! members counts, `null` is an absent value, and bytes after the first JSON value are discarded. Content is cut out
//! unchanged. Encoding uses Go's member order and leaves out what Go leaves out.

mod envelope;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::limits;
use crate::message::{Content, FieldError, Message, MessageId};
use crate::shared_bytes;
use envelope::Envelope;

/// Why bytes are not a message.
#[derive(Debug, Error)]
pub enum EnvelopeError {
    /// The document is too large.
    #[error("message of {len} bytes exceeds the limit of {max} bytes")]
    TooLarge {
        /// Bytes received.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The bytes are not a JSON object with the envelope's members.
    #[error("message is not a KubeEdge JSON envelope: {0}")]
    Json(#[from] serde_json::Error),
    /// A field of the header or the route breaks its rule.
    #[error("message {0}")]
    Field(#[from] FieldError),
}

/// Reads one message, with its resource path in wire spelling. The content shares the document's bytes unless that
/// would keep much else in memory.
///
/// # Errors
/// [`EnvelopeError`] when the document is empty, too large or not an envelope, has no `msg_id`, or a field breaks its
/// limit. Unknown operations, types, sources and groups are not errors.
pub fn decode(document: &Bytes) -> Result<Message, EnvelopeError> {
    if document.len() > limits::FRAME_LEN_MAX {
        return Err(EnvelopeError::TooLarge { len: document.len(), max: limits::FRAME_LEN_MAX });
    }
    // The deserializer stops after the first value: the rest is discarded, as in Go.
    let mut deserializer = serde_json::Deserializer::from_slice(document);
    let Envelope { raw, content } = Envelope::deserialize(&mut deserializer)?;
    let content = match content {
        Some(value) => Content::from_checked(shared_bytes::part(
            document.slice_ref(value.get().as_bytes()),
            document.len(),
        )),
        None => Content::null(),
    };
    Ok(raw.check(content)?)
}

/// Writes one message, with its resource path in wire spelling.
#[must_use]
pub fn encode(message: &Message) -> Bytes {
    let content = message.content.as_json();
    let mut out = encode_head(message);
    out.reserve(content.len().saturating_add(1));
    out.extend_from_slice(content);
    out.push(b'}');
    out.into()
}

/// The document up to its content, which the caller appends together with the closing brace.
pub(crate) fn encode_head(message: &Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_LEN);
    out.extend_from_slice(b"{\"header\":");
    append(&mut out, &HeaderOut::of(message));
    out.extend_from_slice(b",\"route\":");
    append(&mut out, &RouteOut::of(message));
    out.extend_from_slice(b",\"content\":");
    out
}

/// The start of the document of a message that answers no other, up to and including its time. The header parts that
/// follow are the same in every message about the same object version.
pub(crate) fn encode_opening(id: &MessageId, timestamp_millis: i64) -> Vec<u8> {
    let mut out = Vec::with_capacity(OPENING_LEN);
    out.extend_from_slice(b"{\"header\":{\"msg_id\":");
    id.with_text(|text| append(&mut out, &text));
    out.extend_from_slice(b",\"timestamp\":");
    append(&mut out, &timestamp_millis);
    out
}

/// Usual length of this opening with a UUID, in bytes.
const OPENING_LEN: usize = 96;

/// Usual length of header and route, in bytes.
const HEAD_LEN: usize = 384;

/// Appends a value that has only texts, numbers and flags, which serde_json can always write.
fn append(out: &mut Vec<u8>, value: &impl Serialize) {
    let start = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"{}");
    }
}

#[derive(Serialize)]
struct HeaderOut<'a> {
    #[serde(serialize_with = "id_text")]
    msg_id: &'a MessageId,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "parent_text")]
    parent_msg_id: Option<&'a MessageId>,
    timestamp: i64,
    #[serde(rename = "resourceversion", skip_serializing_if = "str::is_empty")]
    resource_version: &'a str,
    #[serde(skip_serializing_if = "is_false")]
    sync: bool,
    #[serde(rename = "type", skip_serializing_if = "str::is_empty")]
    context_type: &'a str,
}

impl<'a> HeaderOut<'a> {
    fn of(message: &'a Message) -> Self {
        let header = &message.header;
        Self {
            msg_id: &header.id,
            parent_msg_id: header.parent.as_ref(),
            timestamp: header.timestamp_millis,
            resource_version: &header.resource_version,
            sync: header.sync,
            context_type: &header.context_type,
        }
    }
}

#[derive(Serialize)]
struct RouteOut<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    source: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    destination: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    operation: &'a str,
    #[serde(skip_serializing_if = "String::is_empty")]
    resource: String,
}

impl<'a> RouteOut<'a> {
    fn of(message: &'a Message) -> Self {
        let route = &message.route;
        Self {
            source: route.source.as_str(),
            destination: &route.destination,
            group: route.group.as_str(),
            operation: route.operation.as_str(),
            resource: route.resource.to_wire(),
        }
    }
}

fn id_text<S: serde::Serializer>(id: &&MessageId, serializer: S) -> Result<S::Ok, S::Error> {
    id.with_text(|text| serializer.serialize_str(text))
}

fn parent_text<S: serde::Serializer>(id: &Option<&MessageId>, serializer: S) -> Result<S::Ok, S::Error> {
    match id {
        Some(id) => id_text(id, serializer),
        None => serializer.serialize_none(),
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's `skip_serializing_if` passes a reference
fn is_false(flag: &bool) -> bool {
    !flag
}

#[cfg(test)]
mod tests;
