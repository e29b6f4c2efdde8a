//! Decides which copies give way when the memory of all nodes is used up: the watches with the fewest nodes, so the
//! selections of one node never end a watch of many.

use std::cmp::Reverse;
use std::sync::Arc;

use tombolo_proto::object::SharedObject;

use super::SharedWatch;
use super::interned::Stored;
use super::payers::Lack;
use crate::hub::closed::Closed;

/// Rank of a watch: the number of nodes that the copy exists for. Among equals, the watch whose payer pays most ranks
/// lowest, then the largest watch.
type WatchRank = (usize, Reverse<usize>, Reverse<usize>);

impl SharedWatch {
    /// The stored object that all copies share. Other watches give way to it where needed.
    ///
    /// # Errors
    /// There is no memory, and no other watch can give way.
    pub(super) fn keep(&self, object: &Arc<SharedObject>) -> Result<Arc<Stored>, Closed> {
        loop {
            match self.interned.keep(object) {
                Some(stored) => return Ok(stored),
                None => self.make_room(&Lack::Whole)?,
            }
        }
    }

    /// Ends another watch in favour of this one, or withholds an object. The caller must hold no lock, because the
    /// locks of the other watch are taken.
    ///
    /// # Errors
    /// No other watch ranks lower than this one.
    pub(super) fn make_room(&self, lack: &Lack) -> Result<(), Closed> {
        let payers = &self.interned.payers;
        let others = payers.others(self).into_iter();
        let (kind, other) = match lack {
            // Only the node's own watches give way, and only those that it no longer follows.
            Lack::Share { node, .. } => {
                let idle = |watch: &Arc<Self>| watch.is_paid_by(node) && watch.standing().0 == 0;
                ("idle", others.filter(idle).min_by_key(|watch| watch.idle_since()))
            }
            Lack::Whole if self.withholds_from_largest() => return Ok(()),
            Lack::Whole => {
                let own = self.standing();
                let least =
                    others.map(|watch| (watch.standing(), watch)).min_by_key(|(standing, _)| *standing);
                ("whole", least.filter(|(standing, _)| *standing < own).map(|(_, watch)| watch))
            }
        };
        let Some(other) = other else {
            return if self.withholds_from_largest_here() { Ok(()) } else { Err(payers.refuse(lack)) };
        };
        payers.count(kind);
        other.fail(&Closed::new(503, "this watch was evicted for lack of memory: subscribe again"));
        Ok(())
    }

    /// Withholds an object of this copy alone. False when this is not possible.
    fn withholds_from_largest_here(&self) -> bool {
        self.largest_namespace_bytes().is_some_and(|bytes| bytes >= self.interned.payers.large_namespace_min)
            && self.withhold_one()
    }

    /// Withholds an object of the largest namespace in any copy that all nodes follow. False when this is not possible.
    fn withholds_from_largest(&self) -> bool {
        let payers = &self.interned.payers;
        let is_large = |bytes: &usize| *bytes >= payers.large_namespace_min;
        let own = self.largest_namespace_bytes().filter(is_large);
        let others = payers.others(self).into_iter();
        let others =
            others.filter_map(|watch| Some((watch.largest_namespace_bytes().filter(is_large)?, watch)));
        match others.max_by_key(|(bytes, _)| *bytes) {
            Some((bytes, other)) if own.is_none_or(|own| own < bytes) => other.withhold_one(),
            _ => self.withholds_from_largest_here(),
        }
    }

    pub(super) fn takes_memory(&self) -> bool {
        !self.has_failed() && !self.objects.is_empty()
    }

    fn standing(&self) -> WatchRank {
        let followers = self.followers.lock();
        let (bytes, paid) = followers.bytes();
        let nodes = followers.nodes();
        drop(followers);
        // At least one node waits for the first list.
        let nodes = if self.is_following() { nodes } else { nodes.max(1) };
        (nodes, Reverse(paid), Reverse(bytes))
    }
}
