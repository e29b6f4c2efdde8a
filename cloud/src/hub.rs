//! The connected nodes: which nodes are connected, what each one receives, and the task that owns each connection.

mod access;
mod channel;
mod closed;
mod duplicate_identity;
mod followed;
mod kinds;
mod kubeedge;
mod ledger;
mod mailbox;
mod metaserver;
mod node_session;
mod node_shares;
mod registry;
mod selection;
mod shared;
mod subscriptions;
mod view;
mod volumes;

pub use access::Access;
pub(crate) use ledger::NO_LEDGERS;
pub use ledger::{
    ClusterLedgers, LEDGER_LABEL, LedgerError, LedgerStore, Ledgers, Record, RecordError, RecordVersion,
};
pub use mailbox::Mailbox;
pub use node_shares::{NODE_BYTES_MAX, NODE_REQUEST_BYTES_MAX};
pub use registry::{Admission, Registry, SessionFacts, SessionHandle};
pub use subscriptions::Subscriptions;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;
use tombolo_link::server::{Accepted, AcceptedKubeEdge};
use tombolo_link::{Clock, Link};
use tombolo_proto::frame::{Frame, Goodbye, GoodbyeReason};
use tombolo_proto::{Epoch, Lane, NodeId};
use tombolo_runtime::{Budget, Tasks};

use crate::config::KubeEdgeSessions;
use crate::edgecontroller::upstream::Upstream;
use crate::edgecontroller::{Input, NodeObjectCache};
use crate::epoch::Attestations;
use crate::metrics::Metrics;
use crate::record::Recorder;

/// Longest wait for a peer to accept the last frames.
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Shortest wait that a node is asked to keep when the hub is full. The longest is twice as long.
const FULL_RETRY: Duration = Duration::from_secs(30);

/// State shared by all session tasks: one field for each part of cloudcore that they use. Cheap to clone through its
/// `Arc`.
pub struct Hub {
    /// The sessions of the connected nodes.
    pub registry: Arc<Registry>,
    pub(crate) down: Arc<NodeObjectCache>,
    pub(crate) upstream: Upstream,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) ledgers: Ledgers,
    pub(crate) inputs: mpsc::Sender<Input>,
    pub(crate) metrics: Metrics,
    /// Memory budget for everything that all nodes together make the hub keep.
    pub(crate) session_bytes: Budget,
    pub(crate) kubeedge: KubeEdgeSessions,
    pub(crate) epoch: ArcSwap<Epoch>,
    /// What edges attest of the cloud's history.
    pub(crate) attestations: Attestations,
    pub(crate) clock: Clock,
    pub(crate) tasks: Tasks,
    pub(crate) recorder: Option<Arc<Recorder>>,
}

impl Hub {
    /// Takes over a connection. From now on a task of its own owns it.
    pub fn accept(self: &Arc<Self>, accepted: Accepted) {
        let Accepted { link, node, .. } = accepted;
        match self.registry.admit(&node, link.peer()) {
            Admission::Admitted(handle) => {
                let hub = Arc::clone(self);
                let name = format!("session of {node}");
                self.tasks.spawn_isolated(name, node_session::run(hub, node, handle, link));
            }
            Admission::Full(limit) => {
                self.count_refusal(&node, limit);
                let message = format!("this hub serves at most {limit} nodes at a time (setting nodeLimit)");
                let retry_after = FULL_RETRY + spread_wait(&node, FULL_RETRY);
                let goodbye = Goodbye { reason: GoodbyeReason::Overloaded, message, retry_after };
                self.tasks.spawn_isolated(format!("refusal of {node}"), refuse(link, goodbye));
            }
        }
    }

    /// Takes over the connection of a KubeEdge edge.
    pub fn accept_kubeedge(self: &Arc<Self>, accepted: AcceptedKubeEdge) {
        let AcceptedKubeEdge { link, node, .. } = accepted;
        if self.registry.keeps_out(&node) {
            self.metrics.refused_connections.inc();
            if let Some(left_out) = self.registry.may_log(&node) {
                tracing::warn!(%node, left_out, "connection refused: another process with this identity took over the session recently");
            }
            self.tasks.spawn_isolated(format!("refusal of {node}"), link.close(CLOSE_LIMIT));
            return;
        }
        match self.registry.admit(&node, link.peer()) {
            Admission::Admitted(handle) => {
                let hub = Arc::clone(self);
                let name = format!("session of {node}");
                self.tasks.spawn_isolated(name, node_session::run_kubeedge(hub, node, handle, link));
            }
            Admission::Full(limit) => {
                self.count_refusal(&node, limit);
                // A KubeEdge edge understands no goodbye reason: it redials after its own wait
                // (docs/reference/kubeedge.md#hub-loop).
                self.tasks.spawn_isolated(format!("refusal of {node}"), link.close(CLOSE_LIMIT));
            }
        }
    }

    /// Reports that two processes use the identity of this node, as was proved `times` times.
    fn contested(self: &Arc<Self>, node: &NodeId, times: u32) {
        self.metrics.identities_contested.inc();
        // The event has the same limit as the log line: cloudcore writes it in its own name, and one machine can
        // trigger it at will.
        let Some(left_out) = self.registry.may_log(node) else { return };
        tracing::warn!(%node, times, left_out, "two machines use the identity of this node: stop the copy and join it under a name of its own");
        let (hub, node) = (Arc::clone(self), node.clone());
        let name = format!("event on {node}");
        self.tasks.spawn_isolated(name, async move { hub.upstream.tell_contested(&node).await });
    }

    fn count_refusal(&self, node: &NodeId, limit: usize) {
        self.metrics.refused_connections.inc();
        if let Some(left_out) = self.registry.may_log(node) {
            tracing::warn!(%node, limit, left_out, "connection refused: the node limit is reached");
        }
    }

    /// Ends every session with a goodbye. Each node gets its own retry time within `spread`.
    pub fn end_all(&self, reason: GoodbyeReason, message: &str, spread: Duration) {
        self.registry.end_all(|node| {
            let retry_after = spread_wait(node, spread);
            Goodbye { reason, message: message.to_owned(), retry_after }
        });
    }
}

pub(crate) async fn refuse(mut link: Link, goodbye: Goodbye) {
    // If the frame does not fit or encode, the link just ends without a goodbye.
    if link.send(Lane::Control, Frame::Goodbye(goodbye)).is_ok() {
        link.close(CLOSE_LIMIT).await;
    }
}

/// A node's fixed share of `spread`, so that a fleet does not reconnect in step.
fn spread_wait(node: &NodeId, spread: Duration) -> Duration {
    let hash = xxhash_rust::xxh3::xxh3_64(node.as_str().as_bytes());
    let share = u32::try_from(hash >> 32).unwrap_or(u32::MAX);
    spread.mul_f64(f64::from(share) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_spread_and_stable() {
        let spread = Duration::from_secs(10);
        let wait = |n: u32| spread_wait(&NodeId::parse(&format!("node-{n}")).expect("valid"), spread);
        let early = (0..1000).filter(|n| wait(*n) < spread / 2).count();
        assert!((300..700).contains(&early), "{early} of 1000 in the first half");
        assert!((0..1000).all(|n| wait(n) <= spread && wait(n) == wait(n)));
    }
}
