//! Tests of cached answers, forwarding loops, greedy clients and private addresses.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tombolo_testkit::bind_both;

use super::metrics::QueryOutcome;
use super::*;

/// A server whose behaviour the test sets.
#[derive(Default)]
struct Manner {
    asked: AtomicUsize,
    silent: AtomicBool,
    fails: AtomicBool,
    /// The server that it forwards to instead of answering.
    asks: Mutex<Option<SocketAddr>>,
}

impl Manner {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// Answers with one address that is fresh for `ttl` seconds, and does not count queries for other types.
async fn server(ttl: u32) -> (SocketAddr, Arc<Manner>) {
    let manner = Arc::<Manner>::default();
    let (udp, _) = bind_both().unwrap();
    let udp = Arc::new(UdpSocket::from_std(udp).unwrap());
    let (here, told) = (udp.local_addr().unwrap(), Arc::clone(&manner));
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok((length, peer)) = udp.recv_from(&mut buffer).await {
            let packet = buffer[..length].to_vec();
            let asked = Message::from_vec(&packet).unwrap();
            if asked.queries[0].query_type() == RecordType::A {
                told.asked.fetch_add(1, Ordering::SeqCst);
            }
            let asks = *told.asks.lock();
            if let Some(other) = asks {
                let udp = Arc::clone(&udp);
                tokio::spawn(async move {
                    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
                    socket.send_to(&packet, other).await.unwrap();
                    let mut answer = [0; 4096];
                    if let Ok(length) = socket.recv(&mut answer).await {
                        udp.send_to(&answer[..length], peer).await.unwrap();
                    }
                });
                continue;
            }
            if told.silent.load(Ordering::SeqCst) {
                continue;
            }
            let mut reply = Message::response(asked.metadata.id, OpCode::Query);
            reply.add_query(asked.queries[0].clone());
            match told.fails.load(Ordering::SeqCst) {
                true => reply.metadata.response_code = ResponseCode::ServFail,
                false => {
                    let data = RData::A(A("192.0.2.1".parse().unwrap()));
                    reply.add_answer(Record::from_rdata(asked.queries[0].name().clone(), ttl, data));
                }
            }
            udp.send_to(&reply.to_vec().unwrap(), peer).await.unwrap();
        }
    });
    (here, manner)
}

#[tokio::test]
async fn concurrent_queries_share_one_upstream_answer() {
    let (other, manner) = server(300).await;
    let running = Running::with_cluster(&[other]).await;
    for name in ["www.example", "WWW.Example", "www.EXAMPLE"] {
        let answer = running.ask(name, RecordType::A).await;
        assert_eq!(addresses(&answer), ["192.0.2.1"], "{name}");
        assert!(answer.queries[0].name().eq_case(&Name::from_ascii(format!("{name}.")).unwrap()));
        assert!((290..=300).contains(&answer.answers[0].ttl), "{}", answer.answers[0].ttl);
    }
    assert_eq!(
        addresses(&running.ask_over_tcp(&question("www.example", RecordType::A)).await),
        ["192.0.2.1"]
    );
    assert_eq!(manner.asked(), 1);
    assert_eq!(running.metrics.counted(QueryOutcome::Cached), 3);
    running.ask("other.example", RecordType::A).await;
    assert_eq!(manner.asked(), 2);
}

#[tokio::test]
async fn stale_answers_are_served_without_a_second_wait() {
    let (other, manner) = server(1).await;
    let running = Running::with_cluster(&[other]).await;
    assert_eq!(addresses(&running.ask("www.example", RecordType::A).await), ["192.0.2.1"]);
    manner.silent.store(true, Ordering::SeqCst);
    let began = tokio::time::Instant::now();
    let stale = async || {
        let answer = running.ask("www.example", RecordType::A).await;
        assert_eq!(addresses(&answer), ["192.0.2.1"]);
        answer.answers[0].ttl == cache::STALE_TTL
    };
    while !stale().await {
        assert!(began.elapsed() < DEADLINE, "the answer never becomes stale");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // From now on no server is waited for.
    let began = tokio::time::Instant::now();
    for _ in 0..10 {
        assert!(stale().await);
    }
    assert!(began.elapsed() < Duration::from_millis(FORWARD_WITHIN), "{:?}", began.elapsed());
    assert!(running.metrics.counted(QueryOutcome::Stale) >= 11);
    let unknown = running.ask("never.example", RecordType::A).await;
    assert_eq!(unknown.metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test]
async fn servfail_counts_like_silence() {
    let (other, manner) = server(1).await;
    let running = Running::with_cluster(&[other]).await;
    let given = async || {
        let answer = running.ask("www.example", RecordType::A).await;
        assert_eq!(addresses(&answer), ["192.0.2.1"]);
        answer.answers[0].ttl
    };
    assert_eq!(given().await, 1);
    manner.fails.store(true, Ordering::SeqCst);
    let began = tokio::time::Instant::now();
    while given().await != cache::STALE_TTL {
        assert!(began.elapsed() < DEADLINE, "the answer never becomes stale");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    manner.fails.store(false, Ordering::SeqCst);
    assert_eq!(given().await, 1, "the server is queried each time");
}

#[tokio::test]
async fn upstream_server_that_loops_back_is_detected_and_skipped() {
    let (other, manner) = server(0).await;
    let running = Running::with_cluster(&[other]).await;
    assert_eq!(addresses(&running.ask("www.example", RecordType::A).await), ["192.0.2.1"]);
    let (looping, told) = server(0).await;
    *told.asks.lock() = Some("127.0.0.1:9".parse().unwrap());
    let running = Running::with_cluster(&[looping, other]).await;
    *told.asks.lock() = Some(running.address);
    // A suspected loop is probed at once, and the first probe may have come before the server knew where to forward.
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while running.metrics.counted(QueryOutcome::Looped) == 0 {
        assert!(tokio::time::Instant::now() < deadline, "the loop is not found");
        running.ask("www.example", RecordType::A).await;
    }
    // Queries in flight go round until they end.
    loop {
        let around = told.asked();
        let answer = running.ask("www.example", RecordType::A).await;
        if around == told.asked() && addresses(&answer) == ["192.0.2.1"] {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "it never ends");
    }
    let (around, straight) = (told.asked(), manner.asked());
    for _ in 0..5 {
        assert_eq!(addresses(&running.ask("www.example", RecordType::A).await), ["192.0.2.1"]);
    }
    assert_eq!((told.asked(), manner.asked()), (around, straight + 5), "only the other server is asked");
}

#[tokio::test]
async fn one_client_leaves_tcp_connections_for_others() {
    let running = Running::with_cluster(&[]).await;
    let from = async |source: &str| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{source}:0").parse().unwrap()).unwrap();
        socket.connect(running.address).await.unwrap()
    };
    let mut greedy = Vec::new();
    for _ in 0..2 * serve::CONNECTIONS_MAX {
        greedy.push(from("127.0.0.7").await);
    }
    let asked = question("web.shop.svc.cluster.local", RecordType::A).to_vec().unwrap();
    for source in ["127.0.0.8", "127.0.0.9"] {
        let mut stream = from(source).await;
        stream.write_u16(asked.len() as u16).await.unwrap();
        stream.write_all(&asked).await.unwrap();
        let length = tokio::time::timeout(DEADLINE, stream.read_u16()).await.expect("an answer").unwrap();
        let mut answer = vec![0; usize::from(length)];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(addresses(&Message::from_vec(&answer).unwrap()), ["10.96.0.1"], "{source}");
        // Connections are taken in the order in which they came.
        assert!(running.metrics.counted(QueryOutcome::Crowded) > 0);
    }
}

#[tokio::test]
async fn reverse_queries_for_private_addresses_are_not_forwarded() {
    let (other, manner) = server(60).await;
    let running = Running::with_cluster(&[other]).await;
    for (name, code) in [
        ("66.66.66.10.in-addr.arpa", ResponseCode::NXDomain),
        ("1.1.168.192.in-addr.arpa", ResponseCode::NXDomain),
        ("1.1.20.172.in-addr.arpa", ResponseCode::NXDomain),
        ("1.0.254.169.in-addr.arpa", ResponseCode::NXDomain),
        ("10.in-addr.arpa", ResponseCode::NoError),
        ("66.10.in-addr.arpa", ResponseCode::NoError),
        ("d.f.ip6.arpa", ResponseCode::NoError),
    ] {
        for record_type in [RecordType::PTR, RecordType::A, RecordType::TXT] {
            let answer = running.ask(name, record_type).await;
            assert_eq!(answer.metadata.response_code, code, "{name} {record_type}");
            let soa = answer.authorities.first().expect("a cacheable denial");
            assert!(answer.answers.is_empty() && soa.record_type() == RecordType::SOA, "{name}");
        }
    }
    assert_eq!(manner.asked(), 0, "nothing has left the node");
    // Reverse lookups of Services are answered, and public addresses are forwarded.
    let service = running.ask("1.0.96.10.in-addr.arpa", RecordType::PTR).await;
    assert_eq!(service.answers.len(), 1, "{service:?}");
    running.ask("8.8.8.8.in-addr.arpa", RecordType::A).await;
    assert_eq!(manner.asked(), 1);
}
