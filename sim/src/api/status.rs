//! Refusals as the `Status` objects of an API server.

use std::fmt;

use serde_json::{Value, json};

use super::kinds::{KindInfo, KindKey};

/// A refusal.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiStatus {
    /// HTTP status code.
    pub code: u16,
    /// Reason, as `metav1.StatusReason`; empty when the answer is plain text.
    pub reason: String,
    /// Text for people.
    pub message: String,
    /// `details`; null when there are none.
    pub details: Value,
    /// Value of the header `Retry-After`, in seconds.
    pub retry_after: Option<u32>,
}

impl fmt::Display for ApiStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {})", self.message, self.code, self.reason)
    }
}

impl std::error::Error for ApiStatus {}

/// What is wrong with one field of an object.
#[derive(Debug, Clone)]
pub(super) struct FieldProblem {
    pub(super) field: String,
    /// As `field.ErrorType`, for example `FieldValueInvalid`.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl FieldProblem {
    pub(super) fn invalid(field: &str, value: &Value, detail: &str) -> Self {
        let shown = if value.is_object() || value.is_array() { "{}".to_owned() } else { value.to_string() };
        Self {
            field: field.to_owned(),
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {shown}: {detail}"),
        }
    }

    pub(super) fn required(field: &str, detail: &str) -> Self {
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        Self {
            field: field.to_owned(),
            reason: "FieldValueRequired",
            message: format!("Required value{detail}"),
        }
    }

    pub(super) fn forbidden(field: &str, detail: &str) -> Self {
        Self {
            field: field.to_owned(),
            reason: "FieldValueForbidden",
            message: format!("Forbidden: {detail}"),
        }
    }
}

impl FieldProblem {
    fn cause(&self) -> Value {
        json!({"reason": self.reason, "message": self.message, "field": self.field})
    }
}

impl ApiStatus {
    /// A refusal without details.
    #[must_use]
    pub fn new(code: u16, reason: &str, message: &str) -> Self {
        Self {
            code,
            reason: reason.to_owned(),
            message: message.to_owned(),
            details: Value::Null,
            retry_after: None,
        }
    }

    /// The body of the answer.
    #[must_use]
    pub fn body(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.clone().into();
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }

    fn about(mut self, key: &KindKey, name: &str) -> Self {
        self.details = details(&key.group, &key.resource, name);
        self
    }

    pub(super) fn bad_request(message: &str) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// A path that leads nowhere.
    pub(super) fn no_such_path() -> Self {
        Self::new(404, "", "404 page not found\n")
    }

    pub(super) fn no_such_subresource() -> Self {
        let message = "the server could not find the requested resource";
        Self { details: json!({}), ..Self::new(404, "NotFound", message) }
    }

    pub(super) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self { details: json!({}), ..Self::new(405, "MethodNotAllowed", message) }
    }

    pub(super) fn not_found(key: &KindKey, name: &str) -> Self {
        Self::new(404, "NotFound", &format!("{} {name:?} not found", key.qualified())).about(key, name)
    }

    pub(super) fn forbidden(key: &KindKey, name: &str, why: &str) -> Self {
        let named = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        Self::new(403, "Forbidden", &format!("{}{named} is forbidden: {why}", key.qualified()))
            .about(key, name)
    }

    pub(super) fn already_exists(key: &KindKey, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", key.qualified());
        Self::new(409, "AlreadyExists", &message).about(key, name)
    }

    pub(super) fn conflict(key: &KindKey, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", key.qualified());
        Self::new(409, "Conflict", &message).about(key, name)
    }

    /// The object was written since the version that a write names.
    pub(super) fn modified(key: &KindKey, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(key, name, why)
    }

    pub(super) fn expired(message: &str) -> Self {
        Self::new(410, "Expired", message)
    }

    pub(super) fn invalid(kind: &KindInfo, name: &str, problems: &[FieldProblem]) -> Self {
        let text = |one: &FieldProblem| format!("{}: {}", one.field, one.message);
        let list = match problems {
            [one] => text(one),
            all => format!("[{}]", all.iter().map(text).collect::<Vec<_>>().join(", ")),
        };
        let causes: Vec<Value> = problems.iter().map(FieldProblem::cause).collect();
        let message = format!("{} {name:?} is invalid: {list}", kind.qualified_kind());
        let mut details = details(&kind.key.group, &kind.kind, name);
        details["causes"] = causes.into();
        Self { details, ..Self::new(422, "Invalid", &message) }
    }

    /// An object that an update must name more precisely. Such refusals name the plural.
    pub(super) fn invalid_update(key: &KindKey, name: &str, problem: &FieldProblem) -> Self {
        let message =
            format!("{} {name:?} is invalid: {}: {}", key.qualified(), problem.field, problem.message);
        let mut details = details(&key.group, &key.resource, name);
        details["causes"] = json!([problem.cause()]);
        Self { details, ..Self::new(422, "Invalid", &message) }
    }

    /// A request whose options or review are invalid: they have a kind and no name.
    pub(super) fn invalid_request(group: &str, kind: &str, problem: &FieldProblem) -> Self {
        let message = format!("{kind}.{group} \"\" is invalid: {}: {}", problem.field, problem.message);
        let mut details = json!({"group": group, "causes": [problem.cause()]});
        if !kind.is_empty() {
            details["kind"] = kind.into();
        }
        Self { details, ..Self::new(422, "Invalid", &message) }
    }

    /// A patch that cannot be applied to the object. The server does not say why.
    pub(super) fn unprocessable() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self { details: json!({}), ..Self::new(422, "Invalid", message) }
    }

    pub(super) fn unsupported_media(accepted: &[&str]) -> Self {
        let list = accepted.join(", ");
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {list}"
        );
        Self::new(415, "UnsupportedMediaType", &message)
    }

    pub(super) fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json";
        Self::new(406, "NotAcceptable", message)
    }

    pub(super) fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(413, "RequestEntityTooLarge", &message)
    }

    pub(super) fn internal(why: &str) -> Self {
        let details = json!({"causes": [{"message": why}]});
        Self { details, ..Self::new(500, "InternalError", &format!("Internal error occurred: {why}")) }
    }

    /// A version that the server has not reached.
    pub(super) fn too_new(wanted: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {wanted}, current: {current}");
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        let details = json!({"causes": [cause], "retryAfterSeconds": 1});
        Self { details, retry_after: Some(1), ..Self::new(504, "Timeout", &message) }
    }
}

fn details(group: &str, kind: &str, name: &str) -> Value {
    let mut details = json!({ "kind": kind });
    if !name.is_empty() {
        details["name"] = name.into();
    }
    if !group.is_empty() {
        details["group"] = group.into();
    }
    details
}

/// The answer to a write that leaves no object.
pub(super) fn success(key: &KindKey, name: &str, uid: Option<&str>) -> Value {
    let mut details = details(&key.group, &key.resource, name);
    if let Some(uid) = uid {
        details["uid"] = uid.into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

#[cfg(test)]
mod tests {
    use super::super::kinds::built_in;
    use super::*;

    #[test]
    fn refusals_name_their_object_as_an_api_server_does() {
        let leases = KindKey::new("coordination.k8s.io", "leases");
        let body = ApiStatus::not_found(&leases, "n").body();
        assert_eq!(body["message"], r#"leases.coordination.k8s.io "n" not found"#);
        assert_eq!(body["details"], json!({"name": "n", "group": "coordination.k8s.io", "kind": "leases"}));
        let kind = built_in().find(|kind| kind.kind == "Deployment").expect("a kind");
        let problems = [FieldProblem::required("spec.selector", ""), FieldProblem::forbidden("spec.x", "no")];
        let body = ApiStatus::invalid(&kind, "d", &problems).body();
        assert_eq!(
            body["message"],
            r#"Deployment.apps "d" is invalid: [spec.selector: Required value, spec.x: Forbidden: no]"#
        );
        assert_eq!(body["details"]["causes"][1]["field"], "spec.x");
        assert_eq!(
            (body["code"].as_u64(), body["details"]["kind"].as_str()),
            (Some(422), Some("Deployment"))
        );
    }
}
