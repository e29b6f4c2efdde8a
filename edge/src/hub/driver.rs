//! Drives one session and its link: receives and sends frames, and passes deliveries to the store.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tombolo_link::{Clock, Link, LinkEvent, pump};
use tombolo_proto::frame::{Goodbye, ReplyBody};
use tombolo_proto::ids::{RequestId, SubscriptionId};
use tombolo_proto::object::InventoryEntry;
use tombolo_proto::session::{EdgeConfig, EdgeEvent, EdgeSession, EdgeView};
use tombolo_runtime::Drain;
use tombolo_runtime::time::sleep_until;
use tracing::{info, warn};

use super::apply::{Applier, ApplyOutcome, Closed, Work};
use super::client_parts::ClientParts;
use super::failure::SessionFailure;
use super::follow::Follower;
use super::session_end::{Achieved, Ended, draining};
use super::{CallError, Command};
use crate::store::{ReadError, Store, Welcome};

/// Time to send the last frames of a session that this side ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Difference of clocks from which a warning is logged.
const SKEW_MIN: Duration = Duration::from_secs(5 * 60);

/// One session and its link.
pub(super) struct Driver {
    link: Link,
    session: EdgeSession,
    clock: Clock,
    store: Store,
    applier: Applier,
    follower: Follower,
    waiting: HashMap<RequestId, super::Asker>,
    welcomed: bool,
    achieved: Achieved,
    goodbye: Option<Goodbye>,
}

impl Driver {
    pub(super) fn start(parts: &ClientParts, link: Link) -> Result<Self, SessionFailure> {
        let follower = Follower::new(Arc::clone(&parts.registry));
        let view = StoreView { store: &parts.store, follower: &follower, failed: Cell::new(None) };
        let standing = parts.store.standing()?;
        let mut config = EdgeConfig::new(parts.node.clone(), standing.store);
        config.epoch = standing.epoch;
        config.trim_version = standing.trim_version;
        config.attestation = standing.attestation;
        config.instance = parts.instance;
        let clock = Clock::start();
        let session = EdgeSession::new(config, clock.now(), &view);
        view.check()?;
        Ok(Self {
            link,
            session,
            clock,
            store: parts.store.clone(),
            applier: Applier::new(parts.store.clone()),
            follower,
            waiting: HashMap::new(),
            welcomed: false,
            achieved: Achieved::begin(),
            goodbye: None,
        })
    }

    /// Runs until the session or the link ends; returns why.
    pub(super) async fn run(&mut self, parts: &mut ClientParts, drain: &Drain) -> Result<(), SessionFailure> {
        let mut leaving = false;
        let mut news = parts.registry.news();
        let mut compared = false;
        loop {
            self.take_events(parts);
            if !compared && self.applier.is_idle() {
                compared = true;
                self.follower.compare(&mut self.session, &self.store)?;
            }
            let (session, clock) = (&mut self.session, self.clock);
            pump(&mut self.link, |lane| session.poll_transmit(clock.now(), lane))?;
            if self.session.is_closed() {
                return Ok(());
            }
            let timeout = self.session.next_timeout().map(|moment| self.clock.instant(moment));
            tokio::select! {
                event = self.link.next() => self.handle(event)?,
                () = sleep_until(timeout) => self.session.handle_timeout(self.clock.now()),
                outcome = self.applier.applied() => self.finish_applying(outcome?),
                Ok(()) = news.changed() => compared = false,
                Some(command) = parts.commands.recv() => self.command(command),
                Ok(()) = parts.identity.changed(), if !leaving => {
                    leaving = true;
                    self.session.say_goodbye(draining("the node's certificate was renewed"));
                }
                () = drain.started(), if !leaving => {
                    leaving = true;
                    self.session.say_goodbye(draining("edgecore stops"));
                }
            }
        }
    }

    fn handle(&mut self, event: LinkEvent) -> Result<(), SessionFailure> {
        match event {
            LinkEvent::Frame(lane, frame) => {
                let view =
                    StoreView { store: &self.store, follower: &self.follower, failed: Cell::new(None) };
                if let Err(error) = self.session.handle_frame(self.clock.now(), lane, frame, &view) {
                    warn!(%error, "the cloud broke the protocol");
                }
                Ok(view.check()?)
            }
            LinkEvent::Writable => Ok(()),
            LinkEvent::Closed(error) => {
                if let Some(goodbye) = error.goodbye() {
                    warn!(%error, "the cloud broke the protocol");
                    self.session.say_goodbye(goodbye);
                }
                Err(error.into())
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::RenewLease(micros) => self.session.renew_lease(micros),
            Command::Request { body, timeout, caller_token, reply } => {
                match self.session.request(self.clock.now(), timeout, body, caller_token) {
                    Ok(id) => {
                        self.waiting.insert(id, reply);
                    }
                    Err(error) => {
                        reply.send(Err(CallError::Refused(error.to_string())));
                    }
                }
            }
        }
    }

    fn take_events(&mut self, parts: &ClientParts) {
        while let Some(event) = self.session.poll_event() {
            match event {
                EdgeEvent::Welcomed { epoch, resumed, trim_version, unix_millis } => {
                    self.welcome(parts, unix_millis);
                    self.applier.push(Work::Welcome(Welcome { epoch, resumed, trim_version }));
                }
                EdgeEvent::Deliver { lane, seq, subscription, change } => {
                    parts.metrics.deliveries.inc();
                    let subscription = self.follower.subscription(subscription);
                    self.applier.push(Work::Deliver { lane, seq, subscription, change });
                }
                EdgeEvent::CaughtUp { subscription, epoch, revision } => {
                    if let Some(subscription) = self.follower.subscription(subscription) {
                        self.applier.push(Work::CaughtUp { subscription, epoch, revision });
                    }
                }
                EdgeEvent::Attested(attestation) => self.store.attest(attestation),
                EdgeEvent::Reply(reply) => self.answer(reply.id, Ok(reply.body)),
                EdgeEvent::RequestTimedOut(id) => self.answer(id, Err(CallError::TimedOut)),
                EdgeEvent::LeaseRenewed { renew_time_micros, code } => {
                    parts.state.send_modify(|state| state.lease = Some((renew_time_micros, code)));
                }
                EdgeEvent::RoundTrip(time) => parts.state.send_modify(|state| state.round_trip = Some(time)),
                EdgeEvent::SubscriptionClosed { subscription, code, reason } => {
                    if let Some(subscription) = self.follower.closed(subscription) {
                        self.applier.push(Work::Closed(Closed { subscription, code, reason }));
                    }
                }
                EdgeEvent::Closed(goodbye) => self.goodbye = Some(goodbye),
            }
        }
    }

    fn welcome(&mut self, parts: &ClientParts, unix_millis: u64) {
        self.welcomed = true;
        let transport = Some(self.link.peer().transport);
        info!(?transport, "connected to the cloud");
        let cloud = UNIX_EPOCH + Duration::from_millis(unix_millis);
        let now = SystemTime::now();
        let skew = now.duration_since(cloud).unwrap_or_else(|error| error.duration());
        if skew > SKEW_MIN {
            warn!(
                minutes = skew.as_secs() / 60,
                "this node's clock differs from the cloud's: set it, or certificates and leases will fail"
            );
        }
        parts.connected(transport);
    }

    fn answer(&mut self, id: RequestId, answer: Result<ReplyBody, CallError>) {
        if let Some(reply) = self.waiting.remove(&id) {
            // The caller may have given up.
            reply.send(answer);
        }
    }

    fn finish_applying(&mut self, outcome: ApplyOutcome) {
        self.achieved.note(outcome.stored);
        for refusal in outcome.refused {
            self.session.refused(refusal);
        }
        for (lane, seq) in outcome.committed {
            self.session.committed(lane, seq);
        }
        if outcome.welcomed {
            self.follower.begin();
        }
        for subscription in outcome.caught_up {
            self.follower.caught_up(subscription);
        }
        for closed in outcome.closed {
            self.follower.refused(closed);
        }
    }

    /// Waits for the store, fails pending requests, sends the last frames and closes the link.
    pub(super) async fn finish(mut self, result: Result<(), SessionFailure>) -> Ended {
        // The registry must not forget a subscription while deliveries are written to it.
        self.applier.settle().await;
        self.follower.end();
        for (_, reply) in self.waiting.drain() {
            reply.send(Err(CallError::Lost));
        }
        let (session, clock) = (&mut self.session, self.clock);
        // If the link takes no more frames, the original reason for the end is still reported.
        let _ = pump(&mut self.link, |lane| session.poll_transmit(clock.now(), lane));
        self.link.close(CLOSE_TIMEOUT).await;
        let last = std::iter::from_fn(|| self.session.poll_event());
        Ended::of(self.goodbye, last, result, self.welcomed, self.achieved)
    }
}

/// The store as the session sees it. An inventory that cannot be read must end the session, because an empty one would
/// tell the cloud that the edge holds nothing.
struct StoreView<'a> {
    store: &'a Store,
    follower: &'a Follower,
    failed: Cell<Option<ReadError>>,
}

impl StoreView<'_> {
    fn check(&self) -> Result<(), ReadError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl EdgeView for StoreView<'_> {
    fn inventory(&self, subscription: SubscriptionId) -> Vec<InventoryEntry> {
        let Some(subscription) = self.follower.subscription(subscription) else { return Vec::new() };
        self.store.inventory(subscription).unwrap_or_else(|error| {
            self.failed.set(Some(error));
            Vec::new()
        })
    }
}
