//! Asking other servers.
//!
//! Packets are passed on as they are: records, signatures and options that this program does not know arrive unharmed. Each
//! question has a socket of its own, so a port that the system chose at random, and a random identifier.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{Name, Record};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::cache::{Cache, Key};
use super::loops::Loops;
use super::message::{Question, Transport, UDP_PAYLOAD_MAX};
use super::metrics::Outcome;
use super::shares::Shares;
use super::upstreams::Upstreams;

/// Questions that other servers are asked at the same time, at most: further ones fail at once.
pub(super) const FORWARDS_MAX: usize = 256;

/// Largest answer over UDP that is read.
const DATAGRAM_MAX: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(super) struct Forwarder {
    upstreams: Upstreams,
    /// For one server.
    timeout: Duration,
    places: Shares,
    /// The server that has answered last.
    preferred: AtomicUsize,
    cache: Cache,
    pub(super) loops: Loops,
    /// Until then nobody is waited for where an old answer is there: nobody has answered lately.
    away_until: Mutex<Option<Instant>>,
}

/// How long a client waits before it is given an old answer, where there is one (RFC 8767).
const STALE_AFTER: Duration = Duration::from_millis(1800);

/// How long nobody is waited for after nobody has answered.
const AWAY: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// There is nobody to ask.
    Nobody,
    /// Nobody has answered.
    NoAnswer,
    /// Too much is asked already, by everybody or by this client.
    Busy,
}

/// Code of a server that could not find out.
const SERVER_FAILURE: u8 = 2;

impl Forwarder {
    pub(super) fn new(upstreams: Upstreams, timeout: Duration) -> Self {
        Self {
            upstreams,
            timeout,
            places: Shares::new(FORWARDS_MAX),
            preferred: AtomicUsize::new(0),
            cache: Cache::default(),
            loops: Loops::default(),
            away_until: Mutex::default(),
        }
    }

    /// Looks for servers that ask this one, for ever.
    pub(super) async fn watch_for_loops(&self) {
        self.loops.watch(&self.upstreams, self.timeout).await;
    }

    /// A kept answer that still counts: nobody has to be asked, and nobody has to wait.
    pub(super) fn kept(&self, packet: &[u8], question: &Question) -> Option<Vec<u8>> {
        let hit = self.cache.find(&Key::of(packet, question)?, packet)?;
        hit.fresh.then_some(hit.answer)
    }

    /// The answer to a packet, under the packet's own identifier, kept or of another server. `source` is who asks.
    ///
    /// # Errors
    /// [`Failure`] when there is none.
    pub(super) async fn ask(
        &self,
        packet: &[u8],
        question: &Question,
        transport: Transport,
        source: IpAddr,
    ) -> Result<(Vec<u8>, Outcome), Failure> {
        let key = Key::of(packet, question);
        let kept = key.as_ref().and_then(|key| self.cache.find(key, packet));
        let old = match kept {
            Some(hit) if hit.fresh => return Ok((hit.answer, Outcome::Cached)),
            other => other.map(|hit| hit.answer),
        };
        let away = self.away_until.lock().is_some_and(|until| Instant::now() < until);
        if let Some(old) = old.clone().filter(|_| away) {
            return Ok((old, Outcome::Stale));
        }
        let asked = self.ask_servers(packet, question, transport, source);
        let answer = match &old {
            Some(_) => timeout(STALE_AFTER, asked).await.unwrap_or(Err(Failure::NoAnswer)),
            None => asked.await,
        };
        // A server that cannot say knows no more than one that does not answer.
        let useless = |answer: &[u8]| answer.get(3).is_some_and(|flags| flags & 0x0f == SERVER_FAILURE);
        match (answer, old) {
            (Ok(answer), Some(old)) if useless(&answer) => Ok((old, Outcome::Stale)),
            (Ok(answer), _) => {
                *self.away_until.lock() = None;
                if let Some(key) = key {
                    self.cache.keep(&key, &answer);
                }
                Ok((answer, Outcome::Forwarded))
            }
            (Err(failure), old) => {
                if failure == Failure::NoAnswer {
                    *self.away_until.lock() = Some(Instant::now() + AWAY);
                }
                old.map(|old| (old, Outcome::Stale)).ok_or(failure)
            }
        }
    }

    /// The answer of another server.
    async fn ask_servers(
        &self,
        packet: &[u8],
        question: &Question,
        transport: Transport,
        source: IpAddr,
    ) -> Result<Vec<u8>, Failure> {
        let mut servers = self.upstreams.now();
        if servers.is_empty() {
            return Err(Failure::Nobody);
        }
        servers.retain(|server| !self.loops.has(*server));
        if servers.is_empty() {
            return Err(Failure::NoAnswer);
        }
        let Some(_place) = self.places.take(source) else {
            self.loops.suspect();
            return Err(Failure::Busy);
        };
        self.loops.note_use();
        let first = self.preferred.load(Ordering::Relaxed) % servers.len();
        for index in (first..servers.len()).chain(0..first) {
            let exchange = exchange(servers[index], packet, question, transport);
            match timeout(self.timeout, exchange).await {
                Ok(Ok(mut answer)) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    answer[..2].copy_from_slice(&packet[..2]);
                    return Ok(answer);
                }
                Ok(Err(error)) => debug!(server = %servers[index], %error, "a DNS server cannot be asked"),
                Err(_) => debug!(server = %servers[index], "a DNS server does not answer"),
            }
        }
        Err(Failure::NoAnswer)
    }

    /// The records of a name that an alias leads to; none when nobody says.
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
        for transport in [Transport::Udp, Transport::Tcp] {
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

/// Where to send from.
pub(super) fn any_of(server: SocketAddr) -> SocketAddr {
    match server {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Asks one server, with an identifier of its own.
async fn exchange(
    server: SocketAddr,
    packet: &[u8],
    question: &Question,
    transport: Transport,
) -> std::io::Result<Vec<u8>> {
    let mut request = packet.to_vec();
    request[..2].copy_from_slice(&rand::random::<[u8; 2]>());
    match transport {
        Transport::Udp => over_udp(server, &request, question).await,
        Transport::Tcp => over_tcp(server, &request, question).await,
    }
}

async fn over_udp(server: SocketAddr, request: &[u8], question: &Question) -> std::io::Result<Vec<u8>> {
    let socket = UdpSocket::bind(any_of(server)).await?;
    // Connected: the system drops what others send.
    socket.connect(server).await?;
    socket.send(request).await?;
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if is_answer(&buffer[..length], request, question) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn over_tcp(server: SocketAddr, request: &[u8], question: &Question) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(request.len()).map_err(std::io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), request].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    if !is_answer(&answer, request, question) {
        return Err(std::io::Error::other("the answer is to another question"));
    }
    Ok(answer)
}

/// Whether a packet answers this question.
fn is_answer(packet: &[u8], request: &[u8], question: &Question) -> bool {
    if packet.len() < 12 || packet[..2] != request[..2] || packet[2] & 0x80 == 0 {
        return false;
    }
    let mut decoder = hickory_proto::serialize::binary::BinDecoder::new(&packet[12..]);
    let asked: Result<Query, _> = hickory_proto::serialize::binary::BinDecodable::read(&mut decoder);
    // A server that could not read the question says so and does not repeat it.
    let count = u16::from_be_bytes([packet[4], packet[5]]);
    let failed = packet[3] & 0x0f != 0;
    if count == 0 { failed } else { asked.is_ok_and(|asked| asked == question.query) }
}

/// An answer that is too long for the client, without its records: it asks again over TCP.
pub(super) fn cut(answer: &[u8], question: &Question) -> Message {
    let mut reply = question.reply(ResponseCode::NoError);
    reply.metadata.truncation = true;
    reply.metadata.recursion_available = answer.get(3).is_some_and(|flags| flags & 0x80 != 0);
    reply
}
