//! Inventories that arrive in parts, and entries for which there was no room.
//!
//! What the view wants is bounded by the view, so it is always kept. For entries that only the edge names there is
//! room for [`INVENTORY_BYTES_MAX`]; the others are left out, and requested again when the kept ones are deleted. So
//! an edge can reconnect whatever it holds, and never uses more of the cloud's memory than that.

use std::collections::HashSet;

use super::Subscription;
use crate::frame::InventoryPart;
use crate::ids::{Moment, SubscriptionId};
use crate::limits::{
    HANDSHAKE_TIMEOUT, INVENTORY_BYTES_MAX, INVENTORY_MAX, INVENTORY_PART_MAX, INVENTORY_ROUNDS_MAX,
};
use crate::object::{HeldState, InventoryEntry, KeyHashes, ObjectKey};
use crate::session::SessionError;
use crate::session::cloud::slot::{PeerState, Slot};
use crate::session::cloud::{CloudSession, NodeView, Notice};

/// Bytes of an entry that the view wants, which shares the view's key: a slot in a list and in a set, and its UID.
const WANTED_OVERHEAD: usize = 192;

/// Bytes that an inventory entry takes besides its texts: the key and what is held, each in its own allocation, and a
/// slot in a list or map with spare capacity.
const ENTRY_OVERHEAD: usize = 384;

/// Memory that the cloud keeps for a key that only the edge has named. The texts of its resource may be kept only for
/// it as well.
pub(in crate::session::cloud) fn cost(key: &ObjectKey) -> usize {
    let resource = key.resource();
    let texts = [&resource.group, &resource.version, &resource.name].map(|text| text.len());
    let texts = texts.into_iter().chain([key.namespace().len(), key.name().len()]);
    texts.fold(ENTRY_OVERHEAD, usize::saturating_add)
}

/// Memory of an entry that only the edge has named.
pub(in crate::session::cloud) fn cost_of_entry(entry: &InventoryEntry) -> usize {
    let uid = match &entry.held {
        HeldState::Present(version) => version.uid.as_str().len(),
        HeldState::Absent | HeldState::Unreadable => 0,
    };
    cost(&entry.key).saturating_add(uid)
}

/// The received parts of one inventory.
#[derive(Debug)]
pub(in crate::session::cloud) struct Listing {
    pub(in crate::session::cloud) entries: Vec<InventoryEntry>,
    seen: HashSet<ObjectKey, KeyHashes>,
    /// Entries received, including those that were left out.
    total: usize,
    /// Bytes that the edge makes this listing keep.
    pub(in crate::session::cloud) bytes: usize,
    /// The next part must arrive by then.
    pub(in crate::session::cloud) deadline: Moment,
    /// There was no room for some entries.
    pub(in crate::session::cloud) left_out: bool,
}

impl Listing {
    pub(in crate::session::cloud) fn new(now: Moment) -> Self {
        let (entries, seen) = Default::default();
        Self { entries, seen, total: 0, bytes: 0, deadline: now + HANDSHAKE_TIMEOUT, left_out: false }
    }

    /// Checks the bounds of the next part.
    ///
    /// # Errors
    /// [`SessionError::Protocol`] when it or the whole is too large.
    fn begin_part(&mut self, now: Moment, part: &InventoryPart) -> Result<(), SessionError> {
        let size = part.entries.len();
        if size > INVENTORY_PART_MAX {
            return Err(SessionError::Protocol(format!(
                "an inventory part of {size} entries is more than the {INVENTORY_PART_MAX} allowed"
            )));
        }
        self.total = self.total.saturating_add(size);
        if self.total > INVENTORY_MAX {
            return Err(too_many(self.total as u64));
        }
        if size == 0 && !part.last {
            return Err(SessionError::Protocol(
                "an inventory part is empty, but not the last one".to_owned(),
            ));
        }
        self.deadline = now + HANDSHAKE_TIMEOUT;
        Ok(())
    }

    /// Keeps the entries that the view wants, and at most `room` bytes of others.
    ///
    /// # Errors
    /// [`SessionError::Protocol`] when it is too large or contradicts itself.
    pub(in crate::session::cloud) fn add(
        &mut self,
        now: Moment,
        part: InventoryPart,
        mut room: usize,
        view: &impl NodeView,
    ) -> Result<(), SessionError> {
        self.begin_part(now, &part)?;
        let (subscription, wanted) = (part.subscription, wanted(part.subscription, view));
        for mut entry in part.entries {
            let bytes = match wanted.get(&entry.key) {
                Some(shared) => {
                    entry.key = shared.clone();
                    // The pushed set is not chosen by the edge.
                    if subscription == SubscriptionId::NODE { 0 } else { WANTED_OVERHEAD }
                }
                None if cost_of_entry(&entry) > room => {
                    self.left_out = true;
                    continue;
                }
                None => cost_of_entry(&entry),
            };
            if !self.seen.insert(entry.key.clone()) {
                return Err(listed_twice(subscription, &entry.key));
            }
            room = room.saturating_sub(bytes);
            self.bytes = self.bytes.saturating_add(bytes);
            self.entries.push(entry);
        }
        Ok(())
    }
}

pub(in crate::session::cloud) fn too_many(count: u64) -> SessionError {
    SessionError::Protocol(format!(
        "an inventory of {count} entries is more than the {INVENTORY_MAX} allowed"
    ))
}

pub(in crate::session::cloud) fn listed_twice(subscription: SubscriptionId, key: &ObjectKey) -> SessionError {
    SessionError::Protocol(format!("the inventory of subscription {} lists {key} twice", subscription.0))
}

fn wanted(subscription: SubscriptionId, view: &impl NodeView) -> HashSet<ObjectKey, KeyHashes> {
    view.wanted(subscription).into_iter().collect()
}

/// What the edge holds beyond the entries that there was room for.
#[derive(Debug)]
pub(in crate::session::cloud) struct Rest {
    /// The edge's copy followed another epoch.
    foreign: bool,
    /// How often the inventory was requested again because of it.
    rounds: u32,
    /// The inventory is being received again; its entries are not kept.
    listing: Option<Listing>,
}

impl Rest {
    pub(in crate::session::cloud) fn new(foreign: bool) -> Self {
        Self { foreign, rounds: 0, listing: None }
    }
}

impl Subscription {
    /// Time by which the inventory that was requested again must have made progress.
    pub(in crate::session::cloud) fn rest_deadline(&self) -> Option<Moment> {
        Some(self.rest.as_ref()?.listing.as_ref()?.deadline)
    }

    /// Whether some of what the edge holds still has to be requested.
    fn has_rest(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.listing.is_none())
    }

    /// # Errors
    /// [`SessionError::Overloaded`] after [`INVENTORY_ROUNDS_MAX`] times.
    fn begin_rest(&mut self, now: Moment) -> Result<(), SessionError> {
        let Some(rest) = &mut self.rest else { return Ok(()) };
        rest.rounds += 1;
        if rest.rounds > INVENTORY_ROUNDS_MAX {
            let text =
                format!("this node still holds too many objects after {INVENTORY_ROUNDS_MAX} inventories");
            return Err(SessionError::Overloaded(text));
        }
        rest.listing = Some(Listing::new(now));
        Ok(())
    }

    /// Takes a part of an inventory that was requested again. False when none is awaited.
    ///
    /// # Errors
    /// [`SessionError::Protocol`] when it is too large.
    pub(in crate::session::cloud) fn add_rest(
        &mut self,
        now: Moment,
        part: InventoryPart,
        mut room: usize,
        view: &impl NodeView,
    ) -> Result<bool, SessionError> {
        let Some(rest) = &mut self.rest else { return Ok(false) };
        let (foreign, Some(listing)) = (rest.foreign, &mut rest.listing) else { return Ok(false) };
        listing.begin_part(now, &part)?;
        let (wanted, last) = (wanted(self.id, view), part.last);
        let mut left_out = listing.left_out;
        for entry in part.entries {
            if let Some(slot) = self.slots.get_mut(&entry.key) {
                slot.surmise();
                continue;
            }
            let shared = wanted.get(&entry.key);
            if shared.is_none() && cost(&entry.key) > room {
                left_out = true;
                continue;
            }
            if shared.is_none() {
                room -= cost(&entry.key);
            }
            let mut slot = Slot::new(PeerState::Nothing, false);
            slot.surmise();
            (slot.charged, slot.gone, slot.foreign) = (shared.is_none(), shared.is_none(), foreign);
            self.compare_key(shared.unwrap_or(&entry.key), slot, view);
        }
        if let Some(rest) = &mut self.rest {
            match &mut rest.listing {
                Some(listing) if !last => listing.left_out = left_out,
                listing => *listing = None,
            }
        }
        if last && !left_out {
            self.rest = None;
        }
        Ok(true)
    }
}

impl CloudSession {
    /// Bytes that the session keeps because of what the edge claims to hold.
    pub(in crate::session::cloud) fn claims(&self) -> usize {
        self.subscriptions.iter().map(Subscription::claims).fold(0, usize::saturating_add)
    }

    /// Requests an incomplete inventory again, once there is room.
    ///
    /// # Errors
    /// [`SessionError::Overloaded`] after too many rounds.
    pub(in crate::session::cloud) fn ask_rest(&mut self) -> Result<(), SessionError> {
        if !self.subscriptions.iter().any(Subscription::has_rest) || self.claims() > INVENTORY_BYTES_MAX / 2 {
            return Ok(());
        }
        let now = self.now;
        if let Some(subscription) = self.subscriptions.iter_mut().find(|subscription| subscription.has_rest())
        {
            subscription.begin_rest(now)?;
            let id = subscription.id;
            self.notify(Notice::InventoryRequest(id));
        }
        Ok(())
    }
}

impl Slot {
    /// The edge named the key, but may have received a delivery for it in the meantime: it holds something, but it is
    /// unknown what.
    fn surmise(&mut self) {
        if self.peer_state == PeerState::Nothing {
            (self.peer_state, self.claimed) = (PeerState::Unknown, true);
        }
    }
}
