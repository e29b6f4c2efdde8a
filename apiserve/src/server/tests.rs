//! How long a connection may keep its place. The clock stands still and goes on when everybody waits.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::*;
use crate::history::LogLimits;
use crate::kinds::Kinds;
use crate::memory::MemoryStore;
use crate::registry::Registry;

/// What the clock may go on over a limit before the end is seen.
const MARGIN: Duration = Duration::from_secs(2);

/// One place, so that who waits for it sees that it was given back.
async fn start() -> (std::net::SocketAddr, tokio_util::sync::DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let store = MemoryStore::new(MemoryStore::START, LogLimits::default());
    let api = ApiServer::builder(Arc::new(store), Registry::new(Kinds::builtin())).connections_max(1).build();
    let serving = Serving { tls: None, stop: stop.clone(), grace: Duration::ZERO };
    tokio::spawn(serve(listener, api, serving));
    (address, stop.drop_guard())
}

/// How long it takes until the server has closed a connection.
async fn closed(mut stream: TcpStream) -> Duration {
    let began = Instant::now();
    let mut rest = Vec::new();
    let limit = 3 * HEADER_TIMEOUT;
    let end = tokio::time::timeout(limit, stream.read_to_end(&mut rest)).await;
    let _ = end.expect("the server closes the connection");
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn silence_is_ended() {
    let (address, _stop) = start().await;
    // Nothing at all, a part of what HTTP/2 begins with, and a part of a head of HTTP/1.1.
    for (said, limit) in
        [("", FIRST_REQUEST_MAX), ("PRI * HT", FIRST_REQUEST_MAX), ("GET / HT", HEADER_TIMEOUT)]
    {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        let took = closed(stream).await;
        assert!(took <= limit + MARGIN, "{said:?} kept its place for {took:?}");
    }
}

async fn http2(
    address: std::net::SocketAddr,
) -> (http2::SendRequest<Empty<Bytes>>, tokio::task::JoinHandle<()>) {
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    (sender, tokio::spawn(async move { drop(connection.await) }))
}

#[tokio::test(start_paused = true)]
async fn http2_without_requests_is_ended() {
    let (address, _stop) = start().await;
    let (_sender, connection) = http2(address).await;
    let began = Instant::now();
    tokio::time::timeout(3 * HEADER_TIMEOUT, connection).await.expect("no request comes").unwrap();
    assert!(began.elapsed() <= FIRST_REQUEST_MAX + MARGIN, "{:?}", began.elapsed());

    let (mut sender, connection) = http2(address).await;
    let request = Request::get(format!("http://{address}/version")).body(Empty::new()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    answer.into_body().collect().await.unwrap();
    let began = Instant::now();
    tokio::time::timeout(3 * HEADER_TIMEOUT, connection).await.expect("no further request comes").unwrap();
    let took = began.elapsed();
    assert!(took > FIRST_REQUEST_MAX, "{took:?}");
    assert!(took <= HEADER_TIMEOUT + MARGIN, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn an_open_watch_is_no_silence() {
    let (address, _stop) = start().await;
    let (mut sender, connection) = http2(address).await;
    let path = "/api/v1/configmaps?watch=1&timeoutSeconds=600";
    let request = Request::get(format!("http://{address}{path}")).body(Empty::new()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let began = Instant::now();
    answer.into_body().collect().await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(600), "ended after {:?}", began.elapsed());
    assert!(!connection.is_finished());
}
