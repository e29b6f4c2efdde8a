//! One client's queries must not affect the choice of servers or the answers to other clients.

use std::collections::HashSet;
use std::net::IpAddr;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::forward::{Failure, Forwarder};
use super::message::{DnsTransport, Packet, Question, read};
use super::metrics::QueryOutcome;
use super::wire::Exchange;
use super::*;

const PATIENCE: Duration = Duration::from_secs(2);

/// Servers without sockets, which answer at once or never.
#[derive(Debug, Default)]
struct Servers {
    /// Names that the first server never answers, and the second one answers with SERVFAIL.
    slow: Mutex<HashSet<String>>,
    away: Mutex<HashSet<SocketAddr>>,
    /// Names that only the first server never answers.
    deaf: Mutex<HashSet<String>>,
    /// The server that last received a client query.
    asked_last: Mutex<Option<SocketAddr>>,
}

#[derive(Debug, Clone, Default)]
struct Fake(Arc<Servers>);

impl Exchange for Fake {
    fn exchange<'a>(
        &'a self,
        server: SocketAddr,
        packet: &'a [u8],
        question: &'a Question,
        _: DnsTransport,
    ) -> BoxFuture<'a, std::io::Result<Vec<u8>>> {
        let name = question.query.name().to_ascii();
        if question.record_type() == RecordType::A {
            *self.0.asked_last.lock() = Some(server);
        }
        // The second server answers slow names with SERVFAIL.
        let gave_up = self.0.slow.lock().contains(&name);
        let is_deaf = self.0.deaf.lock().contains(&name);
        if self.0.away.lock().contains(&server) || ((gave_up || is_deaf) && server == FIRST) {
            return futures::future::pending().boxed();
        }
        let asked = Message::from_vec(packet).unwrap();
        let mut reply = Message::response(asked.metadata.id, OpCode::Query);
        reply.add_query(asked.queries[0].clone());
        let data = RData::A(A([192, 0, 2, 1].into()));
        reply.add_answer(Record::from_rdata(asked.queries[0].name().clone(), 1, data));
        if gave_up {
            reply = question.reply(ResponseCode::ServFail);
        }
        std::future::ready(Ok(reply.to_vec().unwrap())).boxed()
    }
}

const FIRST: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 53)), 53);
const SECOND: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 54)), 53);

fn forwarder(servers: &[SocketAddr]) -> (Arc<Forwarder>, Fake) {
    let settings = DnsConfig {
        upstreams: Some(servers.iter().copied().map(Upstream).collect()),
        ..DnsConfig::default()
    };
    let (fake, own) = (Fake::default(), "192.0.2.1:53".parse().unwrap());
    let forwarder = Forwarder::over(Box::new(fake.clone()), Upstreams::new(&settings, own), PATIENCE);
    (Arc::new(forwarder), fake)
}

/// The answer to a client, and how long it took.
async fn ask(forwarder: &Forwarder, client: u8, name: &str) -> (Result<QueryOutcome, Failure>, Duration) {
    let packet = question(name, RecordType::A).to_vec().unwrap();
    let Packet::Question(question) = read(&packet) else { panic!("no question") };
    let began = tokio::time::Instant::now();
    let answer = forwarder.ask(&packet, &question, DnsTransport::Udp, [10, 0, 0, client].into()).await;
    (answer.map(|(_, outcome)| outcome), began.elapsed())
}

const AT_ONCE: Duration = Duration::ZERO;

#[tokio::test(start_paused = true)]
async fn unanswered_name_makes_no_other_answer_stale() {
    let (forwarder, fake) = forwarder(&[FIRST]);
    for name in ["honest.example", "slow.example"] {
        assert_eq!(ask(&forwarder, 1, name).await, (Ok(QueryOutcome::Forwarded), AT_ONCE));
    }
    tokio::time::advance(Duration::from_secs(2)).await;
    fake.0.slow.lock().extend(["slow.example.".to_owned(), "new.example.".to_owned()]);
    assert_eq!(ask(&forwarder, 2, "new.example").await, (Err(Failure::NoAnswer), PATIENCE));
    let (told, waited) = ask(&forwarder, 2, "slow.example").await;
    assert_eq!((told, waited > AT_ONCE), (Ok(QueryOutcome::Stale), true));
    // The failure is remembered for this name and does not affect others.
    assert_eq!(ask(&forwarder, 1, "slow.example").await, (Ok(QueryOutcome::Stale), AT_ONCE));
    assert_eq!(ask(&forwarder, 1, "honest.example").await, (Ok(QueryOutcome::Forwarded), AT_ONCE));
    // The query is repeated later.
    tokio::time::advance(cache::RECHECK).await;
    fake.0.slow.lock().clear();
    assert_eq!(ask(&forwarder, 1, "slow.example").await, (Ok(QueryOutcome::Forwarded), AT_ONCE));
}

/// The first server does not answer a name; the second one does.
#[tokio::test(start_paused = true)]
async fn stale_answer_does_not_prevent_the_second_server() {
    let (forwarder, fake) = forwarder(&[FIRST, SECOND]);
    assert_eq!(ask(&forwarder, 1, "zone.example").await, (Ok(QueryOutcome::Forwarded), AT_ONCE));
    fake.0.deaf.lock().insert("zone.example.".to_owned());
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(2)).await;
        let (told, waited) = ask(&forwarder, 1, "zone.example").await;
        assert!(told == Ok(QueryOutcome::Forwarded) && waited < PATIENCE, "{told:?} after {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn clients_cannot_decide_that_a_server_is_unreachable() {
    let (forwarder, fake) = forwarder(&[FIRST, SECOND]);
    let watching = Arc::clone(&forwarder);
    let _watch = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        watching.watch_servers().await;
    }));
    for number in 0..20 {
        let name = format!("slow{number}.example");
        fake.0.slow.lock().insert(format!("{name}."));
        assert_eq!(ask(&forwarder, 2, &name).await, (Ok(QueryOutcome::Forwarded), PATIENCE));
        assert_eq!(ask(&forwarder, 1, &format!("n{number}.example")).await.1, AT_ONCE);
        assert_eq!(*fake.0.asked_last.lock(), Some(FIRST), "the first server is up and stays the first");
    }
    // A server that is down is detected, and clients do not wait for it.
    fake.0.away.lock().insert(FIRST);
    assert_eq!(ask(&forwarder, 1, "a.example").await, (Ok(QueryOutcome::Forwarded), PATIENCE));
    tokio::time::sleep(loops::PROBE_PAUSE + PATIENCE).await;
    assert_eq!(ask(&forwarder, 1, "b.example").await, (Ok(QueryOutcome::Forwarded), AT_ONCE));
    assert_eq!(*fake.0.asked_last.lock(), Some(SECOND));
    // A server that is back is detected as well.
    fake.0.away.lock().clear();
    tokio::time::sleep(loops::PROBE_PAUSE * 2).await;
    assert_eq!(ask(&forwarder, 1, "c.example").await, (Ok(QueryOutcome::Forwarded), AT_ONCE));
    assert_eq!(*fake.0.asked_last.lock(), Some(FIRST));
}
