//! Classifies messages from an edge (docs/reference/kubeedge.md#messages-from-an-edge).

use crate::message::{Group, Message, MessageId, Operation, ResourcePath, ResourceType, Source};

/// A message from an edge, classified by its route. Closed: a message that fits no other variant is a request, and
/// gets an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Up {
    /// A heartbeat.
    Keepalive,
    /// `config`, `ping` or `pong`: answered with `ack` (docs/reference/kubeedge.md#websocket).
    Control(Message),
    /// A delivery, or the reply to a request, is stored.
    Ack {
        /// The message that is acknowledged.
        parent: MessageId,
        /// The resource that it was about.
        resource: ResourcePath,
    },
    /// A delivery could not be stored.
    Failure {
        /// The message that failed.
        parent: MessageId,
        /// The edge's error text.
        sentence: String,
    },
    /// A report of the edge's device twin, which repeats it until it is confirmed
    /// (docs/reference/kubeedge.md#devices-and-node-tasks).
    Twin(Message),
    /// A query or a write.
    Request(Message),
    /// A message without meaning for a cloud: an answer to no message, or with a cloud module's name as source.
    Stray,
}

impl Up {
    /// Classifies a message.
    #[must_use]
    pub fn of(message: Message) -> Self {
        let route = &message.route;
        match &route.operation {
            Operation::Keepalive => Self::Keepalive,
            Operation::Config | Operation::Ping | Operation::Pong => Self::Control(message),
            // Answers to CSI calls look the same; this cloud makes no such calls.
            Operation::Response => match message.header.parent {
                Some(parent) => Self::Ack { parent, resource: message.route.resource },
                None => Self::Stray,
            },
            Operation::Error => match message.header.parent {
                Some(parent) => {
                    let sentence = String::from_utf8_lossy(&message.content.payload()).into_owned();
                    Self::Failure { parent, sentence }
                }
                None => Self::Stray,
            },
            Operation::Upload if route.group == Group::User => Self::Request(message),
            Operation::Prepull | Operation::Upgrade | Operation::UpdateNodeActionStatus => {
                Self::Request(message)
            }
            _ if is_cloud_module(&route.source) => Self::Stray,
            _ if route.source == Source::Twin => Self::Twin(message),
            _ => Self::Request(message),
        }
    }

    /// Whether a request of this route is one of MetaServer's (docs/reference/kubeedge.md#application-messages). The
    /// hub answers every request for the CA, whatever its source (docs/reference/kubeedge.md#messages-from-an-edge).
    #[must_use]
    pub fn is_application(message: &Message) -> bool {
        message.route.source == Source::MetaServer && message.route.resource != ResourcePath::CaCertificate
    }
}

/// Sources that a KubeEdge cloud drops when they come from an edge (docs/reference/kubeedge.md#sources-and-groups).
pub(super) fn is_cloud_module(source: &Source) -> bool {
    matches!(
        source,
        Source::CloudHub
            | Source::CloudStream
            | Source::DeviceController
            | Source::EdgeController
            | Source::SyncController
    )
}

/// Whether the kubelet's process has just started: then it registers a node
/// (docs/reference/kubeedge.md#start-of-a-node).
pub(super) fn registers_node(message: &Message) -> bool {
    let ResourcePath::Object(object) = &message.route.resource else { return false };
    message.route.operation == Operation::Insert
        && matches!(object.resource_type, ResourceType::Node | ResourceType::NodeStatus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Content, Route};

    fn message(source: &str, group: &str, operation: &str, resource: &str, parent: Option<&str>) -> Message {
        let resource = ResourcePath::parse_wire(resource).expect(resource);
        let (source, group) = (Source::parse(source), Group::parse(group));
        let route = Route::new(source, group, Operation::parse(operation), resource);
        let mut message = Message::new(MessageId::parse("m").expect("an id"), 1, route, Content::text("why"));
        message.header.parent = parent.map(|text| MessageId::parse(text).expect(text));
        message
    }

    #[test]
    fn rows_of_the_table() {
        let of = |source, group, operation, resource, parent| {
            Up::of(message(source, group, operation, resource, parent))
        };
        let parent = || MessageId::parse("p").expect("an id");
        assert_eq!(of("websocket", "resource", "keepalive", "node", None), Up::Keepalive);
        assert!(matches!(of("x", "", "ping", "", None), Up::Control(_)));
        let ack = of("edgecontroller", "resource", "response", "default/pod/a", Some("p"));
        let resource = ResourcePath::parse_wire("default/pod/a").expect("a path");
        assert_eq!(ack, Up::Ack { parent: parent(), resource });
        assert_eq!(of("metamanager", "resource", "response", "default/pod/a", None), Up::Stray);
        let failure = of("metamanager", "resource", "error", "default/pod/a", Some("p"));
        assert_eq!(failure, Up::Failure { parent: parent(), sentence: "why".to_owned() });
        assert_eq!(of("edgecontroller", "resource", "update", "default/pod/a", None), Up::Stray);
        assert!(matches!(of("bus", "user", "upload", "a/b/c/d", None), Up::Request(_)));
        assert!(matches!(of("twin", "resource", "get", "membership/detail", None), Up::Twin(_)));
        assert!(matches!(of("edged", "meta", "query", "default/secret/a", None), Up::Request(_)));
        assert!(matches!(of("", "", "", "", None), Up::Request(_)));
    }

    #[test]
    fn start_of_a_kubelet_is_detected() {
        let starts =
            |operation, resource| registers_node(&message("edged", "meta", operation, resource, None));
        assert!(starts("insert", "null/node/edge1") && starts("insert", "default/nodestatus/edge1"));
        assert!(!starts("update", "null/node/edge1") && !starts("patch", "null/nodepatch/edge1"));
        assert!(!starts("insert", "kube-node-lease/lease/edge1") && !starts("insert", "node"));
    }
}
