//! Links: frames of dialect `tombolo` over WebSocket, QUIC or memory, both ends; documents of dialect `kubeedge` over
//! WebSocket.
//!
//! A [`Link`] is owned by one task, which also owns the session. The owner's loop is:
//!
//! ```text
//! pump(&mut link, |lane| session.poll_transmit(now, lane, ..))   fill the lanes that have room
//! select! {
//!     event = link.next()            => a frame, room in a lane, or the end
//!     _ = sleep_until(next_timeout)  => session.handle_timeout(now)
//!     command = commands.recv()      => what the application wants
//! }
//! ```
//!
//! A link has no task of its own: it only writes and reads in [`Link::next`], [`Link::flush`] and [`Link::close`]. A
//! [`DocumentLink`] is driven the same way, without lanes. [`server`] accepts links, [`client`] makes them, [`mem`]
//! makes pairs for tests, [`tls`] holds the certificates of both sides, and [`tuning`] the settings of the transports.

pub mod client;
mod conn;
mod document;
mod endpoint_driver;
mod error;
pub mod identity;
pub mod mem;
mod meter;
mod progress;
mod pump;
mod queue;
mod quic;
pub mod server;
mod tcp;
pub mod tls;
pub mod tuning;
mod udp;
mod ws;

pub use conn::{Direction, Link, LinkEvent, PeerInfo, Tap, Transport};
pub use document::{DOCUMENT_QUEUE_BYTES, DOCUMENT_QUEUE_MAX, DocumentEvent, DocumentLink, DocumentTap};
pub use error::{BindError, ConnectError, IdentityError, LinkError, TlsError};
pub use progress::{PROGRESS_BYTES, PROGRESS_INTERVAL};
pub use pump::{Clock, pump};
pub use queue::{LANE_QUEUE_BYTES, LANE_QUEUE_FRAMES};

/// WebSocket subprotocol that selects dialect `tombolo` (docs/protocol.md#two-dialects-one-model).
pub const SUBPROTOCOL: &str = "tombolo.v1";

/// ALPN protocol of QUIC connections (docs/protocol.md#two-dialects-one-model).
pub const QUIC_ALPN: &[u8] = b"tombolo/1";

/// ALPN protocol of the WebSocket listener: HTTP/2 is never chosen, because an upgrade needs HTTP/1.1.
pub const HTTP_ALPN: &[u8] = b"http/1.1";
