//! A node that fills its share of the store does not block other writers.

use serde_json::json;

use crate::harness::{Api, Ask, Server};

/// The node's share of this is 1 MiB.
const STORE_LEN: u64 = 16 << 20;

/// Lets a node report an event with this many bytes of annotations.
async fn report(api: &Api, node: &str, name: &str, bytes: usize) -> (u16, String) {
    let event = json!({
        "metadata": {"name": name, "namespace": "default", "annotations": {"note": "x".repeat(bytes)}},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}, "reason": "r", "type": "Normal",
    });
    let user = format!("system:node:{node}");
    let headers = [
        ("impersonate-user", user.as_str()),
        ("impersonate-group", "system:nodes"),
        ("content-type", "application/json"),
    ];
    let path = "/api/v1/namespaces/default/events";
    let ask = Ask { method: "POST", path, headers: &headers, body: event.to_string() };
    let (code, reply) = api.send(ask).await;
    (code, reply["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn node_with_a_full_store_share_does_not_block_other_writers() {
    let server = Server::start_with_store(STORE_LEN).await;
    let api = server.api().await;
    let mut reported = 0;
    let (code, message) = loop {
        match report(&api, "a", &format!("a{reported}"), 200 * 1024).await {
            (201, _) if reported < 20 => reported += 1,
            answer => break answer,
        }
    };
    assert_eq!((code, reported), (507, 5), "{message}");
    assert!(message.contains("system:node:a has made the store larger"), "{message}");
    assert_eq!(report(&api, "b", "b", 200 * 1024).await, (201, String::new()), "another node");
    api.create("/api/v1/namespaces/default/configmaps", &json!({"metadata": {"name": "own"}})).await;
    let (code, reply) = api.delete("/api/v1/namespaces/default/events/a0", json!(null)).await;
    assert_eq!(code, 200, "{reply}");
    assert_eq!(
        report(&api, "a", "again", 200 * 1024).await,
        (201, String::new()),
        "deleted objects do not count"
    );
    server.stop().await;
}
