//! Serves queries over UDP and TCP.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use hickory_proto::op::{Message, ResponseCode};
use parking_lot::RwLock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::ServedZone;
use super::answer::{Answer, answer};
use super::authority::Authority;
use super::clients::Clients;
use super::forward::{FORWARDS_MAX, Failure, Forwarder, cut};
use super::message::{DnsTransport, Packet, Question, read, write};
use super::metrics::{DnsMetrics, QueryOutcome};
use crate::shares::Shares;

/// Datagrams that are handled in one turn, before other work continues.
const TURN: usize = 64;

/// Largest datagram that is read, in bytes. Queries are smaller; a longer datagram is cut off and no longer parses.
const DATAGRAM_MAX: usize = 4096;

/// TCP connections that are served at the same time, at most. One client may have half of those that others leave free;
/// further connections are closed at once.
pub(super) const CONNECTIONS_MAX: usize = 128;

/// How long a TCP connection may be silent, and how long an answer may take to be sent.
const IDLE: Duration = Duration::from_secs(10);

/// Largest query over TCP in bytes.
const QUESTION_MAX: usize = 4096;

/// The DNS server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) authority: Authority,
    pub(super) known: Arc<RwLock<ServedZone>>,
    pub(super) forwarder: Forwarder,
    pub(super) metrics: Arc<DnsMetrics>,
    pub(super) clients: Clients,
}

/// How a packet is handled.
pub(super) enum Step {
    Nothing,
    Send(Vec<u8>),
    /// Other servers must be queried first.
    Wait(Question, Wait),
}

/// What to query other servers for.
pub(super) enum Wait {
    Everything,
    /// The target of the alias in this answer.
    Rest(Box<Message>, hickory_proto::rr::Name),
}

impl Server {
    /// Answers a client as far as possible without other servers. Clients outside the allowed networks get no answer:
    /// their source address may be forged.
    pub(super) fn step(&self, packet: &[u8], transport: DnsTransport, source: IpAddr) -> Step {
        if !self.clients.are_answered(source) {
            self.metrics.count(QueryOutcome::Foreign);
            return Step::Nothing;
        }
        let question = match read(packet) {
            Packet::Noise => {
                self.metrics.count(QueryOutcome::Dropped);
                return Step::Nothing;
            }
            Packet::Refused(reply) => return self.send(QueryOutcome::Malformed, *reply, u16::MAX),
            Packet::Question(question) => question,
        };
        let room = question.room(transport);
        if self.forwarder.loops.is_own(&question) {
            return self.send(QueryOutcome::Looped, question.reply(ResponseCode::Refused), room);
        }
        let answer = answer(&self.authority, &self.known.read(), &question, room);
        match answer {
            Answer::Known(reply) => self.send(QueryOutcome::Answered, reply, room),
            Answer::Unknown(reply) => self.send(QueryOutcome::Unknown, reply, room),
            Answer::Refused(reply) => self.send(QueryOutcome::Refused, reply, room),
            Answer::Alias(reply, target) => Step::Wait(*question, Wait::Rest(Box::new(reply), target)),
            Answer::Elsewhere => match self.forwarder.kept(packet, &question, source) {
                Some(answer) if answer.len() <= usize::from(room) => {
                    self.metrics.count(QueryOutcome::Cached);
                    Step::Send(answer)
                }
                _ => Step::Wait(*question, Wait::Everything),
            },
        }
    }

    fn send(&self, outcome: QueryOutcome, reply: Message, room: u16) -> Step {
        match write(reply, room) {
            Ok(bytes) => {
                self.metrics.count(outcome);
                Step::Send(bytes)
            }
            Err(error) => {
                self.metrics.count(QueryOutcome::Dropped);
                debug!(%error, "cannot encode a DNS answer");
                Step::Nothing
            }
        }
    }

    /// Queries other servers and completes the answer.
    async fn wait(
        &self,
        packet: &[u8],
        question: Question,
        wait: Wait,
        (transport, source): (DnsTransport, IpAddr),
    ) -> Option<Vec<u8>> {
        let room = question.room(transport);
        let step = match wait {
            Wait::Rest(mut reply, target) => {
                reply.add_answers(self.forwarder.resolve(target, &question, source).await);
                self.send(QueryOutcome::Answered, *reply, room)
            }
            Wait::Everything => match self.forwarder.ask(packet, &question, transport, source).await {
                Ok((answer, outcome)) if answer.len() > usize::from(room) => {
                    self.send(outcome, cut(&answer, &question), room)
                }
                Ok((answer, outcome)) => {
                    self.metrics.count(outcome);
                    return Some(answer);
                }
                Err(Failure::Nobody) => {
                    self.send(QueryOutcome::Nobody, question.reply(ResponseCode::Refused), room)
                }
                Err(failure) => {
                    let busy = failure == Failure::Busy;
                    let outcome = if busy { QueryOutcome::Busy } else { QueryOutcome::Unanswered };
                    self.send(outcome, question.reply(ResponseCode::ServFail), room)
                }
            },
        };
        match step {
            Step::Send(bytes) => Some(bytes),
            Step::Nothing | Step::Wait(..) => None,
        }
    }

    /// Serves datagrams for ever.
    pub(super) async fn serve_udp(&self, socket: UdpSocket) {
        let mut waiting: FuturesUnordered<BoxFuture<'_, (SocketAddr, Option<Vec<u8>>)>> =
            FuturesUnordered::new();
        let mut buffer = vec![0; DATAGRAM_MAX];
        loop {
            tokio::select! {
                Some((peer, answer)) = waiting.next(), if !waiting.is_empty() => {
                    if let Some(answer) = answer {
                        send_answer(&socket, &answer, peer);
                    }
                }
                received = socket.recv_from(&mut buffer) => {
                    let mut received = received;
                    for _ in 0..TURN {
                        let Ok((length, peer)) = received else { break };
                        let packet = &buffer[..length];
                        match self.step(packet, DnsTransport::Udp, peer.ip()) {
                            Step::Nothing => {}
                            Step::Send(answer) => send_answer(&socket, &answer, peer),
                            Step::Wait(question, _) if waiting.len() >= FORWARDS_MAX => {
                                let reply = question.reply(ResponseCode::ServFail);
                                let room = question.room(DnsTransport::Udp);
                                if let Step::Send(answer) = self.send(QueryOutcome::Busy, reply, room) {
                                    send_answer(&socket, &answer, peer);
                                }
                            }
                            Step::Wait(question, wait) => {
                                let packet = packet.to_vec();
                                waiting.push(async move {
                                    let from = (DnsTransport::Udp, peer.ip());
                                    (peer, self.wait(&packet, question, wait, from).await)
                                }.boxed());
                            }
                        }
                        received = socket.try_recv_from(&mut buffer);
                    }
                }
            }
        }
    }

    /// Serves connections for ever.
    pub(super) async fn serve_tcp(&self, listener: TcpListener) {
        let mut connections: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
        let shares = Shares::new(CONNECTIONS_MAX);
        loop {
            tokio::select! {
                Some(()) = connections.next(), if !connections.is_empty() => {}
                accepted = listener.accept() => match accepted {
                    Ok((_, peer)) if !self.clients.are_answered(peer.ip()) => {
                        self.metrics.count(QueryOutcome::Foreign);
                    }
                    Ok((stream, peer)) => match shares.take(peer.ip().to_canonical()) {
                        Some(share) => connections.push(
                            async move {
                                self.converse(stream, peer.ip()).await;
                                drop(share);
                            }
                            .boxed(),
                        ),
                        None => {
                            self.metrics.count(QueryOutcome::Crowded);
                            debug!(%peer, "a DNS connection is closed: its client has too many connections");
                        }
                    },
                    Err(error) => {
                        warn!(%error, "cannot accept a DNS connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    }

    /// Answers the queries of one connection, one after the other.
    async fn converse(&self, mut stream: TcpStream, source: IpAddr) {
        while let Ok(Some(packet)) = timeout(IDLE, question(&mut stream)).await {
            let answer = match self.step(&packet, DnsTransport::Tcp, source) {
                Step::Nothing => return,
                Step::Send(answer) => Some(answer),
                Step::Wait(question, wait) => {
                    self.wait(&packet, question, wait, (DnsTransport::Tcp, source)).await
                }
            };
            let Some(answer) = answer else { return };
            let Ok(length) = u16::try_from(answer.len()) else { return };
            let framed = [&length.to_be_bytes(), answer.as_slice()].concat();
            if !matches!(timeout(IDLE, stream.write_all(&framed)).await, Ok(Ok(()))) {
                return;
            }
        }
    }
}

/// Pause after a connection could not be accepted, for example because no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Sends a datagram. It is dropped if the system does not accept it now, so that a slow client delays no other.
fn send_answer(socket: &UdpSocket, answer: &[u8], peer: SocketAddr) {
    let _ = socket.try_send_to(answer, peer);
}

/// The next query of a connection; none at the end, or when the query is too long.
async fn question(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let length = usize::from(stream.read_u16().await.ok()?);
    if length > QUESTION_MAX {
        return None;
    }
    let mut packet = vec![0; length];
    stream.read_exact(&mut packet).await.ok()?;
    Some(packet)
}
