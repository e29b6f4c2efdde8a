//! Duplicate owner references.

use std::collections::HashSet;

use serde_json::Value;

use super::meta;

/// Kubernetes' advice about duplicates.
const ADVICE: &str = "API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please \
                      fix your requests; duplicate UID(s) observed: ";

/// Removes duplicate owner references, and returns the warning about them. `when` states when they were found: after
/// mutating admission or (empty) before.
pub(super) fn dedup(object: &mut Value, when: &str) -> Option<String> {
    let owners = meta::get(object, "ownerReferences").and_then(Value::as_array)?;
    let mut seen = HashSet::new();
    let (kept, twice): (Vec<&Value>, Vec<&Value>) = owners.iter().partition(|owner| seen.insert(*owner));
    if twice.is_empty() {
        return None;
    }
    let twice: Vec<&str> = twice.iter().map(|owner| owner["uid"].as_str().unwrap_or_default()).collect();
    let warning =
        format!(".metadata.ownerReferences contains duplicate entries{when}; {ADVICE}{}", twice.join(", "));
    let kept: Value = kept.into_iter().cloned().collect();
    meta::set(object, "ownerReferences", kept);
    Some(warning)
}

/// Found after mutating admission.
pub(super) const AFTER_ADMISSION: &str = " after mutating admission happens";
