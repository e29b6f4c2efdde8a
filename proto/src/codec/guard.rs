//! Scans a payload before it is decoded: which frame it is, and how many entries its lists have.
//!
//! The decoder allocates memory for every entry of a list, and an empty entry costs two bytes on the wire but a
//! hundred in memory. Counting first keeps a hostile frame of 32 MiB from using gigabytes.

use bytes::Buf;
use prost::DecodeError;

use super::CodecError;
use crate::ids::{Seq, SubscriptionId};
use crate::limits;

/// Highest field number of `Frame.kind`.
const KIND_MAX: u32 = 20;

/// A field number below that which no frame uses.
const KIND_FREE: u32 = 19;

/// (frame kind, field of the list, name of the list, entries allowed), from `protocol/tombolo.proto`.
const LISTS: &[(u32, u32, &str, usize)] = &[
    (1, 6, "deliver.dependencies", limits::DEPENDENCIES_MAX),
    (2, 1, "ack.lanes", LANES_MAX),
    (11, 9, "hello.inventory", limits::HELLO_INVENTORY_MAX),
    (14, 2, "inventory_part.entries", limits::INVENTORY_PART_MAX),
    (15, 10, "subscribe.inventory", limits::HELLO_INVENTORY_MAX),
];

const LANES_MAX: usize = 3;

/// Field number of a delivery in `Frame.kind`, and those of its position and subscription.
const DELIVER: u32 = 1;
const DELIVER_SEQ: u32 = 1;
const DELIVER_SUBSCRIPTION: u32 = 2;

/// Refuses payloads that are not exactly one known frame with lists within their limits.
pub(super) fn check(payload: &[u8]) -> Result<(), CodecError> {
    let mut found: Option<(u32, &[u8])> = None;
    let mut unknown = None;
    for field in Fields(payload) {
        let (tag, value) = field?;
        let value = value.bytes();
        match found {
            _ if tag > KIND_MAX || tag == KIND_FREE => unknown = unknown.or(Some(tag)),
            None => found = Some((tag, value)),
            Some((first, _)) => return Err(CodecError::Several { first, second: tag }),
        }
    }
    match (found, unknown) {
        (Some((kind, body)), _) => check_lists(kind, body),
        (None, Some(tag)) => Err(CodecError::UnknownKind { tag }),
        (None, None) => Err(CodecError::Empty),
    }
}

fn check_lists(kind: u32, body: &[u8]) -> Result<(), CodecError> {
    for (_, list, field, max) in LISTS.iter().filter(|(of, ..)| *of == kind) {
        let size = count(*list, body)?;
        if size > *max {
            return Err(CodecError::Limit { field, size, max: *max });
        }
    }
    Ok(())
}

fn count(list: u32, body: &[u8]) -> Result<usize, CodecError> {
    let mut size = 0_usize;
    for entry in Fields(body) {
        size = size.saturating_add(usize::from(entry?.0 == list));
    }
    Ok(size)
}

/// Bytes that a list entry takes while it is decoded: the decoder's form and the form read from it.
const ENTRY_DECODED: usize = 640;

/// Memory that decoding a payload takes, including the payload: decoded bodies share its bytes, and texts of entries
/// exist twice in addition. A payload that breaks a rule needs no further memory.
pub(super) fn weight(payload: &[u8]) -> usize {
    let Some(Ok((kind, body))) = Fields(payload).next() else { return payload.len() };
    let lists = LISTS.iter().filter(|(of, ..)| *of == kind);
    let entries: usize =
        lists.map(|(_, list, _, max)| count(*list, body.bytes()).unwrap_or_default().min(*max)).sum();
    let texts = if entries == 0 { 0 } else { payload.len().saturating_mul(2) };
    payload.len().saturating_add(texts).saturating_add(entries.saturating_mul(ENTRY_DECODED))
}

/// Position and subscription of a delivery, whatever else is wrong with it. None when the payload is not a delivery, or
/// has no position.
pub(super) fn delivery_position(payload: &[u8]) -> Option<(Seq, SubscriptionId)> {
    let mut fields = Fields(payload);
    let (DELIVER, Value::Bytes(delivery)) = fields.next()?.ok()? else { return None };
    if !fields.0.is_empty() {
        return None;
    }
    let (mut seq, mut subscription) = (None, 0);
    // The broken part may be a later field: the fields before it count.
    for (tag, value) in Fields(delivery).map_while(Result::ok) {
        match (tag, value) {
            // Positions begin with 1; an encoded 0 means the same as a missing field.
            (DELIVER_SEQ, Value::Number(0)) => {}
            (DELIVER_SEQ, Value::Number(number)) => seq = Some(number),
            // As the decoder reads it: the lower half of a number that does not fit.
            (DELIVER_SUBSCRIPTION, Value::Number(number)) => {
                subscription = u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some((Seq(seq?), SubscriptionId(subscription)))
}

/// Value of a field.
#[derive(Clone, Copy)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn bytes(self) -> &'a [u8] {
        match self {
            Self::Number(_) => &[],
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// The fields of one protobuf message: number and value.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), CodecError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn read(&mut self) -> Result<(u32, Value<'a>), CodecError> {
        let key = self.varint()?;
        let tag = u32::try_from(key >> 3).map_err(|_| bad("field number"))?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Bytes(self.take(8)?),
            2 => {
                let len = self.varint()?;
                Value::Bytes(self.take(usize::try_from(len).map_err(|_| bad("length"))?)?)
            }
            5 => Value::Bytes(self.take(4)?),
            _ => return Err(bad("wire type")),
        };
        Ok((tag, value))
    }

    fn varint(&mut self) -> Result<u64, CodecError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            if self.0.is_empty() {
                break;
            }
            let byte = self.0.get_u8();
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(bad("number"))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], CodecError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(|| bad("length"))?;
        self.0 = rest;
        Ok(taken)
    }
}

fn bad(what: &str) -> CodecError {
    #[allow(deprecated)] // prost has no other public way to construct its error
    let error = DecodeError::new(format!("bad {what}"));
    CodecError::Protobuf(error)
}
