//! The cloud's end of a connection.

mod api;
mod delivery;
mod handshake;
mod requests;
mod send_window;
mod slot;
mod subscription;
mod subscriptions;
mod transmit;

use std::collections::VecDeque;

use bytes::Bytes;

pub use api::{Certainty, CloudConfig, CloudEvent, CloudStats, Lookup, Loss, NodeView};

use crate::frame::{Frame, Goodbye, Reply, features};
use crate::ids::{Lane, Moment, RequestId, StoreId, SubscriptionId};
use crate::limits::{FOLLOWED_MAX, HANDSHAKE_TIMEOUT};
use crate::object::ObjectKey;
use crate::session::liveness::Liveness;
use crate::session::patience::Patience;
use crate::session::room::FollowedCapacity;
use crate::session::words;
use crate::session::{ACK_TIMEOUT, SessionError, UNACKED_MAX};
use requests::Requests;
use send_window::SendWindow;
use subscription::Subscription;
use subscriptions::Begun;
use transmit::Notice;

/// Elements for which an empty queue keeps its memory.
const KEPT_CAPACITY: usize = 4;

/// State of a session.
#[derive(Debug)]
enum CloudSessionPhase {
    /// Nothing was received yet.
    AwaitingHello {
        /// When the wait ends.
        deadline: Moment,
    },
    /// The hello was accepted.
    Open,
    /// A goodbye waits to be sent. All input is ignored.
    Leaving(Goodbye),
    /// Over.
    Closed,
}

/// The cloud's end of one connection of one node. See the [module](crate::session) for how to drive it.
///
/// It has many fields because a frame, an offer or a timeout may change the phase, the windows, the subscriptions and
/// the queues in one step.
#[derive(Debug)]
pub struct CloudSession {
    config: CloudConfig,
    phase: CloudSessionPhase,
    /// The newest moment that a caller passed.
    now: Moment,
    opened_at: Moment,
    features: u64,
    /// The edge's store, when its content hashes were made under the view's trimming rules: otherwise no digest
    /// counts.
    comparable: Option<StoreId>,
    liveness: Liveness,
    patience: Patience,
    subscribes: Begun,
    /// In the order of their ids, which only grow. The pushed set is first once the hello has arrived.
    subscriptions: Vec<Subscription>,
    newest_subscription: SubscriptionId,
    /// Bound on the objects of all subscriptions.
    room: FollowedCapacity<FOLLOWED_MAX>,
    /// Of the delivery and the bulk lane.
    windows: [SendWindow; 2],
    requests: Requests,
    /// The newest lease answer that was not sent yet.
    lease_answer: Option<(i64, u16)>,
    /// How far the history has advanced, as last given by the owner.
    attestation: Bytes,
    /// The attestation was not sent to the edge yet.
    unattested: bool,
    notices: VecDeque<Notice>,
    events: VecDeque<CloudEvent>,
    counters: CloudStats,
}

impl CloudSession {
    /// A session that waits for the hello. `now` is when the connection was accepted.
    #[must_use]
    pub fn new(config: CloudConfig, now: Moment) -> Self {
        let count = config.window_count.clamp(1, UNACKED_MAX);
        let window = |lane| SendWindow::new(lane, count, config.window_bytes);
        Self {
            phase: CloudSessionPhase::AwaitingHello { deadline: now + HANDSHAKE_TIMEOUT },
            now,
            opened_at: now,
            features: 0,
            comparable: None,
            liveness: Liveness::new(now, config.ping_interval, config.idle_timeout),
            patience: Patience::new(now),
            subscribes: Begun::default(),
            subscriptions: Vec::new(),
            newest_subscription: SubscriptionId::NODE,
            room: FollowedCapacity::default(),
            windows: [window(Lane::Delivery), window(Lane::Bulk)],
            requests: Requests::default(),
            lease_answer: None,
            attestation: Bytes::new(),
            unattested: false,
            notices: VecDeque::new(),
            events: VecDeque::new(),
            counters: CloudStats::default(),
            config,
        }
    }

    /// Handles a received frame. Frames after a goodbye are ignored.
    ///
    /// # Errors
    /// [`SessionError`] when the frame ends the session; the goodbye for the edge waits in `poll_transmit`.
    pub fn handle_frame(
        &mut self,
        now: Moment,
        lane: Lane,
        frame: Frame,
        view: &impl NodeView,
    ) -> Result<(), SessionError> {
        self.now = now;
        let outcome = match self.phase {
            CloudSessionPhase::Leaving(_) | CloudSessionPhase::Closed => return Ok(()),
            CloudSessionPhase::AwaitingHello { .. } => self.handle_first(frame, view),
            CloudSessionPhase::Open => self.handle_open(lane, frame, view),
        };
        self.liveness.heard(now);
        outcome.inspect_err(|error| self.leave(error.goodbye()))
    }

    fn handle_open(&mut self, lane: Lane, frame: Frame, view: &impl NodeView) -> Result<(), SessionError> {
        let now = self.now;
        match frame {
            Frame::Ack { lanes } => self.handle_ack(&lanes),
            Frame::Refuse(refusal) => self.handle_refuse(refusal),
            Frame::InventoryPart(part) => self.handle_part(part, view),
            Frame::Request(request) => {
                let event = self.requests.handle(now, request)?.map(CloudEvent::Request);
                self.events.extend(event);
                Ok(())
            }
            Frame::LeaseRenew { renew_time_micros } => {
                self.events.push_back(CloudEvent::LeaseRenew { renew_time_micros });
                Ok(())
            }
            Frame::Subscribe(subscribe) => self.handle_subscribe(subscribe),
            Frame::Unsubscribe { subscription } => self.handle_unsubscribe(subscription),
            Frame::Ping { id } => {
                self.liveness.handle_ping(id);
                Ok(())
            }
            Frame::Pong { id } => match self.liveness.handle_pong(now, id) {
                None => self.patience.ignore(now, "a pong without a ping"),
                Some(time) => {
                    self.events.push_back(CloudEvent::RoundTrip(time));
                    Ok(())
                }
            },
            Frame::Goodbye(goodbye) => {
                self.end(goodbye);
                Ok(())
            }
            Frame::Hello(_) => {
                Err(SessionError::Protocol("a second hello arrived on one connection".to_owned()))
            }
            other => Err(SessionError::Protocol(format!(
                "{} arrived from an edge in lane {lane:?}, but only the cloud sends it",
                words::name(&other)
            ))),
        }
    }

    /// Handles due timers: pings, retries, expired requests, and the end of a session whose peer is silent.
    pub fn handle_timeout(&mut self, now: Moment) {
        self.now = now;
        if let Err(error) = self.check_timers() {
            self.leave(error.goodbye());
        }
    }

    fn check_timers(&mut self) -> Result<(), SessionError> {
        let now = self.now;
        match self.phase {
            CloudSessionPhase::Leaving(_) | CloudSessionPhase::Closed => return Ok(()),
            CloudSessionPhase::AwaitingHello { deadline } if deadline <= now => {
                let seconds = HANDSHAKE_TIMEOUT.as_secs();
                return Err(SessionError::Timeout(format!("no hello arrived within {seconds} s")));
            }
            CloudSessionPhase::AwaitingHello { .. } => return Ok(()),
            CloudSessionPhase::Open => {}
        }
        self.liveness.handle_timeout(now)?;
        self.requests.handle_timeout(now);
        for subscription in &mut self.subscriptions {
            if subscription.comparison_deadline().is_some_and(|deadline| deadline <= now) {
                return Err(SessionError::Timeout(format!(
                    "the inventory of subscription {} was requested but did not arrive",
                    subscription.id.0
                )));
            }
            subscription.handle_timeout(now);
        }
        if self.ack_deadline().is_some_and(|deadline| deadline <= now) {
            let seconds = ACK_TIMEOUT.as_secs();
            return Err(SessionError::Timeout(format!("no delivery was acknowledged for {seconds} s")));
        }
        Ok(())
    }

    /// Requests a sign of life from the edge: a ping is sent with the next timeout, which is due now.
    pub fn ask(&mut self, now: Moment) {
        self.liveness.ask(now);
    }

    /// Latest time to call [`Self::handle_timeout`]; none when the session is over.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Moment> {
        match self.phase {
            CloudSessionPhase::Leaving(_) | CloudSessionPhase::Closed => None,
            CloudSessionPhase::AwaitingHello { deadline } => Some(deadline),
            CloudSessionPhase::Open => {
                let subscriptions = self.subscriptions.iter();
                let subscriptions = subscriptions
                    .flat_map(|subscription| [subscription.deadline(), subscription.comparison_deadline()]);
                let others = [Some(self.liveness.deadline()), self.requests.deadline(), self.ack_deadline()];
                subscriptions.chain(others).flatten().min()
            }
        }
    }

    fn ack_deadline(&self) -> Option<Moment> {
        self.windows.iter().filter_map(SendWindow::waiting_since).min().map(|since| since + ACK_TIMEOUT)
    }

    /// Marks a key dirty: its state is looked up when there is room to send it. Ten offers become one delivery. Offers
    /// for a subscription that is not open, or not compared yet, are ignored, and nothing is lost. A subscription that
    /// makes the node follow more than [`FOLLOWED_MAX`] objects is ended; deleted objects no longer count as followed.
    pub fn offer(&mut self, subscription: SubscriptionId, key: ObjectKey, view: &impl NodeView) {
        let Some(open) = self.subscription_mut(subscription) else { return };
        let before = open.slots.len();
        open.offer(key, view);
        if subscription == SubscriptionId::NODE || open.slots.len() == before {
            return;
        }
        let keys = self.keys();
        if self.room.grown(keys) && !self.has_room(None, view) {
            self.end_overfull(subscription);
        }
    }

    /// Whether the edge still waits for the answer to this request. Other requests can be dropped; an owner that
    /// queues requests must do so, because the session bounds only those that wait.
    #[must_use]
    pub fn awaits_reply(&self, id: RequestId) -> bool {
        self.requests.awaits_reply(id)
    }

    /// Answers a request. A late, repeated or unexpected answer is dropped.
    pub fn reply(&mut self, reply: Reply) {
        self.requests.reply(reply);
    }

    /// Answers the newest lease renewal; an older answer that was not sent yet is replaced.
    pub fn lease_renewed(&mut self, renew_time_micros: i64, code: u16) {
        if self.lease_answer.is_none_or(|(older, _)| older <= renew_time_micros) {
            self.lease_answer = Some((renew_time_micros, code));
        }
    }

    /// Informs the edge how far the cloud's history has advanced, in at most [`crate::limits::ATTESTATION_LEN_MAX`]
    /// bytes. The same attestation is not sent twice, and an edge that cannot keep one receives none.
    pub fn attest(&mut self, proof: &Bytes) {
        if self.features & features::ATTESTATION != 0 && self.attestation != *proof {
            self.attestation = proof.clone();
            self.unattested = true;
        }
    }

    /// Bytes that this edge makes the session keep: answers that it has not read, what it claims to hold, and what it
    /// follows.
    #[must_use]
    pub fn memory(&self) -> usize {
        let kept = self.requests.memory().saturating_add(self.notices.iter().map(Notice::memory).sum());
        self.subscriptions.iter().map(Subscription::memory).fold(kept, usize::saturating_add)
    }

    /// Bytes of the answers that wait for the link.
    #[must_use]
    pub fn unread(&self) -> usize {
        self.requests.unread()
    }

    /// Ends the session; unsent frames are dropped.
    pub fn say_goodbye(&mut self, goodbye: Goodbye) {
        self.leave(goodbye);
    }

    /// The next event for the owner.
    pub fn poll_event(&mut self) -> Option<CloudEvent> {
        let event = self.events.pop_front();
        if self.events.is_empty() && self.events.capacity() > KEPT_CAPACITY {
            self.events = VecDeque::new();
        }
        event
    }

    /// Whether the session has no more output: close the link.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, CloudSessionPhase::Closed)
    }

    /// What both sides can do, see [`crate::frame::features`]; 0 before the hello.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.features
    }

    /// What the session has done and holds. Counts the keys: call it for metrics and tests, not for every frame.
    #[must_use]
    pub fn stats(&self) -> CloudStats {
        CloudStats {
            in_flight: self.windows.iter().map(SendWindow::len).sum(),
            dirty: self.subscriptions.iter().map(Subscription::dirty).sum(),
            parked: self.subscriptions.iter().map(Subscription::parked).sum(),
            held: self.subscriptions.iter().map(Subscription::held).sum(),
            requests: self.requests.len(),
            subscriptions: self.subscriptions.len().saturating_sub(1),
            ..self.counters
        }
    }

    fn subscription_mut(&mut self, id: SubscriptionId) -> Option<&mut Subscription> {
        let index = self.subscription_index(id)?;
        self.subscriptions.get_mut(index)
    }

    fn subscription_index(&self, id: SubscriptionId) -> Option<usize> {
        self.subscriptions.binary_search_by_key(&id, |subscription| subscription.id).ok()
    }

    fn leave(&mut self, goodbye: Goodbye) {
        if !matches!(self.phase, CloudSessionPhase::Leaving(_) | CloudSessionPhase::Closed) {
            self.end(goodbye.clone());
            self.phase = CloudSessionPhase::Leaving(goodbye);
        }
    }

    /// The session is over: all its state is dropped, events of what happened before are kept.
    fn end(&mut self, goodbye: Goodbye) {
        self.phase = CloudSessionPhase::Closed;
        self.subscriptions = Vec::new();
        self.notices = VecDeque::new();
        self.requests = Requests::default();
        self.events.push_back(CloudEvent::Closed(goodbye));
    }
}
