use std::path::Path;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tombolo_proto::object::{ObjectKey, Resource};
use tombolo_runtime::{Trigger, drain};
use tombolo_testkit::wait_until;

use super::*;
use crate::identity::testing::{fetch_local, identity_for};
use cloud::{FakeCloud, FakeDialer};

mod access;
mod bad_input;
mod cloud;
mod copies;
mod crowds;
mod kinds;
mod kubectl;
mod names;
mod odd_names;
mod offline;
mod reads;
mod sessions;
mod shared;
mod watches;
mod wrapper;

const DEADLINE: Duration = Duration::from_secs(20);

fn key(resource: &str, name: &str) -> ObjectKey {
    ObjectKey::new(Resource::new("", "v1", resource), "default", name)
}

/// A running agent.
struct Agent {
    trigger: Trigger,
    done: JoinHandle<Result<(), AppError>>,
    status: StatusHandle,
    https: SocketAddr,
    pods: SocketAddr,
    http: SocketAddr,
    wrapper: SocketAddr,
    dns: Option<SocketAddr>,
    kubeconfig: Value,
}

impl Agent {
    async fn start(folder: &Path, cloud: &FakeCloud, simulate: bool) -> Self {
        Self::start_later(folder, cloud, simulate, Duration::ZERO).await
    }

    /// Starts with a clock for tokens that is ahead by `later`.
    async fn start_later(folder: &Path, cloud: &FakeCloud, simulate: bool, later: Duration) -> Self {
        Self::start_with(folder, cloud, later, |config| {
            config.simulate_pods = simulate;
        })
        .await
    }

    /// Starts with changed settings.
    async fn start_with(
        folder: &Path,
        cloud: &FakeCloud,
        later: Duration,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let node = NodeId::parse("edge-a").unwrap();
        if Identity::load(folder, &node).is_err() {
            identity_for(&node).save(folder).unwrap();
        }
        let mut config = Config::new(node.clone(), folder);
        config.admin = None;
        config.local_api.https = "127.0.0.1:0".parse().unwrap();
        config.local_api.http = Some("127.0.0.1:0".parse().unwrap());
        config.local_api.pods = Some("127.0.0.1:0".parse().unwrap());
        config.dns.hosts_path = Some(folder.join("hosts"));
        config.wrapper.address = Some("127.0.0.1:0".parse().unwrap());
        config.cloud.back_off.first_millis = 20;
        config.cloud.back_off.max_millis = 50;
        config.node.lease_interval_millis = 100;
        change(&mut config);
        let dialer = Box::new(FakeDialer { cloud: cloud.clone(), node });
        let bound = App::with_dialer(config, dialer).await.unwrap();
        let bound = bound.with_clock(move || SystemTime::now() + later);
        let (https, http) = (bound.local_api_addr(), bound.local.http_addr().unwrap());
        let (wrapper, dns) = (bound.wrapper_addr().unwrap(), bound.network.dns.as_ref().map(Dns::local_addr));
        let kubeconfig = serde_json::from_str(&bound.kubeconfig().unwrap()).unwrap();
        let (trigger, drain) = drain::channel(Duration::from_secs(5));
        let status = bound.status();
        let pods = bound.local.pods_addr().unwrap();
        Self {
            trigger,
            done: tokio::spawn(bound.run(drain)),
            status,
            https,
            pods,
            http,
            wrapper,
            dns,
            kubeconfig,
        }
    }

    /// Waits until there is a session.
    async fn connects(&self) {
        wait_until("the first session", DEADLINE, async || self.status.look().transport.is_some()).await;
    }

    /// Waits until there is no session.
    async fn loses_the_cloud(&self) {
        wait_until("the loss to be noticed", DEADLINE, async || self.status.look().transport.is_none()).await;
    }

    async fn stop(self) {
        self.trigger.start();
        self.done.await.unwrap().unwrap();
    }

    /// Answer of the local API over HTTPS with the kubeconfig's credentials.
    async fn call(&self, method: Method, path: &str, body: &str) -> (StatusCode, Value) {
        fetch_local(&self.kubeconfig, self.https, method, path, body).await
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.call(Method::GET, path, "").await
    }

    /// Names in a list.
    async fn names(&self, path: &str) -> Vec<String> {
        let (code, list) = self.get(path).await;
        if code != StatusCode::OK {
            return vec![code.to_string()];
        }
        names(&list)
    }
}

/// Makes the cloud unreachable, and waits until the agent has noticed.
async fn away(agent: &Agent, cloud: &FakeCloud) {
    cloud.set_away(true);
    agent.loses_the_cloud().await;
}

/// Waits until the cloud has all that the agent has for it, for statements that something is not sent. An event that the
/// agent accepts without a cloud is sent after what it accepted before.
async fn fence(agent: &Agent, cloud: &FakeCloud) {
    const EVENTS: &str = "/api/v1/namespaces/fences/events";
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "fence", "namespace": "fences"},
        "involvedObject": {"kind": "Pod", "namespace": "fences", "name": "web"}, "reason": "Fence",
    });
    away(agent, cloud).await;
    let (code, made) = agent.call(Method::POST, EVENTS, &event.to_string()).await;
    assert_eq!(code, StatusCode::CREATED, "{made}");
    cloud.set_away(false);
    wait_until("the fence", DEADLINE, async || {
        cloud.calls().contains(&format!("POST {EVENTS}")) && agent.status.look().reports_waiting == 0
    })
    .await;
}

/// Names in a list.
fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn pod_spec() -> Value {
    json!({"spec": {"nodeName": "edge-a", "containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "Pending"}})
}

#[tokio::test]
async fn objects_are_delivered_updated_and_deleted_across_restarts() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let (app, token) = (key("configmaps", "app"), key("secrets", "token"));
    cloud.put(&app, "u1", &json!({"data": {"a": "1"}}), &[]);
    cloud.put(&token, "u2", &json!({"data": {}}), &[]);
    cloud.put(&key("pods", "web"), "u3", &pod_spec(), &[app.clone(), token.clone()]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the pod", DEADLINE, async || agent.names("/api/v1/pods").await == ["web"]).await;
    assert_eq!(agent.names("/api/v1/namespaces/default/secrets").await, ["token"]);
    cloud.put(&app, "u1", &json!({"data": {"a": "2"}}), &[]);
    wait_until("the update", DEADLINE, async || {
        agent.get("/api/v1/namespaces/default/configmaps/app").await.1["data"]["a"] == "2"
    })
    .await;
    let before = agent.status.look().revision;
    agent.stop().await;

    // While the agent is down, one object is changed, one deleted and one created.
    cloud.put(&app, "u1", &json!({"data": {"a": "3"}}), &[]);
    cloud.delete(&token);
    cloud.put(&key("configmaps", "new"), "u4", &json!({"data": {}}), &[]);
    cloud.set_away(true);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    assert_eq!(agent.names("/api/v1/configmaps").await, ["app"], "kept objects are served without a cloud");
    assert_eq!(agent.names("/api/v1/pods").await, ["web"]);
    assert!(agent.status.look().revision >= before, "local revisions do not go back");
    cloud.set_away(false);
    wait_until("the differences", DEADLINE, async || {
        agent.names("/api/v1/configmaps").await == ["app", "new"]
            && agent.names("/api/v1/secrets").await == [] as [String; 0]
            && agent.get("/api/v1/namespaces/default/configmaps/app").await.1["data"]["a"] == "3"
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn lists_are_refused_before_the_first_sync() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.set_away(true);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    let (code, status) = agent.get("/api/v1/pods").await;
    assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
    assert!(status["message"].as_str().unwrap().contains("has not heard from the cloud"), "{status}");
    assert!(status["details"]["retryAfterSeconds"].as_u64().unwrap() > 0);
    cloud.set_away(false);
    wait_until("an empty list that is true", DEADLINE, async || {
        agent.get("/api/v1/pods").await.0 == StatusCode::OK
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn the_agent_registers_renews_and_reports() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let web = key("pods", "web");
    cloud.put(&web, "u3", &pod_spec(), &[]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("leases", DEADLINE, async || cloud.leases() >= 3).await;
    wait_until("an honest status in the cloud", DEADLINE, async || {
        cloud.object(&web).is_some_and(|pod| pod["status"]["reason"] == "NoContainerRuntime")
    })
    .await;
    let reads = |call: &String| call.starts_with("GET ");
    let calls: Vec<_> = cloud.calls().into_iter().filter(|call| !reads(call)).collect();
    assert_eq!(calls[0], "Insert null/node/edge-a", "registration comes before the lease: {calls:?}");
    for call in [
        "POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
        "PATCH /api/v1/nodes/edge-a/status",
        "PATCH /api/v1/namespaces/default/pods/web/status",
    ] {
        wait_until(call, DEADLINE, async || cloud.calls().iter().any(|made| made == call)).await;
    }
    wait_until("an empty outbox", DEADLINE, async || agent.status.look().reports_waiting == 0).await;
    // The objects of the answers are held already, so a new session delivers nothing again.
    let (acknowledged, caught_up) = cloud.progress();
    cloud.set_away(true);
    cloud.set_away(false);
    wait_until("another session", DEADLINE, async || cloud.progress().1 > caught_up).await;
    assert_eq!(cloud.progress().0, acknowledged, "nothing has changed");
    // Deletion: no kubelet runs the pod, so its object may be removed.
    let mut deleted = pod_spec();
    deleted["metadata"] = json!({"deletionTimestamp": "2026-11-21T05:00:00Z"});
    cloud.put(&web, "u3", &deleted, &[]);
    wait_until("the removal", DEADLINE, async || cloud.object(&web).is_none()).await;
    wait_until("the pod to go here", DEADLINE, async || agent.names("/api/v1/pods").await.is_empty()).await;
    agent.stop().await;
}

/// Before the first synchronisation, the store of a new agent on an existing node does not say whether a kubelet owns
/// the node.
#[tokio::test]
async fn agent_without_its_node_does_not_report_beside_a_kubelet() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let there = json!({"code": 409, "reason": "AlreadyExists", "message": "nodes \"edge-a\" already exists"});
    cloud.script("Insert null/node/edge-a", move |_, _| (409, there.clone()));
    let kubelets = json!({
        "metadata": {"name": "edge-a", "uid": "n"}, "status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}},
    });
    cloud.script("GET /api/v1/nodes/edge-a", move |_, _| (200, kubelets.clone()));
    let agent = Agent::start(folder.path(), &cloud, false).await;
    let asked = |call: &str| cloud.calls().iter().filter(|made| *made == call).count();
    // A second read means that the agent has processed the first one.
    wait_until("another look", DEADLINE, async || asked("GET /api/v1/nodes/edge-a") >= 2).await;
    let writes: Vec<_> = cloud.calls().into_iter().filter(|call| !call.starts_with("GET ")).collect();
    assert!(writes.iter().all(|call| call == "Insert null/node/edge-a"), "{writes:?}");
    assert_eq!(cloud.leases(), 0);
    agent.stop().await;
}

#[tokio::test]
async fn reports_made_without_a_cloud_arrive_after_a_restart() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let web = key("pods", "web");
    let agent = Agent::start(folder.path(), &cloud, true).await;
    wait_until("the first synchronisation", DEADLINE, async || agent.status.look().synced).await;
    cloud.put(&web, "u3", &pod_spec(), &[]);
    wait_until("the pod", DEADLINE, async || agent.names("/api/v1/pods").await == ["web"]).await;
    cloud.set_away(true);
    let path = "/api/v1/namespaces/default/pods/web";
    wait_until("the simulation to go on alone", DEADLINE, async || {
        agent.get(path).await.1["status"]["phase"] == "Running"
    })
    .await;
    agent.stop().await;
    let agent = Agent::start(folder.path(), &cloud, true).await;
    let pod = agent.get(path).await.1;
    assert_eq!((&pod["status"]["phase"], &pod["status"]["reason"]), (&json!("Running"), &json!("Simulated")));
    cloud.set_away(false);
    wait_until("the status in the cloud", DEADLINE, async || {
        cloud.object(&web).is_some_and(|pod| pod["status"]["phase"] == "Running")
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn writes_go_through_or_say_when_to_try_again() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let app = key("configmaps", "app");
    cloud.put(&app, "u1", &json!({"data": {"a": "1"}}), &[]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    let path = "/api/v1/namespaces/default/configmaps/app";
    wait_until("the object", DEADLINE, async || agent.get(path).await.0 == StatusCode::OK).await;
    let (code, answer) = agent.call(Method::PATCH, path, r#"{"data":{"a":"patched"}}"#).await;
    assert_eq!((code, &answer["data"]["a"]), (StatusCode::OK, &json!("patched")));
    assert_eq!(agent.get(path).await.1["data"]["a"], "patched", "stored before the client was answered");
    away(&agent, &cloud).await;
    let (code, status) = agent.call(Method::PATCH, path, r#"{"data":{"a":"x"}}"#).await;
    assert_eq!((code, &status["reason"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("ServiceUnavailable")));
    assert!(status["details"]["retryAfterSeconds"].as_u64().unwrap() > 0);
    agent.stop().await;
}

#[tokio::test]
async fn secrets_need_credentials() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.put(&key("secrets", "s"), "u1", &json!({"data": {}}), &[]);
    cloud.put(&key("configmaps", "m"), "u2", &json!({"data": {}}), &[]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the objects", DEADLINE, async || agent.names("/api/v1/secrets").await == ["s"]).await;
    let plain = async |path: &str| crate::identity::testing::get_plain(agent.http, path).await;
    assert_eq!(plain("/api/v1/configmaps").await, StatusCode::OK);
    for path in ["/api/v1/secrets", "/api/v1/namespaces/default/secrets/s", "/api/v1/secrets?watch=true"] {
        assert_eq!(plain(path).await, StatusCode::FORBIDDEN, "{path}");
    }
    let mut wrong = agent.kubeconfig.clone();
    wrong["users"][0]["user"]["token"] = "wrong".into();
    let (code, _) = fetch_local(&wrong, agent.https, Method::GET, "/api/v1/configmaps", "").await;
    assert_eq!(code, StatusCode::UNAUTHORIZED);
    use std::os::unix::fs::PermissionsExt;
    for file in
        ["kubeconfig", "pki/local-token", "pki/local-ca.pem", "pki/node.pem", "store.key", "store.redb"]
    {
        let mode = std::fs::metadata(folder.path().join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{file}");
    }
    agent.stop().await;
}
