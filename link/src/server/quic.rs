//! The QUIC listener.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use aws_lc_rs::hmac;
use quinn::{Connection, Endpoint, EndpointConfig, Incoming, TokioRuntime, VarInt};
use quinn_proto::HashedConnectionIdGenerator;
use rustls_pki_types::CertificateDer;
use thiserror::Error;
use tombolo_runtime::listen;

use super::pace::Pace;
use super::{Accepted, Arrival, Gate, Listen};
use crate::conn::{Link, PeerInfo, Transport};
use crate::error::{BindError, IdentityError, LinkError};
use crate::identity::node_of;
use crate::quic::{CODE_FORBIDDEN, accept_lanes, transport_config};
use crate::tls::ServerTls;
use crate::udp;

/// Attempts that quinn keeps for us while the gate is shut; more are refused.
const INCOMING_MAX: usize = 1024;

/// Bytes that quinn keeps of one attempt that was not accepted yet.
const INCOMING_BYTES: u64 = 16 * 1024;

/// A bound listener.
#[derive(Debug)]
pub(super) struct Listener {
    endpoint: Endpoint,
}

/// A hub that was killed knows nothing of its former connections, and an edge would wait for the idle timeout. With
/// keys that survive the restart the hub answers its first packet with a stateless reset (RFC 9000, 10.3) that the
/// edge recognises, and the edge connects again at once.
fn endpoint_config(tls: &ServerTls) -> EndpointConfig {
    let secret = tls.restart_secret();
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &secret)));
    let mut first = [0; 8];
    first.copy_from_slice(&secret[..8]);
    let key = u64::from_be_bytes(first);
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(key)));
    config
}

impl Listener {
    pub(super) fn bind(listen: &Listen, tls: &ServerTls) -> Result<Self, BindError> {
        let socket = listen::udp(&listen.setting, listen.address)?;
        let mut config = quinn::ServerConfig::with_crypto(tls.quic()?);
        config
            .transport_config(transport_config())
            .max_incoming(INCOMING_MAX)
            .incoming_buffer_size(INCOMING_BYTES)
            .incoming_buffer_size_total(INCOMING_BYTES * INCOMING_MAX as u64);
        let failed = |source: io::Error| BindError::Quic { address: listen.address, source };
        let socket = udp::shared(socket).map_err(failed)?;
        let runtime = Arc::new(TokioRuntime);
        let endpoint = endpoint_config(tls);
        let endpoint = Endpoint::new_with_abstract_socket(endpoint, Some(config), socket, runtime);
        Ok(Self { endpoint: endpoint.map_err(failed)? })
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        self.endpoint.local_addr().ok()
    }

    pub(super) async fn run(self, gate: Gate) {
        let mut pace = Pace::new(gate.limits.accepts_per_second, gate.limits.accept_burst);
        let accept = async {
            while let Some(incoming) = self.endpoint.accept().await {
                let crowded = gate.slots.available_permits() <= gate.limits.handshakes / 2;
                if crowded && incoming.may_retry() {
                    // Under load a client proves its address before it costs a handshake.
                    if let Err(error) = incoming.retry() {
                        tracing::debug!(%error, "retry failed");
                    }
                    continue;
                }
                // The semaphore is never closed.
                let Ok(slot) = Arc::clone(&gate.slots).acquire_owned().await else { return };
                pace.turn().await;
                gate.admit(incoming.remote_address(), slot, accept_link(incoming));
            }
        };
        gate.drain.until_started(accept).await;
        self.endpoint.set_server_config(None);
        // Connections go on until their owners close them; the last words must leave before the runtime does.
        tokio::select! {
            () = self.endpoint.wait_idle() => {}
            () = gate.drain.deadline_passed() => {}
        }
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
    let node = match node_of(&peer_chain(&connection)) {
        Ok(node) => node,
        Err(error) => {
            connection.close(VarInt::from_u32(CODE_FORBIDDEN), error.to_string().as_bytes());
            return Err(error.into());
        }
    };
    let wire = accept_lanes(connection).await?;
    let transport = Transport::Quic;
    let peer = PeerInfo { remote, transport, node: Some(node.clone()) };
    let link = Link::new(Box::new(wire), peer);
    Ok(Arrival::Tombolo(Accepted { link, node, remote, transport }))
}

fn peer_chain(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let identity = connection.peer_identity();
    let chain = identity.and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
    chain.map(|chain| *chain).unwrap_or_default()
}
