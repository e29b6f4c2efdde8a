//! Validation of PriorityClasses (pkg/apis/scheduling/validation).

use serde_json::Value;

use super::field::Errors;
use super::walk::top;

/// Maximum value of user-defined classes; higher values are reserved for the system's classes.
const PRIORITY_MAX: i64 = 1_000_000_000;

/// The system's classes with their values; other classes may not use these names.
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

/// Checks a new class. A stored class is not checked again.
pub(super) fn check(object: &Value, errors: &mut Errors) {
    let (name, value) = (top(object, "metadata.name"), top(object, "value"));
    if name.text().starts_with("system-") {
        if let Some(why) = system_problem(object, name.text(), value.int()) {
            let text = "priority class names with 'system-' prefix are reserved for system use only. error: ";
            errors.push(name.forbidden(&format!("{text}{why}")));
        }
    } else if value.int() > PRIORITY_MAX {
        let text = format!("maximum allowed value of a user defined priority is {PRIORITY_MAX}");
        errors.push(value.forbidden(&text));
    }
    let policy = top(object, "preemptionPolicy");
    if policy.is_set() {
        policy.one_of_required(&["PreemptLowerPriority", "Never"], errors);
    }
}

/// Why a class is not a valid system class.
fn system_problem(object: &Value, name: &str, value: i64) -> Option<String> {
    match SYSTEM_CLASSES.iter().find(|(known, _)| *known == name) {
        Some((_, fixed)) if *fixed != value => Some(format!("value of {name} PriorityClass must be {fixed}")),
        Some(_) if object["globalDefault"] == true => {
            Some(format!("globalDefault of {name} PriorityClass must be false"))
        }
        Some(_) => None,
        None => Some(format!("{name} is not a known system priority class")),
    }
}
