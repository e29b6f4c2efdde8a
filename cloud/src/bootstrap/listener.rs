//! The join port: HTTPS with an optional client certificate, and a deadline for every step.

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
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tombolo_apicore::unread::Unread;
use tombolo_link::tls::{ServerTls, provider};
use tombolo_runtime::Drain;
use tombolo_runtime::connection_limiter::{Waiting, Working};

use super::Inner;
use super::error::BootstrapError;
use super::routes::{self, Visitor};
use tombolo_apicore::any_certificate::AnyCertificate;

/// Time until the first byte of a connection must arrive.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for a request's headers to arrive.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Lifetime of a connection, whatever it does. It serves one request.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause after a failed accept (no file descriptors left), so that other connections can end first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// TLS of the join port: the hub's certificate, an optional client certificate, and no resumption (a resumed session
/// would reuse a certificate that was not presented again).
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

/// Serves until the drain starts. Open connections may then run until its deadline.
pub(super) async fn run(inner: Arc<Inner>, listener: TcpListener, drain: Drain) {
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = drain.started() => break,
            Some(()) = connections.next() => {}
            accepted = listener.accept() => match accepted {
                // Without a free slot the connection is closed here.
                Ok((socket, remote)) => match inner.limiter.enter(remote.ip()) {
                    Ok(slot) => connections.push(connection(Arc::clone(&inner), slot, socket)),
                    Err(reason) => tracing::debug!(%remote, %reason, "join connection refused"),
                },
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

async fn connection(inner: Arc<Inner>, slot: Waiting, socket: TcpStream) {
    let mut first = [0];
    let spoke = tokio::select! {
        peeked = socket.peek(&mut first) => peeked.is_ok_and(|len| len > 0) && slot.spoke(),
        () = slot.evicted() => false,
        () = tokio::time::sleep(SILENCE_TIMEOUT) => false,
    };
    if !spoke {
        return;
    }
    // Boxed, so that a silent connection costs almost no memory.
    let Ok(Some(slot)) = timeout(HANDSHAKE_TIMEOUT, slot.work()).await else { return };
    let slot = Arc::new(slot);
    let served = async {
        tokio::select! {
            served = serve(inner, Arc::clone(&slot), socket) => served,
            () = slot.evicted() => Err("evicted in favour of a connection from another source".to_owned()),
        }
    };
    match Box::pin(timeout(CONNECTION_TIMEOUT, served)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(error, "join connection failed"),
        Err(_) => tracing::debug!("join connection took too long"),
    }
}

async fn serve(inner: Arc<Inner>, slot: Arc<Working>, socket: TcpStream) -> Result<(), String> {
    let source = socket.peer_addr().map_err(|error| error.to_string())?.ip().into();
    let stream = timeout(HANDSHAKE_TIMEOUT, inner.acceptor.accept(socket))
        .await
        .map_err(|_| "TLS handshake timed out".to_owned())?
        .map_err(|error| format!("TLS handshake: {error}"))?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
    let visitor = Visitor { source, chain, slot };
    let service = service_fn(|request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        // Lets a client that is refused while it is still sending receive the refusal.
        let body = Unread::of(&head, body);
        let request = Request::from_parts(head, body);
        let (inner, visitor) = (&inner, &visitor);
        async move { Ok::<_, Infallible>(routes::answer(inner, visitor, request).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        // A connection that is idle between two requests would take the slot of another client.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(|error| error.to_string())
}
