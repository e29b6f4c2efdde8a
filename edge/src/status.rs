//! Agent status, for programs that host an agent.

use std::time::Duration;

use tombolo_link::Transport;
use tombolo_proto::ids::NodeId;

use crate::hub::HubHandle;
use crate::store::Store;

/// A snapshot of an agent's status.
#[derive(Debug, Clone, PartialEq)]
pub struct EdgeStatus {
    /// The node.
    pub node: NodeId,
    /// Transport of the session with the cloud; `None` while not connected.
    pub transport: Option<Transport>,
    /// Why the agent is not connected.
    pub trouble: Option<String>,
    /// Last measured round-trip time to the cloud.
    pub round_trip: Option<Duration>,
    /// Whether the store was ever complete.
    pub synced: bool,
    /// Objects that local clients see.
    pub objects: u64,
    /// Pods hidden until the objects they refer to arrive.
    pub pods_hidden: u64,
    /// Reports that wait for the cloud.
    pub reports_waiting: u64,
    /// Newest local revision.
    pub revision: u64,
}

/// Reads the status of an agent from outside. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StatusHandle {
    node: NodeId,
    store: Store,
    hub: HubHandle,
}

impl StatusHandle {
    pub(crate) fn new(node: NodeId, store: Store, hub: HubHandle) -> Self {
        Self { node, store, hub }
    }

    /// Takes a snapshot. Values that cannot be read are zero or false.
    #[must_use]
    pub fn look(&self) -> EdgeStatus {
        let state = self.hub.state().borrow().clone();
        let counts = self.store.counts().unwrap_or_default();
        EdgeStatus {
            node: self.node.clone(),
            transport: state.transport,
            trouble: state.trouble,
            round_trip: state.round_trip,
            synced: self.store.standing().is_ok_and(|standing| standing.synced),
            objects: counts.visible,
            pods_hidden: counts.hidden,
            reports_waiting: counts.reports,
            revision: self.store.local_revision().0,
        }
    }
}
