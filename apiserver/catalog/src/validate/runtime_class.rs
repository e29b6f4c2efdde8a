//! Validation of RuntimeClasses (pkg/apis/node/validation).

use serde_json::Value;

use super::field::{Errors, Field};
use super::walk::top;
use super::{meta, names, pod};
use tombolo_apicore::schema::format::Quantity;

/// Checks a class.
pub(super) fn check(object: &Value, errors: &mut Errors) {
    top(object, "handler").check_required(names::dns1123_label, errors);
    // The real server checks the overhead like a container's limits, and reports it under that path.
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
    pod::scheduling::tolerations(list, errors);
    let same = |one: &Value, other: &Value| {
        ["key", "operator", "value", "effect"].iter().all(|field| one[*field] == other[*field])
    };
    for (index, item) in list.items().enumerate() {
        if list.list()[..index].iter().any(|before| same(before, item.value())) {
            errors.push(item.duplicate());
        }
    }
}
