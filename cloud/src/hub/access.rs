//! Whether a node, or a local client of a node, may list and watch a resource. The API server is asked whenever a
//! subscription opens, and again for as long as it lasts (docs/security.md#rights-are-asked-for-never-remembered).
//!
//! No answer is cached. With a cache, a caller who can craft a question that is mistaken for another one would get the
//! answer to that one, and a revoked right would outlive its revocation. Questions that all nodes ask are first asked
//! about their group, once for all callers that are waiting.

use std::time::Duration;

use serde_json::{Value, json};
use tombolo_proto::NodeId;
use tombolo_proto::frame::Subscribe;

use super::closed::Closed;
use super::selection::Selection;
use super::volumes::VolumeKind;
use crate::kube::{Caller, Kube, Right, Unanswered, VERBS, edge_node, is_bearer_token, may_follow};

/// The longest time until the right to a subscription is checked again.
pub(super) const REVIEW_INTERVAL: Duration = Duration::from_secs(300);

/// The fraction of [`REVIEW_INTERVAL`] over which the repeated checks of a fleet that subscribed at once are spread.
const REVIEW_SPREAD: f64 = 0.2;

/// Time until the next check of a right, randomised for each subscription.
pub(super) fn next_review() -> Duration {
    REVIEW_INTERVAL.mul_f64(1.0 - REVIEW_SPREAD * rand::random::<f64>())
}

/// A selection that may be followed. Only this module creates it, so that no watch opens without a check.
#[derive(Debug)]
pub(super) struct Granted(Selection);

impl Granted {
    /// cloudcore's own watch of volumes or claims. Watches of other kinds need a right.
    pub(super) fn volumes(kind: VolumeKind) -> Self {
        Self(Selection::of_volumes(kind))
    }

    pub(super) fn into_selection(self) -> Selection {
        self.0
    }
}

/// Checks rights with the API server.
#[derive(Clone)]
pub struct Access {
    kube: Kube,
}

impl Access {
    /// Access control by this cluster.
    #[must_use]
    pub fn new(kube: Kube) -> Self {
        Self { kube }
    }

    /// Checks that the subscription's owner may both list and watch what it selects.
    ///
    /// # Errors
    /// 400 for a selection that the API server could not parse, 401 for an unknown token, 403 with the API server's
    /// reason, 503 when the API server does not answer.
    pub(super) async fn check(&self, node: &NodeId, subscribe: &Subscribe) -> Result<Granted, Closed> {
        let selection = Selection::of(subscribe)?;
        let identity = match &subscribe.caller_token {
            None => edge_node(node),
            // The API server treats an empty token as a malformed review, not as an unknown token.
            Some(token) if !is_bearer_token(token) => {
                return Err(Closed::new(
                    401,
                    "the text is not a bearer token: it is empty or contains invalid characters",
                ));
            }
            Some(token) => {
                let holder =
                    self.kube.holder(Caller::OwnFor(node), token).await.map_err(|error| closed(&error))?;
                holder.ok_or_else(|| Closed::new(401, "the cluster does not know this token"))?
            }
        };
        for verb in VERBS {
            let attributes = attributes(verb, &selection);
            let by_group = subscribe.caller_token.is_none()
                && self.kube.may_as_edge_node(node, &attributes).await.map_err(|error| closed(&error))?;
            if !by_group {
                self.review(node, &identity, attributes, &selection).await?;
            }
        }
        Ok(Granted(selection))
    }

    async fn review(
        &self,
        node: &NodeId,
        identity: &Value,
        attributes: Value,
        selection: &Selection,
    ) -> Result<(), Closed> {
        let mut spec = identity.clone();
        spec["resourceAttributes"] = attributes;
        match self.kube.right(Caller::OwnFor(node), &spec).await.map_err(|error| closed(&error))? {
            Right::Allowed => Ok(()),
            Right::Refused(why) => {
                let text = |part: &Value| part.as_str().unwrap_or_default().to_owned();
                let (user, verb) = (text(&spec["user"]), text(&spec["resourceAttributes"]["verb"]));
                let resource = &selection.resource;
                Err(Closed::new(403, &format!("{user} may not {verb} {resource} here. {why}")))
            }
        }
    }
}

/// The attributes to ask about: whether everything that is selected may be followed.
fn attributes(verb: &str, selection: &Selection) -> Value {
    let mut attributes = may_follow(verb, &selection.resource, &selection.namespace);
    if let Some(name) = &selection.name {
        attributes["name"] = json!(name);
    }
    if !selection.field_selector.is_empty() {
        attributes["fieldSelector"] = json!({"rawSelector": selection.field_selector});
    }
    if !selection.label_selector.is_empty() {
        attributes["labelSelector"] = json!({"rawSelector": selection.label_selector});
    }
    attributes
}

/// A question that is rejected for its content can never succeed (400); any other failure is the cluster's (503).
fn closed(unanswered: &Unanswered) -> Closed {
    let code = if matches!(unanswered, Unanswered::Unreadable(_)) { 400 } else { 503 };
    Closed::new(code, &unanswered.to_string())
}
