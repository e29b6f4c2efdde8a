//! The messages between the two sides in each dialect: how many, and how long they are.

use tokio_tungstenite::tungstenite::protocol::frame::coding::Data;

/// Bytes of a large message.
pub(crate) const LARGE_LEN: usize = 1024 * 1024;

/// The dialect whose message counts and lengths the floor reproduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Edges of this project.
    Tombolo,
    /// KubeEdge edges.
    KubeEdge,
}

/// The exchange of a dialect. Lengths are those of WebSocket payloads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    pub(crate) update_len: usize,
    /// Length of the acknowledgement of an update, or of an answer.
    pub(crate) ack_len: usize,
    pub(crate) question_len: usize,
    pub(crate) answer_len: usize,
    /// Whether an answer is acknowledged like an update, together with the next query.
    pub(crate) answers_acknowledged: bool,
    /// Type of the WebSocket messages. tungstenite checks that a text is UTF-8 (RFC 6455, section 8.1).
    pub(crate) data: Data,
}

impl Dialect {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tombolo => "tombolo",
            Self::KubeEdge => "kubeedge",
        }
    }

    /// Dialect `tombolo` adds less than a tenth to an object of 1 KiB. In dialect `kubeedge` the object is part of a
    /// JSON text, and a KubeEdge edge acknowledges each object that it stores, whether it was pushed or requested
    /// (docs/reference/kubeedge.md#remote-calls). These are the lengths of the hollow nodes' own messages, as
    /// `cloudcore --record` shows them.
    pub(crate) fn exchange(self) -> Exchange {
        match self {
            Self::Tombolo => Exchange {
                update_len: 1024,
                ack_len: 64,
                question_len: 64,
                answer_len: 1024,
                answers_acknowledged: false,
                data: Data::Binary,
            },
            Self::KubeEdge => Exchange {
                update_len: 1289,
                ack_len: 278,
                question_len: 207,
                answer_len: 1346,
                answers_acknowledged: true,
                data: Data::Text,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use tombolo_proto::message::{
        Content, Group, MessageId, ObjectPath, Operation, ResourcePath, ResourceType, Route, Source,
    };
    use tombolo_proto::{Message, kubeedge};

    use super::*;

    /// A message about the ConfigMap of `tombolo swarm`.
    fn message(source: Source, group: Group, operation: Operation, content: Content) -> Message {
        let path = ResourcePath::from(ObjectPath::new("tombolo-swarm", ResourceType::ConfigMap, "shared"));
        let route = Route::new(source, group, operation, path);
        Message::new(MessageId::from_random_bytes([7; 16]), 1_700_000_000_000, route, content)
    }

    #[test]
    fn lengths_are_those_of_the_messages_that_a_kubeedge_edge_exchanges() {
        let object = Content::text(&"x".repeat(1000));
        let question = message(Source::Edged, Group::Meta, Operation::Query, Content::null());
        let update = message(Source::EdgeController, Group::Resource, Operation::Update, object.clone());
        let update = update.with_resource_version("123");
        let (id, path) = (update.header.id.clone(), update.route.resource.clone());
        let answer = question.controller_reply(id.clone(), 1_700_000_000_000, path, object);
        let answer = answer.with_resource_version("123");
        let exchange = Dialect::KubeEdge.exchange();
        let len = |message: &Message| kubeedge::encode(message).len();
        assert_eq!(len(&question), exchange.question_len);
        for stored in [&update, &answer] {
            assert_eq!(len(&stored.ack(id.clone(), 1_700_000_000_000)), exchange.ack_len);
        }
        assert_eq!(len(&answer) - len(&update), exchange.answer_len - exchange.update_len);
    }
}
