//! What may become of a certificate signing request, by path (certificates/validation/validation.go).

use std::cmp::Ordering;

use serde_json::Value;

use crate::kinds::FieldError;
use crate::kinds::value::{at, items};

const CONDITIONS: &str = "status.conditions";

pub(super) fn update(new: &Value, old: &Value, subresource: &str, errors: &mut Vec<FieldError>) {
    for decision in ["Approved", "Denied", "Failed"] {
        if of(new, decision).len() < of(old, decision).len() {
            let text = format!("updates may not remove a condition of type {decision:?}");
            errors.push(FieldError::forbidden(CONDITIONS, text));
        }
    }
    if subresource != "approval" {
        for decision in ["Approved", "Denied"] {
            let (now, before) = (of(new, decision), of(old, decision));
            let what = match now.len().cmp(&before.len()) {
                Ordering::Greater => "add",
                Ordering::Equal if now != before => "modify",
                _ => continue,
            };
            let text = format!("updates may not {what} a condition of type {decision:?}");
            errors.push(FieldError::forbidden(CONDITIONS, text));
        }
    }
    let (now, before) = (at(new, &["status", "certificate"]), at(old, &["status", "certificate"]));
    if now != before && subresource != "status" {
        errors.push(FieldError::forbidden("status.certificate", "updates may not set certificate content"));
    } else if now != before && !before.is_null() {
        let text = "updates may not modify existing certificate content";
        errors.push(FieldError::forbidden("status.certificate", text));
    }
}

/// The conditions of one type.
fn of<'a>(request: &'a Value, decision: &str) -> Vec<&'a Value> {
    items(request, &["status", "conditions"])
        .iter()
        .filter(|condition| condition["type"] == decision)
        .collect()
}
