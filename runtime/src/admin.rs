//! The admin endpoints: `/livez`, `/readyz` and `/metrics`. They have their own listener and thread, so that a busy
//! data path never makes a probe fail.
//!
//! Slow clients are bounded: headers must arrive within [`HEADER_TIMEOUT`], a connection lives for at most
//! [`CONNECTION_LIFETIME`], and at most [`CONNECTIONS_MAX`] are served at a time, with a limit for each source
//! ([`ConnectionLimiter`]). A client that opens many connections does not make a probe fail.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::future::ready;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::connection_limiter::{ConnectionLimiter, ConnectionLimits, Waiting};
use crate::drain::Drain;
use crate::listen::ListenError;
use crate::ready::Readiness;
use crate::tasks::Tasks;

/// Time within which a request's headers must arrive.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest life of one connection.
pub const CONNECTION_LIFETIME: Duration = Duration::from_secs(30);

/// Maximum number of connections served at a time.
pub const CONNECTIONS_MAX: usize = 64;

/// Limits on waiting and served connections, in total and for each source.
const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits {
    waiting: 512,
    waiting_per_source: 128,
    working: CONNECTIONS_MAX,
    working_per_source: CONNECTIONS_MAX / 4,
};

/// Wait before the next accept after one failed (no file descriptors left).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

const TEXT_TYPE: &str = "text/plain; charset=utf-8";
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Binds the admin listener without serving yet. `setting` is the configuration key of the address.
///
/// # Errors
/// [`ListenError`], which says what to change.
pub fn bind(setting: &str, address: SocketAddr) -> Result<AdminListener, ListenError> {
    let open = || {
        let listener = StdTcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let local = listener.local_addr()?;
        Ok(AdminListener { listener, local })
    };
    open().map_err(|source| ListenError { protocol: "TCP", address, setting: setting.to_owned(), source })
}

/// What the endpoints report.
#[derive(Debug, Clone)]
pub struct AdminState {
    /// The process's metrics, all registered.
    pub registry: Arc<Registry>,
    /// What the process still waits for.
    pub readiness: Readiness,
    /// Once the drain starts, the process is unready, so that load balancers stop sending it traffic.
    pub drain: Drain,
}

/// A bound admin listener.
#[derive(Debug)]
pub struct AdminListener {
    listener: StdTcpListener,
    local: SocketAddr,
}

impl AdminListener {
    /// The local address, with the port that the system chose if port 0 was requested.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Serves on its own thread and runtime until the handle is dropped.
    ///
    /// # Errors
    /// The thread or its runtime could not be created.
    pub fn start(self, state: AdminState) -> io::Result<AdminHandle> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, limiter) = (CancellationToken::new(), ConnectionLimiter::new(CONNECTION_LIMITS));
        let (stopped, guarded) = (stop.clone(), limiter.clone());
        let serve = move || {
            runtime.block_on(async move {
                match TcpListener::from_std(self.listener) {
                    Ok(listener) => accept_until(listener, guarded, state, stopped).await,
                    Err(error) => tracing::error!(%error, "admin listener is unusable"),
                }
            });
        };
        let thread = std::thread::Builder::new().name("admin".to_owned()).spawn(serve)?;
        Ok(AdminHandle { stop, limiter, thread: Some(thread) })
    }
}

/// The serving thread, which ends when this is dropped.
#[derive(Debug)]
pub struct AdminHandle {
    stop: CancellationToken,
    limiter: ConnectionLimiter,
    thread: Option<JoinHandle<()>>,
}

impl AdminHandle {
    /// The listener's limiter, for counts of open, evicted and refused connections.
    #[must_use]
    pub fn limiter(&self) -> ConnectionLimiter {
        self.limiter.clone()
    }
}

impl Drop for AdminHandle {
    fn drop(&mut self) {
        self.stop.cancel();
        // The thread only waits for timers and sockets, and the token cancels those waits: the join is short.
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the admin thread panicked");
        }
    }
}

async fn accept_until(
    listener: TcpListener,
    limiter: ConnectionLimiter,
    state: AdminState,
    stop: CancellationToken,
) {
    let (state, tasks) = (Arc::new(state), Tasks::new());
    let accept = async {
        loop {
            match listener.accept().await {
                // A connection that gets no slot is closed here.
                Ok((stream, remote)) => match limiter.enter(remote.ip()) {
                    Ok(slot) => {
                        tasks.spawn_isolated("admin connection", receive(slot, stream, Arc::clone(&state)));
                    }
                    Err(reason) => tracing::debug!(%remote, %reason, "admin connection refused"),
                },
                Err(error) => {
                    tracing::warn!(%error, "admin accept failed");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    };
    stop.run_until_cancelled(accept).await;
    tasks.abort();
}

/// Handles a connection from its first byte on.
async fn receive(slot: Waiting, stream: TcpStream, state: Arc<AdminState>) {
    let mut first = [0];
    let spoke = tokio::select! {
        peeked = stream.peek(&mut first) => peeked.is_ok_and(|len| len > 0) && slot.spoke(),
        () = slot.evicted() => false,
        () = tokio::time::sleep(HEADER_TIMEOUT) => false,
    };
    if !spoke {
        return;
    }
    let Some(slot) = slot.work().await else { return };
    tokio::select! {
        () = serve_connection(stream, &state) => {}
        () = slot.evicted() => tracing::debug!("admin connection evicted for one of another source"),
    }
}

async fn serve_connection(stream: TcpStream, state: &AdminState) {
    let service = service_fn(|request: Request<Incoming>| {
        ready(Ok::<_, Infallible>(answer(state, request.method(), request.uri().path())))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_LIFETIME, connection).await {
        Ok(Err(error)) => tracing::debug!(%error, "admin connection ended"),
        Err(_) => tracing::debug!("admin connection closed: it reached its maximum lifetime"),
        Ok(Ok(())) => {}
    }
}

/// Answers one request. A HEAD is answered as a GET; hyper leaves the body out.
fn answer(state: &AdminState, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let make: fn(&AdminState) -> TextResponse = match path {
        "/livez" => |_| (StatusCode::OK, TEXT_TYPE, "ok\n".to_owned()),
        "/readyz" => readyz,
        "/metrics" => metrics,
        _ => return response(StatusCode::NOT_FOUND, TEXT_TYPE, "not found\n".to_owned()),
    };
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refused =
            response(StatusCode::METHOD_NOT_ALLOWED, TEXT_TYPE, "only GET and HEAD are served\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    let (code, content_type, text) = make(state);
    response(code, content_type, text)
}

type TextResponse = (StatusCode, &'static str, String);

fn response(code: StatusCode, content_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn readyz(state: &AdminState) -> TextResponse {
    if state.drain.is_started() {
        return (StatusCode::SERVICE_UNAVAILABLE, TEXT_TYPE, "draining\n".to_owned());
    }
    let pending = state.readiness.pending();
    if pending.is_empty() {
        return (StatusCode::OK, TEXT_TYPE, "ready\n".to_owned());
    }
    let mut text = String::new();
    for name in pending {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "pending: {name}");
    }
    (StatusCode::SERVICE_UNAVAILABLE, TEXT_TYPE, text)
}

fn metrics(state: &AdminState) -> TextResponse {
    let mut text = String::new();
    match encode(&mut text, &state.registry) {
        Ok(()) => (StatusCode::OK, METRICS_TYPE, text),
        Err(_) => {
            let text = "a metric could not be encoded\n".to_owned();
            (StatusCode::INTERNAL_SERVER_ERROR, TEXT_TYPE, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::drain;

    struct World {
        address: SocketAddr,
        readiness: Readiness,
        trigger: drain::Trigger,
        handle: AdminHandle,
    }

    fn world() -> World {
        let mut registry = Registry::default();
        let counter = Counter::<u64>::default();
        registry.register("tombolo_test_things", "Things", counter.clone());
        counter.inc();
        let bound = bind("admin.listen", "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = bound.local_addr();
        let readiness = Readiness::new();
        let (trigger, drain) = drain::channel(Duration::ZERO);
        let state = AdminState { registry: Arc::new(registry), readiness: readiness.clone(), drain };
        let handle = bound.start(state).unwrap();
        World { address, readiness, trigger, handle }
    }

    async fn fetch(address: SocketAddr, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        let code = reply.split(' ').nth(1).unwrap().parse().unwrap();
        let body = reply.split_once("\r\n\r\n").unwrap().1.to_owned();
        (code, body)
    }

    #[tokio::test]
    async fn reports_pending_components_and_draining() {
        let world = world();
        assert_eq!(fetch(world.address, "/livez").await, (200, "ok\n".into()));
        let guard = world.readiness.wait_for("node watch");
        assert_eq!(fetch(world.address, "/readyz").await, (503, "pending: node watch\n".into()));
        drop(guard);
        assert_eq!(fetch(world.address, "/readyz").await, (200, "ready\n".into()));
        world.trigger.start();
        assert_eq!(fetch(world.address, "/readyz").await, (503, "draining\n".into()));
    }

    #[tokio::test]
    async fn serves_metrics_and_404() {
        let world = world();
        let (code, body) = fetch(world.address, "/metrics").await;
        assert_eq!(code, 200);
        assert!(body.contains("tombolo_test_things_total 1"), "{body}");
        assert_eq!(fetch(world.address, "/secret").await.0, 404);
    }

    #[tokio::test]
    async fn a_client_that_sends_half_a_header_is_dropped() {
        let world = world();
        let mut slow = TcpStream::connect(world.address).await.unwrap();
        slow.write_all(b"GET /livez HTT").await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(HEADER_TIMEOUT * 3, slow.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "the server kept a half-sent request");
    }

    /// A silent client makes no other client's probe fail, not even one from the same address.
    #[tokio::test]
    async fn stalled_connections_leave_slots_for_probes() {
        let world = world();
        let from = async |last: u8, say: &'static [u8]| {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind((std::net::Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
            let mut stream = socket.connect(world.address).await.unwrap();
            stream.write_all(say).await.unwrap();
            stream
        };
        let mut held = Vec::new();
        for _ in 0..2 * CONNECTION_LIMITS.waiting_per_source {
            held.push(from(1, b"").await);
        }
        for number in 0..CONNECTIONS_MAX {
            let last = u8::try_from(2 + number % 3).unwrap();
            held.push(from(last, b"GET /livez HTT").await);
        }
        assert_eq!(fetch(world.address, "/livez").await, (200, "ok\n".into()));
        let gone = u64::try_from(CONNECTION_LIMITS.waiting_per_source).unwrap();
        assert!(world.handle.limiter().evicted() >= gone, "refused clients are counted");
        drop(held);
    }

    #[tokio::test]
    async fn a_second_listener_on_the_port_names_the_setting() {
        let world = world();
        let error = bind("admin.listen", world.address).unwrap_err();
        assert!(error.to_string().contains("(setting admin.listen): the address is in use"), "{error}");
    }
}
