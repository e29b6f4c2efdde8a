//! Documents received from a KubeEdge edge.

use std::time::Duration;

use bytes::Bytes;

use super::CloudSession;
use super::in_flight::{Acked, InFlightDelivery};
use super::object_replies::Settled;
use super::requests::ReceivedRequest;
use super::slot::PeerState;
use crate::frame::RefusalReason;
use crate::ids::{Moment, SubscriptionId};
use crate::kubeedge;
use crate::message::{Content, Group, Message, MessageId, Operation, ResourcePath, Source};
use crate::object::{ObjectKey, Resource};
use crate::session::error::clip;
use crate::session::kubeedge::up::{Up, registers_node};
use crate::session::kubeedge::{RESEND_AFTER, resource_of};
use crate::session::{CloudEvent, SessionError};

/// Time after which an edge repeats unconfirmed reports.
const DEVICE_REPEAT: Duration = Duration::from_secs(60);

/// Most refusals of device reports in that time; further reports get no answer, which an edge treats like a refusal.
const DEVICE_REFUSALS_MAX: u32 = 64;

/// Why a report of the device twin is refused.
const NO_DEVICES: &str = "this cloudcore does not manage devices and does not store the report: disable \
     modules.deviceTwin on the edge, or set kubeedge.devices: discard in cloudcore.yaml to discard reports";

impl CloudSession {
    /// Handles a received document. A document that is not a message is counted and ignored
    /// (docs/reference/kubeedge.md#malformed-messages).
    ///
    /// # Errors
    /// [`SessionError`] when the edge sends too many useless messages, or does not read its answers.
    pub fn handle_document(&mut self, now: Moment, document: &Bytes) -> Result<(), SessionError> {
        if self.closed {
            return Ok(());
        }
        self.now = now;
        self.last_heard = now;
        let outcome = match kubeedge::decode(document) {
            Ok(message) => self.handle_message(message),
            Err(error) => {
                self.counters.malformed += 1;
                self.patience.ignore(now, &error.to_string())
            }
        };
        outcome.inspect_err(|error| self.fail(error))
    }

    /// Something other than a document was received, for example a WebSocket ping.
    pub fn heard(&mut self, now: Moment) {
        self.now = now;
        self.last_heard = now;
    }

    fn handle_message(&mut self, message: Message) -> Result<(), SessionError> {
        match Up::of(message) {
            Up::Keepalive => Ok(()),
            Up::Ack { parent, resource } => {
                self.handle_ack(&parent, &resource);
                Ok(())
            }
            Up::Failure { parent, sentence } => {
                self.handle_failure(&parent, sentence);
                Ok(())
            }
            Up::Control(message) => {
                let answer = message.reply(self.ids.id(), self.ids.millis(self.now), Content::text("ack"));
                self.notices.push(&answer)
            }
            Up::Twin(message) => self.handle_twin(&message),
            Up::Request(message) => self.handle_request(message),
            Up::Stray => self.patience.ignore(self.now, "a message that no module handles"),
        }
    }

    /// A request for devices is confirmed, which loses nothing; otherwise it would be repeated forever. A report is
    /// data: unless it is to be discarded it is refused, with an error that the edge logs, and never confirmed.
    fn handle_twin(&mut self, message: &Message) -> Result<(), SessionError> {
        if message.route.operation == Operation::Get {
            let answer = self.confirm(message);
            return self.notices.push(&answer);
        }
        let discarded = self.config.discard_devices;
        self.events.push_back(CloudEvent::DeviceReport { discarded });
        if discarded {
            let answer = self.confirm(message);
            return self.notices.push(&answer);
        }
        // The edge repeats all unconfirmed reports, and they accumulate: refusals are limited for the sake of both
        // sides.
        if self.now.since(self.device_refusals.0) >= DEVICE_REPEAT {
            self.device_refusals = (self.now, 0);
        }
        self.device_refusals.1 += 1;
        if self.device_refusals.1 > DEVICE_REFUSALS_MAX {
            return Ok(());
        }
        let answer = message.controller_error(self.ids.id(), self.ids.millis(self.now), NO_DEVICES);
        self.notices.push(&answer)
    }

    /// Device twins repeat a message until it is confirmed; the content of the answer is not read
    /// (docs/reference/kubeedge.md#devices-and-node-tasks).
    fn confirm(&mut self, report: &Message) -> Message {
        let mut answer = report.reply(self.ids.id(), self.ids.millis(self.now), Content::ok());
        answer.route.source = Source::DeviceController;
        answer.route.group = Group::Twin;
        answer.route.operation = Operation::Response;
        // With the resource of the report itself the edge would read the answer as a list of devices.
        answer.route.resource = ResourcePath::Twin;
        answer
    }

    fn handle_request(&mut self, message: Message) -> Result<(), SessionError> {
        if registers_node(&message) {
            // Without its Node in the store the kubelet cannot continue, whatever was sent before
            // (docs/reference/kubeedge.md#registration-order).
            let uncertain = self.key_table.mark_resumed_uncertain();
            self.recorder.mark_uncertain(&uncertain);
            self.mark_node_uncertain();
        }
        match self.requests.handle(self.now, message, &mut self.ids) {
            ReceivedRequest::New(request) => {
                self.events.push_back(CloudEvent::Request(request));
                Ok(())
            }
            ReceivedRequest::Refused(answer) => answer.map_or(Ok(()), |answer| self.notices.push(&answer)),
            ReceivedRequest::Repeated => self.patience.ignore(self.now, "a request that is already pending"),
        }
    }

    fn mark_node_uncertain(&mut self) {
        let key = ObjectKey::new(Resource::new("", "v1", "nodes"), "", self.config.node.as_str());
        if self.key_table.get(&key).is_some_and(|slot| slot.peer_state.holds()) {
            self.key_table.mark_uncertain(&key);
        } else {
            self.key_table.offer(key);
        }
    }

    fn handle_ack(&mut self, parent: &MessageId, resource: &ResourcePath) {
        if let Some(settled) = self.object_replies.acked(parent) {
            return self.settle_reply(settled);
        }
        match self.in_flight.acked(self.now, parent) {
            Acked::Landed(delivery) => self.landed(delivery),
            Acked::Partly => {}
            Acked::Unknown if self.plain_replies.contains(parent) => {}
            Acked::Unknown => self.handle_late_ack(resource),
        }
    }

    /// Acknowledgements without a known delivery are usual: the edge sends one for every reply that it requested. But
    /// when one names a pushed object, a copy that was given up, or one of an earlier connection, was just stored,
    /// perhaps over something newer that arrived in a reply.
    fn handle_late_ack(&mut self, resource: &ResourcePath) {
        let Some(path) = resource.as_object() else { return };
        let Some((resource, name)) = resource_of(&path.resource_type).zip(path.name.as_deref()) else {
            return;
        };
        let key = ObjectKey::new(resource, path.namespace(), name);
        if self.key_table.marks_late_ack(&key) {
            // Not at once: an edge that acknowledges everything twice must not cause endless sending.
            self.late_acks.push_back((self.now + RESEND_AFTER, key));
        }
    }

    /// Checks the keys that late acknowledgements named.
    pub(super) fn handle_late_acks(&mut self) {
        while let Some((_, key)) = self.late_acks.pop_front_if(|(due, _)| *due <= self.now) {
            self.key_table.handle_late_ack(&key);
        }
    }

    fn landed(&mut self, delivery: InFlightDelivery) {
        let becomes = delivery.step.becomes();
        // A reply with another version that is still under way may yet replace what was stored.
        let crossed = self.object_replies.cross(&delivery.key, delivery.step.revision());
        let version = becomes.sent().cloned();
        match &version {
            _ if crossed => {}
            Some(version) => self.recorder.acked(&delivery.key, &version.uid, version.revision),
            None => self.recorder.removed(&delivery.key),
        }
        self.key_table.landed(&delivery.key, becomes);
        self.counters.acked += 1;
        let latency = self.now.since(delivery.sent_at);
        self.events.push_back(CloudEvent::Acked {
            subscription: SubscriptionId::NODE,
            key: delivery.key,
            version,
            latency,
        });
    }

    fn handle_failure(&mut self, parent: &MessageId, sentence: String) {
        if let Some(delivery) = self.in_flight.failed(parent) {
            self.delivery_failed(&delivery, RefusalReason::Storage, clip(sentence));
        }
    }

    /// A reply with an object was acknowledged, or has had enough time to arrive.
    pub(super) fn settle_reply(&mut self, settled: Settled) {
        let Settled { object, sure } = settled;
        let slot = self.key_table.slot(&object.key);
        if object.acknowledged {
            slot.holds = slot.holds.saturating_sub(1);
            if sure && self.key_table.confirm(&object.key, &object.uid, object.revision) {
                return;
            }
        }
        let slot = self.key_table.slot(&object.key);
        slot.passed_over = false;
        let believed = slot.peer_state.revision().filter(|_| slot.peer_state.uid() == Some(&object.uid));
        if sure && object.acknowledged {
            // Not recorded in the ledger: a delivery in the edge's queue may still overwrite it after the connection.
            self.key_table.believe(&object.key, PeerState::Seen(object.uid, object.revision));
        } else if !sure || believed.is_none_or(|believed| believed > object.revision) {
            // Two versions crossed, or the edge has returned to an older one.
            let unsure = slot.peer_state.unsure(Some(&object.uid));
            self.key_table.believe(&object.key, unsure);
        }
        self.key_table.offer(object.key);
    }
}
