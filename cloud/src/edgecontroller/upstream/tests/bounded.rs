//! Limits on concurrent calls to the API server, for one node and for all of them, and on the size of answers.

use futures::FutureExt as _;
use tokio::sync::Semaphore;
use tombolo_proto::frame::Request as Question;
use tombolo_runtime::Budget;

use super::*;
use crate::kube::Room;
use crate::metrics::Refusals;

/// A client whose API server accepts calls and answers none.
fn away() -> (Client, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let service = tower::service_fn(move |_: Request<Body>| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Result<Response<Body>, tower::BoxError>>()
    });
    (Client::new(service, "default"), calls)
}

fn call(method: &str, path: &str, body: &str) -> RequestBody {
    RequestBody::Api(ApiRequest {
        content_type: "application/json".to_owned(),
        body: body.to_owned().into(),
        ..ApiRequest::new(method, path)
    })
}

fn question(body: RequestBody) -> Question {
    Question { id: RequestId(1), timeout: Duration::from_secs(60), body, caller_token: None }
}

fn registration(name: &str) -> [RequestBody; 2] {
    let object = json!({"metadata": {"name": name}});
    let told = message(Operation::Insert, path("", ResourceType::Node, name), &object);
    [
        call("POST", "/api/v1/nodes?fieldManager=kubelet", &object.to_string()),
        RequestBody::Message(Box::new(told)),
    ]
}

/// A node without an answer registers again and again, in both ways, and so does its whole fleet.
#[tokio::test(start_paused = true)]
async fn registrations_do_not_pile_up_while_the_api_server_is_away() {
    let (client, calls) = away();
    let upstream = upstream(client);
    let mut open = Vec::new();
    let mut refused = 0;
    for number in 0..40 {
        let node = NodeId::parse(&format!("n{number}")).expect("a name");
        for body in registration(node.as_str()).into_iter().chain(registration(node.as_str())) {
            let (upstream, node) = (upstream.clone(), node.clone());
            let mut asked = Box::pin(async move {
                let received = upstream.receive(&node, question(body));
                upstream.answer(&node, received).await.reply.body
            });
            match asked.as_mut().now_or_never() {
                None => open.push(asked),
                Some(ReplyBody::Api(reply)) => {
                    assert_eq!(reply.code, 429);
                    refused += 1;
                }
                Some(ReplyBody::Message(reply)) => {
                    let outcome = Outcome::read(&reply.content).expect("a wrapped answer");
                    assert!(matches!(outcome, Outcome::Failed(error) if error.code == 429));
                    refused += 1;
                }
            }
        }
    }
    assert_eq!((open.len(), refused), (40, 120), "one of each node; the others are told to retry");
    // The client's own task forwards them.
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(calls.load(Ordering::SeqCst), 16, "of all nodes together");
    let body = futures::future::join_all(open).await.remove(0);
    let ReplyBody::Api(reply) = body else { panic!("an API reply") };
    assert_eq!(reply.code, 504, "the waiting one is notified");
}

/// The memory of an answer is charged to the node for every kind of request: a write is answered with the whole object.
#[tokio::test]
async fn answers_to_writes_count_towards_the_share_of_the_node() {
    let object =
        json!({"metadata": {"name": "c", "resourceVersion": "1"}, "data": {"k": "x".repeat(200_000)}});
    let one = "/api/v1/namespaces/d/configmaps/c";
    for (method, path) in [
        ("GET", one),
        ("POST", "/api/v1/namespaces/d/configmaps"),
        ("PUT", one),
        ("PATCH", one),
        ("DELETE", one),
    ] {
        for (share, code) in [(100_000, 429), (400_000, 200)] {
            let object = object.clone();
            let (client, _) = scripted(move |_| (200, object.clone()));
            let share = Budget::new(usize::MAX).share(share);
            let refusals = Refusals::default();
            let room = Room::new(&share, &Arc::new(Semaphore::new(1)), &refusals);
            let asked = Asked { token: None, body: call(method, path, "{}") };
            let ReplyBody::Api(reply) = room.clone().scope(asked.ask(&upstream(client))).await else {
                panic!("an API reply")
            };
            assert_eq!(reply.code, code, "{method} with {} bytes", share.max());
            assert_eq!(refusals.get("answer", "node") > 0, code == 429, "{method}");
            if code == 200 {
                assert!(share.used() >= reply.body.len(), "{method}: {} bytes are counted", share.used());
            }
            drop(room);
            assert_eq!(share.used(), 0, "{method}");
        }
    }
}

/// The bounds of a kind are shared by all nodes: a node that does not read its large answers leaves the slots to
/// others.
#[tokio::test(start_paused = true)]
async fn node_that_does_not_read_holds_no_slots_of_a_request_kind() {
    let large = json!({"metadata": {"name": "s"}, "data": {"k": "x".repeat(2 * crate::kube::LARGE_ANSWER)}});
    let (client, log) = scripted(move |line| {
        (200, if line.ends_with("large") { large.clone() } else { json!({"metadata": {}}) })
    });
    let bound = RequestBound { running: std::num::NonZeroU32::MIN, waiting: 8 };
    let bounds = RequestBounds::from([(RequestKind::QuerySecret, bound)]);
    let upstream =
        upstream(client).with_settings(&UpstreamSettings { bounds, ..UpstreamSettings::default() });
    let share = Budget::new(usize::MAX).share(usize::MAX);
    let ask = |node: &'static str, secret: &'static str, large: &Arc<Semaphore>| {
        let asked = message(Operation::Query, path("d", ResourceType::Secret, secret), &Value::Null);
        let (upstream, room) = (upstream.clone(), Room::new(&share, large, &Refusals::default()));
        async move {
            let node = NodeId::parse(node).expect("a name");
            let received = upstream.receive(&node, question(RequestBody::Message(Box::new(asked))));
            let body = room.scope(upstream.answer(&node, received)).await.reply.body;
            let ReplyBody::Message(reply) = body else { panic!("a message") };
            reply.content.read::<Value>().expect("an object")["metadata"].is_object()
        }
    };
    let (unread, read) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(1)));
    let soon = Duration::from_secs(1);
    let mut waits = Box::pin(ask("greedy", "large", &unread));
    assert!(tokio::time::timeout(soon, &mut waits).await.is_err(), "the answer before is not read");
    let modest = tokio::time::timeout(soon, ask("modest", "s", &read)).await;
    assert!(modest.expect("it does not wait"));
    // It has read, and waits with others for the slot that it had.
    let held = upstream.gates.pass_kind(&node(), RequestKind::QuerySecret).await.expect("a place");
    unread.add_permits(1);
    assert!(tokio::time::timeout(soon, &mut waits).await.is_err(), "one at a time");
    assert_eq!(log.lock().len(), 2, "no call was made without a slot");
    drop(held);
    assert!(tokio::time::timeout(soon, waits).await.expect("its turn"));
    assert_eq!(log.lock().len(), 3);
}

/// A record as MetaServer sends it.
fn record(verb: &str, key: &str, body: &Value) -> Message {
    let record = json!({"ID": "1", "Key": key, "Verb": verb, "Option": "e30=", "ReqBody": body,
        "Subresource": "", "Status": "InApplying"});
    let mut asked = message(Operation::Query, path("", ResourceType::Node, "n"), &record);
    asked.route.source = Source::MetaServer;
    asked.route.group = Group::DynamicController;
    asked
}

/// The edge has its own request, and the answer waits here until it is read.
#[tokio::test]
async fn answer_does_not_repeat_a_long_record_body() {
    let (client, _) = scripted(GOOD);
    let mut request = record("get", "/version", &"A".repeat(1024 * 1024).into());
    let asked = application::take_record(&mut request);
    let answer = upstream(client).answer_application(&node(), &request, asked, None).await;
    assert!(answer.content.as_json().len() < 1024, "{} bytes", answer.content.as_json().len());
    let answer: Value = answer.content.read().expect("a record");
    assert_eq!(
        (&answer["ID"], &answer["Option"], &answer["Status"]),
        (&json!("1"), &json!("e30="), &json!("Approved"))
    );
}

/// A request that never ends becomes no call, however a node phrases it.
#[tokio::test]
async fn endless_requests_are_refused() {
    let pods = "/core/v1/pods/d/null";
    for body in [
        call("GET", "/api/v1/watch/pods", ""),
        call("GET", "/api/v1/pods?w%61tch=1", ""),
        call("GET", "/api/v1/namespaces/d/pods/p/log?follow=1", ""),
        call("GET", "/api/v1/nodes/n/proxy/metrics", ""),
        call("POST", "/api/v1/namespaces/d/pods/p/exec?command=ls", ""),
    ] {
        let (client, log) = scripted(GOOD);
        let ReplyBody::Api(reply) = (Asked { token: None, body }).ask(&upstream(client)).await else {
            panic!("an API reply")
        };
        let status: Value = serde_json::from_slice(&reply.body).expect("a Status");
        assert_eq!((reply.code, &status["reason"]), (400, &json!("BadRequest")));
        assert!(status["message"].as_str().is_some_and(|text| text.contains("endless")), "{status}");
        assert_eq!(*log.lock(), []);
    }
    // A key whose resource is "watch" forms a path of the old watch API.
    for (verb, key, calls) in [("get", "/core/v1/watch/null/pods", 0), ("list", pods, 1)] {
        let (client, log) = scripted(GOOD);
        let mut request = record(verb, key, &Value::Null);
        let asked = application::take_record(&mut request);
        upstream(client).answer_application(&node(), &request, asked, None).await;
        assert_eq!(log.lock().len(), calls, "{verb} {key}");
    }
}
