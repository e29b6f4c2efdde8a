//! The settings that every link gives its libraries. A baseline that measures the libraries alone uses the same ones, so
//! that its figures differ from those of links by the links' own work only.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Endpoint};
use rustls::ConnectionCommon;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use crate::ws::{TLS_BUFFER, buffer_config};
use crate::{client, quic, server, tcp};

/// tungstenite's buffers. The limits of messages depend on the dialect and are not set.
#[must_use]
pub fn websocket() -> WebSocketConfig {
    buffer_config()
}

/// The options of a TCP socket under a WebSocket.
///
/// # Errors
/// When the operating system refuses one.
pub fn tcp(stream: &TcpStream) -> io::Result<()> {
    tcp::tune(stream)
}

/// rustls's buffer in a connection under a WebSocket, once the TLS handshake is complete.
pub fn tls<Side>(session: &mut ConnectionCommon<Side>) {
    session.set_buffer_limit(Some(TLS_BUFFER));
}

/// A hub's QUIC endpoint on this socket: transport parameters, connection IDs, kernel buffers, length of bursts, and
/// turns of the receiving task. Must be called on a tokio runtime.
///
/// # Errors
/// When the operating system refuses the socket.
pub fn quic_server(socket: UdpSocket, crypto: Arc<QuicServerConfig>) -> io::Result<Endpoint> {
    // No connection survives the process, so no client needs to recognise its resets.
    server::quic_endpoint(socket, crypto, &[0; 32])
}

/// An edge's QUIC endpoint on a free IPv4 port, and the configuration of its connections. Must be called on a tokio
/// runtime.
///
/// # Errors
/// When the operating system provides no socket.
pub fn quic_client(crypto: Arc<QuicClientConfig>) -> io::Result<(Endpoint, ClientConfig)> {
    let mut config = ClientConfig::new(crypto);
    config.transport_config(quic::transport_config());
    let local: SocketAddr = (Ipv4Addr::UNSPECIFIED, 0).into();
    Ok((client::quic_endpoint(local)?, config))
}
