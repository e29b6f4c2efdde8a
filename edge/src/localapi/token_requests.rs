//! Token requests of the kubelet, answered by the cloud. The reply is kept. Without a cloud connection it answers the
//! same request for the same pod until the token expires (docs/edge-node.md#tokens-and-reviews). This node never signs
//! tokens.

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tombolo_apicore::backend::{Endpoint, EndpointRequest};
use tombolo_apicore::status::ApiError;
use tombolo_proto::ids::Uid;
use tracing::warn;

use super::pass::{Passed, pass};
use crate::hub::SharedHub;
use crate::identity::WallClock;
use crate::store::{CachedReply, Class, Question, Store};

/// Time for the cloud's answer. The kubelet waits longer for an API server.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Answers token requests.
pub(super) struct TokenRequests {
    pub(super) store: Store,
    pub(super) hub: SharedHub,
    pub(super) clock: WallClock,
}

impl Endpoint for TokenRequests {
    fn call(&self, request: EndpointRequest) -> BoxFuture<'_, Result<(StatusCode, Value), ApiError>> {
        Box::pin(self.answer(request))
    }
}

impl TokenRequests {
    async fn answer(&self, request: EndpointRequest) -> Result<(StatusCode, Value), ApiError> {
        let claim = Claim::of(&request);
        match pass(&self.hub, &request, TIMEOUT).await {
            Ok(Passed { status, body }) => {
                if let Some(claim) = claim.filter(|_| status == StatusCode::CREATED) {
                    self.keep(&claim, &body).await;
                }
                Ok((status, body))
            }
            Err(away) => {
                let kept = claim.map(|claim| self.kept(&claim)).transpose()?.flatten();
                kept.map(|body| (StatusCode::CREATED, body)).ok_or(away)
            }
        }
    }

    /// Keeps a reply as long as its pod is here. If it cannot be kept, the token is still valid.
    async fn keep(&self, claim: &Claim, reply: &Value) {
        if !matches!(self.store.holds_pod(&claim.namespace, &claim.pod, &claim.uid), Ok(true)) {
            return;
        }
        let answer =
            CachedReply { given_at: self.clock.unix_seconds(), body: Bytes::from(reply.to_string()) };
        if let Err(error) = self.store.keep_answer(claim.question.clone(), answer).await {
            warn!(%error, "cannot keep the reply to a token request for use without a cloud connection");
        }
    }

    /// The kept reply, while its pod is here and its token has not expired.
    fn kept(&self, claim: &Claim) -> Result<Option<Value>, ApiError> {
        let failed = |error: crate::store::ReadError| ApiError::unavailable(error.to_string());
        if !self.store.holds_pod(&claim.namespace, &claim.pod, &claim.uid).map_err(failed)? {
            return Ok(None);
        }
        let Some(answer) = self.store.answer(&claim.question).map_err(failed)? else { return Ok(None) };
        let reply: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let expires = reply.pointer("/status/token").and_then(Value::as_str).and_then(expiry);
        Ok(expires.is_some_and(|expires| self.clock.unix_seconds() < expires).then_some(reply))
    }
}

/// A token request whose reply may be kept: one of this node for a pod.
struct Claim {
    namespace: String,
    pod: String,
    uid: Uid,
    question: Question,
}

impl Claim {
    fn of(request: &EndpointRequest) -> Option<Self> {
        let about = &request.attributes;
        if request.options.dry_run
            || super::callers::caller_token(about, request.authorization.as_deref()).is_some()
        {
            return None;
        }
        let spec = &request.body["spec"];
        let bound = &spec["boundObjectRef"];
        let text = |name: &str| bound[name].as_str().filter(|text| !text.is_empty());
        if text("kind") != Some("Pod") {
            return None;
        }
        let (pod, uid) = (text("name")?.to_owned(), Uid::parse(text("uid")?).ok()?);
        let content = json!([spec["audiences"], spec["expirationSeconds"], pod]).to_string();
        let parts = [about.namespace.as_str(), &about.name, &content];
        let question = Question::of_pod(Class::Token, Some(&uid), &parts);
        Some(Self { namespace: about.namespace.clone(), pod, uid, question })
    }
}

/// The expiry time of a token in seconds since the Unix epoch. The signature is not checked, because the recipient of
/// the token does that.
pub(super) fn expiry(token: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Expiry {
        exp: u64,
    }
    let claims = jsonwebtoken::dangerous::insecure_decode::<Expiry>(token).ok()?.claims;
    Some(claims.exp)
}
