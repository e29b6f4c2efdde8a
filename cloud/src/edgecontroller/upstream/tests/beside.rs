//! Reports of a node while others write its Node.

use super::*;
use tombolo_proto::frame::{ApiRequest, Request as Question, RequestBody};
use tombolo_proto::ids::RequestId;

/// A Node at an API server, and what somebody else does just before each patch of its status.
struct Api {
    node: Mutex<(u64, Value)>,
    beside: fn(&mut (u64, Value)),
    /// How often somebody else is faster.
    others: Mutex<usize>,
}

impl Api {
    fn client(self: &Arc<Self>) -> Client {
        let api = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = Arc::clone(&api);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let patch = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let (code, answer) = api.answer(&parts.method, &patch);
                Ok::<_, tower::BoxError>(
                    Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))?,
                )
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &http::Method, patch: &Value) -> (u16, Value) {
        let mut node = self.node.lock();
        if *method == http::Method::PATCH {
            let mut others = self.others.lock();
            if *others > 0 {
                *others -= 1;
                node.0 += 1;
                (self.beside)(&mut node);
            }
            let named = patch.pointer("/metadata/resourceVersion").and_then(Value::as_str);
            if named.is_some_and(|named| named != node.0.to_string()) {
                return (
                    409,
                    json!({"kind": "Status", "code": 409, "reason": "Conflict", "message": "modified"}),
                );
            }
            *node = (node.0 + 1, patch["status"].clone());
        }
        let metadata = json!({"name": "n", "uid": "u", "resourceVersion": node.0.to_string()});
        (200, json!({"kind": "Node", "metadata": metadata, "status": node.1}))
    }
}

fn api(beside: fn(&mut (u64, Value))) -> Arc<Api> {
    Arc::new(Api { node: Mutex::new((5, json!({"beat": 1}))), beside, others: Mutex::default() })
}

fn report(beat: u64) -> Question {
    let body = RequestBody::Api(ApiRequest {
        method: "PATCH".to_owned(),
        path_and_query: "/api/v1/nodes/n/status".to_owned(),
        content_type: "application/strategic-merge-patch+json".to_owned(),
        accept: String::new(),
        body: json!({"status": {"beat": beat}}).to_string().into(),
    });
    let timeout = std::time::Duration::from_secs(10);
    Question { id: RequestId(beat), timeout, body, caller_token: None }
}

async fn code(upstream: &Upstream, received: Received) -> u16 {
    match upstream.answer(&node(), received).await.reply.body {
        tombolo_proto::frame::ReplyBody::Api(reply) => reply.code,
        tombolo_proto::frame::ReplyBody::Message(message) => panic!("{message:?}"),
    }
}

/// The code of a report that meets so many writes of others, and the status afterwards.
async fn reported(others: usize, beside: fn(&mut (u64, Value))) -> (u16, Value) {
    let api = api(beside);
    let upstream = upstream(api.client());
    assert_eq!(code(&upstream, upstream.receive(report(2))).await, 200);
    *api.others.lock() = others;
    let code = code(&upstream, upstream.receive(report(3))).await;
    let status = api.node.lock().1.clone();
    (code, status)
}

/// Controllers label, taint and annotate a Node when it registers: that is no newer report.
#[tokio::test]
async fn a_report_that_meets_what_others_write_beside_the_status_is_made_on_that() {
    assert_eq!(reported(3, |_| {}).await, (200, json!({"beat": 3})));
}

#[tokio::test]
async fn a_report_never_follows_another_status() {
    let newer: fn(&mut (u64, Value)) = |node| node.1 = json!({"beat": 9});
    assert_eq!(reported(1, newer).await, (409, json!({"beat": 9})));
}

/// What counts is what was known when it came, however long it then waits for its turn here.
#[tokio::test]
async fn a_report_that_waits_for_its_turn_is_made_on_what_was_known_when_it_came() {
    let api = api(|_| {});
    let [before, after] = [api.client(), api.client()].map(upstream);
    assert_eq!(code(&before, before.receive(report(2))).await, 200);
    let waiting = before.receive(report(3));
    assert_eq!(code(&after, after.receive(report(9))).await, 200, "through another replica");
    assert_eq!(code(&before, waiting).await, 409);
    assert_eq!(api.node.lock().1, json!({"beat": 9}));
}

#[tokio::test]
async fn whoever_writes_all_the_time_keeps_no_report_busy_for_ever() {
    assert_eq!(reported(1_000, |_| {}).await, (409, json!({"beat": 2})));
}
