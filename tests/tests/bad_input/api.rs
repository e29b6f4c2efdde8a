//! Clients of the embedded API server that send too much, or request much and read nothing: they receive an error or
//! are disconnected, and other clients are not affected.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http::{Request, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::config::Kubeconfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tombolo_cli::process::Process;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";

const MIB: u64 = 1024 * 1024;

/// Number of watches of one client, and how many share a connection.
const WATCHES: usize = 5_000;
const PER_CONNECTION: usize = 250;

/// Bound for the memory of one idle watch, including its share of a connection.
const WATCH_BYTES_MAX: u64 = 32 * 1024;

/// A connection whose client reads nothing is closed after 5 s; the rest is a margin for a busy machine.
const STALLED_WITHIN: Duration = Duration::from_secs(30);

/// The embedded server of a world, accessed as its administrator.
struct Server {
    world: World,
    authority: String,
}

type Body = BoxBody<Bytes, Infallible>;

impl Server {
    async fn start() -> Self {
        let world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
        let config = Kubeconfig::read_from(world.kubeconfig()).unwrap();
        let url = config.clusters[0].cluster.as_ref().unwrap().server.clone().unwrap();
        Self { world, authority: url.trim_start_matches("https://").to_owned() }
    }

    fn resident(&self) -> u64 {
        Process::new(self.world.server_id().unwrap()).unwrap().read().unwrap().resident
    }

    /// A connection with the administrator's certificate.
    async fn connect(&self, protocol: &str) -> TlsStream<TcpStream> {
        let file = |name: &str| fs::read(self.world.cloud_dir().join("pki").join(name)).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&file("ca.crt")).unwrap()).unwrap();
        let certificate = CertificateDer::from_pem_slice(&file("admin.crt")).unwrap();
        let key = PrivateKeyDer::from_pem_slice(&file("admin.key")).unwrap();
        let config = rustls::ClientConfig::builder().with_root_certificates(roots);
        let mut config = config.with_client_auth_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(&self.authority).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    /// An HTTP/2 connection with this window size per stream.
    async fn http2(&self, window: u32) -> SendRequest<Body> {
        let stream = TokioIo::new(self.connect("h2").await);
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(window).initial_connection_window_size(64 * 1024 * 1024);
        let (sender, connection) = builder.handshake(stream).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    fn request(&self, method: &str, path: &str, body: Body) -> Request<Body> {
        let uri = format!("https://{}{path}", self.authority);
        let request = Request::builder().method(method).uri(uri).header("content-type", "application/json");
        request.body(body).unwrap()
    }

    /// Checks that another client is served at once.
    async fn others_are_served(&self) {
        let asked = async {
            let mut sender = self.http2(64 * 1024).await;
            let list = self.request("GET", "/api/v1/namespaces?limit=1", nothing());
            let answer = sender.send_request(list).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            answer.into_body().collect().await.unwrap();
        };
        tokio::time::timeout(Duration::from_secs(10), asked).await.expect("another client had to wait");
    }

    /// Creates ConfigMaps that make a list of several megabytes.
    async fn fill(&self, count: usize) {
        let mut sender = self.http2(64 * 1024).await;
        for number in 0..count {
            let data = json!({"pad": "x".repeat(50_000)});
            let body = json!({"metadata": {"name": format!("m{number}")}, "data": data}).to_string();
            let answer = sender.send_request(self.request("POST", CONFIGMAPS, whole(body))).await.unwrap();
            assert_eq!(answer.status(), StatusCode::CREATED);
            answer.into_body().collect().await.unwrap();
        }
    }
}

fn nothing() -> Body {
    Empty::new().boxed()
}

fn whole(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed()
}

/// A body of 10 GiB. `sent` counts the bytes that were read from it.
fn endless(sent: Arc<AtomicU64>) -> Body {
    let piece = Bytes::from(vec![b'x'; 64 * 1024]);
    let pieces = stream::repeat(piece).take(160 * 1024).map(move |piece| {
        sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        Ok(Frame::data(piece))
    });
    BodyExt::boxed(StreamBody::new(pieces))
}

async fn status(answer: http::Response<Incoming>) -> Value {
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_gibibytes_are_refused_and_not_kept() {
    let server = Server::start().await;
    let before = server.resident();
    for (method, path) in [("POST", CONFIGMAPS.to_owned()), ("PUT", format!("{CONFIGMAPS}/a"))] {
        let sent = Arc::new(AtomicU64::new(0));
        let mut sender = server.http2(64 * 1024).await;
        let request = server.request(method, &path, endless(Arc::clone(&sent)));
        let answer = tokio::time::timeout(DEADLINE, sender.send_request(request)).await.unwrap().unwrap();
        let refused = status(answer).await;
        assert_eq!((&refused["code"], &refused["reason"]), (&json!(413), &json!("RequestEntityTooLarge")));
        let sent = sent.load(Ordering::Relaxed);
        assert!(sent < 16 * MIB, "{sent} bytes were sent");
    }
    // HTTP/1.1, chunk after chunk.
    let mut stream = server.connect("http/1.1").await;
    let head = format!("POST {CONFIGMAPS} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sending = tokio::spawn(async move {
        let chunk = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
        for _ in 0..160 * 1024 {
            writer.write_all(&chunk).await?;
        }
        io::Result::Ok(())
    });
    let mut first = [0; 12];
    tokio::time::timeout(DEADLINE, reader.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(&first, b"HTTP/1.1 413");
    // The connection is cut if the client continues to send.
    tokio::time::timeout(DEADLINE, sending).await.unwrap().unwrap().unwrap_err();
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 32 * MIB, "memory grew by {grown} bytes");
    server.others_are_served().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_idle_watches_cost_little_and_see_everything() {
    let server = Server::start().await;
    let before = server.resident();
    let path = format!("{CONFIGMAPS}?watch=1&timeoutSeconds=3600&labelSelector=seen=yes");
    let mut watches: Vec<Incoming> = Vec::with_capacity(WATCHES);
    let mut senders = Vec::new();
    for _ in 0..WATCHES / PER_CONNECTION {
        let mut sender = server.http2(64 * 1024).await;
        for _ in 0..PER_CONNECTION {
            let answer = sender.send_request(server.request("GET", &path, nothing())).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            watches.push(answer.into_body());
        }
        senders.push(sender);
    }
    let each = server.resident().saturating_sub(before) / WATCHES as u64;
    assert!(each < WATCH_BYTES_MAX, "{each} bytes for an idle watch");
    server.others_are_served().await;
    let mut sender = server.http2(64 * 1024).await;
    let body = json!({"metadata": {"name": "seen", "labels": {"seen": "yes"}}}).to_string();
    sender.send_request(server.request("POST", CONFIGMAPS, whole(body))).await.unwrap();
    for watch in &mut watches {
        let frame = tokio::time::timeout(DEADLINE, watch.frame()).await.expect("no event in time");
        let event = frame.unwrap().unwrap().into_data().unwrap();
        assert!(event.starts_with(br#"{"type":"ADDED""#), "{}", String::from_utf8_lossy(&event));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_never_read_are_closed() {
    let server = Server::start().await;
    server.fill(200).await;
    let before = server.resident();
    let mut silent = Vec::new();
    for _ in 0..64 {
        let mut stream = server.connect("http/1.1").await;
        let one = format!("GET {CONFIGMAPS} HTTP/1.1\r\nhost: a\r\n\r\n");
        stream.write_all(one.repeat(3).as_bytes()).await.unwrap();
        silent.push(stream);
    }
    server.others_are_served().await;
    let began = Instant::now();
    for mut stream in silent {
        // Reads nothing before the server has had time to disconnect.
        tokio::time::sleep_until(began + STALLED_WITHIN / 3).await;
        let mut taken = Vec::new();
        let end = tokio::time::timeout(STALLED_WITHIN, stream.read_to_end(&mut taken)).await;
        let end = end.expect("the server did not disconnect");
        assert!(end.is_err() || taken.len() < 20_000_000, "all {} bytes arrived", taken.len());
    }
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 64 * MIB, "memory grew by {grown} bytes");
    server.others_are_served().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_without_a_window_hold_no_copies() {
    let server = Server::start().await;
    server.fill(200).await;
    let before = server.resident();
    let mut sender = server.http2(0).await;
    let mut answers = Vec::new();
    for _ in 0..200 {
        answers.push(sender.send_request(server.request("GET", CONFIGMAPS, nothing())).await.unwrap());
    }
    server.others_are_served().await;
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 64 * MIB, "200 lists of 10 MB hold {grown} bytes");
    drop(answers);
    server.others_are_served().await;
}
