//! Validation of RuntimeClasses (pkg/apis/node/validation).

use serde_json::Value;

use super::field::{Errors, Field};
use super::walk::top;
use super::{meta, names};
use crate::schema::format::Quantity;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Checks a class.
pub(super) fn check(object: &Value, errors: &mut Errors) {
    top(object, "handler").check_required(names::dns1123_label, errors);
    // The real server checks the overhead as the limits of a container, and names them so.
    let limits = Field::root("overhead.limits", &object["overhead"]["podFixed"]);
    for (name, amount) in limits.entries() {
        let plain = ["cpu", "memory", "ephemeral-storage"].contains(&name) || name.starts_with("hugepages-");
        if !plain && !name.contains('/') {
            let detail = "must be a standard resource type or fully qualified";
            errors.push(amount.invalid_value(name, detail));
        }
        if Quantity::parse(amount.text()).is_ok_and(|amount| amount.sign().is_lt()) {
            errors.push(amount.invalid("must be greater than or equal to 0"));
        }
    }
    let scheduling = top(object, "scheduling");
    let selector = scheduling.child("nodeSelector");
    meta::labels(selector.value(), &selector.path(), errors);
    tolerations(&scheduling.child("tolerations"), errors);
}

fn tolerations(list: &Field<'_, '_>, errors: &mut Errors) {
    list.items().for_each(|one| toleration(&one, errors));
    let same = |one: &Value, other: &Value| {
        ["key", "operator", "value", "effect"].iter().all(|field| one[*field] == other[*field])
    };
    for (index, item) in list.items().enumerate() {
        if list.list()[..index].iter().any(|before| same(before, item.value())) {
            errors.push(item.duplicate());
        }
    }
}

fn toleration(toleration: &Field<'_, '_>, errors: &mut Errors) {
    let [key, operator, value, effect, seconds] =
        ["key", "operator", "value", "effect", "tolerationSeconds"].map(|field| toleration.child(field));
    if !key.text().is_empty() {
        key.grammar(names::qualified_name, errors);
    } else if operator.text() != "Exists" {
        let detail =
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.push(operator.invalid_value(operator.text(), detail));
    }
    if seconds.is_set() && effect.text() != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.push(effect.invalid_value(effect.text(), detail));
    }
    match operator.text() {
        "" | "Equal" => {
            let problems = names::label_value(value.text());
            if !problems.is_empty() {
                errors.push(operator.invalid_value(value.text(), problems.join(";")));
            }
        }
        "Exists" if !value.text().is_empty() => {
            let detail = "value must be empty when `operator` is 'Exists'";
            errors.push(operator.invalid_value(value.text(), detail));
        }
        "Exists" => {}
        "Lt" | "Gt" => errors.push(operator.not_supported(&["Equal", "Exists", "Lt", "Gt"])),
        _ => errors.push(operator.not_supported(&["Equal", "Exists"])),
    }
    if !effect.text().is_empty() {
        effect.one_of(&EFFECTS, errors);
    }
}
