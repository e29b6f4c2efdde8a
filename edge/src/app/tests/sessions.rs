//! Tests of sessions that end at once, refused reports, and a store that fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::Instant;

use super::cloud::LEASE_MADE;
use super::*;

const STATUS: &str = "PATCH /api/v1/namespaces/default/pods/web/status";

/// A store that cannot commit, or a second agent with this node's identity: each session is accepted and ends at once.
#[tokio::test]
async fn back_off_grows_after_a_session_that_ends_at_once() {
    const SESSIONS: u32 = 6;
    const FIRST: Duration = Duration::from_millis(50);
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let agent = Agent::start_with(folder.path(), &cloud, Duration::ZERO, |config| {
        config.cloud.back_off.first_millis = 50;
        config.cloud.back_off.max_millis = 60_000;
    })
    .await;
    let began = Instant::now();
    for _ in 0..SESSIONS {
        agent.connects().await;
        wait_until("the first synchronisation", DEADLINE, async || agent.status.look().synced).await;
        cloud.set_away(true);
        cloud.set_away(false);
        agent.loses_the_cloud().await;
    }
    // Each wait is at least half of twice the one before.
    let least = FIRST / 2 * (2_u32.pow(SESSIONS - 1) - 1);
    assert!(began.elapsed() >= least, "{SESSIONS} sessions in {:?}, not in {least:?}", began.elapsed());
    agent.stop().await;
}

/// How often a call was made.
fn made(cloud: &FakeCloud, call: &str) -> usize {
    cloud.calls().iter().filter(|other| *other == call).count()
}

#[tokio::test]
async fn conflicting_status_is_reported_again_and_a_refused_one_is_kept() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let web = key("pods", "web");
    cloud.put(&web, "u3", &pod_spec(), &[]);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    cloud.script(STATUS, move |_, _| match count.fetch_add(1, Ordering::SeqCst) {
        0 => (409, json!({"kind": "Status", "code": 409, "reason": "Conflict"})),
        1 => (403, json!({"kind": "Status", "code": 403, "reason": "Forbidden"})),
        _ => (200, json!({})),
    });
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the third attempt", DEADLINE, async || made(&cloud, STATUS) >= 3).await;
    wait_until("an empty outbox", DEADLINE, async || agent.status.look().reports_waiting == 0).await;
    agent.stop().await;
}

#[tokio::test]
async fn status_of_a_replaced_pod_is_not_reported_again() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.put(&key("pods", "web"), "u3", &pod_spec(), &[]);
    cloud.script(STATUS, |_, _| (409, json!({"kind": "Status", "code": 409, "reason": "Conflict"})));
    let another = json!({"kind": "Pod", "metadata": {"name": "web", "namespace": "default", "uid": "u4"}});
    cloud.script("GET /api/v1/namespaces/default/pods/web", move |_, _| (200, another.clone()));
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the attempt", DEADLINE, async || made(&cloud, STATUS) >= 1).await;
    wait_until("an empty outbox", DEADLINE, async || agent.status.look().reports_waiting == 0).await;
    assert_eq!(made(&cloud, STATUS), 1);
    agent.stop().await;
}

/// Agents that reconnect create nothing that exists already, also after a restart.
#[tokio::test]
async fn reconnecting_agent_creates_node_and_lease_only_if_missing() {
    const NODE: &str = "Insert null/node/edge-a";
    const REPORT: &str = "PATCH /api/v1/nodes/edge-a/status";
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let registers = || (made(&cloud, NODE), made(&cloud, LEASE_MADE));
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the first report", DEADLINE, async || made(&cloud, REPORT) == 1).await;
    assert_eq!(registers(), (1, 1));
    cloud.put(&ObjectKey::new(Resource::new("", "v1", "nodes"), "", "edge-a"), "node-uid", &json!({}), &[]);
    let path = "/api/v1/nodes/edge-a";
    wait_until("its copy", DEADLINE, async || agent.get(path).await.0 == StatusCode::OK).await;
    let comes_back = async |reports: usize| {
        let renewals = cloud.leases();
        cloud.set_away(false);
        wait_until("another report and renewal", DEADLINE, async || {
            made(&cloud, REPORT) >= reports && cloud.leases() > renewals
        })
        .await;
    };
    away(&agent, &cloud).await;
    comes_back(2).await;
    away(&agent, &cloud).await;
    agent.stop().await;
    let agent = Agent::start(folder.path(), &cloud, false).await;
    comes_back(3).await;
    assert_eq!(registers(), (1, 1));

    away(&agent, &cloud).await;
    cloud.lose_lease();
    // The local copy does not matter, because a KubeEdge cloud does not compare it.
    cloud.script(REPORT, |_, _| (404, json!({"kind": "Status", "code": 404, "reason": "NotFound"})));
    comes_back(4).await;
    wait_until("both to be made again", DEADLINE, async || registers().0 == 2 && registers().1 >= 2).await;
    agent.stop().await;
}

#[tokio::test]
async fn failed_store_ends_the_agent() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let node = NodeId::parse("edge-a").unwrap();
    identity_for(&node).save(folder.path()).unwrap();
    let mut config = Config::new(node.clone(), folder.path());
    config.admin = None;
    config.local_api.https = "127.0.0.1:0".parse().unwrap();
    config.wrapper.address = None;
    config.dns.hosts_path = None;
    let bound = App::with_dialer(config, Box::new(FakeDialer { cloud, node })).await.unwrap();
    let store = bound.store.clone();
    let (_trigger, drain) = drain::channel(Duration::from_secs(5));
    let running = tokio::spawn(bound.run(drain));
    store.fail("its writer has panicked");
    let ended = tokio::time::timeout(DEADLINE, running).await.expect("it ends by itself").unwrap();
    let error = ended.expect_err("not as if all were well").to_string();
    assert!(error.contains("its writer has panicked") && error.contains("next start"), "{error}");
}
