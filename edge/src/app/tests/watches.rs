//! Tests of watches without a cloud, and of what other kinds of requests keep: rows O1 to O3, O8, O9, O14 and O22 of
//! docs/reference/superedge.md#offline-rows.

use std::time::Instant;

use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;

use super::*;
use crate::identity::testing::fetch_plain;

const SERVICES: &str = "/api/v1/services";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

fn lease(name: &str) -> ObjectKey {
    ObjectKey::new(Resource::new("coordination.k8s.io", "v1", "leases"), "default", name)
}

fn service(cluster_ip: &str) -> Value {
    json!({"spec": {"clusterIP": cluster_ip}})
}

/// An agent that knows a Service and has lost its cloud, and the version of the list of Services.
async fn with_a_service(folder: &Path, cloud: &FakeCloud) -> (Agent, String) {
    cloud.put(&key("services", "web"), "s1", &service("10.0.0.1"), &[]);
    let agent = Agent::start(folder, cloud, false).await;
    wait_until("the Service", DEADLINE, async || agent.names(SERVICES).await.contains(&"web".to_owned()))
        .await;
    away(&agent, cloud).await;
    let list = agent.get(SERVICES).await.1;
    (agent, list["metadata"]["resourceVersion"].as_str().unwrap().to_owned())
}

/// A watch whose events are read one by one.
struct Watch(Lines<BufReader<TcpStream>>);

impl Watch {
    async fn open(address: SocketAddr, path: &str) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        let first = lines.next_line().await.unwrap().unwrap_or_default();
        assert!(first.starts_with("HTTP/1.1 200"), "{path}: {first}");
        Self(lines)
    }

    /// The next event: its type, and the name of its object.
    async fn next(&mut self) -> (String, Value) {
        let event = async {
            loop {
                // Headers and chunk sizes are between the events.
                let line = self.0.next_line().await.unwrap().expect("the watch to continue");
                if let Ok(event @ Value::Object(_)) = serde_json::from_str(&line) {
                    return event;
                }
            }
        };
        let event = tokio::time::timeout(DEADLINE, event).await.expect("an event");
        (event["type"].as_str().unwrap().to_owned(), event["object"].clone())
    }
}

/// Rows O1 to O3 of docs/reference/superedge.md#offline-rows: objects reported by a watch are listed once and in their
/// newest version, both with and without a cloud.
#[tokio::test]
async fn watched_objects_are_listed_once_offline() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let held_by = |name: &str| json!({"spec": {"holderIdentity": name}});
    cloud.put(&lease("a"), "l1", &held_by("first"), &[]);
    cloud.put(&lease("b"), "l2", &held_by("other"), &[]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the list", DEADLINE, async || agent.names(LEASES).await == ["a", "b"]).await;
    // A watch without a resource version begins with `ADDED` events for the existing objects.
    let mut watch = Watch::open(agent.http, &format!("{LEASES}?watch=true")).await;
    for name in ["a", "b"] {
        let (event, object) = watch.next().await;
        assert_eq!((event.as_str(), &object["metadata"]["name"]), ("ADDED", &json!(name)));
    }
    cloud.put(&lease("a"), "l1", &held_by("second"), &[]);
    let (event, told) = watch.next().await;
    assert_eq!((event.as_str(), &told["spec"]["holderIdentity"]), ("MODIFIED", &json!("second")));
    let (code, online) = agent.get(LEASES).await;
    assert_eq!(code, StatusCode::OK);
    away(&agent, &cloud).await;
    let (code, offline) = agent.get(LEASES).await;
    assert_eq!((code, &offline), (StatusCode::OK, &online), "the same objects in the same versions");
    assert_eq!(names(&offline), ["a", "b"]);
    let first = &offline["items"][0];
    assert_eq!(first["spec"], told["spec"]);
    assert_eq!(first["metadata"]["resourceVersion"], told["metadata"]["resourceVersion"]);
    agent.stop().await;
    let agent = Agent::start(folder.path(), &cloud, false).await;
    assert_eq!(agent.get(LEASES).await.1["items"], online["items"], "and after a restart");
    agent.stop().await;
}

/// Row O8 of docs/reference/superedge.md#offline-rows: the watch lasts for the requested time, ends regularly, and
/// reports the version from which to resume.
#[tokio::test]
async fn offline_watch_lasts_and_ends_with_a_bookmark() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let (agent, revision) = with_a_service(folder.path(), &cloud).await;
    for (bookmarks, lines) in [(false, 0), (true, 1)] {
        let path = format!(
            "{SERVICES}?watch=true&resourceVersion={revision}&timeoutSeconds=5&allowWatchBookmarks={bookmarks}"
        );
        let begin = Instant::now();
        let (code, text) = fetch_plain(agent.http, Method::GET, &path, HeaderMap::new(), "").await;
        assert_eq!(code, StatusCode::OK);
        assert!(begin.elapsed() >= Duration::from_secs(5), "ended after {:?}", begin.elapsed());
        assert_eq!(text.lines().count(), lines, "{text}");
        for line in text.lines() {
            let event: Value = serde_json::from_str(line).unwrap();
            assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("BOOKMARK"), &json!("Service")));
            let reached = event["object"]["metadata"]["resourceVersion"].as_str().unwrap();
            let path = format!("{SERVICES}?watch=true&resourceVersion={reached}&timeoutSeconds=1");
            let (code, text) = fetch_plain(agent.http, Method::GET, &path, HeaderMap::new(), "").await;
            assert_eq!((code, text.as_str()), (StatusCode::OK, ""), "it continues from {reached}");
        }
    }
    agent.stop().await;
}

/// Row O9 of docs/reference/superedge.md#offline-rows: a watch that was opened without a cloud receives each missed
/// change once.
#[tokio::test]
async fn offline_watch_continues_online() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.put(&key("services", "old"), "s0", &service("10.0.0.9"), &[]);
    let (agent, revision) = with_a_service(folder.path(), &cloud).await;
    let path = format!("{SERVICES}?watch=true&resourceVersion={revision}&timeoutSeconds=60");
    let mut watch = Watch::open(agent.http, &path).await;
    cloud.put(&key("services", "web"), "s1", &service("10.0.0.2"), &[]);
    cloud.put(&key("services", "db"), "s2", &service("10.0.0.3"), &[]);
    cloud.delete(&key("services", "old"));
    cloud.set_away(false);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (event, object) = watch.next().await;
        let name = object["metadata"]["name"].as_str().unwrap();
        seen.push(format!("{event} {name} {}", object["spec"]["clusterIP"].as_str().unwrap()));
    }
    seen.sort();
    assert_eq!(seen, ["ADDED db 10.0.0.3", "DELETED old 10.0.0.9", "MODIFIED web 10.0.0.2"]);
    // No event is repeated: the next event is the next change.
    cloud.put(&key("services", "db"), "s2", &service("10.0.0.4"), &[]);
    let (event, object) = watch.next().await;
    assert_eq!((event.as_str(), &object["spec"]["clusterIP"]), ("MODIFIED", &json!("10.0.0.4")));
    agent.stop().await;
}

/// Row O14 of docs/reference/superedge.md#offline-rows: reads as tables do not turn the kept objects into tables for
/// others.
#[tokio::test]
async fn object_read_as_a_table_is_served_offline() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.put(&lease("a"), "l1", &json!({"spec": {"holderIdentity": "somebody"}}), &[]);
    // This object is not pushed, so each read goes to the cloud.
    cloud.put(&key("configmaps", "another"), "c1", &json!({"data": {"a": "1"}}), &[]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    let one = "/api/v1/namespaces/default/configmaps/another";
    let as_table = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(TABLE))]);
    for path in [LEASES, one] {
        wait_until("the table", DEADLINE, async || {
            let (_, text) = fetch_plain(agent.http, Method::GET, path, as_table.clone(), "").await;
            let table: Value = serde_json::from_str(&text).unwrap_or_default();
            table["kind"] == "Table" && table["rows"].as_array().is_some_and(|rows| rows.len() == 1)
        })
        .await;
    }
    away(&agent, &cloud).await;
    agent.stop().await;
    let agent = Agent::start(folder.path(), &cloud, false).await;
    let (code, list) = agent.get(LEASES).await;
    assert_eq!((code, &list["kind"]), (StatusCode::OK, &json!("LeaseList")), "{list}");
    assert_eq!(list["items"][0]["spec"]["holderIdentity"], "somebody", "{list}");
    let (code, map) = agent.get(one).await;
    assert_eq!((code, &map["data"]["a"]), (StatusCode::OK, &json!("1")), "{map}");
    agent.stop().await;
}

/// Row O22 of docs/reference/superedge.md#offline-rows: a client that only watches also fills the copy.
#[tokio::test]
async fn watched_resource_can_be_listed_offline() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.put(&lease("a"), "l1", &json!({"spec": {}}), &[]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    agent.connects().await;
    let query =
        "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = Watch::open(agent.http, &format!("{LEASES}?{query}")).await;
    let (event, object) = watch.next().await;
    assert_eq!((event.as_str(), &object["metadata"]["name"]), ("ADDED", &json!("a")));
    let (event, mark) = watch.next().await;
    let annotations = &mark["metadata"]["annotations"];
    assert_eq!((event.as_str(), &annotations["k8s.io/initial-events-end"]), ("BOOKMARK", &json!("true")));
    cloud.put(&lease("b"), "l2", &json!({"spec": {}}), &[]);
    assert_eq!(watch.next().await.0, "ADDED");
    agent.stop().await;
    cloud.set_away(true);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    assert_eq!(agent.names(LEASES).await, ["a", "b"]);
    agent.stop().await;
}

/// A client resumes its watch after a restart of the agent, also without a cloud.
#[tokio::test]
async fn watch_resumes_after_an_offline_restart() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.put(&key("services", "web"), "s1", &service("10.0.0.1"), &[]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the Service", DEADLINE, async || agent.names(SERVICES).await == ["web"]).await;
    let list = agent.get(SERVICES).await.1;
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap();
    cloud.put(&key("services", "db"), "s2", &service("10.0.0.3"), &[]);
    wait_until("another", DEADLINE, async || agent.names(SERVICES).await == ["db", "web"]).await;
    agent.stop().await;
    cloud.set_away(true);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    let path = format!("{SERVICES}?watch=true&resourceVersion={revision}&timeoutSeconds=60");
    let mut watch = Watch::open(agent.http, &path).await;
    let (event, object) = watch.next().await;
    assert_eq!((event.as_str(), &object["metadata"]["name"]), ("ADDED", &json!("db")));
    agent.stop().await;
}
