//! Delivered objects on the wire: the part that is the same for every node is encoded once
//! (docs/architecture.md#the-way-down).

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len, uint32, uint64};

use super::wire::{self, BodyEncoding};
use super::write;
use crate::frame::ApiReply;
use crate::ids::{RequestId, Seq, SubscriptionId};
use crate::object::SharedObject;

/// Field of `Frame`, and the fields of `Deliver` before and after those of the head (`protocol/tombolo.proto`).
const FRAME_DELIVER: u32 = 1;
const SEQ: u32 = 1;
const SUBSCRIPTION: u32 = 2;
const ENCODING: u32 = 7;
const DECODED_LEN: u32 = 8;
const BODY: u32 = 15;

/// An upsert for one node. Its bytes equal those of the generated message, fields in ascending order.
pub(super) struct Upsert<'a> {
    seq: u64,
    subscription: u32,
    /// Kind, key, version and dependencies.
    head: &'a Bytes,
    /// Length of the decompressed body, when it is compressed.
    decoded_len: Option<u32>,
    body: &'a Bytes,
}

impl<'a> Upsert<'a> {
    pub(super) fn new(seq: Seq, subscription: SubscriptionId, object: &'a SharedObject, zstd: bool) -> Self {
        let head = object.delivery_head(|| write::write_head(object).encode_to_vec().into());
        // A body whose length does not fit 32 bits is beyond every limit and is refused when the package is made.
        let announced = u32::try_from(object.body.len()).ok().filter(|_| zstd);
        let packed = announced.and_then(|len| Some((len, object.compressed()?)));
        let (decoded_len, body) = packed.map_or((None, &object.body), |(len, body)| (Some(len), body));
        Self { seq: seq.0, subscription: subscription.0, head, decoded_len, body }
    }

    pub(super) fn len(&self) -> usize {
        let inner = self.inner_len();
        key_len(FRAME_DELIVER) + encoded_len_varint(inner as u64) + inner
    }

    fn inner_len(&self) -> usize {
        let mut len = self.head.len();
        // As everywhere in proto3, a zero is not written.
        if self.seq != 0 {
            len += uint64::encoded_len(SEQ, &self.seq);
        }
        if self.subscription != 0 {
            len += uint32::encoded_len(SUBSCRIPTION, &self.subscription);
        }
        if let Some(decoded_len) = self.decoded_len {
            len += uint32::encoded_len(ENCODING, &(BodyEncoding::Zstd as u32));
            len += uint32::encoded_len(DECODED_LEN, &decoded_len);
        }
        if !self.body.is_empty() {
            len += key_len(BODY) + encoded_len_varint(self.body.len() as u64) + self.body.len();
        }
        len
    }

    pub(super) fn write(&self, out: &mut BytesMut) {
        self.write_head(out);
        out.put_slice(self.body);
    }

    /// Everything before the body, and the body that all nodes share.
    pub(super) fn into_pieces(self) -> (Bytes, Bytes) {
        let mut out = BytesMut::with_capacity(self.len().saturating_sub(self.body.len()));
        self.write_head(&mut out);
        (out.freeze(), self.body.clone())
    }

    fn write_head(&self, out: &mut BytesMut) {
        encode_key(FRAME_DELIVER, WireType::LengthDelimited, out);
        encode_varint(self.inner_len() as u64, out);
        if self.seq != 0 {
            uint64::encode(SEQ, &self.seq, out);
        }
        if self.subscription != 0 {
            uint32::encode(SUBSCRIPTION, &self.subscription, out);
        }
        out.put_slice(self.head);
        if let Some(decoded_len) = self.decoded_len {
            uint32::encode(ENCODING, &(BodyEncoding::Zstd as u32), out);
            uint32::encode(DECODED_LEN, &decoded_len, out);
        }
        if !self.body.is_empty() {
            encode_key(BODY, WireType::LengthDelimited, out);
            encode_varint(self.body.len() as u64, out);
        }
    }
}

/// Fields of `Frame`, `Reply` and `ApiReply` around the body of an answer.
const FRAME_REPLY: u32 = 8;
const REPLY_ID: u32 = 1;
const REPLY_API: u32 = 3;
const API_BODY: u32 = 3;

/// An answer to an API call up to its body, which is not empty and is the last field.
pub(super) fn reply_head(id: RequestId, reply: &ApiReply) -> Bytes {
    let body = reply.body.len();
    let prefix = |field, len: usize| key_len(field) + encoded_len_varint(len as u64);
    let short = wire::ApiReply {
        code: u32::from(reply.code),
        content_type: reply.content_type.clone(),
        body: Bytes::new(),
    };
    let api = short.encoded_len() + prefix(API_BODY, body) + body;
    let id_len = if id.0 == 0 { 0 } else { uint64::encoded_len(REPLY_ID, &id.0) };
    let whole = id_len + prefix(REPLY_API, api) + api;
    let mut out = BytesMut::with_capacity(prefix(FRAME_REPLY, whole) + whole - body);
    encode_key(FRAME_REPLY, WireType::LengthDelimited, &mut out);
    encode_varint(whole as u64, &mut out);
    if id.0 != 0 {
        uint64::encode(REPLY_ID, &id.0, &mut out);
    }
    encode_key(REPLY_API, WireType::LengthDelimited, &mut out);
    encode_varint(api as u64, &mut out);
    short.encode_raw(&mut out);
    encode_key(API_BODY, WireType::LengthDelimited, &mut out);
    encode_varint(body as u64, &mut out);
    out.freeze()
}
