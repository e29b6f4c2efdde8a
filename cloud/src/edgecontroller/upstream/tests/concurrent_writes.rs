//! Reports of a node while others write the same object.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt as _;
use tokio::sync::Semaphore;
use tombolo_proto::frame::{ApiRequest, Request as Question, RequestBody};
use tombolo_proto::ids::RequestId;
use tombolo_proto::object::{ContentHash, ObjectVersion};

use super::*;
use crate::edgecontroller::node_object_cache::Cached;
use crate::edgecontroller::written::Known;
use crate::kube::tests::double::OneObject;

/// The kinds of patch with which a status is written.
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

/// The code of a report, and the status afterwards, when another writer writes before each of the first `others`
/// attempts.
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
    assert_eq!(code(&upstream, upstream.receive(&node(), report(2))).await, 200);
    left.store(others, Ordering::SeqCst);
    let code = code(&upstream, upstream.receive(&node(), report(3))).await;
    let status = api.state.lock().1.clone();
    (code, status)
}

/// Controllers label, taint and annotate a Node when it registers: that is not a newer report.
#[tokio::test]
async fn report_is_retried_when_others_changed_only_other_fields() {
    assert_eq!(reported(3, |_| {}).await, (200, json!({"beat": 3})));
}

/// The API server tells a node nothing of a pod that was its own and is gone, and the report about it must end.
#[tokio::test]
async fn report_about_a_deleted_pod_is_answered_with_its_absence() {
    for (there, place, expected) in [(404, "", 404), (200, "m", 404), (200, "n", 403), (500, "", 403)] {
        let client = answering(move |call, _| {
            let is_node = call.headers.contains_key("impersonate-user");
            let code = if is_node { 403 } else { there };
            std::future::ready((code, json!({"kind": "Pod", "code": code, "spec": {"nodeName": place}})))
        });
        let upstream = upstream(client);
        let question = report_at("/api/v1/namespaces/d/pods/p/status", PATCHES[1], 1);
        assert_eq!(code(&upstream, upstream.receive(&node(), question)).await, expected);
    }
}

/// What the watches have shown of a pod may be older than what the scheduler has written: the first report of the pod
/// must still succeed. Its name may be that of a pod that was reported before.
#[tokio::test]
async fn first_pod_report_tolerates_writes_of_others() {
    let (scheduled, started) = (json!({"conditions": []}), json!({"startTime": "2026-11-20T09:00:00Z"}));
    for (known, there, expected) in [
        (None, &scheduled, 200),
        (Some([7; 32]), &scheduled, 200),
        // Another replica received a report meanwhile.
        (None, &started, 409),
        (Some([7; 32]), &started, 409),
    ] {
        let api = OneObject::new("p", (6, there.clone()), |_, _| std::future::ready(()).boxed());
        let upstream = upstream(api.client());
        let key = ObjectKey::new(resources::pods(), "d", "p");
        upstream.down.written(&key, Known { revision: Some(CloudRevision(5)), status: known }, None);
        let report = report_at("/api/v1/namespaces/d/pods/p/status", PATCHES[0], 2);
        assert_eq!(code(&upstream, upstream.receive(&node(), report)).await, expected, "{known:?} {there}");
    }
}

#[tokio::test]
async fn report_never_overwrites_a_different_status() {
    let newer: fn(&mut (u64, Value)) = |node| node.1 = json!({"beat": 9});
    assert_eq!(reported(1, newer).await, (409, json!({"beat": 9})));
}

/// The knowledge at arrival counts, however long the report then waits for its turn.
#[tokio::test]
async fn waiting_report_is_based_on_the_version_known_on_arrival() {
    for patch in PATCHES {
        let api = OneObject::new("n", (5, json!({"beat": 1})), |_, _| std::future::ready(()).boxed());
        let [before, after] = [api.client(), api.client()].map(upstream);
        assert_eq!(code(&before, before.receive(&node(), report_by(patch, 2))).await, 200);
        let waiting = before.receive(&node(), report_by(patch, 3));
        assert_eq!(
            code(&after, after.receive(&node(), report_by(patch, 9))).await,
            200,
            "through another replica"
        );
        assert_eq!(code(&before, waiting).await, 409, "{patch}");
        assert_eq!(api.state.lock().1, json!({"beat": 9}));
    }
}

type Report = fn(u64) -> Question;

/// Reports of an object with this name, in every form.
fn forms() -> [(&'static str, &'static str, Report); 7] {
    [
        ("n", "a report of an older edge", |beat| {
            told(Operation::Update, path("", ResourceType::NodeStatus, "n"), &json!({"Status": status(beat)}))
        }),
        ("p", "one of a pod", |beat| {
            let report = json!({"UID": "u", "Name": "p", "Status": status(beat)});
            told(Operation::Update, path("d", ResourceType::PodStatus, "p"), &report)
        }),
        ("p", "one of many pods", |beat| {
            let all = ObjectPath { name: None, ..path("d", ResourceType::PodStatus, "") };
            told(Operation::Update, all, &json!([{"UID": "u", "Name": "p", "Status": status(beat)}]))
        }),
        ("n", "a patch", |beat| {
            told(Operation::Patch, path("", ResourceType::NodePatch, "n"), &json!({"status": status(beat)}))
        }),
        ("n", "MetaServer's patch", |beat| {
            let data = STANDARD.encode(json!({"status": status(beat)}).to_string());
            let option = json!({"Name": "n", "PatchType": "application/merge-patch+json", "Data": data,
                "Subresources": ["status"]});
            asked_by_application("patch", "/core/v1/nodes/null/n", &option, None)
        }),
        ("p", "MetaServer's status", |beat| {
            let object = json!({"metadata": {"name": "p"}, "status": status(beat)});
            asked_by_application("updatestatus", "/core/v1/pods/d/p", &json!({}), Some(&object))
        }),
        ("n", "an object", |beat| {
            let mut report = report(beat);
            if let RequestBody::Api(call) = &mut report.body {
                call.method = "PUT".to_owned();
                call.content_type = "application/json".to_owned();
                call.body = json!({"status": status(beat)}).to_string().into();
            }
            report
        }),
    ]
}

/// The knowledge at arrival counts, whatever the form of the report.
#[tokio::test]
async fn no_kind_of_report_overwrites_a_newer_one() {
    for (name, form, report) in forms() {
        let api = OneObject::new(name, (5, status(1)), |_, _| std::future::ready(()).boxed());
        let beat = || api.state.lock().1["beat"].clone();
        let [here, there] = [5, 6].map(|seen| upstream_that_has_seen(seen, api.client()));
        let send = async |to: &Upstream, received| drop(to.answer(&node(), received).await);
        send(&here, here.receive(&node(), report(2))).await;
        assert_eq!(beat(), 2, "{form}: the known state is that old");
        let waits = here.receive(&node(), report(3));
        send(&there, there.receive(&node(), report(9))).await;
        send(&here, waits).await;
        assert_eq!(beat(), 9, "{form}: the one that waited is the older one");
        send(&here, here.receive(&node(), report(10))).await;
        assert_eq!(beat(), 10, "{form}: the next write knows the current state");
        let waits = here.receive(&node(), report(11));
        api.state.lock().0 += 1;
        send(&here, waits).await;
        assert_eq!(beat(), 11, "{form}: somebody has written beside it");
    }
}

/// This replica does not know the object, and reads it when the report runs.
#[tokio::test]
async fn report_about_an_unknown_object_does_not_overwrite_a_newer_status() {
    for patch in PATCHES {
        let api = OneObject::new("n", (5, status(1)), |_, _| std::future::ready(()).boxed());
        let [here, there] = [5, 5].map(|seen| upstream_that_has_seen(seen, api.client()));
        let waits = here.receive(&node(), report_by(patch, 2));
        assert_eq!(code(&there, there.receive(&node(), report_by(patch, 9))).await, 200);
        assert_eq!(code(&here, waits).await, 409, "{patch}");
        assert_eq!(api.state.lock().1, json!({"beat": 9}));
        assert_eq!(
            code(&here, here.receive(&node(), report_by(patch, 10))).await,
            200,
            "{patch}: now it is known"
        );
    }
    let (client, log) = scripted(|_| (503, json!({"kind": "Status", "code": 503, "message": "busy"})));
    let upstream = upstream(client);
    assert_eq!(code(&upstream, upstream.receive(&node(), report(2))).await, 503);
    let lines: Vec<String> = log.lock().iter().map(|seen| seen.line.clone()).collect();
    assert_eq!(lines, ["GET /api/v1/nodes/n"], "an unreadable object is not overwritten");
}

/// A status with the time at which a kubelet first reported the pod.
fn status(beat: u64) -> Value {
    json!({"beat": beat, "startTime": "2026-11-20T09:00:00Z"})
}

fn told(operation: Operation, at: ObjectPath, content: &Value) -> Question {
    asked(message(operation, at, content))
}

fn asked(message: Message) -> Question {
    let timeout = std::time::Duration::from_secs(10);
    Question { id: RequestId(1), timeout, body: RequestBody::Message(Box::new(message)), caller_token: None }
}

fn asked_by_application(verb: &str, key: &str, option: &Value, object: Option<&Value>) -> Question {
    let bytes = |value: &Value| STANDARD.encode(value.to_string());
    let record = json!({"ID": "1", "Key": key, "Verb": verb, "Option": bytes(option),
        "ReqBody": object.map(bytes), "Subresource": "", "Status": "InApplying"});
    let mut message = message(Operation::Query, path("d", ResourceType::Pod, "p"), &record);
    message.route.source = Source::MetaServer;
    asked(message)
}

/// A conflict of field owners differs from one of the version and is not retried.
#[tokio::test]
async fn field_ownership_conflict_is_reported_at_once() {
    let (client, log) = scripted(|line| match line.starts_with("PATCH") {
        true => {
            (409, json!({"kind": "Status", "code": 409, "reason": "Conflict", "message": "conflict with a"}))
        }
        false => (200, json!({"metadata": {"resourceVersion": "5"}, "status": {"beat": 1}})),
    });
    let upstream = upstream(client);
    assert_eq!(code(&upstream, upstream.receive(&node(), report_by("apply-patch+yaml", 2))).await, 409);
    let patches = log.lock().iter().filter(|seen| seen.line.starts_with("PATCH")).count();
    assert_eq!(patches, 1);
}

#[tokio::test]
async fn constant_writers_do_not_retry_a_report_forever() {
    assert_eq!(reported(1_000, |_| {}).await, (409, json!({"beat": 2})));
}

/// An API server that holds the first patch of a report until it is released.
fn busy(name: &str) -> (Arc<OneObject>, Arc<Semaphore>) {
    let (go_on, first) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(1)));
    let gate = Arc::clone(&go_on);
    let api = OneObject::new(name, (5, status(1)), move |_, _| {
        let (gate, wait) = (Arc::clone(&gate), first.swap(0, Ordering::SeqCst) == 1);
        async move {
            if wait {
                gate.acquire().await.expect("it is never closed").forget();
            }
        }
        .boxed()
    });
    (api, go_on)
}

/// Whether a report succeeded; otherwise the node is told why it was refused.
async fn is_done(upstream: &Upstream, received: Received) -> bool {
    match upstream.answer(&node(), received).await.reply.body {
        ReplyBody::Api(reply) => reply.code == 200,
        ReplyBody::Message(message) => {
            let text = String::from_utf8_lossy(message.content.as_json()).into_owned();
            message.route.operation != Operation::Error && !text.contains("Conflict")
        }
    }
}

/// A kubelet reports a pod and continues, so its next report may arrive while the first one still runs.
#[tokio::test]
async fn concurrent_reports_of_one_object_run_in_order() {
    for (name, form, report) in forms() {
        let (api, go_on) = busy(name);
        let upstream = upstream_that_has_seen(5, api.client());
        let mut reports = Vec::from([2, 3, 4].map(|beat| upstream.receive(&node(), report(beat))));
        let last = reports.remove(2);
        let mut open: Vec<_> = reports.into_iter().map(|one| Box::pin(is_done(&upstream, one))).collect();
        // In any order of polling.
        open.reverse();
        for _ in 0..100 {
            assert!(open.iter_mut().all(|one| one.now_or_never().is_none()), "{form}");
            tokio::task::yield_now().await;
        }
        go_on.add_permits(1);
        assert_eq!(futures::future::join_all(open).await, [true, true], "{form}");
        assert_eq!(api.state.lock().1["beat"], 3, "{form}");
        // A report that waited longer than others, which have written meanwhile.
        api.state.lock().0 += 1;
        assert!(is_done(&upstream, last).await, "{form}");
        assert_eq!((api.state.lock().1["beat"].clone(), upstream.lines.len()), (4.into(), 0), "{form}");
    }
}

/// That this replica wrote the earlier report proves nothing about reports through another replica meanwhile.
#[tokio::test]
async fn queued_report_does_not_overwrite_a_newer_status() {
    for (name, form, report) in forms() {
        for is_shown in [false, true] {
            let api = OneObject::new(name, (5, status(1)), |_, _| std::future::ready(()).boxed());
            let [here, there] = [5, 1000].map(|seen| upstream_that_has_seen(seen, api.client()));
            let [first, second] = [2, 3].map(|beat| here.receive(&node(), report(beat)));
            assert!(is_done(&here, first).await, "{form}");
            assert!(is_done(&there, there.receive(&node(), report(9))).await, "{form}");
            if is_shown {
                watched(&here, name, api.state.lock().0);
            }
            assert!(!is_done(&here, second).await, "{form}");
            assert_eq!(api.state.lock().1["beat"], 9, "{form}: the one that waited is the older one");
        }
    }
}

/// A report that was not written has no successor.
#[tokio::test]
async fn report_after_a_refused_one_is_based_on_the_version_it_knew() {
    let api = OneObject::new("n", (5, status(1)), |_, _| std::future::ready(()).boxed());
    let [here, there] = [5, 1000].map(|seen| upstream_that_has_seen(seen, api.client()));
    watched(&here, "n", 5);
    let [first, second] = [2, 3].map(|beat| here.receive(&node(), report(beat)));
    assert!(is_done(&there, there.receive(&node(), report(9))).await);
    assert!(!is_done(&here, first).await);
    assert!(!is_done(&here, second).await, "what the refused one has met is newer than both");
    assert_eq!(api.state.lock().1["beat"], 9);
    assert!(is_done(&here, here.receive(&node(), report(10))).await, "a writer that knows of it");
}

/// A replica that has just started knows the version of an object from its watch, but not its status.
#[tokio::test]
async fn first_report_after_a_restart_tolerates_changes_of_other_fields() {
    for (name, form, report) in forms() {
        for (beside, expected) in [(1, true), (9, false)] {
            let api = OneObject::new(name, (5, status(1)), |_, _| std::future::ready(()).boxed());
            let here = upstream_that_has_seen(5, api.client());
            watched(&here, name, 5);
            let first = here.receive(&node(), report(2));
            *api.state.lock() = (6, status(beside));
            assert_eq!(is_done(&here, first).await, expected, "{form}");
            assert_eq!(api.state.lock().1["beat"], if expected { 2 } else { beside }, "{form}");
        }
    }
}

/// A watch shows the object to this replica in a version.
fn watched(upstream: &Upstream, name: &str, revision: u64) {
    let key = match name {
        "n" => ObjectKey::new(resources::nodes(), "", name),
        _ => ObjectKey::new(resources::pods(), "d", name),
    };
    let version = ObjectVersion {
        uid: Uid::parse("u").expect("a UID"),
        revision: CloudRevision(revision),
        hash: ContentHash(1),
    };
    upstream.down.objects.insert(key, Cached::Withheld(version));
}

/// A report that waits for another one is abandoned when its time is over, and answered in the form of the request.
#[tokio::test(start_paused = true)]
async fn report_waits_as_long_as_its_sender() {
    for (name, form, report) in forms() {
        let (api, go_on) = busy(name);
        let upstream = upstream_that_has_seen(5, api.client());
        let first = upstream.receive(&node(), report(2));
        let patience = std::time::Duration::from_secs(5);
        let second = upstream.receive(&node(), Question { timeout: patience, ..report(3) });
        let mut first = Box::pin(is_done(&upstream, first));
        assert!(first.as_mut().now_or_never().is_none());
        let answered = upstream.answer(&node(), second).await.reply.body;
        let text = match answered {
            ReplyBody::Api(reply) => {
                assert_eq!(reply.code, 504);
                String::from_utf8_lossy(&reply.body).into_owned()
            }
            ReplyBody::Message(message) => {
                assert_eq!(message.route.operation, Operation::Error);
                message.content.as_text().expect("a text").into_owned()
            }
        };
        assert!(text.contains("did not answer within 5s"), "{form}: {text}");
        go_on.add_permits(1);
        assert!(first.await, "{form}");
    }
}
