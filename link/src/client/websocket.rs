//! Connecting over WebSocket: TCP, TLS with our certificate, upgrade.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::{HeaderValue, Request};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::Role;
use tombolo_proto::NodeId;

use super::STEP_TIMEOUT;
use crate::SUBPROTOCOL;
use crate::conn::{Link, PeerInfo, Transport};
use crate::document::DocumentLink;
use crate::error::ConnectError;
use crate::tcp;
use crate::tls::ClientTls;
use crate::ws::{MeteredStream, TLS_BUFFER, WsWire, over_tls, package_config, text_config};

/// Bytes of a refusal's body that errors show.
const BODY_MAX: usize = 1024;

/// The project that KubeEdge edges name unless configured otherwise (docs/reference/kubeedge.md#edgecore-settings).
const PROJECT_ID: &str = "e632aba927ea4ac2b575ec1603d56f10";

pub(super) async fn connect(
    address: SocketAddr,
    name: &ServerName<'static>,
    host: &str,
    tls: &ClientTls,
) -> Result<Link, ConnectError> {
    let stream = secured(address, name, tls).await?;
    // The future holds large buffers and must not become part of the caller's.
    let upgrade = Box::pin(upgrade(address, host, stream));
    let wire = within("the WebSocket upgrade", address, upgrade).await??;
    let peer = PeerInfo { remote: address, transport: Transport::WebSocket, node: None, certificate: None };
    Ok(Link::new(Box::new(wire), peer))
}

/// Connects as KubeEdge edges do (docs/reference/kubeedge.md#websocket).
pub(super) async fn connect_documents(
    address: SocketAddr,
    name: &ServerName<'static>,
    host: &str,
    node: &NodeId,
    tls: &ClientTls,
) -> Result<DocumentLink, ConnectError> {
    let stream = secured(address, name, tls).await?;
    let request =
        kubeedge_request(host, address.port(), node).map_err(|error| upgrade_error(address, error))?;
    // A KubeEdge cloud sends as soon as it has answered, and its first message may arrive together with the answer.
    let config = Some(text_config(Role::Client));
    let upgrade = Box::pin(client_async_with_config(request, stream, config));
    let upgraded = within("the WebSocket upgrade", address, upgrade).await?;
    let (stream, _response) = upgraded.map_err(|error| upgrade_error(address, error))?;
    let peer = PeerInfo { remote: address, transport: Transport::WebSocket, node: None, certificate: None };
    Ok(DocumentLink::new(stream, peer))
}

async fn secured(
    address: SocketAddr,
    name: &ServerName<'static>,
    tls: &ClientTls,
) -> Result<MeteredStream, ConnectError> {
    let stream = within("TCP", address, TcpStream::connect(address)).await?;
    let stream = stream.map_err(|source| ConnectError::Unreachable { address, source })?;
    tcp::tune(&stream).map_err(|source| ConnectError::Unreachable { address, source })?;
    let connector = TlsConnector::from(tls.websocket()?);
    let stream = within("TLS", address, connector.connect(name.clone(), stream)).await?;
    let mut stream = stream.map_err(|error| tls_error(address, &error))?;
    stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
    Ok(over_tls(TlsStream::Client(stream)))
}

async fn within<T>(
    step: &'static str,
    address: SocketAddr,
    work: impl Future<Output = T>,
) -> Result<T, ConnectError> {
    const LIMIT: Duration = STEP_TIMEOUT;
    tokio::time::timeout(LIMIT, work).await.map_err(|_| ConnectError::TimedOut {
        step,
        address,
        limit: LIMIT,
    })
}

async fn upgrade(address: SocketAddr, host: &str, stream: MeteredStream) -> Result<WsWire, ConnectError> {
    let request = request(host, address.port()).map_err(|error| upgrade_error(address, error))?;
    let upgraded = client_async_with_config(request, stream, Some(package_config())).await;
    // tungstenite has checked that the answer names the requested subprotocol.
    let (stream, _response) = upgraded.map_err(|error| upgrade_error(address, error))?;
    Ok(WsWire::new(stream))
}

fn kubeedge_request(host: &str, port: u16, node: &NodeId) -> Result<Request<()>, WsError> {
    let host = bracketed(host);
    let mut request = format!("wss://{host}:{port}/{PROJECT_ID}/{node}/events").into_client_request()?;
    let headers = request.headers_mut();
    headers.insert("node_id", HeaderValue::from_str(node.as_str()).map_err(http::Error::from)?);
    headers.insert("project_id", HeaderValue::from_static(PROJECT_ID));
    headers.insert("connectionuse", HeaderValue::from_static("msg"));
    Ok(request)
}

/// Puts IPv6 addresses in brackets, as URLs require.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

fn request(host: &str, port: u16) -> Result<Request<()>, WsError> {
    let mut request = format!("wss://{}:{port}/", bracketed(host)).into_client_request()?;
    request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    Ok(request)
}

fn tls_error(address: SocketAddr, error: &io::Error) -> ConnectError {
    ConnectError::Tls { address, reason: error.to_string() }
}

/// In TLS 1.3 the client completes its handshake before the server has checked its certificate, so a refused
/// certificate appears as an alert while the client waits for the upgrade's answer.
fn upgrade_error(address: SocketAddr, error: WsError) -> ConnectError {
    match error {
        WsError::Io(error)
            if error.get_ref().is_some_and(<dyn StdError + Send + Sync>::is::<rustls::Error>) =>
        {
            tls_error(address, &error)
        }
        WsError::Io(source) => ConnectError::Unreachable { address, source },
        WsError::Http(response) => {
            let body = response.body().as_deref().unwrap_or_default();
            let body = String::from_utf8_lossy(body.get(..BODY_MAX).unwrap_or(body)).into_owned();
            ConnectError::Upgrade { address, status: response.status().as_u16(), body }
        }
        other => ConnectError::Protocol { address, reason: other.to_string() },
    }
}
