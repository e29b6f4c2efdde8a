//! The join port: HTTPS with an optional client certificate, every step with a deadline.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use rustls::version::{TLS12, TLS13};
use rustls_pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tombolo_apiserve::unread::Unread;
use tombolo_link::tls::{ServerTls, provider};
use tombolo_runtime::Drain;

use super::Inner;
use super::error::BootstrapError;
use super::routes;
use crate::any_certificate::AnyCertificate;

/// Connections at a time; more wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 256;

/// Time for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for a request's headers to arrive, idle time between requests included.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Life of a connection, whatever it does.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause after a failed accept (no file descriptors left): others must finish first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// TLS of the join port: the hub's certificate, any client certificate or none, no resumption (a resumed session
/// would bring back a certificate that was not shown again).
pub(super) fn tls(server: &ServerTls) -> Result<TlsAcceptor, BootstrapError> {
    let provider = provider();
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| BootstrapError::Signing { reason: error.to_string() })?
        .with_client_cert_verifier(Arc::new(AnyCertificate::new(&provider)))
        .with_cert_resolver(server.certificate_resolver());
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves until the drain starts; connections then have until its deadline.
pub(super) async fn run(inner: Arc<Inner>, listener: TcpListener, drain: Drain) {
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = drain.started() => break,
            Some(()) = connections.next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((socket, remote)) => {
                    tracing::debug!(%remote, "join connection");
                    connections.push(connection(Arc::clone(&inner), socket));
                }
                Err(error) => {
                    tracing::warn!(%error, "join port cannot accept connections");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    tokio::select! {
        () = async { while connections.next().await.is_some() {} } => {}
        () = drain.deadline_passed() => {}
    }
}

async fn connection(inner: Arc<Inner>, socket: TcpStream) {
    match timeout(CONNECTION_TIMEOUT, serve(inner, socket)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(error, "join connection failed"),
        Err(_) => tracing::debug!("join connection took too long"),
    }
}

async fn serve(inner: Arc<Inner>, socket: TcpStream) -> Result<(), String> {
    let stream = timeout(HANDSHAKE_TIMEOUT, inner.acceptor.accept(socket))
        .await
        .map_err(|_| "no TLS handshake in time".to_owned())?
        .map_err(|error| format!("TLS handshake: {error}"))?;
    let chain: Vec<CertificateDer<'static>> =
        stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
    let service = service_fn(|request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        // Who is refused while it still sends sees the refusal.
        let body = Unread::of(&head, body);
        let request = Request::from_parts(head, body);
        let (inner, chain) = (&inner, &chain);
        async move { Ok::<_, Infallible>(routes::answer(inner, chain, request).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(|error| error.to_string())
}
