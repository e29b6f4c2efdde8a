//! Deliveries: which object is sent next, and its form on the wire (docs/reference/kubeedge.md#deliveries).

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::CloudSession;
use super::in_flight::{InFlightDelivery, Overdue};
use super::key_table::KeyTable;
use super::object_replies::{STAND_IN, stand_in};
use super::recorder::{Recorder, Standing};
use super::slot::{DesiredObject, PeerState, Phase, Slot, SlotDecision, Step};
use crate::codec::obstacle;
use crate::frame::RefusalReason;
use crate::ids::{CloudRevision, Moment, SubscriptionId, Uid};
use crate::limits::KUBEEDGE_FOLLOWED_MAX;
use crate::message::{Content, Group, Message, ObjectPath, Operation, Route, Source};
use crate::object::{ObjectKey, SharedObject};
use crate::session::kubeedge::kinds::api_version;
use crate::session::kubeedge::{Outgoing, Share, kind_name, type_word};
use crate::session::{Certainty, CloudEvent, Lookup, Loss, NodeView};

/// Least time between two searches of a full ledger for unneeded keys.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Wait before a pod is checked again that must not start with an empty object at the edge.
const STAND_IN_WAIT: Duration = Duration::from_millis(100);

impl CloudSession {
    pub(super) fn poll_delivery(&mut self, view: &impl NodeView) -> Option<Outgoing> {
        while self.in_flight.has_room() {
            let Some(key) = self.key_table.front() else { break };
            let slot = self.key_table.get(&key)?;
            if slot.holds > 0 {
                // When the reply that carries the object is settled, the key is checked again.
                self.key_table.pass_over(&key);
                continue;
            }
            let (wanted, dynamic) = self.wanted(&key, view);
            match slot.judge(&key, wanted) {
                SlotDecision::Send(step) => {
                    if let Some(outgoing) = self.try_send(&key, step, dynamic, view) {
                        return Some(outgoing);
                    }
                }
                SlotDecision::Settled => self.key_table.settle(&key),
                SlotDecision::Forget => self.forget(&key),
                SlotDecision::Wait => self.key_table.wait(&key),
                SlotDecision::TooLarge(object) => self.refuse_large(&key, &object),
            }
        }
        self.announce_caught_up();
        None
    }

    /// Neither wanted nor held. The ledger may have named it nevertheless, because it seemed to be wanted.
    fn forget(&mut self, key: &ObjectKey) {
        self.key_table.forget(key);
        if !self.object_replies.carries(key) {
            self.recorder.removed(key);
        }
    }

    /// Whether the node is within its bound of followed objects with `new` objects more.
    pub(super) fn has_room(&mut self, new: usize, view: &impl NodeView) -> bool {
        if self.key_table.followed().saturating_add(new) <= KUBEEDGE_FOLLOWED_MAX {
            return true;
        }
        let wanted = self.drop_unneeded(view);
        self.room.counted(wanted.saturating_add(new), self.key_table.followed().saturating_add(new))
    }

    /// Drops deleted objects that the edge does not hold. Returns the number of followed objects that are not deleted.
    fn drop_unneeded(&mut self, view: &impl NodeView) -> usize {
        let gone = |key: &ObjectKey| matches!(self.wanted(key, view), (DesiredObject::Gone, _));
        let (wanted, unneeded) = self.key_table.divide(gone);
        unneeded.iter().for_each(|key| self.forget(key));
        self.key_table.drop_stale();
        wanted
    }

    /// Removes deleted objects from a full ledger before their turn. Visits all keys, so it is rate-limited.
    fn sweep(&mut self, view: &impl NodeView) {
        if self.swept_at.is_none_or(|last| self.now.since(last) >= SWEEP_INTERVAL) {
            self.swept_at = Some(self.now);
            self.drop_unneeded(view);
        }
    }

    /// What all subscriptions together want, and whether only a subscription wants it. KubeEdge edges have one row for
    /// each object, however many subscriptions want it.
    fn wanted(&self, key: &ObjectKey, view: &impl NodeView) -> (DesiredObject, bool) {
        let mut newest: Option<(Arc<SharedObject>, bool)> = None;
        let (mut same_since, mut stands_in, mut unreadable) = (CloudRevision(0), false, false);
        for subscription in &self.subscriptions {
            match view.lookup(*subscription, key) {
                Lookup::Pending => return (DesiredObject::Pending, false),
                Lookup::Absent | Lookup::Unreadable(_) if self.holds_stand_in(key) => {
                    // A pod that needs the object must not be started with an empty one.
                    stands_in = view.is_optional(key);
                }
                Lookup::Unreadable(_) => unreadable = true,
                Lookup::Absent | Lookup::Unwanted(_) => {}
                Lookup::Present(object) => {
                    let dynamic = *subscription != SubscriptionId::NODE;
                    // Watchers of a subscription may wait for changes that the kubelet does not need.
                    same_since = same_since.max(object.same_since);
                    newest = Some(match newest {
                        Some((other, pushed)) if other.version.revision >= object.version.revision => {
                            (other, pushed && dynamic)
                        }
                        Some((_, pushed)) => (object, pushed && dynamic),
                        None => (object, dynamic),
                    });
                }
            }
        }
        match newest {
            Some((object, dynamic)) => (DesiredObject::Present(object, same_since), dynamic),
            None if unreadable => (DesiredObject::Unreadable, false),
            None if stands_in => (DesiredObject::StandIn, false),
            None if self.restoring => (DesiredObject::Pending, false),
            None => (DesiredObject::Gone, self.key_table.get(key).is_some_and(|slot| slot.dynamic)),
        }
    }

    /// Whether the edge has an empty object instead of one that does not exist.
    fn holds_stand_in(&self, key: &ObjectKey) -> bool {
        self.key_table
            .get(key)
            .and_then(|slot| slot.peer_state.uid())
            .is_some_and(|uid| is_stand_in(key, uid))
    }

    /// Sends a step, unless something must happen first.
    fn try_send(
        &mut self,
        key: &ObjectKey,
        step: Step,
        dynamic: bool,
        view: &impl NodeView,
    ) -> Option<Outgoing> {
        if let Some(until) = self.must_wait(key, &step, view) {
            self.key_table.put_off(key, until);
            return None;
        }
        if matches!(step, Step::Delete(_)) && !self.is_certain(key, view) {
            self.key_table.hesitate(key);
            return None;
        }
        let named = match &step {
            Step::Put(object, _) => self.record(key, object, dynamic, view),
            Step::Delete(_) => Some(self.recorder.forget(key)),
        };
        match named? {
            Standing::Stored => {}
            Standing::Waiting => {
                self.key_table.take(key, Phase::Recording);
                return None;
            }
        }
        self.key_table.send(key, dynamic);
        self.object_replies.cross(key, step.revision());
        let (id, millis) = (self.ids.id(), self.ids.millis(self.now));
        let number = self.next_document();
        self.counters.delivered += 1;
        let delivery = self.in_flight.push(self.now, number, id, key.clone(), step, millis);
        Some(document(number, delivery, &self.key_table, &self.recorder))
    }

    /// Makes sure that the ledger names the object to be sent; none when it never can.
    fn record(
        &mut self,
        key: &ObjectKey,
        object: &SharedObject,
        dynamic: bool,
        view: &impl NodeView,
    ) -> Option<Standing> {
        if let Some(standing) = self.recorder.standing(key, &object.version.uid) {
            return Some(standing);
        }
        let Some(kind) = self.kind_of(key, object) else {
            let message = format!("{key} is not sent: its body names no kind");
            self.refuse_for_ever(key, object, RefusalReason::Malformed, message);
            return None;
        };
        let share = if dynamic { Share::Followed } else { Share::Own };
        if !self.recorder.ledger().has_room(key, share) {
            self.sweep(view);
        }
        match self.recorder.want(key, &kind, &object.version.uid, share) {
            Ok(standing) => Some(standing),
            Err(full) => {
                // A deleted object leaves the ledger when the edge has confirmed the deletion.
                self.key_table.take(key, Phase::Parked);
                let retry_in = self.key_table.put_back(self.now, key, Some(object.version.revision));
                self.report_refusal(
                    key,
                    RefusalReason::Other,
                    format!("{key} is not sent: {full}"),
                    retry_in,
                );
                None
            }
        }
    }

    /// Until when a step must wait; none when it may be sent.
    fn must_wait(&self, key: &ObjectKey, step: &Step, view: &impl NodeView) -> Option<Option<Moment>> {
        let slot = self.key_table.get(key)?;
        if let Some(until) = slot.held_back(step, self.now) {
            return Some(until);
        }
        if let Step::Put(object, _) = step
            && object
                .dependencies
                .iter()
                .any(|needed| self.holds_stand_in(needed) && !view.is_optional(needed))
        {
            // The kubelet would start the pod with the empty object, whose deletion is under way.
            return Some(Some(self.now + STAND_IN_WAIT));
        }
        None
    }

    /// Whether all open subscriptions are certain of a deletion. An object that this session did not deliver is
    /// claimed: the node may have received it through a faster replica, or in an answer of the API server, and the view
    /// may not know it yet.
    fn is_certain(&self, key: &ObjectKey, view: &impl NodeView) -> bool {
        let sent = |slot: &Slot| slot.peer_state.sent().is_some();
        let claimed = !self.key_table.get(key).is_some_and(sent);
        // An empty object shows by itself that there was no real one.
        let stands_in = self.holds_stand_in(key);
        let mut certain = true;
        for subscription in &self.subscriptions {
            let loss = match view.lookup(*subscription, key) {
                Lookup::Unwanted(_) => Loss::Need { claimed },
                Lookup::Absent if claimed && !stands_in => Loss::Object,
                Lookup::Absent | Lookup::Present(_) | Lookup::Unreadable(_) | Lookup::Pending => continue,
            };
            certain &= view.certainty(*subscription, key, loss) == Certainty::Certain;
        }
        certain
    }

    fn kind_of(&self, key: &ObjectKey, object: &SharedObject) -> Option<Box<str>> {
        let known = self.recorder.ledger().get(key).map(|entry| entry.kind.clone());
        known.or_else(|| kind_name(key.resource(), Some(&object.body)))
    }

    fn refuse_large(&mut self, key: &ObjectKey, object: &SharedObject) {
        let (len, max) = (object.body.len(), crate::limits::OBJECT_LEN_MAX);
        let size = || format!("the object has {len} bytes, more than the maximum of {max}");
        let message = format!("{key} is not sent: {}", obstacle(object).map_or_else(size, str::to_owned));
        self.refuse_for_ever(key, object, RefusalReason::TooLarge, message);
    }

    fn refuse_for_ever(
        &mut self,
        key: &ObjectKey,
        object: &SharedObject,
        reason: RefusalReason,
        message: String,
    ) {
        if self.key_table.never(key, object.version.revision) {
            self.report_refusal(key, reason, message, Duration::MAX);
        }
    }

    fn report_refusal(
        &mut self,
        key: &ObjectKey,
        reason: RefusalReason,
        message: String,
        retry_in: Duration,
    ) {
        self.counters.refused += 1;
        let (subscription, key) = (SubscriptionId::NODE, key.clone());
        self.events.push_back(CloudEvent::Refused { subscription, key, reason, message, retry_in });
    }

    /// A delivery was refused by the edge, or no copy of it was ever acknowledged.
    pub(super) fn delivery_failed(
        &mut self,
        delivery: &InFlightDelivery,
        reason: RefusalReason,
        message: String,
    ) {
        let retry_in = self.key_table.failed(self.now, &delivery.key, &delivery.step);
        self.report_refusal(&delivery.key, reason, message, retry_in);
    }

    pub(super) fn delivery_overdue(&mut self, overdue: Overdue) {
        match overdue {
            Overdue::Unsure(delivery) => {
                let uid = delivery.step.uid().cloned();
                self.key_table.landed(&delivery.key, PeerState::Unknown(uid));
            }
            Overdue::Lost(delivery) => {
                let message = "the edge acknowledged no copy of the delivery".to_owned();
                self.delivery_failed(&delivery, RefusalReason::Other, message);
            }
        }
    }

    fn announce_caught_up(&mut self) {
        if !self.caught_up && self.key_table.backlog() == 0 {
            self.caught_up = true;
            self.events.push_back(CloudEvent::CaughtUp { subscription: SubscriptionId::NODE });
        }
    }
}

fn is_stand_in(key: &ObjectKey, uid: &Uid) -> bool {
    uid.as_str().starts_with(STAND_IN) && stand_in(key).is_some_and(|own| own == *uid)
}

/// The document of a delivery, the same for each copy except for its number.
pub(super) fn document(
    number: u64,
    delivery: &InFlightDelivery,
    key_table: &KeyTable,
    recorder: &Recorder,
) -> Outgoing {
    let InFlightDelivery { id, key, step, millis, .. } = delivery;
    let dynamic = key_table.get(key).is_some_and(|slot| slot.dynamic);
    match step {
        Step::Put(object, Operation::Update) if !dynamic => {
            let head = || message(delivery, dynamic, recorder);
            Outgoing::update(number, id, *millis, object, head)
        }
        Step::Put(object, _) | Step::Delete(PeerState::Sent(object)) => {
            Outgoing::object(number, &message(delivery, dynamic, recorder), object)
        }
        Step::Delete(_) => Outgoing::message(number, &message(delivery, dynamic, recorder)),
    }
}

/// The delivery's message; the content is missing when a shared object is the content.
fn message(delivery: &InFlightDelivery, dynamic: bool, recorder: &Recorder) -> Message {
    let InFlightDelivery { id, key, step, millis, .. } = delivery;
    let kind = recorder.ledger().get(key).map(|entry| entry.kind.clone());
    let kind = kind.or_else(|| kind_name(key.resource(), None)).unwrap_or_default();
    let (operation, object, content) = match step {
        Step::Put(object, operation) => (operation.clone(), Some(object), Content::null()),
        Step::Delete(PeerState::Sent(object)) => (Operation::Delete, Some(object), Content::null()),
        Step::Delete(peer_state) => {
            let uid = peer_state.uid().filter(|uid| !is_stand_in(key, uid)).map(Uid::as_str);
            (Operation::Delete, None, tombstone(key, &kind, uid))
        }
    };
    let source = if dynamic { Source::DynamicController } else { Source::EdgeController };
    let path = ObjectPath::new(key.namespace(), type_word(&kind), key.name());
    let route = Route::new(source, Group::Resource, operation, path.into());
    let mut message = Message::new(id.clone(), *millis, route, content);
    if let Some(object) = object {
        message.header.resource_version = object.version.revision.to_string();
    }
    message
}

/// The content of a deletion when the object's content is no longer known: enough for the edge to find its row.
/// KubeEdge clouds do not send kind and version (docs/reference/kubeedge.md#sync-controller); without them the edge's
/// MetaServer would keep its copy.
fn tombstone(key: &ObjectKey, kind: &str, uid: Option<&str>) -> Content {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Tombstone<'a> {
        #[serde(skip_serializing_if = "str::is_empty")]
        kind: &'a str,
        api_version: String,
        metadata: Metadata<'a>,
    }
    #[derive(Serialize)]
    struct Metadata<'a> {
        name: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        namespace: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        uid: Option<&'a str>,
    }
    let metadata = Metadata { name: key.name(), namespace: key.namespace(), uid };
    let stone = Tombstone { kind, api_version: api_version(key.resource()), metadata };
    // Only texts, none of which serde_json refuses.
    Content::from_value(&stone).unwrap_or_else(|_| Content::null())
}
