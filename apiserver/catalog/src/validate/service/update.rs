//! Which fields of a service may change.

use serde_json::Value;

use super::super::field::{Errors, Field};
use super::{is_headless, needs_health_port};

/// Checks an update. A service keeps its address, unless its type changes to or from ExternalName.
pub(in super::super) fn check(new: &Value, old: &Value, errors: &mut Errors) {
    const ONCE: &str = "may not change once set";
    let (now, before) = (Field::root("spec", &new["spec"]), Field::root("spec", &old["spec"]));
    let outside = |spec: &Field<'_, '_>| spec.child("type").text() == "ExternalName";
    if !outside(&now) && !outside(&before) {
        let headless = (is_headless(now.value()), is_headless(before.value()));
        if headless != (true, true) {
            kept(
                &now,
                &before,
                "clusterIPs",
                ("primary clusterIP can not be unset", "secondary clusterIP"),
                errors,
            );
        }
        if headless == (false, false) {
            kept(
                &now,
                &before,
                "ipFamilies",
                ("primary ipFamily can not be unset", "secondary ipFamily"),
                errors,
            );
        }
    }
    let balanced = |spec: &Field<'_, '_>| spec.child("type").text() == "LoadBalancer";
    let class = now.child("loadBalancerClass");
    if balanced(&now) && balanced(&before) && class.value() != before.child("loadBalancerClass").value() {
        errors.push(class.invalid(ONCE));
    }
    let health = now.child("healthCheckNodePort");
    if needs_health_port(now.value())
        && needs_health_port(before.value())
        && health.int() != before.child("healthCheckNodePort").int()
    {
        errors.push(health.forbidden("field is immutable"));
    }
}

/// The first entry of a list is immutable; the second one may be added or removed.
fn kept(
    now: &Field<'_, '_>,
    before: &Field<'_, '_>,
    field: &'static str,
    (unset, second): (&str, &str),
    errors: &mut Errors,
) {
    let (new, old) = (now.child(field), before.child(field));
    let (given, had) = (new.list(), old.list());
    if given.len() == had.len() {
        for index in (0..given.len()).filter(|index| given[*index] != had[*index]) {
            let shown = if field == "clusterIPs" { index } else { 0 };
            errors.push(new.index(shown).invalid_value(new.value().clone(), "may not change once set"));
        }
        return;
    }
    if let (Some(given), Some(had)) = (given.first(), had.first())
        && given != had
    {
        errors.push(new.index(0).invalid_value(new.value().clone(), "may not change once set"));
    }
    if given.len() < had.len() && given.is_empty() {
        let shown = if new.is_set() { new.value().clone() } else { Value::Null };
        errors.push(new.index(0).invalid_value(shown, unset));
    }
    if given.len() < had.len() && given.len() == 1 {
        let policy = now.child("ipFamilyPolicy");
        if policy.text() != "SingleStack" {
            errors.push(policy.invalid(format!("must be set to 'SingleStack' when releasing the {second}")));
        }
    }
}
