//! What the harness reports to the oracle: plain data, without types of the product.
//!
//! Times are milliseconds of the simulation, which no fault changes. A fault that sets a clock changes what the hosts
//! read, not these times.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Milliseconds since the start of the simulation.
pub type Millis = u64;

/// Reader that shows everything that a node needs by itself: its pods, its own Node, and the ConfigMaps and Secrets
/// that its pods refer to.
pub const PUSHED: &str = "pushed";

/// An object of the Kubernetes API, without its version. As text `resource.group/namespace/name`, without the group
/// for core kinds and with an empty namespace for cluster-scoped objects: `pods/team/web`, `nodes//edge-0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectId {
    /// Plural name of the kind, with its group after a dot unless that is the core group.
    pub resource: String,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectId {
    /// An object by resource, namespace and name.
    #[must_use]
    pub fn new(resource: &str, namespace: &str, name: &str) -> Self {
        Self { resource: resource.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// A Node.
    #[must_use]
    pub fn node(name: &str) -> Self {
        Self::new("nodes", "", name)
    }

    /// The API group, and the plural name without it.
    #[must_use]
    pub fn group_and_plural(&self) -> (&str, &str) {
        let (plural, group) = self.resource.split_once('.').unwrap_or((&self.resource, ""));
        (group, plural)
    }

    /// Whether this is a ConfigMap or a Secret.
    #[must_use]
    pub fn is_referable(&self) -> bool {
        matches!(&*self.resource, "configmaps" | "secrets")
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.resource, self.namespace, self.name)
    }
}

impl FromStr for ObjectId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(3, '/');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(resource), Some(namespace), Some(name)) if !resource.is_empty() && !name.is_empty() => {
                Ok(Self::new(resource, namespace, name))
            }
            _ => Err(format!("{text:?} is no object, expected resource/namespace/name")),
        }
    }
}

impl TryFrom<String> for ObjectId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ObjectId> for String {
    fn from(id: ObjectId) -> Self {
        id.to_string()
    }
}

/// First half of the SHA-256 of some content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ContentDigest(pub u128);

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0 >> 96)
    }
}

/// One version of an object, as somebody showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenVersion {
    /// Incarnation.
    pub uid: String,
    /// `metadata.resourceVersion` as shown: the cloud's on the network, on disk and in the API, the node's own in its
    /// local API.
    pub revision: u64,
    /// Digest of everything that an edge receives of the object.
    pub content: ContentDigest,
    /// Digest of the part that a node acts on: without the status of pods and Nodes, which the node itself reports.
    pub significant: ContentDigest,
}

/// What an edge holds under the name of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeenRow {
    /// A version of it.
    Present(SeenVersion),
    /// The API has no such object.
    Absent,
    /// The cloud cannot read it.
    Unreadable,
}

/// A place in the history of the model API. Each restored backup begins a new history; the revision that it was
/// restored to is the first position of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct HistoryPosition {
    /// Number of backups restored before.
    pub history: u32,
    /// Revision within this history.
    pub revision: u64,
}

/// What changed in the model API.
#[derive(Debug, Clone)]
pub struct ApiWrite {
    /// The object.
    pub object: ObjectId,
    /// User who wrote: `system:node:edge-0`, or any other name.
    pub caller: String,
    /// Position of the write.
    pub position: HistoryPosition,
    /// The object after the write, whole; `None` when it was deleted.
    pub body: Option<Arc<Value>>,
}

/// One observation.
#[derive(Debug, Clone)]
pub struct Observation {
    /// When.
    pub at: Millis,
    /// What.
    pub seen: Seen,
}

/// What can be observed.
#[derive(Debug, Clone)]
pub enum Seen {
    /// The model API accepted a write.
    Wrote(ApiWrite),
    /// The model API was restored: every object is as it was at this revision of the history before. Nothing that was
    /// written after it exists any more.
    Restored {
        /// First position of the new history: the next number, and the revision that it was restored to.
        position: HistoryPosition,
    },
    /// A replica's watch or list of one kind has shown everything up to this position.
    ViewMoved {
        /// Number of the replica.
        replica: u32,
        /// The kind, as in [`ObjectId::resource`].
        resource: String,
        /// Position up to which the replica knows the kind.
        position: HistoryPosition,
    },
    /// A replica has ended, with all that it knew.
    ReplicaDown {
        /// Number of the replica.
        replica: u32,
    },
    /// The model API signed a token.
    TokenIssued {
        /// The token.
        token: String,
        /// User name of the account: `system:serviceaccount:NAMESPACE:NAME`.
        account: String,
    },
    /// A node and a replica have a new connection. The numbers of connections are never used again.
    Connected {
        /// Number of the connection.
        connection: u64,
        /// The node, by the certificate.
        node: String,
        /// The machine: named as the node, except for a copy of its disk that runs elsewhere.
        machine: String,
        /// Number of the replica.
        replica: u32,
    },
    /// A connection has ended.
    Closed {
        /// Number of the connection.
        connection: u64,
        /// Why, for the trace.
        why: String,
    },
    /// A sender handed a frame to the network. It may be lost later.
    Sent {
        /// Number of the connection.
        connection: u64,
        /// From the edge to the cloud.
        up: bool,
        /// Lane, from 0.
        lane: u8,
        /// Length of the frame in bytes.
        bytes: usize,
        /// The frame, as the oracle's own reader decodes it.
        frame: SeenFrame,
    },
    /// A watch at the local API of a node showed an object, or (`None`) that it is gone. A reader goes on after a
    /// restart of the agent: what its next list does not contain is gone.
    Shown {
        /// The node.
        node: String,
        /// [`PUSHED`], or the name of a client that follows a selection.
        reader: String,
        /// The object.
        object: ObjectId,
        /// The version that was shown.
        version: Option<SeenVersion>,
    },
    /// A local client of a node follows a selection from now on.
    Following {
        /// The node.
        node: String,
        /// Name of the client.
        reader: String,
        /// What it follows.
        selection: Selection,
        /// User name of the account whose token it shows; `None` for the node's own credentials.
        account: Option<String>,
    },
    /// A local client follows nothing any more.
    Unfollowed {
        /// The node.
        node: String,
        /// Name of the client.
        reader: String,
    },
    /// What the disk of a crashed agent holds of the pushed set.
    OnDisk {
        /// The node.
        node: String,
        /// All rows.
        rows: Vec<(ObjectId, SeenRow)>,
    },
    /// A node got an empty disk.
    DiskReplaced {
        /// The node.
        node: String,
    },
    /// The runtime of a node stopped a pod.
    PodStopped {
        /// The node.
        node: String,
        /// The pod.
        object: ObjectId,
        /// Its incarnation.
        uid: String,
    },
    /// The local API of a node, or its agent, accepted a report.
    ReportAccepted {
        /// The node.
        node: String,
        /// The object that the report is about.
        object: ObjectId,
        /// Its incarnation; empty for an object that the report creates.
        uid: String,
        /// Text that no other report has, at the place that `oracle::content::marker` reads.
        marker: String,
    },
    /// The use of a budget.
    Usage {
        /// Who holds the memory: `replica-0`, `edge-3`.
        host: String,
        /// Name of the budget.
        budget: String,
        /// Who is charged; empty if all are together.
        peer: String,
        /// Bytes or entries in use.
        used: u64,
        /// Bytes or entries allowed.
        limit: u64,
    },
    /// A fault begins.
    FaultBegan {
        /// What it may delay.
        scope: FaultScope,
    },
    /// A fault is over. One that happens only once is over at once.
    FaultOver {
        /// As at its beginning.
        scope: FaultScope,
    },
    /// The last fault has ended and the last operation was done.
    FaultsEnded,
    /// Everything has converged before the end of its time ([`crate::oracle::Oracle::is_satisfied`]), and has stayed so
    /// for a while: from now on nothing may happen any more.
    Settled,
    /// The simulation ends.
    Finished,
}

/// What a fault may delay. It excuses nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultScope {
    /// All nodes and kinds: a replica, the API server, watches and calls about pods.
    Everything,
    /// Objects of one kind, as in [`ObjectId::resource`], on all nodes. What else is needed still arrives.
    Kind(String),
    /// One node: its link, disk, clock or process.
    Node(String),
    /// A node with two processes, which are made to wait for each other.
    Identity(String),
    /// A node in whose name somebody breaks the rules.
    Hostile(String),
}

/// Which objects somebody follows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Selection {
    /// The kind, as in [`ObjectId::resource`].
    pub resource: String,
    /// Namespace; empty for all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Labels with their values, joined by commas: `app=web,tier=front`; empty for all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub labels: String,
    /// Field selector; empty for all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fields: String,
}

/// A frame of either dialect, as far as the oracle reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeenFrame {
    /// First frame of an edge.
    Hello {
        /// Objects that the edge holds in the pushed set; `None` if it sent a digest.
        inventory: Option<Vec<ObjectId>>,
    },
    /// Answer to the hello.
    Welcome {
        /// Epoch, as cluster and generation.
        epoch: String,
    },
    /// The cloud wants the whole inventory.
    InventoryRequest {
        /// Subscription; 0 is the pushed set.
        subscription: u32,
    },
    /// Part of an inventory.
    InventoryPart {
        /// Subscription.
        subscription: u32,
        /// What the edge holds.
        objects: Vec<ObjectId>,
        /// The last part.
        last: bool,
    },
    /// News about one object.
    Deliver(SeenDelivery),
    /// Everything up to these positions is on disk.
    Ack {
        /// Lane and position.
        lanes: Vec<(u8, u64)>,
    },
    /// One delivery could not be stored.
    Refuse {
        /// Lane of the delivery.
        lane: u8,
        /// Position of the delivery.
        seq: u64,
    },
    /// Everything that was missing is acknowledged.
    CaughtUp {
        /// Subscription.
        subscription: u32,
        /// Epoch, as in [`SeenFrame::Welcome`].
        epoch: String,
    },
    /// The edge follows a selection.
    Subscribe {
        /// Number of the subscription.
        subscription: u32,
        /// What it follows.
        selection: Selection,
        /// Token of the client that asks; `None` for the node itself.
        token: Option<String>,
    },
    /// The edge follows a selection no more.
    Unsubscribe {
        /// Number of the subscription.
        subscription: u32,
    },
    /// The cloud ended a subscription.
    SubscriptionClosed {
        /// Number of the subscription.
        subscription: u32,
    },
    /// A request of the edge.
    Request {
        /// Number within the session.
        id: u64,
        /// Method and path, or operation and resource of a message.
        what: String,
        /// Token of the client that asks; `None` for the node itself.
        token: Option<String>,
    },
    /// An answer of the cloud.
    Reply {
        /// Number of the request.
        id: u64,
        /// HTTP status; 0 for a message.
        code: u32,
        /// Objects in the answer, with their versions.
        objects: Vec<(ObjectId, SeenVersion)>,
    },
    /// Renewal of a lease, its answer, a ping, a pong, an attestation.
    Keepalive,
    /// Last frame.
    Goodbye {
        /// Number of the reason.
        reason: u64,
    },
    /// A document of dialect `kubeedge`.
    Document {
        /// Operation of its route.
        operation: String,
        /// Resource of its route.
        resource: String,
        /// Objects in the content.
        objects: Vec<(ObjectId, SeenVersion)>,
    },
    /// Bytes that the reader cannot decode.
    Undecodable {
        /// Why.
        reason: String,
    },
}

/// One delivery of dialect `tombolo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenDelivery {
    /// Subscription; 0 is the pushed set.
    pub subscription: u32,
    /// Position in its lane.
    pub seq: u64,
    /// The object.
    pub object: ObjectId,
    /// The news.
    pub change: SeenChange,
    /// Objects that a pod needs.
    pub dependencies: Vec<ObjectId>,
}

/// What a delivery says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeenChange {
    /// The object, with its body.
    Upsert(SeenVersion),
    /// The version of content that the edge holds.
    Adopt {
        /// Incarnation.
        uid: String,
        /// Its revision.
        revision: u64,
    },
    /// The edge must not hold it any more.
    Delete,
    /// The API has no such object.
    Absent,
    /// The cloud cannot read it.
    Unreadable,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_written_and_read_as_text() {
        for text in ["pods/team/web", "nodes//edge-0", "statefulsetgrids.superedge.io/a/b", "secrets/a/x/y"] {
            let id: ObjectId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
            assert_eq!(serde_json::from_value::<ObjectId>(serde_json::to_value(&id).unwrap()).unwrap(), id);
        }
        for text in ["", "pods", "pods/team", "pods/team/", "/team/web"] {
            assert!(text.parse::<ObjectId>().is_err(), "{text:?}");
        }
        let (group, plural) = ("superedge.io", "servicegrids");
        assert_eq!(ObjectId::new("servicegrids.superedge.io", "a", "b").group_and_plural(), (group, plural));
    }

    #[test]
    fn positions_of_a_later_history_are_later_whatever_their_revisions() {
        let at = |history, revision| HistoryPosition { history, revision };
        assert!(at(1, 5) > at(0, 900) && at(0, 6) > at(0, 5));
    }
}
