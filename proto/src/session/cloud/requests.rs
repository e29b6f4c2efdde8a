//! Requests of the edge, from their arrival until their answer is sent.

use std::collections::VecDeque;

use crate::frame::{ApiReply, Reply, ReplyBody, Request};
use crate::ids::{Lane, Moment, RequestId};
use crate::limits::{BULK_OBJECT_MIN, FRAME_LEN_MAX, REQUEST_TIMEOUT_MAX, REQUESTS_MAX};
use crate::message::StatusError;
use crate::session::SessionError;

/// Most refusals that may wait for a peer that sends too many requests. One more ends the session: the peer does not
/// read.
const REJECTED_MAX: usize = 64;

/// Room that a reply's frame needs besides the body.
const REPLY_OVERHEAD: usize = 64 * 1024;

#[derive(Debug)]
struct UnansweredRequest {
    id: RequestId,
    deadline: Moment,
    /// The answer, once it is known; kept here until it is sent, so that unread answers count as waiting requests.
    answer: Option<(Lane, ReplyBody)>,
}

/// Requests that wait for their answer, or whose answer waits for the link.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Oldest first. A list is smaller and faster than a map, because there are few.
    waiting: VecDeque<UnansweredRequest>,
    rejected: VecDeque<RequestId>,
    /// Bytes of the answers that were not sent yet.
    unread: usize,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes a request; none when there are too many, in which case the edge receives a refusal.
    ///
    /// # Errors
    /// [`SessionError::Protocol`] for the id of a request that already waits, [`SessionError::Overloaded`] when the
    /// edge continues to send requests and does not read the refusals.
    pub(super) fn handle(
        &mut self,
        now: Moment,
        mut request: Request,
    ) -> Result<Option<Request>, SessionError> {
        if self.waiting.iter().any(|waiting| waiting.id == request.id) {
            let id = request.id.0;
            return Err(SessionError::Protocol(format!(
                "request {id} arrived twice, and the first one is still pending"
            )));
        }
        if self.waiting.len() >= REQUESTS_MAX {
            if self.rejected.len() >= REJECTED_MAX {
                return Err(SessionError::Overloaded(format!(
                    "more than {REQUESTS_MAX} requests are pending, and the node does not read their refusals"
                )));
            }
            self.rejected.push_back(request.id);
            return Ok(None);
        }
        request.timeout = request.timeout.min(REQUEST_TIMEOUT_MAX);
        let deadline = now + request.timeout;
        self.waiting.push_back(UnansweredRequest { id: request.id, deadline, answer: None });
        Ok(Some(request))
    }

    pub(super) fn awaits_reply(&self, id: RequestId) -> bool {
        self.waiting.iter().any(|waiting| waiting.id == id && waiting.answer.is_none())
    }

    /// Takes an answer. An answer to an answered, expired or unknown request is dropped.
    pub(super) fn reply(&mut self, reply: Reply) {
        let open = self.waiting.iter_mut().find(|waiting| waiting.id == reply.id && waiting.answer.is_none());
        let Some(waiting) = open else { return };
        let len = body_len(&reply.body);
        waiting.answer = Some(if len > FRAME_LEN_MAX - REPLY_OVERHEAD {
            let text =
                format!("the answer has {len} bytes, more than a frame may carry: request less at a time");
            (Lane::Control, failure(500, "InternalError", &text))
        } else if len >= BULK_OBJECT_MIN {
            (Lane::Bulk, reply.body)
        } else {
            (Lane::Control, reply.body)
        });
        let held = waiting.answer.as_ref().map_or(0, |(_, body)| body_len(body));
        self.unread = self.unread.saturating_add(held);
    }

    /// The next answer for a lane.
    pub(super) fn poll(&mut self, lane: Lane) -> Option<Reply> {
        if lane == Lane::Control
            && let Some(id) = self.rejected.pop_front()
        {
            let text = format!("this node already has {REQUESTS_MAX} pending requests: retry later");
            return Some(Reply { id, body: failure(429, "TooManyRequests", &text) });
        }
        let ready =
            |waiting: &UnansweredRequest| matches!(waiting.answer, Some((wanted, _)) if wanted == lane);
        let index = self.waiting.iter().position(ready)?;
        let UnansweredRequest { id, answer, .. } = self.waiting.remove(index)?;
        if self.waiting.is_empty() {
            // Release the memory of a burst.
            self.waiting = VecDeque::new();
        }
        let (_, body) = answer?;
        self.unread = self.unread.saturating_sub(body_len(&body));
        Some(Reply { id, body })
    }

    /// Bytes of the unsent answers and of the request records.
    pub(super) fn memory(&self) -> usize {
        self.unread.saturating_add(self.waiting.capacity().saturating_mul(size_of::<UnansweredRequest>()))
    }

    /// Bytes of the answers that wait for the link.
    pub(super) fn unread(&self) -> usize {
        self.unread
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        self.waiting.iter().map(|waiting| waiting.deadline).min()
    }

    /// Removes the requests that the edge no longer waits for, and their answers.
    pub(super) fn handle_timeout(&mut self, now: Moment) {
        let unread = &mut self.unread;
        self.waiting.retain(|waiting| {
            let keep = waiting.deadline > now;
            if let (false, Some((_, body))) = (keep, &waiting.answer) {
                *unread = unread.saturating_sub(body_len(body));
            }
            keep
        });
    }
}

fn body_len(body: &ReplyBody) -> usize {
    match body {
        ReplyBody::Api(reply) => reply.body.len(),
        ReplyBody::Message(message) => message.content.as_json().len(),
    }
}

/// A Kubernetes `Status`, in the form of an API server's own refusals.
fn failure(code: u16, reason: &str, message: &str) -> ReplyBody {
    ReplyBody::Api(ApiReply::refusal(&StatusError::new(code, reason, message)))
}
