//! Tests of the reads and writes of a kubelet without a cloud.

use std::collections::BTreeMap;

use super::cloud::patched;
use super::*;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge-a";
const POD: &str = "/api/v1/namespaces/default/pods/web";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const NODE: &str = "/api/v1/nodes/edge-a";

fn node() -> ObjectKey {
    ObjectKey::new(Resource::new("", "v1", "nodes"), "", "edge-a")
}

fn lease() -> ObjectKey {
    ObjectKey::new(Resource::new("coordination.k8s.io", "v1", "leases"), "kube-node-lease", "edge-a")
}

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// Renews the lease based on the version that it reads.
async fn renew(agent: &Agent, time: &str) -> (StatusCode, Value) {
    let mut lease = agent.get(LEASE).await.1;
    lease["spec"]["renewTime"] = time.into();
    agent.call(Method::PUT, LEASE, &lease.to_string()).await
}

async fn with_lease() -> (tempfile::TempDir, FakeCloud, Agent) {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let spec = json!({"holderIdentity": "edge-a", "leaseDurationSeconds": 40});
    let body = json!({"apiVersion": "coordination.k8s.io/v1", "spec": spec});
    cloud.put(&lease(), "l1", &body, &[]);
    // A kubelet has registered the node, so the agent does not report for it.
    let status = json!({"status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}}});
    cloud.put(&node(), "n1", &status, &[]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the Node", DEADLINE, async || agent.get(NODE).await.0 == StatusCode::OK).await;
    wait_until("the lease", DEADLINE, async || agent.get(LEASE).await.0 == StatusCode::OK).await;
    (folder, cloud, agent)
}

#[tokio::test]
async fn single_answers_are_kept_and_served_offline() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    // The fake cloud does not push objects of this name.
    let (map, secret) = (key("configmaps", "another"), key("secrets", "another"));
    cloud.put(&map, "c1", &json!({"data": {"a": "1"}}), &[]);
    cloud.put(&secret, "s1", &json!({"data": {"k": "cGxhaW50ZXh0"}}), &[]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    let path = |resource: &str, name: &str| format!("/api/v1/namespaces/default/{resource}/{name}");
    let read = async |agent: &Agent| agent.get(&path("configmaps", "another")).await.1["data"]["a"].clone();
    wait_until("the first answer", DEADLINE, async || read(&agent).await == "1").await;
    let before = agent.get(&path("configmaps", "another")).await.1;
    cloud.put(&map, "c1", &json!({"data": {"a": "2"}}), &[]);
    assert_eq!(read(&agent).await, "2", "the cloud answers while it is reachable");
    assert!(revision(&agent.get(&path("configmaps", "another")).await.1) > revision(&before));
    assert_eq!(agent.get(&path("secrets", "another")).await.0, StatusCode::OK);
    assert_eq!(agent.get(&path("configmaps", "none")).await.0, StatusCode::NOT_FOUND);
    agent.stop().await;
    let file = std::fs::read(folder.path().join("store.redb")).unwrap();
    assert!(!file.windows(12).any(|bytes| bytes == b"cGxhaW50ZXh0"), "Secrets are encrypted");

    cloud.set_away(true);
    cloud.put(&map, "c1", &json!({"data": {"a": "3"}}), &[]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    assert_eq!(read(&agent).await, "2");
    assert_eq!(agent.get(&path("secrets", "another")).await.1["data"]["k"], "cGxhaW50ZXh0");
    assert_eq!(agent.get(&path("configmaps", "none")).await.0, StatusCode::NOT_FOUND);
    let (code, status) = agent.get(&path("configmaps", "never")).await;
    assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{status}");
    assert!(status["message"].as_str().unwrap().contains("never synced"), "{status}");
    assert!(status["details"]["retryAfterSeconds"].as_u64().unwrap() > 0);
    cloud.set_away(false);
    wait_until("the cloud's answer", DEADLINE, async || read(&agent).await == "3").await;
    cloud.delete(&map);
    wait_until("the end", DEADLINE, async || {
        agent.get(&path("configmaps", "another")).await.0 == StatusCode::NOT_FOUND
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn the_lease_is_renewed_with_and_without_a_cloud() {
    let (folder, cloud, agent) = with_lease().await;
    let calls = cloud.calls().len();
    let (code, first) = renew(&agent, "2026-11-22T10:00:00.000001Z").await;
    assert_eq!(code, StatusCode::OK, "{first}");
    let puts = |from: usize| cloud.calls()[from..].iter().filter(|call| call.starts_with("PUT")).count();
    assert_eq!(puts(calls), 0, "a renewal is no call of the API");
    away(&agent, &cloud).await;
    let (code, second) = renew(&agent, "2026-11-22T10:00:10.000002Z").await;
    assert_eq!(code, StatusCode::OK, "{second}");
    assert!(revision(&second) > revision(&first));
    let (code, third) = renew(&agent, "2026-11-22T10:00:20.000003Z").await;
    assert_eq!(code, StatusCode::OK, "{third}");
    let (code, stale) = agent.call(Method::PUT, LEASE, &second.to_string()).await;
    assert_eq!((code, &stale["reason"]), (StatusCode::CONFLICT, &json!("Conflict")), "{stale}");
    agent.stop().await;

    let agent = Agent::start(folder.path(), &cloud, false).await;
    let read = agent.get(LEASE).await.1;
    assert_eq!((revision(&read), &read["spec"]), (revision(&third), &third["spec"]));
    assert_eq!(agent.status.look().reports_waiting, 1, "only the newest of several reports about one object");
    cloud.set_away(false);
    wait_until("the lease in the cloud", DEADLINE, async || {
        cloud.object(&lease()).unwrap()["spec"]["renewTime"] == "2026-11-22T10:00:20.000003Z"
    })
    .await;
    wait_until("an empty outbox", DEADLINE, async || agent.status.look().reports_waiting == 0).await;
    agent.stop().await;
}

#[tokio::test]
async fn pod_statuses_are_accepted_offline_and_reported_as_changes() {
    let (folder, cloud, agent) = with_lease().await;
    let web = key("pods", "web");
    let mut pod = pod_spec();
    pod["status"]["message"] = "by another".into();
    cloud.put(&web, "u3", &pod, &[]);
    wait_until("the pod", DEADLINE, async || agent.get(POD).await.0 == StatusCode::OK).await;
    away(&agent, &cloud).await;
    let patch = async |agent: &Agent, status: Value| {
        let body = json!({"metadata": {"uid": "u3"}, "status": status}).to_string();
        agent.call(Method::PATCH, &format!("{POD}/status"), &body).await
    };
    let before = agent.get(POD).await.1;
    let (code, answer) =
        patch(&agent, json!({"phase": "Running", "reason": "First", "podIP": "10.0.0.1"})).await;
    assert_eq!((code, &answer["status"]["phase"]), (StatusCode::OK, &json!("Running")), "{answer}");
    let (_, watched) = agent
        .get(&format!("/api/v1/pods?watch=true&resourceVersion={}&timeoutSeconds=1", revision(&before)))
        .await;
    assert_eq!(
        (&watched["type"], &watched["object"]["status"]["reason"]),
        (&json!("MODIFIED"), &json!("First"))
    );
    let (code, _) = patch(&agent, json!({"reason": null, "hostIP": "10.0.0.9"})).await;
    assert_eq!(code, StatusCode::OK);
    let (code, refused) =
        agent.call(Method::PATCH, &format!("{POD}/status"), r#"{"metadata":{"uid":"other"}}"#).await;
    assert!(matches!(code.as_u16(), 409 | 422), "{refused}");
    let (code, none) = agent.call(Method::PATCH, "/api/v1/namespaces/default/pods/none/status", "{}").await;
    assert_eq!(code, StatusCode::NOT_FOUND, "all pods of this node are known: {none}");
    agent.stop().await;

    let agent = Agent::start(folder.path(), &cloud, false).await;
    let shown = agent.get(POD).await.1["status"].clone();
    assert_eq!(
        (&shown["phase"], &shown["hostIP"], shown.get("reason")),
        (&json!("Running"), &json!("10.0.0.9"), None)
    );
    // Meanwhile another client has changed another field.
    pod["status"]["message"] = "by another, later".into();
    cloud.put(&web, "u3", &pod, &[]);
    cloud.set_away(false);
    wait_until("the status in the cloud", DEADLINE, async || {
        let status = cloud.object(&web).unwrap()["status"].clone();
        status["phase"] == "Running" && status["podIP"] == "10.0.0.1" && status["hostIP"] == "10.0.0.9"
    })
    .await;
    let status = cloud.object(&web).unwrap()["status"].clone();
    assert_eq!((status.get("reason"), &status["message"]), (None, &json!("by another, later")));
    agent.stop().await;
}

/// The reason of each condition of a node.
fn reasons(node: &Value) -> BTreeMap<&str, &str> {
    let conditions = node["status"]["conditions"].as_array().unwrap();
    conditions.iter().map(|one| (one["type"].as_str().unwrap(), one["reason"].as_str().unwrap())).collect()
}

fn condition(name: &str, reason: &str) -> Value {
    json!({"type": name, "status": "True", "reason": reason})
}

#[tokio::test]
async fn node_status_is_accepted_offline_and_the_newest_is_reported() {
    let (folder, cloud, agent) = with_lease().await;
    // The condition of the network belongs to another writer, but is in the same status as the kubelet's.
    let put = |network: &str| {
        let conditions = [condition("Ready", "Old"), condition("NetworkUnavailable", network)];
        let status = json!({"nodeInfo": {"kubeletVersion": "v1.36.3"}, "conditions": conditions});
        cloud.put(&node(), "n1", &json!({"status": status}), &[]);
    };
    put("First");
    wait_until("the conditions", DEADLINE, async || {
        agent.get(NODE).await.1["status"]["conditions"].as_array().is_some_and(|all| all.len() == 2)
    })
    .await;
    // These are reports of the agent from before it noticed the kubelet.
    wait_until("an empty outbox", DEADLINE, async || agent.status.look().reports_waiting == 0).await;
    away(&agent, &cloud).await;
    let mut versions = vec![agent.get(NODE).await.1];
    for reason in ["Alone", "StillAlone"] {
        let status = json!({"conditions": [condition("Ready", reason)], "phase": reason});
        let patch = json!({"metadata": {"uid": "n1"}, "status": status}).to_string();
        let (code, answer) = agent.call(Method::PATCH, &format!("{NODE}/status"), &patch).await;
        assert_eq!(code, StatusCode::OK, "{answer}");
        assert_eq!(reasons(&answer), BTreeMap::from([("NetworkUnavailable", "First"), ("Ready", reason)]));
        assert_eq!(agent.get(NODE).await.1, answer, "the written object is read");
        versions.push(answer);
    }
    assert!(versions.is_sorted_by(|older, newer| revision(older) < revision(newer)), "{versions:?}");
    let (since, last) = (revision(&versions[1]), &versions[2]);
    let watch = format!("/api/v1/nodes?watch=true&resourceVersion={since}&timeoutSeconds=1");
    let (_, watched) = agent.get(&watch).await;
    assert_eq!((&watched["type"], &watched["object"]), (&json!("MODIFIED"), last));
    agent.stop().await;

    let agent = Agent::start(folder.path(), &cloud, false).await;
    assert_eq!(agent.get(NODE).await.1, *last, "the version too");
    assert_eq!(agent.status.look().reports_waiting, 1, "only the newest of several reports about one object");
    // Meanwhile another client has written the other condition.
    put("Second");
    let (world, calls) = (cloud.clone(), cloud.calls().len());
    let patch = format!("PATCH {NODE}/status");
    cloud.script(&patch, move |body, _| {
        let node_there = patched(&node(), &world.object(&node()).unwrap(), body);
        world.put(&node(), "n1", &node_there, &[]);
        (200, world.answer(&node()).unwrap())
    });
    cloud.set_away(false);
    let expected = BTreeMap::from([("NetworkUnavailable", "Second"), ("Ready", "StillAlone")]);
    wait_until("the status in the cloud", DEADLINE, async || {
        reasons(&cloud.object(&node()).unwrap()) == expected
    })
    .await;
    wait_until("an empty outbox", DEADLINE, async || agent.status.look().reports_waiting == 0).await;
    assert_eq!(cloud.calls()[calls..].iter().filter(|call| **call == patch).count(), 1);
    wait_until("the whole status here", DEADLINE, async || reasons(&agent.get(NODE).await.1) == expected)
        .await;
    agent.stop().await;
}

#[tokio::test]
async fn events_are_created_and_counted_offline() {
    let (folder, cloud, agent) = with_lease().await;
    wait_until("the first synchronisation", DEADLINE, async || agent.status.look().synced).await;
    away(&agent, &cloud).await;
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "web.1", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "web"},
        "reason": "Started", "type": "Normal", "count": 1,
        "firstTimestamp": "2026-11-22T10:00:00Z", "lastTimestamp": "2026-11-22T10:00:00Z",
    });
    let (code, made) = agent.call(Method::POST, EVENTS, &event.to_string()).await;
    assert_eq!(code, StatusCode::CREATED, "{made}");
    assert!(revision(&made) > 0 && made["metadata"]["uid"].is_string());
    let again = agent.call(Method::POST, EVENTS, &event.to_string()).await;
    assert_eq!((again.0, &again.1["reason"]), (StatusCode::CONFLICT, &json!("AlreadyExists")));
    let one = format!("{EVENTS}/web.1");
    let (code, counted) =
        agent.call(Method::PATCH, &one, r#"{"count":2,"lastTimestamp":"2026-11-22T10:01:00Z"}"#).await;
    assert_eq!((code, &counted["count"]), (StatusCode::OK, &json!(2)), "{counted}");
    agent.stop().await;

    let agent = Agent::start(folder.path(), &cloud, false).await;
    assert_eq!(agent.get(&one).await.1["count"], 2);
    assert_eq!(agent.status.look().reports_waiting, 1);
    cloud.set_away(false);
    let stored = key("events", "web.1");
    wait_until("the event in the cloud", DEADLINE, async || cloud.object(&stored).is_some()).await;
    assert_eq!(cloud.object(&stored).unwrap()["count"], 2);
    wait_until("the cloud's event here", DEADLINE, async || {
        agent.get(&one).await.1["metadata"]["uid"] == "cloud-web.1"
    })
    .await;
    // An event that came from the cloud can also be updated without it.
    away(&agent, &cloud).await;
    assert_eq!(agent.call(Method::PATCH, &one, r#"{"count":3}"#).await.0, StatusCode::OK);
    cloud.set_away(false);
    wait_until("the count", DEADLINE, async || cloud.object(&stored).unwrap()["count"] == 3).await;
    agent.stop().await;
}

#[tokio::test]
async fn other_writes_wait_for_the_cloud() {
    let (_folder, cloud, agent) = with_lease().await;
    away(&agent, &cloud).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "edge-a"}}).to_string();
    let (code, status) = agent.call(Method::POST, "/api/v1/nodes", &node).await;
    assert_eq!((code, &status["reason"]), (StatusCode::CONFLICT, &json!("AlreadyExists")), "{status}");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}}).to_string();
    for (method, path, body) in [
        (Method::POST, "/api/v1/namespaces/default/configmaps", map.as_str()),
        (Method::DELETE, POD, ""),
        (Method::PATCH, "/api/v1/nodes/edge-a", r#"{"metadata":{"labels":{"a":"b"}}}"#),
        (Method::PATCH, "/api/v1/nodes/another/status", r#"{"status":{}}"#),
        (Method::PATCH, "/api/v1/namespaces/default/events/never", r#"{"count":2}"#),
    ] {
        let (code, status) = agent.call(method.clone(), path, body).await;
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{method} {path}: {status}");
        assert!(status["details"]["retryAfterSeconds"].as_u64().unwrap() > 0, "{status}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn unreadable_object_delays_no_pod_and_is_reported() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let locked = key("secrets", "locked");
    let path = "/api/v1/namespaces/default/secrets/locked";
    cloud.put(&key("pods", "web"), "u1", &pod_spec(), std::slice::from_ref(&locked));
    cloud.lock(&locked, true);
    cloud.script(&format!("GET {path}"), |_, _| {
        (403, json!({"kind": "Status", "code": 403, "message": "secrets \"locked\" is forbidden"}))
    });
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the pod", DEADLINE, async || agent.names("/api/v1/pods").await == ["web"]).await;
    assert_eq!(agent.get(path).await.0, StatusCode::FORBIDDEN, "the cluster answers while it is reachable");
    agent.stop().await;

    cloud.set_away(true);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    assert_eq!(agent.names("/api/v1/pods").await, ["web"]);
    let (code, status) = agent.get(path).await;
    assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("the cloud may not read v1/secrets/default/locked"), "{message}");
    assert!(status["details"]["retryAfterSeconds"].as_u64().unwrap() > 0);
    // No object can have an invalid name, so the answer is 404 even without a cloud.
    for name in ["A", "a_b", "a%20b", "-"] {
        let (code, status) = agent.get(&format!("/api/v1/namespaces/default/secrets/{name}")).await;
        assert_eq!(code, StatusCode::NOT_FOUND, "{name}: {status}");
    }
    cloud.put(&locked, "u2", &json!({"data": {"k": "dg=="}}), &[]);
    cloud.lock(&locked, false);
    cloud.set_away(false);
    wait_until("the Secret", DEADLINE, async || agent.get(path).await.1["data"]["k"] == "dg==").await;
    agent.stop().await;
}
