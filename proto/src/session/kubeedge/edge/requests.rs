//! Requests of this edge, until their answer is stored or they expire.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::{Moment, RequestId};
use crate::limits::{FRAME_LEN_MAX, REQUEST_TIMEOUT_MAX, REQUESTS_MAX};
use crate::message::{Content, Message, MessageId, Operation, Source};
use crate::session::RequestError;
use crate::session::kubeedge::Down;

/// Room that a request needs besides its content.
const REQUEST_OVERHEAD: usize = 64 * 1024;

#[derive(Debug)]
struct CoalescedRequest {
    /// The requesters, each with its deadline. Never empty.
    askers: Vec<(RequestId, Moment)>,
    message: Message,
    sent: bool,
}

/// Result of an answer.
#[derive(Debug, Default)]
pub(super) struct Answered {
    pub(super) askers: Vec<RequestId>,
    /// Nothing stores the answer, and the cloud waits for the acknowledgement.
    pub(super) acknowledge_at_once: bool,
}

/// Requests that wait for the link or their answer, and answers that wait for the store. At most [`REQUESTS_MAX`]
/// each.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    newest: u64,
    waiting: VecDeque<CoalescedRequest>,
    /// Answers whose acknowledgement waits for the store, by the first requester.
    owed: VecDeque<(RequestId, Message)>,
}

impl PendingRequests {
    pub(super) fn ask(
        &mut self,
        now: Moment,
        timeout: Duration,
        message: Message,
    ) -> Result<RequestId, RequestError> {
        if self.waiting.iter().map(|waiting| waiting.askers.len()).sum::<usize>() >= REQUESTS_MAX {
            return Err(RequestError::Busy);
        }
        let len = message.content.as_json().len();
        if len > FRAME_LEN_MAX - REQUEST_OVERHEAD {
            return Err(RequestError::TooLarge(len));
        }
        self.newest += 1;
        let id = RequestId(self.newest);
        let asker = (id, now + timeout.min(REQUEST_TIMEOUT_MAX));
        let shared = self.waiting.iter_mut().find(|waiting| is_same_query(&waiting.message, &message));
        match shared {
            Some(waiting) => waiting.askers.push(asker),
            None => self.waiting.push_back(CoalescedRequest { askers: vec![asker], message, sent: false }),
        }
        Ok(id)
    }

    /// The next request to send.
    pub(super) fn poll(&mut self, now: Moment) -> Option<Message> {
        let ready = |waiting: &&mut CoalescedRequest| {
            !waiting.sent && waiting.askers.iter().any(|(_, end)| *end > now)
        };
        let waiting = self.waiting.iter_mut().find(ready)?;
        waiting.sent = true;
        let asked = Message { content: Content::null(), ..waiting.message.clone() };
        Some(std::mem::replace(&mut waiting.message, asked))
    }

    /// Takes an answer.
    pub(super) fn answered(&mut self, parent: &MessageId, answer: &Message) -> Answered {
        let sent = |waiting: &CoalescedRequest| waiting.sent && waiting.message.header.id == *parent;
        let wanted = self.waiting.iter().position(sent).and_then(|index| self.waiting.remove(index));
        let Some(waiting) = wanted else {
            return Answered { askers: Vec::new(), acknowledge_at_once: Down::wants_acknowledgement(answer) };
        };
        let askers: Vec<_> = waiting.askers.into_iter().map(|(id, _)| id).collect();
        let mut acknowledge_at_once = false;
        if is_acknowledged(&waiting.message, answer)
            && let Some(first) = askers.first()
        {
            if self.owed.len() < REQUESTS_MAX {
                self.owed.push_back((*first, Message { content: Content::null(), ..answer.clone() }));
            } else {
                // Answers that are never reported as stored must not block the cloud forever.
                acknowledge_at_once = true;
            }
        }
        Answered { askers, acknowledge_at_once }
    }

    /// The answer of a request is stored: returns the message to acknowledge, once.
    pub(super) fn stored(&mut self, id: RequestId) -> Option<Message> {
        let index = self.owed.iter().position(|(first, _)| *first == id)?;
        self.owed.remove(index).map(|(_, answer)| answer)
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        self.waiting.iter().flat_map(|waiting| &waiting.askers).map(|(_, end)| *end).min()
    }

    /// One expired requester; call it until it returns none.
    pub(super) fn expire(&mut self, now: Moment) -> Option<RequestId> {
        for index in 0..self.waiting.len() {
            let askers = &mut self.waiting[index].askers;
            if let Some(over) = askers.iter().position(|(_, end)| *end <= now) {
                let (id, _) = askers.remove(over);
                if askers.is_empty() {
                    self.waiting.remove(index);
                }
                return Some(id);
            }
        }
        None
    }
}

/// Queries with content are never equal: token requests are never shared.
fn is_same_query(one: &Message, other: &Message) -> bool {
    one.route.operation == Operation::Query
        && one.route == other.route
        && other.content.is_null()
        && one.content.is_null()
}

/// A KubeEdge edge acknowledges answers to its queries, inserts and updates, but not to patches, deletions,
/// MetaServer's requests (docs/reference/kubeedge.md#store-operations) and messages of DeviceTwin, which handles its
/// confirmations itself.
fn is_acknowledged(asked: &Message, answer: &Message) -> bool {
    matches!(asked.route.operation, Operation::Query | Operation::Insert | Operation::Update)
        && !matches!(asked.route.source, Source::MetaServer | Source::Twin)
        && answer.route.operation == Operation::Response
}
