//! The state of a running cloudcore, as operators see it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_link::Transport;
use tombolo_runtime::Readiness;

use crate::hub::Hub;

/// Reads the state of a running cloudcore. Cheap to clone; may outlive it.
#[derive(Clone)]
pub struct StatusHandle {
    hub: Arc<Hub>,
    readiness: Readiness,
}

/// A snapshot of the state.
#[derive(Debug, Clone, PartialEq)]
pub struct CloudStatus {
    /// All kinds were listed, and nodes can be impersonated.
    pub ready: bool,
    /// Generation of the epoch.
    pub epoch_generation: u64,
    /// Number of connected nodes.
    pub sessions: usize,
    /// Deliveries acknowledged since the start.
    pub deliveries: u64,
    /// All edge nodes that are known or connected, by name.
    pub nodes: Vec<NodeStatus>,
}

/// One edge node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Whether its Node object exists.
    pub registered: bool,
    /// Whether it is connected.
    pub connected: bool,
    /// Transport of its connection.
    pub transport: Option<Transport>,
    /// Software version of its agent; empty before its hello.
    pub agent: String,
    /// Number of objects that it should hold.
    pub needed: usize,
    /// Number of keys that wait to be handled by its session.
    pub pending: usize,
    /// Deliveries acknowledged in this connection.
    pub acked: u64,
    /// Latency of its newest acknowledgement.
    pub last_ack_latency: Option<Duration>,
    /// Its newest measured round trip.
    pub round_trip: Option<Duration>,
    /// Whether everything that was missing when it connected has arrived.
    pub caught_up: bool,
}

impl NodeStatus {
    fn new(name: String) -> Self {
        Self {
            name,
            registered: false,
            connected: false,
            transport: None,
            agent: String::new(),
            needed: 0,
            pending: 0,
            acked: 0,
            last_ack_latency: None,
            round_trip: None,
            caught_up: false,
        }
    }
}

impl StatusHandle {
    pub(crate) fn new(hub: Arc<Hub>, readiness: Readiness) -> Self {
        Self { hub, readiness }
    }

    /// The current state.
    #[must_use]
    pub fn snapshot(&self) -> CloudStatus {
        let mut nodes: BTreeMap<String, NodeStatus> = BTreeMap::new();
        for summary in self.hub.down.summaries() {
            let mut status = NodeStatus::new(summary.node.to_string());
            status.registered = summary.registered;
            status.needed = summary.needed;
            nodes.insert(status.name.clone(), status);
        }
        for (node, session) in self.hub.registry.all() {
            let name = node.to_string();
            let status = nodes.entry(name.clone()).or_insert_with(|| NodeStatus::new(name));
            let facts = session.facts.lock().clone();
            status.connected = true;
            status.transport = Some(session.transport);
            status.pending = session.mailbox.pending();
            status.agent = facts.agent;
            status.acked = facts.acked;
            status.last_ack_latency = facts.last_ack;
            status.round_trip = facts.round_trip;
            status.caught_up = facts.caught_up;
        }
        CloudStatus {
            ready: self.readiness.is_ready(),
            epoch_generation: self.hub.epoch.load().generation,
            sessions: self.hub.registry.len(),
            deliveries: self.hub.metrics.deliveries.load(Ordering::Relaxed),
            nodes: nodes.into_values().collect(),
        }
    }
}
