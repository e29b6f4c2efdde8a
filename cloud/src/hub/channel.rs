//! The session and the link of one connection, in either dialect. There are exactly two known kinds, so this is an enum
//! and not a trait object (`docs/decisions/0004-kubeedge-dialect.md`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tombolo_link::{Link, LinkError, LinkEvent, pump};
use tombolo_proto::frame::{Goodbye, Reply, Request};
use tombolo_proto::session::{CloudEvent, CloudSession};
use tombolo_proto::{Moment, NodeId, ObjectKey, RequestId, SharedObject, SubscriptionId};

use super::kubeedge::{KubeEdge, KubeEdgeEvent};
use super::metaserver::MetaServer;
use super::registry::Registry;
use super::view::View;
use crate::edgecontroller::upstream::reply_with;

/// One connection.
pub(super) enum Channel {
    /// Frames in lanes.
    Tombolo(Tombolo),
    /// JSON messages.
    KubeEdge(KubeEdge),
}

/// The node at the other end, and the registry that decides whether a line about it may be logged.
pub(super) struct Sender<'a> {
    pub(super) node: &'a NodeId,
    pub(super) registry: &'a Registry,
}

/// The connection of a Tombolo edge.
pub(super) struct Tombolo {
    pub(super) link: Link,
    pub(super) session: CloudSession,
}

/// An event of a connection.
#[derive(Debug)]
pub(super) enum ChannelEvent {
    Tombolo(LinkEvent),
    KubeEdge(KubeEdgeEvent),
}

/// Calls the same method on either kind of session.
macro_rules! session {
    ($channel:expr, $session:ident => $call:expr) => {
        match $channel {
            Channel::Tombolo(Tombolo { session: $session, .. }) => $call,
            Channel::KubeEdge(KubeEdge { session: $session, .. }) => $call,
        }
    };
}

impl Channel {
    pub(super) fn offer(&mut self, subscription: SubscriptionId, key: ObjectKey, view: &View) {
        session!(self, session => session.offer(subscription, key, view));
    }

    pub(super) fn reply(&mut self, reply: Reply) {
        session!(self, session => session.reply(reply));
    }

    /// Bytes that the node makes its session keep.
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Tombolo(tombolo) => tombolo.session.memory(),
            Self::KubeEdge(kubeedge) => {
                kubeedge.session.memory().saturating_add(kubeedge.metaserver.memory())
            }
        }
    }

    /// Bytes of answers that the node has not read yet.
    pub(super) fn unread(&self) -> usize {
        match self {
            Self::Tombolo(tombolo) => tombolo.session.unread().saturating_add(tombolo.link.queued_answers()),
            Self::KubeEdge(kubeedge) => kubeedge.session.unread(),
        }
    }

    /// Those bytes of [`Self::unread`] that have left the session and are still queued in the link.
    pub(super) fn queued_answers(&self) -> usize {
        match self {
            Self::Tombolo(tombolo) => tombolo.link.queued_answers(),
            Self::KubeEdge(_) => 0,
        }
    }

    /// Ends the link of a peer that makes no progress. A KubeEdge edge that accepts nothing is ended by its session.
    pub(super) fn check_progress(&mut self, now: Instant) -> Option<LinkError> {
        match self {
            Self::Tombolo(tombolo) => tombolo.link.check_progress(now),
            Self::KubeEdge(_) => None,
        }
    }

    /// When to call [`Self::check_progress`] next.
    pub(super) fn progress_deadline(&mut self) -> Option<Instant> {
        match self {
            Self::Tombolo(tombolo) => tombolo.link.watch_progress(Instant::now()),
            Self::KubeEdge(_) => None,
        }
    }

    /// Answers a request with an object from memory. False when the object does not answer it.
    pub(super) fn reply_object(&mut self, request: &Request, object: &Arc<SharedObject>) -> bool {
        if let Self::KubeEdge(kubeedge) = self
            && kubeedge.session.reply_object(request.id, object)
        {
            return true;
        }
        let Some(reply) = reply_with(request.id, &request.body, object) else { return false };
        self.reply(reply);
        true
    }

    pub(super) fn awaits_reply(&self, id: RequestId) -> bool {
        session!(self, session => session.awaits_reply(id))
    }

    /// Sends the deletion of a reported pod again. Tombolo edges learn this through their inventory.
    pub(super) fn resend_deletion(&mut self, key: &ObjectKey) {
        if let Self::KubeEdge(kubeedge) = self {
            kubeedge.session.resend_deletion(key);
        }
    }

    /// Whether a KubeEdge edge holds an object under this key.
    pub(super) fn holds(&self, key: &ObjectKey) -> bool {
        matches!(self, Self::KubeEdge(kubeedge) if kubeedge.session.holds(key))
    }

    /// Offers the objects that a KubeEdge edge holds under the picked keys again.
    pub(super) fn offer_held(&mut self, picked: impl Fn(&ObjectKey) -> bool) {
        if let Self::KubeEdge(kubeedge) = self {
            kubeedge.session.offer_held(picked);
        }
    }

    /// Answers a compact lease renewal, which only Tombolo edges send.
    pub(super) fn lease_renewed(&mut self, renew_time_micros: i64, code: u16) {
        if let Self::Tombolo(tombolo) = self {
            tombolo.session.lease_renewed(renew_time_micros, code);
        }
    }

    /// Pings a Tombolo edge.
    pub(super) fn ask(&mut self, now: Moment) {
        if let Self::Tombolo(tombolo) = self {
            tombolo.session.ask(now);
        }
    }

    /// Sends a Tombolo edge the attestation of the cloud's history.
    pub(super) fn attest(&mut self, proof: &Bytes) {
        if let Self::Tombolo(tombolo) = self {
            tombolo.session.attest(proof);
        }
    }

    /// Opens a subscription. False when it does not open; the node then need not follow it.
    pub(super) fn open_subscription(&mut self, subscription: SubscriptionId, view: &View) -> bool {
        session!(self, session => session.open_subscription(subscription, view))
    }

    /// Ends a subscription. KubeEdge edges do not receive the reason: the objects of it that they hold are deleted.
    pub(super) fn close_subscription(&mut self, subscription: SubscriptionId, code: u16, reason: &str) {
        match self {
            Self::Tombolo(tombolo) => tombolo.session.close_subscription(subscription, code, reason),
            Self::KubeEdge(kubeedge) => kubeedge.session.close_subscription(subscription),
        }
    }

    pub(super) fn say_goodbye(&mut self, goodbye: Goodbye) {
        session!(self, session => session.say_goodbye(goodbye));
    }

    pub(super) fn poll_event(&mut self) -> Option<CloudEvent> {
        session!(self, session => session.poll_event())
    }

    pub(super) fn is_closed(&self) -> bool {
        session!(self, session => session.is_closed())
    }

    pub(super) fn next_timeout(&self) -> Option<Moment> {
        session!(self, session => session.next_timeout())
    }

    pub(super) fn handle_timeout(&mut self, now: Moment) {
        session!(self, session => session.handle_timeout(now));
    }

    /// Moves what the session has to send onto the link, as far as there is room.
    pub(super) fn pump(&mut self, now: Moment, view: &View) -> Result<(), LinkError> {
        match self {
            Self::Tombolo(Tombolo { link, session }) => {
                pump(link, |lane| session.poll_transmit(now, lane, view)).map(|_| ())
            }
            Self::KubeEdge(kubeedge) => kubeedge.pump(now, view),
        }
    }

    /// The next event that the node session must handle. The node session looks at the session again at `wakes_at` in
    /// any case. Cancel-safe.
    pub(super) async fn next(&mut self, wakes_at: Instant) -> ChannelEvent {
        match self {
            Self::Tombolo(tombolo) => ChannelEvent::Tombolo(tombolo.link.next().await),
            Self::KubeEdge(kubeedge) => ChannelEvent::KubeEdge(kubeedge.next(wakes_at).await),
        }
    }

    /// Feeds an event into the session. False when the connection is over.
    pub(super) fn handle(
        &mut self,
        now: Moment,
        event: ChannelEvent,
        from: &Sender<'_>,
        view: &View,
    ) -> bool {
        match (self, event) {
            (Self::Tombolo(tombolo), ChannelEvent::Tombolo(event)) => tombolo.handle(now, event, from, view),
            (Self::KubeEdge(kubeedge), ChannelEvent::KubeEdge(event)) => kubeedge.handle(now, event),
            // Events come from `next` of the same channel.
            _ => true,
        }
    }

    /// The MetaServer watches of a KubeEdge edge.
    pub(super) fn metaserver(&mut self) -> Option<&mut MetaServer> {
        match self {
            Self::Tombolo(_) => None,
            Self::KubeEdge(kubeedge) => Some(&mut kubeedge.metaserver),
        }
    }

    /// Stores the part of the session's state that must persist. Called once, when the session is over.
    pub(super) async fn settle(&mut self) {
        if let Self::KubeEdge(kubeedge) = self {
            kubeedge.settle().await;
        }
    }

    /// Whether a KubeEdge edge still answers on this connection. Tombolo edges identify their process instead.
    pub(super) async fn is_read(&mut self, limit: Duration) -> bool {
        match self {
            Self::Tombolo(_) => false,
            Self::KubeEdge(kubeedge) => kubeedge.link.is_read(limit).await,
        }
    }

    /// Closes the connection in an orderly way.
    pub(super) async fn close(self, limit: Duration) {
        match self {
            Self::Tombolo(tombolo) => tombolo.link.close(limit).await,
            Self::KubeEdge(kubeedge) => kubeedge.link.close(limit).await,
        }
    }
}

impl Tombolo {
    fn handle(&mut self, now: Moment, event: LinkEvent, from: &Sender<'_>, view: &View) -> bool {
        let Sender { node, registry } = from;
        match event {
            LinkEvent::Frame(lane, frame) => {
                if let Err(error) = self.session.handle_frame(now, lane, frame, view)
                    && let Some(left_out) = registry.may_log(node)
                {
                    tracing::warn!(%node, %error, left_out, "session ends");
                }
                true
            }
            LinkEvent::Writable => true,
            LinkEvent::Closed(error) => {
                match error.goodbye() {
                    Some(goodbye) => {
                        if let Some(left_out) = registry.may_log(node) {
                            tracing::warn!(%node, %error, left_out, "session ends: the edge violated the protocol");
                        }
                        self.session.say_goodbye(goodbye);
                    }
                    None => tracing::debug!(%node, %error, "connection ended"),
                }
                false
            }
        }
    }
}
