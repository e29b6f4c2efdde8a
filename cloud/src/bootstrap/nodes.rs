//! What the join port must know about Nodes.

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::Api;
use thiserror::Error;
use tombolo_proto::NodeId;

/// State of a Node object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// There is no Node of this name.
    Absent,
    /// The Node exists and is not Ready.
    NotReady,
    /// The Node is Ready: somebody is running under this name.
    Ready,
}

/// The Kubernetes API did not say.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("cannot look up node {node}: {reason}")]
pub struct NodeLookupError {
    /// Which node.
    pub node: NodeId,
    /// What the API said.
    pub reason: String,
}

/// Answers whether a node exists and is Ready.
pub trait NodeReadiness: Send + Sync + 'static {
    /// State of the node now.
    fn state<'a>(&'a self, node: &'a NodeId) -> BoxFuture<'a, Result<NodeState, NodeLookupError>>;
}

/// Nodes of the Kubernetes API, asked each time: a join is rare and a stale answer gives a name away twice.
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
        let nodes = Api::<Node>::all(self.client.clone());
        let found = nodes.get_opt(id.as_str()).await;
        let found = found.map_err(|error| NodeLookupError { node: id.clone(), reason: error.to_string() })?;
        Ok(found.as_ref().map_or(NodeState::Absent, state_of))
    }
}

impl NodeReadiness for ClusterNodes {
    fn state<'a>(&'a self, node: &'a NodeId) -> BoxFuture<'a, Result<NodeState, NodeLookupError>> {
        self.look_up(node).boxed()
    }
}

fn state_of(node: &Node) -> NodeState {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    match conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True") {
        true => NodeState::Ready,
        false => NodeState::NotReady,
    }
}
