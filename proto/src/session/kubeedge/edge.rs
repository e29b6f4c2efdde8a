//! The edge's end of a connection with a cloud that speaks dialect `kubeedge`.

mod inbox;
mod requests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::down::{Broken, Down};
use super::known::Kinds;
use super::message_ids::MessageIds;
use super::up::is_cloud_module;
use super::{KEEPALIVE_INTERVAL, Outgoing};
use crate::frame::{Goodbye, Refusal, Reply, ReplyBody};
use crate::ids::{Lane, Moment, NodeId, RequestId, Seq, SubscriptionId};
use crate::kubeedge;
use crate::limits::IDLE_TIMEOUT;
use crate::message::{Content, Group, Message, MessageId, Operation, ResourcePath, Route, Source};
use crate::session::patience::Patience;
use crate::session::{EdgeEvent, RequestError, SessionError};
use inbox::{Arrival, Inbox};
use requests::{Answered, PendingRequests};

/// Configuration of an edge session.
#[derive(Debug, Clone)]
pub struct EdgeConfig {
    /// The node in the client certificate.
    pub node: NodeId,
    /// Wall clock at the `now` of `EdgeSession::new`, milliseconds since the Unix epoch.
    pub unix_millis: u64,
    /// Random bytes, drawn for this session alone: the ids of its messages are derived from them.
    pub seed: [u8; 16],
    /// Interval of keepalives; KubeEdge clouds close after 30 s without one.
    pub keepalive: Duration,
}

impl EdgeConfig {
    /// The configuration with KubeEdge's intervals (docs/reference/kubeedge.md#keepalive).
    #[must_use]
    pub fn new(node: NodeId, unix_millis: u64, seed: [u8; 16]) -> Self {
        Self { node, unix_millis, seed, keepalive: KEEPALIVE_INTERVAL }
    }
}

/// The edge's end of one connection. See the [module](super) for how to drive it.
///
/// Events are the same as in dialect `tombolo`: deliveries arrive in lane [`Lane::Delivery`] and subscription
/// [`SubscriptionId::NODE`], with positions of this session, and need `committed` or `refused`. There is no welcome, no
/// inventory and no caught-up mark.
///
/// It has many fields because the dialect has separate rules for message ids, keepalives, silence, unanswered requests
/// and unknown kinds, and each needs its own state.
#[derive(Debug)]
pub struct EdgeSession {
    config: EdgeConfig,
    closed: bool,
    ids: MessageIds,
    patience: Patience,
    last_heard: Moment,
    /// A request went unanswered since anything was received: silence counts from here on.
    worried: bool,
    keepalive_at: Moment,
    inbox: Inbox,
    requests: PendingRequests,
    /// Acknowledgements, failures and other small answers.
    notices: VecDeque<Message>,
    documents: u64,
    events: VecDeque<EdgeEvent>,
    kinds: Arc<Kinds>,
    /// A delivery arrived whose kind is not known.
    met_unknown_kind: bool,
}

impl EdgeSession {
    /// A session of a connection that was made at `now`; its first document is a keepalive.
    #[must_use]
    pub fn new(config: EdgeConfig, now: Moment) -> Self {
        Self {
            closed: false,
            ids: MessageIds::new(config.seed, now, config.unix_millis),
            patience: Patience::new(now),
            last_heard: now,
            worried: false,
            keepalive_at: now,
            inbox: Inbox::default(),
            requests: PendingRequests::default(),
            notices: VecDeque::new(),
            documents: 0,
            events: VecDeque::new(),
            kinds: Arc::default(),
            met_unknown_kind: false,
            config,
        }
    }

    /// Sets the kinds of the cluster's discovery. Until then the session knows the kinds that are built into
    /// Kubernetes.
    pub fn learn(&mut self, kinds: Arc<Kinds>) {
        self.kinds = kinds;
    }

    /// The kinds that the session knows.
    #[must_use]
    pub fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// Whether a delivery was refused since the last call because its kind is unknown: newer discovery may have it.
    pub fn take_unknown_kind(&mut self) -> bool {
        std::mem::take(&mut self.met_unknown_kind)
    }

    /// Handles a received document. A document that is not a message is ignored.
    ///
    /// # Errors
    /// [`SessionError`] when the cloud sends too many useless messages, or respects no window.
    pub fn handle_document(&mut self, now: Moment, document: &Bytes) -> Result<(), SessionError> {
        if self.closed {
            return Ok(());
        }
        self.last_heard = now;
        self.worried = false;
        let outcome = match kubeedge::decode(document) {
            Ok(message) => self.handle_message(now, message),
            Err(error) => self.patience.ignore(now, &error.to_string()),
        };
        outcome.inspect_err(|error| self.end(error.goodbye()))
    }

    fn handle_message(&mut self, now: Moment, message: Message) -> Result<(), SessionError> {
        match Down::of(&self.kinds, message) {
            Down::Control(message) => {
                let answer = message.reply(self.ids.id(), self.ids.millis(now), Content::text("ack"));
                self.notices.push_back(answer);
            }
            Down::Reply(parent, message) => self.handle_reply(now, &parent, &message),
            Down::Deliver(message, change) => match self.inbox.receive(&message)? {
                Arrival::New(seq) => {
                    let (lane, subscription) = (Lane::Delivery, SubscriptionId::NODE);
                    self.events.push_back(EdgeEvent::Deliver { lane, seq, subscription, change });
                }
                Arrival::Waits => {}
                Arrival::Done => self.acknowledge(now, &message),
            },
            Down::Broken(message, why) => {
                self.met_unknown_kind |= matches!(why, Broken::UnknownKind(_));
                let sentence = format!("the delivery cannot be stored: {why}");
                self.notices.push_back(message.error_reply(self.ids.id(), self.ids.millis(now), &sentence));
            }
            Down::Other(message) if Down::wants_acknowledgement(&message) => self.acknowledge(now, &message),
            Down::Other(_) => {}
        }
        if self.notices.len() > NOTICES_MAX {
            let text = format!("{NOTICES_MAX} answers are queued, and the cloud does not read them");
            return Err(SessionError::Overloaded(text));
        }
        Ok(())
    }

    fn acknowledge(&mut self, now: Moment, message: &Message) {
        self.notices.push_back(message.ack(self.ids.id(), self.ids.millis(now)));
    }

    fn handle_reply(&mut self, now: Moment, parent: &MessageId, message: &Message) {
        let Answered { askers, acknowledge_at_once } = self.requests.answered(parent, message);
        for id in askers {
            let body = ReplyBody::Message(Box::new(message.clone()));
            self.events.push_back(EdgeEvent::Reply(Reply { id, body }));
        }
        // A late reply must not delay the messages that a KubeEdge cloud sends after it.
        if acknowledge_at_once {
            self.acknowledge(now, message);
        }
    }

    /// Handles due timers: keepalives, expired requests, and the end of a session whose cloud answers nothing.
    pub fn handle_timeout(&mut self, now: Moment) {
        if self.closed {
            return;
        }
        while let Some(id) = self.requests.expire(now) {
            self.worried = true;
            self.events.push_back(EdgeEvent::RequestTimedOut(id));
        }
        // KubeEdge clouds send nothing unprompted, so silence alone proves nothing.
        let silence = now.since(self.last_heard);
        if self.worried && silence >= IDLE_TIMEOUT {
            let text = format!("the cloud has sent no answer for {} s", silence.as_secs());
            self.end(SessionError::Timeout(text).goodbye());
        }
    }

    /// Latest time to call [`Self::handle_timeout`] and to poll again; none when the session is over.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Moment> {
        if self.closed {
            return None;
        }
        let silent = self.worried.then(|| self.last_heard + IDLE_TIMEOUT);
        [Some(self.keepalive_at), self.requests.deadline(), silent].into_iter().flatten().min()
    }

    /// Everything that was delivered up to `seq` is on the disk, or was refused, or is older than what the store
    /// holds.
    pub fn committed(&mut self, now: Moment, seq: Seq) {
        for delivery in self.inbox.committed(seq) {
            for _ in 0..delivery.copies {
                self.acknowledge(now, &delivery.message);
            }
        }
    }

    /// One delivery cannot be stored. A KubeEdge cloud repeats it, and holds everything else back for 25 s.
    pub fn refused(&mut self, now: Moment, refusal: &Refusal) {
        if let Some(delivery) = self.inbox.refused(refusal.seq) {
            let (id, millis) = (self.ids.id(), self.ids.millis(now));
            let mut error = delivery.message.error_reply(id, millis, &refusal.message);
            // In a KubeEdge edge this comes from the part that stores objects
            // (docs/reference/kubeedge.md#store-operations).
            error.route.source = Source::MetaManager;
            self.notices.push_back(error);
        }
    }

    /// Sends a request to the cloud; the message gets an id, a time and, if its source is a module of the cloud,
    /// another source. The result is [`EdgeEvent::Reply`], after which [`Self::reply_stored`] must be called, or
    /// [`EdgeEvent::RequestTimedOut`]. Only one of several equal queries is sent, because a KubeEdge cloud answers only
    /// the last one (docs/reference/kubeedge.md#equal-queries).
    ///
    /// # Errors
    /// [`RequestError`] when the request is not accepted.
    pub fn request(
        &mut self,
        now: Moment,
        timeout: Duration,
        mut message: Message,
    ) -> Result<RequestId, RequestError> {
        if self.closed {
            return Err(RequestError::Closed);
        }
        if is_cloud_module(&message.route.source) {
            message.route.source = Source::Edged;
        }
        message.header.id = self.ids.id();
        message.header.timestamp_millis = self.ids.millis(now);
        self.requests.ask(now, timeout, message)
    }

    /// Sends a message that gets no answer, for example an event.
    ///
    /// # Errors
    /// [`RequestError`] when it is not accepted.
    pub fn report(&mut self, now: Moment, mut message: Message) -> Result<(), RequestError> {
        if self.closed {
            return Err(RequestError::Closed);
        }
        if self.notices.len() >= NOTICES_MAX {
            return Err(RequestError::Busy);
        }
        message.header.id = self.ids.id();
        message.header.timestamp_millis = self.ids.millis(now);
        self.notices.push_back(message);
        Ok(())
    }

    /// The object in the answer to a request is on the disk, or there was nothing to store: this is acknowledged to a
    /// KubeEdge cloud, which then continues.
    pub fn reply_stored(&mut self, now: Moment, id: RequestId) {
        if let Some(reply) = self.requests.stored(id) {
            self.acknowledge(now, &reply);
        }
    }

    /// The next document, if there is one to send.
    pub fn poll_transmit(&mut self, now: Moment) -> Option<Outgoing> {
        if self.closed {
            return None;
        }
        let message = if self.keepalive_at <= now {
            self.keepalive_at = now + self.config.keepalive;
            Some(self.keepalive(now))
        } else {
            self.notices.pop_front().or_else(|| self.requests.poll(now))
        }?;
        self.documents += 1;
        Some(Outgoing::message(self.documents, &message))
    }

    fn keepalive(&mut self, now: Moment) -> Message {
        let resource = ResourcePath::Keepalive;
        let route = Route::new(Source::WebSocket, Group::Resource, Operation::Keepalive, resource);
        Message::new(self.ids.id(), self.ids.millis(now), route, Content::ping())
    }

    /// Ends the session. The cloud receives no message: the connection closes.
    pub fn say_goodbye(&mut self, goodbye: Goodbye) {
        self.end(goodbye);
    }

    /// The next event for the owner.
    pub fn poll_event(&mut self) -> Option<EdgeEvent> {
        self.events.pop_front()
    }

    /// Whether the session has no more output: close the link.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    fn end(&mut self, goodbye: Goodbye) {
        if !self.closed {
            self.closed = true;
            self.requests = PendingRequests::default();
            self.notices = VecDeque::new();
            self.events.push_back(EdgeEvent::Closed(goodbye));
        }
    }
}

/// Most small messages that may wait for the link: acknowledgements of every delivery under way, and some more.
const NOTICES_MAX: usize = 2 * crate::session::UNACKED_MAX;
