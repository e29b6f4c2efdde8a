//! Errors of making a link and of using it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tombolo_proto::Lane;
use tombolo_proto::codec::CodecError;
use tombolo_proto::frame::Goodbye;
use tombolo_proto::package::PackageError;
use tombolo_proto::session::SessionError;
use tombolo_runtime::listen::ListenError;

/// Why a link ended, or why a frame was not accepted. Clones share their source, because a link keeps the reason for
/// its end and returns it again to later calls.
#[derive(Debug, Clone, Error)]
pub enum LinkError {
    /// The peer ended the connection in good order.
    #[error("the peer closed the connection")]
    ClosedByPeer,
    /// This side ended the connection.
    #[error("the connection was closed by this side")]
    ClosedHere,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(Arc<io::Error>),
    /// The QUIC connection ended.
    #[error("the QUIC connection ended: {0}")]
    Quic(String),
    /// The peer sent something that a conforming WebSocket peer never sends.
    #[error("WebSocket protocol error: {0}")]
    WebSocket(String),
    /// The peer's bytes are not packages.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// A package does not hold a frame.
    #[error("undecodable frame in lane {lane:?}: {source}")]
    Frame {
        /// The lane that carried it.
        lane: Lane,
        /// What is wrong with it.
        source: Arc<CodecError>,
    },
    /// A package came on the stream of another lane.
    #[error("a package of lane {found:?} arrived on the stream of lane {stream:?}")]
    WrongLane {
        /// The stream's lane.
        stream: Lane,
        /// The package's lane.
        found: Lane,
    },
    /// The connection ended inside a package or a frame.
    #[error("the connection ended in the middle of a frame in lane {0:?}")]
    Truncated(Lane),
    /// The lane has no room; call `can_send` first and wait for `Writable`.
    #[error("lane {0:?} is full: wait for the link to be writable")]
    LaneFull(Lane),
    /// The link has no room for another document; call `can_send` first and wait for `Transmitted`.
    #[error("the link is full: wait until documents have been sent")]
    QueueFull,
    /// The peer makes this side keep more than is allowed.
    #[error("{0}")]
    Overloaded(String),
    /// The peer reads or sends almost nothing of a transfer under way.
    #[error("{0}")]
    Stalled(String),
    /// A test cut the connection.
    #[error("the in-memory connection was cut")]
    Cut,
}

impl LinkError {
    /// The goodbye for the peer when its own bytes have ended the link; none when the connection is lost, or was ended
    /// in good order. The link still sends it.
    #[must_use]
    pub fn goodbye(&self) -> Option<Goodbye> {
        match self {
            Self::Overloaded(text) => return Some(SessionError::Overloaded(text.clone()).goodbye()),
            Self::Stalled(text) => return Some(SessionError::Timeout(text.clone()).goodbye()),
            _ => {}
        }
        let broken_rule = matches!(
            self,
            Self::WebSocket(_) | Self::Package(_) | Self::Frame { .. } | Self::WrongLane { .. }
        );
        broken_rule.then(|| SessionError::Protocol(self.to_string()).goodbye())
    }
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

/// Certificates or keys that cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A PEM text or file holds something else.
    #[error("{what}: {reason}")]
    Pem {
        /// Which input.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The private key is not usable or does not belong to the certificate.
    #[error("private key and certificate do not match: {0}")]
    Key(rustls::Error),
    /// No usable CA certificate was given, so no peer could be verified.
    #[error("no usable CA certificate among {given} given")]
    NoRoots {
        /// Number of certificates given.
        given: usize,
    },
    /// The TLS library refused the configuration.
    #[error("TLS configuration: {0}")]
    Config(String),
}

/// A certificate that names no node.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// The peer sent no certificate.
    #[error("the peer sent no certificate")]
    NoCertificate,
    /// Not X.509.
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
    /// The subject lacks what the Kubernetes Node authorizer requires.
    #[error("the certificate's subject {subject:?} {rule}")]
    Subject {
        /// The subject as text.
        subject: String,
        /// The rule that it breaks.
        rule: &'static str,
    },
}

/// A listener that could not be created.
#[derive(Debug, Error)]
pub enum BindError {
    /// The address cannot be used.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The TLS configuration cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The UDP socket could not be used for QUIC.
    #[error("QUIC on {address}: {source}")]
    Quic {
        /// The address.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Why no link could be made. Every variant may be temporary: try again after a wait.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The host name has no address.
    #[error("cannot resolve {host}: {reason}")]
    Resolve {
        /// The name.
        host: String,
        /// Error of the resolver.
        reason: String,
    },
    /// The address cannot be reached.
    #[error("cannot connect to {address}: {source}")]
    Unreachable {
        /// The address.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A step took too long.
    #[error("{step} with {address} took longer than {limit:?}")]
    TimedOut {
        /// Connecting, TLS, upgrade.
        step: &'static str,
        /// The peer.
        address: SocketAddr,
        /// The limit.
        limit: Duration,
    },
    /// The TLS handshake failed: wrong CA, wrong name, expired, or our certificate was refused.
    #[error("TLS with {address} failed: {reason}")]
    Tls {
        /// The peer.
        address: SocketAddr,
        /// The reason, with the peer's alert when it sent one.
        reason: String,
    },
    /// The peer answered the upgrade with something else.
    #[error("{address} refused the WebSocket upgrade with status {status}: {body}")]
    Upgrade {
        /// The peer.
        address: SocketAddr,
        /// HTTP status code.
        status: u16,
        /// First kilobyte of the body.
        body: String,
    },
    /// The peer speaks WebSocket or QUIC, but not the tombolo protocol.
    #[error("{address} does not speak the tombolo protocol: {reason}")]
    Protocol {
        /// The peer.
        address: SocketAddr,
        /// What it did instead.
        reason: String,
    },
    /// QUIC failed for another reason.
    #[error("QUIC with {address} failed: {reason}")]
    Quic {
        /// The peer.
        address: SocketAddr,
        /// The reason.
        reason: String,
    },
    /// The local UDP socket for QUIC could not be created.
    #[error("cannot open a local UDP socket for QUIC: {0}")]
    LocalSocket(io::Error),
    /// Certificates or keys of this side cannot be used.
    #[error(transparent)]
    Identity(#[from] TlsError),
    /// Both transports failed.
    #[error("QUIC: {quic}; WebSocket: {websocket}")]
    Both {
        /// Why QUIC failed.
        quic: Box<Self>,
        /// Why WebSocket failed.
        websocket: Box<Self>,
    },
}
