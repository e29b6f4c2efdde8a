//! The edge's end of a connection.

mod api;
mod inbox;
mod receive;
mod requests;
mod subscriptions;

use std::collections::VecDeque;
use std::time::Duration;

pub use api::{EdgeConfig, EdgeEvent, EdgeView, RequestError, SubscribeError};

use crate::frame::{Frame, Goodbye, Hello, Refusal, RequestBody, Subscribe};
use crate::ids::{Lane, Moment, RequestId, Seq, SubscriptionId};
use crate::limits::{HANDSHAKE_TIMEOUT, IDLE_TIMEOUT, PING_INTERVAL};
use crate::session::error::clip;
use crate::session::inventory::summarise;
use crate::session::liveness::Liveness;
use crate::session::patience::Patience;
use crate::session::{ProtocolVersion, SessionError};
use inbox::Inbox;
use requests::Requests;
use subscriptions::Subscriptions;

/// State of a session.
#[derive(Debug)]
enum Phase {
    /// The hello waits to be sent.
    Greeting(Box<Hello>),
    /// The hello was sent.
    AwaitingWelcome,
    /// The welcome arrived.
    Open,
    /// A goodbye waits to be sent. All input is ignored.
    Leaving(Goodbye),
    /// Over.
    Closed,
}

/// The edge's end of one connection. See the [module](crate::session) for how to drive it.
///
/// Deliveries carry positions of this session only. The owner must not mix sessions: before it makes a new one, it
/// finishes or gives up the store writes that the old one handed out, so that the inventory is complete and no late
/// write overwrites a newer version.
///
/// It has many fields because a frame or a timeout may change the phase, the inboxes, the requests and the
/// subscriptions in one step.
#[derive(Debug)]
pub struct EdgeSession {
    config: EdgeConfig,
    phase: Phase,
    handshake_deadline: Moment,
    features: u64,
    liveness: Liveness,
    patience: Patience,
    /// One for the delivery and one for the bulk lane.
    inboxes: [Inbox; 2],
    /// Deliveries that overtook the welcome in their own lane.
    early: VecDeque<(Lane, Frame)>,
    early_bytes: usize,
    refusals: VecDeque<Refusal>,
    requests: Requests,
    subscriptions: Subscriptions,
    /// The newest lease renewal that was not sent yet.
    lease: Option<i64>,
    greeted_at: Moment,
    events: VecDeque<EdgeEvent>,
}

impl EdgeSession {
    /// A session whose hello waits to be sent. `view` gives the contents of the pushed set.
    #[must_use]
    pub fn new(config: EdgeConfig, now: Moment, view: &impl EdgeView) -> Self {
        let hello = Hello {
            versions: ProtocolVersion::range(),
            node: config.node.clone(),
            store: config.store,
            epoch: config.epoch.clone(),
            trim_version: config.trim_version,
            features: config.features,
            inventory: summarise(config.store, view.inventory(SubscriptionId::NODE)),
            agent: config.agent.clone(),
            instance: config.instance,
            attestation: config.attestation.clone(),
        };
        Self {
            phase: Phase::Greeting(Box::new(hello)),
            handshake_deadline: now + HANDSHAKE_TIMEOUT,
            features: 0,
            liveness: Liveness::new(now, PING_INTERVAL, IDLE_TIMEOUT),
            patience: Patience::new(now),
            inboxes: [Inbox::new(Lane::Delivery), Inbox::new(Lane::Bulk)],
            early: VecDeque::new(),
            early_bytes: 0,
            refusals: VecDeque::new(),
            requests: Requests::default(),
            subscriptions: Subscriptions::new(config.store),
            lease: None,
            greeted_at: now,
            events: VecDeque::new(),
            config,
        }
    }

    /// Handles a received frame. Frames after a goodbye are ignored. `view` is used when the cloud requests a whole
    /// inventory.
    ///
    /// # Errors
    /// [`SessionError`] when the frame ends the session; the goodbye for the cloud waits in `poll_transmit`.
    pub fn handle_frame(
        &mut self,
        now: Moment,
        lane: Lane,
        frame: Frame,
        view: &impl EdgeView,
    ) -> Result<(), SessionError> {
        let outcome = match self.phase {
            Phase::Leaving(_) | Phase::Closed => return Ok(()),
            Phase::Greeting(_) | Phase::AwaitingWelcome => self.handle_first(now, lane, frame),
            Phase::Open => self.handle_open(now, lane, frame, view),
        };
        self.liveness.heard(now);
        outcome.inspect_err(|error| self.leave(error.goodbye()))
    }

    /// Handles due timers: pings, expired requests, and the end of a session whose peer is silent.
    pub fn handle_timeout(&mut self, now: Moment) {
        if !self.is_leaving() {
            while let Some(id) = self.requests.expire(now) {
                self.events.push_back(EdgeEvent::RequestTimedOut(id));
            }
        }
        let outcome = match self.phase {
            Phase::Leaving(_) | Phase::Closed => Ok(()),
            Phase::Greeting(_) | Phase::AwaitingWelcome if now >= self.handshake_deadline => {
                let seconds = HANDSHAKE_TIMEOUT.as_secs();
                Err(SessionError::Timeout(format!("no welcome arrived within {seconds} s")))
            }
            Phase::Greeting(_) | Phase::AwaitingWelcome => Ok(()),
            Phase::Open => self.liveness.handle_timeout(now),
        };
        if let Err(error) = outcome {
            self.leave(error.goodbye());
        }
    }

    /// Latest time to call [`Self::handle_timeout`]; none when the session is over.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Moment> {
        let alive = match self.phase {
            Phase::Leaving(_) | Phase::Closed => return None,
            Phase::Greeting(_) | Phase::AwaitingWelcome => self.handshake_deadline,
            Phase::Open => self.liveness.deadline(),
        };
        Some(self.requests.deadline().map_or(alive, |request| request.min(alive)))
    }

    /// Everything that was delivered in `lane` up to `seq` is on the disk, or was refused.
    pub fn committed(&mut self, lane: Lane, seq: Seq) {
        if let Some(inbox) = self.inbox_mut(lane) {
            inbox.committed(seq);
        }
    }

    /// One delivery cannot be stored. The cloud offers it again later, or a newer version of it at once.
    pub fn refused(&mut self, mut refusal: Refusal) {
        if self.is_leaving() {
            return;
        }
        let finished = self.inbox_mut(refusal.lane).is_some_and(|inbox| inbox.finish(refusal.seq));
        if finished {
            refusal.message = clip(refusal.message);
            self.refusals.push_back(refusal);
        }
    }

    /// Sends a request to the cloud. The result is [`EdgeEvent::Reply`] or [`EdgeEvent::RequestTimedOut`]; when the
    /// session ends first, there is neither. Timeouts above [`crate::limits::REQUEST_TIMEOUT_MAX`] are shortened to
    /// it.
    ///
    /// # Errors
    /// [`RequestError`] when the request is not accepted.
    pub fn request(
        &mut self,
        now: Moment,
        timeout: Duration,
        body: RequestBody,
        caller_token: Option<String>,
    ) -> Result<RequestId, RequestError> {
        if self.is_leaving() {
            return Err(RequestError::Closed);
        }
        self.requests.ask(now, timeout, body, caller_token)
    }

    /// Renews the node's lease; replaces an older renewal that was not sent yet. The time is `spec.renewTime` in
    /// microseconds since the Unix epoch.
    pub fn renew_lease(&mut self, renew_time_micros: i64) {
        self.lease = self.lease.max(Some(renew_time_micros));
    }

    /// The id for the next subscription.
    #[must_use]
    pub fn next_subscription(&self) -> SubscriptionId {
        self.subscriptions.next()
    }

    /// Follows a resource under a subscription id that was not used in this session, see [`Self::next_subscription`].
    /// The view must be able to give the inventory of this subscription from now on.
    ///
    /// # Errors
    /// [`SubscribeError`] when the subscription is not accepted.
    pub fn subscribe(&mut self, subscribe: Subscribe) -> Result<(), SubscribeError> {
        if self.is_leaving() {
            return Err(SubscribeError::Closed);
        }
        self.subscriptions.subscribe(subscribe)
    }

    /// Ends a subscription. Deliveries under way are dropped; those handed out before must still be committed or
    /// refused.
    pub fn unsubscribe(&mut self, subscription: SubscriptionId) {
        self.subscriptions.unsubscribe(subscription);
    }

    /// Ends the session; unsent frames are dropped.
    pub fn say_goodbye(&mut self, goodbye: Goodbye) {
        self.leave(goodbye);
    }

    /// The next frame for a lane, if there is one to send.
    pub fn poll_transmit(&mut self, now: Moment, lane: Lane) -> Option<Frame> {
        let frame = match &self.phase {
            Phase::AwaitingWelcome | Phase::Closed => None,
            Phase::Greeting(_) | Phase::Leaving(_) if lane != Lane::Control => None,
            Phase::Greeting(hello) => {
                let hello = Hello::clone(hello);
                self.phase = Phase::AwaitingWelcome;
                self.greeted_at = now;
                Some(Frame::Hello(hello))
            }
            Phase::Leaving(goodbye) => {
                let goodbye = goodbye.clone();
                self.phase = Phase::Closed;
                Some(Frame::Goodbye(goodbye))
            }
            Phase::Open => match lane {
                Lane::Control => self.poll_control(now),
                Lane::Delivery => self.subscriptions.poll_outgoing(),
                Lane::Bulk => self.poll_bulk(now),
            },
        };
        if frame.is_some() {
            self.liveness.sent(now);
        }
        frame
    }

    /// Leases first, requests last, because there may be many of them. A refusal is sent before the acknowledgement
    /// that passes it.
    fn poll_control(&mut self, now: Moment) -> Option<Frame> {
        if let Some(renew_time_micros) = self.lease.take() {
            return Some(Frame::LeaseRenew { renew_time_micros });
        }
        if let Some(frame) = self.liveness.poll(now) {
            return Some(frame);
        }
        if let Some(refusal) = self.refusals.pop_front() {
            return Some(Frame::Refuse(refusal));
        }
        let lanes: Vec<_> = self.inboxes.iter_mut().filter_map(Inbox::poll_ack).collect();
        if !lanes.is_empty() {
            return Some(Frame::Ack { lanes });
        }
        self.requests.poll(now, Lane::Control).map(Frame::Request)
    }

    fn poll_bulk(&mut self, now: Moment) -> Option<Frame> {
        let request = self.requests.poll(now, Lane::Bulk).map(Frame::Request);
        request.or_else(|| self.subscriptions.poll_upload().map(Frame::InventoryPart))
    }

    /// The next event for the owner.
    pub fn poll_event(&mut self) -> Option<EdgeEvent> {
        self.events.pop_front()
    }

    /// Whether the session has no more output: close the link.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// What both sides can do, see [`crate::frame::features`]; 0 before the welcome.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.features
    }

    fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving(_) | Phase::Closed)
    }

    fn inbox_mut(&mut self, lane: Lane) -> Option<&mut Inbox> {
        match lane {
            Lane::Control => None,
            Lane::Delivery => self.inboxes.first_mut(),
            Lane::Bulk => self.inboxes.last_mut(),
        }
    }

    fn leave(&mut self, goodbye: Goodbye) {
        if !self.is_leaving() {
            self.end(goodbye.clone());
            self.phase = Phase::Leaving(goodbye);
        }
    }

    /// The session is over: pending work is dropped, events of what happened before are kept.
    fn end(&mut self, goodbye: Goodbye) {
        self.phase = Phase::Closed;
        self.early = VecDeque::new();
        self.refusals = VecDeque::new();
        self.requests = Requests::default();
        self.subscriptions = Subscriptions::new(self.config.store);
        self.events.push_back(EdgeEvent::Closed(goodbye));
    }
}
