use proptest::prelude::*;

use super::*;
use crate::message::strategies;
use crate::message::{Group, LocalPath, Operation, Outcome, ResourceType, Source};

fn read(text: &str) -> Message {
    decode(&Bytes::copy_from_slice(text.as_bytes())).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> String {
    decode(&Bytes::copy_from_slice(text.as_bytes())).expect_err(text).to_string()
}

/// One message of each kind (docs/reference/kubeedge.md#json-envelope), with members in Go's order: encoding gives
/// exactly the bytes that were read.
const EXAMPLES: &[&str] = &[
    r#"{"header":{"msg_id":"3f0c1d2e-0000-4000-8000-00000000000a","timestamp":1786000000000},"route":{"source":"websocket","group":"resource","operation":"keepalive","resource":"node"},"content":"ping"}"#,
    r#"{"header":{"msg_id":"A","timestamp":1786000000001,"resourceversion":"4711"},"route":{"source":"edgecontroller","group":"resource","operation":"insert","resource":"default/pod/nginx"},"content":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"nginx","namespace":"default","uid":"U"},"spec":{"nodeName":"edge1"}}}"#,
    r#"{"header":{"msg_id":"B","parent_msg_id":"A","timestamp":1786000000050},"route":{"source":"edgecontroller","group":"resource","operation":"response","resource":"default/pod/nginx"},"content":"OK"}"#,
    r#"{"header":{"msg_id":"C","timestamp":1786000000100},"route":{"source":"edged","group":"meta","operation":"patch","resource":"default/podpatch/nginx"},"content":"{\"metadata\":{\"uid\":\"U\"},\"status\":{\"phase\":\"Running\"}}"}"#,
    r#"{"header":{"msg_id":"D","parent_msg_id":"C","timestamp":1786000000140,"resourceversion":"4715"},"route":{"source":"edgecontroller","group":"resource","operation":"response","resource":"default/podpatch/nginx"},"content":{"Object":{"metadata":{"name":"nginx"},"spec":{},"status":{}},"Err":null}}"#,
    r#"{"header":{"msg_id":"F","parent_msg_id":"E","timestamp":1786000000200},"route":{"source":"edgecontroller","group":"resource","operation":"response","resource":"kube-node-lease/lease/edge1"},"content":{"Object":null,"Err":{"ErrStatus":{"metadata":{},"status":"Failure","message":"leases \"edge1\" not found","reason":"NotFound","details":{"name":"edge1","kind":"leases"},"code":404}}}}"#,
    r#"{"header":{"msg_id":"G","timestamp":1786000000300},"route":{"source":"edged","group":"meta","operation":"query","resource":"default/configmap/kube-root-ca.crt"},"content":null}"#,
    r#"{"header":{"msg_id":"H","parent_msg_id":"G","timestamp":1786000000330,"resourceversion":"380"},"route":{"source":"edgecontroller","group":"resource","operation":"response","resource":"default/configmap/kube-root-ca.crt"},"content":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"kube-root-ca.crt","namespace":"default","resourceVersion":"380"},"data":{}}}"#,
    r#"{"header":{"msg_id":"J","timestamp":-1,"sync":true,"type":"channel"},"route":{"source":"s","destination":"d","group":"g","operation":"GET","resource":"8080:/v1/hello"},"content":[1e400,9007199254740993]}"#,
];

#[test]
fn examples_are_written_as_they_were_read() {
    for text in EXAMPLES {
        assert_eq!(encode(&read(text)), text);
    }
}

#[test]
fn the_heartbeat_is_understood() {
    let heartbeat = read(EXAMPLES[0]);
    assert_eq!(heartbeat.route.source, Source::WebSocket);
    assert_eq!(heartbeat.route.group, Group::Resource);
    assert_eq!(heartbeat.route.operation, Operation::Keepalive);
    assert_eq!(heartbeat.route.resource.local, LocalPath::Keepalive);
    assert_eq!(heartbeat.content, Content::ping());
}

#[test]
fn the_failed_lease_query_is_understood() {
    let reply = read(EXAMPLES[5]);
    let Ok(Outcome::Failed(error)) = Outcome::read(&reply.content) else { panic!("{reply:?}") };
    assert_eq!((error.code, &*error.reason), (404, "NotFound"));
    let object = reply.route.resource.as_object().expect("an object");
    assert_eq!(object.resource_type, ResourceType::Lease);
}

#[test]
fn decoding_is_as_lenient_as_go() {
    let canonical =
        read(r#"{"header":{"msg_id":"A","timestamp":1},"route":{"operation":"query"},"content":{"a":1}}"#);
    let variants = [
        r#" {"header":{"msg_id":"A","timestamp":1},"route":{"operation":"query"},"content": {"a":1} } trailing {"#,
        r#"{"extra":[{}],"Header":{"MSG_ID":"A","TimeStamp":1,"x":null},"ROUTE":{"Operation":"query"},"content":{"a":1}}"#,
        r#"{"content":2,"content":{"a":1},"route":{"operation":"a"},"route":{"operation":"query"},"header":{"msg_id":"A","timestamp":1}}"#,
        r#"{"header":{"msg_id":"A","parent_msg_id":null,"timestamp":1,"sync":null},"route":{"operation":"query","group":null},"content":{"a":1}}"#,
        r#"{"header":{"msg_id":"\u0041","timestamp":1},"route":{"operation":"\u0071uery"},"content":{"a":1}}"#,
    ];
    for text in variants {
        assert_eq!(read(text), canonical, "{text}");
    }
}

#[test]
fn absent_parts_are_empty() {
    let message = read(r#"{"header":{"msg_id":"A"},"route":null}"#);
    assert!(message.content.is_null());
    assert_eq!(message.header.timestamp_millis, 0);
    assert_eq!(message.route.operation, Operation::Unset);
    let text = r#"{"header":{"msg_id":"A","timestamp":0},"route":{},"content":null}"#;
    assert_eq!(encode(&message), text);
}

#[test]
fn unknown_words_are_kept_for_the_refusal() {
    let message =
        read(r#"{"header":{"msg_id":"A"},"route":{"operation":"explode","resource":"default/gizmo/g"}}"#);
    assert!(matches!(&message.route.operation, Operation::Other(word) if word.as_str() == "explode"));
    let refusal = message.error_reply(message.header.id.clone(), 0, "unknown operation \"explode\"");
    let text = String::from_utf8(encode(&refusal).to_vec()).expect("JSON is UTF-8");
    assert!(text.contains(r#""operation":"error","resource":"default/gizmo/g""#), "{text}");
}

#[test]
fn refusals_say_what_and_where() {
    assert!(refused("").contains("EOF"));
    assert!(refused("garbage").contains("line 1 column 1"));
    assert!(refused("{}").contains("header.msg_id"), "{}", refused("{}"));
    assert!(refused(r#"{"header":{"msg_id":7}}"#).contains("expected a string"));
    assert!(refused(r#"{"header":{"msg_id":"A","timestamp":1.5}}"#).contains("i64"));
    assert!(refused(r#"{"header":[]}"#).contains("parent_msg_id"));
    let long = format!(r#"{{"header":{{"msg_id":"A"}},"route":{{"operation":"{}"}}}}"#, "x".repeat(257));
    assert!(refused(&long).contains("route.operation of 257 bytes"));
    let huge = Bytes::from(vec![b' '; limits::FRAME_LEN_MAX + 1]);
    assert!(matches!(decode(&huge), Err(EnvelopeError::TooLarge { .. })));
}

#[test]
fn deep_nesting_in_content_is_passed_on() {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let text = format!(r#"{{"header":{{"msg_id":"A","timestamp":0}},"route":{{}},"content":{deep}}}"#);
    assert_eq!(encode(&read(&text)), text);
}

proptest! {
    #[test]
    fn every_message_survives(message in strategies::message()) {
        prop_assert_eq!(decode(&encode(&message)).expect("own message"), message);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes.into());
    }

    #[test]
    fn damaged_messages_never_panic(
        message in strategies::message(),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let mut bytes = encode(&message).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = value;
        let _ = decode(&bytes.into());
    }
}
