//! Requests and reports of nodes. Every request runs as the node, and every request gets an answer.
//!
//! There is no dispatcher: a node's session task runs its requests itself, a bounded number at a time, so that one node
//! never waits for another. The API server authorizes each request (docs/security.md#what-a-node-may-do). The one
//! exception are reads that our own index answers; there a reference from a pod bound to the node grants the right.

mod api;
mod application;
mod bounds;
mod deprecated;
mod duplicate_identity;
mod from_cache;
mod heartbeat;
mod labels;
mod lease;
mod member;
mod message;
mod objects;
mod optional;
mod order;
mod outcome;
mod position;
mod register;
mod rule_status;
#[cfg(test)]
mod tests;
mod whole;

use std::sync::Arc;
use std::time::Duration;

use tombolo_proto::frame::{ApiReply, Reply, ReplyBody, RequestBody};
use tombolo_proto::limits::REQUEST_TIMEOUT_MAX;
use tombolo_proto::message::{Message, MessageId, StatusError};
use tombolo_proto::session::kubeedge::Application;
use tombolo_proto::{NodeId, ObjectKey};
use tombolo_runtime::time::unix_millis;

use super::NodeObjectCache;
use crate::bootstrap::identities::Identities;
use crate::kube::{CallError, Kube};
use crate::turns::Turns;
use bounds::Gates;
use order::ReportQueueKey;
use outcome::code_of;
use position::Position;

pub(crate) use application::ApplicationTarget;
pub use bounds::{RequestBound, RequestBounds, RequestKind};
pub use duplicate_identity::CONTESTED_REASON;
pub use from_cache::reply_with;
pub(crate) use lease::SETTLED_AFTER;
pub use lease::{Held as HeldLease, Renewal};
pub use order::Received;
pub(crate) use outcome::reason_of;

/// How long a request for a service-account token is retried while the Node authorizer lags behind
/// (docs/reference/kubernetes.md#authorizer-lag).
const TOKEN_PATIENCE: Duration = Duration::from_secs(2);

/// Interval between these attempts.
const TOKEN_RETRY: Duration = Duration::from_millis(200);

/// How long setting a new node's labels is retried. Nothing sets them later.
const LABEL_PATIENCE: Duration = Duration::from_secs(4);

/// Interval between these attempts.
const LABEL_RETRY: Duration = Duration::from_millis(500);

/// Namespace of node leases.
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// The answer of a cloudcore without edge controller to requests and reports.
const TURNED_OFF: &str =
    "the edge controller of this cloudcore is disabled (setting edgeController.enable): use another one";

/// Settings for handling requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// Whether messages are run at all. Otherwise each one is refused.
    pub enabled: bool,
    /// Heartbeats older than this, in reports of older edges, are replaced by the present time.
    pub heartbeat_age_max: Duration,
    /// Bounds over all nodes together.
    pub bounds: RequestBounds,
}

impl Default for UpstreamSettings {
    /// KubeEdge's 10 seconds, and no bounds beyond those of each node.
    fn default() -> Self {
        Self { enabled: true, heartbeat_age_max: Duration::from_secs(10), bounds: RequestBounds::new() }
    }
}

/// Runs the requests of nodes. Cheap to clone.
#[derive(Clone)]
pub struct Upstream {
    kube: Kube,
    down: Arc<NodeObjectCache>,
    gates: Gates,
    lines: Turns<ReportQueueKey>,
    enabled: bool,
    heartbeat_age_max: Duration,
    /// Notified before a Node is created. `None` when certificates are not tracked.
    identities: Option<Arc<Identities>>,
}

impl Upstream {
    /// Creates the upstream of one cluster, with default settings. `down` answers reads from memory.
    #[must_use]
    pub fn new(kube: Kube, down: Arc<NodeObjectCache>) -> Self {
        let UpstreamSettings { enabled, heartbeat_age_max, .. } = UpstreamSettings::default();
        let (gates, lines) = Default::default();
        Self { kube, down, gates, lines, enabled, heartbeat_age_max, identities: None }
    }

    /// Adds the records of certificates, which are notified of registrations.
    #[must_use]
    pub(crate) fn with_identities(self, identities: Arc<Identities>) -> Self {
        Self { identities: Some(identities), ..self }
    }

    /// Replaces the default settings.
    #[must_use]
    pub fn with_settings(self, settings: &UpstreamSettings) -> Self {
        let UpstreamSettings { enabled, heartbeat_age_max, bounds } = settings;
        let (enabled, heartbeat_age_max) = (*enabled, *heartbeat_age_max);
        Self { gates: Gates::new(bounds), enabled, heartbeat_age_max, ..self }
    }

    /// Answers one request of a node with calls to the API server. Requests that need no call are answered by
    /// [`held_in_memory`](Self::held_in_memory), which the caller tries first.
    pub async fn answer(&self, node: &NodeId, mut received: Received) -> Answered {
        let id = received.request.id;
        let timeout = received.request.timeout.min(REQUEST_TIMEOUT_MAX);
        let _turn = match received.turn(timeout).await {
            Ok(turn) => turn,
            Err(error) => {
                let body = failed(&received.request.body, &error);
                return Answered { reply: Reply { id, body }, deleted_pods: Vec::new() };
            }
        };
        let Received { request, position, record, .. } = received;
        let mut deleted_pods = Vec::new();
        let body = match (request.body, request.caller_token) {
            (RequestBody::Message(message), None) => {
                let (answer, pods) = self.answer_in_turn(node, *message, record, position.as_ref()).await;
                deleted_pods = pods;
                ReplyBody::Message(Box::new(answer))
            }
            (RequestBody::Message(message), Some(_)) => {
                let sentence = "a message cannot carry the token of a local client: send an API call instead";
                ReplyBody::Message(Box::new(message.controller_error(fresh_id(), now_millis(), sentence)))
            }
            (RequestBody::Api(call), token) => ReplyBody::Api(
                self.answer_api(node, call, token.as_deref(), timeout, position.as_ref()).await,
            ),
        };
        Answered { reply: Reply { id, body }, deleted_pods }
    }

    async fn answer_in_turn(
        &self,
        node: &NodeId,
        message: Message,
        record: Option<Result<Application, String>>,
        position: Option<&Position>,
    ) -> (Message, Vec<ObjectKey>) {
        let refused =
            |sentence: &str| (message.controller_error(fresh_id(), now_millis(), sentence), Vec::new());
        if let Some(record) = record {
            return (self.answer_application(node, &message, record, position).await, Vec::new());
        }
        if !self.enabled {
            return refused(TURNED_OFF);
        }
        match self.gates.pass(node, &message).await {
            Err(crowded) => refused(&crowded.to_string()),
            Ok(_pass) => self.answer_message(node, message, position).await,
        }
    }
}

/// The outcome of a request.
#[derive(Debug)]
pub struct Answered {
    /// The answer.
    pub reply: Reply,
    /// Reported pods that no longer exist. Their deletion must be sent again.
    pub deleted_pods: Vec<ObjectKey>,
}

/// The answer to a request that was not run.
fn failed(request: &RequestBody, error: &CallError) -> ReplyBody {
    let (code, sentence) = (code_of(error), error.to_string());
    match request {
        RequestBody::Message(message) => {
            ReplyBody::Message(Box::new(message.controller_error(fresh_id(), now_millis(), &sentence)))
        }
        RequestBody::Api(_) => ReplyBody::Api(refusal(code, reason_of(code), &sentence)),
    }
}

/// A refusal in the format of Kubernetes clients.
pub(crate) fn refusal(code: u16, reason: &str, message: &str) -> ApiReply {
    ApiReply::refusal(&StatusError::new(code, reason, message))
}

fn fresh_id() -> MessageId {
    MessageId::from_random_bytes(rand::random())
}

fn now_millis() -> i64 {
    i64::try_from(unix_millis()).unwrap_or(i64::MAX)
}
