//! Rules that route messages between edges and the cloud (docs/reference/kubeedge.md#router), and the notifications
//! that a router receives about them.
//!
//! A router is notified of additions and deletions, never of changes. KubeEdge does the same: its rules are replaced by
//! deleting them.

pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod watch;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tombolo_proto::message::{LocalPath, Operation, ResourcePath};

/// API group and version of rules.
pub const API: &str = "rules.kubeedge.io/v1";

/// Routes messages by rules.
pub trait Router: Send + Sync + 'static {
    /// A rule or an endpoint was added or deleted. Must not block: lengthy work is done by the router on its own.
    fn handle(&self, message: RouterMessage);
}

/// An addition or deletion of a rule or an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterMessage {
    /// Whether it was added or deleted.
    pub change: Change,
    /// Version of the object; for a deleted object its last version.
    pub resource_version: String,
    /// The object.
    pub object: RouterObject,
}

/// Addition or deletion. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The object is new.
    Insert,
    /// The object was deleted.
    Delete,
}

/// The objects that a router handles. Closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouterObject {
    /// A rule.
    Rule(Rule),
    /// An endpoint.
    RuleEndpoint(RuleEndpoint),
}

/// Identity of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
pub struct Metadata {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Incarnation.
    pub uid: String,
}

/// Connects two endpoints of its namespace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Rule {
    /// The rule's identity.
    pub metadata: Metadata,
    /// The endpoints and messages that it connects.
    pub spec: RuleSpec,
}

/// The endpoints and messages that a rule connects.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleSpec {
    /// Endpoint from which messages come.
    pub source: String,
    /// Selects messages of the source: `path`, `topic`, `target_url`, `node_name`.
    pub source_resource: BTreeMap<String, String>,
    /// Endpoint to which messages go.
    pub target: String,
    /// Destination at the target: `resource`, `topic`, `path`.
    pub target_resource: BTreeMap<String, String>,
}

/// A source or target of messages.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct RuleEndpoint {
    /// The endpoint's identity.
    pub metadata: Metadata,
    /// Kind and properties of the endpoint.
    pub spec: RuleEndpointSpec,
}

/// Kind and properties of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleEndpointSpec {
    /// Its kind.
    pub rule_endpoint_type: EndpointType,
    /// `service_port` of a service bus.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
}

/// Kinds of endpoints. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EndpointType {
    /// HTTP in the cloud.
    Rest,
    /// MQTT at the edge.
    EventBus,
    /// HTTP at the edge.
    ServiceBus,
}

impl RouterMessage {
    /// KubeEdge's operation for the change.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match self.change {
            Change::Insert => Operation::Insert,
            Change::Delete => Operation::Delete,
        }
    }

    /// The resource path as KubeEdge writes it inside the cloud: `rule/<name>` or `ruleendpoint/<name>`
    /// (docs/reference/kubeedge.md#resource-paths).
    #[must_use]
    pub fn resource(&self) -> ResourcePath {
        let name = self.object.metadata().name.as_str().into();
        match &self.object {
            RouterObject::Rule(_) => LocalPath::Rule(name).into(),
            RouterObject::RuleEndpoint(_) => LocalPath::RuleEndpoint(name).into(),
        }
    }
}

impl RouterObject {
    /// The identity of the object.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        match self {
            Self::Rule(rule) => &rule.metadata,
            Self::RuleEndpoint(endpoint) => &endpoint.metadata,
        }
    }
}

/// Logs rules and routes nothing: used until cloudcore has a router.
#[derive(Debug)]
pub struct Unrouted;

impl Router for Unrouted {
    fn handle(&self, message: RouterMessage) {
        let (namespace, operation) = (&message.object.metadata().namespace, message.operation());
        let resource = message.resource();
        tracing::info!(namespace, %operation, %resource, "rule seen; this cloudcore routes no messages");
    }
}
