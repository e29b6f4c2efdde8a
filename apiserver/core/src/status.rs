//! Maps all errors to the HTTP code and `metav1.Status` that clients understand.

use std::fmt;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use thiserror::Error;

use crate::attributes::Attributes;
use crate::field_error::{FieldError, aggregate};
use crate::gofmt::quoted;
use crate::store_error::StoreError;

/// Retry time in seconds when the store is not ready.
const RETRY_AFTER_SECONDS: u32 = 1;

/// Cause of a 504 for a revision that is not reached yet (client-go looks for this text).
pub const CAUSE_TOO_LARGE: &str = "ResourceVersionTooLarge";

/// One detail of a refusal, usually about one field.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Cause {
    /// Machine-readable reason, for example `FieldValueInvalid`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: String,
    /// Human-readable text.
    pub message: String,
    /// Path of the field, for example `spec.containers[0].name`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub field: String,
}

impl Cause {
    /// Creates a cause.
    #[must_use]
    pub fn new(reason: &str, field: &str, message: &str) -> Self {
        Self { reason: reason.to_owned(), field: field.to_owned(), message: message.to_owned() }
    }
}

impl From<&FieldError> for Cause {
    fn from(error: &FieldError) -> Self {
        Self::new(error.kind.reason(), &error.field, &error.body())
    }
}

/// `details` of a Status.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    /// Object name.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: String,
    /// API group.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub group: String,
    /// Resource name (or kind, for `Invalid`).
    #[serde(skip_serializing_if = "str::is_empty")]
    pub kind: String,
    /// UID of the object.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub uid: String,
    /// The single errors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// When to retry.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A refusal or failure, ready to become a `metav1.Status`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP code.
    pub code: StatusCode,
    /// Machine-readable reason; empty for an unknown one.
    pub reason: &'static str,
    /// Human-readable text.
    pub message: String,
    /// The object of the request.
    pub details: Option<Box<Details>>,
    /// `metadata.continue` of the Status: a token to continue a paged list after its snapshot expired.
    pub continue_token: Option<String>,
    /// Warnings for the client beside the refusal, sent as `Warning` headers.
    pub warnings: Vec<String>,
}

impl ApiError {
    /// An error with any code and reason.
    #[must_use]
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
            continue_token: None,
            warnings: Vec::new(),
        }
    }

    /// Adds details.
    #[must_use]
    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// Adds warnings from before the refusal.
    #[must_use]
    pub fn with_warnings(mut self, mut warnings: Vec<String>) -> Self {
        warnings.append(&mut self.warnings);
        Self { warnings, ..self }
    }

    /// Adds a retry time.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// Adds a cause.
    #[must_use]
    pub fn with_cause(mut self, cause: Cause) -> Self {
        self.details.get_or_insert_default().causes.push(cause);
        self
    }

    /// 400 `BadRequest`.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 401 `Unauthorized`.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// 403 `Forbidden` for a request that no authorizer allows.
    #[must_use]
    pub fn forbidden(attributes: &Attributes, why: &str) -> Self {
        let mut message = forbidden_message(attributes);
        if !why.is_empty() {
            message = format!("{message}: {why}");
        }
        let details = Details {
            name: attributes.name.clone(),
            group: attributes.group.clone(),
            kind: attributes.resource.clone(),
            ..Details::default()
        };
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).with_details(details)
    }

    /// 403 `Forbidden` for one object, as admission words it.
    #[must_use]
    pub fn forbidden_object(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message = format!("{} {} is forbidden: {why}", qualified(group, resource), quoted(name));
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).with_details(about(group, resource, name))
    }

    /// 404 for a path that is not served.
    #[must_use]
    pub fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
            .with_details(Details::default())
    }

    /// 404 `NotFound` for an object.
    #[must_use]
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {} not found", qualified(group, resource), quoted(name));
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).with_details(about(group, resource, name))
    }

    /// 405 `MethodNotAllowed`.
    #[must_use]
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
            .with_details(Details::default())
    }

    /// 406 `NotAcceptable`: the client accepts none of the media types that can be written.
    #[must_use]
    pub fn not_acceptable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// 409 `AlreadyExists`.
    #[must_use]
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {} already exists", qualified(group, resource), quoted(name));
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).with_details(about(group, resource, name))
    }

    /// 409 `Conflict`.
    #[must_use]
    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {}: {why}",
            qualified(group, resource),
            quoted(name)
        );
        Self::new(StatusCode::CONFLICT, "Conflict", message).with_details(about(group, resource, name))
    }

    /// 409 `Conflict` of a stale resource version.
    #[must_use]
    pub fn modified(group: &str, resource: &str, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(group, resource, name, why)
    }

    /// 410 `Expired`.
    #[must_use]
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// 413 `RequestEntityTooLarge`.
    #[must_use]
    pub fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    /// 415 `UnsupportedMediaType`.
    #[must_use]
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    /// 422 `Invalid` with one cause per field.
    #[must_use]
    pub fn invalid<C: Into<Cause>>(
        group: &str,
        kind: &str,
        name: &str,
        causes: impl IntoIterator<Item = C>,
    ) -> Self {
        let causes: Vec<Cause> = causes.into_iter().map(Into::into).collect();
        let text = aggregate(causes.iter().map(|cause| match cause.field.as_str() {
            "" => cause.message.clone(),
            field => format!("{field}: {}", cause.message),
        }));
        let message = format!("{} {} is invalid: {text}", qualified(group, kind), quoted(name));
        let details = Details { causes, ..about(group, kind, name) };
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).with_details(details)
    }

    /// 429 `TooManyRequests`.
    #[must_use]
    pub fn too_many_requests(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).retry_after(RETRY_AFTER_SECONDS)
    }

    /// 500 `InternalError`.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format!("Internal error occurred: {message}"),
        )
        .with_cause(Cause { message, ..Cause::default() })
    }

    /// 503 `ServiceUnavailable`.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
            .retry_after(RETRY_AFTER_SECONDS)
    }

    /// 504 `Timeout`.
    #[must_use]
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message).retry_after(RETRY_AFTER_SECONDS)
    }

    /// 504 for a resource version that the server has not reached.
    #[must_use]
    pub fn too_large_revision(requested: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {requested}, current: {current}");
        Self::timeout(format!("Timeout: {message}")).with_cause(Cause::new(
            CAUSE_TOO_LARGE,
            "",
            "Too large resource version",
        ))
    }

    /// The retry time, if the client should retry.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u32> {
        self.details.as_ref().map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0)
    }

    /// The `metav1.Status` as JSON text.
    #[must_use]
    pub fn to_json(&self) -> Bytes {
        let status = StatusBody {
            kind: "Status",
            api_version: "v1",
            metadata: Metadata { continue_token: self.continue_token.as_deref() },
            status: "Failure",
            message: &self.message,
            reason: self.reason,
            details: self.details.as_deref(),
            code: self.code.as_u16(),
        };
        // Strings and numbers always serialize; otherwise only the text of a refusal would be lost.
        serde_json::to_vec(&status).map(Bytes::from).unwrap_or_default()
    }
}

/// JSON text of the Status for a deletion that removed the object.
#[must_use]
pub fn success(details: &Details) -> Bytes {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Success<'a> {
        kind: &'static str,
        api_version: &'static str,
        metadata: Metadata<'a>,
        status: &'static str,
        details: &'a Details,
    }
    let metadata = Metadata { continue_token: None };
    let body = Success { kind: "Status", api_version: "v1", metadata, status: "Success", details };
    serde_json::to_vec(&body).map(Bytes::from).unwrap_or_default()
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotSynced { reason } => Self::unavailable(reason),
            StoreError::Expired { .. } | StoreError::Unreached { .. } => Self::expired(error.to_string()),
            StoreError::Conflict { key, .. } => {
                Self::modified(&key.resource().group, &key.resource().name, key.name())
            }
            StoreError::AlreadyExists { key } => {
                Self::already_exists(&key.resource().group, &key.resource().name, key.name())
            }
            StoreError::NotFound { key } => {
                Self::not_found(&key.resource().group, &key.resource().name, key.name())
            }
            StoreError::Refused { .. } => Self::bad_request(error.to_string()),
            StoreError::Taken { ref key, .. } => {
                let (resource, message) = (key.resource(), error.to_string());
                Self::conflict(&resource.group, &resource.name, key.name(), &message)
            }
            StoreError::Full { .. } | StoreError::OverShare { .. } => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "InsufficientStorage", error.to_string())
            }
            StoreError::NotStored { .. } => Self::internal(error.to_string()),
            StoreError::Unavailable { .. } => Self::unavailable(error.to_string()),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusBody<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Metadata<'a>,
    status: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a Details>,
    code: u16,
}

#[derive(Serialize)]
struct Metadata<'a> {
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    continue_token: Option<&'a str>,
}

fn about(group: &str, kind: &str, name: &str) -> Details {
    Details { name: name.to_owned(), group: group.to_owned(), kind: kind.to_owned(), ..Details::default() }
}

/// A resource in messages: `deployments.apps`, or `pods` in the core group.
fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

fn forbidden_message(attributes: &Attributes) -> String {
    let user = &attributes.identity.user;
    if !attributes.is_resource {
        let (verb, path) = (&attributes.verb, &attributes.path);
        return format!("forbidden: User {user:?} cannot {verb} path {path:?}");
    }
    let resource = match attributes.subresource.as_str() {
        "" => attributes.resource.clone(),
        subresource => format!("{}/{subresource}", attributes.resource),
    };
    let subject = match attributes.name.as_str() {
        "" => format!("{} is forbidden", qualified(&attributes.group, &attributes.resource)),
        name => format!("{} {name:?} is forbidden", qualified(&attributes.group, &attributes.resource)),
    };
    let scope = Scope(&attributes.namespace);
    let (verb, group) = (&attributes.verb, &attributes.group);
    format!("{subject}: User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {scope}")
}

struct Scope<'a>(&'a str);

impl fmt::Display for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => f.write_str("at the cluster scope"),
            namespace => write!(f, "in the namespace {namespace:?}"),
        }
    }
}
