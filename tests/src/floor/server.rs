//! The measured side: accepts connections, sends messages on command, answers queries, and counts acknowledgements.
//!
//! It reads commands from standard input, one per line, and answers each with one line on standard output.

use std::io::Write as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use quinn::crypto::rustls::QuicServerConfig;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_rustls::{TlsAcceptor, TlsStream};
use tokio_tungstenite::accept_async_with_config;
use tombolo_link::server::{self as links, Arrival, Limits, Listen, ServerConfig};
use tombolo_link::tuning;
use tombolo_runtime::{Drain, Tasks};

use crate::args::{Args, FloorTransport, Stack};
use crate::channel::{FloorChannel, QuicChannel, kind, message};
use crate::exchange::{Exchange, LARGE_LEN};
use crate::pki;

/// Large messages in transit at once.
const LARGE_AT_ONCE: usize = 8;

struct Hub {
    exchange: Exchange,
    /// The message that every connection sends next.
    outgoing: watch::Sender<Bytes>,
    connections: AtomicU64,
    acks: AtomicU64,
    changed: Notify,
    large: Semaphore,
    tasks: Tasks,
}

impl Hub {
    async fn until(&self, counter: &AtomicU64, target: u64) {
        loop {
            let changed = self.changed.notified();
            if counter.load(Ordering::SeqCst) >= target {
                return;
            }
            changed.await;
        }
    }

    fn count(&self, counter: &AtomicU64, every: u64) {
        if (counter.fetch_add(1, Ordering::SeqCst) + 1).is_multiple_of(every) {
            self.changed.notify_one();
        }
    }
}

/// Serves until standard input ends.
pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let hub = Arc::new(Hub {
        exchange: args.dialect.exchange(),
        outgoing: watch::Sender::new(Bytes::new()),
        connections: AtomicU64::new(0),
        acks: AtomicU64::new(0),
        changed: Notify::new(),
        large: Semaphore::new(LARGE_AT_ONCE),
        tasks: Tasks::new(),
    });
    let dir = args.pki.as_deref().context("--pki is missing")?;
    let port = match (args.stack, args.transport) {
        (Stack::Bare, FloorTransport::WebSocket) => listen_websocket(dir, &hub).await?,
        (Stack::Bare, FloorTransport::Quic) => listen_quic(dir, &hub)?,
        (Stack::Link, transport) => listen_link(dir, &hub, transport).await?,
    };
    say(&port.to_string())?;
    obey(&hub).await
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush().context("standard output")
}

async fn obey(hub: &Hub) -> anyhow::Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let (word, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let number: u64 = number.parse()?;
        match word {
            "connected" => hub.until(&hub.connections, number).await,
            "update" | "large" => {
                let target = hub.acks.load(Ordering::SeqCst) + number;
                let len = if word == "update" { hub.exchange.update_len } else { LARGE_LEN };
                hub.outgoing.send_replace(message(kind::UPDATE, now_nanos(), len));
                hub.until(&hub.acks, target).await;
            }
            other => anyhow::bail!("unknown command {other:?}"),
        }
        say("done")?;
    }
    Ok(())
}

/// Wall clock: the two processes have no other common clock.
pub(crate) fn now_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

async fn listen_websocket(dir: &Path, hub: &Arc<Hub>) -> anyhow::Result<u16> {
    let acceptor = TlsAcceptor::from(Arc::new(pki::server(dir, b"http/1.1")?));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    let hub = Arc::clone(hub);
    hub.tasks.clone().spawn("listener", async move {
        loop {
            let (stream, _) = listener.accept().await?;
            tuning::tcp(&stream)?;
            let (acceptor, hub) = (acceptor.clone(), Arc::clone(&hub));
            hub.tasks.clone().spawn_isolated("handshake", async move {
                let mut tls = acceptor.accept(stream).await?;
                tuning::tls(tls.get_mut().1);
                let tls = TlsStream::Server(tls);
                let stream = accept_async_with_config(tls, Some(tuning::websocket())).await?;
                // The handshake's future must not stay alive with the connection.
                let channel = FloorChannel::WebSocket(Box::new(stream), hub.exchange.data);
                hub.tasks.spawn_isolated("connection", serve(channel, Arc::clone(&hub)));
                anyhow::Ok(())
            });
        }
        #[expect(unreachable_code, reason = "names the error type of the endless loop")]
        anyhow::Ok(())
    });
    Ok(port)
}

fn listen_quic(dir: &Path, hub: &Arc<Hub>) -> anyhow::Result<u16> {
    let crypto = QuicServerConfig::try_from(pki::server(dir, b"floor")?)?;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let endpoint = tuning::quic_server(socket, Arc::new(crypto))?;
    let port = endpoint.local_addr()?.port();
    let hub = Arc::clone(hub);
    hub.tasks.clone().spawn("listener", async move {
        while let Some(incoming) = endpoint.accept().await {
            let hub = Arc::clone(&hub);
            hub.tasks.clone().spawn_isolated("handshake", async move {
                let connection = incoming.accept()?.await?;
                let (send, receive) = connection.accept_bi().await?;
                let quic = QuicChannel { send, receive, buffer: BytesMut::new(), _connection: connection };
                hub.tasks.spawn_isolated(
                    "connection",
                    serve(FloorChannel::Quic(Box::new(quic)), Arc::clone(&hub)),
                );
                anyhow::Ok(())
            });
        }
    });
    Ok(port)
}

async fn listen_link(dir: &Path, hub: &Arc<Hub>, transport: FloorTransport) -> anyhow::Result<u16> {
    let listen = Listen { address: (Ipv4Addr::LOCALHOST, 0).into(), setting: "floor".to_owned() };
    let websocket = (transport == FloorTransport::WebSocket).then(|| listen.clone());
    let quic = (transport == FloorTransport::Quic).then_some(listen);
    let limits = Limits { accepts_per_second: 100_000, accept_burst: 100_000, ..Limits::default() };
    let config = ServerConfig { websocket, quic, kubeedge: false, limits };
    let bound = links::bind(&config, &pki::link_server(dir)?).await?;
    let address = bound.websocket_addr().or(bound.quic_addr()).context("no address")?;
    let mut incoming = bound.start(&hub.tasks, &Drain::never());
    let hub = Arc::clone(hub);
    hub.tasks.clone().spawn("arrivals", async move {
        while let Some(Arrival::Tombolo(accepted)) = incoming.next().await {
            let channel = FloorChannel::Link(Box::new(accepted.link));
            hub.tasks.spawn_isolated("connection", serve(channel, Arc::clone(&hub)));
        }
    });
    Ok(address.port())
}

async fn serve(mut channel: FloorChannel, hub: Arc<Hub>) -> anyhow::Result<()> {
    let mut outgoing = hub.outgoing.subscribe();
    outgoing.mark_unchanged();
    let reply = message(kind::REPLY, 0, hub.exchange.answer_len);
    hub.count(&hub.connections, 1);
    loop {
        tokio::select! {
            received = channel.next() => match received?.as_ref().and_then(|bytes| bytes.first()) {
                Some(&kind::ACK) => hub.count(&hub.acks, 1),
                Some(&kind::HELLO | &kind::STORED) => {}
                Some(&kind::QUERY) => channel.send(reply.clone()).await?,
                _ => return Ok(()),
            },
            changed = outgoing.changed() => {
                changed?;
                let update = outgoing.borrow_and_update().clone();
                let _slot = match update.len() {
                    LARGE_LEN => Some(hub.large.acquire().await?),
                    _ => None,
                };
                channel.send(update).await?;
            }
        }
    }
}
