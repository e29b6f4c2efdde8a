//! What the owner of a [`CloudSession`](super::CloudSession) gives and gets.

use std::sync::Arc;
use std::time::Duration;

use crate::frame::{Goodbye, RefusalReason, Request, Subscribe};
use crate::ids::{CloudRevision, Epoch, NodeId, ScopeId, StoreId};
use crate::limits;
use crate::object::{ObjectKey, ObjectVersion, SharedObject};

/// What the cloud knows about one node's scopes. Answers come from memory; a session asks when it compares an
/// inventory and when it sends, never earlier: pending work is a set of keys, not a queue of bodies.
pub trait NodeView {
    /// Every key that the scope should hold, known absences included.
    fn wanted(&self, scope: ScopeId) -> Vec<ObjectKey>;
    /// How many keys [`Self::wanted`] has, without making a list of them.
    fn count(&self, scope: ScopeId) -> usize {
        self.wanted(scope).len()
    }
    /// What the scope should hold under this key now.
    fn lookup(&self, scope: ScopeId, key: &ObjectKey) -> Lookup;
    /// Whether everything of the node that refers to this object works without it. Asked of what is known to be absent or
    /// cannot be read, and only for edges that were given an empty object in its place.
    fn is_optional(&self, key: &ObjectKey) -> bool {
        let _ = key;
        false
    }
    /// The newest revision that the view has seen, 0 when unknown.
    fn revision(&self, scope: ScopeId) -> CloudRevision;
    /// How sure the view is of what an edge is about to lose. The edge may come from a replica that is ahead, and each of
    /// the watches that a view rests on may be behind by itself.
    fn certainty(&self, scope: ScopeId, key: &ObjectKey, loss: Loss) -> Certainty {
        let _ = (scope, key, loss);
        Certainty::Certain
    }
}

/// What an edge is about to lose. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// What it holds, because the scope does not want it (any more).
    Need {
        /// The edge's own word alone says what it holds: the view has shown neither this version nor a newer one.
        claimed: bool,
    },
    /// An object that it needs and holds from an earlier session, because the view knows of none. Only asked of what is
    /// claimed in the sense above: what the view has shown itself, its watch of that kind has told the end of.
    Object,
}

/// Answer of [`NodeView::certainty`]. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// It is gone, or not needed.
    Certain,
    /// The view is finding out, and offers the key when it knows. Nothing is taken away until then.
    Asked,
}

/// Answer of a [`NodeView`]. Closed.
#[derive(Debug, Clone)]
pub enum Lookup {
    /// Wanted, and this is its newest version.
    Present(Arc<SharedObject>),
    /// Wanted, and the API is known to have no such object.
    Absent,
    /// Not wanted (any more). The version that went, when it is known.
    Unwanted(Option<ObjectVersion>),
    /// Wanted, and the API does not let it be read; the status code of its answer. The edge is told so, and nobody waits for
    /// it. The owner offers the key when it can be read.
    Unreadable(u16),
    /// Wanted, but not fetched yet. The owner offers the key once the answer is known.
    Pending,
}

/// How a cloud session behaves.
#[derive(Debug, Clone)]
pub struct CloudConfig {
    /// The node of the certificate; the hello must name the same.
    pub node: NodeId,
    /// History that the revisions of the view belong to.
    pub epoch: Epoch,
    /// Version of the rules under which the view's content hashes were made.
    pub trim_version: u32,
    /// Software version for the peer's operator.
    pub agent: String,
    /// Wall clock at the `now` of `CloudSession::new`, milliseconds since the Unix epoch.
    pub unix_millis: u64,
    /// Silence of this side after which it pings. Told to the edge, which does the same.
    pub ping_interval: Duration,
    /// Silence of the edge after which the session ends. Told to the edge, which does the same.
    pub idle_timeout: Duration,
    /// Deliveries of one lane in flight, at most; between 1 and [`super::super::UNACKED_MAX`].
    pub window_count: usize,
    /// Bytes of one lane in flight, at most; one larger object travels alone.
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

/// What the owner of a cloud session must know. Closed.
#[derive(Debug, Clone, PartialEq)]
pub enum CloudEvent {
    /// The hello was accepted.
    Ready {
        /// Which store the edge keeps.
        store: StoreId,
        /// Software version of the edge.
        agent: String,
        /// Which process of the edge this is; 0 when it does not say.
        instance: u64,
        /// The edge follows the same epoch and trimming rules: only real differences are sent.
        resumed: bool,
    },
    /// A stock edge's device twin has reported what nobody here manages: it was refused, or confirmed and dropped.
    DeviceReport {
        /// Confirmed and dropped.
        discarded: bool,
    },
    /// Everything that was missing in the scope when it was compared is on the edge's disk; a parked key does not
    /// hold this up unless the edge still holds a version of another epoch under it.
    CaughtUp {
        /// Pushed set or subscription.
        scope: ScopeId,
    },
    /// A delivery is on the edge's disk.
    Acked {
        /// Pushed set or subscription.
        scope: ScopeId,
        /// Which object.
        key: ObjectKey,
        /// The version that the edge holds now, with revision 0 where its place in this epoch is not known; none when it
        /// holds the object no more, or knows that it is absent or cannot be read.
        version: Option<ObjectVersion>,
        /// Time from `poll_transmit` to the acknowledgement.
        latency: Duration,
    },
    /// A delivery was refused by the edge, or not even sent because no edge could take it.
    Refused {
        /// Pushed set or subscription.
        scope: ScopeId,
        /// Which object.
        key: ObjectKey,
        /// Kind of trouble.
        reason: RefusalReason,
        /// Sentence for the operator.
        message: String,
        /// Wait before the same version is sent again; [`Duration::MAX`]: never, only another version is sent. A
        /// newer version never waits.
        retry_in: Duration,
    },
    /// The edge asks; answer with `reply`.
    Request(Request),
    /// The edge renews its lease; answer with `lease_renewed`. A newer renewal replaces an unanswered one.
    LeaseRenew {
        /// `spec.renewTime`, microseconds since the Unix epoch.
        renew_time_micros: i64,
    },
    /// The edge wants to follow a resource; answer with `open_subscription` or `close_subscription`. The inventory
    /// stays in the session and reads as empty here.
    Subscribe(Subscribe),
    /// The edge follows a subscription no longer; it is closed already.
    Unsubscribe {
        /// The subscription.
        scope: ScopeId,
    },
    /// The session has ended a subscription; it is closed already, and edges of ours are told why.
    Ended {
        /// The subscription.
        scope: ScopeId,
        /// HTTP status code that a Kubernetes client would see.
        code: u16,
        /// Sentence for the operator.
        reason: String,
    },
    /// A ping came back after this time.
    RoundTrip(Duration),
    /// The session is over: either side's goodbye. Comes once and last.
    Closed(Goodbye),
}

impl CloudEvent {
    /// The node follows more than `max` objects, by this subscription's last one.
    pub(in crate::session) fn too_many(scope: ScopeId, max: usize) -> Self {
        let reason = format!("a node follows at most {max} objects at a time: select fewer");
        Self::Ended { scope, code: 413, reason }
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
    /// Keys that wait to be sent, all scopes.
    pub dirty: usize,
    /// Keys that wait after a refusal, all scopes.
    pub parked: usize,
    /// Keys that the edge is known to hold, all scopes.
    pub held: usize,
    /// Requests that wait for their reply.
    pub requests: usize,
    /// Open subscriptions.
    pub subscriptions: usize,
}
