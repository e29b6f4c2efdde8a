//! What nodes ask and report: every request is run in the node's name, and every request gets an answer.
//!
//! There is no dispatcher: a node's owner task runs its requests itself, a bounded number at a time, so that one node
//! never waits for another. Rights are the API server's to judge (docs/security.md#what-a-node-may-do): reads that our
//! own index answers are the one exception, and there the reference of a bound pod is the right.

mod api;
mod application;
mod bounds;
mod contested;
mod deprecated;
mod heartbeat;
mod labels;
mod lease;
mod member;
mod memory;
mod message;
mod objects;
mod optional;
mod order;
mod outcome;
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

use super::Downstream;
use crate::bootstrap::identities::Identities;
use crate::kube::{CallError, Kube};
use crate::turns::Turns;
use bounds::Gates;
use order::{Line, Position};
use outcome::code_of;

pub(crate) use application::ApplicationTarget;
pub use bounds::{RequestBound, RequestBounds, RequestKind};
pub use contested::CONTESTED_REASON;
pub(crate) use lease::SETTLED_AFTER;
pub use lease::{Held as HeldLease, Renewal};
pub use memory::reply_with;
pub use order::Received;
pub(crate) use outcome::reason_of;

/// How long a service-account token is asked for again while the Node authorizer lags behind
/// (docs/reference/kubernetes.md#authorizer-lag).
const TOKEN_PATIENCE: Duration = Duration::from_secs(2);

/// Wait between two of these attempts.
const TOKEN_RETRY: Duration = Duration::from_millis(200);

/// How long a new node's labels are tried to be set: nothing sets them later.
const LABEL_PATIENCE: Duration = Duration::from_secs(4);

/// Wait between two of these attempts.
const LABEL_RETRY: Duration = Duration::from_millis(500);

/// Namespace of node leases.
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// What a cloudcore without its edge controller tells those who report or ask.
const TURNED_OFF: &str =
    "this cloudcore runs no edge controller (setting edgeController.enable): ask another one";

/// How requests are treated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// Whether messages are run at all; otherwise each is refused.
    pub enabled: bool,
    /// Heartbeats in reports of older edges that are older than this get the present time.
    pub heartbeat_age_max: Duration,
    /// Bounds over all nodes together.
    pub bounds: RequestBounds,
}

impl Default for UpstreamSettings {
    /// KubeEdge's 10 seconds, and no bounds but those of each node.
    fn default() -> Self {
        Self { enabled: true, heartbeat_age_max: Duration::from_secs(10), bounds: RequestBounds::new() }
    }
}

/// Runs what nodes ask. Cheap to clone.
#[derive(Clone)]
pub struct Upstream {
    kube: Kube,
    down: Arc<Downstream>,
    gates: Gates,
    lines: Turns<Line>,
    enabled: bool,
    heartbeat_age_max: Duration,
    /// Told before a Node is created; none where nobody has a certificate.
    identities: Option<Arc<Identities>>,
}

impl Upstream {
    /// Upstream of one cluster, with the default settings; `down` answers what the node may read from memory.
    #[must_use]
    pub fn new(kube: Kube, down: Arc<Downstream>) -> Self {
        let UpstreamSettings { enabled, heartbeat_age_max, .. } = UpstreamSettings::default();
        let (gates, lines) = Default::default();
        Self { kube, down, gates, lines, enabled, heartbeat_age_max, identities: None }
    }

    /// The same, with the records of certificates, which are told of registrations.
    #[must_use]
    pub(crate) fn with_identities(self, identities: Arc<Identities>) -> Self {
        Self { identities: Some(identities), ..self }
    }

    /// The same with other settings than the default ones.
    #[must_use]
    pub fn with_settings(self, settings: &UpstreamSettings) -> Self {
        let UpstreamSettings { enabled, heartbeat_age_max, bounds } = settings;
        let (enabled, heartbeat_age_max) = (*enabled, *heartbeat_age_max);
        Self { gates: Gates::new(bounds), enabled, heartbeat_age_max, ..self }
    }

    /// Answers one request of a node by calls to the API server. What needs none is answered by
    /// [`held_in_memory`](Self::held_in_memory), which is asked first.
    pub async fn answer(&self, node: &NodeId, mut received: Received) -> Answered {
        let id = received.request.id;
        let timeout = received.request.timeout.min(REQUEST_TIMEOUT_MAX);
        let _turn = match received.turn(timeout).await {
            Ok(turn) => turn,
            Err(error) => {
                let body = failed(&received.request.body, &error);
                return Answered { reply: Reply { id, body }, expelled: Vec::new() };
            }
        };
        let Received { request, position, record, .. } = received;
        let mut expelled = Vec::new();
        let body = match (request.body, request.caller_token) {
            (RequestBody::Message(message), None) => {
                let (answer, pods) = self.answer_in_turn(node, *message, record, position.as_ref()).await;
                expelled = pods;
                ReplyBody::Message(Box::new(answer))
            }
            (RequestBody::Message(message), Some(_)) => {
                let sentence =
                    "messages are the node's own: send an API call with the token of a local client";
                ReplyBody::Message(Box::new(message.controller_error(fresh_id(), now_millis(), sentence)))
            }
            (RequestBody::Api(call), token) => ReplyBody::Api(
                self.answer_api(node, call, token.as_deref(), timeout, position.as_ref()).await,
            ),
        };
        Answered { reply: Reply { id, body }, expelled }
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

/// What became of a request.
#[derive(Debug)]
pub struct Answered {
    /// The answer.
    pub reply: Reply,
    /// Pods that the node has reported and that it should not have: their deletion is to be sent again.
    pub expelled: Vec<ObjectKey>,
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

/// A refusal in the form that Kubernetes clients read.
pub(crate) fn refusal(code: u16, reason: &str, message: &str) -> ApiReply {
    ApiReply::refusal(&StatusError::new(code, reason, message))
}

fn fresh_id() -> MessageId {
    MessageId::from_random_bytes(rand::random())
}

fn now_millis() -> i64 {
    i64::try_from(unix_millis()).unwrap_or(i64::MAX)
}
