//! What hostile or careless clients send.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tombolo_apicore::store::{Expect, Mutation, Write, WriteStore as _};
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};

use crate::server::*;

#[tokio::test]
async fn body_size_is_bounded_with_and_without_content_length() {
    let server = Server::start().await;
    let big = vec![b'x'; 4 * 1024 * 1024];
    let refused = server.call("POST", CONFIGMAPS, JSON, big).await.expect(413);
    assert_eq!(refused["reason"], "RequestEntityTooLarge");
    // 10 GiB are announced; the answer comes without waiting for them.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!("POST {CONFIGMAPS} HTTP/1.1\r\nhost: x\r\ncontent-length: 10737418240\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(&first, b"HTTP/1.1 413");
}

/// A body of the length that is allowed may become ninety times as much when it is read.
#[tokio::test]
async fn body_that_would_expand_too_much_is_refused() {
    let server = Server::start().await;
    let parts = r#"{"":0},"#.repeat(2 * 1024 * 1024 / 7);
    let body = format!(r#"{{"metadata":{{"name":"a"}},"data":[{parts}0]}}"#);
    for media_type in [JSON, "application/yaml"] {
        let refused = server.call("POST", CONFIGMAPS, media_type, body.clone()).await.expect(413);
        assert_eq!(refused["reason"], "RequestEntityTooLarge", "{media_type}");
    }
    let path = format!("{CONFIGMAPS}/a");
    for media_type in ["application/merge-patch+json", "application/apply-patch+yaml"] {
        server.call("PATCH", &format!("{path}?fieldManager=t"), media_type, body.clone()).await.expect(413);
    }
    let long = json!({"metadata": {"name": "a"}, "data": {"a": "{[,".repeat(300_000)}});
    server.post(CONFIGMAPS, &long).await.expect(201);
}

/// Objects of a definition that has changed since are read and brought up to date before they are shown.
#[tokio::test]
async fn object_parsed_for_display_counts_as_a_body() {
    let server = Server::start().await;
    let key = ObjectKey::new(Resource::new("x.io", "v1", "boats"), "default", "b");
    // A tree of it takes more than all bodies together may.
    let parts = r#"{"":0},"#.repeat(1_600_000);
    let head = r#""kind":"Boat","apiVersion":"x.io/v1","metadata":{"namespace":"default","name":"b"}"#;
    let body = format!(r#"{{{head},"spec":[{parts}0]}}"#);
    let write = Write::Put { uid: Uid::parse("u").unwrap(), body: body.into() };
    server.store.commit(Mutation { key, expected: Expect::Absent, write }).await.unwrap();
    for (generation, code) in [(1, 200), (2, 429)] {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let definition = json!({"metadata": {"name": "boats.x.io", "generation": generation}, "spec": {
            "group": "x.io", "scope": "Namespaced",
            "names": {"plural": "boats", "singular": "boat", "kind": "Boat", "listKind": "BoatList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        }});
        server.registry.update(|kinds| kinds.with_crd(&definition)).unwrap();
        for path in ["/apis/x.io/v1/boats", "/apis/x.io/v1/namespaces/default/boats/b"] {
            assert_eq!(server.get(path).await.status, code, "{path} of generation {generation}");
        }
    }
    let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    assert_eq!(server.get_as("/apis/x.io/v1/boats", partial).await.status, 200, "no tree is needed for it");
}

#[tokio::test]
async fn deep_json_and_odd_names_get_a_status() {
    let server = Server::start().await;
    let deep =
        format!(r#"{{"metadata":{{"name":"a"}},"data":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    server.call("POST", CONFIGMAPS, JSON, deep).await.expect(400);
    for name in ["a/b", "..", "A", "", "a b", &"x".repeat(254)] {
        let body = json!({"metadata": {"name": name}});
        assert_eq!(server.post(CONFIGMAPS, &body).await.expect(422)["reason"], "Invalid", "{name:?}");
    }
    for path in ["/api/v1/namespaces/default/configmaps/a%2Fb", "/api/v1/namespaces/default/configmaps/%ff"] {
        assert_eq!(server.get(path).await.expect(404)["kind"], "Status");
    }
}

#[tokio::test]
async fn broken_tokens_and_selectors_get_400() {
    let server = Server::start().await;
    for query in ["continue=abc", "continue=e30", "labelSelector=a%20in", "fieldSelector=x", "limit=x"] {
        let refused = server.get(&format!("{CONFIGMAPS}?{query}")).await.expect(400);
        assert_eq!(refused["reason"], "BadRequest", "{query}");
    }
    let watch = server.get(&format!("{CONFIGMAPS}?watch=1&resourceVersion=abc")).await;
    watch.expect(500);
    let accept = server.get_as(CONFIGMAPS, "application/vnd.kubernetes.protobuf").await.expect(406);
    assert_eq!(accept["reason"], "NotAcceptable");
    assert_eq!(
        server.send(server.request("OPTIONS", CONFIGMAPS).body(Default::default()).unwrap()).await.status,
        405
    );
}

#[tokio::test]
async fn a_thousand_idle_watches_are_cheap_and_released() {
    let server = Server::start().await;
    let mut watches = Vec::new();
    for _ in 0..1000 {
        watches.push(server.watch(&format!("{CONFIGMAPS}?watch=1&resourceVersion=1")).await);
    }
    server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(201);
    for watch in &mut watches {
        assert_eq!(watch.brief().await, "ADDED a");
    }
}

#[tokio::test]
async fn unfinished_request_is_answered_within_its_deadline() {
    let server = Server::start().await;
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST {CONFIGMAPS}?timeout=100ms HTTP/1.1\r\nhost: a\r\ncontent-type: {JSON}\r\ncontent-length: 100\r\n\r\n{{"
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let wanted = r#""message":"Timeout: request did not complete within the allotted timeout""#;
    while !String::from_utf8_lossy(&answer).contains(wanted) {
        let read = tokio::time::timeout(PATIENCE, connection.read_buf(&mut answer)).await;
        assert!(read.expect("an answer in time").unwrap() > 0, "{}", String::from_utf8_lossy(&answer));
    }
    assert!(answer.starts_with(b"HTTP/1.1 504 "), "{}", String::from_utf8_lossy(&answer));
}
