//! May this node, or this local client of a node, list and watch a resource? Asked of the API server whenever a
//! subscription opens, and again for as long as it lasts (docs/security.md#rights-are-asked-for-never-remembered).
//!
//! No answer is remembered. Whoever could choose a question that is taken for another one would be given that one's
//! answer, and a right that has ended would outlive its end. What all nodes ask is asked about their group first, once for all
//! who wait.

use std::time::Duration;

use serde_json::{Value, json};
use tombolo_proto::NodeId;
use tombolo_proto::frame::Subscribe;

use super::selection::Selection;
use super::subscriptions::Closed;
use super::volumes::VolumeKind;
use crate::kube::{Caller, Kube, Right, Unanswered, VERBS, edge_node, is_bearer_token, may_follow};

/// The longest time after which the right to a subscription is asked for again.
pub(super) const REVIEW_INTERVAL: Duration = Duration::from_secs(300);

/// The share of [`REVIEW_INTERVAL`] over which the questions of a fleet that came at once are spread.
const REVIEW_SPREAD: f64 = 0.2;

/// When to ask for a right again: a moment of its own for each subscription.
pub(super) fn next_review() -> Duration {
    REVIEW_INTERVAL.mul_f64(1.0 - REVIEW_SPREAD * rand::random::<f64>())
}

/// A selection that may be followed. Only this module makes them, so that no watch opens that nobody asked about.
#[derive(Debug)]
pub(super) struct Granted(Selection);

impl Granted {
    /// cloudcore's own watch of volumes or claims; the watches of other kinds need a right.
    pub(super) fn volumes(kind: VolumeKind) -> Self {
        Self(Selection::of_volumes(kind))
    }

    pub(super) fn into_selection(self) -> Selection {
        self.0
    }
}

/// Asks the API server about rights.
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

    /// Whether the subscription's owner may both list and watch what it selects.
    ///
    /// # Errors
    /// 400 for what the API server could not read, 403 with the API server's reason, 401 for an unknown token, 503 when
    /// the API server does not answer.
    pub(super) async fn check(&self, node: &NodeId, subscribe: &Subscribe) -> Result<Granted, Closed> {
        let selection = Selection::of(subscribe)?;
        let identity = match &subscribe.caller_token {
            None => edge_node(node),
            // The API server takes an empty token for a malformed question, not for nobody's.
            Some(token) if !is_bearer_token(token) => {
                return Err(Closed::new(
                    401,
                    "the text is no bearer token: it is empty, or no token has its characters",
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

/// What is asked: whether all that is selected may be followed.
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

/// A question that is refused for what it says is never answered; anything else is the cluster's trouble.
fn closed(unanswered: &Unanswered) -> Closed {
    let code = if matches!(unanswered, Unanswered::Unreadable(_)) { 400 } else { 503 };
    Closed::new(code, &unanswered.to_string())
}
