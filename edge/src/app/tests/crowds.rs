//! Tests that one caller of the local API gets no more than its share of common resources.

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tombolo_apicore::server::{HANDSHAKE_TIMEOUT, UNPROVEN_PER_SOURCE_MAX};

use super::access::{MAPS, TOKEN_REVIEWS, with_account, with_the_pod};
use super::cloud::NO_ANSWER;
use super::*;
use crate::hub::STRANGERS_MAX;

#[tokio::test]
async fn silent_connections_lock_out_neither_pods_nor_the_kubelet() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let agent = Agent::start(folder.path(), &cloud, false).await;
    for address in [agent.pods, agent.https] {
        let mut silent = Vec::new();
        for _ in 0..=UNPROVEN_PER_SOURCE_MAX {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        // Earlier than the handshake timeout would end it.
        let end = timeout(HANDSHAKE_TIMEOUT / 2, silent[0].read(&mut [0])).await;
        assert_eq!(end.expect("the oldest makes room").unwrap_or(0), 0, "{address}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn made_up_tokens_do_not_block_requests_to_the_cloud() {
    let (folder, cloud, issuer) = with_account();
    cloud.script(&format!("POST {TOKEN_REVIEWS}"), |_, _| (NO_ANSWER, Value::Null));
    let agent = with_the_pod(folder.path(), &cloud).await;
    let forged = issuer.sign("a-key-that-nobody-has", "u3", 3600);
    let mut asking: FuturesUnordered<_> =
        (0..STRANGERS_MAX / 2 + 8).map(|_| agent.as_pod(&forged, MAPS)).collect();
    for _ in 0..8 {
        assert_eq!(asking.next().await.unwrap().0, StatusCode::SERVICE_UNAVAILABLE);
    }
    let reviews = cloud.calls().iter().filter(|call| call.ends_with("/tokenreviews")).count();
    assert!(reviews <= STRANGERS_MAX / 2, "{reviews} of one address");
    let path = "/api/v1/namespaces/default/configmaps/app";
    let (code, _) = agent.call(Method::PATCH, path, r#"{"data":{"a":"2"}}"#).await;
    assert_eq!(code, StatusCode::OK, "the node's own components are answered");
    drop(asking);
    agent.stop().await;
}
