//! Token requests of the kubelet: answered by the cloud. The reply is kept, and is the answer to the same request for the
//! same pod while the cloud is away, until the token itself expires (docs/edge-node.md#tokens-and-reviews). Nothing is
//! ever signed here.

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
use crate::store::{Answer, Class, Question, Store};

/// Time for the cloud's answer: the kubelet's own patience with an API server is longer.
const TIMEOUT: Duration = Duration::from_secs(15);

/// See the module.
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

    /// Keeps a reply as long as its pod is here. That it cannot be kept does not make the token worse.
    async fn keep(&self, claim: &Claim, reply: &Value) {
        if !matches!(self.store.holds_pod(&claim.namespace, &claim.pod, &claim.uid), Ok(true)) {
            return;
        }
        let answer = Answer { given_at: self.clock.unix_seconds(), body: Bytes::from(reply.to_string()) };
        if let Err(error) = self.store.keep_answer(claim.question.clone(), answer).await {
            warn!(%error, "the reply to a token request cannot be kept for the time without a cloud");
        }
    }

    /// The reply that was kept, while its pod is here and its token is good.
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

/// What a token is asked for, when its reply may be kept: by this node, for a pod.
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
            || super::access::caller_token(about, request.authorization.as_deref()).is_some()
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

/// When a token says that it expires, in seconds since the Unix epoch. It came from the cloud, so its signature is not
/// looked at: whoever takes it does that.
pub(super) fn expiry(token: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Expiry {
        exp: u64,
    }
    let claims = jsonwebtoken::dangerous::insecure_decode::<Expiry>(token).ok()?.claims;
    Some(claims.exp)
}
