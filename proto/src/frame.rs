//! The frames of dialect `tombolo`, version 1, as types. `codec` turns them into bytes and back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::ids::{CloudRevision, Epoch, Lane, NodeId, RequestId, Seq, StoreId, SubscriptionId};
use crate::message::{Message, StatusError};
use crate::object::{InventoryEntry, ObjectKey, ObjectVersion, Resource, SharedObject};

/// Everything that travels between a cloud session and an edge session.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// Edge to cloud, first frame of a connection.
    Hello(Hello),
    /// Cloud to edge, answer to the hello.
    Welcome(Welcome),
    /// Cloud to edge: send the whole inventory of this subscription.
    InventoryRequest {
        /// Pushed set or subscription.
        subscription: SubscriptionId,
    },
    /// Edge to cloud: part of an inventory that did not fit the hello.
    InventoryPart(InventoryPart),
    /// Cloud to edge: one object, or its deletion.
    Deliver(Deliver),
    /// A delivery of which only the position and subscription could be read: never sent, and refused as this one
    /// object.
    Undecodable(Undecodable),
    /// Edge to cloud: everything up to these positions is on the edge's disk or was refused.
    Ack {
        /// Highest processed position of each lane that moved.
        lanes: Vec<(Lane, Seq)>,
    },
    /// Edge to cloud: one delivery could not be stored.
    Refuse(Refusal),
    /// Cloud to edge: everything that was missing in this subscription when it was compared has been acknowledged.
    CaughtUp {
        /// Pushed set or subscription.
        subscription: SubscriptionId,
        /// The history that the subscription now follows.
        epoch: Epoch,
        /// The cloud's revision when the subscription was compared.
        revision: CloudRevision,
    },
    /// Edge to cloud: a query or a write.
    Request(Request),
    /// Cloud to edge: the answer.
    Reply(Reply),
    /// Edge to cloud: list and follow a resource.
    Subscribe(Subscribe),
    /// Edge to cloud: stop following.
    Unsubscribe {
        /// The subscription.
        subscription: SubscriptionId,
    },
    /// Cloud to edge: a subscription ended or was refused.
    SubscriptionClosed {
        /// The subscription.
        subscription: SubscriptionId,
        /// HTTP status code that a Kubernetes client would see.
        code: u16,
        /// Sentence for the operator.
        reason: String,
    },
    /// Edge to cloud: renew this node's lease. The whole lease object is not sent.
    LeaseRenew {
        /// `spec.renewTime`, microseconds since the Unix epoch.
        renew_time_micros: i64,
    },
    /// Cloud to edge: outcome of the newest renewal.
    LeaseRenewed {
        /// The renewal that is answered.
        renew_time_micros: i64,
        /// HTTP status code of the API server; 200 when it is stored.
        code: u16,
    },
    /// Cloud to edge: how far the cloud's history has advanced. The edge keeps the newest one and sends it with its
    /// next hello.
    Attestation {
        /// From the cloud for the cloud: at most [`crate::limits::ATTESTATION_LEN_MAX`] bytes that are opaque to an
        /// edge.
        proof: Bytes,
    },
    /// Either side: requests a sign of life.
    Ping {
        /// Echoed by the pong.
        id: u64,
    },
    /// Either side: answer to a ping.
    Pong {
        /// Id of the ping.
        id: u64,
    },
    /// Either side, last frame: why the session ends.
    Goodbye(Goodbye),
}

/// First frame of an edge.
#[derive(Debug, Clone, PartialEq)]
pub struct Hello {
    /// Protocol versions that the edge speaks, lowest and highest.
    pub versions: (u32, u32),
    /// The node that the edge claims to be; checked against its certificate.
    pub node: NodeId,
    /// Identity of its store.
    pub store: StoreId,
    /// The history that its revisions belong to; none when it has never caught up.
    pub epoch: Option<Epoch>,
    /// Version of the trimming rules under which its content hashes were made; 0 when it holds nothing.
    pub trim_version: u32,
    /// Its abilities, see [`features`].
    pub features: u64,
    /// What it holds of the pushed set.
    pub inventory: Inventory,
    /// Software version, for operators.
    pub agent: String,
    /// Identity of the edge's process, drawn anew by each process; 0 when not stated. When it returns after another
    /// process with the same node identity, both are alive.
    pub instance: u64,
    /// The newest attestation that the edge received; empty when there is none.
    pub attestation: Bytes,
}

/// Optional abilities, one bit each.
pub mod features {
    /// Reads object bodies compressed with zstd.
    pub const ZSTD: u64 = 1;
    /// Understands objects that are needed and that the cloud cannot read.
    pub const UNREADABLE: u64 = 2;
    /// Attestations of the cloud's history: an edge keeps them, a cloud checks them.
    pub const ATTESTATION: u64 = 4;
    /// Understands objects that it follows and that the cloud cannot read.
    pub const UNREADABLE_FOLLOWED: u64 = 8;
    /// Everything that this version can do.
    pub const ALL: u64 = ZSTD | UNREADABLE | ATTESTATION | UNREADABLE_FOLLOWED;
}

/// What an edge holds in one subscription: listed when small, summarised when large.
#[derive(Debug, Clone, PartialEq)]
pub enum Inventory {
    /// Every entry.
    Full(Vec<InventoryEntry>),
    /// Order-independent digest of this store over all entries, see `inventory::digest`.
    Digest {
        /// Number of entries.
        count: u64,
        /// The digest.
        digest: [u8; 16],
    },
}

/// Part of an inventory; the last part is marked.
#[derive(Debug, Clone, PartialEq)]
pub struct InventoryPart {
    /// Pushed set or subscription.
    pub subscription: SubscriptionId,
    /// Up to [`crate::limits::INVENTORY_PART_MAX`] entries.
    pub entries: Vec<InventoryEntry>,
    /// No more parts follow.
    pub last: bool,
}

/// Answer of the cloud to a hello that it accepts.
#[derive(Debug, Clone, PartialEq)]
pub struct Welcome {
    /// Chosen protocol version.
    pub version: u32,
    /// History of the cloud's revisions.
    pub epoch: Epoch,
    /// Features that both sides have.
    pub features: u64,
    /// Version of the trimming rules in force.
    pub trim_version: u32,
    /// Silence after which the cloud expects a ping.
    pub ping_interval: Duration,
    /// Silence after which the cloud ends the session.
    pub idle_timeout: Duration,
    /// The cloud's wall clock, milliseconds since the Unix epoch, so that an edge can detect a wrong clock.
    pub unix_millis: u64,
    /// Software version, for operators.
    pub agent: String,
}

/// One object, or its deletion, at one position of one lane.
#[derive(Debug, Clone, PartialEq)]
pub struct Deliver {
    /// Position in the lane that carries the frame.
    pub seq: Seq,
    /// Pushed set or subscription.
    pub subscription: SubscriptionId,
    /// What happens to which object.
    pub change: Change,
}

/// A delivery whose content breaks a rule of the codec. Its position and subscription are known, so the session
/// continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undecodable {
    /// Position in the lane that carries the frame.
    pub seq: Seq,
    /// Pushed set or subscription.
    pub subscription: SubscriptionId,
    /// The broken rule, in a sentence of at most 1,024 bytes.
    pub reason: String,
}

/// What a delivery does at the edge.
#[derive(Debug, Clone)]
pub enum Change {
    /// Hold this version.
    Upsert(Arc<SharedObject>),
    /// Remove the object: it was deleted, or this node no longer needs it.
    Delete {
        /// Which object.
        key: ObjectKey,
        /// The version that was deleted, when the cloud knows it.
        version: Option<ObjectVersion>,
    },
    /// The cloud has no such object, although something on the node refers to it.
    Absent {
        /// Which object.
        key: ObjectKey,
    },
    /// Something on the node refers to this object, or it is followed, and the cloud cannot read it. The edge keeps
    /// what it holds of it; a version of another epoch has the revision 0 from now on, which is older than any other.
    /// In the pushed set only sent to edges with [`features::UNREADABLE`], in other subscriptions with
    /// [`features::UNREADABLE_FOLLOWED`].
    Unreadable {
        /// Which object.
        key: ObjectKey,
    },
    /// The content that the edge holds under this key is right, but has another revision in the cloud's history: keep
    /// the body, adopt the version. Sent when UID and content hash are equal and only the revision differs, mainly
    /// after a change of epoch.
    Adopt {
        /// Which object.
        key: ObjectKey,
        /// The version of the held content from now on.
        version: ObjectVersion,
    },
}

impl Change {
    /// Which object the change is about.
    #[must_use]
    pub fn key(&self) -> &ObjectKey {
        match self {
            Self::Upsert(object) => &object.key,
            Self::Delete { key, .. }
            | Self::Absent { key }
            | Self::Unreadable { key }
            | Self::Adopt { key, .. } => key,
        }
    }
}

impl PartialEq for Change {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Upsert(a), Self::Upsert(b)) => {
                a.key == b.key
                    && a.version == b.version
                    && a.body == b.body
                    && a.dependencies == b.dependencies
            }
            (Self::Delete { key: a, version: av }, Self::Delete { key: b, version: bv }) => {
                a == b && av == bv
            }
            (Self::Absent { key: a }, Self::Absent { key: b }) => a == b,
            (Self::Unreadable { key: a }, Self::Unreadable { key: b }) => a == b,
            (Self::Adopt { key: a, version: av }, Self::Adopt { key: b, version: bv }) => a == b && av == bv,
            _ => false,
        }
    }
}

/// Why a delivery was not stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// Lane of the delivery.
    pub lane: Lane,
    /// Position of the delivery.
    pub seq: Seq,
    /// Kind of failure.
    pub reason: RefusalReason,
    /// Text for the operator, at most 1,024 bytes.
    pub message: String,
}

/// Kinds of failure that make an edge refuse a delivery. The set is open: new reasons read as `Other`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// The disk is full.
    StorageFull,
    /// The store failed in another way.
    Storage,
    /// The body is not an object that the edge can read.
    Malformed,
    /// The object exceeds a limit of the edge.
    TooLarge,
    /// Anything else.
    Other,
}

/// A query or a write of an edge.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Chosen by the edge, unique in the session.
    pub id: RequestId,
    /// Time after which the edge no longer waits.
    pub timeout: Duration,
    /// The request itself.
    pub body: RequestBody,
    /// Bearer token of the local client on whose behalf the edge sends the request; none: the node itself.
    pub caller_token: Option<String>,
}

/// The two forms of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestBody {
    /// One of KubeEdge's messages (docs/reference/kubeedge.md#upstream-messages).
    Message(Box<Message>),
    /// A Kubernetes API call.
    Api(ApiRequest),
}

/// A Kubernetes API call, as HTTP has it.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiRequest {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: String,
    /// Path and query, starting with `/`.
    pub path_and_query: String,
    /// `Content-Type` of the body; empty without one.
    pub content_type: String,
    /// `Accept`; empty for JSON.
    pub accept: String,
    /// Body; empty without one.
    pub body: Bytes,
}

impl ApiRequest {
    /// A call without a body that is answered in JSON.
    #[must_use]
    pub fn new(method: &str, path_and_query: impl Into<String>) -> Self {
        let (content_type, accept, body) = Default::default();
        Self { method: method.to_owned(), path_and_query: path_and_query.into(), content_type, accept, body }
    }
}

/// Answer to a [`Request`].
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// Id of the request.
    pub id: RequestId,
    /// The reply itself.
    pub body: ReplyBody,
}

/// The two forms of a reply.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyBody {
    /// Answer to a message; refusals are messages of operation `error` or carry a `Status`.
    Message(Box<Message>),
    /// Answer to an API call, or a refusal of either form.
    Api(ApiReply),
}

/// Answer of the Kubernetes API, or of cloudcore in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiReply {
    /// HTTP status code.
    pub code: u16,
    /// `Content-Type` of the body.
    pub content_type: String,
    /// Body: an object, a list or a `Status`.
    pub body: Bytes,
}

impl ApiReply {
    /// A refusal as a Kubernetes `Status`, which clients can read.
    #[must_use]
    pub fn refusal(error: &StatusError) -> Self {
        Self { code: error.code, content_type: "application/json".to_owned(), body: error.to_status() }
    }
}

/// List and follow a resource, as the node or as the local client with the token.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscribe {
    /// Chosen by the edge, never [`SubscriptionId::NODE`].
    pub subscription: SubscriptionId,
    /// What to follow.
    pub resource: Resource,
    /// One namespace, or all when empty.
    pub namespace: String,
    /// Label selector in the query form; empty for all.
    pub label_selector: String,
    /// Field selector in the query form; empty for all.
    pub field_selector: String,
    /// Bearer token of the local client; none: the node itself.
    pub caller_token: Option<String>,
    /// The history that the edge's copy follows, when it has one.
    pub epoch: Option<Epoch>,
    /// What the edge holds of the resource.
    pub inventory: Inventory,
}

/// Why a session ends, and when to reconnect.
#[derive(Debug, Clone, PartialEq)]
pub struct Goodbye {
    /// Kind of end.
    pub reason: GoodbyeReason,
    /// Text for the operator, at most 1,024 bytes.
    pub message: String,
    /// Do not reconnect earlier than this.
    pub retry_after: Duration,
}

/// Reasons for the end. The set is open: new reasons read as `Other`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GoodbyeReason {
    /// The process stops or hands the node over.
    Draining,
    /// A newer connection of the same node took over.
    Replaced,
    /// The Node object was deleted: register again.
    NodeDeleted,
    /// The peer broke the protocol.
    ProtocolError,
    /// No common protocol version.
    VersionMismatch,
    /// The node in the hello is not the node in the certificate.
    Forbidden,
    /// The peer was silent or did not keep up.
    Timeout,
    /// The hub has no capacity.
    Overloaded,
    /// Anything else.
    Other,
}
