//! Responses of the join port. Every refusal is one sentence in plain text.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use tombolo_proto::NodeId;

use super::identities::IdentityError;
use super::join_tokens;

/// Default retry time.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(5);

pub(super) type RouteResponse = Response<Full<Bytes>>;

/// A refusal.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) sentence: String,
    /// Retry time, if a retry may help.
    retry_after: Option<Duration>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, sentence: impl Into<String>) -> Self {
        let retry_after = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(RETRY_AFTER_DEFAULT);
        Self { status, sentence: sentence.into(), retry_after }
    }

    pub(super) fn answer(self) -> RouteResponse {
        let mut answer = text(self.status, self.sentence);
        if let Some(after) = self.retry_after {
            // Round up: a client that comes back a moment too early would be refused again.
            let seconds = after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0));
            answer.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        answer
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn unknown(error: IdentityError) -> Refusal {
    let sentence = error.to_string();
    match error {
        IdentityError::TooOften(left) => {
            let status = StatusCode::TOO_MANY_REQUESTS;
            Refusal { status, sentence, retry_after: Some(left) }
        }
        _ => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, sentence),
    }
}

pub(super) fn unauthorized(sentence: String) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, sentence)
}

pub(super) fn is_taken(node: &NodeId, what: &str) -> Refusal {
    let sentence = format!(
        "node {node} {what}: this join token may not take over its name. Delete the Node, choose another name, or \
         create a token that replaces it (`tombolo token create --node {node} --replace`)"
    );
    Refusal::new(StatusCode::CONFLICT, sentence)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn refused(error: join_tokens::Refused) -> Refusal {
    let status = match error {
        join_tokens::Refused::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        join_tokens::Refused::OtherName(_) => StatusCode::FORBIDDEN,
        _ => StatusCode::UNAUTHORIZED,
    };
    Refusal::new(status, error.to_string())
}

pub(super) fn text(status: StatusCode, sentence: String) -> RouteResponse {
    response(status, "text/plain; charset=utf-8", sentence.into())
}

pub(super) fn response(status: StatusCode, content_type: &'static str, body: Bytes) -> RouteResponse {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}
