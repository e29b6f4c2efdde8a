//! What the owner of an [`EdgeSession`](super::EdgeSession) provides and receives.

use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use crate::frame::{Change, Goodbye, Reply, features};
use crate::ids::{CloudRevision, Epoch, Lane, NodeId, RequestId, Seq, StoreId, SubscriptionId};
use crate::object::InventoryEntry;

/// What the edge's store holds.
pub trait EdgeView {
    /// Everything held in the subscription: all that is committed, and nothing that may still be lost. Writes that an
    /// older session handed out must be finished or given up before a session starts; the cloud treats this list as
    /// complete.
    fn inventory(&self, subscription: SubscriptionId) -> Vec<InventoryEntry>;
}

/// How an edge session introduces itself.
#[derive(Debug, Clone)]
pub struct EdgeConfig {
    /// The node in the client certificate.
    pub node: NodeId,
    /// Identity of the store.
    pub store: StoreId,
    /// The history that the pushed set follows; none when it never caught up or is between two epochs.
    pub epoch: Option<Epoch>,
    /// Version of the trimming rules under which the held content hashes were made; 0 when nothing is held.
    pub trim_version: u32,
    /// Software version, for the peer's operator.
    pub agent: String,
    /// What this edge can do, see [`crate::frame::features`].
    pub features: u64,
    /// Drawn once by each process; 0 when not stated.
    pub instance: u64,
    /// The newest attestation that the cloud has sent; empty when there is none.
    pub attestation: Bytes,
}

impl EdgeConfig {
    /// An edge that holds nothing yet and has all abilities of this version.
    #[must_use]
    pub fn new(node: NodeId, store: StoreId) -> Self {
        Self {
            node,
            store,
            epoch: None,
            trim_version: 0,
            agent: concat!("tombolo/", env!("CARGO_PKG_VERSION")).to_owned(),
            features: features::ALL,
            instance: 0,
            attestation: Bytes::new(),
        }
    }
}

/// Events for the owner of an edge session. Closed.
#[derive(Debug, Clone, PartialEq)]
pub enum EdgeEvent {
    /// The cloud accepted the hello. Precedes every delivery.
    ///
    /// When `resumed` is false the store must, in one transaction and before it stores anything else, adopt
    /// `trim_version`, clear the epoch of every subscription that holds something, and give this epoch to every
    /// subscription that holds nothing. [`EdgeEvent::CaughtUp`] then sets the epochs one by one. A store that is
    /// interrupted in between correctly reports that it follows no epoch.
    Welcomed {
        /// History of the cloud's revisions.
        epoch: Epoch,
        /// Epoch and trimming rules are the same as in the hello.
        resumed: bool,
        /// Version of the trimming rules in force.
        trim_version: u32,
        /// The cloud's wall clock, milliseconds since the Unix epoch.
        unix_millis: u64,
    },
    /// Store this, then call `committed`, or call `refused`. Each delivery needs one of them, also those of
    /// subscriptions that are no longer followed.
    Deliver {
        /// Lane that carried it.
        lane: Lane,
        /// Position in the lane.
        seq: Seq,
        /// Pushed set or subscription.
        subscription: SubscriptionId,
        /// What happens to which object.
        change: Change,
    },
    /// Everything that was missing when the subscription was compared is stored: its epoch may be recorded.
    CaughtUp {
        /// Pushed set or subscription.
        subscription: SubscriptionId,
        /// The history that the subscription follows now.
        epoch: Epoch,
        /// The cloud's revision when the subscription was compared.
        revision: CloudRevision,
    },
    /// How far the cloud's history has advanced, in the cloud's own format. The owner stores the newest one on its
    /// disk together with its next commit, and sends it with the next hello.
    Attested(Bytes),
    /// Answer to a request.
    Reply(Reply),
    /// No answer arrived in time. A later one is ignored.
    RequestTimedOut(RequestId),
    /// Outcome of a lease renewal.
    LeaseRenewed {
        /// The renewal that is answered.
        renew_time_micros: i64,
        /// HTTP status code of the API server; 200 when it is stored.
        code: u16,
    },
    /// The cloud refused or ended a subscription; its subscription id is never used again in this session.
    SubscriptionClosed {
        /// The subscription.
        subscription: SubscriptionId,
        /// HTTP status code that a Kubernetes client would see.
        code: u16,
        /// Sentence for the operator.
        reason: String,
    },
    /// Round-trip time of a ping.
    RoundTrip(Duration),
    /// The session is over, with either side's goodbye. Sent once, as the last event.
    Closed(Goodbye),
}

/// Why a request was not accepted. Closed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The cloud could not decode it: a text is too long, or has characters that no path may have.
    #[error("the cloud does not accept this request: {0}")]
    Invalid(String),
    /// [`crate::limits::REQUESTS_MAX`] requests are already waiting.
    #[error("too many requests wait for the cloud's answer: try again later")]
    Busy,
    /// The request does not fit a frame.
    #[error("the request does not fit a frame ({0} bytes)")]
    TooLarge(usize),
    /// The session is over.
    #[error("the session with the cloud is over: try again after the next connection")]
    Closed,
}

/// Why a subscription was not accepted. Closed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SubscribeError {
    /// The cloud could not decode it: a text is too long, or has characters that no path may have.
    #[error("this selection cannot be followed: {0}")]
    Invalid(String),
    /// The subscription id is not [`EdgeSession::next_subscription`](super::EdgeSession::next_subscription) or larger.
    #[error("subscription ids must increase within a session, and {} is used already: use the next", .0.0)]
    SubscriptionUsed(SubscriptionId),
    /// [`crate::limits::SUBSCRIPTIONS_MAX`] subscriptions are already open.
    #[error("too many subscriptions are open: close one first")]
    Full,
    /// The session is over.
    #[error("the session with the cloud is over: subscribe again after the next connection")]
    Closed,
}
