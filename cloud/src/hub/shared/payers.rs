//! Who pays for the copies of shared watches, and which of them give way when memory is used up.
//!
//! A copy that is there for one node alone is paid out of that node's share, and nobody else is touched when the share is used
//! up. When the memory of all is, the watches give way that the fewest nodes follow: what one node selects never ends a
//! watch of many.

use std::cmp::Reverse;
use std::sync::{Arc, Weak};

use dashmap::DashMap;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tombolo_proto::NodeId;
use tombolo_proto::object::SharedObject;
use tombolo_runtime::{Budget, LineLimit, Share};

use super::SharedWatch;
use crate::hub::interned::Stored;
use crate::hub::subscriptions::Closed;
use crate::metrics::{Label, Metrics};

/// One node's share of the memory for objects that are followed is one of so many parts.
const NODE_PART: usize = 4;

/// A namespace gives way when it has one of so many parts of the memory: less is never withheld.
const CROWD_PART: usize = 8;

/// The memory that is missing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// Of the node that pays.
    Share {
        node: NodeId,
        /// The one copy is more than the share.
        alone: bool,
    },
    /// Of all.
    Whole,
}

/// The shares of the nodes, and all watches. Clones are the same.
#[derive(Debug, Clone)]
pub(in crate::hub) struct Payers {
    shares: Budget,
    share_max: usize,
    nodes: Arc<DashMap<NodeId, Weak<Share>>>,
    watches: Arc<Mutex<Vec<Weak<SharedWatch>>>>,
    /// Watches that ended or were refused for want of memory.
    ended: Family<Label, Counter>,
    /// Objects that were withheld from all because their namespace has most.
    withheld: Family<Label, Counter>,
    /// A namespace gives way from so many bytes on.
    crowd_min: usize,
    lines: Arc<LineLimit<Box<str>>>,
}

impl Payers {
    /// Shares of so many bytes for all.
    pub(in crate::hub) fn new(bytes: usize) -> Self {
        let (nodes, watches, ended, withheld) = Default::default();
        let (crowd_min, lines) = (bytes / CROWD_PART, Arc::new(LineLimit::new(1, 60)));
        // What all have together is counted with the objects, of which each is there once.
        let shares = Budget::new(usize::MAX);
        Self { shares, share_max: bytes / NODE_PART, nodes, watches, ended, withheld, crowd_min, lines }
    }

    /// The same, which counts there what has ended.
    pub(in crate::hub) fn counted(self, metrics: &Metrics) -> Self {
        let (ended, withheld) = (metrics.shared_watches_ended.clone(), metrics.shared_watch_withheld.clone());
        Self { ended, withheld, ..self }
    }

    /// This watch may have to give way from now on.
    pub(in crate::hub) fn enlist(&self, watch: &Arc<SharedWatch>) {
        self.watches.lock().push(Arc::downgrade(watch));
    }

    /// Forgets nodes and watches that are gone.
    pub(in crate::hub) fn sweep(&self) {
        self.nodes.retain(|_, share| share.strong_count() > 0);
        self.watches.lock().retain(|watch| watch.strong_count() > 0);
    }

    /// What a node may alone follow. It stays the same for as long as anybody has it.
    pub(super) fn share(&self, node: &NodeId) -> Arc<Share> {
        let mut entry = self.nodes.entry(node.clone()).or_default();
        entry.upgrade().unwrap_or_else(|| {
            let share = Arc::new(self.shares.share(self.share_max));
            *entry = Arc::downgrade(&share);
            share
        })
    }

    /// Says why somebody cannot have more, and counts it.
    pub(super) fn refuse(&self, lack: &Lack) -> Closed {
        let max = self.share_max;
        let (kind, closed) = match lack {
            Lack::Share { alone: true, .. } => {
                let reason = format!("what this node alone selects has more than {max} bytes: select fewer");
                ("share", Closed::new(413, &reason))
            }
            Lack::Share { alone: false, .. } => {
                let reason =
                    format!("all that this node alone follows has more than {max} bytes: end some first");
                ("share", Closed::new(429, &reason))
            }
            Lack::Whole => {
                ("whole", Closed::new(503, "this hub has no memory left for objects that are followed"))
            }
        };
        self.count(kind);
        closed
    }

    /// An object of this namespace had to give way.
    pub(super) fn withheld(&self, kind: &'static str, namespace: &str) {
        self.withheld.get_or_create(&Label { kind }).inc();
        if let Some(left_out) = self.lines.admit(&namespace.into()) {
            tracing::warn!(
                namespace,
                kind,
                left_out,
                "of this namespace more is followed than there is room for: objects of it are not delivered"
            );
        }
    }

    fn count(&self, kind: &'static str) {
        self.ended.get_or_create(&Label { kind }).inc();
    }

    fn others(&self, than: &SharedWatch) -> Vec<Arc<SharedWatch>> {
        let watches = self.watches.lock();
        let living = watches.iter().filter_map(Weak::upgrade);
        living.filter(|watch| !std::ptr::eq(&**watch, than) && watch.takes_memory()).collect()
    }
}

/// How much is lost with a watch: the nodes that the copy is there for. Of equals, the one whose payer pays most is the
/// least, then the largest.
type Standing = (usize, Reverse<usize>, Reverse<usize>);

impl SharedWatch {
    /// The object as all copies have it. Others give way to it where they must.
    ///
    /// # Errors
    /// There is no memory, and nobody to give way.
    pub(super) fn keep(&self, object: &Arc<SharedObject>) -> Result<Arc<Stored>, Closed> {
        loop {
            match self.interned.keep(object) {
                Some(stored) => return Ok(stored),
                None => self.make_room(&Lack::Whole)?,
            }
        }
    }

    /// Ends another watch in favour of this one. Nothing may be locked: the other one's locks are taken.
    ///
    /// # Errors
    /// No other is less than this one.
    pub(super) fn make_room(&self, lack: &Lack) -> Result<(), Closed> {
        let payers = &self.interned.payers;
        let others = payers.others(self).into_iter();
        let (kind, other) = match lack {
            // Nobody but the node itself gives way to it, and only what it follows no longer.
            Lack::Share { node, .. } => {
                let idle = |watch: &Arc<Self>| watch.is_paid_by(node) && watch.standing().0 == 0;
                ("idle", others.filter(idle).min_by_key(|watch| watch.idle_since()))
            }
            Lack::Whole if self.crowd_gives_way() => return Ok(()),
            Lack::Whole => {
                let own = self.standing();
                let least =
                    others.map(|watch| (watch.standing(), watch)).min_by_key(|(standing, _)| *standing);
                ("whole", least.filter(|(standing, _)| *standing < own).map(|(_, watch)| watch))
            }
        };
        let Some(other) = other else {
            return if self.crowd_gives_way_here() { Ok(()) } else { Err(payers.refuse(lack)) };
        };
        payers.count(kind);
        other.fail(&Closed::new(503, "this watch gave way to another, for want of memory: subscribe again"));
        Ok(())
    }

    /// The same of this copy alone.
    fn crowd_gives_way_here(&self) -> bool {
        self.crowd().is_some_and(|bytes| bytes >= self.interned.payers.crowd_min) && self.withhold_one()
    }

    /// Whether one object less is there of the namespace that has most of what everybody follows.
    fn crowd_gives_way(&self) -> bool {
        let payers = &self.interned.payers;
        let is_crowd = |bytes: &usize| *bytes >= payers.crowd_min;
        let own = self.crowd().filter(is_crowd);
        let others = payers.others(self).into_iter();
        let others = others.filter_map(|watch| Some((watch.crowd().filter(is_crowd)?, watch)));
        match others.max_by_key(|(bytes, _)| *bytes) {
            Some((bytes, other)) if own.is_none_or(|own| own < bytes) => other.withhold_one(),
            _ => self.crowd_gives_way_here(),
        }
    }

    fn takes_memory(&self) -> bool {
        !self.has_failed() && !self.objects.is_empty()
    }

    fn standing(&self) -> Standing {
        let followers = self.followers.lock();
        let (bytes, paid) = followers.bytes();
        let nodes = followers.nodes();
        drop(followers);
        // Somebody waits for the first list.
        let nodes = if self.is_following() { nodes } else { nodes.max(1) };
        (nodes, Reverse(paid), Reverse(bytes))
    }
}
