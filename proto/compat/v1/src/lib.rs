//! What version 1 of dialect `tombolo` reads, frozen: packages, frames, and the rules that both must keep.
//!
//! Tests decode with it what the present code encodes: a peer of version 1 must understand it. Neither this code nor
//! `protocol/` changes when the present code does, and no product uses it (docs/protocol.md#compatibility).

mod rules;
mod wire;

use bytes::{Buf, Bytes};
use prost::Message as _;
use prost::encoding::{DecodeContext, decode_key, skip_field};

pub use wire::*;

/// Largest frame, in bytes.
const FRAME_LEN_MAX: usize = 32 * 1024 * 1024;

/// Most payload bytes of a package of a frame that is sent in pieces.
const FRAGMENT_LEN: usize = 16 * 1024;

/// Bytes of a package header.
const HEADER_LEN: usize = 10;

/// Field numbers of `Frame.kind`: 1 to 20, without 19.
const KIND_MAX: u32 = 20;
const KIND_FREE: u32 = 19;

/// Puts the packages of a connection together, and decodes the frames in them.
#[derive(Debug, Default)]
pub struct Receiver {
    lanes: [Vec<u8>; 3],
}

impl Receiver {
    /// Takes a package; returns lane and frame when it was the frame's last piece. The body of a delivery is
    /// decompressed.
    ///
    /// # Errors
    /// What version 1 refuses, as a sentence.
    pub fn accept(&mut self, package: &[u8]) -> Result<Option<(usize, frame::Kind)>, String> {
        let (head, payload) = package.split_first_chunk::<HEADER_LEN>().ok_or("no package header")?;
        let [major, _, _, _, kind, flags, length @ ..] = *head;
        if (major, kind) != (1, 1) || flags & 0b1111_1000 != 0 {
            return Err(format!("package header {head:02x?}"));
        }
        if usize::try_from(u32::from_be_bytes(length)) != Ok(payload.len()) || payload.len() > FRAGMENT_LEN {
            return Err(format!("package of {} bytes with header {head:02x?}", payload.len()));
        }
        let (lane, more) = (usize::from(flags >> 1), flags & 1 != 0);
        let pending = self.lanes.get_mut(lane).ok_or("no such lane")?;
        if more && payload.is_empty() {
            return Err("empty piece".to_owned());
        }
        pending.extend_from_slice(payload);
        if pending.len() > FRAME_LEN_MAX {
            return Err("frame is too large".to_owned());
        }
        if more {
            return Ok(None);
        }
        decode(std::mem::take(pending).into()).map(|frame| Some((lane, frame)))
    }
}

/// Decodes a frame. The body of a delivery is decompressed.
///
/// # Errors
/// What version 1 refuses, as a sentence.
pub fn decode(payload: Bytes) -> Result<frame::Kind, String> {
    one_kind(payload.clone())?;
    let mut kind = Frame::decode(payload).map_err(|error| error.to_string())?.kind.ok_or("no frame")?;
    rules::check(&kind)?;
    if let frame::Kind::Deliver(deliver) = &mut kind {
        unpack(deliver)?;
    }
    Ok(kind)
}

/// A payload is exactly one frame of a known kind; other fields are later additions and are ignored.
fn one_kind(mut payload: Bytes) -> Result<(), String> {
    let (mut known, mut unknown) = (0, 0);
    while payload.has_remaining() {
        let (tag, wire_type) = decode_key(&mut payload).map_err(|error| error.to_string())?;
        skip_field(wire_type, tag, &mut payload, DecodeContext::default())
            .map_err(|error| error.to_string())?;
        if tag > KIND_MAX || tag == KIND_FREE { unknown += 1 } else { known += 1 }
    }
    match known {
        1 => Ok(()),
        _ => Err(format!("{known} frames of known kinds and {unknown} of unknown kinds")),
    }
}

fn unpack(deliver: &mut Deliver) -> Result<(), String> {
    match BodyEncoding::try_from(deliver.encoding) {
        Ok(BodyEncoding::Identity) => return Ok(()),
        Ok(BodyEncoding::Zstd) => {}
        Err(_) => return Err(format!("body encoding {}", deliver.encoding)),
    }
    let size = usize::try_from(deliver.decoded_len).unwrap_or(usize::MAX);
    if size > FRAME_LEN_MAX {
        return Err(format!("body of {size} bytes"));
    }
    let body = zstd::bulk::decompress(&deliver.body, size).map_err(|error| error.to_string())?;
    if body.len() != size {
        return Err(format!("body of {} bytes, {size} announced", body.len()));
    }
    (deliver.encoding, deliver.decoded_len, deliver.body) = (0, 0, body.into());
    Ok(())
}
