//! The WebSocket listener: TCP, TLS with a client certificate, upgrade.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt as _;
use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::{HeaderMap, HeaderValue, StatusCode};
use rustls::{ProtocolVersion, ServerConfig};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsStream, server};
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::handshake::server::{Callback, ErrorResponse, Request, Response};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async_with_config};
use tombolo_proto::NodeId;
use tombolo_proto::limits::EDGE_FRAME_LEN_MAX;
use tombolo_runtime::connection_limiter::Waiting;

use super::kubeedge::{self, KubeEdgeRefusal};
use super::pace::Pace;
use super::{Accepted, AcceptedKubeEdge, Arrival, HandshakeContext};
use crate::SUBPROTOCOL;
use crate::conn::{Link, PeerInfo, Transport};
use crate::document::DocumentLink;
use crate::error::{IdentityError, TlsError};
use crate::identity::{PeerCertificate, certificate_of, node_of};
use crate::tcp;
use crate::tls::ServerTls;
use crate::ws::{MeteredStream, TLS_BUFFER, WsWire, over_tls, package_config};

/// Wait after a failed accept: usually no file descriptors are left, and an immediate retry would spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A bound listener.
#[derive(Debug)]
pub(super) struct Listener {
    tcp: TcpListener,
    tls: Arc<ServerConfig>,
    /// KubeEdge edges are served in addition to Tombolo's.
    kubeedge: bool,
}

impl Listener {
    pub(super) fn new(tcp: TcpListener, tls: &ServerTls, kubeedge: bool) -> Result<Self, TlsError> {
        Ok(Self { tcp, tls: tls.websocket(kubeedge)?, kubeedge })
    }

    pub(super) async fn run(self, context: HandshakeContext) {
        let acceptor = TlsAcceptor::from(self.tls);
        let mut pace = Pace::new(context.limits.accepts_per_second, context.limits.accept_burst);
        let accept = async {
            loop {
                pace.turn().await;
                match self.tcp.accept().await {
                    // Without a slot it is closed here.
                    Ok((stream, remote)) => match context.limiter.enter(remote.ip()) {
                        Ok(slot) => {
                            let (context, acceptor) = (context.clone(), acceptor.clone());
                            let tasks = context.tasks.clone();
                            let work = receive(context, slot, acceptor, (stream, remote), self.kubeedge);
                            tasks.spawn_isolated("handshake", work);
                        }
                        Err(reason) => tracing::debug!(%remote, %reason, "connection refused"),
                    },
                    Err(error) => {
                        tracing::warn!(%error, "accept failed");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                }
            }
        };
        context.drain.until_started(accept).await;
    }
}

/// Handles a connection from its first byte until it is authenticated. Boxed where the future becomes large, because a
/// future reserves room for everything it may await.
async fn receive(
    context: HandshakeContext,
    slot: Waiting,
    acceptor: TlsAcceptor,
    (stream, remote): (TcpStream, SocketAddr),
    kubeedge: bool,
) {
    let mut first = [0];
    let spoke = tokio::select! {
        // A socket may be reported as readable when it is not; peeking shows it.
        peeked = stream.peek(&mut first) => peeked.is_ok_and(|len| len > 0) && slot.spoke(),
        () = slot.evicted() => false,
        () = tokio::time::sleep(context.limits.silence_timeout) => false,
        () = context.drain.started() => return,
    };
    if !spoke {
        context.stats.silent.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let queue = tokio::time::timeout(context.limits.handshake_timeout, slot.work());
    match context.drain.until_started(queue).await {
        Some(Ok(Some(slot))) => {
            context.admit(remote, slot, upgrade(acceptor, stream, remote, kubeedge).boxed()).boxed().await;
        }
        Some(Ok(None)) => drop(context.stats.silent.fetch_add(1, Ordering::Relaxed)),
        Some(Err(_)) => {
            context.stats.timed_out.fetch_add(1, Ordering::Relaxed);
        }
        None => {}
    }
}

#[derive(Debug, Error)]
enum UpgradeError {
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("upgrade: {0}")]
    Upgrade(String),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    KubeEdge(#[from] KubeEdgeRefusal),
}

async fn upgrade(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    remote: SocketAddr,
    kubeedge: bool,
) -> Result<Arrival, UpgradeError> {
    tcp::tune(&stream).map_err(UpgradeError::Tls)?;
    let tls = acceptor.accept(stream).await.map_err(UpgradeError::Tls)?;
    accept_upgrade(tls, remote, kubeedge).boxed().await
}

async fn accept_upgrade(
    mut tls: server::TlsStream<TcpStream>,
    remote: SocketAddr,
    kubeedge: bool,
) -> Result<Arrival, UpgradeError> {
    let session = tls.get_mut().1;
    session.set_buffer_limit(Some(TLS_BUFFER));
    let chain = session.peer_certificates().unwrap_or_default();
    let (node, certificate) = (node_of(chain), certificate_of(chain));
    let mut outcome = UpgradeOutcome::default();
    let judge = Judge {
        node: node.as_ref(),
        modern: session.protocol_version() == Some(ProtocolVersion::TLSv1_3),
        kubeedge,
        outcome: &mut outcome,
    };
    let config = Some(package_config());
    let stream = accept_hdr_async_with_config(over_tls(TlsStream::Server(tls)), judge, config).await;
    // An error of the certificate is more useful in the log than the status of the answer.
    let (node, certificate) = (node?, certificate?);
    let peer = peer_info(&node, certificate, remote);
    if let Some(refusal) = outcome.refused {
        return Err(refusal.into());
    }
    let stream = stream.map_err(refusal)?;
    if outcome.kubeedge {
        return Ok(Arrival::KubeEdge(accepted_kubeedge(stream, node, peer).await));
    }
    Ok(Arrival::Tombolo(accepted(WsWire::new(stream), node, peer)))
}

fn peer_info(node: &NodeId, certificate: PeerCertificate, remote: SocketAddr) -> PeerInfo {
    let (node, certificate) = (Some(node.clone()), Some(certificate));
    PeerInfo { remote, transport: Transport::WebSocket, node, certificate }
}

fn accepted(wire: WsWire, node: NodeId, peer: PeerInfo) -> Accepted {
    let remote = peer.remote;
    let link = Link::bounded(Box::new(wire), peer, EDGE_FRAME_LEN_MAX);
    Accepted { link, node, remote, transport: Transport::WebSocket }
}

async fn accepted_kubeedge(
    stream: WebSocketStream<MeteredStream>,
    node: NodeId,
    peer: PeerInfo,
) -> AcceptedKubeEdge {
    let remote = peer.remote;
    let link = DocumentLink::accepted(stream, peer).await;
    AcceptedKubeEdge { link, node, remote }
}

fn refusal(error: WsError) -> UpgradeError {
    match error {
        WsError::Http(response) => {
            UpgradeError::Upgrade(format!("refused with status {}", response.status()))
        }
        other => UpgradeError::Upgrade(other.to_string()),
    }
}

/// Result of checking an upgrade request.
#[derive(Default)]
struct UpgradeOutcome {
    /// Whether a KubeEdge edge sent it.
    kubeedge: bool,
    /// Why it was refused.
    refused: Option<KubeEdgeRefusal>,
}

/// Decides about an upgrade request, while the client can still receive the reason for a refusal.
struct Judge<'a> {
    node: Result<&'a NodeId, &'a IdentityError>,
    /// Whether TLS 1.3 is in use.
    modern: bool,
    kubeedge: bool,
    outcome: &'a mut UpgradeOutcome,
}

impl Callback for Judge<'_> {
    fn on_request(self, request: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
        let node = self.node.map_err(|error| refuse(StatusCode::FORBIDDEN, error.to_string()))?;
        if offers_subprotocol(request.headers()) {
            if !self.modern {
                let reason = format!("subprotocol {SUBPROTOCOL} needs TLS 1.3");
                return Err(refuse(StatusCode::UPGRADE_REQUIRED, reason));
            }
            response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
            return Ok(response);
        }
        if !self.kubeedge {
            let reason = format!("this listener speaks WebSocket subprotocol {SUBPROTOCOL} only");
            return Err(refuse(StatusCode::BAD_REQUEST, reason));
        }
        self.outcome.kubeedge = true;
        kubeedge::judge(node, request.uri().path(), request.headers()).map_err(|refusal| {
            let response = refuse(refusal.status(), refusal.to_string());
            self.outcome.refused = Some(refusal);
            response
        })?;
        Ok(response)
    }
}

fn offers_subprotocol(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(SEC_WEBSOCKET_PROTOCOL).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|offer| offer.trim() == SUBPROTOCOL)
}

fn refuse(status: StatusCode, reason: String) -> ErrorResponse {
    let mut response = ErrorResponse::new(Some(reason));
    *response.status_mut() = status;
    response
}
