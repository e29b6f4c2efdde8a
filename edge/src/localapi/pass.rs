//! Questions that only the cloud can answer, passed on as they are: in the name of this node, or with the token of the
//! caller, never with both.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;
use tombolo_apiserve::backend::EndpointRequest;
use tombolo_apiserve::status::ApiError;
use tombolo_proto::api_path::encoded;
use tombolo_proto::frame::{ApiReply, ApiRequest};
use tombolo_proto::message::is_passing;

use super::access::caller_token;
use super::{RETRY_AFTER_SECONDS, write};
use crate::hub::HubHandle;

/// What the cluster's API server has answered.
pub(super) struct Passed {
    pub(super) status: StatusCode,
    /// An object, or a `Status` that says why not.
    pub(super) body: Value,
}

/// Passes a question on.
///
/// # Errors
/// When nobody could answer: there is no cloud, or its API server has trouble. 503, or 504 when the question may have
/// been heard.
pub(super) async fn pass(
    hub: &HubHandle,
    request: &EndpointRequest,
    timeout: Duration,
) -> Result<Passed, ApiError> {
    let about = &request.attributes;
    let call = post(path_and_query(&about.path, &request.query), &request.body);
    let token = caller_token(about, request.authorization.as_deref()).map(str::to_owned);
    ask(hub, call, timeout, token).await
}

/// Where the cloud has what a local client has asked for, of whose path the decoded form is given, and the query as it is.
pub(super) fn path_and_query(path: &str, query: &str) -> String {
    let path = encoded(path);
    if query.is_empty() { path } else { format!("{path}?{query}") }
}

/// A call that creates something.
pub(super) fn post(path_and_query: String, body: &Value) -> ApiRequest {
    let json = || "application/json".to_owned();
    let body = Bytes::from(body.to_string());
    ApiRequest { method: "POST".to_owned(), path_and_query, content_type: json(), accept: json(), body }
}

/// A call that reads something.
pub(super) fn get(path_and_query: &str, accept: &str) -> ApiRequest {
    ApiRequest { accept: accept.to_owned(), ..ApiRequest::new("GET", path_and_query) }
}

/// Makes a call whose answer is JSON.
///
/// # Errors
/// As [`pass`].
pub(super) async fn ask(
    hub: &HubHandle,
    call: ApiRequest,
    timeout: Duration,
    token: Option<String>,
) -> Result<Passed, ApiError> {
    let reply = heard(hub, call, timeout, token).await?;
    let status = StatusCode::from_u16(reply.code).unwrap_or(StatusCode::BAD_GATEWAY);
    let body = serde_json::from_slice(&reply.body);
    let body =
        body.map_err(|error| ApiError::unavailable(format!("the cloud's answer is no JSON: {error}")))?;
    Ok(Passed { status, body })
}

/// Makes a call and gives what the cluster's API server has decided.
///
/// # Errors
/// As [`pass`].
pub(super) async fn heard(
    hub: &HubHandle,
    call: ApiRequest,
    timeout: Duration,
    token: Option<String>,
) -> Result<ApiReply, ApiError> {
    let reply = hub.api(call, timeout, token).await.map_err(|error| write::refused(&error))?;
    if !is_passing(reply.code) {
        return Ok(reply);
    }
    // An API server in trouble has decided nothing.
    let status: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    let why = status["message"].as_str().unwrap_or("it gives no reason");
    let sentence = format!("the cluster's API server cannot answer now (code {}): {why}", reply.code);
    Err(ApiError::unavailable(sentence).retry_after(RETRY_AFTER_SECONDS))
}

/// A refusal of the cluster's API server, in its own words.
pub(super) fn refusal(status: StatusCode, body: &Value) -> ApiError {
    let reason = match status {
        StatusCode::UNAUTHORIZED => "Unauthorized",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::BAD_REQUEST => "BadRequest",
        StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
        StatusCode::CONFLICT => "Conflict",
        _ => "",
    };
    ApiError::new(status, reason, body["message"].as_str().unwrap_or_default())
}
