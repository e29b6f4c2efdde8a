//! The hub's listeners: links from nodes whose certificate TLS has verified.
//!
//! Each handshake runs in a task of its own that ends when the link is handed over, so that none of its memory stays
//! with the connection. Handshakes have a time limit, slots per source and in total ([`ConnectionLimiter`]), and a
//! pace. A TCP connection takes a handshake slot once its peer has sent data. When some QUIC clients have not proven
//! their address yet, further ones must prove theirs first.

mod kubeedge;
mod pace;
mod quic;
mod websocket;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tombolo_proto::NodeId;
use tombolo_runtime::connection_limiter::{ConnectionLimiter, ConnectionLimits, Working};
use tombolo_runtime::{Drain, Tasks, listen};

use crate::conn::{Link, Transport};
use crate::document::DocumentLink;
use crate::error::BindError;
use crate::tls::ServerTls;

pub(crate) use quic::endpoint as quic_endpoint;

/// Links that wait for the hub to take them; further handshakes wait and keep their slot.
pub const ARRIVALS_MAX: usize = 64;

/// An address and its configuration key, for errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Listen address; port 0 selects a free port.
    pub address: SocketAddr,
    /// Configuration key or flag.
    pub setting: String,
}

/// Configuration of the listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// The WebSocket listener, if any.
    pub websocket: Option<Listen>,
    /// The QUIC listener, if any.
    pub quic: Option<Listen>,
    /// Whether KubeEdge edges are served: WebSocket upgrades without our subprotocol, and TLS 1.2 for them.
    pub kubeedge: bool,
    /// Bounds on handshakes.
    pub limits: Limits,
}

/// Bounds on handshakes. Each listener counts separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time for TLS, upgrade and lanes together.
    pub handshake_timeout: Duration,
    /// Time in which a TCP connection must send its first byte.
    pub silence_timeout: Duration,
    /// Most unauthenticated connections, per source and in total.
    pub connection_limits: ConnectionLimits,
    /// Connections accepted per second on average.
    pub accepts_per_second: u32,
    /// Connections accepted at once after a pause.
    pub accept_burst: u32,
}

/// Slots of one listener. A waiting connection costs about 3 KiB, one that begins its handshake about 16 KiB: one
/// source can make a listener hold 8 MiB.
pub const CONNECTION_LIMITS: ConnectionLimits =
    ConnectionLimits { waiting: 4096, waiting_per_source: 2048, working: 256, working_per_source: 96 };

/// Most QUIC clients that wait for their handshake: each has sent a whole first flight, which is kept meanwhile.
const QUIC_WAITING_MAX: usize = 1024;

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            silence_timeout: Duration::from_secs(5),
            connection_limits: CONNECTION_LIMITS,
            accepts_per_second: 2_000,
            accept_burst: 1_000,
        }
    }
}

/// A connection that a listener hands over.
#[expect(clippy::large_enum_variant, reason = "moved twice in a connection's life, and nearly all are links")]
#[derive(Debug)]
pub enum Arrival {
    /// A node that speaks dialect `tombolo`.
    Tombolo(Accepted),
    /// A node that speaks dialect `kubeedge`.
    KubeEdge(AcceptedKubeEdge),
}

/// A link and its other end.
#[derive(Debug)]
pub struct Accepted {
    /// The link.
    pub link: Link,
    /// The node in its certificate.
    pub node: NodeId,
    /// Network address.
    pub remote: SocketAddr,
    /// Transport of the link.
    pub transport: Transport,
}

/// A link of dialect `kubeedge` and its other end.
#[derive(Debug)]
pub struct AcceptedKubeEdge {
    /// The link.
    pub link: DocumentLink,
    /// The node in its certificate; path and headers of the upgrade do not name another one.
    pub node: NodeId,
    /// Network address.
    pub remote: SocketAddr,
}

/// Counts since the start, for metrics.
#[derive(Debug, Default)]
pub struct ServerStats {
    accepted_websocket: AtomicU64,
    accepted_quic: AtomicU64,
    failed: AtomicU64,
    timed_out: AtomicU64,
    silent: AtomicU64,
    limiters: OnceLock<Vec<ConnectionLimiter>>,
}

impl ServerStats {
    /// Links handed over, by transport.
    #[must_use]
    pub fn accepted(&self, transport: Transport) -> u64 {
        match transport {
            Transport::WebSocket => self.accepted_websocket.load(Ordering::Relaxed),
            Transport::Quic => self.accepted_quic.load(Ordering::Relaxed),
            Transport::Memory => 0,
        }
    }

    /// Handshakes that failed: no TLS, missing or wrong certificate, wrong upgrade.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Handshakes that took too long.
    #[must_use]
    pub fn timed_out(&self) -> u64 {
        self.timed_out.load(Ordering::Relaxed)
    }

    /// Connections that ended because they sent nothing in time, or before another connection needed the slot.
    #[must_use]
    pub fn silent(&self) -> u64 {
        self.silent.load(Ordering::Relaxed)
    }

    /// Connections that were refused for lack of a slot.
    #[must_use]
    pub fn crowded(&self) -> u64 {
        self.limiters().map(ConnectionLimiter::refused).sum()
    }

    /// Connections that are currently not authenticated.
    #[must_use]
    pub fn strangers(&self) -> usize {
        self.limiters().map(|limiter| limiter.waiting().saturating_add(limiter.working())).sum()
    }

    /// Those of them whose handshake is running.
    #[must_use]
    pub fn handshakes(&self) -> usize {
        self.limiters().map(ConnectionLimiter::working).sum()
    }

    fn limiters(&self) -> impl Iterator<Item = &ConnectionLimiter> {
        self.limiters.get().into_iter().flatten()
    }
}

/// Bound listeners that do not accept yet.
#[derive(Debug)]
pub struct BoundListeners {
    websocket: Option<websocket::Listener>,
    quic: Option<quic::Listener>,
    websocket_addr: Option<SocketAddr>,
    quic_addr: Option<SocketAddr>,
    limits: Limits,
}

/// Binds the listeners that the configuration names.
///
/// # Errors
/// [`BindError`], which says what to change.
pub async fn bind(config: &ServerConfig, tls: &ServerTls) -> Result<BoundListeners, BindError> {
    let mut bound = BoundListeners {
        websocket: None,
        quic: None,
        websocket_addr: None,
        quic_addr: None,
        limits: config.limits,
    };
    if let Some(listen) = &config.websocket {
        let tcp: TcpListener = listen::tcp(&listen.setting, listen.address).await?;
        bound.websocket_addr = tcp.local_addr().ok();
        bound.websocket = Some(websocket::Listener::new(tcp, tls, config.kubeedge)?);
    }
    if let Some(listen) = &config.quic {
        let listener = quic::Listener::bind(listen, tls)?;
        bound.quic_addr = listener.local_addr();
        bound.quic = Some(listener);
    }
    Ok(bound)
}

impl BoundListeners {
    /// Address of the WebSocket listener.
    #[must_use]
    pub fn websocket_addr(&self) -> Option<SocketAddr> {
        self.websocket_addr
    }

    /// Address of the QUIC listener.
    #[must_use]
    pub fn quic_addr(&self) -> Option<SocketAddr> {
        self.quic_addr
    }

    /// Accepts until the drain starts.
    #[must_use]
    pub fn start(self, tasks: &Tasks, drain: &Drain) -> Incoming {
        let (arrivals, receiver) = mpsc::channel(ARRIVALS_MAX);
        let stats = Arc::new(ServerStats::default());
        let quic = ConnectionLimits {
            waiting: self.limits.connection_limits.waiting.min(QUIC_WAITING_MAX),
            waiting_per_source: self.limits.connection_limits.waiting_per_source.min(QUIC_WAITING_MAX / 2),
            ..self.limits.connection_limits
        };
        let limiters = [ConnectionLimiter::new(self.limits.connection_limits), ConnectionLimiter::new(quic)];
        // Set once: the statistics were created here.
        let _ = stats.limiters.set(limiters.to_vec());
        let context = |limiter| HandshakeContext {
            arrivals: arrivals.clone(),
            limiter,
            limits: self.limits,
            tasks: tasks.clone(),
            drain: drain.clone(),
            stats: Arc::clone(&stats),
        };
        let [of_websocket, of_quic] = limiters;
        if let Some(listener) = self.websocket {
            tasks.spawn("websocket listener", listener.run(context(of_websocket)));
        }
        if let Some(listener) = self.quic {
            tasks.spawn("quic listener", listener.run(context(of_quic)));
        }
        Incoming { receiver, stats }
    }
}

/// Accepted links.
#[derive(Debug)]
pub struct Incoming {
    receiver: mpsc::Receiver<Arrival>,
    stats: Arc<ServerStats>,
}

impl Incoming {
    /// The next arrival; `None` once the listeners have drained. Cancel-safe.
    pub async fn next(&mut self) -> Option<Arrival> {
        self.receiver.recv().await
    }

    /// Counts since the start.
    #[must_use]
    pub fn stats(&self) -> Arc<ServerStats> {
        Arc::clone(&self.stats)
    }
}

/// State that a listener's handshakes share.
#[derive(Clone)]
struct HandshakeContext {
    arrivals: mpsc::Sender<Arrival>,
    limiter: ConnectionLimiter,
    limits: Limits,
    tasks: Tasks,
    drain: Drain,
    stats: Arc<ServerStats>,
}

impl HandshakeContext {
    /// Runs one handshake within the time limit; its slot is held until the hub has the link. Boxed: otherwise each of
    /// the futures around it would reserve room for it.
    async fn admit<E: std::fmt::Display>(
        self,
        remote: SocketAddr,
        slot: Working,
        handshake: BoxFuture<'static, Result<Arrival, E>>,
    ) {
        let limit = self.limits.handshake_timeout;
        let timed = async {
            tokio::select! {
                done = tokio::time::timeout(limit, handshake) => Some(done),
                () = slot.evicted() => None,
            }
        };
        match self.drain.until_started(timed).await {
            Some(Some(Ok(Ok(arrival)))) => {
                self.stats.count(&arrival);
                // Fails only when the hub has stopped, which drops the link.
                let _ = self.arrivals.send(arrival).await;
            }
            Some(Some(Ok(Err(error)))) => {
                self.stats.failed.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%remote, %error, "handshake failed");
            }
            Some(Some(Err(_))) => {
                self.stats.timed_out.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%remote, ?limit, "handshake took too long");
            }
            Some(None) => {
                self.stats.timed_out.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%remote, "handshake dropped in favor of one from another source");
            }
            None => tracing::debug!(%remote, "handshake aborted: draining"),
        }
    }
}

impl ServerStats {
    fn count(&self, arrival: &Arrival) {
        let counter = match arrival {
            Arrival::Tombolo(Accepted { transport: Transport::Quic, .. }) => &self.accepted_quic,
            Arrival::Tombolo(_) | Arrival::KubeEdge(_) => &self.accepted_websocket,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
