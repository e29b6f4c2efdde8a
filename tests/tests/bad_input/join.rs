//! Mistakes of a node that joins.

use jsonwebtoken::{EncodingKey, Header};
use serde_json::json;
use tombolo_cloud::bootstrap::NewToken;
use tombolo_proto::NodeId;
use tombolo_testkit::{wait_for, wait_for_value};
use tombolo_tests::raw::{Names, ask_certificate, signing_request};
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

use super::{refusal, says};

async fn world() -> (World, String) {
    let world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let token = wait_for_value("a join token", DEADLINE, || world.join_token()).await;
    (world, token)
}

/// A token for the same cloud as `token`, signed with this key, that expires at this time.
fn signed(token: &str, key: &[u8], exp: u64) -> String {
    let jwt = jsonwebtoken::encode(&Header::default(), &json!({"exp": exp}), &EncodingKey::from_secret(key));
    format!("{}.{}", token.split('.').next().unwrap(), jwt.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_tokens_are_refused() {
    let settings = json!({"sharedToken": true});
    let mut world = World::start_with(Api::Embedded, Transport::WebSocket, settings).await.unwrap();
    let token = wait_for_value("the shared token", DEADLINE, || world.shared_token()).await;
    world.prepare_edge("edge-a").unwrap();
    let join = |token: &str| refusal(&world.edge_join("edge-a", token).unwrap());
    let (hash, jwt) = token.split_once('.').unwrap();
    let key = world.hub_secret("casecret", "cakeydata").await.unwrap();

    let forged = join(&signed(&token, b"another key", 4_000_000_000));
    says(&forged, &["edge-a (401)", "was not signed by this cloud"]);
    let wrong_ca = join(&format!("{}.{jwt}", "0".repeat(64)));
    says(
        &wrong_ca,
        &[
            &world.join_address(),
            hash,
            "the token belongs to another cloud, or the connection is intercepted",
        ],
    );
    let expired = join(&signed(&token, &key, 1_000_000_000));
    says(&expired, &["edge-a (401)", "the join token expired", "get a new one (`tombolo token`"]);
    says(&join(jwt), &["the token does not have four parts", "copy the whole token"]);
    assert!(!world.edge_dir("edge-a").join("pki").exists(), "no files were stored");
    says(
        &world.cloud_log(),
        &["join request refused", "was not signed by this cloud", "the join token expired"],
    );
    world.check_cloud().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_does_not_take_over_an_existing_node() {
    let (mut world, _) = world().await;
    let node = NodeId::parse("edge-a").unwrap();
    let token = NewToken { names: vec![node], uses: 9, life: DEADLINE * 10, replace: false };
    let token = world.new_token(&token).await.unwrap();
    world.start_edge("edge-a").await.unwrap();
    // From its registration on, Ready or not.
    wait_for("the node to register", DEADLINE, || async {
        let client = world.client().await.map_err(|error| format!("{error:#}"))?;
        let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(client);
        nodes.get("edge-a").await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    let refused = world.edge_join("edge-a", &token).unwrap();
    says(&refusal(&refused), &["edge-a (409)", "may not take over its name", "--replace"]);
    world.check_edge("edge-a").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signing_requests_for_more_than_a_name_are_refused() {
    let (mut world, _) = world().await;
    let nodes = &["system:nodes"];
    let cases = [
        (
            Names { common: "system:node:edge-b", organisations: nodes, dns: &[] },
            vec!["system:node:edge-b", "expected common name \"system:node:edge-a\""],
        ),
        (
            Names { common: "system:node:edge-a", organisations: nodes, dns: &["hub.example"] },
            vec!["extension 2.5.29.17", "a node certificate contains only a name"],
        ),
        (
            Names {
                common: "system:node:edge-a",
                organisations: &["system:nodes", "system:masters"],
                dns: &[],
            },
            vec!["system:masters", "expected exactly system:nodes"],
        ),
    ];
    for (names, parts) in cases {
        let (request, _) = signing_request(&names).unwrap();
        let (code, text) = ask_certificate(&world, "edge-a", &request).await.unwrap();
        assert_eq!(code, 400, "{names:?}");
        says(&String::from_utf8_lossy(&text), &parts);
    }
    let (code, text) = ask_certificate(&world, "edge-a", b"hello").await.unwrap();
    assert_eq!(code, 400);
    says(&String::from_utf8_lossy(&text), &["not a certificate signing request in DER form"]);
    world.check_cloud().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_hub_issues_certificates_and_says_when_to_retry() {
    let settings = json!({"nodeLimit": 1});
    let mut world = World::start_with(Api::Embedded, Transport::Quic, settings).await.unwrap();
    let first = world.raw_node("edge-a", "edge-a").await.unwrap();
    first.api("GET", "/api/v1/nodes/edge-a", "", "").await.unwrap();
    let goodbye = world.raw_node("edge-b", "edge-b").await.unwrap().ended().await.unwrap();
    says(&goodbye.message, &["at most 1 nodes", "nodeLimit"]);
    assert_eq!(goodbye.reason, tombolo_proto::frame::GoodbyeReason::Overloaded);
    assert!((30..=60).contains(&goodbye.retry_after.as_secs()), "{:?}", goodbye.retry_after);

    world.start_edge("edge-c").await.unwrap();
    wait_for("the agent to log why it waits", DEADLINE, || async {
        let log = world.edge_log("edge-c");
        if log.contains("at most 1 nodes") && log.contains("retry_in") { Ok(()) } else { Err(log) }
    })
    .await;
    world.check_edge("edge-c").unwrap();
    says(&world.cloud_log(), &["connection refused: the node limit is reached"]);
    drop(first);
    wait_for("the slot to be free", DEADLINE, || async {
        let node = world.raw_node("edge-b", "edge-b").await.map_err(|error| format!("{error:#}"))?;
        node.api("GET", "/api/v1/nodes/edge-b", "", "").await.map(drop).map_err(|error| format!("{error:#}"))
    })
    .await;
}
