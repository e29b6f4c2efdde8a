//! Frames as protobuf and back (dialect `tombolo`, version 1; `protocol/tombolo.proto`).
//!
//! Durations travel as whole milliseconds, rounded up. Texts for operators and software versions are cut to their
//! limits on encoding and on decoding; every other text beyond its limit is refused.

mod deliver;
mod guard;
mod parts;
mod read;
mod wire;
mod write;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message as _;
use thiserror::Error;

use crate::error::IdError;
use crate::frame::{Change, Deliver, Frame, Reply, ReplyBody, Request, RequestBody, Subscribe, Undecodable};
use crate::ids::Lane;
use crate::limits;
use crate::message::{Content, ContentError, FieldError};
use crate::object::{ObjectKey, SharedObject};
use crate::package::{HEADER_LEN, Header, PackageError};
use crate::shared_bytes;

/// Why bytes are not a frame of this version.
#[derive(Debug, Error)]
pub enum CodecError {
    /// The bytes break the rules of protobuf.
    #[error("frame is not valid protobuf: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// The bytes hold no frame.
    #[error("frame has no content")]
    Empty,
    /// A frame of a later version.
    #[error("frame kind {tag} is unknown to this version: the peer must not send it after the welcome")]
    UnknownKind {
        /// Field number of the frame.
        tag: u32,
    },
    /// More than one frame in one payload.
    #[error("payload holds several frames (kinds {first} and {second}), expected one")]
    Several {
        /// Field number of the first.
        first: u32,
        /// Field number of the second.
        second: u32,
    },
    /// A required field of the frame is missing.
    #[error("{field} is missing")]
    Missing {
        /// Name of the field.
        field: &'static str,
    },
    /// A number outside its allowed set.
    #[error("{field} is {value}, expected {rule}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// Value received.
        value: u64,
        /// Allowed values.
        rule: &'static str,
    },
    /// Too long or too many.
    #[error("{field}: {size} exceeds the limit of {max}")]
    Limit {
        /// Name of the field.
        field: &'static str,
        /// Bytes or entries received.
        size: usize,
        /// Bytes or entries allowed.
        max: usize,
    },
    /// An identity that breaks its grammar.
    #[error("{field}: {source}")]
    Id {
        /// Name of the field.
        field: &'static str,
        /// The broken rule.
        source: IdError,
    },
    /// A field of a message breaks its rule.
    #[error("message {0}")]
    Message(#[from] FieldError),
    /// Message content that is not JSON.
    #[error("message content: {0}")]
    Content(#[from] ContentError),
    /// A compressed body that does not decompress to the announced length.
    #[error("compressed body: {0}")]
    Compression(String),
}

/// Encodes a frame as protobuf. `zstd` says that the peer reads compressed bodies (`features::ZSTD`).
#[must_use]
pub fn encode(frame: &Frame, zstd: bool) -> Bytes {
    let encoded = Encoded::new(frame, zstd);
    let mut out = BytesMut::with_capacity(encoded.len());
    encoded.write(&mut out);
    out.freeze()
}

/// Length of the output of [`encode`] without compression, in bytes.
#[must_use]
pub fn encoded_len(frame: &Frame) -> usize {
    Encoded::new(frame, false).len()
}

/// Encodes a frame in two pieces, where the second is a large body without a copy: ten thousand slow connections share
/// one copy of it, and an answer is not in memory twice. Both pieces together are the output of [`encode`].
#[must_use]
pub fn encode_pieces(frame: &Frame, zstd: bool) -> (Bytes, Bytes) {
    match frame {
        Frame::Deliver(Deliver { seq, subscription, change: Change::Upsert(object) })
            if object.body.len() >= limits::BULK_OBJECT_MIN =>
        {
            deliver::Upsert::new(*seq, *subscription, object, zstd).into_pieces()
        }
        Frame::Reply(Reply { id, body: ReplyBody::Api(reply) })
            if reply.body.len() >= limits::BULK_OBJECT_MIN =>
        {
            (deliver::reply_head(*id, reply), reply.body.clone())
        }
        other => (encode(other, zstd), Bytes::new()),
    }
}

/// Encodes a frame as one whole package, header and payload in one allocation, for one WebSocket message.
///
/// # Errors
/// [`PackageError::TooLarge`] when the frame exceeds [`limits::FRAME_LEN_MAX`].
pub fn encode_package(lane: Lane, frame: &Frame, zstd: bool) -> Result<Bytes, PackageError> {
    let encoded = Encoded::new(frame, zstd);
    let len = encoded.len();
    let header = Header::new(lane, false, len)?;
    let mut out = BytesMut::with_capacity(HEADER_LEN.saturating_add(len));
    out.put_slice(&header.encode());
    encoded.write(&mut out);
    Ok(out.freeze())
}

/// A frame in the form in which it is encoded.
enum Encoded<'a> {
    /// An object for one of many nodes.
    Upsert(deliver::Upsert<'a>),
    /// Anything else.
    Frame(Box<wire::Frame>),
}

impl<'a> Encoded<'a> {
    fn new(frame: &'a Frame, zstd: bool) -> Self {
        match frame {
            Frame::Deliver(Deliver { seq, subscription, change: Change::Upsert(object) }) => {
                Self::Upsert(deliver::Upsert::new(*seq, *subscription, object, zstd))
            }
            other => Self::Frame(Box::new(write::frame(other))),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Upsert(upsert) => upsert.len(),
            Self::Frame(frame) => frame.encoded_len(),
        }
    }

    fn write(&self, out: &mut BytesMut) {
        match self {
            Self::Upsert(upsert) => upsert.write(out),
            Self::Frame(frame) => frame.encode_raw(out),
        }
    }
}

/// Decodes a frame. Object bodies and message contents share the payload's bytes. A delivery whose content breaks a
/// rule becomes [`Frame::Undecodable`] when its position and subscription can be read: one object must not end a
/// session.
///
/// # Errors
/// [`CodecError`] when the bytes are not a frame of this version or exceed a limit; counts are checked before memory
/// is allocated for their entries.
pub fn decode(payload: Bytes) -> Result<Frame, CodecError> {
    if payload.len() > limits::FRAME_LEN_MAX {
        return Err(CodecError::Limit { field: "frame", size: payload.len(), max: limits::FRAME_LEN_MAX });
    }
    let bytes = payload.clone();
    match read_whole(payload) {
        Ok(frame) => Ok(frame),
        Err(error) => match guard::delivery_position(&bytes) {
            Some((seq, subscription)) => Ok(Frame::Undecodable(Undecodable {
                seq,
                subscription,
                reason: parts::sentence(error.to_string()),
            })),
            None => Err(error),
        },
    }
}

/// Memory that decoding a frame takes while it is processed, including the payload, in bytes. For callers that reserve
/// the memory first.
#[must_use]
pub fn weight(payload: &[u8]) -> usize {
    guard::weight(payload)
}

/// Whether a peer can decode this key. An edge cannot name an object with any other key in an inventory.
#[must_use]
pub fn carries(key: &ObjectKey) -> bool {
    parts::check_key(key).is_ok()
}

/// Whether the cloud can decode this request. Checked before it is sent: unusual text from one client must not cost
/// the node its session.
pub(crate) fn check_request(request: &Request) -> Result<(), CodecError> {
    read::check_request(write::request(request))
}

/// The same for a subscription; its inventory comes from the store and is not checked.
pub(crate) fn check_subscribe(subscribe: &Subscribe) -> Result<(), CodecError> {
    read::check_subscribe(subscribe)
}

fn read_whole(payload: Bytes) -> Result<Frame, CodecError> {
    guard::check(&payload)?;
    let len = payload.len();
    let kind = wire::Frame::decode(payload)?.kind.ok_or(CodecError::Empty)?;
    Ok(match read::frame(kind)? {
        Frame::Request(request) => Frame::Request(kept(request, len)),
        frame => frame,
    })
}

/// A request stays in memory while it waits, and is accounted by its body, so the rest of the frame's bytes is
/// dropped.
fn kept(mut request: Request, payload: usize) -> Request {
    match &mut request.body {
        RequestBody::Api(api) => api.body = shared_bytes::part(std::mem::take(&mut api.body), payload),
        RequestBody::Message(message) => {
            let content = std::mem::replace(&mut message.content, Content::null());
            message.content = content.kept(payload);
        }
    }
    request
}

/// Why a peer could not decode a delivery of this object; none when it could. An API server stores names that no edge
/// can hold. Checked before an object is sent; the result is cached.
pub(crate) fn obstacle(object: &SharedObject) -> Option<&str> {
    object.obstacle(|| unreadable(&object.key, &object.dependencies))
}

pub(crate) fn unreadable(key: &ObjectKey, dependencies: &[ObjectKey]) -> Option<String> {
    let of = |key: &ObjectKey, what: &str| {
        parts::check_key(key).err().map(|error| format!("{what} no edge can hold: {error}"))
    };
    of(key, "it has a name that")
        .or_else(|| dependencies.iter().find_map(|key| of(key, "it refers to an object that")))
}

#[cfg(test)]
mod tests;
