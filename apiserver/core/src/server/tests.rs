//! How long a connection may keep its slot. The clock is paused and advances when every task waits.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::DropGuard;
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};

use super::*;
use crate::history::LogLimits;
use crate::kinds::Kinds;
use crate::memory::MemoryStore;
use crate::registry::Registry;
use crate::store::{Expect, Mutation, Write, WriteStore};

mod hostile;
mod payers;
mod shares;

/// How far the clock may advance beyond a limit before the end is noticed.
const MARGIN: Duration = Duration::from_secs(2);

/// Maximum bytes of answers in transit.
const ANSWERS_LEN: usize = 1024 * 1024;

/// Approximate length of the only ConfigMap.
const OBJECT_LEN: usize = 400 * 1024;

const ONE: &str = "/api/v1/namespaces/default/configmaps/a";

/// One slot, so that a waiting client notices its release.
async fn start() -> (SocketAddr, DropGuard) {
    start_with(1).await
}

async fn start_with(max: usize) -> (SocketAddr, DropGuard) {
    start_behind(max, None).await
}

async fn start_behind(max: usize, tls: Option<Arc<rustls::ServerConfig>>) -> (SocketAddr, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let store = MemoryStore::new(MemoryStore::START, LogLimits::default());
    put(&store).await;
    let api = ApiServer::builder(Arc::new(store), Registry::new(Kinds::builtin()));
    let api = api.connections_max(max).answers_len_max(ANSWERS_LEN).build();
    let serving = Serving { tls, stop: stop.clone(), grace: Duration::ZERO };
    tokio::spawn(serve(listener, api, serving));
    (address, stop.drop_guard())
}

/// How long the server takes to close a connection.
async fn closed(mut stream: TcpStream) -> Duration {
    let began = Instant::now();
    let mut rest = Vec::new();
    let limit = 3 * HEADER_TIMEOUT;
    let end = tokio::time::timeout(limit, stream.read_to_end(&mut rest)).await;
    let _ = end.expect("the server closes the connection");
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn silent_connection_is_closed() {
    let (address, _stop) = start().await;
    // Nothing at all, a part of the HTTP/2 preface, and a part of an HTTP/1.1 head.
    for (said, limit) in
        [("", FIRST_REQUEST_MAX), ("PRI * HT", FIRST_REQUEST_MAX), ("GET / HT", HEADER_TIMEOUT)]
    {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        let took = closed(stream).await;
        assert!(took <= limit + MARGIN, "{said:?} kept its slot for {took:?}");
    }
}

/// A connection that sends without delay, because the paused clock jumps while both ends wait.
async fn connected(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

async fn http2(address: SocketAddr) -> (http2::SendRequest<Empty<Bytes>>, tokio::task::JoinHandle<()>) {
    let stream = TokioIo::new(connected(address).await);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    (sender, tokio::spawn(async move { drop(connection.await) }))
}

#[tokio::test(start_paused = true)]
async fn idle_http2_connection_is_closed() {
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
async fn open_watch_does_not_count_as_silence() {
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

async fn put(store: &MemoryStore) {
    let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", "a");
    let pad = "x".repeat(OBJECT_LEN);
    let body = format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"a","namespace":"default","uid":"u"}},"data":{{"pad":"{pad}"}}}}"#
    );
    let write = Write::Put { uid: Uid::parse("u").unwrap(), body: body.into() };
    store.commit(Mutation { key, expected: Expect::Any, write }).await.unwrap();
}

/// An HTTP/2 connection whose streams begin with this window.
async fn windowed(
    address: SocketAddr,
    window: u32,
) -> (http2::SendRequest<Empty<Bytes>>, tokio::task::JoinHandle<()>) {
    let stream = TokioIo::new(connected(address).await);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    let (sender, connection) = builder.initial_stream_window_size(window).handshake(stream).await.unwrap();
    (sender, tokio::spawn(async move { drop(connection.await) }))
}

async fn get(sender: &mut http2::SendRequest<Empty<Bytes>>, address: SocketAddr) -> http::Response<Incoming> {
    let request = Request::get(format!("http://{address}{ONE}")).body(Empty::new()).unwrap();
    sender.send_request(request).await.unwrap()
}

/// With a window of one byte, the whole body is handed over and nothing is sent.
#[tokio::test(start_paused = true)]
async fn unread_answers_are_bounded_and_closed() {
    for window in [0, 1] {
        let (address, _stop) = start_with(2).await;
        let (mut sender, connection) = windowed(address, window).await;
        let mut unread = Vec::new();
        for expected in [200, 200, 429, 429] {
            let answer = get(&mut sender, address).await;
            assert_eq!(answer.status(), expected, "window {window}, {} are unread", unread.len());
            unread.push(answer);
        }
        let began = Instant::now();
        timeout(4 * ANSWER_STALL_MAX, connection).await.expect("the connection is ended").unwrap();
        assert!(began.elapsed() <= 2 * ANSWER_STALL_MAX + MARGIN, "{:?}", began.elapsed());
        let (mut sender, _connection) = windowed(address, 64 * 1024).await;
        let answer = get(&mut sender, address).await;
        assert_eq!(answer.status(), 200, "the bytes were given back");
        assert!(answer.into_body().collect().await.unwrap().to_bytes().len() > OBJECT_LEN);
    }
}

#[tokio::test(start_paused = true)]
async fn answers_over_a_slow_link_arrive() {
    let (address, _stop) = start().await;
    let (mut sender, _connection) = windowed(address, 16 * 1024).await;
    let mut answer = get(&mut sender, address).await.into_body();
    let (mut taken, began) = (0, Instant::now());
    while let Some(frame) = answer.frame().await {
        taken += frame.unwrap().into_data().unwrap().len();
        sleep(ANSWER_STALL_MAX / 20).await;
    }
    assert!(taken > OBJECT_LEN, "{taken} bytes");
    assert!(began.elapsed() > ANSWER_STALL_MAX, "{:?}", began.elapsed());
}
