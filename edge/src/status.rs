//! How an agent stands, for whoever hosts it.

use std::time::Duration;

use tombolo_link::Transport;
use tombolo_proto::ids::NodeId;

use crate::hub::HubHandle;
use crate::store::Store;

/// One look at an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct EdgeStatus {
    /// The node.
    pub node: NodeId,
    /// What carries the session with the cloud; none while there is none.
    pub transport: Option<Transport>,
    /// Why there is no session.
    pub trouble: Option<String>,
    /// Last measured time for a question to the cloud and its answer.
    pub round_trip: Option<Duration>,
    /// Whether the store was ever complete.
    pub synced: bool,
    /// Objects that local clients see.
    pub objects: u64,
    /// Pods that wait for what they refer to.
    pub pods_hidden: u64,
    /// Reports that wait for the cloud.
    pub reports_waiting: u64,
    /// Newest local revision.
    pub revision: u64,
}

/// Follows an agent from outside. Cheap to clone.
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

    /// Looks once. What cannot be read counts as nothing.
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
