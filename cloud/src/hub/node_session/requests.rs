//! The requests of one node, and the memory that the requests and their answers take.

use std::sync::Arc;

use tokio::time::Instant;
use tombolo_proto::frame::{Goodbye, GoodbyeReason, Reply, ReplyBody, Request, RequestBody};
use tombolo_proto::limits::REQUESTS_MAX;

use super::super::FULL_RETRY;
use super::super::channel::Channel;
use super::super::metaserver::MetaServer;
use super::{Done, NodeSession};
use crate::edgecontroller::upstream::refusal;
use crate::kube::{LARGE_ANSWER, Room};

/// Concurrent requests of one node; the others wait in the session's bounded queue.
const RUNNING_MAX: usize = 16;

/// Unread bytes of answers from which on no further request of the node is started.
const UNREAD_MAX: usize = 1024 * 1024;

/// Bytes that a request takes in addition to its texts.
const REQUEST_OVERHEAD: usize = 512;

impl NodeSession {
    /// Accounts for the session's memory in the node's share, and starts requests that had to wait until answers were
    /// sent.
    pub(super) fn settle_memory(&mut self) {
        let (memory, unread) = (self.channel.memory().saturating_add(self.texts), self.channel.unread());
        let queued = self.channel.queued_answers();
        if !self.kept.set(memory.saturating_add(queued)) && !self.kept.set(memory) {
            let more = memory.saturating_sub(self.kept.bytes());
            self.hub.metrics.budget_refusals.count("session", &self.handle.memory.all, more);
            let message = "this hub has no memory left for the session of this node".to_owned();
            let (reason, retry_after) = (GoodbyeReason::Overloaded, FULL_RETRY);
            self.channel.say_goodbye(Goodbye { reason, message, retry_after });
        }
        if self.large_turn.is_some() && unread < LARGE_ANSWER {
            self.large_turn = None;
        }
        self.start_requests();
    }

    /// Requests that can be answered from memory are answered here and sent with the next pump; all others run as work
    /// of their own.
    pub(super) fn take_request(&mut self, request: Request) {
        match &request.body {
            RequestBody::Message(_) => self.hub.metrics.message_requests.inc(),
            RequestBody::Api(_) => self.hub.metrics.api_requests.inc(),
        };
        if MetaServer::concerns(&request)
            && let Some(metaserver) = self.channel.metaserver()
        {
            metaserver.take(request, Instant::now());
            return self.take_actions();
        }
        let held = self.hub.upstream.held_in_memory(&self.node, &request);
        if !held.is_some_and(|object| self.channel.reply_object(&request, &object)) {
            self.queue(request);
        }
    }

    /// Queues a request. The session bounds the requests that wait for an answer, but not those that the edge has given
    /// up; those are dropped first.
    fn queue(&mut self, request: Request) {
        if self.waiting.len() >= REQUESTS_MAX {
            let session = &self.channel;
            self.waiting.retain(|(waiting, _)| session.awaits_reply(waiting.request().id));
        }
        let (share, size) = (&self.handle.memory.requests, size_of_request(&request));
        match share.take(size) {
            Some(held) => {
                self.waiting.push_back((self.hub.upstream.receive(&self.node, request), held));
                self.start_requests();
            }
            None => {
                self.hub.metrics.budget_refusals.count("request", share, size);
                let text = "the requests of this node use all memory that they may take: try again later";
                let body = ReplyBody::Api(refusal(429, "TooManyRequests", text));
                self.channel.reply(Reply { id: request.id, body });
            }
        }
    }

    pub(super) fn start_requests(&mut self) {
        while self.running < RUNNING_MAX && self.channel.unread() < UNREAD_MAX {
            let Some((request, held)) = self.waiting.pop_front() else { break };
            if !self.channel.awaits_reply(request.request().id) {
                continue;
            }
            self.running += 1;
            let (hub, node) = (Arc::clone(&self.hub), self.node.clone());
            let kubeedge = matches!(self.channel, Channel::KubeEdge(_));
            let (memory, refusals) = (&self.handle.memory, &self.hub.metrics.budget_refusals);
            let room = Room::new(&memory.all, &memory.large, refusals);
            self.work.push(Box::pin(async move {
                let answer = async {
                    match kubeedge {
                        true => hub.upstream.answer_kubeedge(&node, request).await,
                        false => hub.upstream.answer(&node, request).await,
                    }
                };
                let answered = room.clone().scope(answer).await;
                drop(held);
                Done::Reply(answered, room)
            }));
        }
    }
}

/// Memory of a request, including its texts.
fn size_of_request(request: &Request) -> usize {
    let body = match &request.body {
        RequestBody::Message(message) => message.content.as_json().len(),
        RequestBody::Api(api) => api.body.len().saturating_add(api.path_and_query.len()),
    };
    let token = request.caller_token.as_ref().map_or(0, String::len);
    REQUEST_OVERHEAD.saturating_add(body).saturating_add(token)
}
