//! Packages: how frames are cut out of a byte stream, and large frames into pieces
//! (docs/reference/kubeedge.md#package-header).
//!
//! A package is a header of ten bytes and a payload: the whole protobuf of a frame, or a piece of it.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | version: major, minor, fix, 0; written as `01 01 01 00`, read with any minor and fix |
//! | 4 | 1 | type: 1 |
//! | 5 | 1 | flags: bit 0 more pieces follow, bits 1 and 2 lane number, others 0 |
//! | 6 | 4 | length of the payload, big-endian, at most [`limits::FRAME_LEN_MAX`] |

mod assembler;
mod reader;

pub use assembler::Assembler;
pub use reader::Reader;

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::ids::Lane;
use crate::limits;

/// Bytes of a package header.
pub const HEADER_LEN: usize = 10;

const VERSION: [u8; 4] = [1, 1, 1, 0];
const KIND_MESSAGE: u8 = 1;
const FLAG_MORE: u8 = 0x01;
const LANE_SHIFT: u32 = 1;
const LANE_MASK: u8 = 0x06;

/// Why bytes are not a package. Nothing after such bytes in the same stream can be trusted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PackageError {
    /// The first byte is another major version, or the stream is of another protocol.
    #[error(
        "package header starts with version {0:02x?}, expected major version 1: the peer speaks another protocol"
    )]
    Version([u8; 4]),
    /// The package type is not a message.
    #[error("package type {0} is unknown, expected 1 (message)")]
    Kind(u8),
    /// A flag that this version does not know, or a lane that does not exist.
    #[error("package flags {0:#04x} are unknown")]
    Flags(u8),
    /// The length in the header, or of all pieces together, is too large.
    #[error("{what} of {len} bytes exceeds the limit of {max} bytes")]
    TooLarge {
        /// Package or frame.
        what: &'static str,
        /// Bytes announced or received.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// One WebSocket message must be one package.
    #[error("WebSocket message of {message} bytes holds a package of {package} bytes; they must be equal")]
    Length {
        /// Bytes of the message.
        message: usize,
        /// Bytes that the header announces, itself included.
        package: usize,
    },
    /// An empty piece that announces more pieces, which could repeat forever.
    #[error("empty piece of a frame that promises more pieces")]
    EmptyPiece,
}

/// The fields of a package header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Lane of the frame.
    pub lane: Lane,
    /// The frame continues in the lane's next package.
    pub more: bool,
    /// Payload bytes.
    pub len: u32,
}

impl Header {
    /// The header of a payload.
    ///
    /// # Errors
    /// [`PackageError::TooLarge`] above [`limits::FRAME_LEN_MAX`].
    pub fn new(lane: Lane, more: bool, payload_len: usize) -> Result<Self, PackageError> {
        match u32::try_from(payload_len) {
            Ok(len) if payload_len <= limits::FRAME_LEN_MAX => Ok(Self { lane, more, len }),
            _ => Err(too_large("package", payload_len)),
        }
    }

    /// Encodes the ten bytes.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_LEN] {
        let [v0, v1, v2, v3] = VERSION;
        let [l0, l1, l2, l3] = self.len.to_be_bytes();
        let flags = ((self.lane as u8) << LANE_SHIFT) | u8::from(self.more);
        [v0, v1, v2, v3, KIND_MESSAGE, flags, l0, l1, l2, l3]
    }

    /// Decodes the ten bytes and checks each of them.
    ///
    /// # Errors
    /// [`PackageError`] when a field has a value that this version does not know or the length exceeds the limit.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, PackageError> {
        let [v0, v1, v2, v3, kind, flags, l0, l1, l2, l3] = *bytes;
        if v0 != VERSION[0] {
            return Err(PackageError::Version([v0, v1, v2, v3]));
        }
        if kind != KIND_MESSAGE {
            return Err(PackageError::Kind(kind));
        }
        let lane = Lane::from_number((flags & LANE_MASK) >> LANE_SHIFT);
        let lane = lane.filter(|_| flags & !(LANE_MASK | FLAG_MORE) == 0);
        let lane = lane.ok_or(PackageError::Flags(flags))?;
        let len = u32::from_be_bytes([l0, l1, l2, l3]);
        Self::new(lane, flags & FLAG_MORE != 0, usize::try_from(len).unwrap_or(usize::MAX))
    }

    fn payload_len(self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX)
    }
}

fn too_large(what: &'static str, len: usize) -> PackageError {
    PackageError::TooLarge { what, len, max: limits::FRAME_LEN_MAX }
}

/// One package: a frame's bytes, or a piece of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Lane of the frame.
    pub lane: Lane,
    /// The frame continues in the lane's next package.
    pub more: bool,
    /// The bytes.
    pub payload: Bytes,
}

impl Package {
    /// Reads a WebSocket message, which is exactly one package. The payload shares the message's bytes.
    ///
    /// # Errors
    /// [`PackageError`] when the header is bad or the lengths differ.
    pub fn parse(message: &Bytes) -> Result<Self, PackageError> {
        let Some((head, payload)) = message.split_first_chunk::<HEADER_LEN>() else {
            return Err(PackageError::Length { message: message.len(), package: HEADER_LEN });
        };
        let header = Header::decode(head)?;
        if header.payload_len() != payload.len() {
            let package = header.payload_len().saturating_add(HEADER_LEN);
            return Err(PackageError::Length { message: message.len(), package });
        }
        Ok(Self { lane: header.lane, more: header.more, payload: message.slice(HEADER_LEN..) })
    }
}

/// One whole frame as one package.
///
/// # Errors
/// [`PackageError::TooLarge`] above [`limits::FRAME_LEN_MAX`].
pub fn whole(lane: Lane, frame: &[u8]) -> Result<Bytes, PackageError> {
    let mut out = BytesMut::with_capacity(HEADER_LEN.saturating_add(frame.len()));
    out.put_slice(&Header::new(lane, false, frame.len())?.encode());
    out.put_slice(frame);
    Ok(out.freeze())
}

/// Cuts a frame into packages of at most [`limits::FRAGMENT_LEN`] payload bytes, so that other lanes can send in
/// between and a receiver needs room only for one piece at a time.
///
/// # Errors
/// [`PackageError::TooLarge`] above [`limits::FRAME_LEN_MAX`].
pub fn fragments(lane: Lane, frame: Bytes) -> Result<Fragments, PackageError> {
    Header::new(lane, false, frame.len())?;
    Ok(Fragments { lane, rest: Some(frame) })
}

/// Packages of one frame, in order; see [`fragments`].
#[derive(Debug)]
pub struct Fragments {
    lane: Lane,
    rest: Option<Bytes>,
}

impl Iterator for Fragments {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut rest = self.rest.take()?;
        let piece = rest.split_to(rest.len().min(limits::FRAGMENT_LEN));
        let more = !rest.is_empty();
        if more {
            self.rest = Some(rest);
        }
        let header = Header { lane: self.lane, more, len: u32::try_from(piece.len()).unwrap_or(u32::MAX) };
        let mut out = BytesMut::with_capacity(HEADER_LEN.saturating_add(piece.len()));
        out.put_slice(&header.encode());
        out.put_slice(&piece);
        Some(out.freeze())
    }
}

#[cfg(test)]
mod tests;
