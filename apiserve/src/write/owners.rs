//! Owner references that are given twice.

use serde_json::Value;

use super::meta;

/// What follows about those that were found.
const ADVICE: &str = "API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please \
                      fix your requests; duplicate UID(s) observed: ";

/// Keeps one of each; what to say about the others. `when` says where they were found, after mutating admission or
/// (empty) before.
pub(super) fn dedup(object: &mut Value, when: &str) -> Option<String> {
    let owners = meta::get(object, "ownerReferences").and_then(Value::as_array)?;
    let (mut kept, mut twice): (Vec<Value>, Vec<&str>) = (Vec::new(), Vec::new());
    for owner in owners {
        if kept.contains(owner) {
            twice.push(owner["uid"].as_str().unwrap_or_default());
        } else {
            kept.push(owner.clone());
        }
    }
    if twice.is_empty() {
        return None;
    }
    let warning =
        format!(".metadata.ownerReferences contains duplicate entries{when}; {ADVICE}{}", twice.join(", "));
    meta::set(object, "ownerReferences", kept.into());
    Some(warning)
}

/// Behind mutating admission.
pub(super) const AFTER_ADMISSION: &str = " after mutating admission happens";
