//! Packets that are not queries, and queries that are not answered.

use super::*;

#[tokio::test]
async fn invalid_queries_are_refused_with_their_code() {
    let running = Running::with_cluster(&[]).await;
    let code = async |message: &Message| {
        let answer = Message::from_vec(&running.send(&message.to_vec().unwrap()).await).unwrap();
        assert_eq!(answer.metadata.id, message.metadata.id);
        // Two response codes have the same number.
        u16::from(answer.metadata.response_code)
    };
    let is = |code: ResponseCode| u16::from(code);
    let good = || question("web.shop.svc.cluster.local", RecordType::A);
    let mut update = good();
    update.metadata.op_code = OpCode::Update;
    assert_eq!(code(&update).await, is(ResponseCode::NotImp));
    let mut two = good();
    two.add_query(two.queries[0].clone());
    assert_eq!(code(&two).await, is(ResponseCode::FormErr));
    let mut chaos = good();
    chaos.queries[0].set_query_class(hickory_proto::rr::DNSClass::CH);
    assert_eq!(code(&chaos).await, is(ResponseCode::Refused));
    let mut version = good();
    let mut edns = Edns::new();
    edns.set_version(1);
    version.set_edns(edns);
    assert_eq!(code(&version).await, is(ResponseCode::BADVERS));
    for record_type in [RecordType::AXFR, RecordType::IXFR] {
        assert_eq!(code(&question("cluster.local", record_type)).await, is(ResponseCode::Refused));
        assert_eq!(code(&question("example.org", record_type)).await, is(ResponseCode::Refused));
    }
    assert_eq!(
        code(&question("example.org", RecordType::A)).await,
        is(ResponseCode::Refused),
        "no upstream server"
    );
}

/// A query with these counts in its header, followed by these bytes.
fn packet(counts: [u8; 4], rest: &[u8]) -> Vec<u8> {
    let [questions, answers, authorities, additionals] = counts;
    let head = [7, 9, 1, 0, 0, questions, 0, answers, 0, authorities, 0, additionals];
    [&head, rest].concat()
}

#[tokio::test]
async fn names_that_never_end_are_malformed() {
    const TYPE_A: [u8; 4] = [0, 1, 0, 1];
    let running = Running::with_cluster(&[]).await;
    let good = &question("web.shop.svc.cluster.local", RecordType::A).to_vec().unwrap()[12..];
    let pointers = |targets: &[u8]| targets.iter().flat_map(|at| [0xc0, *at]).collect::<Vec<u8>>();
    for (what, malformed) in [
        ("points at itself", packet([1, 0, 0, 0], &[&[0xc0, 12][..], &TYPE_A].concat())),
        ("points ahead", packet([1, 0, 0, 0], &[&[0xc0, 18][..], &TYPE_A, &[1, b'a', 0]].concat())),
        ("two point at each other", packet([1, 0, 0, 0], &[&pointers(&[14, 12])[..], &TYPE_A].concat())),
        ("a label before a loop", packet([1, 0, 0, 0], &[&[1, b'a', 0xc0, 12][..], &TYPE_A].concat())),
        ("points beyond the end", packet([1, 0, 0, 0], &[&[0xff, 0xff][..], &TYPE_A].concat())),
        (
            "the owner of a record points at itself",
            packet(
                [1, 0, 0, 1],
                &[good, &[0xc0, 12 + good.len() as u8, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 192, 0, 2, 1]].concat(),
            ),
        ),
        (
            "longer than a name",
            packet([1, 0, 0, 0], &[&[&[63][..], &[b'a'; 63]].concat().repeat(5)[..], &[0], &TYPE_A].concat()),
        ),
    ] {
        let reply = Message::from_vec(&running.send(&malformed).await).unwrap();
        assert_eq!(
            (reply.metadata.response_code, reply.metadata.id),
            (ResponseCode::FormErr, 0x0709),
            "{what}"
        );
        assert!(reply.queries.is_empty(), "{what}: the question is not repeated");
    }
    assert_eq!(addresses(&running.ask("web.shop.svc.cluster.local", RecordType::A).await), ["10.96.0.1"]);
}

#[tokio::test]
async fn answers_and_fragments_are_not_answered() {
    let running = Running::with_cluster(&[]).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(running.address).await.unwrap();
    let mut reply = question("web.shop.svc.cluster.local", RecordType::A);
    reply.metadata.message_type = MessageType::Response;
    socket.send(&reply.to_vec().unwrap()).await.unwrap();
    socket.send(&[1, 2, 3]).await.unwrap();
    socket.send(&[]).await.unwrap();
    // Only the valid query is answered.
    let last = question("web.shop.svc.cluster.local", RecordType::A);
    socket.send(&last.to_vec().unwrap()).await.unwrap();
    let mut buffer = [0; 512];
    let length = tokio::time::timeout(DEADLINE, socket.recv(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(Message::from_vec(&buffer[..length]).unwrap().metadata.id, last.metadata.id);
}

#[tokio::test]
async fn any_query_gets_a_minimal_answer() {
    let running = Running::with_cluster(&[]).await;
    for name in ["many.shop.svc.cluster.local", "example.org"] {
        let packet = question(name, RecordType::ANY).to_vec().unwrap();
        let answer = running.send(&packet).await;
        assert!(answer.len() < 4 * packet.len(), "{name}: {} bytes for {}", answer.len(), packet.len());
    }
}

#[tokio::test]
async fn idle_and_greedy_connections_are_bounded() {
    let running = Running::with_cluster(&[]).await;
    let mut idle = Vec::new();
    for _ in 0..serve::CONNECTIONS_MAX {
        idle.push(TcpStream::connect(running.address).await.unwrap());
    }
    // A further connection is closed; datagrams are answered meanwhile.
    let mut more = TcpStream::connect(running.address).await.unwrap();
    let closed = tokio::time::timeout(DEADLINE, more.read(&mut [0; 1])).await.expect("it is closed");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    assert_eq!(addresses(&running.ask("web.shop.svc.cluster.local", RecordType::A).await), ["10.96.0.1"]);
    // A query that is too long ends its connection.
    let mut greedy = idle.remove(0);
    greedy.write_u16(u16::MAX).await.unwrap();
    let closed = tokio::time::timeout(DEADLINE, greedy.read(&mut [0; 1])).await.expect("it is closed");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    let whole = question("web.shop.svc.cluster.local", RecordType::A);
    assert_eq!(addresses(&running.ask_over_tcp(&whole).await), ["10.96.0.1"]);
}

const LOCAL: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn server() -> serve::Server {
    let settings = DnsConfig { upstreams: Some(Vec::new()), ..DnsConfig::default() };
    let own: SocketAddr = "127.0.0.1:53".parse().unwrap();
    serve::Server {
        authority: Authority::new("cluster.local", std::net::Ipv4Addr::LOCALHOST.into()),
        known: Arc::default(),
        forwarder: Forwarder::new(Upstreams::new(&settings, own), DEADLINE),
        metrics: DnsMetrics::register(&mut Default::default()),
        clients: Clients::new(machine(), own.ip(), Vec::new()),
    }
}

#[test]
fn queries_from_other_networks_get_no_answer() {
    let (server, packet) = (server(), question("cluster.local", RecordType::SOA).to_vec().unwrap());
    for transport in [message::DnsTransport::Udp, message::DnsTransport::Tcp] {
        for stranger in ["192.0.2.66", "10.0.0.1", "2001:db8::66"] {
            let step = server.step(&packet, transport, stranger.parse().unwrap());
            assert!(matches!(step, serve::Step::Nothing), "{stranger}");
        }
        assert!(matches!(server.step(&packet, transport, LOCAL), serve::Step::Send(_)));
    }
    assert_eq!(server.metrics.counted(metrics::QueryOutcome::Foreign), 6);
}

#[tokio::test]
async fn refusals_are_counted_by_their_reason() {
    use metrics::QueryOutcome;

    let running = Running::with_cluster(&[]).await;
    let whole = question("www.example", RecordType::A).to_vec().unwrap();
    let mut update = whole.clone();
    update[2] |= 5 << 3;
    running.send(&update).await;
    running.ask("cluster.local", RecordType::AXFR).await;
    running.send(&whole).await;
    let told = [QueryOutcome::Malformed, QueryOutcome::Refused, QueryOutcome::Nobody]
        .map(|outcome| running.metrics.counted(outcome));
    assert_eq!(told, [1, 1, 1]);
}

proptest! {
    /// No packet causes more than one answer, a large answer, or a panic.
    #[test]
    fn garbage_is_refused_or_dropped(packet in prop::collection::vec(any::<u8>(), 0..600)) {
        if let serve::Step::Send(answer) = server().step(&packet, message::DnsTransport::Udp, LOCAL) {
            prop_assert!(answer.len() <= usize::from(message::UDP_PAYLOAD_MAX));
            prop_assert_eq!(&answer[..2], &packet[..2]);
            prop_assert!(answer[2] & 0x80 != 0);
        }
    }

    /// The same for a query with changed bytes.
    #[test]
    fn damaged_questions_are_answered_or_refused(
        at in prop::collection::vec((0usize..44, any::<u8>()), 1..6),
    ) {
        let mut packet = question("web.shop.svc.cluster.local", RecordType::A).to_vec().unwrap();
        for (index, byte) in at {
            let index = index % packet.len();
            packet[index] = byte;
        }
        if let serve::Step::Send(answer) = server().step(&packet, message::DnsTransport::Udp, LOCAL) {
            prop_assert!(answer.len() <= 512 + packet.len());
        }
    }
}
