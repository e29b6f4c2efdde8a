//! Reports of a node while others write its Node.

use futures::FutureExt as _;
use tombolo_proto::frame::{ApiRequest, Request as Question, RequestBody};
use tombolo_proto::ids::RequestId;

use super::*;
use crate::kube::tests::double::OneObject;

fn report(beat: u64) -> Question {
    let body = RequestBody::Api(ApiRequest {
        content_type: "application/strategic-merge-patch+json".to_owned(),
        body: json!({"status": {"beat": beat}}).to_string().into(),
        ..ApiRequest::new("PATCH", "/api/v1/nodes/n/status")
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

/// The code of a report before each attempt of which somebody else writes, so many times, and the status afterwards.
async fn reported(others: usize, beside: fn(&mut (u64, Value))) -> (u16, Value) {
    let left = Arc::new(AtomicUsize::new(0));
    let others_left = Arc::clone(&left);
    let api = OneObject::new("n", (5, json!({"beat": 1})), move |node, _| {
        let fewer = |left: usize| left.checked_sub(1);
        if others_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
            let mut state = node.state.lock();
            state.0 += 1;
            beside(&mut state);
        }
        std::future::ready(()).boxed()
    });
    let upstream = upstream(api.client());
    assert_eq!(code(&upstream, upstream.receive(report(2))).await, 200);
    left.store(others, Ordering::SeqCst);
    let code = code(&upstream, upstream.receive(report(3))).await;
    let status = api.state.lock().1.clone();
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
    let api = OneObject::new("n", (5, json!({"beat": 1})), |_, _| std::future::ready(()).boxed());
    let [before, after] = [api.client(), api.client()].map(upstream);
    assert_eq!(code(&before, before.receive(report(2))).await, 200);
    let waiting = before.receive(report(3));
    assert_eq!(code(&after, after.receive(report(9))).await, 200, "through another replica");
    assert_eq!(code(&before, waiting).await, 409);
    assert_eq!(api.state.lock().1, json!({"beat": 9}));
}

#[tokio::test]
async fn whoever_writes_all_the_time_keeps_no_report_busy_for_ever() {
    assert_eq!(reported(1_000, |_| {}).await, (409, json!({"beat": 2})));
}
