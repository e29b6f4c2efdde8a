//! One subscription of one edge: which keys it holds, which must be sent, which wait after a refusal.
//!
//! Pending work is state: a key is in one slot, in one phase, however often it is offered. The body is looked up when
//! it is sent. A subscription's memory is bounded by what is wanted and what the edge holds.

pub(super) mod compare;
mod listing;

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::time::Duration;

use self::compare::InventoryComparison;
use self::listing::{Rest, cost};
use crate::frame::RefusalReason;
use crate::ids::{CloudRevision, Lane, Moment, SubscriptionId};
use crate::object::{KeyMap, ObjectKey, ObjectVersion};
use crate::session::cloud::CloudEvent;
use crate::session::cloud::send_window::{InFlight, SendWindow};
use crate::session::cloud::slot::{PeerState, Phase, PlannedDelivery, Slot, SlotDecision};
use crate::session::cloud::{Certainty, Lookup, NodeView};
use crate::session::parking::{Park, Timers};

/// Progress of the subscription.
#[derive(Debug)]
pub(super) enum Stage {
    /// Not compared yet. Offers need no memory: the comparison looks everything up.
    Comparing(Box<InventoryComparison>),
    /// Compared at this revision; what was missing is not acknowledged yet.
    CatchingUp(CloudRevision),
    /// Caught up once.
    Following,
}

/// Result of `Subscription::next`.
#[derive(Debug)]
pub(super) enum Next {
    /// No key of this subscription has anything for the lane.
    Nothing,
    /// The window has no room for the subscription's next delivery. No other delivery overtakes it: large objects would
    /// starve.
    Blocked,
    /// Send this.
    Send(PlannedDelivery),
}

/// One subscription of one edge.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) id: SubscriptionId,
    pub(super) stage: Stage,
    /// The edge can be informed about objects that cannot be read.
    pub(super) tells_unreadable: bool,
    /// Slots by key; deleted ones are counted in `texts`.
    pub(super) slots: KeyMap<Slot>,
    /// Bytes of the texts of deleted keys: they are kept only for their slots.
    texts: usize,
    /// Ready keys, oldest first: of the delivery lane (where every key starts) and of the bulk lane.
    ready: [VecDeque<ObjectKey>; 2],
    timers: Timers,
    /// Number of slots that are due.
    backlog: usize,
    /// Bytes of the slots whose keys only the edge has named.
    pub(super) charged: usize,
    /// What the edge holds beyond what the comparison had room for. Boxed: hardly any edge holds so much.
    pub(super) rest: Option<Box<Rest>>,
}

/// Elements for which an empty ready queue keeps its memory.
const KEPT_CAPACITY: usize = 4;

impl Subscription {
    pub(super) fn new(id: SubscriptionId, comparison: InventoryComparison, tells_unreadable: bool) -> Self {
        Self {
            id,
            stage: Stage::Comparing(Box::new(comparison)),
            tells_unreadable,
            slots: KeyMap::default(),
            texts: 0,
            ready: [VecDeque::new(), VecDeque::new()],
            timers: Timers::default(),
            backlog: 0,
            charged: 0,
            rest: None,
        }
    }

    /// Marks a key dirty. Coalesces: a key is ready once, and a key in flight becomes ready after its acknowledgement.
    pub(super) fn offer(&mut self, key: ObjectKey, view: &impl NodeView) {
        if matches!(self.stage, Stage::Comparing(_)) {
            return;
        }
        // The pushed set is not chosen by the edge.
        let gone =
            self.id != SubscriptionId::NODE && matches!(view.lookup(self.id, &key), Lookup::Unwanted(_));
        let slot = match self.slots.entry(key.clone()) {
            Entry::Vacant(_) if gone => return,
            Entry::Vacant(entry) => entry.insert(Slot::new(PeerState::Nothing, false)),
            Entry::Occupied(entry) => entry.into_mut(),
        };
        match (gone, std::mem::replace(&mut slot.gone, gone)) {
            (true, false) => self.texts = self.texts.saturating_add(key.text_len()),
            (false, true) => self.texts = self.texts.saturating_sub(key.text_len()),
            _ => {}
        }
        match slot.phase {
            Phase::Ready => {}
            Phase::InFlight { .. } => slot.phase = Phase::InFlight { again: true },
            Phase::Idle | Phase::Parked => {
                slot.phase = Phase::Ready;
                self.ready[0].push_back(key);
            }
        }
    }

    pub(super) fn make_ready(&mut self, key: ObjectKey) {
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.phase = Phase::Ready;
            self.ready[0].push_back(key);
        }
    }

    /// Parks a key until `until`.
    pub(super) fn park_until(&mut self, key: ObjectKey, until: Moment) {
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.phase = Phase::Parked;
            self.timers.set(until, key);
        }
    }

    /// Counts a slot into the backlog that `CaughtUp` waits for.
    pub(super) fn make_due(&mut self, key: &ObjectKey) {
        if let Some(slot) = self.slots.get_mut(key)
            && !std::mem::replace(&mut slot.due, true)
        {
            self.backlog += 1;
        }
    }

    /// The next delivery of this subscription for a lane. Keys that need nothing leave the queue, keys of the other
    /// lane change queues.
    pub(super) fn next(
        &mut self,
        now: Moment,
        window: &SendWindow,
        lane: Lane,
        view: &impl NodeView,
        events: &mut VecDeque<CloudEvent>,
    ) -> Next {
        let queue = queue_of(lane);
        while let Some(key) = self.ready[queue].front().cloned() {
            let Some(slot) = self.slots.get_mut(&key).filter(|slot| slot.phase == Phase::Ready) else {
                self.ready[queue].pop_front();
                continue;
            };
            let lookup = view.lookup(self.id, &key);
            slot.witness(&lookup);
            match slot.judge(&key, lookup, self.tells_unreadable) {
                SlotDecision::Send(step) if step.lane == lane => {
                    let certainty = slot.certainty(self.id, &key, &step, view);
                    if certainty == Certainty::Asked {
                        self.ready[queue].pop_front();
                        self.hesitate(&key);
                        continue;
                    }
                    let early = slot.park.as_ref().filter(|park| park.holds_back(step.version(), now));
                    if let Some(park) = early {
                        let until = park.until();
                        self.ready[queue].pop_front();
                        self.wait_out(key, until);
                        continue;
                    }
                    if !window.has_room(step.bytes) {
                        return Next::Blocked;
                    }
                    slot.phase = Phase::InFlight { again: false };
                    self.ready[queue].pop_front();
                    return Next::Send(step);
                }
                SlotDecision::Send(step) => {
                    self.ready[queue].pop_front();
                    self.ready[queue_of(step.lane)].push_back(key);
                }
                decision => {
                    self.ready[queue].pop_front();
                    self.set_aside(key, decision, events);
                }
            }
        }
        self.release_queue(queue);
        Next::Nothing
    }

    /// A refused version was offered again too early: it is parked again.
    fn wait_out(&mut self, key: ObjectKey, until: Option<Moment>) {
        match until {
            Some(until) => self.park_until(key, until),
            None => self.set_phase(&key, Phase::Parked),
        }
    }

    /// What the edge holds is not removed yet: the view may know less than the replica that served the edge before.
    /// The owner offers the key when it knows, and catching up does not wait for that, unless the held version is of
    /// another epoch: two histories must not be mixed.
    pub(super) fn hesitate(&mut self, key: &ObjectKey) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        slot.phase = Phase::Idle;
        if slot.foreign {
            self.make_due(key);
        } else {
            self.resolve(key);
        }
    }

    fn set_phase(&mut self, key: &ObjectKey, phase: Phase) {
        if let Some(slot) = self.slots.get_mut(key) {
            slot.phase = phase;
        }
    }

    /// Handles a ready key for which nothing is sent.
    fn set_aside(&mut self, key: ObjectKey, decision: SlotDecision, events: &mut VecDeque<CloudEvent>) {
        match decision {
            SlotDecision::Settled => self.settle(&key),
            SlotDecision::Forget => {
                self.resolve(&key);
                self.forget(&key);
            }
            SlotDecision::Wait => {
                self.set_phase(&key, Phase::Idle);
                // A key that the edge does not hold and that catching up does not wait for needs no slot: the owner
                // offers it once it is known.
                if self.slots.get(&key).is_some_and(|slot| !slot.due && slot.peer_state == PeerState::Nothing)
                {
                    self.forget(&key);
                }
            }
            SlotDecision::TooLarge { version, limit } => self.refuse_large(key, version, &limit, events),
            SlotDecision::Send(_) => {}
        }
    }

    /// The edge holds the right thing.
    pub(super) fn settle(&mut self, key: &ObjectKey) {
        self.end_wait(key);
        if let Some(slot) = self.slots.get_mut(key) {
            slot.phase = Phase::Idle;
            slot.foreign = false;
            self.resolve(key);
        }
    }

    fn refuse_large(
        &mut self,
        key: ObjectKey,
        version: ObjectVersion,
        limit: &str,
        events: &mut VecDeque<CloudEvent>,
    ) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        slot.phase = Phase::Parked;
        if slot.park.as_ref().is_some_and(|park| park.is_of(&version)) {
            return;
        }
        self.end_wait(&key);
        let Some(slot) = self.slots.get_mut(&key) else { return };
        slot.park = Some(Box::new(Park::never(version)));
        let message = format!("{key} is not sent: {limit}");
        self.resolve_parked(&key);
        let (subscription, reason) = (self.id, RefusalReason::TooLarge);
        events.push_back(CloudEvent::Refused { subscription, key, reason, message, retry_in: Duration::MAX });
    }

    /// The edge has stored a delivery.
    pub(super) fn acked(&mut self, key: &ObjectKey, becomes: PeerState) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let again = slot.phase == Phase::InFlight { again: true };
        let gone = becomes == PeerState::Nothing;
        slot.peer_state = becomes;
        (slot.foreign, slot.claimed) = (false, false);
        slot.phase = Phase::Idle;
        if std::mem::take(&mut slot.due) {
            self.backlog = self.backlog.saturating_sub(1);
        }
        // The common case ends here: this runs once for each delivery of each node.
        if slot.park.is_some() {
            self.end_wait(key);
        }
        if again {
            self.make_ready(key.clone());
        } else if gone {
            self.forget(key);
        }
    }

    /// The edge could not store a delivery. Returns the wait before the same version is sent again.
    pub(super) fn refused(&mut self, now: Moment, flight: &InFlight) -> Duration {
        let key = &flight.key;
        let former = self.end_wait(key);
        let Some(slot) = self.slots.get_mut(key) else { return Duration::ZERO };
        let again = slot.phase == Phase::InFlight { again: true };
        if flight.adoption {
            slot.peer_state = PeerState::Unknown;
            self.make_ready(key.clone());
            return Duration::ZERO;
        }
        let version = match &flight.becomes {
            PeerState::Version(version) => Some(version.clone()),
            _ => None,
        };
        let park = Park::failed(version, now, former.as_deref());
        let delay = park.delay();
        slot.park = Some(Box::new(park));
        self.resolve_parked(key);
        if again {
            self.make_ready(key.clone());
        } else {
            self.park_until(key.clone(), now + delay);
        }
        delay
    }

    fn end_wait(&mut self, key: &ObjectKey) -> Option<Box<Park<ObjectVersion>>> {
        self.timers.end(key, &mut self.slots.get_mut(key)?.park)
    }

    /// When the next parked key becomes ready.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.timers.deadline()
    }

    /// Makes the parked keys ready whose wait is over.
    pub(super) fn handle_timeout(&mut self, now: Moment) {
        while let Some(key) = self.timers.pop_due(now) {
            if self.slots.get(&key).is_some_and(|slot| slot.phase == Phase::Parked) {
                self.make_ready(key);
            }
        }
    }

    /// The revision of the comparison, returned once: when everything that was missing then is resolved.
    pub(super) fn take_caught_up(&mut self) -> Option<CloudRevision> {
        match self.stage {
            Stage::CatchingUp(revision) if self.backlog == 0 && self.rest.is_none() => {
                self.stage = Stage::Following;
                Some(revision)
            }
            _ => None,
        }
    }

    fn resolve(&mut self, key: &ObjectKey) {
        if let Some(slot) = self.slots.get_mut(key)
            && std::mem::take(&mut slot.due)
        {
            self.backlog = self.backlog.saturating_sub(1);
        }
    }

    /// One refused object must not keep the whole subscription from being caught up. The exception is a key under which
    /// the edge still holds a version of another epoch: recording the new epoch beside it would mix two histories.
    fn resolve_parked(&mut self, key: &ObjectKey) {
        if self.slots.get(key).is_some_and(|slot| !slot.foreign) {
            self.resolve(key);
        }
    }

    fn forget(&mut self, key: &ObjectKey) {
        self.end_wait(key);
        self.remove_slot(key);
        if self.slots.capacity() > 64 && self.slots.len() < self.slots.capacity() / 4 {
            self.slots.shrink_to_fit();
        }
    }

    pub(super) fn add_slot(&mut self, key: ObjectKey, slot: Slot) {
        self.texts = self.texts.saturating_add(if slot.gone { key.text_len() } else { 0 });
        self.slots.insert(key, slot);
    }

    pub(super) fn remove_slot(&mut self, key: &ObjectKey) {
        let Some(slot) = self.slots.remove(key) else { return };
        self.texts = self.texts.saturating_sub(if slot.gone { key.text_len() } else { 0 });
        if slot.charged {
            self.charged = self.charged.saturating_sub(cost(key));
        }
    }

    /// Drops the keys that are neither wanted nor held: the objects were deleted before the edge received them.
    /// Returns the number of wanted keys.
    pub(super) fn drop_unneeded(&mut self) -> usize {
        let gone = || self.slots.iter().filter(|(_, slot)| slot.gone);
        let wanted = self.slots.len() - gone().count();
        let unneeded = gone().filter(|(_, slot)| slot.is_of_no_use());
        let unneeded: Vec<_> = unneeded.map(|(key, _)| key.clone()).collect();
        for key in &unneeded {
            self.resolve(key);
            self.forget(key);
        }
        if !unneeded.is_empty() {
            for queue in &mut self.ready {
                queue.retain(|key| self.slots.contains_key(key));
                queue.shrink_to_fit();
            }
            // After many removals, a map grows for new keys before its capacity is used up, so it is rebuilt.
            self.slots = std::mem::take(&mut self.slots).into_iter().collect();
        }
        wanted
    }

    /// Bytes that are kept because of what the edge claims to hold.
    pub(super) fn claims(&self) -> usize {
        match &self.stage {
            Stage::Comparing(comparison) => comparison.bytes(),
            Stage::CatchingUp(_) | Stage::Following => self.charged,
        }
    }

    /// Bytes that the edge makes this subscription keep: what it claims to hold, what it refuses, and what it has asked
    /// to follow. The node's own set is not chosen by the edge.
    pub(super) fn memory(&self) -> usize {
        let kept = self.claims().saturating_add(self.timers.memory());
        if self.id == SubscriptionId::NODE {
            return kept;
        }
        let slots = self.slots.capacity().saturating_mul(size_of::<(ObjectKey, Slot)>());
        let queues: usize = self.ready.iter().map(VecDeque::capacity).sum();
        let queues = queues.saturating_mul(size_of::<ObjectKey>());
        kept.saturating_add(slots).saturating_add(queues).saturating_add(self.texts)
    }

    fn release_queue(&mut self, queue: usize) {
        if self.ready[queue].capacity() > KEPT_CAPACITY {
            self.ready[queue] = VecDeque::new();
        }
    }

    /// Keys that wait to be sent.
    pub(super) fn dirty(&self) -> usize {
        self.count(|slot| matches!(slot.phase, Phase::Ready | Phase::InFlight { again: true }))
    }

    /// Keys that wait after a refusal.
    pub(super) fn parked(&self) -> usize {
        self.count(|slot| slot.phase == Phase::Parked)
    }

    /// Keys that the edge is known to hold.
    pub(super) fn held(&self) -> usize {
        self.count(|slot| slot.peer_state != PeerState::Nothing)
    }

    fn count(&self, matches: impl Fn(&Slot) -> bool) -> usize {
        self.slots.values().filter(|slot| matches(slot)).count()
    }

    /// The view's state of a key. Its UID is shared with the belief when both are equal.
    pub(super) fn lookup(&mut self, view: &impl NodeView, key: &ObjectKey) -> Lookup {
        let lookup = view.lookup(self.id, key);
        if let Some(slot) = self.slots.get_mut(key) {
            slot.witness(&lookup);
        }
        if let (Lookup::Present(object), Some(slot)) = (&lookup, self.slots.get_mut(key))
            && let PeerState::Version(held) = &mut slot.peer_state
            && held.uid == object.version.uid
        {
            held.uid = object.version.uid.clone();
        }
        lookup
    }
}

fn queue_of(lane: Lane) -> usize {
    usize::from(lane == Lane::Bulk)
}

#[cfg(test)]
mod tests;
