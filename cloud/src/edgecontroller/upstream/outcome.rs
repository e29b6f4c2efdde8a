//! Converts answers of the API server to the form of KubeEdge's replies.

use tombolo_proto::message::{StatusDetails, StatusError};

use crate::kube::{Answer, CallError};

/// The API server's refusal as a `Status`. A refusal in another form becomes one too: `Err` must never mean "no error".
pub(super) fn status_of(answer: &Answer) -> StatusError {
    let refusal = answer.refusal();
    let reason = refusal.reason.filter(|reason| !reason.is_empty());
    let reason = reason.as_deref().unwrap_or_else(|| reason_of(answer.code));
    let mut error = StatusError::new(answer.code, reason, &answer.message());
    error.details = refusal.details.filter(|details| *details != StatusDetails::default());
    error
}

/// The failure of a call without an answer, as a `Status`.
pub(super) fn status_of_failure(error: &CallError) -> StatusError {
    let code = code_of(error);
    StatusError::new(code, reason_of(code), &error.to_string())
}

/// HTTP status code for a call without an answer.
pub(super) fn code_of(error: &CallError) -> u16 {
    match error {
        CallError::Invalid(_) | CallError::Endless => 400,
        CallError::Unreachable(_) | CallError::NotAList { .. } => 503,
        CallError::TimedOut(_) => 504,
        CallError::TooLarge(_) | CallError::BodyTooLarge(_) => 413,
        CallError::NoRoom | CallError::Registering => 429,
        CallError::NoForwarding => 501,
    }
}

/// The reason that Kubernetes uses with a status code.
pub(crate) fn reason_of(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        410 => "Expired",
        413 => "RequestEntityTooLarge",
        415 => "UnsupportedMediaType",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    }
}
