//! The hub's listeners: links from nodes whose certificate TLS has verified.
//!
//! Each handshake runs in a task of its own that ends when the link is handed over, so that nothing of it stays
//! in memory with the connection. Handshakes have a time limit, a cap on how many run at once, and a pace;
//! beyond these, connections wait in the kernel's queue, and QUIC clients must prove their address first.

mod pace;
mod quic;
mod stock;
mod websocket;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tombolo_proto::NodeId;
use tombolo_runtime::{Drain, Tasks, listen};

use crate::conn::{Link, Transport};
use crate::document::DocumentLink;
use crate::error::BindError;
use crate::tls::ServerTls;

/// Links that wait for the hub to take them; further handshakes wait with their slot taken.
pub const ARRIVALS_MAX: usize = 64;

/// An address and the configuration key that it comes from, for errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// Configuration key or flag.
    pub setting: String,
}

/// What the listeners do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// The WebSocket listener, if any.
    pub websocket: Option<Listen>,
    /// The QUIC listener, if any.
    pub quic: Option<Listen>,
    /// Whether stock KubeEdge edges are served: WebSocket upgrades without our subprotocol, and TLS 1.2 for them.
    pub kubeedge: bool,
    /// Bounds on handshakes.
    pub limits: Limits,
}

/// Bounds on handshakes. Each listener has its own measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time for TLS, upgrade and lanes together.
    pub handshake_timeout: Duration,
    /// Handshakes that run at once.
    pub handshakes: usize,
    /// Connections accepted in a second, in the long run.
    pub accepts_per_second: u32,
    /// Connections accepted at once after a pause.
    pub accept_burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            handshakes: 256,
            accepts_per_second: 2_000,
            accept_burst: 1_000,
        }
    }
}

/// What a listener hands over.
#[expect(clippy::large_enum_variant, reason = "moved twice in a connection's life, and nearly all are links")]
#[derive(Debug)]
pub enum Arrival {
    /// A node that speaks dialect `tombolo`.
    Tombolo(Accepted),
    /// A node that speaks dialect `kubeedge`.
    KubeEdge(AcceptedStock),
}

/// A link and who is at its other end.
#[derive(Debug)]
pub struct Accepted {
    /// The link.
    pub link: Link,
    /// The node that its certificate names.
    pub node: NodeId,
    /// Network address.
    pub remote: SocketAddr,
    /// What carries the link.
    pub transport: Transport,
}

/// A link of dialect `kubeedge` and who is at its other end.
#[derive(Debug)]
pub struct AcceptedStock {
    /// The link.
    pub link: DocumentLink,
    /// The node that its certificate names; path and headers of the upgrade name no other.
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
}

impl ServerStats {
    /// Links handed over for a transport.
    #[must_use]
    pub fn accepted(&self, transport: Transport) -> u64 {
        match transport {
            Transport::WebSocket => self.accepted_websocket.load(Ordering::Relaxed),
            Transport::Quic => self.accepted_quic.load(Ordering::Relaxed),
            Transport::Memory => 0,
        }
    }

    /// Handshakes that failed: no TLS, no or wrong certificate, wrong upgrade.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Handshakes that took too long.
    #[must_use]
    pub fn timed_out(&self) -> u64 {
        self.timed_out.load(Ordering::Relaxed)
    }
}

/// Bound listeners that do not accept yet.
#[derive(Debug)]
pub struct Bound {
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
pub async fn bind(config: &ServerConfig, tls: &ServerTls) -> Result<Bound, BindError> {
    let mut bound =
        Bound { websocket: None, quic: None, websocket_addr: None, quic_addr: None, limits: config.limits };
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

impl Bound {
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
        let gate = || Gate {
            arrivals: arrivals.clone(),
            slots: Arc::new(Semaphore::new(self.limits.handshakes)),
            limits: self.limits,
            tasks: tasks.clone(),
            drain: drain.clone(),
            stats: Arc::clone(&stats),
        };
        if let Some(listener) = self.websocket {
            tasks.spawn("websocket listener", listener.run(gate()));
        }
        if let Some(listener) = self.quic {
            tasks.spawn("quic listener", listener.run(gate()));
        }
        Incoming { receiver, stats }
    }
}

/// Links as they come.
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

/// What a listener's handshakes share.
struct Gate {
    arrivals: mpsc::Sender<Arrival>,
    slots: Arc<Semaphore>,
    limits: Limits,
    tasks: Tasks,
    drain: Drain,
    stats: Arc<ServerStats>,
}

impl Gate {
    /// Runs one handshake in its own task, within the time limit, with the slot taken until the hub has the link.
    fn admit<E: std::fmt::Display + Send + 'static>(
        &self,
        remote: SocketAddr,
        slot: tokio::sync::OwnedSemaphorePermit,
        handshake: impl Future<Output = Result<Arrival, E>> + Send + 'static,
    ) {
        let (arrivals, stats) = (self.arrivals.clone(), Arc::clone(&self.stats));
        let (limit, drain) = (self.limits.handshake_timeout, self.drain.clone());
        self.tasks.spawn_isolated("handshake", async move {
            let _slot = slot;
            let timed = tokio::time::timeout(limit, handshake);
            match drain.until_started(timed).await {
                Some(Ok(Ok(arrival))) => {
                    stats.count(&arrival);
                    // Fails only when the hub is gone, which drops the link.
                    let _ = arrivals.send(arrival).await;
                }
                Some(Ok(Err(error))) => {
                    stats.failed.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(%remote, %error, "handshake failed");
                }
                Some(Err(_)) => {
                    stats.timed_out.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(%remote, ?limit, "handshake took too long");
                }
                None => tracing::debug!(%remote, "handshake given up: draining"),
            }
        });
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
