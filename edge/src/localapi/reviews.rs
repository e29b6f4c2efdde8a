//! Token and access reviews. The kubelet requests them for its callers.
//!
//! The cloud answers them. Without a cloud connection this node answers only if it has evidence: the cluster's keys and
//! the store prove a token valid or invalid, or the cloud has answered the same question before. Otherwise the answer
//! is 503.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::StatusCode;
use serde_json::{Value, json};
use tombolo_apicore::auth::Identity;
use tombolo_apicore::backend::{Endpoint, EndpointRequest};
use tombolo_apicore::senders::name_of;
use tombolo_apicore::status::ApiError;

use super::bearer_tokens::{BearerTokens, Finding};
use super::callers::is_operator;
use super::decisions::{DECISION_AGE_MAX, Decisions};
use super::pass::{Passed, pass};
use super::token_requests::expiry;
use crate::store::{CachedReply, Question};

/// Time for the cloud's answer. The kubelet waits ten seconds for a review.
const TIMEOUT: Duration = Duration::from_secs(8);

/// Groups and resources of all reviews.
pub(super) const REVIEWS: [(&str, &str); 6] = [
    ("authentication.k8s.io", TOKEN_REVIEWS),
    ("authentication.k8s.io", SELF_REVIEWS),
    ("authorization.k8s.io", "subjectaccessreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
];

const TOKEN_REVIEWS: &str = "tokenreviews";
const SELF_REVIEWS: &str = "selfsubjectreviews";

/// Answers reviews.
pub(super) struct Reviews {
    pub(super) tokens: Arc<BearerTokens>,
    pub(super) decisions: Arc<Decisions>,
}

impl Endpoint for Reviews {
    fn call(&self, request: EndpointRequest) -> BoxFuture<'_, Result<(StatusCode, Value), ApiError>> {
        Box::pin(self.answer(request))
    }
}

impl Reviews {
    async fn answer(&self, request: EndpointRequest) -> Result<(StatusCode, Value), ApiError> {
        match pass(&self.tokens.hub, &request, TIMEOUT).await {
            Ok(Passed { status, body }) => {
                if status == StatusCode::CREATED {
                    self.keep(&request, &body);
                }
                Ok((status, body))
            }
            Err(away) => {
                let found = self.found(&request).or_else(|| self.kept(&request));
                found.map(|body| (StatusCode::CREATED, body)).ok_or(away)
            }
        }
    }

    /// Keeps the status of an answer.
    fn keep(&self, request: &EndpointRequest, answer: &Value) {
        let body = Bytes::from(answer["status"].to_string());
        let answer = CachedReply { given_at: self.tokens.clock.unix_seconds(), body };
        self.decisions.keep(name_of(&request.attributes.identity), question(request), answer);
    }

    /// The cloud's last answer, unless it is too old. A token that this node can parse must not have expired.
    fn kept(&self, request: &EndpointRequest) -> Option<Value> {
        let kept = self.decisions.last(&question(request))?;
        let now = self.tokens.clock.unix_seconds();
        let age = now.saturating_sub(kept.given_at);
        let token = request.body.pointer("/spec/token").and_then(Value::as_str);
        if token.and_then(expiry).is_some_and(|expires| expires <= now) {
            return None;
        }
        let status: Value = serde_json::from_slice(&kept.body).ok()?;
        (age <= DECISION_AGE_MAX).then(|| with_status(request, status))
    }

    /// The answer that this node finds by itself.
    fn found(&self, request: &EndpointRequest) -> Option<Value> {
        let caller = &request.attributes.identity;
        match request.attributes.resource.as_str() {
            TOKEN_REVIEWS => Some(with_status(request, self.token(&request.body)?)),
            // A caller's identity is already verified. The operator is excluded, because the cloud sees its requests as
            // those of the node.
            SELF_REVIEWS if !is_operator(caller) => {
                Some(with_status(request, json!({"userInfo": caller.user_info()})))
            }
            _ => None,
        }
    }

    /// The status of a token review; none when this node cannot decide.
    fn token(&self, review: &Value) -> Option<Value> {
        let tokens = &self.tokens;
        let token = review.pointer("/spec/token").and_then(Value::as_str)?;
        let (identity, audiences) = match tokens.judge(token) {
            Finding::Good(identity, audiences) => (identity, audiences),
            Finding::Wrong(reason) => return Some(json!({"user": {}, "error": reason})),
            Finding::Undecided(_) => return None,
        };
        let asked = review.pointer("/spec/audiences").and_then(Value::as_array);
        let mut wanted: Vec<String> =
            asked.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        if wanted.is_empty() {
            // The API server's default audience is its issuer. Other audiences are not known here.
            let issuer = tokens.keys.current()?.issuer().to_owned();
            if !audiences.contains(&issuer) {
                return None;
            }
            wanted.push(issuer);
        }
        wanted.retain(|audience| audiences.contains(audience));
        Some(token_status(&identity, &audiences, &wanted))
    }
}

fn token_status(identity: &Identity, audiences: &[String], common: &[String]) -> Value {
    if common.is_empty() {
        let why = format!("token audiences {audiences:?} is invalid for the target audiences");
        return json!({"user": {}, "error": why});
    }
    json!({"authenticated": true, "user": identity.user_info(), "audiences": common})
}

/// The answer to a review.
fn with_status(request: &EndpointRequest, status: Value) -> Value {
    let mut review = request.body.clone();
    // The answer to a self-review is a new object, not the request with a status.
    if request.attributes.resource == SELF_REVIEWS {
        review = json!({"kind": review["kind"], "apiVersion": review["apiVersion"], "metadata": {"creationTimestamp": null}});
    }
    review["status"] = status;
    review
}

/// The key of a question: the caller and the review.
fn question(request: &EndpointRequest) -> Question {
    let about = &request.attributes;
    let (caller, spec) = (&about.identity, request.body["spec"].to_string());
    let parts = ["review", &about.path, &caller.user, caller.uid.as_deref().unwrap_or_default(), &spec];
    Question::of_sender(&name_of(caller), &parts)
}
