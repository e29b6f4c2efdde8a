//! Roles and bindings: a user who writes one must have the rights that it grants, or the right to `escalate` or `bind`
//! (Kubernetes: privilege escalation prevention).

use serde_json::Value;
use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_apicore::auth::{Attributes, Decision};
use tombolo_apicore::status::ApiError;

use super::refuse;
use crate::authz::Authorization;
use crate::authz::escalation::{confirm, everything};
use crate::authz::rbac::GROUP;
use crate::authz::rules::Rule;
use crate::objects::text;

/// Checks a write of a Role, ClusterRole, RoleBinding or ClusterRoleBinding.
///
/// # Errors
/// 403 when it grants more than the user has, 404 for a binding whose role does not exist.
pub(super) fn admit(
    authorization: &Authorization,
    request: &mut AdmissionRequest<'_>,
) -> Result<(), ApiError> {
    if request.operation == Operation::Delete || authorization.is_master(&request.attributes.identity) {
        return Ok(());
    }
    let Some(object) = request.object.as_deref() else { return Ok(()) };
    // The garbage collector must be able to change objects whose rights it does not have.
    if request.old.is_some_and(|old| same_but_for_garbage_collection(old, object)) {
        return Ok(());
    }
    let asked = request.attributes;
    match asked.resource.as_str() {
        "roles" | "clusterroles" => role(authorization, asked, request.name, request.old, object),
        _ => binding(authorization, asked, request.name, request.namespace, object),
    }
}

fn role(
    authorization: &Authorization,
    asked: &Attributes,
    name: &str,
    old: Option<&Value>,
    new: &Value,
) -> Result<(), ApiError> {
    if may(authorization, asked, "escalate", &asked.resource, &asked.name) {
        return Ok(());
    }
    let own = authorization.granted_to(&asked.identity, &asked.namespace);
    confirm(&asked.identity, &own, &Rule::all_of(new)).map_err(|why| refuse(asked, name, why))?;
    let sums = |role: &Value| !role.get("aggregationRule").unwrap_or(&Value::Null).is_null();
    if (sums(new) || old.is_some_and(sums)) && confirm(&asked.identity, &own, &everything()).is_err() {
        let why = "must have cluster-admin privileges to use the aggregationRule";
        return Err(refuse(asked, name, why));
    }
    Ok(())
}

fn binding(
    authorization: &Authorization,
    asked: &Attributes,
    name: &str,
    namespace: &str,
    new: &Value,
) -> Result<(), ApiError> {
    let role = text(new, "/roleRef/name");
    let (resource, home) = match text(new, "/roleRef/kind") {
        "ClusterRole" => ("clusterroles", ""),
        "Role" => ("roles", namespace),
        // Validation refuses it, with a better message.
        _ => return Ok(()),
    };
    if may(authorization, asked, "bind", resource, role) {
        return Ok(());
    }
    let Some(rules) = authorization.rules_of_role(home, role) else {
        // As in kube-apiserver, the error has the kind of the request and the name of the role.
        return Err(ApiError::not_found(GROUP, &asked.resource, role));
    };
    let own = authorization.granted_to(&asked.identity, namespace);
    confirm(&asked.identity, &own, &rules).map_err(|why| refuse(asked, name, why))
}

/// Whether the user has a verb on a role itself, in the namespace of the request.
fn may(authorization: &Authorization, asked: &Attributes, verb: &str, resource: &str, name: &str) -> bool {
    let right = Attributes {
        identity: asked.identity.clone(),
        verb: verb.to_owned(),
        group: GROUP.to_owned(),
        version: "*".to_owned(),
        resource: resource.to_owned(),
        namespace: asked.namespace.clone(),
        name: name.to_owned(),
        is_resource: true,
        ..Attributes::default()
    };
    authorization.decide(&right) == Decision::Allow
}

/// Whether only owners and finalizers differ.
fn same_but_for_garbage_collection(old: &Value, new: &Value) -> bool {
    let bare = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion", "generation"] {
                metadata.remove(field);
            }
        }
        object
    };
    bare(old) == bare(new)
}
