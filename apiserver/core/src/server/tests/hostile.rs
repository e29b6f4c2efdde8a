//! Clients that occupy connections: half handshakes, heads sent byte by byte, windows that never open, from one or many
//! sources.

use std::net::{IpAddr, Ipv4Addr};

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio::net::TcpSocket;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as ClientStream;

use super::shares::{ask_on, shared, shared_behind};
use super::*;
use crate::connection_slots::ConnectionSlots;
use crate::senders::Source;

/// The beginning of a TLS record with a ClientHello.
const HALF_HELLO: &[u8] = &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];

/// The HTTP/2 preface, including the settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// An unfinished HTTP/2 head: `:method: GET` without the END_HEADERS flag.
const HALF_HEAD: &[u8] = b"\0\0\x01\x01\0\0\0\0\x01\x82";

/// More of the head: one indexed field, again without an end.
const MORE_HEAD: &[u8] = b"\0\0\x01\x09\0\0\0\0\x01\x86";

struct Tls {
    server: Arc<rustls::ServerConfig>,
    client: TlsConnector,
}

fn tls() -> Tls {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
    let certificate = own.cert.der().clone();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
    let server = server.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate.clone()], key).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider);
    let client = client.with_safe_default_protocol_versions().unwrap();
    let client = client.with_root_certificates(roots).with_no_client_auth();
    Tls { server: Arc::new(server), client: TlsConnector::from(Arc::new(client)) }
}

/// How long the server keeps a connection on which the client sends first one text and then another repeatedly.
async fn kept(address: SocketAddr, first: &[u8], then: &'static [u8], every: Duration) -> Duration {
    let mut stream = connected(address).await;
    stream.write_all(first).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let talking = tokio::spawn(async move {
        for byte in then.chunks(if then == MORE_HEAD { then.len() } else { 1 }).cycle() {
            sleep(every).await;
            if write.write_all(byte).await.is_err() {
                return;
            }
        }
    });
    let (began, mut rest) = (Instant::now(), Vec::new());
    let _ = timeout(4 * HEADER_TIMEOUT, read.read_to_end(&mut rest)).await.expect("the server closes");
    talking.abort();
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn unfinished_handshakes_and_request_heads_are_closed() {
    let second = Duration::from_secs(1);
    let (address, _stop) = start_behind(1, Some(tls().server)).await;
    for (first, every) in [(HALF_HELLO, second), (HALF_HELLO, 3 * HANDSHAKE_TIMEOUT), (&[0x16][..], second)] {
        let took = kept(address, first, &[0], every).await;
        assert!(took <= HANDSHAKE_TIMEOUT + MARGIN, "{first:?} every {every:?} kept a slot for {took:?}");
    }
    let (address, _stop) = start().await;
    for (first, then, limit) in [
        (&b"GET /version HTTP/1.1\r\nhost: a\r\nx: "[..], &b"x"[..], HEADER_TIMEOUT),
        (b"PRI * HTTP/2.0\r", b"\n", FIRST_REQUEST_MAX),
        // The connection is asked to end first.
        (&[PREFACE, HALF_HEAD].concat(), MORE_HEAD, 2 * FIRST_REQUEST_MAX),
    ] {
        let took = kept(address, first, then, 5 * second).await;
        assert!(took <= limit + MARGIN, "{then:?} kept a slot for {took:?}");
    }
}

/// A connection from one of the addresses of this host.
async fn from(source: u8, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, source), 0).into()).unwrap();
    socket.connect(address).await.unwrap()
}

async fn known(tls: &Tls, address: SocketAddr) -> ClientStream<TcpStream> {
    let stream = TcpStream::connect(address).await.unwrap();
    tls.client.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
}

/// A quarter of 64 slots is for unproven connections.
#[tokio::test]
async fn half_open_handshakes_from_many_sources_lock_nobody_out() {
    let tls = tls();
    let server = shared_behind(64, Some(Arc::clone(&tls.server))).await;
    let mut early = known(&tls, server.address).await;
    assert_eq!(ask_on(&mut early, "bob").await, "200");
    let mut held = Vec::new();
    for source in (2..34).cycle().take(192) {
        let mut stream = from(source, server.address).await;
        // The slot may already belong to another connection.
        let _ = stream.write_all(HALF_HELLO).await;
        held.push(stream);
    }
    tombolo_testkit::wait_for("the places of strangers to be full", Duration::from_secs(30), || async {
        let now = (server.activity)();
        // This must hold at any time: surplus connections would also end by themselves when their handshakes time out.
        assert!(now.unproven <= 16, "{now:?}");
        (now.ended > 64).then_some(()).ok_or_else(|| format!("{now:?}"))
    })
    .await;
    assert_eq!(ask_on(&mut early, "bob").await, "200", "an authenticated client keeps the connection");
    for user in ["admin", "eve"] {
        let mut late = known(&tls, server.address).await;
        assert_eq!(ask_on(&mut late, user).await, "200", "{user}");
    }
}

#[tokio::test]
async fn oldest_of_many_sources_makes_room() {
    let store = MemoryStore::new(MemoryStore::START, LogLimits::default());
    let api = ApiServer::builder(Arc::new(store), Registry::new(Kinds::builtin())).shared_out().build();
    let source = |number: u8| Source::of(Some(IpAddr::from([10, 0, 0, number])));
    for _ in 0..4 {
        let slots = ConnectionSlots::new(64, api.counts());
        let early: Vec<_> = (0..15).map(|number| slots.enter(source(number))).collect();
        let newcomer = slots.enter(source(100));
        let late: Vec<_> = (200..215).map(|number| slots.enter(source(number))).collect();
        assert!(early.iter().all(|slot| slot.end.is_cancelled()));
        assert!(!newcomer.end.is_cancelled() && late.iter().all(|slot| !slot.end.is_cancelled()));
        let _next = slots.enter(source(220));
        assert!(newcomer.end.is_cancelled(), "its time has come");
    }
}

/// An answer to an unauthenticated client is small and counts for no sender.
#[tokio::test(start_paused = true)]
async fn unread_refusal_closes_its_connection() {
    let server = shared(64).await;
    for (user, code) in [("nobody", 401), ("", 200)] {
        let (mut sender, connection) = windowed(server.address, 0).await;
        let mut request = Request::get(format!("http://{}/version", server.address));
        if !user.is_empty() {
            request = request.header("user", user);
        }
        let answer = sender.send_request(request.body(Empty::new()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), code);
        assert_eq!((server.activity)().requests, 0, "it occupies no request slot");
        let began = Instant::now();
        timeout(4 * ANSWER_STALL_MAX, connection).await.expect("the connection is ended").unwrap();
        assert!(began.elapsed() <= 2 * ANSWER_STALL_MAX + MARGIN, "{:?}", began.elapsed());
    }
}
