//! Nodes as users.

use tombolo_apicore::identity::Identity;
use tombolo_proto::ids::NodeId;

const NODE_USER: &str = "system:node:";
pub(crate) const NODES_GROUP: &str = "system:nodes";

/// Namespace of the nodes' leases.
pub(crate) const LEASE_NAMESPACE: &str = "kube-node-lease";

/// The node name of an identity: `None` for other users, an empty name for a node without one.
pub(crate) fn node_of(identity: &Identity) -> Option<&str> {
    let name = identity.user.strip_prefix(NODE_USER)?;
    identity.in_group(NODES_GROUP).then_some(name)
}

/// The node name in a user name such as `system:node:NAME`, if it is valid.
pub(crate) fn node_in_user_name(user: &str) -> Option<&str> {
    user.strip_prefix(NODE_USER).filter(|name| NodeId::parse(name).is_ok())
}
