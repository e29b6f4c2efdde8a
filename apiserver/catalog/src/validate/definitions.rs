//! Immutable fields of a CustomResourceDefinition.

use serde_json::Value;

use super::{FieldError, IMMUTABLE};
use tombolo_apicore::value::{at, items};

/// Checks an update.
pub(super) fn update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let condition = |own: &Value| own["type"] == "Established" && own["status"] == "True";
    let established = items(old, &["status", "conditions"]).iter().any(condition);
    // Fields that determine the storage key never change. The others do not change once the definition is established.
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
