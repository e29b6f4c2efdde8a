//! Connections: accepting, TLS, HTTP/1.1 and HTTP/2, limits, graceful shutdown.

mod usage;

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;

use crate::api::ApiServer;
use crate::auth::Peer;
use crate::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::unread::Unread;
use crate::write_coalescer::coalesce_writes;
use crate::write_timeout::WriteTimeout;

use usage::Usage;

#[cfg(test)]
mod tests;

pub use crate::connection_slots::{CONNECTIONS_MAX, UNPROVEN_MAX, UNPROVEN_PER_SOURCE_MAX};

/// Time limit of a TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time from the handshake to the first request (kube-apiserver's `ReadHeaderTimeout`): a silent client occupies a slot
/// that others wait for.
pub const FIRST_REQUEST_MAX: Duration = Duration::from_secs(32);

/// Time limit for the head of an HTTP/1.1 request. It is also the longest idle time of a connection that is kept alive,
/// including HTTP/2 (kube-apiserver's `IdleTimeout`). A connection with an open watch is not idle.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(90);

/// A connection is closed when its peer reads nothing for this long while data is waiting. This ends the watch of a
/// client that does not read.
pub const WRITE_STALL_MAX: Duration = Duration::from_secs(5);

/// A connection is closed when nothing of an answer is read for this long, even if the peer reads other answers or
/// answers probes: an HTTP/2 stream can remain without a window for ever. Watches and streams may be silent.
pub const ANSWER_STALL_MAX: Duration = Duration::from_secs(60);

/// Maximum number of concurrent streams of one HTTP/2 connection.
const STREAMS_MAX: u32 = 250;

/// Largest request head, in bytes.
const HEAD_LEN_MAX: u32 = 64 * 1024;

/// How often an idle HTTP/2 connection is probed.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Time limit for the answer to a probe.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// After this long without data from a peer, TCP keepalive probes begin.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// Interval of the probes; the system gives up after several (Linux: 9).
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Pause after a failed accept, for example when no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How to serve.
#[derive(Debug, Clone)]
pub struct Serving {
    /// TLS configuration, including that of client certificates; plain HTTP without one.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// When cancelled, no further connections are accepted and existing ones end after their current requests. Pass the
    /// same token to [`crate::api::builder::Builder::stop`], otherwise watches run until `grace` is over.
    pub stop: CancellationToken,
    /// Time for existing connections to end; the remaining ones are then closed.
    pub grace: Duration,
}

/// Serves connections until `serving.stop` is cancelled. For HTTP/2 over TLS, the `rustls` configuration must offer
/// ALPN `h2` and `http/1.1`.
///
/// # Errors
/// When the listener's address cannot be read. Errors of single connections are only logged.
pub async fn serve(listener: TcpListener, api: ApiServer, serving: Serving) -> io::Result<()> {
    tracing::debug!(address = %listener.local_addr()?, tls = serving.tls.is_some(), "serving the Kubernetes API");
    let slots = ConnectionSlots::new(api.connections_max(), api.counts());
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = slots.room() => {}
            () = serving.stop.cancelled() => break,
        }
        let (stream, remote) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted; trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = serving.stop.cancelled() => break,
        };
        while connections.try_join_next().is_some() {}
        let slot = slots.enter(api.counts().source(Some(remote.ip())));
        let connection = connection(stream, Arc::clone(&slot), api.clone(), serving.clone());
        connections.spawn(async move {
            tokio::select! {
                () = connection => {}
                () = slot.end.cancelled() => tracing::debug!(%remote, "a connection made room for another one"),
            }
        });
    }
    drop(listener);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(serving.grace, all_ended).await.is_err() {
        tracing::debug!(
            open = connections.len(),
            "connections were still open after the grace period; closed"
        );
    }
    connections.shutdown().await;
    Ok(())
}

async fn connection(stream: TcpStream, slot: Arc<ConnectionSlot>, api: ApiServer, serving: Serving) {
    let remote = stream.peer_addr().ok();
    // Small answers must not wait for an acknowledgement of the previous one.
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
    // A silent client costs only a socket.
    let silence_max = if serving.tls.is_some() { HANDSHAKE_TIMEOUT } else { FIRST_REQUEST_MAX };
    tokio::select! {
        _ = stream.readable() => {}
        () = tokio::time::sleep(silence_max) => return tracing::debug!(?remote, "a connection was silent"),
        () = serving.stop.cancelled() => return,
    }
    let stream = WriteTimeout::new(stream, WRITE_STALL_MAX);
    let Some(config) = serving.tls else {
        let peer = Peer { remote, ..Peer::default() };
        return http(Either::Left(stream), (peer, slot), api, serving.stop).await;
    };
    let handshake = TlsAcceptor::from(config).accept(stream);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(?remote, %error, "TLS handshake failed"),
        Err(_) => return tracing::debug!(?remote, "TLS handshake timed out"),
    };
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = certificates.iter().map(|certificate| certificate.clone().into_owned()).collect();
    let peer = Peer { remote, certificates, encrypted: true };
    http(Either::Right(Box::new(stream)), (peer, slot), api, serving.stop).await;
}

/// A connection with or without TLS. It is one type: the HTTP code is large, and a device has it in memory once.
type Channel = Either<WriteTimeout<TcpStream>, Box<TlsStream<WriteTimeout<TcpStream>>>>;

/// Serves HTTP on one stream until it ends.
async fn http(
    stream: Channel,
    (peer, slot): (Peer, Arc<ConnectionSlot>),
    api: ApiServer,
    stop: CancellationToken,
) {
    let remote = peer.remote;
    let (peer, usage) = (Arc::new(peer), Usage::new());
    let asked = Arc::clone(&usage);
    let service = service_fn(move |request: Request<Incoming>| {
        let (api, peer, used) = (api.clone(), Arc::clone(&peer), asked.begin());
        let (mut head, body) = request.into_parts();
        let body = Unread::of(&head, body);
        head.extensions.insert(Arc::clone(&slot));
        let request = Request::from_parts(head, body);
        // On the heap, to be freed once there is an answer: hyper keeps the service's own future as long as the body of
        // the answer, which for a watch is long.
        Box::pin(async move {
            let response = api.handle(request, &peer).await;
            Ok::<_, std::convert::Infallible>(used.until_sent(response))
        })
    });
    let builder = builder();
    let (stream, outlet) = coalesce_writes(stream);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    // A separate token: every wait for a token takes its lock, and a connection waits whenever it is polled.
    let stop = stop.child_token();
    let served = async {
        let mut connection = pin!(connection);
        tokio::select! {
            biased;
            output = connection.as_mut() => return output.map_err(io::Error::other),
            end = usage.end(&stop) => end?,
        }
        // Requests in progress are still answered; an HTTP/2 client learns that newer ones are not.
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            output = connection => output.map_err(io::Error::other),
            error = usage.abandoned() => Err(error),
        }
    };
    if let Err(error) = outlet.drive(served).await.and_then(|outcome| outcome) {
        tracing::debug!(?remote, %error, "connection ended");
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEAD_LEN_MAX as usize)
        .keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_LEN_MAX)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}
