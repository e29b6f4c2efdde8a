//! Validation of tolerations, spread constraints and gates.

use std::collections::HashSet;

use super::super::names;
use super::super::selectors::label_selector;
use super::affinity::{label_key, label_keys};
use super::{Errors, Field};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Checks tolerations.
pub(in super::super) fn tolerations(list: &Field<'_, '_>, errors: &mut Errors) {
    for toleration in list.items() {
        let part = |name| toleration.child(name);
        let (key, operator, value) = (part("key"), part("operator"), part("value"));
        let effect = part("effect");
        if !key.is_empty() {
            label_key(&key, errors);
        } else if operator.text() != "Exists" {
            let text =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(operator.invalid_value(operator.text(), text));
        }
        if part("tolerationSeconds").is_set() && effect.text() != "NoExecute" {
            let text = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(effect.invalid_value(effect.text(), text));
        }
        match operator.text() {
            "" | "Equal" => {
                let problems = names::label_value(value.text());
                if !problems.is_empty() {
                    errors.push(operator.invalid_value(value.text(), problems.join(";")));
                }
            }
            "Exists" if !value.is_empty() => {
                let text = "value must be empty when `operator` is 'Exists'";
                errors.push(operator.invalid_value(value.text(), text));
            }
            "Exists" => {}
            "Lt" | "Gt" => errors.push(operator.not_supported(&["Equal", "Exists", "Lt", "Gt"])),
            _ => errors.push(operator.not_supported(&["Equal", "Exists"])),
        }
        if !effect.is_empty() {
            effect.one_of(&EFFECTS, errors);
        }
    }
}

/// Checks topology spread constraints.
pub(super) fn spread(list: &Field<'_, '_>, errors: &mut Errors) {
    let constraints: Vec<Field<'_, '_>> = list.items().collect();
    for (index, constraint) in constraints.iter().enumerate() {
        positive(&constraint.child("maxSkew"), errors);
        let (key, action) = (constraint.child("topologyKey"), constraint.child("whenUnsatisfiable"));
        if key.is_empty() {
            errors.push(key.required("can not be empty"));
        }
        let actions = ["DoNotSchedule", "ScheduleAnyway"];
        if !actions.contains(&action.text()) {
            errors.push(action.not_supported(&actions));
        }
        let same = |other: &Field<'_, '_>| {
            other.child("topologyKey").text() == key.text()
                && other.child("whenUnsatisfiable").text() == action.text()
        };
        if constraints[index + 1..].iter().any(same) {
            let shown = format!("{{{}, {}}}", key.text(), action.text());
            let both = constraint.child("{topologyKey, whenUnsatisfiable}");
            errors.push(super::FieldError::duplicate(both.path(), shown));
        }
        min_domains(&constraint.child("minDomains"), action.text(), errors);
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            constraint.child(policy).one_of(&["Honor", "Ignore"], errors);
        }
        label_keys(constraint, errors);
        let selector = constraint.child("labelSelector");
        if selector.is_set() {
            label_selector(selector.value(), &selector.path(), errors);
        }
    }
}

fn positive(number: &Field<'_, '_>, errors: &mut Errors) {
    if number.int() <= 0 {
        errors.push(number.invalid_value(number.int(), "must be greater than zero"));
    }
}

fn min_domains(domains: &Field<'_, '_>, action: &str, errors: &mut Errors) {
    if !domains.is_set() {
        return;
    }
    positive(domains, errors);
    if action != "DoNotSchedule" {
        let text = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
        errors.push(domains.invalid(text));
    }
}

/// Checks readiness gates and scheduling gates.
pub(super) fn gates(spec: &Field<'_, '_>, errors: &mut Errors) {
    for gate in spec.child("readinessGates").items() {
        label_key(&gate.child("conditionType"), errors);
    }
    let mut seen = HashSet::new();
    for gate in spec.child("schedulingGates").items() {
        let name = gate.child("name").text();
        errors
            .extend(names::qualified_name(name).into_iter().map(|problem| gate.invalid_value(name, problem)));
        if !seen.insert(name) {
            errors.push(super::FieldError::duplicate(gate.path(), name));
        }
    }
}
