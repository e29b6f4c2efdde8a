//! Conflicts of an apply, in the format of kube-apiserver.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::entries::{ManagerIdentity, Operation};
use super::set::Set;
use crate::field_error::CAUSES_MAX;

/// One field that another manager owns with another value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The other manager as shown in messages, for example `"kubectl" using apps/v1`.
    pub manager: String,
    /// Path of the field, for example `.spec.replicas`.
    pub field: String,
}

/// Why an apply was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Fields of other managers would change (409).
    #[error("{}", conflict_message(.0))]
    Conflict(Vec<Conflict>),
    /// The request is not a valid apply (400).
    #[error("{0}")]
    BadRequest(String),
    /// The configuration does not fit the type (500, as kube-apiserver answers).
    #[error("{0}")]
    Invalid(String),
}

/// The message of the Status with reason Conflict.
#[must_use]
pub fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", one.manager, one.field);
    }
    let mut lines = Vec::new();
    let mut current = "";
    for conflict in conflicts {
        if conflict.manager != current {
            current = &conflict.manager;
            lines.push(format!("conflicts with {current}:"));
        }
        lines.push(format!("- {}", conflict.field));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// `details.causes` of the Status.
#[must_use]
pub fn conflict_causes(conflicts: &[Conflict]) -> Value {
    let cause = |conflict: &Conflict| {
        json!({
            "reason": "FieldManagerConflict",
            "message": format!("conflict with {}", conflict.manager),
            "field": conflict.field,
        })
    };
    Value::Array(conflicts.iter().take(CAUSES_MAX).map(cause).collect())
}

/// Conflicts in the order of managers and paths.
pub(super) fn list(fields: &BTreeMap<ManagerIdentity, Set>) -> Vec<Conflict> {
    let mut conflicts = Vec::new();
    for (identity, set) in fields {
        let manager = printed(identity);
        set.paths(&mut |path| {
            let field: String = path.iter().map(ToString::to_string).collect();
            conflicts.push(Conflict { manager: manager.clone(), field });
        });
    }
    conflicts
}

fn printed(identity: &ManagerIdentity) -> String {
    let mut out = format!("{:?}", identity.manager);
    if !identity.subresource.is_empty() {
        out = format!("{out} with subresource {:?}", identity.subresource);
    }
    match identity.operation {
        Operation::Update => format!("{out} using {}", identity.api_version),
        Operation::Apply => out,
    }
}
