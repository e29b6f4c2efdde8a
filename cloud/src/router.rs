//! Rules that route messages between edges and the cloud (reference section 11): what a router is told of them.
//!
//! A router is told what was added and what went away, never what changed: so does stock, whose rules are replaced
//! by deleting them.

pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod watch;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tombolo_proto::message::{
    Content, ContentError, Group, LocalPath, Message, MessageId, Operation, ResourcePath, Route, Source,
};

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

/// An object that no router can use.
#[derive(Debug, Error)]
pub enum RouterError {
    /// Its fields are not those of the kind.
    #[error("{0}")]
    Object(#[from] serde_json::Error),
    /// It is too large for a message.
    #[error("{0}")]
    Content(#[from] ContentError),
}

impl RouterMessage {
    /// The message of KubeEdge for this change: `insert` or `delete` on `rule/<name>` or `ruleendpoint/<name>`, with
    /// the object (reference 1.6). It stays inside the cloud.
    ///
    /// # Errors
    /// [`RouterError`] when the object is larger than a message.
    pub fn to_message(&self, id: MessageId, now_millis: i64) -> Result<Message, RouterError> {
        let operation = match self.change {
            Change::Insert => Operation::Insert,
            Change::Delete => Operation::Delete,
        };
        let (local, object) = match &self.object {
            RouterObject::Rule(rule) => {
                (LocalPath::Rule(rule.metadata.name.as_str().into()), serde_json::to_value(rule)?)
            }
            RouterObject::RuleEndpoint(endpoint) => (
                LocalPath::RuleEndpoint(endpoint.metadata.name.as_str().into()),
                serde_json::to_value(endpoint)?,
            ),
        };
        let route = Route::new(Source::EdgeController, Group::Resource, operation, ResourcePath::from(local));
        let message = Message::new(id, now_millis, route, Content::from_value(&object)?);
        Ok(message.with_resource_version(&self.resource_version))
    }
}

/// Knows of rules and routes nothing: what cloudcore has until there is a router.
#[derive(Debug)]
pub struct Unrouted;

impl Router for Unrouted {
    fn handle(&self, message: RouterMessage) {
        let (kind, metadata) = match &message.object {
            RouterObject::Rule(rule) => ("Rule", &rule.metadata),
            RouterObject::RuleEndpoint(endpoint) => ("RuleEndpoint", &endpoint.metadata),
        };
        let Metadata { namespace, name, .. } = metadata;
        tracing::info!(kind, namespace, name, change = ?message.change, "rule seen; this cloudcore routes no messages");
    }
}
