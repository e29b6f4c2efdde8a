//! The task that owns one connection. It drives the session and runs the node's requests; no other task uses its state.

mod attestation_check;
mod beginning;
mod deletion_checks;
mod following;
mod lease;
mod requests;

use attestation_check::Examination;
pub(super) use beginning::{run, run_kubeedge};

use std::collections::{HashSet, VecDeque};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{AbortHandle, BoxFuture};
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};
use tombolo_proto::frame::{Goodbye, GoodbyeReason, Subscribe};
use tombolo_proto::session::CloudEvent;
use tombolo_proto::{NodeId, ObjectKey, SubscriptionId};
use tombolo_runtime::Held;

use super::channel::{Channel, ChannelEvent, Sender};
use super::closed::Closed;
use super::mailbox::Listener;
use super::metaserver::{Action, MetaServer};
use super::registry::SessionHandle;
use super::shared::SharedWatch;
use super::view::View;
use super::volumes::{VolumeKind, is_volume};
use super::{CLOSE_LIMIT, Hub};
use crate::edgecontroller::upstream::{Answered, Received, Renewal};
use crate::edgecontroller::{Input, Proven};
use crate::epoch::ClaimOutcome;
use crate::kube::{Room, resources};
use crate::metrics::Label;

/// How long a goodbye may wait for a peer that does not read.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// Software name shown to operators for a KubeEdge edge, which does not report its version here.
const KUBEEDGE_AGENT: &str = "KubeEdge edgecore";

/// Result of a piece of the node session's work.
enum Done {
    Reply(Answered, Room),
    Lease {
        renew_time_micros: i64,
        renewal: Renewal,
        proofs: Option<u32>,
    },
    Subscribed {
        subscribe: Box<Subscribe>,
        outcome: Result<Arc<SharedWatch>, Closed>,
    },
    Reviewed {
        subscribe: Box<Subscribe>,
        outcome: Result<(), Closed>,
    },
    Volumes {
        kind: VolumeKind,
        outcome: Result<Arc<SharedWatch>, Closed>,
    },
    /// The wait after a failure to follow volumes of a kind is over; another attempt may be made.
    VolumesDue(VolumeKind),
    /// The edge gave the subscription up meanwhile.
    GivenUp,
    /// Outcome of checking the history that a hello attests; none without an answer.
    Vouched {
        hello: Box<ChannelEvent>,
        outcome: Option<ClaimOutcome>,
    },
    /// The API server has listed the node's pods and was asked about the absent objects; none without an answer.
    PodsListed {
        keys: HashSet<ObjectKey>,
        proven: Option<Proven>,
    },
    /// The API server has listed what a watch selects; false when the watch has ended.
    SelectionListed {
        subscription: SubscriptionId,
        keys: HashSet<ObjectKey>,
        complete: bool,
    },
}

/// One connection of a node, owned by its task. It has many fields because everything ends together with the
/// connection: the work that runs or waits for the node, and the memory and permits that are held for it.
struct NodeSession {
    hub: Arc<Hub>,
    node: NodeId,
    handle: Arc<SessionHandle>,
    listener: Listener,
    channel: Channel,
    view: View,
    work: FuturesUnordered<BoxFuture<'static, Done>>,
    running: usize,
    /// Requests waiting to run, at most [`tombolo_proto::limits::REQUESTS_MAX`], and their memory.
    waiting: VecDeque<(Received, Held)>,
    /// Subscriptions that are being checked, and the size of their texts. The work is aborted if the edge gives the
    /// subscription up.
    opening: Vec<(SubscriptionId, AbortHandle, usize)>,
    /// Size of the texts of all subscriptions.
    texts: usize,
    /// Questions to the API server before something is deleted at the edge. At most one per subscription.
    asking: Vec<(SubscriptionId, AbortHandle)>,
    /// Subscriptions and the time when their rights are checked again, soonest first. An entry ends with its
    /// subscription.
    reviews: VecDeque<(Instant, Box<Subscribe>)>,
    /// Memory that this session keeps now, taken from the node's share.
    kept: Held,
    /// The permit for the node's one large answer, while this session holds it.
    large_turn: Option<OwnedSemaphorePermit>,
    /// Permit for one of the few sessions of this node.
    _permit: OwnedSemaphorePermit,
    lease: Box<lease::Lease>,
    leave_by: Option<Instant>,
    examination: Examination,
    /// The session ends because another connection of the node has replaced it.
    replaced: bool,
}

impl NodeSession {
    fn new(
        hub: Arc<Hub>,
        node: NodeId,
        handle: Arc<SessionHandle>,
        view: View,
        (channel, permit): (Channel, OwnedSemaphorePermit),
    ) -> Box<Self> {
        Box::new(Self {
            kept: handle.memory.all.nothing(),
            _permit: permit,
            large_turn: None,
            reviews: VecDeque::new(),
            channel,
            view,
            work: FuturesUnordered::new(),
            running: 0,
            waiting: VecDeque::new(),
            opening: Vec::new(),
            texts: 0,
            asking: Vec::new(),
            lease: Box::default(),
            leave_by: None,
            examination: Examination::NotBegun,
            replaced: false,
            listener: Listener::default(),
            hub,
            node,
            handle,
        })
    }

    async fn run(mut self: Box<Self>) {
        self.hub.metrics.sessions.inc();
        let joined = Input::Joined(self.node.clone());
        // The receiver is gone only when the process ends; the session ends then as well.
        let _ = self.hub.inputs.send(joined).await;
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        while self.step(timer.as_mut()).await {}
        // Boxed, so that a connected node reserves no memory for its farewell.
        Box::pin(self.leave()).await;
    }

    /// One round: feed all known state into the session, move its output onto the link, then await the next event.
    /// False when the connection is over.
    ///
    /// The timer lives as long as the connection and is only moved to earlier moments: the next timeout changes with
    /// nearly every event, and each move goes through the runtime's timer wheel. A timer that fires too early costs one
    /// round in which nothing is due.
    async fn step(&mut self, mut timer: Pin<&mut Sleep>) -> bool {
        self.take_mail();
        self.take_events();
        self.take_actions();
        if let Err(error) = self.channel.pump(self.hub.clock.now(), &self.view) {
            tracing::debug!(node = %self.node, %error, "connection ended while sending");
            return false;
        }
        self.take_events();
        self.settle_memory();
        while let Some(kind) = self.view.volumes.take_missing() {
            self.follow_volumes(kind);
        }
        self.ask_about_deletions();
        if self.channel.is_closed() {
            return false;
        }
        let timeout = self.channel.next_timeout().map(|moment| self.hub.clock.instant(moment));
        let lingering = self.channel.metaserver().and_then(|metaserver| metaserver.deadline());
        let review = self.reviews.front().map(|(due, _)| *due);
        let others = [self.leave_by, lingering, review, self.channel.progress_deadline()];
        let timeout = others.into_iter().flatten().chain(timeout).min();
        if let Some(moment) = timeout.filter(|moment| *moment < timer.deadline() || timer.is_elapsed()) {
            timer.as_mut().reset(moment);
        }
        let wakes_at = timer.deadline();
        tokio::select! {
            event = self.channel.next(wakes_at) => {
                let Some(event) = self.examine(event) else { return true };
                let now = self.hub.clock.now();
                let from = Sender { node: &self.node, registry: &self.hub.registry };
                return self.channel.handle(now, event, &from, &self.view);
            }
            () = self.handle.mailbox.arrived(&mut self.listener) => {}
            Some(done) = self.work.next(), if !self.work.is_empty() => self.handle_done(done),
            () = timer, if timeout.is_some() => {
                if self.leave_by.is_some_and(|by| by <= Instant::now()) {
                    return false;
                }
                self.channel.handle_timeout(self.hub.clock.now());
                if let Some(error) = self.channel.check_progress(Instant::now())
                    && let Some(left_out) = self.hub.registry.may_log(&self.node)
                {
                    tracing::warn!(node = %self.node, %error, left_out, "session ends");
                }
                self.start_reviews();
                if let Some(metaserver) = self.channel.metaserver() {
                    metaserver.expire(Instant::now());
                }
            }
        }
        true
    }

    fn take_mail(&mut self) {
        let mail = self.handle.mailbox.take();
        self.view.record_changes(&mail.dirty);
        if mail.dirty.iter().any(|(_, key)| *key.resource() == resources::pods()) {
            // The right to a volume depends on the node's pods.
            self.view.volumes.pods_changed();
            self.channel.offer_held(is_volume);
        }
        for (subscription, key) in mail.dirty {
            match VolumeKind::of_subscription(subscription) {
                None => self.channel.offer(subscription, key, &self.view),
                Some(_) if self.channel.holds(&key) => {
                    self.channel.offer(SubscriptionId::NODE, key, &self.view);
                }
                Some(_) => {}
            }
        }
        if mail.ready {
            for key in self.view.take_deferred() {
                self.channel.offer(SubscriptionId::NODE, key, &self.view);
            }
        }
        for (subscription, code, reason) in mail.ended {
            if let Some(kind) = VolumeKind::of_subscription(subscription) {
                self.stop_asking(subscription);
                self.volumes_lost(kind, &Closed { code, reason });
                continue;
            }
            self.view.close(subscription);
            self.give_up(subscription);
            self.forget_watch(subscription);
            self.refuse_subscription(subscription, code, &reason);
        }
        if let Some(goodbye) = mail.goodbye {
            if let (GoodbyeReason::NodeDeleted, Channel::KubeEdge(kubeedge)) =
                (goodbye.reason, &mut self.channel)
            {
                kubeedge.abandon_ledger();
            }
            self.channel.say_goodbye(goodbye);
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.channel.poll_event() {
            self.handle_event(event);
        }
    }

    fn handle_event(&mut self, event: CloudEvent) {
        let node = &self.node;
        match event {
            CloudEvent::Ready { agent, resumed, instance, .. } => {
                if let Some(left_out) = self.hub.registry.may_log(node) {
                    let transport = self.handle.transport;
                    tracing::info!(%node, agent, resumed, %transport, left_out, "node connected");
                }
                self.handle.facts.lock().agent = agent;
                self.introduce(instance);
                self.channel.attest(&self.hub.attestations.proof());
            }
            CloudEvent::CaughtUp { subscription } => {
                if subscription == SubscriptionId::NODE {
                    self.handle.facts.lock().caught_up = true;
                }
            }
            CloudEvent::Acked { latency, .. } => self.acked(latency),
            CloudEvent::Refused { key, message, retry_in, .. } => {
                self.hub.metrics.refused.inc();
                if let Some(left_out) = self.hub.registry.may_log(node) {
                    tracing::warn!(%node, %key, message, ?retry_in, left_out, "delivery refused");
                }
            }
            CloudEvent::Request(request) => self.take_request(request),
            CloudEvent::DeviceReport { discarded } => self.device_report(discarded),
            CloudEvent::LeaseRenew { renew_time_micros } => self.renew_lease(renew_time_micros),
            CloudEvent::Subscribe(subscribe) => self.start_subscription(subscribe, Duration::ZERO),
            CloudEvent::Unsubscribe { subscription } => {
                self.give_up(subscription);
                self.unfollow(subscription);
            }
            CloudEvent::Ended { subscription, code, reason } => {
                self.subscription_ended(subscription, &Closed { code, reason });
            }
            CloudEvent::RoundTrip(time) => {
                self.handle.facts.lock().round_trip = Some(time);
                self.heard_after(time);
            }
            CloudEvent::Closed(goodbye) => self.closed(&goodbye),
        }
    }

    fn device_report(&self, discarded: bool) {
        let kind = if discarded { "discarded" } else { "refused" };
        self.hub.metrics.device_reports.get_or_create(&Label { kind }).inc();
        if self.hub.registry.first_device_report(&self.node) {
            tracing::warn!(node = %self.node, kind,
                "the edge reports devices, which this cloudcore does not manage: see kubeedge.devices");
        }
    }

    fn acked(&mut self, latency: Duration) {
        let metrics = &self.hub.metrics;
        metrics.acknowledged.inc();
        metrics.deliveries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        metrics.delivery_seconds.observe(latency.as_secs_f64());
        let mut facts = self.handle.facts.lock();
        facts.acked += 1;
        facts.last_ack = Some(latency);
    }

    fn closed(&mut self, goodbye: &Goodbye) {
        if let Some(left_out) = self.hub.registry.may_log(&self.node) {
            let Goodbye { reason, message, .. } = goodbye;
            tracing::info!(node = %self.node, ?reason, message, left_out, "session ended");
        }
        let kind = reason_label(goodbye.reason);
        self.hub.metrics.sessions_ended.get_or_create(&Label { kind }).inc();
        self.replaced |= goodbye.reason == GoodbyeReason::Replaced;
        self.leave_by.get_or_insert_with(|| Instant::now() + LEAVE_LIMIT);
    }

    /// Performs the actions that the watches of a KubeEdge edge's MetaServer need.
    fn take_actions(&mut self) {
        while let Some(action) = self.channel.metaserver().and_then(MetaServer::poll_action) {
            match action {
                Action::Open(subscribe) => self.start_subscription(*subscribe, Duration::ZERO),
                Action::OpenLater(subscribe, wait) => self.start_subscription(*subscribe, wait),
                Action::Close(subscription) => {
                    self.give_up(subscription);
                    self.unfollow(subscription);
                    self.channel.close_subscription(subscription, 200, "no followers left");
                }
                Action::Reply(reply) => self.channel.reply(reply),
            }
        }
        if let Channel::KubeEdge(kubeedge) = &mut self.channel {
            kubeedge.take_watches();
        }
    }

    fn handle_done(&mut self, done: Done) {
        match done {
            Done::PodsListed { keys, proven } => self.pods_listed(keys, proven),
            Done::SelectionListed { subscription, keys, complete } => {
                self.selection_listed(subscription, keys, complete);
            }
            Done::Reply(Answered { reply, deleted_pods }, room) => {
                self.running = self.running.saturating_sub(1);
                self.large_turn = room.take_turn().or(self.large_turn.take());
                self.channel.reply(reply);
                // The answer's memory is now accounted to the session.
                drop(room);
                self.settle_memory();
                deleted_pods.iter().for_each(|pod| self.channel.resend_deletion(pod));
                self.start_requests();
            }
            Done::Lease { renew_time_micros, renewal, proofs } => {
                self.lease_done(renew_time_micros, renewal, proofs);
            }
            Done::Subscribed { subscribe, outcome } => self.subscribed(subscribe, outcome),
            Done::Reviewed { subscribe, outcome } => self.reviewed(subscribe, outcome),
            Done::Volumes { kind, outcome } => self.volumes_followed(kind, outcome),
            Done::VolumesDue(kind) => self.volumes_due(kind),
            Done::Vouched { hello, outcome } => self.vouched(*hello, outcome),
            Done::GivenUp => {}
        }
    }

    async fn leave(mut self: Box<Self>) {
        // Work that is no longer polled must not hold anything that others wait for, such as locks or permits.
        self.work.clear();
        self.waiting.clear();
        self.take_events();
        // Ending matters more than delivering the last frames, so errors are ignored.
        let _ = self.channel.pump(self.hub.clock.now(), &self.view);
        self.channel.settle().await;
        for (subscription, followed) in self.view.subscriptions() {
            followed.watch.unfollow(&self.handle, *subscription);
        }
        self.view.volumes.close(&self.handle);
        if self.hub.registry.remove(&self.node, &self.handle) {
            // The receiver is gone only when the process ends.
            let _ = self.hub.inputs.send(Input::Left(self.node.clone())).await;
        }
        self.hub.metrics.sessions.dec();
        self.handle.set_over();
        if self.replaced && self.channel.is_read(CLOSE_LIMIT).await {
            self.hub.contested(&self.node, self.hub.registry.prove(&self.node));
        }
        self.channel.close(CLOSE_LIMIT).await;
    }
}

fn reason_label(reason: GoodbyeReason) -> &'static str {
    match reason {
        GoodbyeReason::Draining => "draining",
        GoodbyeReason::Replaced => "replaced",
        GoodbyeReason::NodeDeleted => "node_deleted",
        GoodbyeReason::ProtocolError => "protocol_error",
        GoodbyeReason::VersionMismatch => "version_mismatch",
        GoodbyeReason::Forbidden => "forbidden",
        GoodbyeReason::Timeout => "timeout",
        GoodbyeReason::Overloaded => "overloaded",
        GoodbyeReason::Other => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Size of the future that the function returns.
    fn future_size<F: Future>(_: impl Fn(Box<NodeSession>) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn node_session_future_stays_small() {
        // An async function reserves memory twice for each value that it moves; this once cost 20 KiB per node.
        assert!(future_size(NodeSession::run) <= 1024, "{} bytes of future", future_size(NodeSession::run));
        assert!(size_of::<NodeSession>() <= 2304, "{} bytes of state", size_of::<NodeSession>());
    }
}
