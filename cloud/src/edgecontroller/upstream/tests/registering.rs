//! Every way to create a Node records its mark first.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::bootstrap::{ClusterNodes, ClusterSecrets};

/// The upstream, the log of requests, and the records of a node that has joined. `nodes` answers for Nodes, by method.
async fn world(
    can_record: bool,
    nodes: impl Fn(&str) -> Option<(u16, Value)> + Clone + Send + Sync + 'static,
) -> (Upstream, Log) {
    let record = STANDARD.encode(r#"{"keys":[{"key":"00","issued":1,"expires":9999999999}],"joined":1}"#);
    let (client, log) = sometimes_silent(move |line| {
        let secret = |version: &str| {
            let data = json!({"n": record});
            Some((200, json!({"metadata": {"name": "x", "resourceVersion": version}, "data": data})))
        };
        match line.split_once(' ') {
            Some(("GET", path)) if path.contains("/secrets/") => secret("1"),
            Some((_, path)) if path.contains("/secrets/") && can_record => secret("2"),
            Some((_, path)) if path.contains("/secrets/") => Some((500, json!({"message": "broken"}))),
            Some((method, _)) => nodes(method),
            None => None,
        }
    });
    let secrets = Arc::new(ClusterSecrets::new(client.clone(), "kubeedge"));
    let nodes = Arc::new(ClusterNodes::new(client.clone()));
    let identities = Identities::open(secrets, nodes, Arc::new(SystemTime::now), 0).await.expect("read");
    log.lock().clear();
    (upstream(client).with_identities(Arc::new(identities)), log)
}

fn absent() -> (u16, Value) {
    (404, json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}))
}

fn made() -> (u16, Value) {
    (201, json!({"metadata": {"name": "n", "uid": "u1"}}))
}

/// A node that has joined, has no Node, and may create one.
async fn joined(can_record: bool) -> (Upstream, Log) {
    world(can_record, |method| Some(if method == "GET" { absent() } else { made() })).await
}

fn call(method: &str, path: &str, content_type: &str) -> ApiRequest {
    ApiRequest {
        content_type: content_type.to_owned(),
        body: r#"{"metadata":{"name":"n"}}"#.into(),
        ..ApiRequest::new(method, path)
    }
}

/// The way that writes nothing: a dry run.
const DRY_RUN: usize = 5;

/// Registers in one of the ways; returns the code of the answer.
async fn register(upstream: &Upstream, way: usize) -> Option<u16> {
    let request = match way {
        0 => call("POST", "/api/v1/nodes?fieldManager=kubelet", "application/json"),
        1 => call("POST", "/api/v1/nodes/", "application/json"),
        2 => call("PATCH", "/api/v1/nodes/n?fieldManager=x", "application/apply-patch+yaml"),
        DRY_RUN => call("POST", "/api/v1/nodes?fieldManager=kubelet&dryRun=All", "application/json"),
        _ => {
            let kind = if way == 3 { ResourceType::Node } else { ResourceType::NodeStatus };
            let request = message(Operation::Insert, path("", kind, "n"), &json!({}));
            upstream.answer_message(&node(), request, None).await;
            return None;
        }
    };
    let asked = Asked { token: None, body: RequestBody::Api(request) };
    match asked.ask(upstream).await {
        ReplyBody::Api(reply) => Some(reply.code),
        ReplyBody::Message(_) => None,
    }
}

/// The relevant requests: records that were written, and Nodes that may have been created.
fn steps(log: &Log) -> Vec<String> {
    let step = |seen: &Seen| match (seen.line.split_once(' ')?, seen.user.as_str()) {
        (("PUT", path), _) if path.contains("/secrets/") => {
            let record = STANDARD.decode(seen.body["data"]["n"].as_str()?).ok()?;
            let record: Value = serde_json::from_slice(&record).ok()?;
            Some(format!("mark {} uid {}", record["registering"].is_string(), record["uid"]))
        }
        (("POST" | "PATCH", path), "system:node:n") => Some(format!("create {path}")),
        _ => None,
    };
    log.lock().iter().filter_map(step).collect()
}

#[tokio::test]
async fn no_node_is_created_before_its_record_is_marked() {
    for way in 0..5 {
        let (upstream, log) = joined(false).await;
        let code = register(&upstream, way).await;
        assert!(code.is_none_or(|code| code == 503), "{way}: {code:?}");
        assert_eq!(
            steps(&log),
            ["mark true uid null"],
            "{way}: it could not be recorded, and nothing follows"
        );
    }
}

#[tokio::test]
async fn a_node_is_created_after_its_record_is_marked() {
    for way in 0..5 {
        let (upstream, log) = joined(true).await;
        register(&upstream, way).await;
        let [mark, created, ..] = &steps(&log)[..] else { panic!("{way}: {:?}", steps(&log)) };
        assert_eq!(mark, "mark true uid null", "{way}");
        assert!(created.starts_with("create /api/v1/nodes"), "{way}: {created}");
    }
}

/// A node that has joined and whose Node the API server refuses: it tries every way, as often as it likes.
#[tokio::test(start_paused = true)]
async fn failing_registrations_do_not_write_records_in_a_loop() {
    let refused = || (403, json!({"kind": "Status", "reason": "Forbidden", "code": 403}));
    let nodes = move |method: &str| Some(if method == "GET" { absent() } else { refused() });
    let (upstream, log) = world(true, nodes).await;
    let mut codes = Vec::new();
    for way in (0..5).cycle().take(100) {
        codes.extend(register(&upstream, way).await);
    }
    let once = ["mark true uid null", "create /api/v1/nodes", "mark false uid null"];
    assert_eq!(steps(&log)[..2], once[..2], "{codes:?}");
    assert!(steps(&log).len() <= 3, "{:?}", steps(&log));
    assert_eq!((codes[0], codes.iter().filter(|code| **code == 429).count()), (403, codes.len() - 1));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(register(&upstream, 0).await, Some(403), "after the pause it may try again");
    assert_eq!(register(&upstream, 0).await, Some(429));
}

/// The API server accepts a registration and does not answer; the next one arrives before that.
#[tokio::test(start_paused = true)]
async fn registration_gets_its_slot_before_writing_its_mark() {
    let (upstream, log) = world(true, |method| (method == "GET").then(absent)).await;
    let first = tokio::spawn({
        let upstream = upstream.clone();
        async move { register(&upstream, 0).await }
    });
    while steps(&log).len() < 2 {
        tokio::task::yield_now().await;
    }
    for _ in 0..10 {
        assert_eq!(register(&upstream, 1).await, Some(429));
    }
    let reads = log.lock().iter().filter(|seen| seen.line.starts_with("GET")).count();
    assert_eq!((steps(&log).len(), reads), (2, 2), "the others cost no call");
    assert_eq!(first.await.expect("no panic"), Some(504));
}

#[tokio::test]
async fn dry_run_writes_no_registration_mark() {
    let (upstream, log) = joined(true).await;
    for _ in 0..3 {
        assert_eq!(register(&upstream, DRY_RUN).await, Some(201));
    }
    assert_eq!(steps(&log), ["create /api/v1/nodes"; 3], "neither marked nor labelled");
    assert_eq!(log.lock().len(), 3);
    assert_eq!(register(&upstream, 0).await, Some(201), "and no other write waits for it");
}

/// The session of a node ends while the API server creates its Node, and the node reconnects at once.
#[tokio::test(start_paused = true)]
async fn existing_node_registers_without_a_pause() {
    let there = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_there = Arc::clone(&there);
    let conflict = || (409, json!({"kind": "Status", "reason": "AlreadyExists", "code": 409}));
    let (upstream, log) = world(true, move |method| match (method, is_there.load(Ordering::SeqCst)) {
        ("GET", false) => Some(absent()),
        (_, false) => None,
        ("GET", true) => Some((200, made().1)),
        (_, true) => Some(conflict()),
    })
    .await;
    let mut first = Box::pin(register(&upstream, 0));
    while steps(&log).len() < 2 {
        assert!(futures::poll!(&mut first).is_pending());
        tokio::task::yield_now().await;
    }
    drop(first);
    assert_eq!(register(&upstream, 0).await, Some(429), "as long as there is none");
    there.store(true, Ordering::SeqCst);
    log.lock().clear();
    for _ in 0..3 {
        assert_eq!(register(&upstream, 0).await, Some(409));
    }
    assert_eq!(steps(&log)[..2], ["mark false uid \"u1\"", "create /api/v1/nodes"], "bound, not marked");
}
