//! Tests of the server over its sockets, with valid and invalid packets.

use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tombolo_apicore::history::{ChangeStream, LogLimits};
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::store::{Expect, Mutation, Revision, Snapshot, StoreError, Stored, Write, WriteStore};
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};

use super::*;
use crate::config::Upstream;

mod forwarded_answers;
mod forwarding;
mod judged;
mod packets;

const DEADLINE: Duration = Duration::from_secs(20);

/// Timeout of an upstream server in tests, in milliseconds.
const FORWARD_WITHIN: u64 = 2_000;

struct Running {
    address: SocketAddr,
    store: MemoryStore,
    _names: watch::Sender<Option<Arc<Hosts>>>,
    metrics: Arc<DnsMetrics>,
    _stop: tokio_util::sync::DropGuard,
}

impl Running {
    async fn start(upstreams: &[SocketAddr]) -> Self {
        let store = MemoryStore::new(Revision(1), LogLimits::default());
        Self::on(Arc::new(store.clone()), store, upstreams, FORWARD_WITHIN).await
    }

    /// A server with a source that may be another one than the store that a test changes.
    async fn on(source: Arc<dyn Store>, store: MemoryStore, upstreams: &[SocketAddr], timeout: u64) -> Self {
        let settings = DnsConfig {
            address: Some("127.0.0.1:0".parse().unwrap()),
            upstreams: Some(upstreams.iter().copied().map(Upstream).collect()),
            forward_timeout_millis: timeout,
            ..DnsConfig::default()
        };
        let dns = Dns::bind(&settings).await.unwrap().unwrap();
        let (address, stop) = (dns.local_addr(), CancellationToken::new());
        let (names, told) = watch::channel(Some(Arc::new(Hosts::new("cluster.local"))));
        let metrics = DnsMetrics::register(&mut Default::default());
        let parts = DnsParts { source, names: told, machine: machine() };
        dns.spawn(&Tasks::new(), parts, Arc::clone(&metrics), &stop);
        Self { address, store, _names: names, metrics, _stop: stop.drop_guard() }
    }

    async fn with_cluster(upstreams: &[SocketAddr]) -> Self {
        let running = Self::start(upstreams).await;
        running.put("", "namespaces", "", "shop", json!({})).await;
        running
            .service(
                "web",
                json!({"clusterIP": "10.96.0.1", "ports": [{"name": "http", "protocol": "TCP", "port": 80}]}),
            )
            .await;
        running.service("many", json!({"clusterIP": "None"})).await;
        let many: Vec<Value> = (1..=200).map(|n| json!({"addresses": [format!("10.0.1.{n}")]})).collect();
        running.slice("many", &many).await;
        running.service("out", json!({"type": "ExternalName", "externalName": "one.example"})).await;
        running.until_code("web.shop.svc.cluster.local", ResponseCode::NoError).await;
        running.until_code("many.shop.svc.cluster.local", ResponseCode::NoError).await;
        running
    }

    async fn put(&self, group: &str, plural: &str, namespace: &str, name: &str, mut object: Value) {
        object["metadata"]["name"] = name.into();
        object["metadata"]["namespace"] = namespace.into();
        let key = ObjectKey::new(Resource::new(group, "v1", plural), namespace, name);
        let write = Write::Put { uid: Uid::parse(name).unwrap(), body: object.to_string().into() };
        self.store.commit(Mutation { key, expected: Expect::Any, write }).await.unwrap();
    }

    async fn service(&self, name: &str, spec: Value) {
        self.put("", "services", "shop", name, json!({"spec": spec})).await;
    }

    async fn slice(&self, service: &str, endpoints: &[Value]) {
        let labels = json!({"kubernetes.io/service-name": service});
        let object = json!({"metadata": {"labels": labels}, "endpoints": endpoints});
        self.put("discovery.k8s.io", "endpointslices", "shop", service, object).await;
    }

    async fn until_code(&self, name: &str, code: ResponseCode) {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            let answer = self.ask(name, RecordType::A).await;
            if answer.metadata.response_code == code {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{name}: {answer:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn ask(&self, name: &str, record_type: RecordType) -> Message {
        Message::from_vec(&self.send(&question(name, record_type).to_vec().unwrap()).await).unwrap()
    }

    /// Sends a datagram and returns the next one received.
    async fn send(&self, packet: &[u8]) -> Vec<u8> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(self.address).await.unwrap();
        socket.send(packet).await.unwrap();
        let mut buffer = vec![0; 65536];
        let length =
            tokio::time::timeout(DEADLINE, socket.recv(&mut buffer)).await.expect("an answer").unwrap();
        buffer.truncate(length);
        buffer
    }

    async fn ask_over_tcp(&self, message: &Message) -> Message {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let packet = message.to_vec().unwrap();
        stream.write_u16(packet.len() as u16).await.unwrap();
        stream.write_all(&packet).await.unwrap();
        let mut answer = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut answer).await.unwrap();
        Message::from_vec(&answer).unwrap()
    }
}

fn machine() -> Machine {
    Machine {
        node: "edge-a".to_owned(),
        address: watch::channel(None).1,
        pods: watch::channel(Arc::new(tombolo_grid::OwnPods::new("edge-a"))).1,
    }
}

fn question(name: &str, record_type: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(format!("{name}.")).unwrap(), record_type));
    message
}

fn addresses(message: &Message) -> Vec<String> {
    let all = message.answers.iter().filter_map(|record| match &record.data {
        RData::A(A(address)) => Some(address.to_string()),
        _ => None,
    });
    all.collect()
}

#[tokio::test]
async fn names_are_answered_as_soon_as_they_are_known_and_not_denied_before() {
    let running = Running::start(&[]).await;
    // An empty store is complete: there are no objects.
    running.until_code("web.shop.svc.cluster.local", ResponseCode::NXDomain).await;
    let running = Running::with_cluster(&[]).await;
    let answer = running.ask("WEB.shop.SVC.cluster.local", RecordType::A).await;
    assert_eq!(addresses(&answer), ["10.96.0.1"]);
    assert_eq!(answer.answers[0].ttl, 5);
    assert!(answer.metadata.authoritative && answer.metadata.recursion_desired);
    assert!(answer.queries[0].name().eq_case(&Name::from_ascii("WEB.shop.SVC.cluster.local.").unwrap()));
    running.service("web", json!({"clusterIP": "10.96.0.2"})).await;
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while addresses(&running.ask("web.shop.svc.cluster.local", RecordType::A).await) != ["10.96.0.2"] {
        assert!(tokio::time::Instant::now() < deadline, "the change is not seen");
    }
}

#[tokio::test]
async fn unknown_name_is_servfail_before_the_first_sync() {
    struct Nothing;
    impl Store for Nothing {
        fn get(&self, _: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
            Err(unknown())
        }
        fn list(&self, _: &Resource, _: Option<&str>) -> Result<Snapshot, StoreError> {
            Err(unknown())
        }
        fn list_at(&self, _: &Resource, _: Option<&str>, _: Revision) -> Result<Snapshot, StoreError> {
            Err(unknown())
        }
        fn watch(&self, _: &Resource, _: Revision) -> Result<ChangeStream, StoreError> {
            Err(unknown())
        }
        fn revision(&self) -> Revision {
            Revision(1)
        }
    }
    fn unknown() -> StoreError {
        StoreError::NotSynced { reason: "a test".to_owned() }
    }
    let store = MemoryStore::new(Revision(1), LogLimits::default());
    let running = Running::on(Arc::new(Nothing), store, &[], FORWARD_WITHIN).await;
    let answer = running.ask("web.shop.svc.cluster.local", RecordType::A).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    let answer = running.ask("cluster.local", RecordType::SOA).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::NoError, "the domain itself is known");
}

#[tokio::test]
async fn long_answers_are_truncated_over_udp_and_complete_over_tcp() {
    let running = Running::with_cluster(&[]).await;
    let name = "many.shop.svc.cluster.local";
    let mut plain = question(name, RecordType::A);
    let packet = running.send(&plain.to_vec().unwrap()).await;
    let answer = Message::from_vec(&packet).unwrap();
    assert!(packet.len() <= 512 && answer.metadata.truncation && answer.edns.is_none());
    assert!(answer.answers.len() > 10, "as many as fit: {}", answer.answers.len());
    let mut edns = Edns::new();
    edns.set_max_payload(65_535);
    plain.set_edns(edns);
    let packet = running.send(&plain.to_vec().unwrap()).await;
    let answer = Message::from_vec(&packet).unwrap();
    assert!(packet.len() > 512 && packet.len() <= usize::from(message::UDP_PAYLOAD_MAX));
    assert!(answer.metadata.truncation && answer.edns.is_some());
    let whole = running.ask_over_tcp(&plain).await;
    assert!(!whole.metadata.truncation);
    let mut all = addresses(&whole);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 200);
}

/// 100 ports on each of 200 endpoints are 20,000 SRV records.
#[tokio::test]
async fn records_beyond_an_answer_are_not_built_and_it_is_marked_truncated() {
    let running = Running::with_cluster(&[]).await;
    let many: Vec<Value> = (1..=200).map(|n| json!({"addresses": [format!("10.0.1.{n}")]})).collect();
    let port = |n| json!({"name": format!("p{n}"), "protocol": "TCP", "port": n});
    let ports: Vec<Value> = (1..=100).map(port).collect();
    let labels = json!({"kubernetes.io/service-name": "many"});
    let object = json!({"metadata": {"labels": labels}, "endpoints": many, "ports": ports});
    running.put("discovery.k8s.io", "endpointslices", "shop", "many", object).await;
    running.until_code("_p7._tcp.many.shop.svc.cluster.local", ResponseCode::NoError).await;
    for (name, record_type, all, marked) in [
        ("many", RecordType::A, 200..=200, false),
        ("_p7._tcp.many", RecordType::SRV, 200..=200, false),
        ("many", RecordType::SRV, 500..=4_681, true),
    ] {
        let asked = question(&format!("{name}.shop.svc.cluster.local"), record_type);
        let answer = running.ask_over_tcp(&asked).await;
        assert_eq!(answer.metadata.truncation, marked, "{name} {record_type}");
        assert!(all.contains(&answer.answers.len()), "{name} {record_type}: {}", answer.answers.len());
        let cut = Message::from_vec(&running.send(&asked.to_vec().unwrap()).await).unwrap();
        assert!(
            cut.metadata.truncation && cut.answers.len() > 5,
            "{name} {record_type}: {}",
            cut.answers.len()
        );
    }
}
