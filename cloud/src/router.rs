//! Rules that route messages between edges and the cloud (docs/reference/kubeedge.md#router): what a router is told of
//! them.
//!
//! A router is told what was added and what went away, never what changed: so does stock, whose rules are replaced
//! by deleting them.

pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod watch;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tombolo_proto::message::{LocalPath, Operation, ResourcePath};

/// API group and version of rules.
pub const API: &str = "rules.kubeedge.io/v1";

/// What routes messages by rules.
pub trait Router: Send + Sync + 'static {
    /// A rule or an endpoint was added or is gone. Does not wait: what takes long is the router's own work.
    fn handle(&self, message: RouterMessage);
}

/// What happened to a rule or an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterMessage {
    /// Added or gone.
    pub change: Change,
    /// Of which version the object is; the last one, of an object that is gone.
    pub resource_version: String,
    /// The object.
    pub object: RouterObject,
}

/// Added or gone. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The object was not there before.
    Insert,
    /// The object is not there any more.
    Delete,
}

/// What a router works with. Closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouterObject {
    /// A rule.
    Rule(Rule),
    /// An endpoint.
    RuleEndpoint(RuleEndpoint),
}

/// Which object it is.
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
    /// Which rule.
    pub metadata: Metadata,
    /// What it connects.
    pub spec: RuleSpec,
}

/// What a rule connects.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleSpec {
    /// Endpoint where messages come from.
    pub source: String,
    /// Which messages of it: `path`, `topic`, `target_url`, `node_name`.
    pub source_resource: BTreeMap<String, String>,
    /// Endpoint where messages go to.
    pub target: String,
    /// Where at it: `resource`, `topic`, `path`.
    pub target_resource: BTreeMap<String, String>,
}

/// A source or target of messages.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct RuleEndpoint {
    /// Which endpoint.
    pub metadata: Metadata,
    /// What it is.
    pub spec: RuleEndpointSpec,
}

/// What an endpoint is.
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
    /// What KubeEdge calls the change.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match self.change {
            Change::Insert => Operation::Insert,
            Change::Delete => Operation::Delete,
        }
    }

    /// What it is about, as KubeEdge writes it inside the cloud: `rule/<name>` or `ruleendpoint/<name>`
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
    /// Which object it is.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        match self {
            Self::Rule(rule) => &rule.metadata,
            Self::RuleEndpoint(endpoint) => &endpoint.metadata,
        }
    }
}

/// Knows of rules and routes nothing: what cloudcore has until there is a router.
#[derive(Debug)]
pub struct Unrouted;

impl Router for Unrouted {
    fn handle(&self, message: RouterMessage) {
        let (namespace, operation) = (&message.object.metadata().namespace, message.operation());
        let resource = message.resource();
        tracing::info!(namespace, %operation, %resource, "rule seen; this cloudcore routes no messages");
    }
}
