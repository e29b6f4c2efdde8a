//! Deliveries in flight: one for each key, a few at a time.

use super::slot::Step;
use crate::ids::Moment;
use crate::message::MessageId;
use crate::object::ObjectKey;
use crate::session::kubeedge::{RESEND_AFTER, RESENDS_MAX};

/// One delivery that is neither fully acknowledged nor given up.
#[derive(Debug)]
pub(super) struct InFlightDelivery {
    /// Id of its message, the same in every copy.
    pub(super) id: MessageId,
    pub(super) key: ObjectKey,
    pub(super) step: Step,
    /// Time in its header.
    pub(super) millis: i64,
    pub(super) sent_at: Moment,
    /// Number of the document that carries the newest copy.
    number: u64,
    copies: u8,
    acks: u8,
    /// When the delivery is next due; none before the newest copy has left the socket.
    due: Option<Moment>,
}

/// Result of an acknowledgement.
#[derive(Debug)]
pub(super) enum Acked {
    /// No such delivery.
    Unknown,
    /// Some of its copies are still under way.
    Partly,
    /// All copies are acknowledged.
    Landed(InFlightDelivery),
}

/// Result of a timer.
#[derive(Debug)]
pub(super) enum Overdue {
    /// Some copies are acknowledged, others are lost or late: what the edge holds is not certain.
    Unsure(InFlightDelivery),
    /// No copy was ever acknowledged.
    Lost(InFlightDelivery),
}

/// Deliveries in flight. A list is smaller and faster than a map, because there are few.
#[derive(Debug)]
pub(super) struct InFlightDeliveries {
    window: usize,
    list: Vec<InFlightDelivery>,
    /// Deliveries to send again, by id.
    resends: Vec<MessageId>,
}

impl InFlightDeliveries {
    pub(super) fn new(window: usize) -> Self {
        Self { window, list: Vec::new(), resends: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn window(&self) -> usize {
        self.window
    }

    pub(super) fn has_room(&self) -> bool {
        self.list.len() < self.window
    }

    pub(super) fn push(
        &mut self,
        now: Moment,
        number: u64,
        id: MessageId,
        key: ObjectKey,
        step: Step,
        millis: i64,
    ) -> &InFlightDelivery {
        let delivery =
            InFlightDelivery { id, key, step, millis, sent_at: now, number, copies: 1, acks: 0, due: None };
        self.list.push_mut(delivery)
    }

    /// The delivery of a key, when one is in flight.
    pub(super) fn of(&self, key: &ObjectKey) -> Option<&InFlightDelivery> {
        self.list.iter().find(|delivery| delivery.key == *key)
    }

    /// Everything up to a document has left the socket.
    pub(super) fn transmitted(&mut self, now: Moment, number: u64) {
        for delivery in self.list.iter_mut().filter(|delivery| delivery.number <= number) {
            delivery.due.get_or_insert(now + RESEND_AFTER);
        }
    }

    /// Counts an acknowledgement. A copy that is still on its way could arrive after the next version and overwrite
    /// it, so a delivery that was repeated ends with the acknowledgement of its last copy.
    pub(super) fn acked(&mut self, now: Moment, id: &MessageId) -> Acked {
        let Some(index) = self.list.iter().position(|delivery| delivery.id == *id) else {
            return Acked::Unknown;
        };
        let delivery = &mut self.list[index];
        delivery.acks = delivery.acks.saturating_add(1);
        if delivery.acks < delivery.copies {
            delivery.due = Some(now + RESEND_AFTER);
            self.resends.retain(|resend| resend != id);
            return Acked::Partly;
        }
        Acked::Landed(self.remove(index))
    }

    /// The edge reports that a delivery failed.
    pub(super) fn failed(&mut self, id: &MessageId) -> Option<InFlightDelivery> {
        let index = self.list.iter().position(|delivery| delivery.id == *id)?;
        Some(self.remove(index))
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        self.list.iter().filter_map(|delivery| delivery.due).min()
    }

    /// A delivery that is overdue and not to be repeated; call it until it returns none. Other overdue deliveries are
    /// scheduled for a resend, and an edge that needs one receives one object at a time from then on.
    pub(super) fn overdue(&mut self, now: Moment) -> Option<Overdue> {
        let mut index = 0;
        while let Some(delivery) = self.list.get_mut(index) {
            if delivery.due.is_none_or(|due| now < due) {
                index += 1;
            } else if delivery.acks > 0 {
                return Some(Overdue::Unsure(self.remove(index)));
            } else if delivery.copies > RESENDS_MAX {
                return Some(Overdue::Lost(self.remove(index)));
            } else {
                delivery.due = None;
                // Not reported as sent before the copy has a document of its own.
                delivery.number = u64::MAX;
                self.resends.push(delivery.id.clone());
                self.window = 1;
                index += 1;
            }
        }
        None
    }

    /// The next delivery to send again, in the document with this number.
    pub(super) fn resend(&mut self, number: u64) -> Option<&InFlightDelivery> {
        let Self { list, resends, .. } = self;
        let index = loop {
            let id = resends.pop()?;
            if let Some(index) = list.iter().position(|delivery| delivery.id == id) {
                break index;
            }
        };
        let delivery = list.get_mut(index)?;
        delivery.copies = delivery.copies.saturating_add(1);
        delivery.number = number;
        Some(delivery)
    }

    fn remove(&mut self, index: usize) -> InFlightDelivery {
        let delivery = self.list.swap_remove(index);
        self.resends.retain(|id| *id != delivery.id);
        if self.list.is_empty() {
            // Release the memory of a burst.
            self.list = Vec::new();
        }
        delivery
    }
}
