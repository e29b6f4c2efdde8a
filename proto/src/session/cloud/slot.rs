//! One key of one subscription: what the edge is believed to hold, and what has to be sent so that it holds the right
//! thing.

use std::sync::Arc;

use crate::codec::obstacle;
use crate::frame::Change;
use crate::ids::{CloudRevision, Lane, SubscriptionId};
use crate::limits::{BULK_OBJECT_MIN, DEPENDENCIES_MAX, OBJECT_LEN_MAX};
use crate::object::{HeldState, ObjectKey, ObjectVersion, SharedObject};
use crate::session::cloud::{Certainty, Lookup, Loss, NodeView};
use crate::session::parking::Park;

/// What the edge holds under a key, according to acknowledgements and its inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PeerState {
    /// Nothing.
    Nothing,
    /// Something, but not what was believed: it refused to adopt a version.
    Unknown,
    /// The edge knows that the cloud has no such object.
    Absent,
    /// The edge knows that the cloud cannot read the object.
    Unreadable,
    /// This version.
    Version(ObjectVersion),
}

impl From<HeldState> for PeerState {
    fn from(held: HeldState) -> Self {
        match held {
            HeldState::Absent => Self::Absent,
            HeldState::Unreadable => Self::Unreadable,
            HeldState::Present(version) => Self::Version(version),
        }
    }
}

/// Phase of a key on its way to the edge. At most one version of a key is in flight, over all lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing to do.
    Idle,
    /// In a ready queue.
    Ready,
    /// Sent, not acknowledged.
    InFlight {
        /// Offered again meanwhile: becomes ready when the acknowledgement arrives.
        again: bool,
    },
    /// Waits for a timer or for another version.
    Parked,
}

/// One key of one subscription.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) peer_state: PeerState,
    pub(super) phase: Phase,
    /// The belief is a version of another epoch, whose revision is not comparable.
    pub(super) foreign: bool,
    /// The belief rests on the edge's claim alone: the view has shown neither this version nor a newer one.
    pub(super) claimed: bool,
    /// Missing when the subscription was compared, and not resolved since.
    pub(super) due: bool,
    /// The edge named this key, and the view does not want it: its texts are kept only for this slot.
    pub(super) charged: bool,
    /// The view did not want it when it was last offered.
    pub(super) gone: bool,
    /// Boxed, because hardly any key is ever refused and every connected node pays for the size of a slot.
    pub(super) park: Option<Box<Park<ObjectVersion>>>,
}

impl Slot {
    pub(super) fn new(peer_state: PeerState, foreign: bool) -> Self {
        let foreign = foreign && matches!(peer_state, PeerState::Version(_));
        let claimed = matches!(peer_state, PeerState::Version(_));
        Self {
            peer_state,
            phase: Phase::Idle,
            foreign,
            claimed,
            due: false,
            charged: false,
            gone: false,
            park: None,
        }
    }

    /// Whether the edge holds nothing under this key and nothing is on its way.
    pub(super) fn is_of_no_use(&self) -> bool {
        self.peer_state == PeerState::Nothing && !matches!(self.phase, Phase::InFlight { .. })
    }

    /// Updates `claimed` from the view's state: it ends when the view shows the held version or a newer one.
    pub(super) fn witness(&mut self, lookup: &Lookup) {
        if let (Lookup::Present(object), PeerState::Version(held), false) =
            (lookup, &self.peer_state, self.foreign)
            && held.revision <= object.version.revision
        {
            self.claimed = false;
        }
    }

    /// How certain it is that a step which removes an object is right.
    pub(super) fn certainty(
        &self,
        subscription: SubscriptionId,
        key: &ObjectKey,
        step: &PlannedDelivery,
        view: &impl NodeView,
    ) -> Certainty {
        match &step.change {
            Change::Delete { .. } => view.certainty(subscription, key, Loss::Need { claimed: self.claimed }),
            Change::Absent { .. } if self.claimed => view.certainty(subscription, key, Loss::Object),
            Change::Absent { .. } | Change::Unreadable { .. } | Change::Upsert(_) | Change::Adopt { .. } => {
                Certainty::Certain
            }
        }
    }

    /// What must be sent so that the edge holds what `lookup` says. `tells_unreadable`: the edge can be informed about
    /// unreadable objects.
    pub(super) fn judge(&self, key: &ObjectKey, lookup: Lookup, tells_unreadable: bool) -> SlotDecision {
        match lookup {
            Lookup::Pending => SlotDecision::Wait,
            Lookup::Unreadable(_) => self.judge_unreadable(key, tells_unreadable),
            Lookup::Present(object) => self.judge_present(object),
            Lookup::Absent if self.peer_state == PeerState::Absent => SlotDecision::Settled,
            Lookup::Absent => SlotDecision::small(Change::Absent { key: key.clone() }, PeerState::Absent),
            Lookup::Unwanted(_) if self.peer_state == PeerState::Nothing => SlotDecision::Forget,
            Lookup::Unwanted(version) => {
                SlotDecision::small(Change::Delete { key: key.clone(), version }, PeerState::Nothing)
            }
        }
    }

    /// The edge keeps what it holds of the object, because nothing better is known.
    fn judge_unreadable(&self, key: &ObjectKey, tells_unreadable: bool) -> SlotDecision {
        let becomes = match &self.peer_state {
            PeerState::Version(_) | PeerState::Unreadable if !self.foreign => return SlotDecision::Settled,
            // Two histories must not be mixed.
            _ if !tells_unreadable && self.foreign => return SlotDecision::Wait,
            _ if !tells_unreadable => return SlotDecision::Settled,
            PeerState::Version(held) => {
                PeerState::Version(ObjectVersion { revision: CloudRevision(0), ..held.clone() })
            }
            PeerState::Nothing | PeerState::Unknown | PeerState::Absent | PeerState::Unreadable => {
                PeerState::Unreadable
            }
        };
        SlotDecision::small(Change::Unreadable { key: key.clone() }, becomes)
    }

    fn judge_present(&self, object: Arc<SharedObject>) -> SlotDecision {
        let wanted = &object.version;
        if let PeerState::Version(held) = &self.peer_state {
            // Revisions of one epoch have one order over all objects: a view that shows an older one lags behind the
            // replica that served this edge before. Going back is never right; the newer version is offered later.
            let newer = held.is_same_place(wanted) || held.revision > wanted.revision;
            if held == wanted || (!self.foreign && newer) {
                return SlotDecision::Settled;
            }
            if held.uid == wanted.uid && held.hash == wanted.hash {
                let (key, version) = (object.key.clone(), wanted.clone());
                return SlotDecision::small(
                    Change::Adopt { key, version: version.clone() },
                    PeerState::Version(version),
                );
            }
        }
        if let Some(limit) = exceeded(&object) {
            return SlotDecision::TooLarge { version: wanted.clone(), limit };
        }
        let bytes = object.body.len().saturating_add(CHANGE_OVERHEAD);
        let lane = if object.body.len() >= BULK_OBJECT_MIN { Lane::Bulk } else { Lane::Delivery };
        let becomes = PeerState::Version(wanted.clone());
        SlotDecision::Send(PlannedDelivery { change: Change::Upsert(object), becomes, lane, bytes })
    }
}

/// Bytes that a delivery takes in a window on top of its body; also keeps a window of empty bodies finite.
const CHANGE_OVERHEAD: usize = 128;

fn exceeded(object: &SharedObject) -> Option<String> {
    if object.body.len() > OBJECT_LEN_MAX {
        return Some(format!(
            "the object has {} bytes, more than the maximum of {OBJECT_LEN_MAX}; make it smaller",
            object.body.len()
        ));
    }
    let dependencies = object.dependencies.len();
    if dependencies > DEPENDENCIES_MAX {
        return Some(format!(
            "the object lists {dependencies} dependencies, more than the maximum of {DEPENDENCIES_MAX}; make it smaller"
        ));
    }
    obstacle(object).map(str::to_owned)
}

/// Outcome of [`Slot::judge`].
#[derive(Debug)]
pub(super) enum SlotDecision {
    /// The edge holds the right thing.
    Settled,
    /// Neither wanted nor held: the key needs no slot.
    Forget,
    /// The view does not know yet.
    Wait,
    /// This must be sent.
    Send(PlannedDelivery),
    /// This must be sent, but it exceeds a limit.
    TooLarge {
        /// The version that is too large.
        version: ObjectVersion,
        /// Text that says which limit it exceeds.
        limit: String,
    },
}

impl SlotDecision {
    fn small(change: Change, becomes: PeerState) -> Self {
        Self::Send(PlannedDelivery { change, becomes, lane: Lane::Delivery, bytes: CHANGE_OVERHEAD })
    }
}

/// A delivery that has no position yet.
#[derive(Debug)]
pub(super) struct PlannedDelivery {
    pub(super) change: Change,
    /// What the edge holds after it has acknowledged.
    pub(super) becomes: PeerState,
    pub(super) lane: Lane,
    pub(super) bytes: usize,
}

impl PlannedDelivery {
    /// The version that is delivered, for the back-off: none for deletions and absences.
    pub(super) fn version(&self) -> Option<&ObjectVersion> {
        match &self.becomes {
            PeerState::Version(version) => Some(version),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
