//! The cloud's end of a connection with a KubeEdge edge.

mod delivery;
mod in_flight;
mod key_table;
mod notices;
mod object_replies;
mod progress;
mod receive;
mod recorder;
mod requests;
mod slot;
mod transmit;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::message_ids::MessageIds;
use super::{LEDGER_LAZY, Ledger, LedgerWrite, SILENCE_MAX};
use crate::frame::{Goodbye, Reply};
use crate::ids::{Epoch, Moment, NodeId, RequestId, SubscriptionId};
use crate::limits::KUBEEDGE_FOLLOWED_MAX;
use crate::message::MessageId;
use crate::object::{ObjectKey, SharedObject};
use crate::session::patience::Patience;
use crate::session::room::FollowedCapacity;
use crate::session::{CloudEvent, Lookup, NodeView, SessionError};
use in_flight::InFlightDeliveries;
use key_table::KeyTable;
use notices::Notices;
use object_replies::ObjectReplies;
use progress::Progress;
use recorder::Recorder;
use requests::Requests;

/// Number of different objects in flight to one edge, unless configured otherwise.
pub const WINDOW_DEFAULT: usize = 16;

/// Upper limit of this number: a KubeEdge edge drops the oldest of more than 100 unprocessed messages
/// (docs/reference/kubeedge.md#queue-behind-the-socket).
pub const WINDOW_MAX: usize = 64;

/// Configuration of a cloud session.
#[derive(Debug, Clone)]
pub struct CloudConfig {
    /// The node in the certificate.
    pub node: NodeId,
    /// History that the revisions of the view belong to.
    pub epoch: Epoch,
    /// Wall clock at the `now` of `CloudSession::new`, milliseconds since the Unix epoch.
    pub unix_millis: u64,
    /// Random bytes, drawn for this session alone: the ids of its messages are derived from them.
    pub seed: [u8; 16],
    /// Most objects in flight; between 1 and [`WINDOW_MAX`].
    pub window: usize,
    /// Silence of the edge after which the session ends.
    pub silence: Duration,
    /// Watches of the ledger still have to be opened: nothing is deleted at the edge until [`CloudSession::restored`].
    pub restoring: bool,
    /// Reports of the edge's device twin are confirmed and dropped; otherwise they are refused.
    pub discard_devices: bool,
}

impl CloudConfig {
    /// The configuration with KubeEdge's intervals (docs/reference/kubeedge.md#keepalive).
    #[must_use]
    pub fn new(node: NodeId, epoch: Epoch, unix_millis: u64, seed: [u8; 16]) -> Self {
        let (window, silence) = (WINDOW_DEFAULT, SILENCE_MAX);
        Self { node, epoch, unix_millis, seed, window, silence, restoring: false, discard_devices: false }
    }
}

/// What a session has done and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CloudStats {
    /// Deliveries sent, without resends.
    pub delivered: u64,
    /// Deliveries acknowledged.
    pub acked: u64,
    /// Deliveries that failed, or were never acknowledged.
    pub refused: u64,
    /// Documents sent again.
    pub resent: u64,
    /// Messages that were not a JSON envelope.
    pub malformed: u64,
    /// Deliveries in flight.
    pub in_flight: usize,
    /// Objects that may be in flight now: 1 for an edge that needed a resend.
    pub window: usize,
    /// Keys that wait to be sent.
    pub dirty: usize,
    /// Keys that wait after a failure.
    pub parked: usize,
    /// Keys that the edge holds or may hold.
    pub held: usize,
    /// Requests that wait for their reply.
    pub requests: usize,
}

/// The cloud's end of one connection of one KubeEdge edge. See the [module](super) for how to drive it.
///
/// It has many fields because an acknowledgement, a reply or a timeout may change the keys, the deliveries in flight,
/// the ledger and the queues in one step.
#[derive(Debug)]
pub struct CloudSession {
    config: CloudConfig,
    closed: bool,
    /// The newest moment that a caller passed.
    now: Moment,
    last_heard: Moment,
    ids: MessageIds,
    patience: Patience,
    /// Open subscriptions, the pushed set first. All of them share the keys: a KubeEdge edge has one row for each
    /// object.
    subscriptions: Vec<SubscriptionId>,
    restoring: bool,
    caught_up: bool,
    /// Bound on the objects of all subscriptions.
    room: FollowedCapacity<KUBEEDGE_FOLLOWED_MAX>,
    key_table: KeyTable,
    in_flight: InFlightDeliveries,
    object_replies: ObjectReplies,
    recorder: Recorder,
    requests: Requests,
    /// The newest replies that carry no pushed object.
    plain_replies: VecDeque<MessageId>,
    /// Keys to check again because of late acknowledgements, and when. Each slot of the key table adds its key only once.
    late_acks: VecDeque<(Moment, ObjectKey)>,
    /// When a full ledger was last searched for unneeded keys.
    swept_at: Option<Moment>,
    /// Small answers of the session itself.
    notices: Notices,
    documents: u64,
    progress: Progress,
    events: VecDeque<CloudEvent>,
    counters: CloudStats,
    /// Start of the counting period for reports of the device twin, and the number refused since.
    device_refusals: (Moment, u32),
}

impl CloudSession {
    /// A session of a connection that was accepted at `now`. `ledger` is what the node was given before; it is
    /// compared at once with what the node should hold.
    #[must_use]
    pub fn new(config: CloudConfig, ledger: Ledger, now: Moment, view: &impl NodeView) -> Self {
        let ids = MessageIds::new(config.seed, now, config.unix_millis);
        let recorder = Recorder::new(ledger, config.epoch.clone(), ids.spread(LEDGER_LAZY), now);
        let mut key_table = KeyTable::default();
        for (key, entry) in recorder.ledger().entries() {
            key_table.resume(key.clone(), entry);
        }
        for key in view.wanted(SubscriptionId::NODE) {
            key_table.expect(&key);
        }
        Self {
            closed: false,
            now,
            last_heard: now,
            ids,
            patience: Patience::new(now),
            subscriptions: vec![SubscriptionId::NODE],
            restoring: config.restoring,
            caught_up: false,
            room: FollowedCapacity::default(),
            key_table,
            in_flight: InFlightDeliveries::new(config.window.clamp(1, WINDOW_MAX)),
            object_replies: ObjectReplies::default(),
            recorder,
            requests: Requests::default(),
            plain_replies: VecDeque::new(),
            late_acks: VecDeque::new(),
            swept_at: None,
            notices: Notices::default(),
            documents: 0,
            progress: Progress::default(),
            events: VecDeque::new(),
            counters: CloudStats::default(),
            device_refusals: (now, 0),
            config,
        }
    }

    /// Marks a key dirty: its state is looked up when there is room to send it. Ten offers become one delivery. A
    /// subscription that makes the node follow more than [`KUBEEDGE_FOLLOWED_MAX`] objects is ended; deleted objects no
    /// longer count as followed.
    pub fn offer(&mut self, subscription: SubscriptionId, key: ObjectKey, view: &impl NodeView) {
        if self.closed || !self.subscriptions.contains(&subscription) {
            return;
        }
        let before = self.key_table.followed();
        if subscription == SubscriptionId::NODE {
            self.key_table.offer(key.clone());
            return self.key_table.set_own(&key, true);
        }
        self.key_table.offer(key);
        let keys = self.key_table.followed();
        if keys > before && self.room.grown(keys) && !self.has_room(0, view) {
            self.close_subscription(subscription);
            self.events.push_back(CloudEvent::too_many(subscription, KUBEEDGE_FOLLOWED_MAX));
        }
    }

    /// Adds a subscription: everything that the view wants there is delivered as watch events
    /// (docs/reference/kubeedge.md#application-messages). False when it is not open afterwards, because the node would
    /// follow more than [`KUBEEDGE_FOLLOWED_MAX`] objects, or the session is over; the owner need not follow it then.
    pub fn open_subscription(&mut self, subscription: SubscriptionId, view: &impl NodeView) -> bool {
        if self.closed || self.subscriptions.contains(&subscription) {
            return !self.closed;
        }
        let wanted = view.wanted(subscription);
        let new = wanted.iter().filter(|key| self.key_table.get(key).is_none()).count();
        self.subscriptions.push(subscription);
        if !self.has_room(new, view) {
            self.subscriptions.retain(|open| *open != subscription);
            self.events.push_back(CloudEvent::too_many(subscription, KUBEEDGE_FOLLOWED_MAX));
            return false;
        }
        wanted.into_iter().for_each(|key| self.key_table.offer(key));
        true
    }

    /// Removes a subscription: objects that no other subscription wants are deleted at the edge.
    pub fn close_subscription(&mut self, subscription: SubscriptionId) {
        if subscription == SubscriptionId::NODE || !self.subscriptions.contains(&subscription) {
            return;
        }
        self.subscriptions.retain(|open| *open != subscription);
        self.key_table.offer_where(|slot| slot.dynamic);
    }

    /// The edge has reported an object that it should not have: what it holds under the key is no longer certain, and
    /// a deletion is sent again unless the view wants the object.
    pub fn resend_deletion(&mut self, key: &ObjectKey) {
        if !self.closed {
            self.key_table.suspect(key);
        }
    }

    /// Whether the edge holds or may hold something under this key, or is being sent it.
    #[must_use]
    pub fn holds(&self, key: &ObjectKey) -> bool {
        self.key_table.get(key).is_some_and(|slot| slot.peer_state.holds() || slot.holds > 0)
    }

    /// Marks the picked keys dirty under which the edge may hold something.
    pub fn offer_held(&mut self, picked: impl Fn(&ObjectKey) -> bool) {
        if !self.closed {
            self.key_table.offer_held(picked);
        }
    }

    /// All watches of the ledger are open again, or were given up: objects that are in no subscription may be deleted
    /// from now on.
    pub fn restored(&mut self) {
        if std::mem::take(&mut self.restoring) {
            self.key_table.offer_where(|slot| slot.peer_state.holds());
        }
    }

    /// Records the watches to open again after the next reconnect. The list is cut to
    /// [`SUBSCRIPTIONS_MAX`](crate::limits::SUBSCRIPTIONS_MAX).
    pub fn set_watches(&mut self, watches: Vec<super::Watch>) {
        self.recorder.set_watches(watches);
    }

    /// Whether the edge still waits for the answer to this request.
    #[must_use]
    pub fn awaits_reply(&self, id: RequestId) -> bool {
        self.requests.awaits_reply(id)
    }

    /// Bytes of the answers that wait for the link.
    #[must_use]
    pub fn unread(&self) -> usize {
        self.requests.unread()
    }

    /// Bytes that the edge makes this session keep.
    #[must_use]
    pub fn memory(&self) -> usize {
        let recorder = self.recorder.memory(self.key_table.own());
        let kept = [self.notices.memory(), self.key_table.memory(), recorder, self.object_replies.memory()];
        kept.into_iter().fold(self.requests.memory(), usize::saturating_add)
    }

    /// Answers a request; the answer is converted to the form that a KubeEdge edge can handle safely
    /// ([`Shape`](super::Shape)). A late, repeated or unexpected answer is dropped.
    pub fn reply(&mut self, reply: Reply) {
        self.requests.reply(reply, &mut self.ids, self.now);
    }

    /// Answers a request for this object with the body that deliveries share, without parsing or copying it. False
    /// when that does not answer the request; then use [`Self::reply`].
    pub fn reply_object(&mut self, id: RequestId, object: &Arc<SharedObject>) -> bool {
        self.requests.reply_object(id, object, &mut self.ids, self.now)
    }

    /// The next state of the ledger to store, if there is one; none while the last one is being stored. Call it after
    /// `poll_transmit`, which determines what must be stored before it may be sent.
    pub fn poll_ledger(&mut self, now: Moment, view: &impl NodeView) -> Option<LedgerWrite> {
        self.now = now;
        if self.closed {
            return None;
        }
        if self.recorder.is_urgent(now) {
            // One write for all that the node needs, not one for each part of it as it becomes known.
            self.recorder.expect(self.coming(view));
        }
        self.recorder.poll(now)
    }

    /// Keys that the node needs and the ledger does not name, if the object exists or is not known yet: nothing else
    /// will be sent.
    fn coming(&self, view: &impl NodeView) -> Vec<ObjectKey> {
        let mut keys = view.wanted(SubscriptionId::NODE);
        keys.retain(|key| {
            self.recorder.ledger().get(key).is_none()
                && matches!(view.lookup(SubscriptionId::NODE, key), Lookup::Present(_) | Lookup::Pending)
        });
        keys
    }

    /// A state is stored: its new keys may be sent.
    pub fn ledger_saved(&mut self, number: u64) {
        for key in self.recorder.saved(number, self.now) {
            self.key_table.recorded(key);
        }
    }

    /// A state could not be stored; it is given out again after [`LEDGER_RETRY`](super::LEDGER_RETRY).
    pub fn ledger_failed(&mut self, number: u64) {
        self.recorder.failed(number, self.now);
    }

    /// Another cloudcore stored a ledger of this node meanwhile: its keys are added, and the whole ledger is given out
    /// again.
    pub fn ledger_conflict(&mut self, number: u64, theirs: &Ledger) {
        for key in self.recorder.conflict(number, theirs) {
            if let Some(entry) = self.recorder.ledger().get(&key) {
                self.key_table.resume(key, entry);
            }
        }
    }

    /// The final content of the ledger after the connection is closed, when it differs from what was stored last.
    #[must_use]
    pub fn final_ledger(&self) -> Option<&Ledger> {
        self.recorder.unsaved().then(|| self.recorder.ledger())
    }

    /// Everything up to this document has left the socket.
    pub fn transmitted(&mut self, now: Moment, number: u64) {
        self.now = now;
        self.progress.left(now, number);
        self.in_flight.transmitted(now, number);
        self.object_replies.transmitted(now, number);
    }

    /// Ends the session. A KubeEdge edge receives no message: the connection closes.
    pub fn say_goodbye(&mut self, goodbye: Goodbye) {
        self.end(goodbye);
    }

    /// The next event for the owner.
    pub fn poll_event(&mut self) -> Option<CloudEvent> {
        self.events.pop_front()
    }

    /// Whether the session has no more output: close the link.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// What the session has done and holds. Counts the keys: for metrics and tests.
    #[must_use]
    pub fn stats(&self) -> CloudStats {
        CloudStats {
            in_flight: self.in_flight.len(),
            window: self.in_flight.window(),
            dirty: self.key_table.dirty(),
            parked: self.key_table.parked(),
            held: self.key_table.held(),
            requests: self.requests.len(),
            ..self.counters
        }
    }

    fn fail(&mut self, error: &SessionError) {
        self.end(error.goodbye());
    }

    fn end(&mut self, goodbye: Goodbye) {
        if !self.closed {
            self.closed = true;
            self.key_table = KeyTable::default();
            self.requests = Requests::default();
            self.notices = Notices::default();
            self.events.push_back(CloudEvent::Closed(goodbye));
        }
    }
}
