//! One key: what the edge holds under it, and what has to be sent so that it holds the right thing.

use std::sync::Arc;

use crate::codec::obstacle;
use crate::ids::{CloudRevision, Moment, Uid};
use crate::limits::OBJECT_LEN_MAX;
use crate::message::Operation;
use crate::object::{ObjectKey, ObjectVersion, SharedObject};
use crate::session::kubeedge::LedgerEntry;
use crate::session::parking::Park;

/// Longest body that is kept after its delivery, for the message that deletes it. A longer one would take its length
/// in memory once more besides the view, in an outdated version.
const KEPT_LEN_MAX: usize = 32 * 1024;

/// What the edge holds under a key.
#[derive(Debug, Clone)]
pub(super) enum PeerState {
    /// Nothing.
    Nothing,
    /// Perhaps something: two versions were under way at once, or the ledger has no more information.
    Unknown(Option<Uid>),
    /// This version, which arrived in a reply or was there before this connection.
    Seen(Uid, CloudRevision),
    /// This object, which this session has delivered.
    Sent(Arc<SharedObject>),
    /// The same, but only the version is kept.
    SentVersion(ObjectVersion),
}

impl PeerState {
    pub(super) fn holds(&self) -> bool {
        !matches!(self, Self::Nothing)
    }

    pub(super) fn uid(&self) -> Option<&Uid> {
        match self {
            Self::Nothing => None,
            Self::Unknown(uid) => uid.as_ref(),
            Self::Seen(uid, _) => Some(uid),
            Self::Sent(_) | Self::SentVersion(_) => self.sent().map(|version| &version.uid),
        }
    }

    /// Either the same or the incarnation `uid`: it is not certain which.
    pub(super) fn unsure(&self, uid: Option<&Uid>) -> Self {
        let one = !self.holds() || self.uid() == uid;
        Self::Unknown(uid.filter(|_| one).cloned())
    }

    pub(super) fn revision(&self) -> Option<CloudRevision> {
        match self {
            Self::Nothing | Self::Unknown(_) => None,
            Self::Seen(_, revision) => Some(*revision),
            Self::Sent(_) | Self::SentVersion(_) => self.sent().map(|version| version.revision),
        }
    }

    /// The version that this session has delivered.
    pub(super) fn sent(&self) -> Option<&ObjectVersion> {
        match self {
            Self::Sent(object) => Some(&object.version),
            Self::SentVersion(version) => Some(version),
            Self::Nothing | Self::Unknown(_) | Self::Seen(..) => None,
        }
    }
}

impl From<&LedgerEntry> for PeerState {
    fn from(entry: &LedgerEntry) -> Self {
        match (&entry.uid, entry.revision) {
            (Some(uid), Some(revision)) => Self::Seen(uid.clone(), revision),
            (uid, _) => Self::Unknown(uid.clone()),
        }
    }
}

/// Phase of a key on its way to the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing to do, or waiting for a reply that carries the object to be settled.
    Idle,
    /// In a ready queue.
    Ready,
    /// Waits for the ledger to name it.
    Recording,
    /// Sent, not acknowledged.
    InFlight {
        /// Offered again meanwhile.
        again: bool,
    },
    /// Waits for a timer or for another version.
    Parked,
}

/// One key.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) peer_state: PeerState,
    pub(super) phase: Phase,
    /// Missing when the session began, and not resolved since.
    pub(super) due: bool,
    /// The belief is from before this connection.
    pub(super) resumed: bool,
    /// Of the node's own set.
    pub(super) own: bool,
    /// Last wanted by a subscription and not by the node's own set.
    pub(super) dynamic: bool,
    /// Will be checked because of a late acknowledgement.
    pub(super) late_ack: bool,
    /// Replies under way that carry the object and will be acknowledged: nothing else is sent meanwhile.
    pub(super) holds: u16,
    /// A check was deferred because of them.
    pub(super) passed_over: bool,
    /// Boxed, because hardly any key ever fails.
    pub(super) park: Option<Box<Park<CloudRevision>>>,
}

impl Slot {
    pub(super) fn new(peer_state: PeerState) -> Self {
        Self {
            peer_state,
            phase: Phase::Idle,
            due: false,
            resumed: false,
            own: false,
            dynamic: false,
            late_ack: false,
            holds: 0,
            passed_over: false,
            park: None,
        }
    }

    /// Whether the edge holds nothing under this key and nothing is on its way.
    pub(super) fn is_of_no_use(&self) -> bool {
        let under_way = matches!(self.phase, Phase::Recording | Phase::InFlight { .. });
        !under_way && !self.peer_state.holds() && self.holds == 0
    }

    /// Whether this is the same version again, too early: until when it must wait.
    pub(super) fn held_back(&self, step: &Step, now: Moment) -> Option<Option<Moment>> {
        let park = self.park.as_ref()?;
        park.holds_back(step.revision().as_ref(), now).then_some(park.until())
    }

    /// What must be sent so that the edge holds what is wanted.
    pub(super) fn judge(&self, key: &ObjectKey, wanted: DesiredObject) -> SlotDecision {
        match wanted {
            DesiredObject::Pending => SlotDecision::Wait,
            DesiredObject::StandIn | DesiredObject::Unreadable => SlotDecision::Settled,
            DesiredObject::Gone if self.peer_state.holds() => {
                SlotDecision::Send(Step::Delete(self.peer_state.clone()))
            }
            DesiredObject::Gone => SlotDecision::Forget,
            DesiredObject::Present(object, same_since) => self.judge_present(key, object, same_since),
        }
    }

    fn judge_present(
        &self,
        key: &ObjectKey,
        object: Arc<SharedObject>,
        same_since: CloudRevision,
    ) -> SlotDecision {
        let wanted = &object.version;
        if self.peer_state.uid() == Some(&wanted.uid) && self.peer_state.revision() >= Some(same_since) {
            // A version that the edge reported itself is no reason to send it back: the edge would report it again. A
            // view that shows an older version lags behind the replica that served this edge before.
            return SlotDecision::Settled;
        }
        if object.body.len() > OBJECT_LEN_MAX || obstacle(&object).is_some() {
            return SlotDecision::TooLarge(object);
        }
        // A new incarnation under an old name is a deletion and a creation, so that local watchers see both. The
        // kubelet's own Node is never deleted.
        let stranger = self.peer_state.uid().is_some_and(|uid| *uid != wanted.uid);
        let is_node = is_node(key);
        if stranger && !is_node {
            return SlotDecision::Send(Step::Delete(self.peer_state.clone()));
        }
        // Secrets are always updates, for old edges (docs/reference/kubeedge.md#deliveries).
        let update = self.peer_state.holds() || is_node || is_secret(key);
        let operation = if update { Operation::Update } else { Operation::Insert };
        SlotDecision::Send(Step::Put(object, operation))
    }
}

fn is_core(key: &ObjectKey, name: &str) -> bool {
    key.resource().group.is_empty() && &*key.resource().name == name
}

pub(super) fn is_node(key: &ObjectKey) -> bool {
    is_core(key, "nodes")
}

fn is_secret(key: &ObjectKey) -> bool {
    is_core(key, "secrets")
}

/// What all open subscriptions together want under a key.
#[derive(Debug)]
pub(super) enum DesiredObject {
    /// Not known yet.
    Pending,
    /// Nothing.
    Gone,
    /// An object that cannot be read: the edge keeps what it holds, and catching up does not wait for it. Versions of
    /// another epoch are not certain anyway ([`PeerState::Unknown`]).
    Unreadable,
    /// The empty object that the edge holds, instead of one that does not exist and that no pod needs.
    StandIn,
    /// This version; a held version that is not older than the given revision is as good.
    Present(Arc<SharedObject>, CloudRevision),
}

/// Outcome of [`Slot::judge`].
#[derive(Debug)]
pub(super) enum SlotDecision {
    /// The edge holds the right thing.
    Settled,
    /// Neither wanted nor held.
    Forget,
    /// The view does not know yet.
    Wait,
    /// This must be sent.
    Send(Step),
    /// This must be sent, but it exceeds a limit.
    TooLarge(Arc<SharedObject>),
}

/// One delivery.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Store this object, by insert or update.
    Put(Arc<SharedObject>, Operation),
    /// Delete the object.
    Delete(PeerState),
}

impl Step {
    /// The version that is delivered; none for a deletion.
    pub(super) fn revision(&self) -> Option<CloudRevision> {
        match self {
            Self::Put(object, _) => Some(object.version.revision),
            Self::Delete(_) => None,
        }
    }

    pub(super) fn uid(&self) -> Option<&Uid> {
        match self {
            Self::Put(object, _) => Some(&object.version.uid),
            Self::Delete(peer_state) => peer_state.uid(),
        }
    }

    /// What the edge holds after it has acknowledged.
    pub(super) fn becomes(&self) -> PeerState {
        match self {
            Self::Put(object, _) if object.body.len() > KEPT_LEN_MAX => {
                PeerState::SentVersion(object.version.clone())
            }
            Self::Put(object, _) => PeerState::Sent(Arc::clone(object)),
            Self::Delete(_) => PeerState::Nothing,
        }
    }
}
