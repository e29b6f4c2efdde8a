//! Validation of PodDisruptionBudgets (pkg/apis/policy/validation).

use serde_json::Value;

use super::field::{Errors, Field};
use super::int_or_percent;

/// Checks a budget.
pub(super) fn check(object: &Value, errors: &mut Errors) {
    let spec = Field::root("spec", &object["spec"]);
    let bounds = ["minAvailable", "maxUnavailable"].map(|name| spec.child(name));
    if bounds.iter().all(Field::is_set) {
        errors.push(spec.invalid("minAvailable and maxUnavailable cannot be both set"));
    }
    for bound in bounds {
        int_or_percent::not_negative(&bound, errors);
        int_or_percent::at_most_all(&bound, errors);
    }
    spec.child("selector").selector(errors);
    spec.child("unhealthyPodEvictionPolicy").one_of(&["AlwaysAllow", "IfHealthyBudget"], errors);
}
