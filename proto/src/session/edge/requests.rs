//! Requests of this edge, until their answer or their deadline.

use std::collections::VecDeque;
use std::time::Duration;

use crate::codec;
use crate::frame::{Request, RequestBody};
use crate::ids::{Lane, Moment, RequestId};
use crate::limits::{BULK_OBJECT_MIN, FRAME_LEN_MAX, REQUEST_TIMEOUT_MAX, REQUESTS_MAX};
use crate::session::edge::RequestError;

/// Room that a request's frame needs besides body and token.
const REQUEST_OVERHEAD: usize = 64 * 1024;

#[derive(Debug)]
struct OutstandingRequest {
    id: RequestId,
    deadline: Moment,
    /// The request, until it is sent.
    unsent: Option<(Lane, Request)>,
}

/// Requests that wait for the link or for their answer.
#[derive(Debug, Default)]
pub(super) struct Requests {
    newest: u64,
    waiting: VecDeque<OutstandingRequest>,
}

impl Requests {
    pub(super) fn ask(
        &mut self,
        now: Moment,
        timeout: Duration,
        body: RequestBody,
        caller_token: Option<String>,
    ) -> Result<RequestId, RequestError> {
        if self.waiting.len() >= REQUESTS_MAX {
            return Err(RequestError::Busy);
        }
        let len = body_len(&body).saturating_add(caller_token.as_ref().map_or(0, String::len));
        if len > FRAME_LEN_MAX - REQUEST_OVERHEAD {
            return Err(RequestError::TooLarge(len));
        }
        let id = RequestId(self.newest.saturating_add(1));
        let timeout = timeout.min(REQUEST_TIMEOUT_MAX);
        let lane = if len >= BULK_OBJECT_MIN { Lane::Bulk } else { Lane::Control };
        let request = Request { id, timeout, body, caller_token };
        codec::check_request(&request).map_err(|error| RequestError::Invalid(error.to_string()))?;
        self.newest = id.0;
        self.waiting.push_back(OutstandingRequest {
            id,
            deadline: now + timeout,
            unsent: Some((lane, request)),
        });
        Ok(id)
    }

    /// The next request for a lane, with its remaining time.
    pub(super) fn poll(&mut self, now: Moment, lane: Lane) -> Option<Request> {
        let ready = |waiting: &&mut OutstandingRequest| {
            waiting.deadline > now && matches!(waiting.unsent, Some((wanted, _)) if wanted == lane)
        };
        let waiting = self.waiting.iter_mut().find(ready)?;
        let (_, mut request) = waiting.unsent.take()?;
        request.timeout = waiting.deadline.since(now);
        Some(request)
    }

    /// Whether this answer is still awaited; the request is removed.
    pub(super) fn answered(&mut self, id: RequestId) -> bool {
        let sent = |waiting: &OutstandingRequest| waiting.id == id && waiting.unsent.is_none();
        self.waiting.iter().position(sent).and_then(|index| self.waiting.remove(index)).is_some()
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        self.waiting.iter().map(|waiting| waiting.deadline).min()
    }

    /// Removes one expired request; call until it returns none.
    pub(super) fn expire(&mut self, now: Moment) -> Option<RequestId> {
        let index = self.waiting.iter().position(|waiting| waiting.deadline <= now)?;
        self.waiting.remove(index).map(|waiting| waiting.id)
    }
}

fn body_len(body: &RequestBody) -> usize {
    match body {
        RequestBody::Api(request) => request.body.len().saturating_add(request.path_and_query.len()),
        RequestBody::Message(message) => message.content.as_json().len(),
    }
}
