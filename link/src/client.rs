//! The edge's side: connecting to a hub.

mod quic;
mod websocket;

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use rustls_pki_types::ServerName;
use tokio::time::Instant;
use tombolo_proto::NodeId;

use crate::conn::Link;
use crate::document::DocumentLink;
use crate::error::ConnectError;
use crate::tls::ClientTls;

pub use quic::QuicSocket;
pub(crate) use quic::endpoint as quic_endpoint;

/// Time limit for each step of connecting: TCP, TLS, upgrade, the whole of QUIC.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long QUIC is tried alone before WebSocket joins the race.
pub const QUIC_HEAD_START: Duration = Duration::from_millis(1500);

/// How long WebSocket is tried first after QUIC was found blocked. Networks change, so QUIC is tried again later.
pub const QUIC_BLOCKED_FOR: Duration = Duration::from_secs(15 * 60);

/// Which transport to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// QUIC, and WebSocket where UDP is blocked.
    #[default]
    Auto,
    /// QUIC only.
    Quic,
    /// WebSocket only.
    WebSocket,
}

/// Address of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Host name or IP address, as in the hub's certificate.
    pub host: String,
    /// TCP port of the WebSocket listener.
    pub websocket_port: u16,
    /// UDP port of the QUIC listener.
    pub quic_port: u16,
    /// Which transport to use.
    pub choice: Choice,
}

/// Connects once, independently of earlier attempts.
///
/// # Errors
/// [`ConnectError`] names the step and the reason.
pub async fn connect(target: Target, tls: ClientTls) -> Result<Link, ConnectError> {
    Connector::new(target, tls).connect().await
}

/// Connects once to a cloud that speaks dialect `kubeedge`, over WebSocket regardless of the target's choice.
///
/// # Errors
/// [`ConnectError`] names the step and the reason.
pub async fn connect_documents(
    target: &Target,
    node: &NodeId,
    tls: &ClientTls,
) -> Result<DocumentLink, ConnectError> {
    let (addresses, name) = resolve(&target.host, target.websocket_port).await?;
    let mut last = no_address(&target.host);
    for address in addresses {
        match websocket::connect_documents(address, &name, &target.host, node, tls).await {
            Ok(link) => return Ok(link),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects repeatedly, and remembers when QUIC was found blocked.
#[derive(Debug)]
pub struct Connector {
    target: Target,
    tls: ClientTls,
    socket: Option<QuicSocket>,
    websocket_first_until: Option<Instant>,
}

impl Connector {
    /// A connector without earlier attempts.
    #[must_use]
    pub fn new(target: Target, tls: ClientTls) -> Self {
        Self { target, tls, socket: None, websocket_first_until: None }
    }

    /// Uses a shared UDP socket instead of one of its own, for thousands of hollow edges in one process.
    #[must_use]
    pub fn with_socket(mut self, socket: QuicSocket) -> Self {
        self.socket = Some(socket);
        self
    }

    /// Makes a link. The hub has accepted the link when this returns: certificates are checked on both sides.
    ///
    /// # Errors
    /// [`ConnectError`] names the step and the reason.
    pub async fn connect(&mut self) -> Result<Link, ConnectError> {
        match self.target.choice {
            Choice::Quic => self.quic().await,
            Choice::WebSocket => self.websocket().await,
            Choice::Auto if self.websocket_goes_first() => self.websocket_then_quic().await,
            Choice::Auto => self.race().await,
        }
    }

    fn websocket_goes_first(&self) -> bool {
        self.websocket_first_until.is_some_and(|until| Instant::now() < until)
    }

    async fn websocket_then_quic(&mut self) -> Result<Link, ConnectError> {
        let websocket = match self.websocket().await {
            Ok(link) => return Ok(link),
            Err(error) => error,
        };
        self.websocket_first_until = None;
        self.quic().await.map_err(|quic| both(quic, websocket))
    }

    /// QUIC with a head start; WebSocket joins when that is over or QUIC has failed. The first link wins.
    async fn race(&mut self) -> Result<Link, ConnectError> {
        self.own_socket()?;
        let (winner, blocked) = {
            let mut quic = pin!(self.quic_attempt());
            let head = tokio::time::timeout(QUIC_HEAD_START, &mut quic).await;
            match head {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(error)) => (self.websocket().await.map_err(|websocket| both(error, websocket)), true),
                Err(_) => self.finish_race(quic).await,
            }
        };
        if winner.is_ok() && blocked {
            tracing::info!(host = %self.target.host, "QUIC connection failed, using WebSocket");
            self.websocket_first_until = Some(Instant::now() + QUIC_BLOCKED_FOR);
        }
        winner
    }

    /// Runs both; also returns whether WebSocket won.
    async fn finish_race(
        &self,
        mut quic: std::pin::Pin<&mut impl Future<Output = Result<Link, ConnectError>>>,
    ) -> (Result<Link, ConnectError>, bool) {
        let mut websocket = pin!(self.websocket());
        tokio::select! {
            first = &mut quic => match first {
                Ok(link) => (Ok(link), false),
                Err(error) => (websocket.await.map_err(|websocket| both(error, websocket)), true),
            },
            first = &mut websocket => match first {
                Ok(link) => (Ok(link), true),
                Err(error) => (quic.await.map_err(|quic| both(quic, error)), false),
            },
        }
    }

    async fn quic(&mut self) -> Result<Link, ConnectError> {
        self.own_socket()?;
        self.quic_attempt().await
    }

    fn own_socket(&mut self) -> Result<(), ConnectError> {
        if self.socket.is_none() {
            self.socket = Some(QuicSocket::bind().map_err(ConnectError::LocalSocket)?);
        }
        Ok(())
    }

    async fn quic_attempt(&self) -> Result<Link, ConnectError> {
        let Some(socket) = &self.socket else {
            return Err(ConnectError::LocalSocket(std::io::ErrorKind::NotConnected.into()));
        };
        let (addresses, name) = resolve(&self.target.host, self.target.quic_port).await?;
        let mut last = no_address(&self.target.host);
        for address in addresses {
            match quic::connect(socket, address, &name, &self.tls).await {
                Ok(link) => return Ok(link),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn websocket(&self) -> Result<Link, ConnectError> {
        let (addresses, name) = resolve(&self.target.host, self.target.websocket_port).await?;
        let mut last = no_address(&self.target.host);
        for address in addresses {
            match websocket::connect(address, &name, &self.target.host, &self.tls).await {
                Ok(link) => return Ok(link),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

async fn resolve(host: &str, port: u16) -> Result<(Vec<SocketAddr>, ServerName<'static>), ConnectError> {
    let fail = |reason: String| ConnectError::Resolve { host: host.to_owned(), reason };
    let name = ServerName::try_from(host.to_owned()).map_err(|error| fail(error.to_string()))?;
    let found = tokio::time::timeout(STEP_TIMEOUT, tokio::net::lookup_host((host, port))).await;
    let found = found.map_err(|_| fail(format!("no answer within {STEP_TIMEOUT:?}")))?;
    Ok((found.map_err(|error| fail(error.to_string()))?.collect(), name))
}

fn no_address(host: &str) -> ConnectError {
    ConnectError::Resolve { host: host.to_owned(), reason: "the name has no address".to_owned() }
}

fn both(quic: ConnectError, websocket: ConnectError) -> ConnectError {
    ConnectError::Both { quic: Box::new(quic), websocket: Box::new(websocket) }
}
