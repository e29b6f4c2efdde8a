//! Reads recorded content within memory limits: its sender decides how much more memory than bytes it takes.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tombolo_proto::Frame;
use tombolo_proto::frame::{Change, ReplyBody, RequestBody};

use crate::kube::{LARGE_TREE_BYTES_MAX, exceeds};

/// Longest text within a document that is assumed small whatever it contains: the parsed tree of a shorter text takes
/// about 6 MiB.
const TEXT_LEN_MAX: usize = 64 * 1024;

/// The parsed document; `None` if it is not JSON.
///
/// # Errors
/// The document, or one within its texts, takes more than [`LARGE_TREE_BYTES_MAX`] beyond its length.
pub(super) fn tree(document: &[u8]) -> io::Result<Option<Value>> {
    measured(document)?;
    let Ok(json) = serde_json::from_slice(document) else { return Ok(None) };
    texts(&json)?;
    Ok(Some(json))
}

/// Checks the same limit for the body of a frame, which is parsed when the frame is rendered.
///
/// # Errors
/// As [`tree`].
pub(super) fn body(frame: &Frame) -> io::Result<()> {
    match frame {
        Frame::Deliver(deliver) => match &deliver.change {
            Change::Upsert(object) => measured(&object.body),
            _ => Ok(()),
        },
        Frame::Request(request) => match &request.body {
            RequestBody::Message(message) => measured(message.content.as_json()),
            RequestBody::Api(call) => measured(&call.body),
        },
        Frame::Reply(reply) => match &reply.body {
            ReplyBody::Message(message) => measured(message.content.as_json()),
            ReplyBody::Api(reply) => measured(&reply.body),
        },
        _ => Ok(()),
    }
}

/// Checks the same limit for the texts of a parsed document: redaction parses documents within them, plain or in
/// base64.
///
/// # Errors
/// As [`tree`].
pub(super) fn texts(json: &Value) -> io::Result<()> {
    match json {
        Value::Array(items) => items.iter().try_for_each(texts),
        Value::Object(members) => members.values().try_for_each(texts),
        Value::String(text) if text.len() > TEXT_LEN_MAX => match STANDARD.decode(text) {
            Ok(decoded) => tree(&decoded).map(drop),
            Err(_) if text.starts_with('{') => tree(text.as_bytes()).map(drop),
            Err(_) => Ok(()),
        },
        _ => Ok(()),
    }
}

fn measured(text: &[u8]) -> io::Result<()> {
    match exceeds(std::iter::once(text), LARGE_TREE_BYTES_MAX) {
        true => Err(io::Error::other("a message has too many parts to be recorded")),
        false => Ok(()),
    }
}
