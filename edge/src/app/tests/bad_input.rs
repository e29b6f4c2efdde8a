//! Tests of clients that send invalid or excessive requests to the agent's listeners.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request};
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::identity::testing::fetch_plain;
use crate::localapi::{ANSWERS_LEN_MAX, BODIES_LEN_MAX, CONNECTIONS_MAX, WATCHES_MAX};

/// What a client can send before it is refused, in bytes: the data that is read, and the buffers on the way.
const TAKEN_MAX: usize = 32 * 1024 * 1024;

async fn with_services(folder: &Path, cloud: &FakeCloud) -> Agent {
    let node = ObjectKey::new(Resource::new("", "v1", "nodes"), "", "edge-a");
    cloud.put(&node, "n1", &json!({}), &[]);
    cloud.put(&key("services", "web"), "s1", &json!({"spec": {"clusterIP": "10.0.0.1"}}), &[]);
    let agent = Agent::start(folder, cloud, false).await;
    for address in [agent.http, agent.wrapper] {
        wait_until("the Service", DEADLINE, async || ask(address, "/api/v1/services").await.0 == 200).await;
    }
    agent
}

async fn ask(address: SocketAddr, path: &str) -> (u16, Value) {
    let (code, text) = fetch_plain(address, Method::GET, path, HeaderMap::new(), "").await;
    (code.as_u16(), serde_json::from_str(&text).unwrap_or_default())
}

#[tokio::test]
async fn meaningless_requests_get_a_status() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let agent = with_services(folder.path(), &cloud).await;
    for address in [agent.http, agent.wrapper] {
        for (query, code, reason) in [
            ("labelSelector=a%20in%20(", 400, "BadRequest"),
            ("labelSelector=%2Fx%3D1", 400, "BadRequest"),
            ("fieldSelector=metadata.name", 400, "BadRequest"),
            ("fieldSelector=spec.nonsense%3D1", 400, "BadRequest"),
            ("watch=1&labelSelector=a%3Db%3Dc", 400, "BadRequest"),
            ("limit=-1x", 400, "BadRequest"),
            ("continue=nonsense", 400, "BadRequest"),
            ("resourceVersion=99999999999999999999999", 400, "BadRequest"),
            ("resourceVersionMatch=Exact", 422, "Invalid"),
            ("resourceVersion=18446744073709551615", 504, "Timeout"),
            ("limit=1&resourceVersion=18446744073709551614", 504, "Timeout"),
        ] {
            let (found, status) = ask(address, &format!("/api/v1/services?{query}")).await;
            assert_eq!((found, &status["reason"]), (code, &json!(reason)), "{query}: {status}");
            assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(code)), "{query}");
            assert!(status["message"].as_str().is_some_and(|text| !text.is_empty()), "{query}: {status}");
        }
        assert_eq!(ask(address, "/api/v1/services").await.0, 200, "others are served");
    }
    agent.stop().await;
}

#[tokio::test]
async fn secrets_of_the_cluster_are_not_readable() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.put(&key("secrets", "mine"), "u1", &json!({"data": {}}), &[]);
    cloud.put(&key("secrets", "another"), "u2", &json!({"data": {}}), &[]);
    let agent = with_services(folder.path(), &cloud).await;
    wait_until("the Secret", DEADLINE, async || agent.names("/api/v1/secrets").await == ["mine"]).await;
    for address in [agent.http, agent.wrapper] {
        for path in ["/api/v1/secrets", "/api/v1/secrets?watch=1", "/api/v1/namespaces/default/secrets/mine"]
        {
            let (code, status) = ask(address, path).await;
            assert!(matches!(code, 403 | 404), "{path}: {status}");
            assert_eq!(status["kind"], "Status", "{path}: {status}");
        }
    }
    // What is followed on request is followed in the order of the requests.
    let path = "/apis/coordination.k8s.io/v1/leases";
    wait_until("Leases, which are followed", DEADLINE, async || agent.get(path).await.0 == 200).await;
    assert_eq!(
        (cloud.opened("leases"), cloud.opened("secrets")),
        (1, 0),
        "Secrets of others are not followed"
    );
    agent.stop().await;
}

/// Sends a body of 10 GiB in chunks; returns the status code of the answer, and how many bytes were accepted.
async fn endless(stream: impl AsyncRead + AsyncWrite, request: &str) -> (String, usize) {
    let (mut reader, mut writer) = tokio::io::split(Box::pin(stream));
    let head = format!("{request}transfer-encoding: chunked\r\n\r\n");
    let chunk = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
    let mut taken = 0;
    let send = async {
        writer.write_all(head.as_bytes()).await?;
        for _ in 0..160 * 1024 {
            writer.write_all(&chunk).await?;
            taken += 0x10000;
        }
        io::Result::Ok(())
    };
    let mut first = [0; 12];
    let answer = async {
        reader.read_exact(&mut first).await.unwrap();
        // The rest is read, so that the connection is not reset before the answer has arrived.
        let _ = reader.read_to_end(&mut Vec::new()).await;
    };
    let ends = async { tokio::join!(send, answer).0 };
    let sent = tokio::time::timeout(DEADLINE, ends).await.expect("a client that keeps sending is cut off");
    assert!(sent.is_err(), "all 10 GiB were accepted");
    (String::from_utf8_lossy(&first[9..]).into_owned(), taken)
}

#[tokio::test]
async fn ten_gibibytes_are_refused_and_not_read() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let agent = with_services(folder.path(), &cloud).await;
    let request = "POST /api/v1/namespaces/default/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let stream = TcpStream::connect(agent.wrapper).await.unwrap();
    let (code, taken) = endless(stream, request).await;
    assert_eq!(code, "413", "the wrapper");
    assert!(taken < TAKEN_MAX, "{taken} bytes");

    let cluster = &agent.kubeconfig["clusters"][0]["cluster"];
    let ca = STANDARD.decode(cluster["certificate-authority-data"].as_str().unwrap()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&ca).unwrap()).unwrap();
    let provider = tombolo_link::tls::provider();
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = Arc::new(config.unwrap().with_root_certificates(roots).with_no_client_auth());
    let stream = TcpStream::connect(agent.https).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = tokio_rustls::TlsConnector::from(config).connect(name, stream).await.unwrap();
    let token = agent.kubeconfig["users"][0]["user"]["token"].as_str().unwrap();
    let (code, taken) = endless(stream, &format!("{request}authorization: Bearer {token}\r\n")).await;
    assert_eq!(code, "413", "the local API");
    assert!(taken < TAKEN_MAX, "{taken} bytes");
    assert_eq!(agent.names("/api/v1/services").await, ["web"], "others are served");
    fence(&agent, &cloud).await;
    let sent = cloud.calls().into_iter().find(|call| call.contains("default/events"));
    assert_eq!(sent, None, "no request was sent to the cloud");
    agent.stop().await;
}

#[tokio::test]
async fn idle_watches_of_the_local_api_are_bounded() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let agent = with_services(folder.path(), &cloud).await;
    let watch = async || {
        let mut stream = TcpStream::connect(agent.http).await.unwrap();
        stream.write_all(b"GET /api/v1/services?watch=1 HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        (String::from_utf8_lossy(&first[9..]).into_owned(), stream)
    };
    let mut idle = Vec::new();
    for number in 0..WATCHES_MAX {
        let (code, stream) = watch().await;
        assert_eq!(code, "200", "watch {number}");
        idle.push(stream);
    }
    assert_eq!(watch().await.0, "429");
    assert_eq!(ask(agent.http, "/api/v1/services").await.0, 200, "lists continue");
    assert_eq!(
        agent.names("/api/v1/services").await,
        ["web"],
        "clients with credentials have their own slots"
    );
    drop(idle);
    wait_until("the slots to be freed", DEADLINE, async || watch().await.0 == "200").await;
    agent.stop().await;
}

#[tokio::test]
async fn connections_of_the_local_api_are_bounded() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let agent = with_services(folder.path(), &cloud).await;
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        idle.push(TcpStream::connect(agent.http).await.unwrap());
    }
    let is_freed = Arc::new(AtomicBool::new(false));
    let next = tokio::spawn({
        let (address, is_freed) = (agent.http, Arc::clone(&is_freed));
        async move { (ask(address, "/api/v1/services").await.0, is_freed.load(Ordering::SeqCst)) }
    });
    for _ in 0..10 {
        assert_eq!(agent.names("/api/v1/services").await, ["web"], "another listener has its own slots");
    }
    is_freed.store(true, Ordering::SeqCst);
    drop(idle.pop());
    let answer = tokio::time::timeout(DEADLINE, next).await.expect("a slot was freed").unwrap();
    assert_eq!(answer, (200, true), "there was no slot for one more before");
    agent.stop().await;
}

#[tokio::test]
async fn bodies_that_do_not_end_are_bounded() {
    const LEN: usize = 2_900_000;
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let agent = with_services(folder.path(), &cloud).await;
    let body = vec![b' '; LEN];
    let begin = async || {
        let mut stream = TcpStream::connect(agent.wrapper).await.unwrap();
        let head = "POST /api/v1/namespaces/default/events HTTP/1.1\r\nhost: localhost\r\n\
                    content-type: application/json\r\ncontent-length: 3000000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server stops reading a body that it has refused meanwhile.
        let _ = stream.write_all(&body).await;
        stream
    };
    let mut waiting = Vec::new();
    for _ in 0..2 * BODIES_LEN_MAX / LEN {
        waiting.push(begin().await);
    }
    let waiting = parking_lot::Mutex::new(waiting);
    wait_until("refusals", DEADLINE, async || {
        let mut waiting = waiting.lock();
        waiting.retain(|stream| {
            let mut first = [0; 12];
            match stream.try_read(&mut first) {
                Ok(read) => assert_eq!(&first[9..read], b"429"),
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
            false
        });
        waiting.len() * LEN <= BODIES_LEN_MAX
    })
    .await;
    assert!(!waiting.lock().is_empty(), "some are received");
    assert_eq!(ask(agent.wrapper, "/api/v1/services").await.0, 200, "requests without a body are answered");
    drop(waiting);
    let post = async || {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        let path = "/api/v1/namespaces/default/events";
        fetch_plain(agent.wrapper, Method::POST, path, headers, &" ".repeat(LEN)).await.0
    };
    wait_until("room for another one", DEADLINE, async || post().await != StatusCode::TOO_MANY_REQUESTS)
        .await;
    agent.stop().await;
}

#[tokio::test]
async fn unsupported_connections_are_refused_permanently() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let agent = with_services(folder.path(), &cloud).await;
    for path in ["/api/v1/namespaces/default/services/web/proxy/", "/api/v1/nodes/edge-a/proxy"] {
        assert_eq!(ask(agent.http, path).await.0, 501, "{path}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn copies_for_unread_lists_are_bounded() {
    const SERVICES: usize = 8;
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let agent = with_services(folder.path(), &cloud).await;
    let pad = "x".repeat(96 * 1024);
    for number in 0..SERVICES {
        let rest = json!({"metadata": {"annotations": {"pad": pad}}, "spec": {"clusterIP": "10.0.0.2"}});
        cloud.put(&key("services", &format!("large{number}")), &format!("l{number}"), &rest, &[]);
    }
    wait_until("the Services", DEADLINE, async || agent.names("/api/v1/services").await.len() > SERVICES)
        .await;
    let stream = TokioIo::new(TcpStream::connect(agent.http).await.unwrap());
    let mut builder = http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) = builder.initial_stream_window_size(0).handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut unread = Vec::new();
    let code = loop {
        let request = Request::get(format!("http://{}/api/v1/services", agent.http));
        let answer = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
        let code = answer.status().as_u16();
        unread.push(answer);
        if code != 200 || unread.len() > 200 {
            break code;
        }
    };
    let list = SERVICES * pad.len();
    assert_eq!(code, 429, "{} lists of {list} bytes wait", unread.len());
    assert!((unread.len() - 1) * list <= ANSWERS_LEN_MAX, "{} lists of {list} bytes", unread.len());
    assert_eq!(
        agent.names("/api/v1/services").await.len(),
        SERVICES + 1,
        "another listener has bounds of its own"
    );
    drop(unread);
    connection.abort();
    wait_until("the bytes to be given back", DEADLINE, async || {
        ask(agent.http, "/api/v1/services").await.0 == 200
    })
    .await;
    agent.stop().await;
}
