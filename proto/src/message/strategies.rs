//! Strategies for any message that the wire can carry.

use bytes::Bytes;
use proptest::option;
use proptest::prelude::*;

use super::{Content, Group, Message, MessageId, Operation, ResourcePath, Route, Source};

pub(crate) fn message() -> impl Strategy<Value = Message> {
    let header = (id(), option::of(id()), any::<i64>(), "[0-9]{0,5}", any::<bool>(), "[a-z]{0,3}");
    let word = "[a-zA-Z_-]{0,8}|insert|response|edgecontroller|resource";
    let route = (word, word, "[a-z]{0,3}", word, "[a-z]{0,4}(/[a-z]{1,4}){0,4}|null/node/edge1|k8s/ca[.]crt");
    (header, route, content()).prop_map(|(header, route, content)| {
        let (id, parent, timestamp_millis, resource_version, sync, context_type) = header;
        let (source, group, destination, operation, resource) = route;
        let resource = ResourcePath::parse_wire(&resource).expect("short");
        let (source, group) = (Source::parse(&source), Group::parse(&group));
        let mut route = Route::new(source, group, Operation::parse(&operation), resource);
        route.destination = destination;
        let mut message = Message::new(id, timestamp_millis, route, content);
        message.header.parent = parent;
        message.header.resource_version = resource_version;
        message.header.sync = sync;
        message.header.context_type = context_type;
        message
    })
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        Just(Content::null()),
        Just(Content::ok()),
        ".{0,20}".prop_map(|text| Content::text(&text)),
        Just(r#"{"b":9007199254740993,"a":[1.50,null]}"#)
            .prop_map(|json| Content::from_json(&Bytes::from(json)).expect("JSON")),
    ]
}

fn id() -> impl Strategy<Value = MessageId> {
    prop_oneof![
        any::<[u8; 16]>().prop_map(MessageId::from_random_bytes),
        "[!-~]{1,12}".prop_map(|text| MessageId::parse(&text).expect("printable")),
    ]
}
