//! What of a CustomResourceDefinition never changes.

use serde_json::Value;

use super::{FieldError, IMMUTABLE};
use tombolo_apicore::value::{at, items};

/// Checks what an update changes.
pub(super) fn update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let condition = |own: &Value| own["type"] == "Established" && own["status"] == "True";
    let established = items(old, &["status", "conditions"]).iter().any(condition);
    // What objects are stored under never changes, what they look like not once they may exist.
    for (path, always) in [
        (&["spec", "scope"][..], false),
        (&["spec", "names", "kind"], false),
        (&["spec", "group"], true),
        (&["spec", "names", "plural"], true),
    ] {
        if (always || established) && at(new, path) != at(old, path) {
            let value = at(new, path).clone();
            errors.push(FieldError::invalid(path.join("."), value, IMMUTABLE));
        }
    }
}
