//! Conditions of a definition's status.

use serde_json::{Value, json};

use crate::embedded::objects::{items, list_member, member, text, timestamp};

/// Annotation that definitions in the groups of Kubernetes itself carry.
const APPROVED: &str = "api-approved.kubernetes.io";

/// Whether a condition is met.
pub(super) fn is_true(definition: &Value, kind: &str) -> bool {
    items(definition, "/status/conditions")
        .iter()
        .any(|condition| text(condition, "/type") == kind && text(condition, "/status") == "True")
}

/// Sets a condition; one that says so already keeps its time.
pub(super) fn set_condition(
    definition: &mut Value,
    kind: &str,
    (status, reason, message): (&str, &str, String),
) {
    let conditions = list_member(member(definition, "status"), "conditions");
    let own = conditions.iter_mut().find(|condition| text(condition, "/type") == kind);
    let same = |own: &Value| {
        text(own, "/status") == status && text(own, "/reason") == reason && text(own, "/message") == message
    };
    if own.as_deref().is_some_and(same) {
        return;
    }
    let condition = json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": timestamp(jiff::Timestamp::now()),
    });
    match own {
        Some(own) => *own = condition,
        None => conditions.push(condition),
    }
}

/// Whether a definition in a group of Kubernetes itself was approved; `None` for other groups. Definitions without a
/// valid annotation are refused when they are created.
pub(super) fn approval(definition: &Value) -> Option<(&'static str, &'static str, String)> {
    let group = text(definition, "/spec/group");
    if !["k8s.io", "kubernetes.io"].iter().any(|own| group == *own || group.ends_with(&format!(".{own}"))) {
        return None;
    }
    let annotations = definition.pointer("/metadata/annotations");
    let annotation =
        annotations.and_then(|own| own.get(APPROVED)).and_then(Value::as_str).unwrap_or_default();
    Some(if annotation.starts_with("unapproved") {
        ("False", "UnapprovedAnnotation", format!("not approved: {annotation:?}"))
    } else {
        ("True", "ApprovedAnnotation", format!("approved in {annotation}"))
    })
}
