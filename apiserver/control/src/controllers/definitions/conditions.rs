//! Conditions of a definition's status.

use serde_json::Value;

use crate::objects::{items, text};

/// Annotation of definitions in the groups of Kubernetes itself.
const APPROVED: &str = "api-approved.kubernetes.io";

/// Whether a condition is met.
pub(super) fn is_true(definition: &Value, kind: &str) -> bool {
    items(definition, "/status/conditions")
        .iter()
        .any(|condition| text(condition, "/type") == kind && text(condition, "/status") == "True")
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
