//! Validation of Leases (pkg/apis/coordination/validation).

use serde_json::Value;

use super::field::{Errors, Field};
use super::names;

/// Checks a lease.
pub(super) fn check(object: &Value, errors: &mut Errors) {
    let spec = Field::root("spec", &object["spec"]);
    let (duration, transitions) = (spec.child("leaseDurationSeconds"), spec.child("leaseTransitions"));
    if duration.is_set() && duration.int() <= 0 {
        errors.push(duration.invalid("must be greater than 0"));
    }
    transitions.non_negative(errors);
    let strategy = spec.child("strategy");
    if strategy.is_set() {
        // The path is that of the real server, which names the field twice.
        let strategy = Field::root("spec.strategy.strategy", strategy.value());
        match strategy.text().contains('/') {
            true => strategy.grammar(names::qualified_name, errors),
            false => strategy.one_of(&["OldestEmulationVersion"], errors),
        }
    }
    let holder = spec.child("preferredHolder");
    if !holder.text().is_empty() && strategy.text().is_empty() {
        errors.push(holder.forbidden("may only be specified if `strategy` is defined"));
    }
}
