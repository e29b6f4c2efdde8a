//! Requests of the edge, from their arrival until their answer is sent.

use std::collections::VecDeque;
use std::sync::Arc;

use super::object_replies::RepliedObject;
use crate::frame::{Reply, ReplyBody, Request, RequestBody};
use crate::ids::{Moment, RequestId};
use crate::kubeedge::encode_head;
use crate::limits::{FRAME_LEN_MAX, OBJECT_LEN_MAX, REQUESTS_MAX};
use crate::message::{Content, Message, StatusError};
use crate::object::SharedObject;
use crate::session::kubeedge::message_ids::MessageIds;
use crate::session::kubeedge::shape::Fitted;
use crate::session::kubeedge::up::registers_node;
use crate::session::kubeedge::{ANSWER_WITHIN, APPLICATION_ANSWER_WITHIN, Shape};

/// Room that a reply needs besides its content.
const REPLY_OVERHEAD: usize = 64 * 1024;

/// Bytes that a request takes besides its text.
const WAITING_OVERHEAD: usize = 512;

#[derive(Debug)]
struct UnansweredMessage {
    id: RequestId,
    /// The request; without its content unless the answer repeats it.
    asked: Message,
    /// Bytes of its header and route.
    head: usize,
    shape: Shape,
    deadline: Moment,
    answer: Option<PendingAnswer>,
}

/// An answer that waits for the link.
#[derive(Debug)]
pub(super) struct PendingAnswer {
    pub(super) message: Message,
    /// The content of the message, when it is the body that deliveries share.
    pub(super) shared: Option<Arc<SharedObject>>,
    /// The object in the answer, when the edge stores it.
    pub(super) object: Option<RepliedObject>,
    /// The answer ends the registration of the node: the edge will not report again that it may have lost everything.
    pub(super) registers: bool,
}

/// Result of receiving a request.
#[derive(Debug)]
pub(super) enum ReceivedRequest {
    /// The owner must answer it.
    New(Request),
    /// There are too many: this is the answer, if one is expected.
    Refused(Option<Message>),
    /// The same request is already waiting.
    Repeated,
}

/// Requests that wait for their answer, or whose answer waits for the link. At most [`REQUESTS_MAX`].
#[derive(Debug, Default)]
pub(super) struct Requests {
    newest: u64,
    waiting: VecDeque<UnansweredMessage>,
}

impl UnansweredMessage {
    fn unread(&self) -> usize {
        self.answer.as_ref().map_or(0, |answer| answer.message.content.as_json().len())
    }

    /// Header and route exist twice once the answer does.
    fn memory(&self) -> usize {
        let asked = self.head.saturating_mul(2).saturating_add(self.asked.content.as_json().len());
        WAITING_OVERHEAD.saturating_add(asked).saturating_add(self.unread())
    }
}

impl Requests {
    /// Bytes of the answers that wait for the link. Bodies that deliveries share do not count.
    pub(super) fn unread(&self) -> usize {
        self.waiting.iter().map(UnansweredMessage::unread).sum()
    }

    /// Bytes of the answers and the requests.
    pub(super) fn memory(&self) -> usize {
        self.waiting.iter().map(UnansweredMessage::memory).fold(0, usize::saturating_add)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn handle(&mut self, now: Moment, message: Message, ids: &mut MessageIds) -> ReceivedRequest {
        if self.waiting.iter().any(|waiting| waiting.asked.header.id == message.header.id) {
            return ReceivedRequest::Repeated;
        }
        let shape = Shape::of(&message);
        if self.waiting.len() >= REQUESTS_MAX {
            let text = format!("this node already has {REQUESTS_MAX} pending requests: retry later");
            let error = StatusError::new(429, "TooManyRequests", &text);
            let refusal = shape.refuse(&message, &error, ids, now);
            return ReceivedRequest::Refused(refusal.map(|fitted| fitted.message));
        }
        let repeats_content = matches!(shape, Shape::Application | Shape::WatchSync);
        let timeout = if repeats_content { APPLICATION_ANSWER_WITHIN } else { ANSWER_WITHIN };
        let asked = if repeats_content { message.clone() } else { without_content(&message) };
        let head = encode_head(&asked).len();
        self.newest += 1;
        let id = RequestId(self.newest);
        self.waiting.push_back(UnansweredMessage {
            id,
            asked,
            head,
            shape,
            deadline: now + timeout,
            answer: None,
        });
        ReceivedRequest::New(Request {
            id,
            timeout,
            body: RequestBody::Message(Box::new(message)),
            caller_token: None,
        })
    }

    pub(super) fn awaits_reply(&self, id: RequestId) -> bool {
        self.waiting.iter().any(|waiting| waiting.id == id && waiting.answer.is_none())
    }

    /// Takes an answer. An answer to an answered, expired or unknown request is dropped.
    pub(super) fn reply(&mut self, reply: Reply, ids: &mut MessageIds, now: Moment) {
        let open = |waiting: &UnansweredMessage| waiting.id == reply.id && waiting.answer.is_none();
        let Some(index) = self.waiting.iter().position(open) else { return };
        let waiting = &self.waiting[index];
        let (shape, asked) = (waiting.shape, &waiting.asked);
        let fitted = match reply.body {
            ReplyBody::Message(message)
                if message.content.as_json().len() <= FRAME_LEN_MAX - REPLY_OVERHEAD =>
            {
                shape.fit(asked, *message, ids, now)
            }
            ReplyBody::Message(_) => {
                let error =
                    StatusError::new(500, "InternalError", "the answer is larger than a frame may be");
                shape.refuse(asked, &error, ids, now)
            }
            ReplyBody::Api(reply) => {
                let text = String::from_utf8_lossy(&reply.body);
                shape.refuse(asked, &StatusError::new(reply.code, "", &text), ids, now)
            }
        };
        self.answered(index, fitted);
    }

    fn answered(&mut self, index: usize, fitted: Option<Fitted>) {
        let Some(fitted) = fitted else {
            self.waiting.remove(index);
            return;
        };
        if let Some(waiting) = self.waiting.get_mut(index) {
            let object = RepliedObject::of(&waiting.asked, &fitted);
            let registers = registers_node(&waiting.asked);
            waiting.answer = Some(PendingAnswer { message: fitted.message, shared: None, object, registers });
        }
    }

    /// Answers a request for an object with the body that deliveries share. False when the request has another form,
    /// or the body has no position for its version; then use [`Self::reply`].
    pub(super) fn reply_object(
        &mut self,
        id: RequestId,
        object: &Arc<SharedObject>,
        ids: &mut MessageIds,
        now: Moment,
    ) -> bool {
        let open = |waiting: &&mut UnansweredMessage| waiting.id == id && waiting.answer.is_none();
        let Some(waiting) = self.waiting.iter_mut().find(open) else { return true };
        if waiting.shape != Shape::Object
            || object.body.len() > OBJECT_LEN_MAX
            || !object.has_revision_place()
        {
            return false;
        }
        let asked = &waiting.asked;
        let resource = asked.route.resource.clone();
        let message = asked.controller_reply(ids.id(), ids.millis(now), resource, Content::null());
        let message = message.with_resource_version(&object.version.revision.to_string());
        let replied = RepliedObject::of_shared(asked, object);
        let shared = Some(Arc::clone(object));
        waiting.answer = Some(PendingAnswer { message, shared, object: replied, registers: false });
        true
    }

    /// The oldest answer that may be sent.
    pub(super) fn poll(
        &mut self,
        mut may_leave: impl FnMut(&PendingAnswer) -> bool,
    ) -> Option<PendingAnswer> {
        let ready = |waiting: &UnansweredMessage| waiting.answer.as_ref().is_some_and(&mut may_leave);
        let index = self.waiting.iter().position(ready)?;
        let answer = self.waiting.remove(index)?.answer;
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        answer
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        self.waiting.iter().map(|waiting| waiting.deadline).min()
    }

    /// Every request gets an answer while the edge waits for it; an answer that was not sent in time is dropped.
    pub(super) fn handle_timeout(&mut self, now: Moment, ids: &mut MessageIds) {
        self.waiting.retain(|waiting| waiting.deadline > now || waiting.answer.is_none());
        for index in (0..self.waiting.len()).rev() {
            let waiting = &mut self.waiting[index];
            if waiting.deadline > now {
                continue;
            }
            let error = StatusError::new(504, "Timeout", "the cloud received no answer in time: retry");
            let refusal = waiting.shape.refuse(&waiting.asked, &error, ids, now);
            waiting.deadline = now + ANSWER_GRACE;
            self.answered(index, refusal);
        }
    }
}

/// A request whose answer does not repeat it: a large report must not stay in memory until it is answered.
fn without_content(message: &Message) -> Message {
    Message { header: message.header.clone(), route: message.route.clone(), content: Content::null() }
}

/// Time in which an answer to an expired request must be sent: the edge waits a little longer than this side.
const ANSWER_GRACE: std::time::Duration = std::time::Duration::from_secs(1);
