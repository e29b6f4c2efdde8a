//! The QUIC listener.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use aws_lc_rs::hmac;
use futures::FutureExt as _;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Connection, Endpoint, EndpointConfig, Incoming, VarInt};
use quinn_proto::RandomConnectionIdGenerator;
use rustls_pki_types::CertificateDer;
use thiserror::Error;
use tokio::sync::Semaphore;
use tombolo_proto::limits::EDGE_FRAME_LEN_MAX;
use tombolo_runtime::connection_limiter::Waiting;
use tombolo_runtime::listen;

use super::pace::Pace;
use super::{Accepted, Arrival, HandshakeContext, Listen};
use crate::conn::{Link, PeerInfo, Transport};
use crate::endpoint_driver::EndpointRuntime;
use crate::error::{BindError, IdentityError, LinkError};
use crate::identity::{certificate_of, node_of};
use crate::quic::{CODE_FORBIDDEN, accept_lanes, transport_config};
use crate::tls::ServerTls;
use crate::udp;

/// Attempts that quinn keeps while the gate is shut; further ones are ignored, and the client tries again after a
/// second.
const INCOMING_MAX: usize = 1024;

/// Bytes that quinn keeps of one attempt before it is accepted: a first flight with a post-quantum key share is two
/// datagrams, and may arrive twice.
const INCOMING_BYTES: u64 = 8 * 1024;

/// The same for all attempts together.
const INCOMING_BYTES_TOTAL: u64 = 2 * 1024 * 1024;

/// Most handshakes whose clients have not proven their address. Further ones get a Retry first: a datagram can carry
/// any source address, and strangers must not take the slots of an address that is not theirs.
const UNPROVEN_MAX: usize = 32;

/// Length of connection IDs, in bytes. A Retry chooses one without checking those in use (quinn), so they must be long
/// enough never to collide: with three random bytes, as in quinn's default, about one node in several thousand was
/// sent into another's handshake and waited for its own in vain.
const CONNECTION_ID_LEN: usize = 8;

/// A bound listener.
#[derive(Debug)]
pub(super) struct Listener {
    endpoint: Endpoint,
}

/// A hub that was killed knows none of its former connections, and an edge would wait for the idle timeout. With a key
/// that survives the restart the hub answers the edge's first packet with a stateless reset (RFC 9000, 10.3) that the
/// edge recognises, and the edge reconnects at once.
fn endpoint_config(restart_secret: &[u8; 32]) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, restart_secret)));
    config.cid_generator(|| Box::new(connection_ids()));
    config
}

/// The hub's endpoint on this socket.
pub(crate) fn endpoint(
    socket: UdpSocket,
    crypto: Arc<QuicServerConfig>,
    restart_secret: &[u8; 32],
) -> io::Result<Endpoint> {
    let mut config = quinn::ServerConfig::with_crypto(crypto);
    config
        .transport_config(transport_config())
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES_TOTAL);
    let runtime = Arc::new(EndpointRuntime::default());
    let socket = udp::shared(socket, runtime.as_ref())?;
    Endpoint::new_with_abstract_socket(endpoint_config(restart_secret), Some(config), socket, runtime)
}

/// Random IDs: any packet may belong to a connection from before the hub's restart. quinn's hashed IDs would show
/// that, at the price of their length.
fn connection_ids() -> RandomConnectionIdGenerator {
    RandomConnectionIdGenerator::new(CONNECTION_ID_LEN)
}

impl Listener {
    pub(super) fn bind(listen: &Listen, tls: &ServerTls) -> Result<Self, BindError> {
        let socket = listen::udp(&listen.setting, listen.address)?;
        let endpoint = endpoint(socket, tls.quic()?, &tls.restart_secret());
        let failed = |source: io::Error| BindError::Quic { address: listen.address, source };
        Ok(Self { endpoint: endpoint.map_err(failed)? })
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        self.endpoint.local_addr().ok()
    }

    pub(super) async fn run(self, context: HandshakeContext) {
        let mut pace = Pace::new(context.limits.accepts_per_second, context.limits.accept_burst);
        let unproven = Arc::new(Semaphore::new(UNPROVEN_MAX));
        let accept = async {
            while let Some(incoming) = self.endpoint.accept().await {
                let unproven = match incoming.remote_address_validated() {
                    true => None,
                    false => match Arc::clone(&unproven).try_acquire_owned() {
                        Ok(permit) => Some(permit),
                        Err(_) => {
                            prove(incoming);
                            continue;
                        }
                    },
                };
                // An ignored client returns: it repeats its first packet after a second.
                match context.limiter.enter(incoming.remote_address().ip()) {
                    Ok(slot) => {
                        pace.turn().await;
                        let handshake = receive(context.clone(), slot, incoming);
                        context.tasks.spawn_isolated("handshake", async move {
                            let _unproven = unproven;
                            handshake.await;
                        });
                    }
                    Err(_) => incoming.ignore(),
                }
            }
        };
        context.drain.until_started(accept).await;
        self.endpoint.set_server_config(None);
        // Connections continue until their owners close them; the last data must be sent before the runtime stops.
        tokio::select! {
            () = self.endpoint.wait_idle() => {}
            () = context.drain.deadline_passed() => {}
        }
    }
}

/// Handles a first packet until its sender is authenticated.
async fn receive(context: HandshakeContext, slot: Waiting, incoming: Incoming) {
    let remote = incoming.remote_address();
    if !slot.spoke() {
        return incoming.ignore();
    }
    let queue = tokio::time::timeout(context.limits.handshake_timeout, slot.work());
    match context.drain.until_started(queue).await {
        Some(Ok(Some(slot))) => {
            context.admit(remote, slot, accept_link(incoming).boxed()).boxed().await;
        }
        Some(Ok(None)) => incoming.ignore(),
        Some(Err(_)) => {
            context.stats.timed_out.fetch_add(1, Ordering::Relaxed);
            incoming.ignore();
        }
        None => incoming.refuse(),
    }
}

/// Makes a client prove its address before it costs a handshake.
fn prove(incoming: Incoming) {
    if let Err(error) = incoming.retry() {
        tracing::debug!(%error, "retry failed");
        error.into_incoming().ignore();
    }
}

#[derive(Debug, Error)]
enum AcceptError {
    #[error("QUIC: {0}")]
    Connection(#[from] quinn::ConnectionError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("lanes: {0}")]
    Lanes(#[from] LinkError),
}

async fn accept_link(incoming: Incoming) -> Result<Arrival, AcceptError> {
    let remote = incoming.remote_address();
    let connection = incoming.accept()?.await?;
    let chain = peer_chain(&connection);
    let (node, certificate) = match node_of(&chain).and_then(|node| Ok((node, certificate_of(&chain)?))) {
        Ok(known) => known,
        Err(error) => {
            connection.close(VarInt::from_u32(CODE_FORBIDDEN), error.to_string().as_bytes());
            return Err(error.into());
        }
    };
    let wire = accept_lanes(connection).await?;
    let transport = Transport::Quic;
    let peer = PeerInfo { remote, transport, node: Some(node.clone()), certificate: Some(certificate) };
    let link = Link::bounded(Box::new(wire), peer, EDGE_FRAME_LEN_MAX);
    Ok(Arrival::Tombolo(Accepted { link, node, remote, transport }))
}

fn peer_chain(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let identity = connection.peer_identity();
    let chain = identity.and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
    chain.map(|chain| *chain).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use quinn_proto::ConnectionIdGenerator as _;

    use super::*;

    #[test]
    fn connection_ids_of_a_fleet_never_collide() {
        let mut generator = connection_ids();
        let ids: HashSet<_> = (0..100_000).map(|_| generator.generate_cid()).collect();
        assert_eq!(ids.len(), 100_000);
    }
}
