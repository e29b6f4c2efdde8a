//! Certificate signing requests: the server records who sent one. Approving or signing one needs the right to do so for
//! the named signer.

use serde_json::{Value, json};
use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_apicore::auth::{Attributes, Decision};
use tombolo_apicore::status::ApiError;

use super::refuse;
use crate::authz::Authorization;
use crate::controllers::csr::Request;
use crate::objects::{items, member, text};

/// Signer of client certificates of any user.
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";

/// Checks a write, and completes a new request.
///
/// # Errors
/// 403 without the right, or for a request that would make an administrator.
pub(super) fn admit(
    authorization: &Authorization,
    request: &mut AdmissionRequest<'_>,
) -> Result<(), ApiError> {
    let asked = request.attributes;
    match (request.operation, asked.subresource.as_str()) {
        (Operation::Create, "") => {
            let Some(object) = request.object.as_deref_mut() else { return Ok(()) };
            note_sender(object, asked);
            check_subject(object).map_err(|why| refuse(asked, request.name, why))
        }
        (Operation::Update, "approval") => {
            let old = request.old.unwrap_or(&Value::Null);
            check_right(authorization, asked, "approve", old).map_err(|why| refuse(asked, request.name, why))
        }
        (Operation::Update, "status") => {
            let old = request.old.unwrap_or(&Value::Null);
            let new = request.object.as_deref().unwrap_or(&Value::Null);
            if text(old, "/status/certificate") == text(new, "/status/certificate")
                && failed(old) == failed(new)
            {
                return Ok(());
            }
            check_right(authorization, asked, "sign", old).map_err(|why| refuse(asked, request.name, why))
        }
        _ => Ok(()),
    }
}

fn note_sender(object: &mut Value, asked: &Attributes) {
    let identity = &asked.identity;
    let spec = member(object, "spec");
    spec.insert("username".into(), json!(identity.user));
    for field in ["uid", "groups", "extra"] {
        spec.remove(field);
    }
    if let Some(uid) = &identity.uid {
        spec.insert("uid".into(), json!(uid));
    }
    if !identity.groups.is_empty() {
        spec.insert("groups".into(), json!(identity.groups));
    }
    if !identity.extra.is_empty() {
        spec.insert("extra".into(), json!(identity.extra));
    }
}

fn check_subject(object: &Value) -> Result<(), String> {
    if text(object, "/spec/signerName") != CLIENT {
        return Ok(());
    }
    // Validation refuses a request that cannot be parsed, with a better message.
    let Ok(request) = Request::parse(text(object, "/spec/request")) else { return Ok(()) };
    if request.organizations.iter().any(|group| group == "system:masters") {
        return Err(format!("use of {CLIENT} signer with system:masters group is not allowed"));
    }
    Ok(())
}

fn failed(object: &Value) -> bool {
    items(object, "/status/conditions").iter().any(|condition| text(condition, "/type") == "Failed")
}

/// Checks the right on `signers`, for the signer's name or for its domain followed by `/*`.
fn check_right(
    authorization: &Authorization,
    asked: &Attributes,
    verb: &str,
    object: &Value,
) -> Result<(), String> {
    let signer = text(object, "/spec/signerName");
    let domain = signer.split_once('/').map_or("", |(domain, _)| domain);
    let may = |name: &str| {
        let right = Attributes {
            identity: asked.identity.clone(),
            verb: verb.to_owned(),
            group: "certificates.k8s.io".into(),
            version: "*".into(),
            resource: "signers".into(),
            name: name.to_owned(),
            is_resource: true,
            ..Attributes::default()
        };
        authorization.decide(&right) == Decision::Allow
    };
    if may(signer) || may(&format!("{domain}/*")) {
        return Ok(());
    }
    Err(format!("user not permitted to {verb} requests with signerName {signer:?}"))
}
