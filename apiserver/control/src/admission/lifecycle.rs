//! NamespaceLifecycle: objects cannot be created in a namespace that does not exist or is being deleted.

use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_apicore::status::{ApiError, Cause};

use super::refuse;
use crate::objects::{Objects, core};

/// Namespaces that cannot be deleted (kube-apiserver's list).
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Checks a write.
///
/// # Errors
/// 403 for a namespace that cannot be deleted or is being deleted, 404 for one that does not exist.
pub(super) fn admit(objects: &Objects, request: &AdmissionRequest<'_>) -> Result<(), ApiError> {
    let asked = request.attributes;
    let is_namespace = asked.group.is_empty() && asked.resource == "namespaces";
    if is_namespace {
        if request.operation == Operation::Delete && IMMORTAL.contains(&request.name) {
            return Err(refuse(asked, request.name, "this namespace may not be deleted"));
        }
        return Ok(());
    }
    if request.namespace.is_empty() || request.operation == Operation::Delete {
        return Ok(());
    }
    check_namespace(objects, request)
}

fn check_namespace(objects: &Objects, request: &AdmissionRequest<'_>) -> Result<(), ApiError> {
    let namespace = request.namespace;
    let Some(found) = objects.get(core("namespaces"), "", namespace) else {
        return Err(ApiError::not_found("", "namespaces", namespace));
    };
    let terminating = found.is_terminating() || found.text("/status/phase") == "Terminating";
    if request.operation != Operation::Create || !terminating {
        return Ok(());
    }
    let name = request.object.as_deref().and_then(|object| object.pointer("/metadata/name")?.as_str());
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let refusal = refuse(request.attributes, name.unwrap_or(request.name), why);
    let cause = format!("namespace {namespace} is being terminated");
    Err(refusal.with_cause(Cause::new("NamespaceTerminating", "metadata.namespace", &cause)))
}
