use futures::{AsyncBufReadExt as _, StreamExt as _, TryStreamExt as _};
use kube::Client;
use serde_json::{Value, json};

use super::super::{FaultRate, FaultScope, ModelApi, ModelConfig, RightsGrant, RightsTable, WatchFault};
use super::*;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn model() -> ModelApi {
    ModelApi::new(ModelConfig::default())
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}})
}

async fn send(client: &Client, request: Request<Body>) -> Result<(u16, HeaderMap, Bytes), String> {
    let answer = client.send(request).await.map_err(|error| error.to_string())?;
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
    Ok((parts.status.as_u16(), parts.headers, body))
}

fn request(method: &Method, path: &str, body: &Value) -> Request<Body> {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
    request.body(Body::from(body)).expect("a request")
}

async fn code(client: &Client, method: &Method, path: &str, body: &Value) -> Result<u16, String> {
    send(client, request(method, path, body)).await.map(|(code, ..)| code)
}

/// The lines of a watch as they come.
async fn lines(
    client: &Client,
    path: &str,
) -> impl futures::Stream<Item = io::Result<String>> + Unpin + use<> {
    let request = Request::get(path).body(Vec::new()).expect("a request");
    let stream = client.request_stream(request).await.expect("a watch");
    let lines: std::pin::Pin<Box<dyn futures::Stream<Item = io::Result<String>> + Send>> =
        Box::pin(Box::pin(stream).lines());
    lines
}

#[tokio::test(start_paused = true)]
async fn a_client_writes_reads_and_watches() {
    let api = model();
    let client = api.client("admin");
    let mut watch = lines(&client, &format!("{MAPS}?watch=true&resourceVersion={}", api.revision())).await;
    assert_eq!(code(&client, &Method::POST, MAPS, &map("m")).await, Ok(201));
    let event: Value =
        serde_json::from_str(&watch.next().await.expect("open").expect("a line")).expect("JSON");
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("m")));
    let one = format!("{MAPS}/m");
    assert_eq!(code(&client, &Method::GET, &one, &Value::Null).await, Ok(200));
    assert_eq!(code(&client, &Method::GET, "/api/v1/odd", &Value::Null).await, Ok(404));
    assert_eq!(code(&client, &Method::GET, "/version", &Value::Null).await, Ok(200));
    let protobuf = Request::get(&one).header(ACCEPT, "application/vnd.kubernetes.protobuf");
    let refused = send(&client, protobuf.body(Body::empty()).expect("a request")).await.expect("an answer");
    assert_eq!(refused.0, 406);
    let large = json!({"data": "x".repeat(BODY_LEN_MAX)});
    assert_eq!(code(&client, &Method::PUT, &one, &large).await, Ok(413));
}

#[tokio::test(start_paused = true)]
async fn calls_fail_as_their_faults_say() {
    let api = model();
    let client = api.client_as("replica-0", "cloudcore");
    let other = api.client_as("replica-1", "cloudcore");
    for (fault, expected) in [
        (CallFault::Conflict, 409),
        (CallFault::Forbidden, 403),
        (CallFault::NotFound, 404),
        (CallFault::TooManyRequests(7), 429),
        (CallFault::Internal, 500),
        (CallFault::Unavailable, 503),
    ] {
        let scope = FaultScope::of_client("replica-0").on("configmaps");
        let id = api.fail(scope, fault, FaultRate::Always);
        let (code, headers, body) =
            send(&client, request(&Method::GET, MAPS, &Value::Null)).await.expect("an answer");
        assert_eq!(code, expected);
        let is_text = serde_json::from_slice::<Value>(&body).is_err();
        assert_eq!((is_text, headers.contains_key(RETRY_AFTER)), (code == 429, code == 429));
        assert_eq!(self::code(&other, &Method::GET, MAPS, &Value::Null).await, Ok(200));
        assert_eq!(self::code(&client, &Method::GET, "/api/v1/nodes", &Value::Null).await, Ok(200));
        api.lift(id);
    }
}

#[tokio::test(start_paused = true)]
async fn answers_may_be_late_or_lost_after_the_write() {
    let api = model();
    let client = api.client("admin");
    let exists = |name: &str| api.object(&KindKey::new("", "configmaps"), "default", name).is_some();
    let begin = tokio::time::Instant::now();
    let second = Duration::from_secs(1);
    let _ = api.fail(FaultScope::all(), CallFault::Delay(second), FaultRate::Times(1));
    assert_eq!(code(&client, &Method::POST, MAPS, &map("a")).await, Ok(201));
    assert_eq!(begin.elapsed(), second);
    for (fault, name, written) in [(CallFault::Unanswered, "b", false), (CallFault::AnswerLost, "c", true)] {
        let _ = api.fail(FaultScope::all(), fault, FaultRate::Times(1));
        let body = map(name);
        let call = code(&client, &Method::POST, MAPS, &body);
        tokio::time::timeout(second, call).await.expect_err("no answer");
        assert_eq!(exists(name), written, "{name}");
    }
    let _ = api.fail(FaultScope::all(), CallFault::AnswerCut, FaultRate::Times(1));
    code(&client, &Method::POST, MAPS, &map("d")).await.expect_err("cut off");
    assert!(exists("d"));
    let webhook = |ignored| CallFault::Webhook { hangs: Duration::from_secs(10), ignored };
    for (ignored, expected) in [(false, 500), (true, 201)] {
        let _ = api.fail(FaultScope::of_resource("configmaps"), webhook(ignored), FaultRate::Times(1));
        let begin = tokio::time::Instant::now();
        assert_eq!(code(&client, &Method::POST, MAPS, &map("e")).await, Ok(expected));
        assert_eq!((begin.elapsed(), exists("e")), (Duration::from_secs(10), ignored));
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_ends_every_connection() {
    let api = model();
    let client = api.client("admin");
    let mut watch = lines(&client, &format!("{MAPS}?watch=true&resourceVersion={}", api.revision())).await;
    let _ = api.fail(FaultScope::all().doing("get"), CallFault::Unanswered, FaultRate::Always);
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { code(&client, &Method::GET, "/api/v1/nodes/n", &Value::Null).await }
    });
    tokio::task::yield_now().await;
    api.restart(Duration::from_secs(5));
    waiting.await.expect("no panic").expect_err("cut off");
    watch.next().await.expect("an end").expect_err("cut off");
    code(&client, &Method::GET, MAPS, &Value::Null).await.expect_err("down");
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(code(&client, &Method::GET, MAPS, &Value::Null).await, Ok(200));
    let mut watch = lines(&client, &format!("{MAPS}?watch=true&resourceVersion=1")).await;
    let event: Value =
        serde_json::from_str(&watch.next().await.expect("open").expect("a line")).expect("JSON");
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert!(watch.try_next().await.expect("an orderly end").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_half_open_watch_stays_silent_for_ever() {
    let api = model();
    let client = api.client("admin");
    let path = format!("{MAPS}?watch=true&timeoutSeconds=30&resourceVersion={}", api.revision());
    let mut watch = lines(&client, &path).await;
    api.strike(FaultScope::of_resource("configmaps"), WatchFault::HalfOpen);
    api.actor("somebody").create(&map("m")).expect("created");
    tokio::time::timeout(Duration::from_secs(3600), watch.next()).await.expect_err("silence");
    assert_eq!(api.half_open_watches(), 1);
    drop(watch);
    assert_eq!(api.half_open_watches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_list_waits_for_the_version_that_it_demands() {
    let api = model();
    let client = api.client("admin");
    let path = format!("{MAPS}?resourceVersion={}", api.revision() + 1);
    let begin = tokio::time::Instant::now();
    assert_eq!(code(&client, &Method::GET, &path, &Value::Null).await, Ok(504));
    assert_eq!(begin.elapsed(), FRESH_WAIT);
    let waiting = tokio::spawn(async move { code(&client, &Method::GET, &path, &Value::Null).await });
    tokio::task::yield_now().await;
    api.actor("somebody").create(&map("m")).expect("created");
    assert_eq!(waiting.await.expect("no panic"), Ok(200));
}

fn as_node(path: &str, group: bool) -> Request<Body> {
    let request = Request::get(path).header("impersonate-user", "system:node:n");
    let request = if group { request.header("impersonate-group", "system:nodes") } else { request };
    request.body(Body::empty()).expect("a request")
}

#[tokio::test(start_paused = true)]
async fn a_client_acts_as_a_node_by_the_right_that_it_has() {
    let constrained = vec![
        RightsGrant::new("c", &["impersonate:arbitrary-node"], &["authentication.k8s.io"], &["nodes"]),
        RightsGrant::new("c", &["impersonate-on:arbitrary-node:list"], &[""], &["services"]),
    ];
    let legacy = vec![RightsGrant::new("c", &["impersonate"], &[""], &["users", "groups"])];
    for (grants, knows, group, expected) in [
        (&constrained, true, false, 200),
        (&constrained, true, true, 403),
        (&constrained, false, false, 403),
        (&legacy, true, true, 200),
        // Without its group a node may do nothing.
        (&legacy, false, false, 403),
        (&Vec::new(), true, true, 403),
    ] {
        let rights = RightsTable { open: false, grants: grants.clone() };
        let api =
            ModelApi::new(ModelConfig { rights, constrained_impersonation: knows, ..ModelConfig::default() });
        let client = api.client("c");
        let answer = send(&client, as_node("/api/v1/services", group)).await.expect("an answer");
        assert_eq!(answer.0, expected, "{grants:?} {knows} {group}");
        let pods = send(&client, as_node("/api/v1/pods", group)).await.expect("an answer");
        assert_eq!(pods.0, 403, "the Node authorizer or the right on pods is missing");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_the_identity_of_its_account() {
    let api = model();
    let client = api.client("admin");
    let token = api.issue_token("default", "sa", Duration::from_secs(60));
    let with = |token: &str| {
        let request = Request::get(MAPS).header(AUTHORIZATION, format!("Bearer {token}"));
        request.body(Body::empty()).expect("a request")
    };
    assert_eq!(send(&client, with(&token)).await.expect("an answer").0, 403, "the account has no rights");
    assert_eq!(send(&client, with("odd")).await.expect("an answer").0, 401);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "r"},
        "rules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["configmaps"]}]});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "b"},
        "subjects": [{"kind": "ServiceAccount", "name": "sa", "namespace": "default"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}});
    for object in [role, binding] {
        api.actor("somebody").create(&object).expect("created");
    }
    assert_eq!(send(&client, with(&token)).await.expect("an answer").0, 200);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(send(&client, with(&token)).await.expect("an answer").0, 401);
}

#[tokio::test(start_paused = true)]
async fn observers_are_told_of_writes_views_and_backups() {
    let api = model();
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    api.observe(move |event| {
        sink.lock().push(match event {
            super::super::ModelEvent::Wrote(change) => format!("wrote {}", change.name),
            super::super::ModelEvent::Restored { era, revision } => format!("restored {era} {revision}"),
            super::super::ModelEvent::ViewMoved { client, revision, selector, .. } => {
                format!("{client} sees {revision} {selector:?}")
            }
            super::super::ModelEvent::TokenIssued { account, .. } => format!("token of {account}"),
        });
    });
    let (client, before) = (api.client("a"), api.revision());
    code(&client, &Method::GET, "/api/v1/configmaps", &Value::Null).await.expect("a list");
    code(&client, &Method::POST, MAPS, &map("m")).await.expect("created");
    assert!(api.restore(before));
    let _ = api.issue_token("d", "sa", Duration::from_secs(1));
    let expected = [
        format!("a sees {before} Some(\";\")"),
        "wrote m".to_owned(),
        format!("restored 1 {before}"),
        "token of system:serviceaccount:d:sa".to_owned(),
    ];
    assert_eq!(*told.lock(), expected);
}
