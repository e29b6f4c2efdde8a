//! Connecting over QUIC.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use quinn::{ClientConfig, ConnectionError, Endpoint, EndpointConfig};
use rustls_pki_types::ServerName;

use super::STEP_TIMEOUT;
use crate::conn::{Link, PeerInfo, Transport};
use crate::endpoint_driver::EndpointRuntime;
use crate::error::ConnectError;
use crate::quic::{QuicWire, open_lanes, transport_config};
use crate::tls::ClientTls;
use crate::udp;

/// Range of QUIC transport error codes that carry a TLS alert (RFC 9001, 4.8).
const CRYPTO_ERRORS: std::ops::Range<u64> = 0x100..0x200;

/// Local UDP sockets, one per protocol family. Clones share them.
#[derive(Debug, Clone)]
pub struct QuicSocket {
    v4: Endpoint,
    /// None on a machine without IPv6.
    v6: Option<Endpoint>,
}

impl QuicSocket {
    /// Binds free ports. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// When the operating system provides no IPv4 socket.
    pub fn bind() -> io::Result<Self> {
        let v4 = endpoint((Ipv4Addr::UNSPECIFIED, 0).into())?;
        Ok(Self { v4, v6: endpoint((Ipv6Addr::UNSPECIFIED, 0).into()).ok() })
    }

    /// Waits until every connection of the sockets has ended and its last data was sent.
    pub async fn wait_idle(&self) {
        self.v4.wait_idle().await;
        if let Some(v6) = &self.v6 {
            v6.wait_idle().await;
        }
    }

    fn endpoint(&self, remote: SocketAddr) -> io::Result<&Endpoint> {
        match (remote, &self.v6) {
            (SocketAddr::V4(_), _) => Ok(&self.v4),
            (SocketAddr::V6(_), Some(v6)) => Ok(v6),
            (SocketAddr::V6(_), None) => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }
}

pub(crate) fn endpoint(local: SocketAddr) -> io::Result<Endpoint> {
    let socket = UdpSocket::bind(local)?;
    udp::tune(&socket);
    Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(EndpointRuntime::default()))
}

pub(super) async fn connect(
    socket: &QuicSocket,
    address: SocketAddr,
    name: &ServerName<'_>,
    tls: &ClientTls,
) -> Result<Link, ConnectError> {
    let attempt = tokio::time::timeout(STEP_TIMEOUT, dial(socket, address, name, tls));
    let timed_out = |_| ConnectError::TimedOut { step: "QUIC", address, limit: STEP_TIMEOUT };
    let wire = attempt.await.map_err(timed_out)??;
    let peer = PeerInfo { remote: address, transport: Transport::Quic, node: None, certificate: None };
    Ok(Link::new(Box::new(wire), peer))
}

async fn dial(
    socket: &QuicSocket,
    address: SocketAddr,
    name: &ServerName<'_>,
    tls: &ClientTls,
) -> Result<QuicWire, ConnectError> {
    let mut config = ClientConfig::new(tls.quic()?);
    config.transport_config(transport_config());
    let endpoint = socket.endpoint(address).map_err(ConnectError::LocalSocket)?;
    let connecting = endpoint.connect_with(config, address, &name.to_str());
    let connecting = connecting.map_err(|error| ConnectError::Quic { address, reason: error.to_string() })?;
    let connection = connecting.await.map_err(|error| explain(address, &error))?;
    let opened = open_lanes(connection.clone()).await;
    opened.map_err(|error| match connection.close_reason() {
        Some(reason) => explain(address, &reason),
        None => ConnectError::Protocol { address, reason: error.to_string() },
    })
}

fn explain(address: SocketAddr, error: &ConnectionError) -> ConnectError {
    let code = match error {
        ConnectionError::TransportError(error) => u64::from(error.code),
        ConnectionError::ConnectionClosed(close) => u64::from(close.error_code),
        ConnectionError::ApplicationClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason).into_owned();
            return ConnectError::Protocol { address, reason };
        }
        ConnectionError::TimedOut => {
            return ConnectError::TimedOut { step: "QUIC", address, limit: STEP_TIMEOUT };
        }
        _ => 0,
    };
    let reason = error.to_string();
    if CRYPTO_ERRORS.contains(&code) {
        ConnectError::Tls { address, reason }
    } else {
        ConnectError::Quic { address, reason }
    }
}
