//! Watches.

use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::store::{Expect, Mutation, Write, WriteStore as _};
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};

use crate::server::*;

#[tokio::test]
async fn every_watcher_gets_every_change_in_the_same_order() {
    let server = Server::start().await;
    let start = revision(&server.get(CONFIGMAPS).await.expect(200));
    let path = format!("{CONFIGMAPS}?watch=1&resourceVersion={start}");
    let mut one = server.watch(&path).await;
    let mut other = server.watch(&path).await;
    server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(201);
    server.put(&format!("{CONFIGMAPS}/a"), &configmap("a", "2")).await.expect(200);
    server.delete(&format!("{CONFIGMAPS}/a")).await.expect(200);
    let mut late = server.watch(&path).await;
    for watch in [&mut one, &mut other, &mut late] {
        let mut last = start;
        for wanted in ["ADDED a", "MODIFIED a", "DELETED a"] {
            let event = watch.next().await.unwrap();
            assert_eq!(brief(&event), wanted);
            assert!(revision(&event["object"]) > last, "each event has a newer revision, deletions too");
            last = revision(&event["object"]);
        }
    }
}

#[tokio::test]
async fn watch_without_a_revision_begins_with_existing_objects() {
    let server = Server::start().await;
    server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(201);
    for query in ["watch=1", "watch=1&resourceVersion=0", "watch"] {
        let mut watch = server.watch(&format!("{CONFIGMAPS}?{query}")).await;
        assert_eq!(watch.brief().await, "ADDED a");
    }
}

#[tokio::test]
async fn initial_events_end_with_a_marked_bookmark() {
    let server = Server::start().await;
    server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(201);
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = server.watch(&format!("{CONFIGMAPS}?{query}")).await;
    assert_eq!(watch.brief().await, "ADDED a");
    let mark = watch.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["kind"], "ConfigMap");
    assert_eq!(mark["object"]["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    assert_eq!(revision(&mark["object"]), 2);
    server.post(CONFIGMAPS, &configmap("b", "1")).await.expect(201);
    assert_eq!(watch.brief().await, "ADDED b");
}

#[tokio::test]
async fn objects_leaving_a_selection_are_deleted_and_entering_ones_added() {
    let server = Server::start().await;
    let mut watch = server.watch(&format!("{CONFIGMAPS}?watch=1&labelSelector=app%3Dweb")).await;
    server.post(CONFIGMAPS, &labelled("a", "db")).await.expect(201);
    server.put(&format!("{CONFIGMAPS}/a"), &labelled("a", "web")).await.expect(200);
    server.put(&format!("{CONFIGMAPS}/a"), &labelled("a", "db")).await.expect(200);
    server.delete(&format!("{CONFIGMAPS}/a")).await.expect(200);
    server.post(CONFIGMAPS, &labelled("b", "web")).await.expect(201);
    assert_eq!(watch.brief().await, "ADDED a");
    let left = watch.next().await.unwrap();
    assert_eq!(brief(&left), "DELETED a");
    assert_eq!(left["object"]["metadata"]["labels"]["app"], "web", "the old state");
    assert_eq!(revision(&left["object"]), 4, "the new revision");
    assert_eq!(watch.brief().await, "ADDED b");
}

#[tokio::test]
async fn watches_see_only_their_namespace_and_field_selection() {
    let server = Server::start().await;
    let mut node = server.watch("/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1").await;
    let mut other = server.watch("/api/v1/namespaces/other/pods?watch=1").await;
    let mut named = server.watch("/api/v1/watch/namespaces/default/pods/q").await;
    server.post(PODS, &pod("p", "n1")).await.expect(201);
    server.post(PODS, &pod("q", "n2")).await.expect(201);
    server.post("/api/v1/namespaces/other/pods", &pod("r", "n1")).await.expect(201);
    assert_eq!(node.brief().await, "ADDED p");
    assert_eq!(node.brief().await, "ADDED r");
    assert_eq!(other.brief().await, "ADDED r");
    assert_eq!(named.brief().await, "ADDED q");
}

#[tokio::test]
async fn a_revision_that_is_too_old_ends_with_410_and_one_in_the_future_waits() {
    let server = Server::with_limits(LogLimits { count: 2, ..LogLimits::default() }).await;
    for name in ["a", "b", "c", "d"] {
        server.post(CONFIGMAPS, &configmap(name, "1")).await.expect(201);
    }
    let mut watch = server.watch(&format!("{CONFIGMAPS}?watch=1&resourceVersion=1")).await;
    let error = watch.next().await.unwrap();
    assert_eq!(error["type"], "ERROR");
    assert_eq!((&error["object"]["code"], &error["object"]["reason"]), (&json!(410), &json!("Expired")));
    assert_eq!(watch.brief().await, "END");
    let last = server.post(CONFIGMAPS, &configmap("e", "1")).await.expect(201);
    let last: u64 = last["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let mut future = server.watch(&format!("{CONFIGMAPS}?watch=1&resourceVersion={}", last + 1)).await;
    for name in ["f", "g"] {
        server.post(CONFIGMAPS, &configmap(name, "1")).await.expect(201);
    }
    assert_eq!(future.brief().await, "ADDED g");
}

#[tokio::test]
async fn a_watch_ends_cleanly_at_its_timeout() {
    let server = Server::start().await;
    let begin = Instant::now();
    let mut watch = server.watch(&format!("{CONFIGMAPS}?watch=1&timeoutSeconds=1")).await;
    assert_eq!(watch.brief().await, "END");
    assert!(begin.elapsed() >= Duration::from_millis(900), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_bookmark_comes_shortly_before_the_timeout() {
    let server = Server::start().await;
    let query = "watch=1&resourceVersion=1&allowWatchBookmarks=true&timeoutSeconds=6";
    let mut watch = server.watch(&format!("{CONFIGMAPS}?{query}")).await;
    // A change of another resource: the bookmark moves on, so that the client does not resume from too far back.
    server.post(PODS, &pod("p", "n1")).await.expect(201);
    let bookmark = watch.next().await.unwrap();
    assert_eq!((&bookmark["type"], revision(&bookmark["object"])), (&json!("BOOKMARK"), 2));
    assert!(bookmark["object"]["metadata"].get("annotations").is_none());
    assert_eq!(watch.brief().await, "END");
}

#[tokio::test]
async fn stopping_the_server_ends_watches_cleanly() {
    let server = Server::start().await;
    let mut watch = server.watch(&format!("{CONFIGMAPS}?watch=1")).await;
    server.stop.cancel();
    assert_eq!(watch.brief().await, "END");
    drop(watch);
    server.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_watch_can_be_a_table_or_metadata() {
    let server = Server::start().await;
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json";
    let mut rows = server.watch_as("/api/v1/pods?watch=1", table).await;
    let partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let mut metadata = server.watch_as("/api/v1/pods?watch=1", partial).await;
    server.post(PODS, &pod("p", "n1")).await.expect(201);
    server.post(PODS, &pod("q", "n1")).await.expect(201);
    let first = rows.next().await.unwrap();
    assert_eq!(first["object"]["kind"], "Table");
    assert_eq!(first["object"]["rows"][0]["cells"][0], "p");
    assert_eq!(first["object"]["columnDefinitions"][0]["name"], "Name");
    let second = rows.next().await.unwrap();
    assert_eq!(second["object"]["columnDefinitions"], json!(null), "columns are sent once");
    assert_eq!(second["object"]["rows"][0]["cells"][0], "q");
    let event = metadata.next().await.unwrap();
    assert_eq!(event["object"]["kind"], "PartialObjectMetadata");
    assert!(event["object"].get("spec").is_none());
}

#[tokio::test]
async fn events_of_both_groups_are_the_same_objects() {
    let server = Server::start().await;
    let mut new = server.watch("/apis/events.k8s.io/v1/events?watch=1").await;
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "message": "hello", "reason": "Because", "type": "Normal"
    });
    server.post("/api/v1/namespaces/default/events", &event).await.expect(201);
    let seen = new.next().await.unwrap();
    assert_eq!(seen["object"]["apiVersion"], "events.k8s.io/v1");
    assert_eq!(
        (&seen["object"]["note"], &seen["object"]["regarding"]["name"]),
        (&json!("hello"), &json!("p"))
    );
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    assert_eq!(names(&server.get(path).await.expect(200)), ["e"]);
}

/// The peer sends its request and never reads: its connection is closed, the others continue.
#[tokio::test]
async fn client_that_never_reads_is_closed_and_affects_nobody() {
    let server = Server::start().await;
    let mut deaf = TcpStream::connect(server.address).await.unwrap();
    let request = format!("GET {CONFIGMAPS}?watch=1 HTTP/1.1\r\nhost: x\r\n\r\n");
    deaf.write_all(request.as_bytes()).await.unwrap();
    let mut healthy = server.watch(&format!("{CONFIGMAPS}?watch=1")).await;
    let text = "x".repeat(500_000);
    server.post(CONFIGMAPS, &configmap("a", &text)).await.expect(201);
    assert_eq!(healthy.brief().await, "ADDED a");
    // More than all socket buffers hold.
    for round in 0..40 {
        let body = configmap("a", &format!("{round}{text}"));
        server.put(&format!("{CONFIGMAPS}/a"), &body).await.expect(200);
        assert_eq!(healthy.brief().await, "MODIFIED a");
    }
    tombolo_testkit::wait_for("the silent connection to be closed", PATIENCE, || {
        let outcome = match deaf.try_write(b"x") {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => Ok(()),
            other => Err(format!("still open: {other:?}")),
        };
        std::future::ready(outcome)
    })
    .await;
}

#[tokio::test]
async fn watch_behind_the_history_must_list_again() {
    let server = Server::with_limits(LogLimits { count: 4, ..LogLimits::default() }).await;
    let path = format!("{CONFIGMAPS}?watch=1");
    let request = server.request("GET", &path).body(Default::default()).unwrap();
    let mut body = server.open(request).await.into_body();
    let text = "x".repeat(400_000);
    server.post(CONFIGMAPS, &configmap("a", &text)).await.expect(201);
    // Past the server: its connection is closed when its client reads nothing for a few seconds.
    for round in 0..60 {
        let body = configmap("a", &format!("{round}{text}"));
        let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", "a");
        let write = Write::Put { uid: Uid::parse("u").unwrap(), body: body.to_string().into() };
        server.store.commit(Mutation { key, expected: Expect::Any, write }).await.unwrap();
    }
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = tokio::time::timeout(PATIENCE, body.frame()).await.unwrap() {
        bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
        if bytes.ends_with(b"}\n") && bytes.windows(7).any(|window| window == b"Expired") {
            return;
        }
    }
    panic!("the watch ended without saying that the client is too late");
}
