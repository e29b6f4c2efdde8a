//! Lookup of Nodes for the join port.

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, ApiResource};
use serde_json::Value;
use thiserror::Error;
use tombolo_proto::NodeId;

use super::CALL_LIMIT;
use crate::kube::{CallError, RawObject};

/// Labels of nodes that run the control plane.
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// State of a Node object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeState {
    /// There is no Node with this name.
    Absent,
    /// The Node exists.
    Present {
        /// Its UID.
        uid: String,
        /// Whether it runs the control plane.
        control_plane: bool,
    },
}

impl NodeState {
    /// UID of the Node, if it exists.
    #[must_use]
    pub fn uid(&self) -> Option<&str> {
        match self {
            Self::Absent => None,
            Self::Present { uid, .. } => Some(uid),
        }
    }
}

/// The Kubernetes API did not answer the question.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("cannot look up node {node}: {reason}")]
pub struct NodeLookupError {
    /// The node.
    pub node: NodeId,
    /// The error of the API.
    pub reason: String,
}

/// Looks up the Node of a name.
pub trait NodeLookup: Send + Sync + 'static {
    /// Present state of the Node.
    fn state<'a>(&'a self, node: &'a NodeId) -> BoxFuture<'a, Result<NodeState, NodeLookupError>>;
}

/// Nodes of the Kubernetes API, without caching: joins are rare, and a stale answer could assign a name twice.
#[derive(Clone)]
pub struct ClusterNodes {
    client: Client,
}

impl std::fmt::Debug for ClusterNodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterNodes").finish_non_exhaustive()
    }
}

impl ClusterNodes {
    /// Nodes of this cluster.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    async fn look_up(&self, id: &NodeId) -> Result<NodeState, NodeLookupError> {
        let failed = |reason: String| NodeLookupError { node: id.clone(), reason };
        // Not read as a typed object: a node that nests its own Node too deep to be parsed must not prevent an answer.
        let nodes = Api::<RawObject>::all_with(self.client.clone(), &ApiResource::erase::<Node>(&()));
        let found = tokio::time::timeout(CALL_LIMIT, nodes.get_opt(id.as_str())).await;
        let found = found.map_err(|_| failed(CallError::TimedOut(CALL_LIMIT).to_string()))?;
        let found = found.map_err(|error| failed(error.to_string()))?;
        Ok(found.as_ref().map_or(NodeState::Absent, state_of))
    }
}

impl NodeLookup for ClusterNodes {
    fn state<'a>(&'a self, node: &'a NodeId) -> BoxFuture<'a, Result<NodeState, NodeLookupError>> {
        self.look_up(node).boxed()
    }
}

fn state_of(node: &RawObject) -> NodeState {
    let metadata = &node.value()["metadata"];
    let labels = metadata["labels"].as_object().into_iter().flatten();
    NodeState::Present {
        uid: metadata["uid"].as_str().unwrap_or_default().to_owned(),
        control_plane: labels
            .into_iter()
            .any(|(name, _): (_, &Value)| CONTROL_PLANE.contains(&name.as_str())),
    }
}
