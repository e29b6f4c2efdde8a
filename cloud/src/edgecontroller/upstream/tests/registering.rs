//! A Node is created after its mark is recorded, by every way to create one.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::bootstrap::{ClusterNodes, ClusterSecrets};

/// What is asked and answered, and the records of a node that has joined and has no Node.
async fn joined(can_record: bool) -> (Upstream, Log) {
    let record = STANDARD.encode(r#"{"keys":[{"key":"00","issued":1,"expires":9999999999}],"joined":1}"#);
    let (client, log) = scripted(move |line| {
        let secret = |version: &str| {
            let data = json!({"n": record});
            (200, json!({"metadata": {"name": "x", "resourceVersion": version}, "data": data}))
        };
        match line.split_once(' ') {
            Some(("GET", path)) if path.contains("/secrets/") => secret("1"),
            Some((_, path)) if path.contains("/secrets/") && can_record => secret("2"),
            Some((_, path)) if path.contains("/secrets/") => (500, json!({"message": "broken"})),
            Some(("GET", _)) => {
                (404, json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}))
            }
            _ => (201, json!({"metadata": {"name": "n", "uid": "u1"}})),
        }
    });
    let secrets = Arc::new(ClusterSecrets::new(client.clone(), "kubeedge"));
    let nodes = Arc::new(ClusterNodes::new(client.clone()));
    let identities = Identities::open(secrets, nodes, Arc::new(SystemTime::now), 0).await.expect("read");
    log.lock().clear();
    (upstream(client).with_identities(Arc::new(identities)), log)
}

fn call(method: &str, path: &str, content_type: &str) -> ApiRequest {
    ApiRequest {
        method: method.to_owned(),
        path_and_query: path.to_owned(),
        content_type: content_type.to_owned(),
        accept: String::new(),
        body: r#"{"metadata":{"name":"n"}}"#.into(),
    }
}

/// Registers in each of the ways, and gives the codes of the answers.
async fn register(upstream: &Upstream, way: usize) -> Option<u16> {
    let request = match way {
        0 => call("POST", "/api/v1/nodes?fieldManager=kubelet", "application/json"),
        1 => call("POST", "/api/v1/nodes/", "application/json"),
        2 => call("PATCH", "/api/v1/nodes/n?fieldManager=x", "application/apply-patch+yaml"),
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

/// What was asked that matters here: records that were written, and Nodes that may have been created.
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
