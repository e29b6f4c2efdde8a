//! Reading what is recorded: whoever says it chooses how many times its length that takes.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tombolo_proto::Frame;
use tombolo_proto::frame::{Change, ReplyBody, RequestBody};

use crate::kube::{LARGE_TREE_BYTES_MAX, exceeds};

/// Longest text within a document that is taken to be small whatever it holds: the tree of one that is shorter takes some
/// 6 MiB.
const TEXT_LEN_MAX: usize = 64 * 1024;

/// The tree of a document; none where it is no JSON.
///
/// # Errors
/// It, or a document within one of its texts, takes more than [`LARGE_TREE_BYTES_MAX`] beyond its length.
pub(super) fn tree(document: &[u8]) -> io::Result<Option<Value>> {
    measured(document)?;
    let Ok(json) = serde_json::from_slice(document) else { return Ok(None) };
    texts(&json)?;
    Ok(Some(json))
}

/// The same limit for the body of a frame, which is read where the frame is rendered.
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

/// The same for the texts of what was read: redaction reads documents within them, as they are or in base64.
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
        true => Err(io::Error::other("a message has more parts than are recorded")),
        false => Ok(()),
    }
}
