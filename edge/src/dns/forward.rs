//! Forwards queries to upstream servers.
//!
//! A client chooses the name, and with it the servers that must answer. So an unanswered query proves something about
//! its name only, and only the stale answer of that name is served. Probes that no client chooses find out which
//! servers are down.

use std::net::IpAddr;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{Name, Record};
use tokio::time::timeout;
use tracing::debug;

use super::cache::{Cache, Key};
use super::health::Health;
use super::loops::Loops;
use super::message::{DnsTransport, Question, UDP_PAYLOAD_MAX};
use super::metrics::QueryOutcome;
use super::upstreams::Upstreams;
use super::wire::{Exchange, Wire};
use crate::shares::Shares;

/// Queries that are forwarded at the same time, at most; further ones fail at once.
pub(super) const FORWARDS_MAX: usize = 256;

/// Forwards queries to upstream servers and caches their answers.
#[derive(Debug)]
pub(super) struct Forwarder {
    upstreams: Upstreams,
    /// How long to wait for one server.
    timeout: Duration,
    shares: Shares<IpAddr>,
    cache: Cache,
    health: Health,
    pub(super) loops: Loops,
    wire: Box<dyn Exchange>,
}

/// How long a client waits before it gets a stale answer, if there is one (RFC 8767).
const STALE_AFTER: Duration = Duration::from_millis(1800);

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// There is no upstream server.
    Nobody,
    /// No upstream server has answered.
    NoAnswer,
    /// Too many queries are forwarded already, in total or for this client.
    Busy,
}

/// Response code SERVFAIL.
const SERVER_FAILURE: u8 = 2;

impl Forwarder {
    pub(super) fn new(upstreams: Upstreams, timeout: Duration) -> Self {
        Self::over(Box::new(Wire), upstreams, timeout)
    }

    /// As `new`, with the given transport instead of the network.
    pub(super) fn over(wire: Box<dyn Exchange>, upstreams: Upstreams, timeout: Duration) -> Self {
        Self {
            upstreams,
            timeout,
            shares: Shares::new(FORWARDS_MAX),
            cache: Cache::default(),
            health: Health::default(),
            loops: Loops::default(),
            wire,
        }
    }

    /// Probes for servers that forward to this one and for servers that do not answer, for ever.
    pub(super) async fn watch_servers(&self) {
        self.loops.watch(&self.upstreams, &*self.wire, &self.health, self.timeout).await;
    }

    /// A fresh answer from the cache, for which no server has to be queried.
    pub(super) fn kept(&self, packet: &[u8], question: &Question, source: IpAddr) -> Option<Vec<u8>> {
        let hit = self.cache.find(&Key::of(packet, question)?, packet, source)?;
        hit.fresh.then_some(hit.answer)
    }

    /// The answer to a packet, with the packet's own identifier, from the cache or from an upstream server. `source` is
    /// the client's address.
    ///
    /// # Errors
    /// [`Failure`] when there is none.
    pub(super) async fn ask(
        &self,
        packet: &[u8],
        question: &Question,
        transport: DnsTransport,
        source: IpAddr,
    ) -> Result<(Vec<u8>, QueryOutcome), Failure> {
        let key = Key::of(packet, question);
        let kept = key.as_ref().and_then(|key| self.cache.find(key, packet, source));
        let old = match kept {
            Some(hit) if hit.fresh => return Ok((hit.answer, QueryOutcome::Cached)),
            Some(hit) if hit.unanswered => return Ok((hit.answer, QueryOutcome::Stale)),
            other => other.map(|hit| hit.answer),
        };
        let asked = self.ask_servers(packet, question, transport, source, old.is_some());
        let answer = match &old {
            Some(_) => timeout(STALE_AFTER, asked).await.unwrap_or(Err(Failure::NoAnswer)),
            None => asked.await,
        };
        // SERVFAIL is worth no more than a missing answer.
        let useless = |answer: &[u8]| answer.get(3).is_some_and(|flags| flags & 0x0f == SERVER_FAILURE);
        match (answer, old) {
            (Ok(answer), Some(old)) if useless(&answer) => Ok((old, QueryOutcome::Stale)),
            (Ok(answer), _) => {
                if let Some(key) = key {
                    self.cache.keep(&key, &answer, source);
                }
                Ok((answer, QueryOutcome::Forwarded))
            }
            (Err(failure), old) => {
                if failure == Failure::NoAnswer {
                    self.loops.suspect();
                    if let Some(key) = key {
                        self.cache.note_unanswered(&key);
                    }
                }
                old.map(|old| (old, QueryOutcome::Stale)).ok_or(failure)
            }
        }
    }

    /// The answer of an upstream server. If there is a stale answer, all servers together get no more than
    /// [`STALE_AFTER`].
    async fn ask_servers(
        &self,
        packet: &[u8],
        question: &Question,
        transport: DnsTransport,
        source: IpAddr,
        has_old: bool,
    ) -> Result<Vec<u8>, Failure> {
        let mut servers = self.upstreams.now();
        if servers.is_empty() {
            return Err(Failure::Nobody);
        }
        servers.retain(|server| !self.loops.has(*server));
        if servers.is_empty() {
            return Err(Failure::NoAnswer);
        }
        let Some(_share) = self.shares.take(source) else {
            self.loops.suspect();
            return Err(Failure::Busy);
        };
        self.loops.note_use();
        self.health.order(&mut servers);
        let share = STALE_AFTER / u32::try_from(servers.len()).unwrap_or(u32::MAX);
        let patience = if has_old { self.timeout.min(share) } else { self.timeout };
        for server in servers {
            let exchange = self.wire.exchange(server, packet, question, transport);
            match timeout(patience, exchange).await {
                Ok(Ok(mut answer)) => {
                    self.health.note_answer(server);
                    answer[..2].copy_from_slice(&packet[..2]);
                    return Ok(answer);
                }
                Ok(Err(error)) => debug!(%server, %error, "cannot query a DNS server"),
                Err(_) => debug!(%server, "a DNS server does not answer"),
            }
            self.loops.suspect();
        }
        Err(Failure::NoAnswer)
    }

    /// The records of the target of an alias; none when no server answers.
    pub(super) async fn resolve(&self, target: Name, like: &Question, source: IpAddr) -> Vec<Record> {
        let query = Query::query(target, like.record_type());
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.add_query(query.clone());
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_PAYLOAD_MAX);
        message.set_edns(edns.clone());
        let question = Question { header: message.metadata, query, edns: Some(edns) };
        let Ok(packet) = message.to_vec() else { return Vec::new() };
        for transport in [DnsTransport::Udp, DnsTransport::Tcp] {
            let Ok((bytes, _)) = self.ask(&packet, &question, transport, source).await else {
                return Vec::new();
            };
            let Ok(answer) = Message::from_vec(&bytes) else { return Vec::new() };
            if !answer.metadata.truncation {
                let good = answer.metadata.response_code == ResponseCode::NoError;
                return if good { answer.answers } else { Vec::new() };
            }
        }
        Vec::new()
    }
}

/// Replaces an answer that is too long for the client with a truncated one without records, so that the client retries
/// over TCP.
pub(super) fn cut(answer: &[u8], question: &Question) -> Message {
    let mut reply = question.reply(ResponseCode::NoError);
    reply.metadata.truncation = true;
    reply.metadata.recursion_available = answer.get(3).is_some_and(|flags| flags & 0x80 != 0);
    reply
}
