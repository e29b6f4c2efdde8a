//! What the owner of a [`CloudSession`](super::CloudSession) provides and receives.

use std::sync::Arc;
use std::time::Duration;

use crate::frame::{Goodbye, RefusalReason, Request, Subscribe};
use crate::ids::{CloudRevision, Epoch, NodeId, StoreId, SubscriptionId};
use crate::limits;
use crate::object::{ObjectKey, ObjectVersion, SharedObject};

/// What the cloud knows about one node's subscriptions. Answers come from memory. A session calls this when it compares
/// an inventory and when it sends, never earlier: pending work is a set of keys, not a queue of bodies.
pub trait NodeView {
    /// Every key that the subscription should hold, including known absences.
    fn wanted(&self, subscription: SubscriptionId) -> Vec<ObjectKey>;
    /// How many keys [`Self::wanted`] has, without building the list.
    fn count(&self, subscription: SubscriptionId) -> usize {
        self.wanted(subscription).len()
    }
    /// What the subscription should hold under this key now.
    fn lookup(&self, subscription: SubscriptionId, key: &ObjectKey) -> Lookup;
    /// Whether every object of the node that refers to this one works without it. Called for objects that are known to
    /// be absent or unreadable, and only for edges that received an empty object instead.
    fn is_optional(&self, key: &ObjectKey) -> bool {
        let _ = key;
        false
    }
    /// The newest revision that the view has seen, 0 when unknown.
    fn revision(&self, subscription: SubscriptionId) -> CloudRevision;
    /// How certain the view is about an object that an edge is about to lose. The edge may have been served by a
    /// replica that is ahead, and each watch behind the view may lag on its own.
    fn certainty(&self, subscription: SubscriptionId, key: &ObjectKey, loss: Loss) -> Certainty {
        let _ = (subscription, key, loss);
        Certainty::Certain
    }
}

/// What an edge is about to lose. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// An object that it holds, because the subscription does not want it (any more).
    Need {
        /// Only the edge says that it holds this version: the view has shown neither this version nor a newer one.
        claimed: bool,
    },
    /// An object that it needs and holds from an earlier session, because the view knows of none. Only used for
    /// claimed objects in the sense above: for an object that the view has shown itself, its watch of that kind has
    /// reported the deletion.
    Object,
}

/// Answer of [`NodeView::certainty`]. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// It is deleted, or not needed.
    Certain,
    /// The view is finding out, and offers the key when it knows. Nothing is removed until then.
    Asked,
}

/// Answer of a [`NodeView`]. Closed.
#[derive(Debug, Clone)]
pub enum Lookup {
    /// Wanted, and this is its newest version.
    Present(Arc<SharedObject>),
    /// Wanted, and the API is known to have no such object.
    Absent,
    /// Not wanted (any more). The version that was deleted, when it is known.
    Unwanted(Option<ObjectVersion>),
    /// Wanted, but the API does not allow reading it; carries the status code of its answer. The edge is informed, and
    /// catching up does not wait for it. The owner offers the key when it can be read.
    Unreadable(u16),
    /// Wanted, but not fetched yet. The owner offers the key once the answer is known.
    Pending,
}

/// Configuration of a cloud session.
#[derive(Debug, Clone)]
pub struct CloudConfig {
    /// The node in the certificate; the hello must name the same.
    pub node: NodeId,
    /// History that the revisions of the view belong to.
    pub epoch: Epoch,
    /// Version of the rules under which the view's content hashes were made.
    pub trim_version: u32,
    /// Software version, for the peer's operator.
    pub agent: String,
    /// Wall clock at the `now` of `CloudSession::new`, milliseconds since the Unix epoch.
    pub unix_millis: u64,
    /// Silence of this side after which it pings. Sent to the edge, which does the same.
    pub ping_interval: Duration,
    /// Silence of the edge after which the session ends. Sent to the edge, which does the same.
    pub idle_timeout: Duration,
    /// Most deliveries of one lane in flight; between 1 and [`super::super::UNACKED_MAX`].
    pub window_count: usize,
    /// Most bytes of one lane in flight; one larger object travels alone.
    pub window_bytes: usize,
}

impl CloudConfig {
    /// The configuration with the limits of [`crate::limits`].
    #[must_use]
    pub fn new(node: NodeId, epoch: Epoch, trim_version: u32, unix_millis: u64) -> Self {
        Self {
            node,
            epoch,
            trim_version,
            agent: concat!("tombolo/", env!("CARGO_PKG_VERSION")).to_owned(),
            unix_millis,
            ping_interval: limits::PING_INTERVAL,
            idle_timeout: limits::IDLE_TIMEOUT,
            window_count: limits::WINDOW_COUNT,
            window_bytes: limits::WINDOW_BYTES,
        }
    }
}

/// Events for the owner of a cloud session. Closed.
#[derive(Debug, Clone, PartialEq)]
pub enum CloudEvent {
    /// The hello was accepted.
    Ready {
        /// Identity of the edge's store.
        store: StoreId,
        /// Software version of the edge.
        agent: String,
        /// Identity of the edge's process; 0 when not stated.
        instance: u64,
        /// The edge follows the same epoch and trimming rules: only real differences are sent.
        resumed: bool,
    },
    /// A KubeEdge edge's device twin sent a report that no controller here handles: it was refused, or confirmed and
    /// dropped.
    DeviceReport {
        /// Whether it was confirmed and dropped.
        discarded: bool,
    },
    /// Everything that was missing in the subscription when it was compared is on the edge's disk. A parked key does
    /// not delay this unless the edge still holds a version of another epoch under it.
    CaughtUp {
        /// Pushed set or subscription.
        subscription: SubscriptionId,
    },
    /// A delivery is on the edge's disk.
    Acked {
        /// Pushed set or subscription.
        subscription: SubscriptionId,
        /// Which object.
        key: ObjectKey,
        /// The version that the edge holds now, with revision 0 when its revision in this epoch is not known; none
        /// when it no longer holds the object, or knows that it is absent or cannot be read.
        version: Option<ObjectVersion>,
        /// Time from `poll_transmit` to the acknowledgement.
        latency: Duration,
    },
    /// A delivery was refused by the edge, or not sent because no edge could accept it.
    Refused {
        /// Pushed set or subscription.
        subscription: SubscriptionId,
        /// Which object.
        key: ObjectKey,
        /// Kind of failure.
        reason: RefusalReason,
        /// Text for the operator.
        message: String,
        /// Wait before the same version is sent again; [`Duration::MAX`]: never, only another version is sent. A newer
        /// version never waits.
        retry_in: Duration,
    },
    /// The edge sent a request; answer with `reply`.
    Request(Request),
    /// The edge renews its lease; answer with `lease_renewed`. A newer renewal replaces an unanswered one.
    LeaseRenew {
        /// `spec.renewTime`, microseconds since the Unix epoch.
        renew_time_micros: i64,
    },
    /// The edge wants to follow a resource; answer with `open_subscription` or `close_subscription`. The inventory
    /// stays in the session and is empty here.
    Subscribe(Subscribe),
    /// The edge ended a subscription; it is already closed.
    Unsubscribe {
        /// The subscription.
        subscription: SubscriptionId,
    },
    /// The session has ended a subscription; it is already closed, and Tombolo edges receive the reason.
    Ended {
        /// The subscription.
        subscription: SubscriptionId,
        /// HTTP status code that a Kubernetes client would see.
        code: u16,
        /// Text for the operator.
        reason: String,
    },
    /// Round-trip time of a ping.
    RoundTrip(Duration),
    /// The session is over, with either side's goodbye. Sent once, as the last event.
    Closed(Goodbye),
}

impl CloudEvent {
    /// The node follows more than `max` objects, exceeded by this subscription.
    pub(in crate::session) fn too_many(subscription: SubscriptionId, max: usize) -> Self {
        let reason = format!("a node may follow at most {max} objects at a time: select fewer");
        Self::Ended { subscription, code: 413, reason }
    }
}

/// What a cloud session has done and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CloudStats {
    /// Deliveries sent.
    pub delivered: u64,
    /// Deliveries acknowledged.
    pub acked: u64,
    /// Deliveries refused, by the edge or by [`limits::OBJECT_LEN_MAX`].
    pub refused: u64,
    /// Deliveries in flight, all lanes.
    pub in_flight: usize,
    /// Keys that wait to be sent, all subscriptions.
    pub dirty: usize,
    /// Keys that wait after a refusal, all subscriptions.
    pub parked: usize,
    /// Keys that the edge is known to hold, all subscriptions.
    pub held: usize,
    /// Requests that wait for their reply.
    pub requests: usize,
    /// Open subscriptions.
    pub subscriptions: usize,
}
