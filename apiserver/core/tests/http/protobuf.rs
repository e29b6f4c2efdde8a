//! Writes whose bodies are protobuf, as Go clients send them.

use crate::server::*;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// A message of fields with lengths (below 128 bytes each).
fn message(fields: &[(u8, &[u8])]) -> Vec<u8> {
    let one = |(number, value): &(u8, &[u8])| {
        let length = u8::try_from(value.len()).ok().filter(|length| *length < 0x80).unwrap();
        [&[number << 3 | 2, length], *value].concat()
    };
    fields.iter().flat_map(one).collect()
}

fn body(kind: &str, raw: &[u8]) -> Vec<u8> {
    let types = message(&[(1, b"v1"), (2, kind.as_bytes())]);
    [b"k8s\0", &message(&[(1, &types), (2, raw)])[..]].concat()
}

/// A map with one entry `k`.
fn map(value: &str) -> Vec<u8> {
    let entry = message(&[(1, b"k"), (2, value.as_bytes())]);
    body("ConfigMap", &message(&[(1, &message(&[(1, b"a")])), (2, &entry)]))
}

/// Options that ask for a UID.
fn options(uid: &str) -> Vec<u8> {
    body("DeleteOptions", &message(&[(2, &message(&[(1, uid.as_bytes())]))]))
}

#[tokio::test]
async fn objects_are_created_replaced_and_deleted() {
    let server = Server::start().await;
    let own = format!("{CONFIGMAPS}/a");
    let created = server.call("POST", CONFIGMAPS, PROTOBUF, map("1")).await.expect(201);
    assert_eq!(created["data"]["k"], "1");
    let replaced = server.call("PUT", &own, PROTOBUF, map("2")).await.expect(200);
    assert_eq!(replaced, server.get(&own).await.expect(200));
    assert_eq!(replaced["data"]["k"], "2");
    let uid = replaced["metadata"]["uid"].as_str().unwrap();
    server.call("DELETE", &own, PROTOBUF, options("another")).await.expect(409);
    server.call("DELETE", &own, PROTOBUF, options(uid)).await.expect(200);
    server.get(&own).await.expect(404);
    // Without options there is no body, whatever its type.
    server.call("POST", CONFIGMAPS, PROTOBUF, map("3")).await.expect(201);
    server.call("DELETE", &own, PROTOBUF, "").await.expect(200);
}

#[tokio::test]
async fn body_of_another_kind_is_refused() {
    let server = Server::start().await;
    for (body, message) in [
        (Vec::new(), "the object provided is unrecognized (must be of type ConfigMap): empty data"),
        (
            body("ConfigMap", &[8, 1]),
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: proto: field metadata",
        ),
        (body("Secret", b""), "Secret in version \"v1\" cannot be handled as a ConfigMap"),
    ] {
        let refused = server.call("POST", CONFIGMAPS, PROTOBUF, body).await.expect(400);
        assert_eq!(refused["reason"], "BadRequest");
        assert!(refused["message"].as_str().unwrap().starts_with(message), "{refused}");
    }
    // Patches have media types of their own.
    server.call("POST", CONFIGMAPS, PROTOBUF, map("1")).await.expect(201);
    let patch = server.call("PATCH", &format!("{CONFIGMAPS}/a"), PROTOBUF, map("2")).await.expect(415);
    assert_eq!(patch["reason"], "UnsupportedMediaType");
}
