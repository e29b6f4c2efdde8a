//! Checks whether a caller may read something. The cluster decides (a SubjectAccessReview in the name of this node). A
//! permission is remembered for five minutes and every decision is kept on disk: without a cloud connection the last
//! decision about the same question applies (docs/edge-node.md#tokens-and-reviews).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;
use tombolo_apicore::accounts::USER_PREFIX;
use tombolo_apicore::auth::{Attributes, Identity};
use tombolo_apicore::senders::name_of;

use super::callers::caller;
use super::decisions::{DECISION_AGE_MAX, Decisions};
use super::pass;
use crate::fair::Fair;
use crate::hub::SharedHub;
use crate::identity::WallClock;
use crate::store::{CachedReply, Question};

/// How long a permission is remembered while the cloud is connected.
const REVIEW_INTERVAL: Duration = Duration::from_secs(300);

/// Permissions in memory, at most. When there are more, the oldest one of the sender with most of them is removed and
/// must be requested again.
const REMEMBERED_MAX: usize = 1024;

/// An unchanged decision is written again only after this time, in seconds. This keeps its age right and spares the
/// disk.
const REWRITE_AFTER: u64 = 3600;

/// Time for the cloud's answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Path of subject access reviews.
pub(super) const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// The decision about a permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AccessDecision {
    /// The cluster allows it.
    Allowed,
    /// The cluster refuses it, for this reason.
    Refused(String),
    /// The cluster cannot be asked now and no decision is kept.
    Unknown,
}

#[derive(Serialize, Deserialize)]
struct StoredDecision {
    allowed: bool,
    reason: String,
}

/// Checks permissions.
pub(super) struct Rights {
    decisions: Arc<Decisions>,
    hub: SharedHub,
    clock: WallClock,
    allowed: Mutex<Fair<String, Question, Instant>>,
}

impl Rights {
    pub(super) fn new(decisions: Arc<Decisions>, hub: SharedHub, clock: WallClock) -> Self {
        Self { decisions, hub, clock, allowed: Mutex::new(Fair::new(REMEMBERED_MAX)) }
    }

    /// Whether the caller may do what the attributes say.
    pub(super) async fn decide(&self, asked: &Attributes) -> AccessDecision {
        let question = question(asked);
        let known = self.allowed.lock().get(&question).copied();
        if known.is_some_and(|at| at.elapsed() < REVIEW_INTERVAL) {
            return AccessDecision::Allowed;
        }
        match self.review(asked).await {
            Some(row) => {
                self.note(asked, row.allowed, &row.reason);
                if row.allowed { AccessDecision::Allowed } else { AccessDecision::Refused(row.reason) }
            }
            None => self.stored(asked),
        }
    }

    /// The last decision, unless it is too old.
    pub(super) fn stored(&self, asked: &Attributes) -> AccessDecision {
        let kept = self.decisions.last(&question(asked));
        let age = |at: u64| self.clock.unix_seconds().saturating_sub(at);
        let fresh = kept.filter(|kept| age(kept.given_at) <= DECISION_AGE_MAX);
        match fresh.and_then(|kept| serde_json::from_slice::<StoredDecision>(&kept.body).ok()) {
            Some(StoredDecision { allowed: true, .. }) => AccessDecision::Allowed,
            Some(StoredDecision { allowed: false, reason }) => AccessDecision::Refused(reason),
            None => AccessDecision::Unknown,
        }
    }

    /// Records a decision of the cluster.
    pub(super) fn note(&self, asked: &Attributes, allowed: bool, reason: &str) {
        let (sender, question) = (name_of(&asked.identity), question(asked));
        // Refusals are not remembered in memory, so a permission that was just granted works at the next attempt.
        if allowed {
            self.allowed.lock().insert(sender.clone(), question.clone(), 1, Instant::now());
        } else {
            self.allowed.lock().remove(&question);
        }
        let row = StoredDecision { allowed, reason: reason.to_owned() };
        let body = Bytes::from(serde_json::to_vec(&row).unwrap_or_default());
        let now = self.clock.unix_seconds();
        let kept = self.decisions.last(&question);
        if kept.is_some_and(|kept| kept.body == body && now.saturating_sub(kept.given_at) < REWRITE_AFTER) {
            return;
        }
        self.decisions.keep(sender, question, CachedReply { given_at: now, body });
    }

    async fn review(&self, asked: &Attributes) -> Option<StoredDecision> {
        let identity = &asked.identity;
        let mut attributes = json!({
            "verb": asked.verb, "group": asked.group, "version": asked.version, "resource": asked.resource,
            "subresource": asked.subresource, "namespace": asked.namespace, "name": asked.name,
        });
        for (name, selector) in
            [("fieldSelector", &asked.field_selector), ("labelSelector", &asked.label_selector)]
        {
            if !selector.is_empty() {
                attributes[name] = json!({"rawSelector": selector});
            }
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": identity.user, "groups": identity.groups, "uid": identity.uid, "extra": identity.extra,
                "resourceAttributes": attributes,
            },
        });
        let call = pass::post(ACCESS_REVIEWS.to_owned(), &review);
        let answer = pass::ask(&self.hub, &caller(identity), call, TIMEOUT, None).await.ok()?;
        let status = answer.status.is_success().then(|| &answer.body["status"])?;
        let reason = status["reason"].as_str().unwrap_or_default().to_owned();
        Some(StoredDecision { allowed: status["allowed"].as_bool()?, reason })
    }
}

/// The key of a question. It contains the parts of the caller's identity that a decision may depend on, but not those
/// that change with every token.
fn question(asked: &Attributes) -> Question {
    let Identity { user, uid, groups, .. } = &asked.identity;
    // The groups of a service account follow from its name.
    let mut groups = if user.starts_with(USER_PREFIX) { Vec::new() } else { groups.clone() };
    groups.sort();
    Question::of_sender(
        &name_of(&asked.identity),
        &[
            "right",
            user,
            uid.as_deref().unwrap_or_default(),
            &groups.join("\n"),
            &asked.verb,
            &asked.group,
            &asked.resource,
            &asked.subresource,
            &asked.namespace,
            &asked.name,
            &asked.field_selector,
            &asked.label_selector,
        ],
    )
}
