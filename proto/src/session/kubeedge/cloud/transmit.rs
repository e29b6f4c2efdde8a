//! Outgoing documents and timers.

use super::CloudSession;
use super::delivery::document;
use super::object_replies::RepliedObject;
use super::recorder::{Recorder, Standing};
use super::requests::PendingAnswer;
use crate::ids::{Moment, SubscriptionId};
use crate::message::{Content, Operation};
use crate::session::kubeedge::{LedgerFull, Outgoing};
use crate::session::{Lookup, NodeView, SessionError};

/// Replies without a pushed object whose acknowledgements are still recognised.
const PLAIN_REPLIES_MAX: usize = 64;

impl CloudSession {
    /// The next document, if there is one to send: answers first, then resends, then objects.
    pub fn poll_transmit(&mut self, now: Moment, view: &impl NodeView) -> Option<Outgoing> {
        self.now = now;
        if self.closed {
            return None;
        }
        let outgoing = self.poll_notice().or_else(|| self.poll_reply(view));
        let outgoing = outgoing.or_else(|| self.poll_resend()).or_else(|| self.poll_delivery(view))?;
        self.progress.gave(now, outgoing.number, outgoing.len());
        Some(outgoing)
    }

    fn poll_notice(&mut self) -> Option<Outgoing> {
        let documents = &mut self.documents;
        self.notices.pop(|| {
            *documents += 1;
            *documents
        })
    }

    fn poll_reply(&mut self, view: &impl NodeView) -> Option<Outgoing> {
        let (recorder, object_replies) = (&mut self.recorder, &self.object_replies);
        let answer = self.requests.poll(|answer| {
            let object = answer.object.as_ref();
            (!answer.registers || recorder.is_sure())
                && object
                    .is_none_or(|object| object_replies.has_room() && is_recorded(recorder, object, view))
        })?;
        let PendingAnswer { mut message, mut shared, object, .. } = answer;
        let number = self.next_document();
        if let Some(object) = object {
            if let Err(full) = named(&mut self.recorder, &object, view) {
                message.route.operation = Operation::Error;
                message.content = Content::text(&full.to_string());
                shared = None;
            } else {
                let crossed = self.in_flight.of(&object.key);
                let crossed =
                    crossed.is_some_and(|delivery| delivery.step.revision() != Some(object.revision));
                let slot = self.key_table.slot(&object.key);
                slot.holds = slot.holds.saturating_add(u16::from(object.acknowledged));
                self.object_replies.push(message.header.id.clone(), object, number, crossed);
            }
        } else {
            if self.plain_replies.len() >= PLAIN_REPLIES_MAX {
                self.plain_replies.pop_front();
            }
            self.plain_replies.push_back(message.header.id.clone());
        }
        Some(match shared {
            Some(object) => Outgoing::object(number, &message, &object),
            None => Outgoing::message(number, &message),
        })
    }

    fn poll_resend(&mut self) -> Option<Outgoing> {
        let number = self.documents + 1;
        let delivery = self.in_flight.resend(number)?;
        self.documents = number;
        self.counters.resent += 1;
        Some(document(number, delivery, &self.key_table, &self.recorder))
    }

    pub(super) fn next_document(&mut self) -> u64 {
        self.documents += 1;
        self.documents
    }

    /// Handles due timers: resends, back-offs, answers to expired requests, and the end of a session whose edge is
    /// silent.
    pub fn handle_timeout(&mut self, now: Moment) {
        self.now = now;
        if self.closed {
            return;
        }
        let silence = now.since(self.last_heard);
        if silence >= self.config.silence {
            let text = format!("nothing was received from the edge for {} s", silence.as_secs());
            return self.fail(&SessionError::Timeout(text));
        }
        if self.progress.deadline(self.config.silence).is_some_and(|due| due <= now) {
            let text = format!("the edge has accepted no data for {} s", self.config.silence.as_secs());
            return self.fail(&SessionError::Timeout(text));
        }
        while let Some(overdue) = self.in_flight.overdue(now) {
            self.delivery_overdue(overdue);
        }
        while let Some(settled) = self.object_replies.expire(now) {
            self.settle_reply(settled);
        }
        self.handle_late_acks();
        self.key_table.handle_timeout(now);
        self.requests.handle_timeout(now, &mut self.ids);
    }

    /// Latest time to call [`Self::handle_timeout`] and to poll again; none when the session is over.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Moment> {
        if self.closed {
            return None;
        }
        let deadlines = [
            Some(self.last_heard + self.config.silence),
            self.progress.deadline(self.config.silence),
            self.in_flight.deadline(),
            self.object_replies.deadline(),
            self.late_acks.front().map(|(due, _)| *due),
            self.key_table.deadline(),
            self.requests.deadline(),
            self.recorder.deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }
}

/// Whether the ledger covers the effect of this reply on the edge's store. A full ledger does not hold replies up:
/// they become refusals.
fn is_recorded(recorder: &mut Recorder, object: &RepliedObject, view: &impl NodeView) -> bool {
    let named = named(recorder, object, view);
    let covered = recorder.forget_newer(&object.key, object.revision);
    named != Ok(Standing::Waiting) && covered == Standing::Stored
}

/// Makes the ledger name the object that a reply carries.
fn named(
    recorder: &mut Recorder,
    object: &RepliedObject,
    view: &impl NodeView,
) -> Result<Standing, LedgerFull> {
    let known = recorder.ledger().get(&object.key).is_some();
    let needed = known || !matches!(view.lookup(SubscriptionId::NODE, &object.key), Lookup::Unwanted(_));
    recorder.want_reply(&object.key, &object.kind, &object.uid, needed)
}
