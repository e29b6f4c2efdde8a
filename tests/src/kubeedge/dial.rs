//! How a KubeEdge edge connects (docs/reference/kubeedge.md#connections).

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Result, bail};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::raw;
use crate::world::World;

/// Project of every KubeEdge edge, unless configured otherwise.
const PROJECT: &str = "e632aba927ea4ac2b575ec1603d56f10";

/// The transport of a WebSocket.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An upgraded connection.
pub(super) type Socket = WebSocketStream<Box<dyn Stream>>;

/// Connects as the node.
pub(super) type Dial = Arc<dyn Fn() -> BoxFuture<'static, Result<Socket>> + Send + Sync>;

/// Certificate, name, and address of the cloud.
#[derive(Clone)]
pub(super) struct EdgeIdentity {
    name: String,
    tls: Arc<ClientConfig>,
    /// Shared, so that the hub uses a changed address at its next dial.
    port: Arc<AtomicU16>,
}

impl EdgeIdentity {
    /// Gets a certificate.
    pub(super) async fn join(world: &World, name: &str) -> Result<Self> {
        let tls = Arc::new(raw::joined(world, name).await?);
        let [port, ..] = world.hub_ports();
        Ok(Self { name: name.to_owned(), tls, port: Arc::new(port.into()) })
    }

    pub(super) fn set_port(&self, port: u16) {
        self.port.store(port, Ordering::Relaxed);
    }

    /// A dial function that sends the headers of a KubeEdge edge.
    pub(super) fn dial(&self) -> Dial {
        let identity = self.clone();
        Arc::new(move || {
            let identity = identity.clone();
            async move {
                let path = format!("/{PROJECT}/{}/events", identity.name);
                let headers =
                    [("node_id", &*identity.name), ("project_id", PROJECT), ("ConnectionUse", "msg")];
                identity.upgrade(&path, &headers).await
            }
            .boxed()
        })
    }

    /// Requests an upgrade with this path and these headers.
    pub(super) async fn upgrade(&self, path: &str, headers: &[(&'static str, &str)]) -> Result<Socket> {
        let port = self.port.load(Ordering::Relaxed);
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        let name = ServerName::try_from("127.0.0.1")?;
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await?;
        let mut request = format!("wss://127.0.0.1:{port}{path}").into_client_request()?;
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse()?);
        }
        let stream: Box<dyn Stream> = Box::new(stream);
        match tokio_tungstenite::client_async(request, stream).await {
            Ok((socket, _)) => Ok(socket),
            Err(WsError::Http(response)) => {
                let body = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
                bail!("{}: {body}", response.status().as_u16())
            }
            Err(error) => Err(error.into()),
        }
    }
}
