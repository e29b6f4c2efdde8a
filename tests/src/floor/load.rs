//! The measuring side: starts the server, opens the connections, and runs the phases.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use bytes::BytesMut;
use futures::{StreamExt, stream};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::{TlsConnector, TlsStream};
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::protocol::frame::coding::Data;
use tombolo_cli::process::Process;
use tombolo_link::client::{Choice, Connector, QuicSocket, Target};
use tombolo_link::tuning;
use tombolo_runtime::Tasks;
use tombolo_tests::world::ALLOCATOR;

use crate::args::{Args, FloorTransport, Stack};
use crate::channel::{FloorChannel, QuicChannel, kind, message, stamp};
use crate::exchange::Exchange;
use crate::pki;
use crate::report::FloorReport;
use crate::server::now_nanos;

/// Connections opened before the measurement and kept, so that one-time costs are not counted; as many as hollow nodes
/// (`tombolo swarm`), and part of the number of connections as well.
const WARM_UP: usize = 20;

/// Concurrent handshakes, as many as hollow nodes make.
const DIALS_AT_ONCE: usize = 64;

/// The serving process and the pipe to it.
struct Server {
    child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    process: Process,
}

impl Server {
    async fn start(args: &Args, dir: &Path) -> anyhow::Result<(Self, SocketAddr)> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", "--transport", args.transport_name(), "--stack", args.stack_name()])
            .args(["--dialect", args.dialect.name(), "--pki"])
            .arg(dir)
            // The server allocates as the measured cloudcore does.
            .envs(ALLOCATOR)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start the server process")?;
        let commands = child.stdin.take().context("no pipe to the server")?;
        let answers = BufReader::new(child.stdout.take().context("no pipe from the server")?).lines();
        let process = Process::new(child.id().context("the server has ended")?)?;
        let mut server = Self { child, commands, answers, process };
        let port: u16 = server.answer().await?.parse()?;
        Ok((server, (Ipv4Addr::LOCALHOST, port).into()))
    }

    async fn answer(&mut self) -> anyhow::Result<String> {
        self.answers.next_line().await?.context("the server has ended")
    }

    async fn command(&mut self, line: String) -> anyhow::Result<()> {
        self.commands.write_all(format!("{line}\n").as_bytes()).await?;
        self.answer().await.map(drop)
    }
}

/// State that all client tasks share.
struct Fleet {
    exchange: Exchange,
    /// Number of queries that every client sends, one after the other.
    asking: watch::Sender<usize>,
    latencies: Mutex<Vec<u64>>,
    /// Number of clients that have received all their answers.
    answered: watch::Sender<usize>,
    tasks: Tasks,
}

impl Fleet {
    fn take_latencies(&self) -> Vec<u64> {
        std::mem::take(&mut *self.latencies.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Runs all phases.
pub(crate) async fn run(args: &Args) -> anyhow::Result<FloorReport> {
    let dir = tempfile::tempdir()?;
    pki::write(dir.path())?;
    let (mut server, address) = Server::start(args, dir.path()).await?;
    let dialler = Dialler::new(args, dir.path(), address)?;
    let fleet = Arc::new(Fleet {
        exchange: args.dialect.exchange(),
        asking: watch::Sender::new(0),
        latencies: Mutex::default(),
        answered: watch::Sender::new(0),
        tasks: Tasks::new(),
    });
    let mut report = FloorReport::new(args);

    let total = args.connections;
    let warm = WARM_UP.min(total / 10);
    connect(&dialler, &fleet, warm).await?;
    server.command(format!("connected {warm}")).await?;
    let (before, begin) = (server.process.at_rest().await?, Instant::now());
    connect(&dialler, &fleet, total - warm).await?;
    server.command(format!("connected {total}")).await?;
    report.accepted(server.process.read()?.cpu.saturating_sub(before.cpu), begin.elapsed(), total - warm);
    let idle = server.process.at_rest().await?;
    report.idle_memory(idle.resident.saturating_sub(before.resident), total - warm);

    updates(&mut server, &fleet, &mut report, total).await?;
    queries(&mut server, &fleet, &mut report, total, args.queries).await?;
    if args.large {
        server.command(format!("large {total}")).await?;
    }
    let after = server.process.at_rest().await?;
    report.memory_after_work(after.resident.saturating_sub(before.resident), total - warm);
    server.child.kill().await?;
    Ok(report)
}

async fn updates(
    server: &mut Server,
    fleet: &Fleet,
    report: &mut FloorReport,
    total: usize,
) -> anyhow::Result<()> {
    // The first round makes buffers grow, so it is not measured.
    server.command(format!("update {total}")).await?;
    fleet.take_latencies();
    let (before, mut rounds) = (server.process.read()?, Vec::with_capacity(report.updates));
    for _ in 0..report.updates {
        server.command(format!("update {total}")).await?;
        rounds.push(fleet.take_latencies());
    }
    report.updated(server.process.read()?.cpu.saturating_sub(before.cpu), total, rounds);
    Ok(())
}

/// All connections query at the same time, as hollow nodes do: this is the floor of a thousand connections, not of a
/// few warm ones.
async fn queries(
    server: &mut Server,
    fleet: &Fleet,
    report: &mut FloorReport,
    total: usize,
    each: usize,
) -> anyhow::Result<()> {
    let (before, begin) = (server.process.read()?, Instant::now());
    fleet.asking.send_replace(each);
    fleet.answered.subscribe().wait_for(|done| *done == total).await?;
    report.queried(server.process.read()?.cpu.saturating_sub(before.cpu), total * each, begin.elapsed());
    Ok(())
}

async fn connect(dialler: &Dialler, fleet: &Arc<Fleet>, count: usize) -> anyhow::Result<()> {
    let mut dials = stream::iter(0..count).map(|_| dialler.dial()).buffer_unordered(DIALS_AT_ONCE);
    while let Some(channel) = dials.next().await {
        let client = client(channel?, Arc::clone(fleet));
        fleet.tasks.spawn_isolated("client", client);
    }
    Ok(())
}

/// Acknowledges updates and, in the query phase, sends the next query after each answer.
async fn client(mut channel: FloorChannel, fleet: Arc<Fleet>) -> anyhow::Result<()> {
    let Exchange { ack_len, question_len, answers_acknowledged, .. } = fleet.exchange;
    let ack = message(kind::ACK, 0, ack_len);
    let stored = answers_acknowledged.then(|| message(kind::STORED, 0, ack_len));
    let query = message(kind::QUERY, 0, question_len);
    let mut asking = fleet.asking.subscribe();
    let mut left = 0;
    loop {
        tokio::select! {
            received = channel.next() => {
                let Some(received) = received? else { return Ok(()) };
                if received.first() == Some(&kind::UPDATE) {
                    let latency = now_nanos().saturating_sub(stamp(&received));
                    fleet.latencies.lock().unwrap_or_else(PoisonError::into_inner).push(latency);
                    channel.send(ack.clone()).await?;
                } else {
                    left -= 1;
                    match (&stored, left > 0) {
                        (Some(stored), true) => channel.feed(stored.clone()).await?,
                        (Some(stored), false) => channel.send(stored.clone()).await?,
                        (None, _) => {}
                    }
                    if left > 0 {
                        channel.send(query.clone()).await?;
                    } else {
                        fleet.answered.send_modify(|done| *done += 1);
                    }
                }
            }
            changed = asking.changed() => {
                changed?;
                left = *asking.borrow_and_update();
                if left > 0 {
                    channel.send(query.clone()).await?;
                }
            }
        }
    }
}

/// Opens connections of one kind.
enum Dialler {
    WebSocket(TlsConnector, SocketAddr, Data),
    Quic(Endpoint, ClientConfig, SocketAddr),
    Link(Target, tombolo_link::tls::ClientTls, QuicSocket),
}

impl Dialler {
    fn new(args: &Args, dir: &Path, address: SocketAddr) -> anyhow::Result<Self> {
        Ok(match (args.stack, args.transport) {
            (Stack::Bare, FloorTransport::WebSocket) => {
                let connector = TlsConnector::from(Arc::new(pki::client(dir, b"http/1.1")?));
                Self::WebSocket(connector, address, args.dialect.exchange().data)
            }
            (Stack::Bare, FloorTransport::Quic) => {
                let crypto = QuicClientConfig::try_from(pki::client(dir, b"floor")?)?;
                let (endpoint, config) = tuning::quic_client(Arc::new(crypto))?;
                Self::Quic(endpoint, config, address)
            }
            (Stack::Link, transport) => {
                let choice = match transport {
                    FloorTransport::WebSocket => Choice::WebSocket,
                    FloorTransport::Quic => Choice::Quic,
                };
                let host = address.ip().to_string();
                let (websocket_port, quic_port) = (address.port(), address.port());
                let target = Target { host, websocket_port, quic_port, choice };
                Self::Link(target, pki::link_client(dir)?, QuicSocket::bind()?)
            }
        })
    }

    async fn dial(&self) -> anyhow::Result<FloorChannel> {
        match self {
            Self::WebSocket(connector, address, data) => {
                let stream = TcpStream::connect(address).await?;
                tuning::tcp(&stream)?;
                let name = ServerName::from(address.ip());
                let mut tls = connector.connect(name, stream).await?;
                tuning::tls(tls.get_mut().1);
                let (url, tls) = (format!("wss://{address}/"), TlsStream::Client(tls));
                let (stream, _) = client_async_with_config(url, tls, Some(tuning::websocket())).await?;
                Ok(FloorChannel::WebSocket(Box::new(stream), *data))
            }
            Self::Quic(endpoint, config, address) => {
                let connection = endpoint.connect_with(config.clone(), *address, "127.0.0.1")?.await?;
                let (mut send, receive) = connection.open_bi().await?;
                // The server sees the stream when its first byte arrives.
                send.write_all(&[0, 0, 0, 1, kind::HELLO]).await?;
                let quic = QuicChannel { send, receive, buffer: BytesMut::new(), _connection: connection };
                Ok(FloorChannel::Quic(Box::new(quic)))
            }
            Self::Link(target, tls, socket) => {
                let mut connector = Connector::new(target.clone(), tls.clone()).with_socket(socket.clone());
                Ok(FloorChannel::Link(Box::new(connector.connect().await?)))
            }
        }
    }
}
