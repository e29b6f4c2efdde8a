//! Tests of how many copies of selections a node keeps, and which are removed.

use super::*;
use crate::subscriptions::KEPT_MAX;

const SERVICES: &str = "/api/v1/services";

fn leases(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

/// An agent that follows the leases of one namespace in addition to the warm set.
async fn with_leases(folder: &Path, cloud: &FakeCloud) -> Agent {
    let lease = Resource::new("coordination.k8s.io", "v1", "leases");
    cloud.put(&ObjectKey::new(lease, "default", "a"), "l1", &json!({"spec": {}}), &[]);
    cloud.put(&key("services", "web"), "s1", &json!({"spec": {}}), &[]);
    let agent = Agent::start(folder, cloud, false).await;
    wait_until("the warm set", DEADLINE, async || agent.names(SERVICES).await == ["web"]).await;
    wait_until("leases", DEADLINE, async || agent.names(&leases("default")).await == ["a"]).await;
    agent
}

#[tokio::test]
async fn unanswerable_queries_evict_no_copies() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let agent = with_leases(folder.path(), &cloud).await;
    away(&agent, &cloud).await;
    agent.stop().await;
    let agent = Agent::start(folder.path(), &cloud, false).await;
    for number in 0..KEPT_MAX + 8 {
        let (code, status) = agent.get(&leases(&format!("n{number}"))).await;
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{status}");
    }
    assert_eq!(agent.names(&leases("default")).await, ["a"]);
    assert_eq!(agent.names(SERVICES).await, ["web"]);
    agent.stop().await;
}

#[tokio::test]
async fn least_recently_read_copy_is_evicted_and_the_warm_set_never() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let agent = with_leases(folder.path(), &cloud).await;
    for number in 0..KEPT_MAX {
        let (code, list) = agent.get(&leases(&format!("n{number}"))).await;
        assert_eq!(code, StatusCode::OK, "{list}");
    }
    away(&agent, &cloud).await;
    let last = format!("n{}", KEPT_MAX - 1);
    assert_eq!(agent.get(&leases(&last)).await.0, StatusCode::OK, "the newest is kept");
    assert_eq!(agent.get(&leases("default")).await.0, StatusCode::SERVICE_UNAVAILABLE, "the oldest is not");
    assert_eq!(agent.names(SERVICES).await, ["web"]);
    agent.stop().await;
}
