//! All keys of one edge: which are settled, which must be checked, which wait.
//!
//! Pending work is state, as in dialect `tombolo`: a key is in one slot, in one phase, however often it is offered.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::slot::{PeerState, Phase, Slot, Step};
use crate::ids::{CloudRevision, Moment, Uid};
use crate::object::{KeyMap, ObjectKey};
use crate::session::kubeedge::{LEDGER_MAX, LedgerEntry};
use crate::session::parking::{Park, Timers};

/// Elements for which an empty queue keeps its memory.
const KEPT_CAPACITY: usize = 4;

/// The keys of one edge. Bounded by what is wanted and what the ledger names.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    slots: KeyMap<Slot>,
    /// Keys to check, oldest first; an entry whose slot is not ready is stale.
    ready: VecDeque<ObjectKey>,
    /// Keys that are most likely settled and are checked only to be sure.
    unhurried: VecDeque<ObjectKey>,
    timers: Timers,
    backlog: usize,
    /// Bytes of the keys' texts.
    texts: usize,
    /// Slots of the node's own set, and the bytes of their texts.
    own: usize,
    own_texts: usize,
}

impl KeyTable {
    /// Number of keys that are not of the node's own set.
    pub(super) fn followed(&self) -> usize {
        self.slots.len().saturating_sub(self.own)
    }

    /// Number of keys of the node's own set, which is not chosen by the edge.
    pub(super) fn own(&self) -> usize {
        self.own
    }

    /// Bytes of the keys that are not of the node's own set. Their texts count although most of them are shared,
    /// because it is not known which are.
    pub(super) fn memory(&self) -> usize {
        let part = |places: usize| places.saturating_mul(self.followed()) / self.slots.len().max(1);
        let slots = part(self.slots.capacity()).saturating_mul(size_of::<(ObjectKey, Slot)>());
        let queues = self.ready.capacity().saturating_add(self.unhurried.capacity());
        let queues = part(queues).saturating_mul(size_of::<ObjectKey>());
        let texts = self.texts.saturating_sub(self.own_texts);
        slots.saturating_add(queues).saturating_add(texts).saturating_add(self.timers.memory())
    }

    /// Records whether the key belongs to the node's own set; if not, only a subscription has it.
    pub(super) fn set_own(&mut self, key: &ObjectKey, own: bool) {
        let Some(slot) = self.slots.get_mut(key).filter(|slot| slot.own != own) else { return };
        slot.own = own;
        if own {
            self.own += 1;
            self.own_texts = self.own_texts.saturating_add(key.text_len());
        } else {
            self.own = self.own.saturating_sub(1);
            self.own_texts = self.own_texts.saturating_sub(key.text_len());
        }
    }

    /// The slot of a key, created when there is none.
    fn entry(&mut self, key: &ObjectKey, peer_state: impl FnOnce() -> PeerState) -> &mut Slot {
        let texts = &mut self.texts;
        self.slots.entry(key.clone()).or_insert_with(|| {
            *texts = texts.saturating_add(key.text_len());
            Slot::new(peer_state())
        })
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.set_own(key, false);
        if self.slots.remove(key).is_some() {
            self.texts = self.texts.saturating_sub(key.text_len());
        }
    }

    /// Takes over an entry of the ledger.
    pub(super) fn resume(&mut self, key: ObjectKey, entry: &LedgerEntry) {
        let fresh = !self.slots.contains_key(&key);
        let slot = self.entry(&key, || PeerState::from(entry));
        if fresh {
            slot.resumed = true;
            self.make_due(&key);
        }
        self.offer(key);
    }

    /// A key that the node should hold when the session begins.
    pub(super) fn expect(&mut self, key: &ObjectKey) {
        self.offer(key.clone());
        self.set_own(key, true);
        self.make_due(key);
    }

    /// Marks a key dirty.
    pub(super) fn offer(&mut self, key: ObjectKey) {
        let slot = self.entry(&key, || PeerState::Nothing);
        match slot.phase {
            Phase::Ready | Phase::Recording => {}
            Phase::InFlight { .. } => slot.phase = Phase::InFlight { again: true },
            Phase::Idle | Phase::Parked => {
                slot.phase = Phase::Ready;
                self.ready.push_back(key);
            }
        }
    }

    pub(super) fn offer_where(&mut self, wanted: impl Fn(&Slot) -> bool) {
        self.offer_those(|_, slot| wanted(slot));
    }

    pub(super) fn offer_held(&mut self, picked: impl Fn(&ObjectKey) -> bool) {
        self.offer_those(|key, slot| (slot.peer_state.holds() || slot.holds > 0) && picked(key));
    }

    fn offer_those(&mut self, wanted: impl Fn(&ObjectKey, &Slot) -> bool) {
        let keys = self.slots.iter().filter(|(key, slot)| wanted(key, slot)).map(|(key, _)| key.clone());
        // Sorted, so that the same inputs always give the same documents.
        keys.collect::<BTreeSet<_>>().into_iter().for_each(|key| self.offer(key));
    }

    /// The edge's process has restarted, and its store may have been lost: what was believed before this connection is
    /// delivered again, after everything else. Returns the keys that are no longer certain.
    pub(super) fn mark_resumed_uncertain(&mut self) -> BTreeSet<ObjectKey> {
        let (mut uncertain, mut looked_at) = (BTreeSet::new(), BTreeSet::new());
        for (key, slot) in &mut self.slots {
            if std::mem::take(&mut slot.resumed) && slot.peer_state.holds() {
                slot.peer_state = slot.peer_state.unsure(slot.peer_state.uid());
                uncertain.insert(key.clone());
                if slot.phase == Phase::Idle {
                    slot.phase = Phase::Ready;
                    looked_at.insert(key.clone());
                }
            }
        }
        self.unhurried.extend(looked_at);
        uncertain
    }

    /// What the edge holds under a key is no longer certain; the key is checked.
    pub(super) fn mark_uncertain(&mut self, key: &ObjectKey) {
        if let Some(slot) = self.slots.get_mut(key) {
            slot.peer_state = match &slot.peer_state {
                // Deleted, and perhaps stored again.
                PeerState::Nothing => PeerState::Unknown(None),
                peer_state => peer_state.unsure(peer_state.uid()),
            };
        }
        self.offer(key.clone());
    }

    /// Records that a late acknowledgement names a key; false when that is already recorded, or the key is unknown.
    pub(super) fn marks_late_ack(&mut self, key: &ObjectKey) -> bool {
        self.slots.get_mut(key).is_some_and(|slot| !std::mem::replace(&mut slot.late_ack, true))
    }

    /// Checks such a key.
    pub(super) fn handle_late_ack(&mut self, key: &ObjectKey) {
        if let Some(slot) = self.slots.get_mut(key) {
            slot.late_ack = false;
        }
        self.mark_uncertain(key);
    }

    /// The edge reports that it holds something under a key, whatever is known of the key. Reports of too many keys
    /// are ignored, so that memory stays bounded.
    pub(super) fn suspect(&mut self, key: &ObjectKey) {
        if self.slots.len() < LEDGER_MAX || self.slots.contains_key(key) {
            self.slot(key);
            self.mark_uncertain(key);
        }
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Slot> {
        self.slots.get(key)
    }

    pub(super) fn slot(&mut self, key: &ObjectKey) -> &mut Slot {
        self.entry(key, || PeerState::Nothing)
    }

    /// The next key to check; it stays in its queue until it is taken.
    pub(super) fn front(&mut self) -> Option<ObjectKey> {
        let Self { ready, unhurried, slots, .. } = self;
        for queue in [ready, unhurried] {
            while let Some(key) = queue.front() {
                if slots.get(key).is_some_and(|slot| slot.phase == Phase::Ready) {
                    return Some(key.clone());
                }
                queue.pop_front();
            }
            if queue.capacity() > KEPT_CAPACITY {
                *queue = VecDeque::new();
            }
        }
        None
    }

    /// Removes the key that [`Self::front`] returned from its queue and sets its phase.
    pub(super) fn take(&mut self, key: &ObjectKey, phase: Phase) {
        for queue in [&mut self.ready, &mut self.unhurried] {
            if queue.front() == Some(key) {
                queue.pop_front();
                break;
            }
        }
        if let Some(slot) = self.slots.get_mut(key) {
            slot.phase = phase;
        }
    }

    /// The same for a key that is being sent; `dynamic`: only a subscription wants it.
    pub(super) fn send(&mut self, key: &ObjectKey, dynamic: bool) {
        self.take(key, Phase::InFlight { again: false });
        if dynamic {
            self.set_own(key, false);
        }
        if let Some(slot) = self.slots.get_mut(key) {
            slot.dynamic = dynamic;
        }
    }

    /// Defers a key until a reply that carries the object is settled.
    pub(super) fn pass_over(&mut self, key: &ObjectKey) {
        self.take(key, Phase::Idle);
        if let Some(slot) = self.slots.get_mut(key) {
            slot.passed_over = true;
        }
    }

    /// Ends the hold of an acknowledged reply. True when the edge has only stored again what it held: then there is
    /// nothing to check, which is the case after most requests.
    pub(super) fn confirm(&mut self, key: &ObjectKey, uid: &Uid, revision: CloudRevision) -> bool {
        let Some(slot) = self.slots.get_mut(key) else { return false };
        let known = slot.peer_state.uid() == Some(uid) && slot.peer_state.revision() == Some(revision);
        if !known || slot.passed_over {
            return false;
        }
        slot.resumed = false;
        true
    }

    /// The ledger names the key now.
    pub(super) fn recorded(&mut self, key: ObjectKey) {
        if let Some(slot) = self.slots.get_mut(&key).filter(|slot| slot.phase == Phase::Recording) {
            slot.phase = Phase::Ready;
            // It has already waited.
            self.ready.push_front(key);
        }
    }

    /// The edge holds this now, or may hold it.
    pub(super) fn believe(&mut self, key: &ObjectKey, peer_state: PeerState) {
        let slot = self.slot(key);
        slot.peer_state = peer_state;
        slot.resumed = false;
    }

    /// A delivery has ended.
    pub(super) fn landed(&mut self, key: &ObjectKey, becomes: PeerState) {
        self.end_wait(key);
        let Some(slot) = self.slots.get_mut(key) else { return };
        let again = slot.phase == Phase::InFlight { again: true };
        let gone = !becomes.holds();
        let unsure = matches!(becomes, PeerState::Unknown(_));
        slot.peer_state = becomes;
        slot.resumed = false;
        slot.phase = Phase::Idle;
        if !unsure {
            self.resolve(key);
        }
        // A deletion may have made room for a new incarnation.
        if again || unsure || gone {
            self.offer(key.clone());
        }
    }

    /// The edge holds what is wanted.
    pub(super) fn settle(&mut self, key: &ObjectKey) {
        self.end_wait(key);
        self.take(key, Phase::Idle);
        self.resolve(key);
    }

    /// Neither wanted nor held.
    pub(super) fn forget(&mut self, key: &ObjectKey) {
        self.take(key, Phase::Idle);
        self.end_wait(key);
        self.resolve(key);
        if self.slots.get(key).is_some_and(|slot| slot.holds == 0) {
            self.remove(key);
        }
        if self.slots.capacity() > 64 && self.slots.len() < self.slots.capacity() / 4 {
            self.slots.shrink_to_fit();
        }
    }

    /// The view does not know yet: the owner offers the key once it does.
    pub(super) fn wait(&mut self, key: &ObjectKey) {
        self.take(key, Phase::Idle);
        let idle =
            |slot: &Slot| !slot.due && slot.holds == 0 && !slot.peer_state.holds() && slot.park.is_none();
        if self.slots.get(key).is_some_and(idle) {
            self.remove(key);
        }
    }

    /// The number of followed keys that are not deleted, and all deleted keys of which the edge holds nothing.
    pub(super) fn divide(&self, gone: impl Fn(&ObjectKey) -> bool) -> (usize, Vec<ObjectKey>) {
        let gone: Vec<_> = self.slots.iter().filter(|(key, _)| gone(key)).collect();
        let gone_of_followed = gone.iter().filter(|(_, slot)| !slot.own).count();
        let rest = self.followed().saturating_sub(gone_of_followed);
        let unneeded = gone.into_iter().filter(|(_, slot)| slot.is_of_no_use());
        (rest, unneeded.map(|(key, _)| key.clone()).collect())
    }

    /// Removes stale keys from the queues.
    pub(super) fn drop_stale(&mut self) {
        let Self { ready, unhurried, slots, .. } = self;
        // After many removals, a map grows for new keys before its capacity is used up, so it is rebuilt.
        *slots = std::mem::take(slots).into_iter().collect();
        for queue in [ready, unhurried] {
            queue.retain(|key| slots.get(key).is_some_and(|slot| slot.phase == Phase::Ready));
            queue.shrink_to_fit();
        }
    }

    /// Defers a key until `until`, or until it is offered again.
    pub(super) fn put_off(&mut self, key: &ObjectKey, until: Option<Moment>) {
        self.take(key, Phase::Parked);
        if let Some(until) = until {
            self.timers.set(until, key.clone());
        }
    }

    /// Defers a key until the owner knows whether the edge's object is to be deleted, and offers it. Catching up does
    /// not wait.
    pub(super) fn hesitate(&mut self, key: &ObjectKey) {
        self.take(key, Phase::Parked);
        self.resolve(key);
    }

    /// A delivery has failed: the same version waits, a newer one does not. Returns the wait.
    pub(super) fn failed(&mut self, now: Moment, key: &ObjectKey, step: &Step) -> Duration {
        let mut again = false;
        if let Some(slot) = self.slots.get_mut(key) {
            again = slot.phase == Phase::InFlight { again: true };
            slot.peer_state = slot.peer_state.unsure(step.uid());
        }
        let delay = self.put_back(now, key, step.revision());
        if again {
            self.offer(key.clone());
        }
        delay
    }

    /// This version waits, longer each time. Returns the wait.
    pub(super) fn put_back(
        &mut self,
        now: Moment,
        key: &ObjectKey,
        revision: Option<CloudRevision>,
    ) -> Duration {
        let park = Park::failed(revision, now, self.end_wait(key).as_deref());
        let delay = park.delay();
        let Some(slot) = self.slots.get_mut(key) else { return delay };
        slot.park = Some(Box::new(park));
        slot.phase = Phase::Parked;
        self.timers.set(now + delay, key.clone());
        // One object that an edge cannot store must not keep the others from being caught up.
        self.resolve(key);
        delay
    }

    /// This version can never be sent. False when that was already known.
    pub(super) fn never(&mut self, key: &ObjectKey, revision: CloudRevision) -> bool {
        self.take(key, Phase::Parked);
        let known = |slot: &Slot| slot.park.as_ref().is_some_and(|park| park.is_of(&revision));
        if self.slots.get(key).is_some_and(known) {
            return false;
        }
        self.end_wait(key);
        if let Some(slot) = self.slots.get_mut(key) {
            slot.park = Some(Box::new(Park::never(revision)));
        }
        self.resolve(key);
        true
    }

    fn end_wait(&mut self, key: &ObjectKey) -> Option<Box<Park<CloudRevision>>> {
        self.timers.end(key, &mut self.slots.get_mut(key)?.park)
    }

    fn make_due(&mut self, key: &ObjectKey) {
        if let Some(slot) = self.slots.get_mut(key)
            && !std::mem::replace(&mut slot.due, true)
        {
            self.backlog += 1;
        }
    }

    fn resolve(&mut self, key: &ObjectKey) {
        if let Some(slot) = self.slots.get_mut(key)
            && std::mem::take(&mut slot.due)
        {
            self.backlog = self.backlog.saturating_sub(1);
        }
    }

    /// Number of keys that were missing at the beginning and still are.
    pub(super) fn backlog(&self) -> usize {
        self.backlog
    }

    /// When the next parked key becomes ready.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.timers.deadline()
    }

    pub(super) fn handle_timeout(&mut self, now: Moment) {
        while let Some(key) = self.timers.pop_due(now) {
            if self.slots.get(&key).is_some_and(|slot| slot.phase == Phase::Parked) {
                self.offer(key);
            }
        }
    }

    pub(super) fn dirty(&self) -> usize {
        let dirty = |slot: &Slot| {
            matches!(slot.phase, Phase::Ready | Phase::Recording | Phase::InFlight { again: true })
        };
        self.count(dirty)
    }

    pub(super) fn parked(&self) -> usize {
        self.count(|slot| slot.phase == Phase::Parked)
    }

    pub(super) fn held(&self) -> usize {
        self.count(|slot| slot.peer_state.holds())
    }

    fn count(&self, matches: impl Fn(&Slot) -> bool) -> usize {
        self.slots.values().filter(|slot| matches(slot)).count()
    }
}
