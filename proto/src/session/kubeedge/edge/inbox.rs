//! Deliveries from their arrival until their acknowledgement, and repeats of both.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::Seq;
use crate::message::{Content, Message, MessageId};
use crate::session::{SessionError, UNACKED_MAX};

/// Acknowledged ids that are remembered: repeats of them are acknowledged again and not delivered.
const REMEMBERED_MAX: usize = 256;

/// Result of receiving a delivery.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A new one.
    New(Seq),
    /// A copy of one that is not stored yet.
    Waits,
    /// A copy of one that is stored.
    Done,
}

/// One delivery that is not settled.
#[derive(Debug)]
pub(super) struct Delivery {
    /// The message without its content, for its acknowledgement.
    pub(super) message: Message,
    /// Number of copies received: each one is acknowledged.
    pub(super) copies: u8,
}

/// The receiving end of the single stream.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    received: u64,
    open: BTreeMap<u64, Delivery>,
    by_id: BTreeMap<MessageId, u64>,
    done: VecDeque<MessageId>,
}

impl Inbox {
    pub(super) fn receive(&mut self, message: &Message) -> Result<Arrival, SessionError> {
        let id = &message.header.id;
        if let Some(delivery) = self.by_id.get(id).and_then(|seq| self.open.get_mut(seq)) {
            delivery.copies = delivery.copies.saturating_add(1);
            return Ok(Arrival::Waits);
        }
        if self.done.contains(id) {
            return Ok(Arrival::Done);
        }
        if self.open.len() >= UNACKED_MAX {
            let text =
                format!("more than {UNACKED_MAX} deliveries arrived without waiting for an acknowledgement");
            return Err(SessionError::Protocol(text));
        }
        self.received += 1;
        self.by_id.insert(id.clone(), self.received);
        let message = Message { content: Content::null(), ..message.clone() };
        self.open.insert(self.received, Delivery { message, copies: 1 });
        Ok(Arrival::New(Seq(self.received)))
    }

    /// Everything up to `seq` is stored.
    pub(super) fn committed(&mut self, seq: Seq) -> Vec<Delivery> {
        let later = self.open.split_off(&seq.0.saturating_add(1));
        let stored: Vec<_> = std::mem::replace(&mut self.open, later).into_values().collect();
        for delivery in &stored {
            self.by_id.remove(&delivery.message.header.id);
            if self.done.len() >= REMEMBERED_MAX {
                self.done.pop_front();
            }
            self.done.push_back(delivery.message.header.id.clone());
        }
        stored
    }

    /// One delivery is not stored: a later copy of it is tried again.
    pub(super) fn refused(&mut self, seq: Seq) -> Option<Delivery> {
        let delivery = self.open.remove(&seq.0)?;
        self.by_id.remove(&delivery.message.header.id);
        Some(delivery)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Group, Operation, ResourcePath, Route, Source};

    fn message(id: &str) -> Message {
        let resource = ResourcePath::parse_wire("default/configmap/a").expect("a path");
        let route = Route::new(Source::EdgeController, Group::Resource, Operation::Update, resource);
        Message::new(MessageId::parse(id).expect(id), 1, route, Content::ok())
    }

    fn receive(inbox: &mut Inbox, id: &str) -> Arrival {
        inbox.receive(&message(id)).expect("few")
    }

    #[test]
    fn copies_are_delivered_once_and_each_is_acknowledged() {
        let mut inbox = Inbox::default();
        assert_eq!(receive(&mut inbox, "a"), Arrival::New(Seq(1)));
        assert_eq!(receive(&mut inbox, "b"), Arrival::New(Seq(2)));
        assert_eq!(receive(&mut inbox, "a"), Arrival::Waits);
        let copies: Vec<u8> = inbox.committed(Seq(1)).iter().map(|delivery| delivery.copies).collect();
        assert_eq!(copies, [2]);
        assert_eq!(receive(&mut inbox, "a"), Arrival::Done);
        assert!(inbox.committed(Seq(1)).is_empty());
    }

    #[test]
    fn refused_delivery_may_be_repeated() {
        let mut inbox = Inbox::default();
        receive(&mut inbox, "a");
        assert!(inbox.refused(Seq(1)).is_some() && inbox.refused(Seq(1)).is_none());
        assert_eq!(receive(&mut inbox, "a"), Arrival::New(Seq(2)));
        assert_eq!(inbox.committed(Seq(9)).len(), 1);
    }

    #[test]
    fn a_cloud_without_a_window_is_stopped_and_old_ids_are_forgotten() {
        let mut inbox = Inbox::default();
        for number in 0..UNACKED_MAX {
            receive(&mut inbox, &format!("m{number}"));
        }
        assert!(inbox.receive(&message("one more")).is_err());
        inbox.committed(Seq(UNACKED_MAX as u64));
        assert_eq!(inbox.done.len(), REMEMBERED_MAX);
        assert_eq!(receive(&mut inbox, "m0"), Arrival::New(Seq(UNACKED_MAX as u64 + 1)));
    }
}
