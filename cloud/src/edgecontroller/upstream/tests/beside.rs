//! Reports of a node while others write its Node.

use futures::FutureExt as _;
use tombolo_proto::frame::{ApiRequest, Request as Question, RequestBody};
use tombolo_proto::ids::RequestId;

use super::*;
use crate::kube::tests::double::OneObject;

/// The kinds of patch, as a status is written with them.
const PATCHES: [&str; 4] =
    ["strategic-merge-patch+json", "merge-patch+json", "apply-patch+yaml", "json-patch+json"];

fn report(beat: u64) -> Question {
    report_by(PATCHES[0], beat)
}

fn report_by(patch: &str, beat: u64) -> Question {
    report_at("/api/v1/nodes/n/status", patch, beat)
}

fn report_at(path: &str, patch: &str, beat: u64) -> Question {
    let object = json!({"status": {"beat": beat}});
    let body = match patch {
        "json-patch+json" => json!([{"op": "replace", "path": "/status", "value": object["status"]}]),
        _ => object,
    };
    let body = RequestBody::Api(ApiRequest {
        content_type: format!("application/{patch}"),
        body: body.to_string().into(),
        ..ApiRequest::new("PATCH", path)
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

/// What the watches have shown of a pod may be older than what its scheduler has written: the first report of it loses to nobody.
/// Its name may be that of a pod that was reported before.
#[tokio::test]
async fn the_first_report_of_a_pod_is_made_on_what_others_have_written() {
    let (scheduled, started) = (json!({"conditions": []}), json!({"startTime": "2026-11-20T09:00:00Z"}));
    for (known, there, expected) in [
        (None, &scheduled, 200),
        (Some([7; 32]), &scheduled, 200),
        // Another replica was told of it meanwhile.
        (None, &started, 409),
        (Some([7; 32]), &started, 409),
    ] {
        let api = OneObject::new("p", (6, there.clone()), |_, _| std::future::ready(()).boxed());
        let upstream = upstream(api.client());
        let key = ObjectKey::new(resources::pods(), "d", "p");
        upstream.down.written(&key, Known { revision: Some(CloudRevision(5)), status: known });
        let report = report_at("/api/v1/namespaces/d/pods/p/status", PATCHES[0], 2);
        assert_eq!(code(&upstream, upstream.receive(report)).await, expected, "{known:?} {there}");
    }
}

#[tokio::test]
async fn a_report_never_follows_another_status() {
    let newer: fn(&mut (u64, Value)) = |node| node.1 = json!({"beat": 9});
    assert_eq!(reported(1, newer).await, (409, json!({"beat": 9})));
}

/// What counts is what was known when it came, however long it then waits for its turn here.
#[tokio::test]
async fn a_report_that_waits_for_its_turn_is_made_on_what_was_known_when_it_came() {
    for patch in PATCHES {
        let api = OneObject::new("n", (5, json!({"beat": 1})), |_, _| std::future::ready(()).boxed());
        let [before, after] = [api.client(), api.client()].map(upstream);
        assert_eq!(code(&before, before.receive(report_by(patch, 2))).await, 200);
        let waiting = before.receive(report_by(patch, 3));
        assert_eq!(code(&after, after.receive(report_by(patch, 9))).await, 200, "through another replica");
        assert_eq!(code(&before, waiting).await, 409, "{patch}");
        assert_eq!(api.state.lock().1, json!({"beat": 9}));
    }
}

/// Who owns the fields is another conflict than that of the version: nothing is tried again because of it.
#[tokio::test]
async fn a_conflict_of_owners_is_told_at_once() {
    let (client, log) = scripted(|line| match line.starts_with("PATCH") {
        true => {
            (409, json!({"kind": "Status", "code": 409, "reason": "Conflict", "message": "conflict with a"}))
        }
        false => (200, json!({"metadata": {"resourceVersion": "5"}, "status": {"beat": 1}})),
    });
    let upstream = upstream(client);
    assert_eq!(code(&upstream, upstream.receive(report_by("apply-patch+yaml", 2))).await, 409);
    let patches = log.lock().iter().filter(|seen| seen.line.starts_with("PATCH")).count();
    assert_eq!(patches, 1);
}

#[tokio::test]
async fn whoever_writes_all_the_time_keeps_no_report_busy_for_ever() {
    assert_eq!(reported(1_000, |_| {}).await, (409, json!({"beat": 2})));
}
