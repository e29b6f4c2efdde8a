//! Decides which node pays for the copies of shared watches. A copy that exists for one node alone is paid from that
//! node's share, and no other node is affected when the share is used up.

use std::sync::{Arc, Weak};

use dashmap::DashMap;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tombolo_proto::NodeId;
use tombolo_runtime::{Budget, LineLimit, Share};

use super::SharedWatch;
use crate::hub::closed::Closed;
use crate::metrics::{Label, Metrics};

/// One node's share of the memory for followed objects is the total divided by this number.
const NODE_PART: usize = 4;

/// A namespace gives way only when it has at least the total divided by this number.
const LARGE_PART: usize = 8;

/// The memory that is missing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// The paying node's share is used up.
    Share {
        node: NodeId,
        /// This one copy is larger than the share.
        alone: bool,
    },
    /// The memory of all nodes is used up.
    Whole,
}

/// The shares of the nodes, and all watches. Clones share the same state.
#[derive(Debug, Clone)]
pub(in crate::hub) struct Payers {
    shares: Budget,
    share_max: usize,
    nodes: Arc<DashMap<NodeId, Weak<Share>>>,
    watches: Arc<Mutex<Vec<Weak<SharedWatch>>>>,
    /// Watches that ended or were refused for want of memory.
    ended: Family<Label, Counter>,
    /// Objects that were withheld from all nodes because their namespace is the largest.
    withheld: Family<Label, Counter>,
    /// Bytes from which on a namespace gives way.
    pub(super) large_namespace_min: usize,
    lines: Arc<LineLimit<Box<str>>>,
}

impl Payers {
    /// Shares of a total of this many bytes.
    pub(in crate::hub) fn new(bytes: usize) -> Self {
        let (nodes, watches, ended, withheld) = Default::default();
        let (large_namespace_min, lines) = (bytes / LARGE_PART, Arc::new(LineLimit::new(1, 60)));
        // The total is limited where the objects are stored, each only once.
        let shares = Budget::new(usize::MAX);
        Self {
            shares,
            share_max: bytes / NODE_PART,
            nodes,
            watches,
            ended,
            withheld,
            large_namespace_min,
            lines,
        }
    }

    /// The same, and counts in `metrics` what has ended.
    pub(in crate::hub) fn counted(self, metrics: &Metrics) -> Self {
        let (ended, withheld) = (metrics.shared_watches_ended.clone(), metrics.shared_watch_withheld.clone());
        Self { ended, withheld, ..self }
    }

    /// Adds a watch to those that may have to give way.
    pub(in crate::hub) fn enlist(&self, watch: &Arc<SharedWatch>) {
        self.watches.lock().push(Arc::downgrade(watch));
    }

    /// Forgets nodes and watches that are gone.
    pub(in crate::hub) fn sweep(&self) {
        self.nodes.retain(|_, share| share.strong_count() > 0);
        self.watches.lock().retain(|watch| watch.strong_count() > 0);
    }

    /// The share for what a node alone follows. It stays the same as long as it is in use.
    pub(super) fn share(&self, node: &NodeId) -> Arc<Share> {
        let mut entry = self.nodes.entry(node.clone()).or_default();
        entry.upgrade().unwrap_or_else(|| {
            let share = Arc::new(self.shares.share(self.share_max));
            *entry = Arc::downgrade(&share);
            share
        })
    }

    /// Explains and counts a refusal for want of memory.
    pub(super) fn refuse(&self, lack: &Lack) -> Closed {
        let max = self.share_max;
        let (kind, closed) = match lack {
            Lack::Share { alone: true, .. } => {
                let reason = format!("objects that only this node selects exceed {max} bytes: select fewer");
                ("share", Closed::new(413, &reason))
            }
            Lack::Share { alone: false, .. } => {
                let reason = format!(
                    "objects that only this node follows exceed {max} bytes in all: end some subscriptions first"
                );
                ("share", Closed::new(429, &reason))
            }
            Lack::Whole => ("whole", Closed::new(503, "this hub has no memory left for followed objects")),
        };
        self.count(kind);
        closed
    }

    /// Counts and logs an object of this namespace that had to give way.
    pub(super) fn withheld(&self, kind: &'static str, namespace: &str) {
        self.withheld.get_or_create(&Label { kind }).inc();
        if let Some(left_out) = self.lines.admit(&namespace.into()) {
            tracing::warn!(
                namespace,
                kind,
                left_out,
                "there is not enough room for the followed objects of this namespace: some are not delivered"
            );
        }
    }

    pub(super) fn count(&self, kind: &'static str) {
        self.ended.get_or_create(&Label { kind }).inc();
    }

    pub(super) fn others(&self, than: &SharedWatch) -> Vec<Arc<SharedWatch>> {
        let watches = self.watches.lock();
        let living = watches.iter().filter_map(Weak::upgrade);
        living.filter(|watch| !std::ptr::eq(&**watch, than) && watch.takes_memory()).collect()
    }
}
