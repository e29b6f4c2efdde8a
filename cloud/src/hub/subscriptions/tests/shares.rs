//! One node's share of memory, for all its sessions and all its answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use tombolo_proto::Lane;
use tombolo_proto::frame::{ApiRequest, Frame, Hello, ReplyBody, Request as Question, RequestBody};
use tombolo_proto::ids::RequestId;

use super::*;
use crate::hub::NODE_BYTES_MAX;

/// Length of every answer, which is more than an in-memory link holds.
const LARGE: usize = 1024 * 1024;

/// An API server with only large answers, which counts the requests for lists.
fn large() -> (Kube, Arc<AtomicUsize>) {
    let asked = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        counter.fetch_add(usize::from(request.uri().path() == LIST), Ordering::SeqCst);
        async { Ok::<_, tower::BoxError>(Response::new(Body::from(vec![b' '; LARGE]))) }
    });
    (Client::new(service, "default").into(), asked)
}

fn peer(hub: &Arc<Hub>, name: &str) -> Link {
    let node = NodeId::parse(name).expect("valid");
    let (cloud, mut link, _) = mem::pair(node.clone());
    let remote = cloud.peer().remote;
    let hello = Hello {
        versions: (1, 1),
        node: node.clone(),
        store: StoreId([7; 16]),
        epoch: None,
        trim_version: 0,
        features: 0,
        inventory: Inventory::Full(Vec::new()),
        agent: "test".to_owned(),
        instance: 0,
        attestation: bytes::Bytes::new(),
    };
    link.send(Lane::Control, Frame::Hello(hello)).expect("room");
    hub.accept(Accepted { link: cloud, node, remote, transport: Transport::Memory });
    link
}

async fn ask(link: &mut Link, ids: std::ops::Range<u64>, path: &str) {
    for id in ids {
        let body = RequestBody::Api(ApiRequest::new("GET", path));
        let timeout = Duration::from_secs(100);
        let question = Question { id: RequestId(id), timeout, body, caller_token: None };
        link.send(Lane::Control, Frame::Request(question)).expect("room");
    }
    link.flush().await.expect("taken");
}

/// Codes of the next answers.
async fn answers(link: &mut Link, count: usize) -> Vec<u16> {
    let mut codes = Vec::new();
    while codes.len() < count {
        match tokio::time::timeout(Duration::from_secs(50), link.next()).await.expect("an answer") {
            LinkEvent::Frame(_, Frame::Reply(reply)) => match reply.body {
                ReplyBody::Api(api) => codes.push(api.code),
                ReplyBody::Message(_) => panic!("an answer of another kind"),
            },
            LinkEvent::Closed(error) => panic!("{error}"),
            _ => {}
        }
    }
    codes
}

const DOCUMENT: &str = "/openapi/v2";
const LIST: &str = "/api/v1/namespaces/d/configmaps";

#[tokio::test(start_paused = true)]
async fn unread_large_answers_delay_no_other_node() {
    let (kube, asked) = large();
    let hub = hub(&kube);
    let mut greedy = peer(&hub, "n");
    ask(&mut greedy, 0..8, DOCUMENT).await;
    ask(&mut greedy, 8..16, LIST).await;
    for round in 1..=20 {
        let renewal = Frame::LeaseRenew { renew_time_micros: 1_790_000_000_000_000 };
        greedy.send(Lane::Control, renewal).expect("room");
        greedy.flush().await.expect("taken");
        // By now the cached documents have expired.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let used = hub.registry.get(&node()).expect("connected").memory.all.used();
        assert!((LARGE / 2..LARGE + LARGE / 2).contains(&used), "{used} bytes for one answer that is read");
        let mut other = peer(&hub, "other");
        ask(&mut other, 0..1, DOCUMENT).await;
        assert_eq!(answers(&mut other, 1).await, [200], "others are answered meanwhile");
        assert_eq!(hub.metrics.leases.get(), round, "its own lease is renewed");
    }
    assert_eq!(answers(&mut greedy, 16).await, [200; 16], "a node that reads gets everything");
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked <= 2 * 8, "a delayed list is requested once more: {asked} requests for 8 lists");
}

#[tokio::test(start_paused = true)]
async fn reconnecting_node_has_one_share() {
    let (kube, _) = large();
    let hub = hub(&kube);
    let mut left = Vec::new();
    for _ in 0..20 {
        let mut link = peer(&hub, "n");
        ask(&mut link, 0..4, LIST).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let used = hub.registry.get(&node()).expect("connected").memory.all.used();
        assert!(used <= LARGE + LARGE / 2, "{used} bytes");
        assert!(hub.session_bytes.used() <= NODE_BYTES_MAX, "{} in all", hub.session_bytes.used());
        assert!(hub.metrics.sessions.get() <= 2, "{} sessions of one node", hub.metrics.sessions.get());
        left.push(link);
    }
    let mut newest = left.pop().expect("many");
    assert_eq!(answers(&mut newest, 4).await, [200; 4]);
    drop((newest, left));
    tokio::time::sleep(Duration::from_secs(60)).await;
    hub.registry.sweep();
    assert_eq!((hub.registry.len(), hub.session_bytes.used(), hub.metrics.sessions.get()), (0, 0, 0));
}

/// Each proof that two machines use an identity causes an event, which cloudcore writes in its own name.
#[tokio::test(start_paused = true)]
async fn alternating_processes_of_one_node_cause_few_events() {
    let events = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&events);
    let service = tower::service_fn(move |request: Request<Body>| {
        let told = request.uri().path() == "/api/v1/namespaces/default/events";
        counter.fetch_add(usize::from(told), Ordering::SeqCst);
        let response = Response::builder().status(201).body(Body::from(b"{}".to_vec()));
        std::future::ready(Ok::<_, tower::BoxError>(response.expect("a response")))
    });
    let hub = hub(&Client::new(service, "default").into());
    for times in 1..=1000 {
        hub.contested(&node(), times);
    }
    // Until all tasks are idle.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let told = events.load(Ordering::SeqCst);
    assert!((1..100).contains(&told), "{told} events");
}
