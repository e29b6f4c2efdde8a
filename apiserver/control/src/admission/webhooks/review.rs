//! `AdmissionReview`: the request to a webhook, and its response.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_apicore::kinds::KindInfo;
use tombolo_apicore::status::{ApiError, Cause};

use super::configuration::Webhook;
use super::matching::{Invocation, operation_name};
use crate::admission::carried_kind;

/// Supported versions of the review.
pub(super) const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// Reasons of `metav1.Status` that clients know. Other reasons from webhooks are dropped.
const REASONS: [&str; 15] = [
    "Unauthorized",
    "Forbidden",
    "NotFound",
    "AlreadyExists",
    "Conflict",
    "Gone",
    "Invalid",
    "ServerTimeout",
    "Timeout",
    "TooManyRequests",
    "BadRequest",
    "MethodNotAllowed",
    "RequestEntityTooLarge",
    "InternalError",
    "ServiceUnavailable",
];

/// What a webhook decided.
#[derive(Debug, Default)]
pub(super) struct ReviewOutcome {
    pub(super) warnings: Vec<String>,
    /// The JSON patch to apply; empty when there is none.
    pub(super) patch: Vec<u8>,
    /// Why the request is refused.
    pub(super) refusal: Option<ApiError>,
}

/// The review to send. `uid` identifies the response. `None` when the webhook supports no known version of the review.
pub(super) fn question(
    uid: &str,
    invocation: &Invocation,
    request: &AdmissionRequest<'_>,
) -> Option<(&'static str, Value)> {
    let wanted = &invocation.webhook.admission_review_versions;
    let version = wanted.iter().find_map(|wanted| VERSIONS.into_iter().find(|own| own == wanted))?;
    let asked = request.attributes;
    let subresource = asked.subresource.as_str();
    let kind = &invocation.kind;
    let object = request.object.as_deref().map(|object| shown(request.kind, kind, subresource, object));
    let old = request.old.map(|object| shown(request.kind, kind, subresource, object));
    let mut question = json!({
        "uid": uid,
        "kind": carried_kind(kind, subresource),
        "resource": resource_of(kind),
        "requestKind": carried_kind(request.kind, subresource),
        "requestResource": resource_of(request.kind),
        "name": request.name,
        "operation": operation_name(request.operation),
        "userInfo": asked.identity.user_info(),
        "object": object,
        "oldObject": old,
        "dryRun": request.dry_run,
        "options": options(request),
    });
    for (field, value) in
        [("namespace", request.namespace), ("subResource", subresource), ("requestSubResource", subresource)]
    {
        if !value.is_empty() {
            question[field] = json!(value);
        }
    }
    let review = json!({
        "kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{version}"), "request": question,
    });
    Some((version, review))
}

fn resource_of(kind: &KindInfo) -> Value {
    let resource = &kind.resource;
    json!({"group": &*resource.group, "version": &*resource.version, "resource": &*resource.name})
}

/// An object in the version that the webhook expects, or as a Scale for `scale`.
pub(super) fn shown(from: &KindInfo, to: &KindInfo, subresource: &str, object: &Value) -> Value {
    if subresource == "scale" {
        return tombolo_apicore::scale::of(from, object).unwrap_or_else(|_| object.clone());
    }
    let mut object = object.clone();
    if from.resource != to.resource {
        from.to_storage(&mut object);
        to.from_storage(&mut object);
    }
    object
}

fn options(request: &AdmissionRequest<'_>) -> Value {
    let kind = match request.operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
    };
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    if request.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    options
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    kind: Option<String>,
    api_version: Option<String>,
    response: Option<Response>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Response {
    uid: String,
    allowed: bool,
    status: Option<Status>,
    patch: Option<String>,
    patch_type: Option<String>,
    warnings: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    message: Option<String>,
    reason: Option<String>,
    code: Option<u16>,
    details: Option<StatusDetails>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StatusDetails {
    causes: Vec<StatusCause>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StatusCause {
    reason: String,
    message: String,
    field: String,
}

/// Reads a response.
///
/// # Errors
/// A message that says what is wrong with it.
pub(super) fn outcome(
    webhook: &Webhook,
    version: &str,
    uid: &str,
    mutating: bool,
    body: &[u8],
) -> Result<ReviewOutcome, String> {
    let invalid = |why: String| format!("received invalid webhook response: {why}");
    let review: Review = serde_json::from_slice(body).map_err(|error| invalid(error.to_string()))?;
    let response = review.response.ok_or_else(|| invalid("webhook response was absent".to_owned()))?;
    if version == "v1" {
        // Responses of version v1beta1 are not checked for this.
        if response.uid != uid {
            return Err(invalid(format!("expected response.uid={uid:?}, got {:?}", response.uid)));
        }
        let (kind, api_version) = (review.kind.unwrap_or_default(), review.api_version.unwrap_or_default());
        if kind != "AdmissionReview" || api_version != "admission.k8s.io/v1" {
            return Err(invalid(format!(
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {api_version}, \
                 Kind={kind}"
            )));
        }
        check_patch(&response, mutating).map_err(|why| invalid(why.to_owned()))?;
    }
    let mut outcome = ReviewOutcome { warnings: response.warnings, ..ReviewOutcome::default() };
    if !response.allowed {
        outcome.refusal = Some(refusal(&webhook.name, response.status.unwrap_or_default()));
    } else if let Some(patch) = response.patch.filter(|_| mutating) {
        outcome.patch = STANDARD
            .decode(patch)
            .map_err(|error| format!("received undecodable patch in webhook response: {error}"))?;
    }
    Ok(outcome)
}

fn check_patch(response: &Response, mutating: bool) -> Result<(), &'static str> {
    let patch = response.patch.as_deref().is_some_and(|patch| !patch.is_empty());
    match (mutating, patch, response.patch_type.as_deref()) {
        (true, true, None) => Err("webhook returned response.patch but not response.patchType"),
        (true, false, Some(_)) => Err("webhook returned response.patchType but not response.patch"),
        (true, true, Some(kind)) if kind != "JSONPatch" => {
            Err("webhook returned a response.patchType other than JSONPatch")
        }
        (false, true, _) => Err("validating webhook may not return response.patch"),
        (false, _, Some(_)) => Err("validating webhook may not return response.patchType"),
        _ => Ok(()),
    }
}

/// The error for the client when a webhook refuses.
fn refusal(webhook: &str, status: Status) -> ApiError {
    let code = status.code.filter(|code| *code >= 400).unwrap_or(400);
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_REQUEST);
    let given = status.reason.as_deref().unwrap_or_default();
    let reason = REASONS.into_iter().find(|own| *own == given).unwrap_or_default();
    let denied = format!("admission webhook {webhook:?} denied the request");
    let message = match status.message.as_deref().filter(|message| !message.is_empty()) {
        Some(message) => format!("{denied}: {message}"),
        None if !given.is_empty() => format!("{denied}: {given}"),
        None => format!("{denied} without explanation"),
    };
    let causes = status.details.unwrap_or_default().causes;
    let error = ApiError::new(code, reason, message);
    causes
        .iter()
        .fold(error, |error, cause| error.with_cause(Cause::new(&cause.reason, &cause.field, &cause.message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook() -> Webhook {
        serde_json::from_value(json!({"name": "w.example.org", "clientConfig": {}})).unwrap()
    }

    #[allow(clippy::needless_pass_by_value, reason = "literals read better by value in tests")]
    fn read(mutating: bool, response: Value) -> Result<ReviewOutcome, String> {
        let review =
            json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
        outcome(&webhook(), "v1", "u", mutating, review.to_string().as_bytes())
    }

    #[test]
    fn a_refusal_is_worded_as_kube_apiserver_does() {
        let refused = |status: Value| {
            let outcome = read(false, json!({"uid": "u", "allowed": false, "status": status})).unwrap();
            let error = outcome.refusal.unwrap();
            (error.code.as_u16(), error.reason, error.message)
        };
        let denied = "admission webhook \"w.example.org\" denied the request";
        assert_eq!(refused(json!({})), (400, "", format!("{denied} without explanation")));
        let full = json!({"code": 403, "reason": "Forbidden", "message": "no"});
        assert_eq!(refused(full), (403, "Forbidden", format!("{denied}: no")));
        assert_eq!(refused(json!({"code": 200, "reason": "Own"})), (400, "", format!("{denied}: Own")));
    }

    #[test]
    fn webhook_answer_must_match_its_request() {
        for (mutating, response, wanted) in [
            (false, json!({"uid": "other", "allowed": true}), "expected response.uid=\"u\", got \"other\""),
            (
                true,
                json!({"uid": "u", "allowed": true, "patch": "W10="}),
                "response.patch but not response.patchType",
            ),
            (false, json!({"uid": "u", "allowed": true, "patch": "W10="}), "may not return response.patch"),
            (
                true,
                json!({"uid": "u", "allowed": true, "patch": "!", "patchType": "JSONPatch"}),
                "undecodable patch",
            ),
        ] {
            let error = read(mutating, response).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
        assert!(outcome(&webhook(), "v1", "u", true, b"{}").unwrap_err().contains("absent"));
        let patch =
            read(true, json!({"uid": "u", "allowed": true, "patch": "W10=", "patchType": "JSONPatch"}));
        assert_eq!(patch.unwrap().patch, b"[]");
    }
}
