//! Queries for names outside the cluster domain.

use tombolo_testkit::bind_both;

use super::*;

/// How an upstream server of a test answers.
#[derive(Clone, Copy)]
enum Manner {
    Answers,
    IsSilent,
    /// Truncates every answer over UDP.
    Truncates,
    /// First sends answers that do not match the query.
    Misleads,
    /// Repeats its record 200 times.
    Floods,
    /// Sends records whose owner is a name that never ends.
    Loops,
}

/// A server that answers every query with one address; returns where it listens.
async fn server(manner: Manner, address: &'static str) -> SocketAddr {
    let (udp, tcp) = bind_both().unwrap();
    let (udp, tcp) = (UdpSocket::from_std(udp).unwrap(), TcpListener::from_std(tcp).unwrap());
    let here = tcp.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok((length, peer)) = udp.recv_from(&mut buffer).await {
            let asked = Message::from_vec(&buffer[..length]).unwrap();
            let answers: Vec<Message> = match manner {
                Manner::Answers | Manner::Loops => vec![reply(&asked, address)],
                Manner::Floods => {
                    let mut long = reply(&asked, address);
                    long.answers = vec![long.answers[0].clone(); 200];
                    vec![long]
                }
                Manner::IsSilent => Vec::new(),
                Manner::Truncates => {
                    let mut cut = reply(&asked, address);
                    cut.answers.clear();
                    cut.metadata.truncation = true;
                    vec![cut]
                }
                Manner::Misleads => {
                    let mut other = reply(&asked, "192.0.2.66");
                    other.metadata.id = other.metadata.id.wrapping_add(1);
                    let mut wrong = reply(&question("other.example", RecordType::A), "192.0.2.66");
                    wrong.metadata.id = asked.metadata.id;
                    let mut nameless = reply(&asked, "192.0.2.66");
                    nameless.queries.clear();
                    vec![other, wrong, nameless, reply(&asked, address)]
                }
            };
            for answer in answers {
                let mut packet = answer.to_vec().unwrap();
                if matches!(manner, Manner::Loops) {
                    // The owner of the only record is a pointer to the question, right behind that.
                    let owner = asked.to_vec().unwrap().len() - edns_len(&asked);
                    packet[owner..owner + 2].copy_from_slice(&[0xc0, owner as u8]);
                }
                udp.send_to(&packet, peer).await.unwrap();
            }
        }
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = tcp.accept().await {
            let Ok(length) = stream.read_u16().await else { continue };
            let mut packet = vec![0; usize::from(length)];
            stream.read_exact(&mut packet).await.unwrap();
            let answer = reply(&Message::from_vec(&packet).unwrap(), address).to_vec().unwrap();
            stream.write_u16(answer.len() as u16).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
    });
    here
}

/// Length of the OPT record.
fn edns_len(asked: &Message) -> usize {
    if asked.edns.is_some() { 11 } else { 0 }
}

fn reply(asked: &Message, address: &str) -> Message {
    let mut reply = Message::response(asked.metadata.id, OpCode::Query);
    reply.metadata.recursion_available = true;
    reply.add_query(asked.queries[0].clone());
    let data = RData::A(A(address.parse().unwrap()));
    reply.add_answer(Record::from_rdata(asked.queries[0].name().clone(), 77, data));
    reply
}

#[tokio::test]
async fn external_names_are_forwarded() {
    let other = server(Manner::Answers, "192.0.2.1").await;
    let running = Running::with_cluster(&[other]).await;
    let asked = question("www.example", RecordType::A);
    let answer = Message::from_vec(&running.send(&asked.to_vec().unwrap()).await).unwrap();
    assert_eq!((addresses(&answer), answer.metadata.id), (vec!["192.0.2.1".to_owned()], asked.metadata.id));
    assert_eq!(answer.answers[0].ttl, 77);
    assert!(answer.metadata.recursion_available && !answer.metadata.authoritative);
    assert_eq!(addresses(&running.ask_over_tcp(&asked).await), ["192.0.2.1"]);
    // Names of the cluster domain never leave the node.
    let denied = running.ask("www.example.shop.svc.cluster.local", RecordType::A).await;
    assert_eq!(denied.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(denied.authorities.len(), 1);
}

#[tokio::test]
async fn alias_includes_its_target_records() {
    let other = server(Manner::Answers, "192.0.2.1").await;
    let running = Running::with_cluster(&[other]).await;
    running.until_code("out.shop.svc.cluster.local", ResponseCode::NoError).await;
    let answer = running.ask("out.shop.svc.cluster.local", RecordType::A).await;
    assert_eq!(answer.answers[0].record_type(), RecordType::CNAME);
    assert_eq!(addresses(&answer), ["192.0.2.1"]);
    let alone = Running::with_cluster(&[]).await;
    alone.until_code("out.shop.svc.cluster.local", ResponseCode::NoError).await;
    let answer = alone.ask("out.shop.svc.cluster.local", RecordType::A).await;
    assert_eq!(answer.answers.len(), 1, "the alias alone: {answer:?}");
}

#[tokio::test]
async fn next_server_is_asked_when_one_does_not_answer() {
    let silent = server(Manner::IsSilent, "192.0.2.1").await;
    let other = server(Manner::Answers, "192.0.2.2").await;
    let running = Running::with_cluster(&[silent, other]).await;
    assert_eq!(addresses(&running.ask("www.example", RecordType::A).await), ["192.0.2.2"]);
    // From then on it is tried first.
    let began = tokio::time::Instant::now();
    for _ in 0..10 {
        assert_eq!(addresses(&running.ask("www.example", RecordType::A).await), ["192.0.2.2"]);
    }
    assert!(
        began.elapsed() < Duration::from_millis(FORWARD_WITHIN) * 10,
        "each of them waited for the silent one"
    );
    let nobody = Running::with_cluster(&[silent]).await;
    let answer = nobody.ask("www.example", RecordType::A).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test]
async fn answers_to_other_queries_are_ignored() {
    let other = server(Manner::Misleads, "192.0.2.1").await;
    let running = Running::with_cluster(&[other]).await;
    assert_eq!(addresses(&running.ask("www.example", RecordType::A).await), ["192.0.2.1"]);
}

#[tokio::test]
async fn truncated_answer_is_retried_over_tcp() {
    let other = server(Manner::Truncates, "192.0.2.1").await;
    let running = Running::with_cluster(&[other]).await;
    let asked = question("www.example", RecordType::A);
    let cut = Message::from_vec(&running.send(&asked.to_vec().unwrap()).await).unwrap();
    assert!(cut.metadata.truncation, "the truncation bit is set");
    assert_eq!(addresses(&running.ask_over_tcp(&asked).await), ["192.0.2.1"]);
    // The truncated answer makes this server follow the alias over TCP.
    running.until_code("out.shop.svc.cluster.local", ResponseCode::NoError).await;
    assert_eq!(addresses(&running.ask("out.shop.svc.cluster.local", RecordType::A).await), ["192.0.2.1"]);
}

#[tokio::test]
async fn queries_beyond_the_bound_fail_at_once() {
    let silent = server(Manner::IsSilent, "192.0.2.1").await;
    let store = MemoryStore::new(Revision(1), LogLimits::default());
    let running = Running::on(Arc::new(store.clone()), store, &[silent], 10_000).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(running.address).await.unwrap();
    let began = tokio::time::Instant::now();
    for number in 0..=forward::FORWARDS_MAX {
        let packet = question(&format!("n{number}.example"), RecordType::A).to_vec().unwrap();
        socket.send(&packet).await.unwrap();
        // Datagrams are lost when they come faster than they are read.
        if number % 32 == 31 {
            running.ask("cluster.local", RecordType::SOA).await;
        }
    }
    let mut buffer = [0; 512];
    let length = tokio::time::timeout(DEADLINE, socket.recv(&mut buffer)).await.unwrap().unwrap();
    let answer = Message::from_vec(&buffer[..length]).unwrap();
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    assert!(began.elapsed() < Duration::from_secs(10), "it waited for the silent server");
    assert!(running.metrics.counted(metrics::QueryOutcome::Busy) > 0);
}

#[tokio::test]
async fn answers_of_other_servers_are_bounded_and_cannot_loop() {
    let floods = server(Manner::Floods, "192.0.2.1").await;
    let running = Running::with_cluster(&[floods]).await;
    let plain = question("www.example", RecordType::A);
    let mut greedy = plain.clone();
    let mut edns = Edns::new();
    edns.set_max_payload(u16::MAX);
    greedy.set_edns(edns);
    for (asked, most) in [(&plain, 512), (&greedy, usize::from(message::UDP_PAYLOAD_MAX))] {
        let answer = running.send(&asked.to_vec().unwrap()).await;
        assert!(answer.len() <= most, "{} bytes", answer.len());
        assert!(Message::from_vec(&answer).unwrap().metadata.truncation, "the truncation bit is set");
    }
    let loops = server(Manner::Loops, "192.0.2.1").await;
    let running = Running::with_cluster(&[loops]).await;
    running.until_code("out.shop.svc.cluster.local", ResponseCode::NoError).await;
    let answer = running.ask("out.shop.svc.cluster.local", RecordType::A).await;
    assert_eq!(answer.answers.len(), 1, "the alias alone: {answer:?}");
}
