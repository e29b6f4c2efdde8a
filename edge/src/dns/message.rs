//! Parses and checks query packets, and shortens answers to the size that the client accepts.

use hickory_proto::ProtoError;
use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, RecordType};
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};

/// Largest answer over UDP in bytes, whatever size the client advertises. It fits every path without fragmentation, and
/// limits how much a small query with a forged source address can trigger (RFC 9715).
pub(super) const UDP_PAYLOAD_MAX: u16 = 1232;

/// Largest answer over UDP to a client that advertises no size (RFC 1035).
const PLAIN_PAYLOAD_MAX: u16 = 512;

const HEADER_LEN: usize = 12;

/// The transport protocol of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DnsTransport {
    Udp,
    Tcp,
}

/// A parsed packet.
#[derive(Debug)]
pub(super) enum Packet {
    /// Not a query: it gets no answer.
    Noise,
    /// Answered with an error code before any name is looked up.
    Refused(Box<Message>),
    /// A valid query.
    Question(Box<Question>),
}

/// One query.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) header: Metadata,
    pub(super) query: Query,
    pub(super) edns: Option<Edns>,
}

impl Question {
    pub(super) fn record_type(&self) -> RecordType {
        self.query.query_type()
    }

    /// An answer without records.
    pub(super) fn reply(&self, code: ResponseCode) -> Message {
        let mut reply = refusal(self.header.id, self.header.op_code, code);
        reply.metadata.recursion_desired = self.header.recursion_desired;
        reply.metadata.checking_disabled = self.header.checking_disabled;
        reply.add_query(self.query.clone());
        if let Some(asked) = &self.edns {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_PAYLOAD_MAX).set_version(0).set_dnssec_ok(asked.flags().dnssec_ok);
            reply.set_edns(edns);
        }
        reply
    }

    /// Largest answer to this query in bytes.
    pub(super) fn room(&self, transport: DnsTransport) -> u16 {
        match (transport, &self.edns) {
            (DnsTransport::Tcp, _) => u16::MAX,
            (DnsTransport::Udp, Some(edns)) => edns.max_payload().clamp(PLAIN_PAYLOAD_MAX, UDP_PAYLOAD_MAX),
            (DnsTransport::Udp, None) => PLAIN_PAYLOAD_MAX,
        }
    }
}

fn refusal(id: u16, op_code: OpCode, code: ResponseCode) -> Message {
    let mut message = Message::response(id, op_code);
    message.metadata.response_code = code;
    message
}

/// Parses a packet. It refuses the packets that CoreDNS refuses before it looks up names.
pub(super) fn read(packet: &[u8]) -> Packet {
    let Some((header, _)) = packet.split_first_chunk::<HEADER_LEN>() else { return Packet::Noise };
    let [id_high, id_low, flags, _, counts @ ..] = *header;
    let id = u16::from_be_bytes([id_high, id_low]);
    // A response is never answered: two servers would send each other packets for ever.
    if flags & 0x80 != 0 {
        return Packet::Noise;
    }
    let op_code = OpCode::from_u8((flags >> 3) & 0x0f);
    let refused = |code| Packet::Refused(Box::new(refusal(id, op_code, code)));
    if op_code != OpCode::Query {
        return refused(ResponseCode::NotImp);
    }
    let [questions, answers, authorities, additionals] =
        [0, 2, 4, 6].map(|at| u16::from_be_bytes([counts[at], counts[at + 1]]));
    if questions != 1 || answers > 1 || authorities > 1 || additionals > 2 {
        return refused(ResponseCode::FormErr);
    }
    let Ok(mut message) = Message::from_vec(packet) else { return refused(ResponseCode::FormErr) };
    let Some(query) = message.queries.pop() else { return refused(ResponseCode::FormErr) };
    let question = Question { header: message.metadata, query, edns: message.edns };
    if question.edns.as_ref().is_some_and(|edns| edns.version() != 0) {
        return Packet::Refused(Box::new(question.reply(ResponseCode::BADVERS)));
    }
    if question.query.query_class() != DNSClass::IN {
        return Packet::Refused(Box::new(question.reply(ResponseCode::Refused)));
    }
    Packet::Question(Box::new(question))
}

/// Encodes an answer. If it does not fit, the additional records are dropped first, then the authority section and as
/// many answers as necessary. The truncation bit then makes the client retry over TCP.
///
/// # Errors
/// When a name or a record cannot be written.
pub(super) fn write(mut message: Message, room: u16) -> Result<Vec<u8>, ProtoError> {
    let room = usize::from(room);
    let mut bytes = encode(&message)?;
    if bytes.len() > room && !message.additionals.is_empty() {
        message.additionals.clear();
        bytes = encode(&message)?;
    }
    while bytes.len() > room && message.metadata.message_type == MessageType::Response {
        message.metadata.truncation = true;
        message.authorities.clear();
        let count = message.answers.len();
        if count == 0 {
            break;
        }
        let fitting = (count * room / bytes.len()).min(count - 1);
        message.answers.truncate(fitting);
        bytes = encode(&message)?;
    }
    Ok(bytes)
}

fn encode(message: &Message) -> Result<Vec<u8>, ProtoError> {
    let mut bytes = Vec::with_capacity(usize::from(PLAIN_PAYLOAD_MAX));
    message.emit(&mut BinEncoder::new(&mut bytes))?;
    Ok(bytes)
}

/// Time to live of the HINFO record that answers ANY queries, in seconds. The value has no meaning.
pub(super) const ANY_TTL: u32 = 8482;
