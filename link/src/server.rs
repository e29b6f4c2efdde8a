//! The hub's listeners: links from nodes whose certificate TLS has verified.
//!
//! Each handshake runs in a task of its own that ends when the link is handed over, so that nothing of it stays
//! in memory with the connection. Handshakes have a time limit, places for each source and for all ([`Door`]), and a pace.
//! A TCP connection takes a place for its handshake once its peer has spoken; QUIC clients must prove their address first
//! as soon as some others have not done so.

mod pace;
mod quic;
mod stock;
mod websocket;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tombolo_proto::NodeId;
use tombolo_runtime::door::{Door, DoorLimits, Working};
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
    /// Time until a TCP connection has brought its first byte.
    pub silence_timeout: Duration,
    /// Connections that are not authenticated, of one source and of all.
    pub places: DoorLimits,
    /// Connections accepted in a second, in the long run.
    pub accepts_per_second: u32,
    /// Connections accepted at once after a pause.
    pub accept_burst: u32,
}

/// Places of one listener. A waiting connection costs some 3 KiB, one that begins its handshake some 16 KiB: one source can
/// make a listener hold 8 MiB.
pub const PLACES: DoorLimits =
    DoorLimits { waiting: 4096, waiting_per_source: 2048, working: 256, working_per_source: 96 };

/// QUIC clients that wait for their handshake: each has sent a whole first flight, which is kept meanwhile.
const QUIC_WAITING_MAX: usize = 1024;

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            silence_timeout: Duration::from_secs(5),
            places: PLACES,
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
    silent: AtomicU64,
    doors: OnceLock<Vec<Door>>,
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

    /// Connections that ended because they brought nothing: in time, or before somebody else needed the place.
    #[must_use]
    pub fn silent(&self) -> u64 {
        self.silent.load(Ordering::Relaxed)
    }

    /// Connections that found no place.
    #[must_use]
    pub fn crowded(&self) -> u64 {
        self.doors().map(Door::refused).sum()
    }

    /// Connections that are not authenticated now.
    #[must_use]
    pub fn strangers(&self) -> usize {
        self.doors().map(|door| door.waiting().saturating_add(door.working())).sum()
    }

    /// Those of them whose handshake runs.
    #[must_use]
    pub fn handshakes(&self) -> usize {
        self.doors().map(Door::working).sum()
    }

    fn doors(&self) -> impl Iterator<Item = &Door> {
        self.doors.get().into_iter().flatten()
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
        let quic = DoorLimits {
            waiting: self.limits.places.waiting.min(QUIC_WAITING_MAX),
            waiting_per_source: self.limits.places.waiting_per_source.min(QUIC_WAITING_MAX / 2),
            ..self.limits.places
        };
        let doors = [Door::new(self.limits.places), Door::new(quic)];
        // Set once: the statistics were made here.
        let _ = stats.doors.set(doors.to_vec());
        let gate = |door| Gate {
            arrivals: arrivals.clone(),
            door,
            limits: self.limits,
            tasks: tasks.clone(),
            drain: drain.clone(),
            stats: Arc::clone(&stats),
        };
        let [of_websocket, of_quic] = doors;
        if let Some(listener) = self.websocket {
            tasks.spawn("websocket listener", listener.run(gate(of_websocket)));
        }
        if let Some(listener) = self.quic {
            tasks.spawn("quic listener", listener.run(gate(of_quic)));
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
#[derive(Clone)]
struct Gate {
    arrivals: mpsc::Sender<Arrival>,
    door: Door,
    limits: Limits,
    tasks: Tasks,
    drain: Drain,
    stats: Arc<ServerStats>,
}

impl Gate {
    /// Runs one handshake within the time limit, with its place taken until the hub has the link. Boxed: each of the futures
    /// around it would have room for it.
    async fn admit<E: std::fmt::Display>(
        self,
        remote: SocketAddr,
        place: Working,
        handshake: BoxFuture<'static, Result<Arrival, E>>,
    ) {
        let limit = self.limits.handshake_timeout;
        let timed = async {
            tokio::select! {
                done = tokio::time::timeout(limit, handshake) => Some(done),
                () = place.evicted() => None,
            }
        };
        match self.drain.until_started(timed).await {
            Some(Some(Ok(Ok(arrival)))) => {
                self.stats.count(&arrival);
                // Fails only when the hub is gone, which drops the link.
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
                tracing::debug!(%remote, "handshake gave way to one of another source");
            }
            None => tracing::debug!(%remote, "handshake given up: draining"),
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
