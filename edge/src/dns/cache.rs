//! Cache of upstream answers. Answers are fresh for their time to live, and may be served longer while no server
//! answers (RFC 1035, 2308, 8767).
//!
//! Answers are cached as packets. Only the identifier, the spelling of the name and the times to live are adapted to
//! each client.

use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::message::Question;
use crate::fair::Fair;
use crate::shares::one_of_loopback;

/// Maximum size of all cached answers in bytes, overhead included. When the cache is full, the client with the largest
/// part gives up its least recently used answer, which is deleted unless another client uses it.
pub(super) const CACHE_BYTES_MAX: usize = 1024 * 1024;

/// Largest answer that is cached, in bytes.
const ANSWER_MAX: usize = 8 * 1024;

/// Overhead of an answer in bytes besides its packet and twice its key, its part of the client's entry included.
const OVERHEAD: usize = 256;

/// Overhead of each further client of an answer in bytes, besides its key.
const CLAIM_OVERHEAD: usize = 128;

/// Longest time for which an answer is fresh, in seconds, whatever its time to live.
const FRESH_MAX: u32 = 3600;

/// The same for a negative answer.
const NOTHING_MAX: u32 = 600;

/// How long a stale answer may be served while no server answers.
pub(super) const STALE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Time to live of stale answers, in seconds (RFC 8767).
pub(super) const STALE_TTL: u32 = 30;

/// How long a stale answer is served at once after its query went unanswered (RFC 8767, failure recheck timer): as long
/// as the client may cache it.
pub(super) const RECHECK: Duration = Duration::from_secs(STALE_TTL as u64);

const HEADER_LEN: usize = 12;

/// Type of the OPT pseudo-record, whose TTL field is not a time to live.
const OPT: u16 = 41;
const SOA: u16 = 6;

/// The query of an answer: the name in lower case as on the wire, type and class, and the flags that change the answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    text: Box<[u8]>,
    /// Bytes of the question in the packet.
    len: usize,
}

impl Key {
    /// The key of a query; none if the answer may be only for this client, because the query carries an EDNS option
    /// such as a cookie, or a record such as a signature.
    pub(super) fn of(packet: &[u8], question: &Question) -> Option<Self> {
        let besides = packet.get(6..HEADER_LEN)?;
        let has_more = besides != [0, 0, 0, 0, 0, u8::from(question.edns.is_some())];
        if has_more || question.edns.as_ref().is_some_and(|edns| !edns.options().as_ref().is_empty()) {
            return None;
        }
        let name = name_len(packet, HEADER_LEN)?;
        let asked = packet.get(HEADER_LEN..HEADER_LEN + name + 4)?;
        let mut text = asked.to_vec();
        // The rest are numbers whose bytes may equal letters: type 65 is `A`, and 97 is `a`.
        text[..name].make_ascii_lowercase();
        let edns = question.edns.as_ref();
        text.push(
            u8::from(question.header.recursion_desired)
                | u8::from(question.header.checking_disabled) << 1
                | u8::from(edns.is_some()) << 2
                | u8::from(edns.is_some_and(|edns| edns.flags().dnssec_ok)) << 3,
        );
        Some(Self { text: text.into(), len: asked.len() })
    }
}

/// A cached answer for a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) answer: Vec<u8>,
    /// Whether it is fresh.
    pub(super) fresh: bool,
    /// Whether this query went unanswered recently, so that the client need not wait again.
    pub(super) unanswered: bool,
}

#[derive(Debug)]
struct CachedRecords {
    packet: Box<[u8]>,
    /// Offsets of the times to live.
    ttls: Box<[u16]>,
    kept_at: Instant,
    fresh_until: Instant,
    /// When its query was last repeated without an answer.
    unanswered_at: Option<Instant>,
}

/// Cache of upstream answers.
#[derive(Debug)]
pub(super) struct Cache(Mutex<Fair<IpAddr, Key, CachedRecords>>);

impl Default for Cache {
    fn default() -> Self {
        Self(Mutex::new(Fair::with_claims(CACHE_BYTES_MAX, |key: &Key| key.text.len() + CLAIM_OVERHEAD)))
    }
}

impl Cache {
    /// The answer to a packet of a client, if it is cached.
    pub(super) fn find(&self, key: &Key, packet: &[u8], client: IpAddr) -> Option<Hit> {
        let (now, mut kept) = (Instant::now(), self.0.lock());
        let entry = kept.get(key)?;
        if now >= entry.fresh_until + STALE_MAX {
            kept.remove(key);
            return None;
        }
        let fresh = now < entry.fresh_until;
        let unanswered = entry.unanswered_at.is_some_and(|at| now < at + RECHECK);
        let age = u32::try_from(now.duration_since(entry.kept_at).as_secs()).unwrap_or(u32::MAX);
        let mut answer = entry.packet.to_vec();
        answer[..2].copy_from_slice(&packet[..2]);
        let asked = HEADER_LEN..HEADER_LEN + key.len;
        answer[asked.clone()].copy_from_slice(&packet[asked]);
        for at in &*entry.ttls {
            let at = usize::from(*at);
            let ttl = match number(&answer, at) {
                ttl if fresh => ttl.saturating_sub(age).max(1),
                _ => STALE_TTL,
            };
            answer[at..at + 4].copy_from_slice(&ttl.to_be_bytes());
        }
        kept.touch(key, &one_of_loopback(client));
        Some(Hit { answer, fresh, unanswered })
    }

    /// Records that a query went unanswered: its stale answer, if cached, is served at once for a while.
    pub(super) fn note_unanswered(&self, key: &Key) {
        if let Some(entry) = self.0.lock().get_mut(key) {
            entry.unanswered_at = Some(Instant::now());
        }
    }

    /// Caches an answer for a client, if it is cacheable.
    pub(super) fn keep(&self, key: &Key, answer: &[u8], client: IpAddr) {
        let Some((ttls, seconds)) = shape(answer, key.len) else { return };
        let now = Instant::now();
        let fresh_until = now + Duration::from_secs(u64::from(seconds));
        let (packet, ttls) = (answer.into(), ttls.into());
        let entry = CachedRecords { packet, ttls, kept_at: now, fresh_until, unanswered_at: None };
        self.0.lock().insert(one_of_loopback(client), key.clone(), weight(key, &entry), entry);
    }

    #[cfg(test)]
    fn size(&self) -> (usize, usize) {
        self.0.lock().size()
    }
}

fn weight(key: &Key, entry: &CachedRecords) -> usize {
    entry.packet.len() + entry.ttls.len() * 2 + key.text.len() * 2 + OVERHEAD
}

/// Offsets of the times to live of an answer, and how many seconds it is fresh; none if it is not cacheable.
fn shape(answer: &[u8], question_len: usize) -> Option<(Vec<u16>, u32)> {
    let header = answer.get(..HEADER_LEN)?;
    let (truncated, code) = (header[2] & 0x02 != 0, header[3] & 0x0f);
    let counts = [4, 6, 8, 10].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
    if answer.len() > ANSWER_MAX || truncated || !matches!(code, 0 | 3) || counts[0] != 1 {
        return None;
    }
    let mut at = HEADER_LEN + question_len;
    let (mut ttls, mut life, mut answers, mut denied) = (Vec::new(), FRESH_MAX, 0, false);
    for (section, count) in counts[1..].iter().enumerate() {
        for _ in 0..*count {
            let record = Record::read(answer, at)?;
            at = record.end;
            if record.kind == OPT {
                // The TTL field of OPT holds the upper bits of the response code.
                if record.ttl >> 24 != 0 {
                    return None;
                }
                continue;
            }
            ttls.push(u16::try_from(record.ttl_at).ok()?);
            if section == 0 {
                answers += 1;
                life = life.min(record.ttl);
            }
            if section == 1 && record.kind == SOA {
                let least = number(answer, record.end.checked_sub(4)?);
                denied = true;
                life = life.min(record.ttl).min(least).min(NOTHING_MAX);
            }
        }
    }
    // A negative answer without SOA does not say how long it may be cached.
    let unknown = !denied && (answers == 0 || code == 3);
    (at == answer.len() && !unknown && life > 0).then_some((ttls, life))
}

struct Record {
    kind: u16,
    ttl: u32,
    ttl_at: usize,
    end: usize,
}

impl Record {
    fn read(packet: &[u8], at: usize) -> Option<Self> {
        let after = at + name_len(packet, at)?;
        let fixed = packet.get(after..after + 10)?;
        let kind = u16::from_be_bytes([fixed[0], fixed[1]]);
        // A TTL with the highest bit set counts as zero (RFC 2181).
        let ttl = Some(number(packet, after + 4)).filter(|ttl| ttl >> 31 == 0 || kind == OPT).unwrap_or(0);
        let end = after + 10 + usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
        let long_enough = kind != SOA || end >= after + 10 + 22;
        (end <= packet.len() && long_enough).then_some(Self { kind, ttl, ttl_at: after + 4, end })
    }
}

/// Length of a name in bytes: to its end, or to the end of the first compression pointer.
fn name_len(packet: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        match *packet.get(at)? {
            0 => return Some(at + 1 - start),
            len @ 1..=63 => at += 1 + usize::from(len),
            0xc0.. if start > HEADER_LEN => return packet.get(at + 1).map(|_| at + 2 - start),
            _ => return None,
        }
    }
}

fn number(packet: &[u8], at: usize) -> u32 {
    let bytes = packet.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
    use hickory_proto::rr::rdata::{A, SOA};
    use hickory_proto::rr::{Name, RData, Record, RecordType};
    use proptest::prelude::*;

    use super::super::message::{Packet, read};
    use super::*;

    const POD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 244, 0, 1));

    fn asked(name: &str) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
        message.to_vec().unwrap()
    }

    fn key(packet: &[u8]) -> Key {
        let Packet::Question(question) = read(packet) else { panic!("no question") };
        Key::of(packet, &question).unwrap()
    }

    fn answer(packet: &[u8], code: ResponseCode, records: &[u32], soa: Option<(u32, u32)>) -> Vec<u8> {
        let asked = Message::from_vec(packet).unwrap();
        let mut reply = Message::response(asked.metadata.id, OpCode::Query);
        reply.metadata.response_code = code;
        reply.add_query(asked.queries[0].clone());
        let name = asked.queries[0].name().clone();
        for ttl in records {
            reply.add_answer(Record::from_rdata(
                name.clone(),
                *ttl,
                RData::A(A(Ipv4Addr::new(192, 0, 2, 1))),
            ));
        }
        if let Some((ttl, least)) = soa {
            let soa = SOA::new(name.clone(), name.clone(), 1, 2, 3, 4, least);
            reply.add_authority(Record::from_rdata(name, ttl, RData::SOA(soa)));
        }
        reply.to_vec().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn answer_is_fresh_for_its_ttl_and_stale_for_a_day() {
        let (cache, first, second) = (Cache::default(), asked("www.example."), asked("WWW.Example."));
        cache.keep(&key(&first), &answer(&first, ResponseCode::NoError, &[60, 90], None), POD);
        tokio::time::advance(Duration::from_secs(20)).await;
        let hit = cache.find(&key(&second), &second, POD).unwrap();
        assert!(hit.fresh);
        let told = Message::from_vec(&hit.answer).unwrap();
        assert_eq!(told.metadata.id, Message::from_vec(&second).unwrap().metadata.id);
        assert!(told.queries[0].name().eq_case(&Name::from_ascii("WWW.Example.").unwrap()));
        assert_eq!(told.answers.iter().map(|record| record.ttl).collect::<Vec<_>>(), [40, 70]);
        tokio::time::advance(Duration::from_secs(40)).await;
        let hit = cache.find(&key(&second), &second, POD).unwrap();
        assert!(!hit.fresh);
        let told = Message::from_vec(&hit.answer).unwrap();
        assert!(told.answers.iter().all(|record| record.ttl == STALE_TTL));
        tokio::time::advance(STALE_MAX).await;
        assert_eq!(cache.find(&key(&second), &second, POD), None);
        assert_eq!(cache.size(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn negative_answer_is_cached_as_long_as_its_soa_says() {
        let packet = asked("no.example.");
        use ResponseCode::{NXDomain, NoError, Refused, ServFail};
        for (code, records, soa, good_for) in [
            (NXDomain, &[][..], Some((300, 20)), 20),
            (NXDomain, &[], Some((10, 300)), 10),
            (NoError, &[], Some((7, 7)), 7),
            (NXDomain, &[], Some((86_400, 86_400)), NOTHING_MAX),
            (NoError, &[90_000], None, FRESH_MAX),
            (NXDomain, &[], None, 0),
            (NoError, &[], None, 0),
            (NoError, &[0], None, 0),
            (ServFail, &[5], None, 0),
            (Refused, &[5], None, 0),
        ] {
            let found = shape(&answer(&packet, code, records, soa), key(&packet).len).map(|(_, life)| life);
            assert_eq!(found.unwrap_or(0), good_for, "{code} {records:?} {soa:?}");
        }
        let mut cut = answer(&packet, NoError, &[60], None);
        cut[2] |= 0x02;
        assert_eq!(shape(&cut, key(&packet).len), None);
    }

    #[tokio::test(start_paused = true)]
    async fn cache_is_bounded_and_evicts_unused_answers() {
        let cache = Cache::default();
        let wanted = asked("wanted.example.");
        cache.keep(&key(&wanted), &answer(&wanted, ResponseCode::NoError, &[60], None), POD);
        for number in 0..20_000 {
            let packet = asked(&format!("n{number}.example."));
            cache.keep(&key(&packet), &answer(&packet, ResponseCode::NoError, &[60], None), POD);
            if number % 100 == 0 {
                assert!(cache.find(&key(&wanted), &wanted, POD).is_some(), "after {number}");
            }
        }
        let (count, bytes) = cache.size();
        assert!(
            bytes <= CACHE_BYTES_MAX && bytes > CACHE_BYTES_MAX / 2 && count > 1000,
            "{count} in {bytes}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn client_with_many_queries_evicts_no_answer_of_another() {
        let (cache, other) = (Cache::default(), IpAddr::from([10, 244, 0, 2]));
        let names: Vec<_> = (0..50).map(|number| asked(&format!("wanted{number}.example."))).collect();
        for packet in &names {
            cache.keep(&key(packet), &answer(packet, ResponseCode::NoError, &[60], None), POD);
        }
        for number in 0..10_000 {
            let packet = asked(&format!("n{number}.example."));
            cache.keep(&key(&packet), &answer(&packet, ResponseCode::NoError, &[60], None), other);
        }
        let found = names.iter().filter(|packet| cache.find(&key(packet), packet, POD).is_some());
        assert_eq!(found.count(), names.len());
        assert!(cache.size().1 <= CACHE_BYTES_MAX);
    }

    /// A client without cached answers queries names that another client has cached.
    #[tokio::test(start_paused = true)]
    async fn shared_answer_is_not_evicted_by_one_of_its_clients() {
        let (cache, other) = (Cache::default(), IpAddr::from([10, 244, 0, 2]));
        let names: Vec<_> = (0..50).map(|number| asked(&format!("wanted{number}.example."))).collect();
        for packet in &names {
            cache.keep(&key(packet), &answer(packet, ResponseCode::NoError, &[60], None), POD);
        }
        for packet in &names {
            assert!(cache.find(&key(packet), packet, other).is_some());
        }
        for number in 0..10_000 {
            let packet = asked(&format!("n{number}.example."));
            cache.keep(&key(&packet), &answer(&packet, ResponseCode::NoError, &[60], None), other);
        }
        tokio::time::advance(STALE_MAX / 2).await;
        let found = names.iter().filter(|packet| cache.find(&key(packet), packet, POD).is_some());
        assert_eq!(found.count(), names.len());
        // Even a very large number of clients stays within the bound.
        for host in 0_u16..20_000 {
            let [high, low] = host.to_be_bytes();
            cache.find(&key(&names[0]), &names[0], IpAddr::from([10, 9, high, low]));
        }
        assert!(cache.size().1 <= CACHE_BYTES_MAX);
    }

    /// An answer that may depend on more than the question is never served to another client.
    #[test]
    fn query_with_extra_records_is_not_cached() {
        let mut message = Message::from_vec(&asked("www.example.")).unwrap();
        let plain = message.to_vec().unwrap();
        let name = Name::from_ascii("www.example.").unwrap();
        message.add_additional(Record::from_rdata(name, 60, RData::A(A(Ipv4Addr::new(192, 0, 2, 66)))));
        let more = message.to_vec().unwrap();
        for (packet, has_key) in [(plain, true), (more, false)] {
            let Packet::Question(question) = read(&packet) else { panic!("no question") };
            assert_eq!(Key::of(&packet, &question).is_some(), has_key);
        }
    }

    /// Only the name of a question is compared without case.
    #[tokio::test(start_paused = true)]
    async fn every_record_type_is_cached_separately() {
        let cache = Cache::default();
        let of_type = |kind: u16| {
            let mut packet = asked("www.example.");
            let at = packet.len() - 4;
            packet[at..at + 2].copy_from_slice(&kind.to_be_bytes());
            packet
        };
        let types = (60..130).chain([0x4101, 0x6101]);
        for kind in types.clone() {
            let packet = of_type(kind);
            cache.keep(
                &key(&packet),
                &answer(&packet, ResponseCode::NoError, &[60 + u32::from(kind)], None),
                POD,
            );
        }
        for kind in types {
            let packet = of_type(kind);
            let told = Message::from_vec(&cache.find(&key(&packet), &packet, POD).unwrap().answer).unwrap();
            let asked = u16::from(told.queries[0].query_type());
            assert_eq!((asked, told.answers[0].ttl), (kind, 60 + u32::from(kind)));
        }
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(bytes in any::<Vec<u8>>(), flips in proptest::collection::vec(any::<(prop::sample::Index, u8)>(), 0..6)) {
            let packet = asked("www.example.");
            let mut reply = answer(&packet, ResponseCode::NoError, &[60], Some((7, 7)));
            for (at, by) in flips {
                let at = at.index(reply.len());
                reply[at] ^= by;
            }
            for reply in [reply, bytes] {
                let cache = Cache::default();
                cache.keep(&key(&packet), &reply, POD);
                cache.find(&key(&packet), &packet, POD);
            }
        }
    }
}
