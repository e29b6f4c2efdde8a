//! HTTP/2 over TLS with a bearer token and nothing above it, so that the load generator costs as little as possible.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::target::{Endpoint, MeasuredServer};

/// One connection; clones share it.
#[derive(Clone)]
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    authority: Arc<str>,
    authorization: Arc<str>,
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(target: &impl MeasuredServer) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let Endpoint { address, ca } = target.endpoint();
        roots.add(CertificateDer::from_pem_slice(ca.as_bytes())?)?;
        let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::IpAddress(address.ip().into());
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self {
            sender,
            authority: address.to_string().into(),
            authorization: format!("Bearer {}", target.token()).into(),
        })
    }

    /// Sends a request and returns the head of the answer.
    ///
    /// # Errors
    /// When the connection fails, or the status is not a success.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>> {
        let mut sender = self.sender.clone();
        sender.ready().await?;
        let request = Request::builder()
            .method(method.clone())
            .uri(format!("https://{}{path}", self.authority))
            .header("authorization", &*self.authorization)
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .body(Full::new(body))?;
        let answer = sender.send_request(request).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let text = answer.into_body().collect().await?.to_bytes();
        bail!("{method} {path} was answered {status}: {}", String::from_utf8_lossy(&text));
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn call(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes> {
        let answer = self.send(method, path, body).await?;
        Ok(answer.into_body().collect().await.context("the answer broke off")?.to_bytes())
    }
}
