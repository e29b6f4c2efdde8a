//! Forwards requests that only the cloud can answer: in the name of this node or with the token of the caller, never
//! with both.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use tombolo_apicore::backend::EndpointRequest;
use tombolo_apicore::status::ApiError;
use tombolo_apicore::tree::tree_bytes;
use tombolo_proto::api_path::encoded;
use tombolo_proto::frame::{ApiReply, ApiRequest};
use tombolo_proto::message::is_passing;

use super::RETRY_AFTER_SECONDS;
use super::callers::{caller, caller_token};
use crate::hub::{CallError, Caller, SharedHub};

/// An answer of the cluster's API server.
pub(super) struct Passed {
    pub(super) status: StatusCode,
    /// An object, or a `Status` with the reason for a refusal.
    pub(super) body: Value,
}

/// Forwards a request.
///
/// # Errors
/// 503 when the cloud cannot be reached or its API server has a problem; 504 when the request may have arrived.
pub(super) async fn pass(
    hub: &SharedHub,
    request: &EndpointRequest,
    timeout: Duration,
) -> Result<Passed, ApiError> {
    let about = &request.attributes;
    let call = post(path_and_query(&about.path, &request.query), &request.body);
    let token = caller_token(about, request.authorization.as_deref()).map(str::to_owned);
    ask(hub, &caller(&about.identity), call, timeout, token).await
}

/// The path and query of a local client's request as sent to the cloud. `path` is decoded, `query` is not.
pub(super) fn path_and_query(path: &str, query: &str) -> String {
    let path = encoded(path);
    if query.is_empty() { path } else { format!("{path}?{query}") }
}

/// A call that creates an object.
pub(super) fn post(path_and_query: String, body: &Value) -> ApiRequest {
    let json = || "application/json".to_owned();
    let body = Bytes::from(body.to_string());
    ApiRequest { method: "POST".to_owned(), path_and_query, content_type: json(), accept: json(), body }
}

/// A call that reads.
pub(super) fn get(path_and_query: &str, accept: &str) -> ApiRequest {
    ApiRequest { accept: accept.to_owned(), ..ApiRequest::new("GET", path_and_query) }
}

/// Memory in bytes that the parsed tree of an answer may take. A review of more than ten thousand rules fits.
const REPLY_TREE_MAX: usize = 16 * 1024 * 1024;

/// Parses an answer as a tree. Lists are not parsed this way, because the authors of objects determine how many times
/// their text's length the tree takes.
///
/// # Errors
/// 503 when the body is not JSON, or its tree would take more than [`REPLY_TREE_MAX`].
pub(super) fn tree(body: &[u8]) -> Result<Value, ApiError> {
    if tree_bytes(body) > REPLY_TREE_MAX {
        return Err(ApiError::unavailable(
            "the cloud's answer has more parts than this node parses: request less, or ask the cluster's API server",
        ));
    }
    serde_json::from_slice(body)
        .map_err(|error| ApiError::unavailable(format!("the cloud's answer is not JSON: {error}")))
}

/// The message of a `Status`, without parsing the rest.
pub(super) fn message(status: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Status {
        message: Option<String>,
    }
    serde_json::from_slice::<Status>(status).ok()?.message
}

/// Makes a call and parses the answer as a tree.
///
/// # Errors
/// As [`pass`] and [`tree`].
pub(super) async fn ask(
    hub: &SharedHub,
    caller: &Caller,
    call: ApiRequest,
    timeout: Duration,
    token: Option<String>,
) -> Result<Passed, ApiError> {
    let reply = heard(hub, caller, call, timeout, token).await?;
    let status = StatusCode::from_u16(reply.code).unwrap_or(StatusCode::BAD_GATEWAY);
    Ok(Passed { status, body: tree(&reply.body)? })
}

/// Makes a call and returns the decision of the cluster's API server.
///
/// # Errors
/// As [`pass`].
pub(super) async fn heard(
    hub: &SharedHub,
    caller: &Caller,
    call: ApiRequest,
    timeout: Duration,
    token: Option<String>,
) -> Result<ApiReply, ApiError> {
    let reply = hub.api(caller, call, timeout, token).await.map_err(|error| unanswered(&error))?;
    if !is_passing(reply.code) {
        return Ok(reply);
    }
    // These codes mean that the API server could not decide.
    let why = message(&reply.body);
    let why = why.as_deref().unwrap_or("it gives no reason");
    let sentence = format!("the cluster's API server cannot answer now (code {}): {why}", reply.code);
    Err(ApiError::unavailable(sentence).retry_after(RETRY_AFTER_SECONDS))
}

/// A refusal of the cluster's API server, with its own message.
pub(super) fn refusal(status: StatusCode, body: &[u8]) -> ApiError {
    let reason = match status {
        StatusCode::UNAUTHORIZED => "Unauthorized",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::BAD_REQUEST => "BadRequest",
        StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
        StatusCode::CONFLICT => "Conflict",
        _ => "",
    };
    ApiError::new(status, reason, message(body).unwrap_or_default())
}

/// The error for a client whose request the cloud has not answered.
pub(super) fn unanswered(error: &CallError) -> ApiError {
    match error {
        CallError::Offline => {
            ApiError::unavailable("the cloud cannot be reached now, and this write needs a cloud connection")
                .retry_after(RETRY_AFTER_SECONDS)
        }
        CallError::TimedOut | CallError::Lost => {
            ApiError::timeout(format!("{error}; the write may have been executed"))
        }
        CallError::Busy => ApiError::too_many_requests(error.to_string()),
        CallError::Refused(_) | CallError::WrongForm => {
            ApiError::unavailable(error.to_string()).retry_after(RETRY_AFTER_SECONDS)
        }
    }
}

#[cfg(test)]
mod tests {
    use tombolo_testkit::{Growth, alone};

    use super::*;

    #[test]
    fn answer_with_too_many_parts_is_refused() {
        if !alone(module_path!(), "answer_with_too_many_parts_is_refused") {
            return;
        }
        let text = format!(r#"{{"message":"no","parts":[{}0]}}"#, r#"{"":0},"#.repeat(500_000));
        let growth = Growth::begin();
        let error = tree(text.as_bytes()).unwrap_err();
        assert!(
            error.code == StatusCode::SERVICE_UNAVAILABLE && error.message.contains("more parts"),
            "{error:?}"
        );
        assert_eq!(
            message(text.as_bytes()).as_deref(),
            Some("no"),
            "the message of a Status is read nevertheless"
        );
        assert!(growth.most() < 8 * 1024 * 1024, "{} bytes for {}", growth.most(), text.len());
        assert_eq!(tree(br#"{"a":[1]}"#).unwrap()["a"][0], 1);
        assert_eq!([message(b"no JSON"), message(br#"{"message":7}"#)], [None, None]);
    }

    #[test]
    fn offline_writes_get_retry_after() {
        let offline = unanswered(&CallError::Offline);
        assert_eq!(offline.code, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(offline.details.unwrap().retry_after_seconds, RETRY_AFTER_SECONDS);
        assert_eq!(unanswered(&CallError::Lost).code, StatusCode::GATEWAY_TIMEOUT);
    }
}
