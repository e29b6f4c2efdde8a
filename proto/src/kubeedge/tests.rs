use proptest::prelude::*;

use super::*;
use crate::message::strategies;
use crate::message::{Group, Operation, Outcome, ResourcePath, ResourceType, Source};

fn read(text: &str) -> Message {
    decode(&Bytes::copy_from_slice(text.as_bytes())).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> String {
    decode(&Bytes::copy_from_slice(text.as_bytes())).expect_err(text).to_string()
}

#[test]
fn the_heartbeat_is_understood() {
    let heartbeat = read(include_str!("../../fixtures/kubeedge/heartbeat.json"));
    assert_eq!(heartbeat.route.source, Source::WebSocket);
    assert_eq!(heartbeat.route.group, Group::Resource);
    assert_eq!(heartbeat.route.operation, Operation::Keepalive);
    assert_eq!(heartbeat.route.resource, ResourcePath::Keepalive);
    assert_eq!(heartbeat.content, Content::ping());
}

#[test]
fn the_failed_lease_query_is_understood() {
    let reply = read(include_str!("../../fixtures/kubeedge/lease_refused.json"));
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
fn missing_members_are_empty() {
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
fn refusals_name_field_and_reason() {
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
    fn every_message_round_trips(message in strategies::message()) {
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
