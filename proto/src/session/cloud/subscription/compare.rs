//! The exact difference between what an edge holds and what it should hold.
//!
//! Listed entries are equal when UID, revision and content hash are equal, in every epoch. Equal content under another
//! revision is adopted, not sent again; other differences are sent; objects that are held and not wanted are deleted.
//! Nothing is delivered in a subscription before it is compared, so a delivery never overtakes the inventory.

use std::collections::{HashMap, HashSet};

use super::listing::{Listing, Rest, cost, cost_of_entry, listed_twice, too_many};
use super::{Stage, Subscription};
use crate::frame::{Inventory, InventoryPart};
use crate::ids::{Epoch, Moment, StoreId, SubscriptionId};
use crate::inventory;
use crate::limits::{HELLO_INVENTORY_MAX, INVENTORY_MAX};
use crate::object::{HeldState, InventoryEntry, KeyHashes, ObjectKey};
use crate::session::SessionError;
use crate::session::cloud::slot::{PeerState, Slot, SlotDecision};
use crate::session::cloud::{Certainty, Lookup, NodeView};

/// What an edge claims to hold, before it is compared.
#[derive(Debug)]
pub(in crate::session::cloud) struct InventoryComparison {
    /// The history that the edge's copy follows.
    epoch: Option<Epoch>,
    /// The edge's store, when its content hashes were made under the trimming rules of the view.
    comparable: Option<StoreId>,
    claim: Claim,
}

#[derive(Debug)]
enum Claim {
    /// As received, with the bytes that it takes; a subscription waits here for the owner's decision.
    Announced(Inventory, usize),
    /// The whole inventory was requested.
    Collecting(Listing),
}

/// Result of opening a subscription.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::session::cloud) enum Opening {
    /// The subscription is compared and follows the view.
    Compared,
    /// The summary differs: the whole inventory is needed.
    NeedsInventory,
}

impl InventoryComparison {
    /// Checks the bounds of an announced inventory.
    ///
    /// # Errors
    /// [`SessionError::Protocol`] when it has more entries than a hello may carry, or an edge may hold.
    pub(in crate::session::cloud) fn new(
        epoch: Option<Epoch>,
        comparable: Option<StoreId>,
        inventory: Inventory,
    ) -> Result<Self, SessionError> {
        match &inventory {
            Inventory::Full(entries) if entries.len() > HELLO_INVENTORY_MAX => {
                let entries = entries.len();
                return Err(SessionError::Protocol(format!(
                    "an inventory of {entries} entries was sent in full; above {HELLO_INVENTORY_MAX}, send a digest"
                )));
            }
            Inventory::Digest { count, .. } if *count > INVENTORY_MAX as u64 => return Err(too_many(*count)),
            _ => {}
        }
        let bytes = match &inventory {
            Inventory::Full(entries) => entries.iter().map(cost_of_entry).sum(),
            Inventory::Digest { .. } => 0,
        };
        Ok(Self { epoch, comparable, claim: Claim::Announced(inventory, bytes) })
    }

    /// Bytes that the edge makes the session keep for it.
    pub(in crate::session::cloud) fn bytes(&self) -> usize {
        match &self.claim {
            Claim::Announced(_, bytes) => *bytes,
            Claim::Collecting(listing) => listing.bytes,
        }
    }

    fn deadline(&self) -> Option<Moment> {
        match &self.claim {
            Claim::Announced(..) => None,
            Claim::Collecting(listing) => Some(listing.deadline),
        }
    }

    fn is_announced(&self) -> bool {
        matches!(self.claim, Claim::Announced(..))
    }
}

impl Subscription {
    /// Time by which the requested inventory must have made progress.
    pub(in crate::session::cloud) fn comparison_deadline(&self) -> Option<Moment> {
        match &self.stage {
            Stage::Comparing(comparison) => comparison.deadline(),
            Stage::CatchingUp(_) | Stage::Following => self.rest_deadline(),
        }
    }

    /// Compares the announced inventory, or finds that it is only a digest and differs. Does nothing for a subscription
    /// that was opened before.
    ///
    /// # Errors
    /// [`SessionError::Protocol`] when the inventory contradicts itself.
    pub(in crate::session::cloud) fn open(
        &mut self,
        now: Moment,
        ours: &Epoch,
        view: &impl NodeView,
    ) -> Result<Option<Opening>, SessionError> {
        let Stage::Comparing(comparison) = &mut self.stage else { return Ok(None) };
        if !comparison.is_announced() {
            return Ok(None);
        }
        let comparable = comparison.comparable.filter(|_| comparison.epoch.as_ref() == Some(ours));
        let collecting = Claim::Collecting(Listing::new(now));
        let entries = match std::mem::replace(&mut comparison.claim, collecting) {
            Claim::Announced(Inventory::Full(entries), _) => Some(entries),
            // A digest has no content hashes: it is only comparable within one epoch and one set of trimming rules.
            Claim::Announced(Inventory::Digest { count, digest }, _) => comparable
                .and_then(|store| matching((store, self.id), view, self.tells_unreadable, (digest, count))),
            Claim::Collecting(_) => None,
        };
        let Some(entries) = entries else { return Ok(Some(Opening::NeedsInventory)) };
        self.compare(&entries, false, ours, view)?;
        Ok(Some(Opening::Compared))
    }

    /// Takes a part of the inventory, with at most `room` bytes of entries that only the edge names; after the last
    /// part the subscription is compared. False when no inventory is awaited.
    ///
    /// # Errors
    /// [`SessionError::Protocol`] when a part or the whole is too large or contradicts itself.
    pub(in crate::session::cloud) fn add_part(
        &mut self,
        now: Moment,
        part: InventoryPart,
        room: usize,
        ours: &Epoch,
        view: &impl NodeView,
    ) -> Result<bool, SessionError> {
        let Stage::Comparing(comparison) = &mut self.stage else {
            return self.add_rest(now, part, room, view);
        };
        let Claim::Collecting(listing) = &mut comparison.claim else { return Ok(false) };
        let last = part.last;
        listing.add(now, part, room, view)?;
        if last {
            let (entries, left_out) = (std::mem::take(&mut listing.entries), listing.left_out);
            self.compare(&entries, left_out, ours, view)?;
        }
        Ok(true)
    }

    fn compare(
        &mut self,
        entries: &[InventoryEntry],
        left_out: bool,
        ours: &Epoch,
        view: &impl NodeView,
    ) -> Result<(), SessionError> {
        let foreign = match &self.stage {
            Stage::Comparing(comparison) => comparison.epoch.as_ref() != Some(ours),
            Stage::CatchingUp(_) | Stage::Following => return Ok(()),
        };
        let mut claimed: HashMap<&ObjectKey, &HeldState, KeyHashes> =
            HashMap::with_capacity_and_hasher(entries.len(), KeyHashes::default());
        for entry in entries {
            if claimed.insert(&entry.key, &entry.held).is_some() {
                return Err(listed_twice(self.id, &entry.key));
            }
        }
        let wanted = view.wanted(self.id);
        let distinct: HashSet<&ObjectKey, KeyHashes> = wanted.iter().collect();
        self.slots.reserve(distinct.len());
        let revision = view.revision(self.id);
        self.stage = Stage::CatchingUp(revision);
        self.rest = left_out.then(|| Box::new(Rest::new(foreign)));
        // Deletions first: they make room for what follows. Keys of wanted objects come from the view, which shares
        // them among all nodes; the inventory's own copies are dropped.
        let unwanted = entries.iter().map(|entry| &entry.key).filter(|key| !distinct.contains(key));
        for (key, claim) in unwanted.map(|key| (key, true)).chain(wanted.iter().map(|key| (key, false))) {
            let peer_state =
                claimed.get(key).map_or(PeerState::Nothing, |held| PeerState::from((*held).clone()));
            let mut slot = Slot::new(peer_state, foreign);
            (slot.charged, slot.gone) = (claim, claim);
            self.compare_key(key, slot, view);
        }
        Ok(())
    }

    pub(in crate::session::cloud) fn compare_key(
        &mut self,
        key: &ObjectKey,
        slot: Slot,
        view: &impl NodeView,
    ) {
        if self.slots.contains_key(key) {
            return;
        }
        if slot.charged {
            self.charged = self.charged.saturating_add(cost(key));
        }
        self.add_slot(key.clone(), slot);
        let (subscription, lookup) = (self.id, self.lookup(view, key));
        let Some(slot) = self.slots.get(key) else { return };
        let decision = slot.judge(key, lookup, self.tells_unreadable);
        let certainty = match &decision {
            SlotDecision::Send(step) => slot.certainty(subscription, key, step, view),
            _ => Certainty::Certain,
        };
        if certainty == Certainty::Asked {
            return self.hesitate(key);
        }
        match decision {
            SlotDecision::Settled => self.settle(key),
            SlotDecision::Forget => self.remove_slot(key),
            // Too large objects are detected again, and reported, when they would be sent.
            SlotDecision::Send(_) | SlotDecision::TooLarge { .. } => {
                self.make_due(key);
                self.make_ready(key.clone());
            }
            SlotDecision::Wait => self.make_due(key),
        }
    }
}

/// The entries that the view wants, when their digest is the announced one.
fn matching(
    (store, subscription): (StoreId, SubscriptionId),
    view: &impl NodeView,
    tells_unreadable: bool,
    announced: ([u8; 16], u64),
) -> Option<Vec<InventoryEntry>> {
    // A different count is detected without hashing.
    if view.count(subscription) as u64 != announced.1 {
        return None;
    }
    let mut entries = Vec::new();
    for key in view.wanted(subscription) {
        let held = match view.lookup(subscription, &key) {
            Lookup::Present(object) => HeldState::Present(object.version.clone()),
            Lookup::Absent => HeldState::Absent,
            // The edge may also hold a version from when the object could be read: then digests differ and its list
            // shows it.
            Lookup::Unreadable(_) if tells_unreadable => HeldState::Unreadable,
            Lookup::Unwanted(_) | Lookup::Unreadable(_) | Lookup::Pending => return None,
        };
        entries.push(InventoryEntry { key, held });
    }
    (inventory::digest(store, &entries) == announced).then_some(entries)
}
