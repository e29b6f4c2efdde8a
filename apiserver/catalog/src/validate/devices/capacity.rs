//! How a device's capacity may be shared: valid request amounts, as a list or as a range with steps.

use super::super::field::{Errors, Field};
use tombolo_apicore::schema::format::Quantity;

const OPTIONS_MAX: usize = 10;

/// Checks the request policy of a capacity.
pub(super) fn check(capacity: &Field<'_, '_>, is_shared: bool, errors: &mut Errors) {
    let policy = capacity.child("requestPolicy");
    if !policy.is_set() {
        return;
    }
    if !is_shared {
        errors.push(policy.forbidden("allowMultipleAllocations must be true"));
        return;
    }
    let (values, range) = (policy.child("validValues"), policy.child("validRange"));
    let usual = policy.child("default");
    let most = capacity.child("value");
    match (!values.is_empty(), range.is_set()) {
        (true, true) => {
            let detail = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time";
            errors.push(policy.forbidden(detail));
        }
        (true, false) if !usual.is_set() => {
            errors.push(usual.required("required when validValues is defined"));
        }
        (true, false) => options(&values, &usual, &most, errors),
        (false, true) if !usual.is_set() => {
            errors.push(usual.required("required when validRange is defined"));
        }
        (false, true) => self::range(&range, &usual, &most, errors),
        (false, false) => {}
    }
}

fn amount(field: &Field<'_, '_>) -> Quantity {
    Quantity::parse(field.text()).unwrap_or(Quantity::ZERO)
}

fn options(values: &Field<'_, '_>, usual: &Field<'_, '_>, most: &Field<'_, '_>, errors: &mut Errors) {
    let mut before: Option<Quantity> = None;
    for value in values.items() {
        if before.is_some_and(|before| before > amount(&value)) {
            errors.push(value.invalid("values must be sorted in ascending order"));
        }
        before = Some(amount(&value));
    }
    if values.overfull(OPTIONS_MAX, errors) {
        return;
    }
    for value in values.items().filter(|value| amount(value) > amount(most)) {
        errors.push(value.invalid(format!("option is larger than capacity value: {}", most.text())));
    }
    values.unique(errors);
    if !values.items().any(|value| amount(&value) == amount(usual)) {
        let detail = "default value is not valid according to the requestPolicy";
        errors.push(values.invalid_value(usual.text(), detail));
    }
}

fn range(range: &Field<'_, '_>, usual: &Field<'_, '_>, most: &Field<'_, '_>, errors: &mut Errors) {
    let [low, high, step] = ["min", "max", "step"].map(|bound| range.child(bound));
    if !low.is_set() {
        errors.push(low.required("required when validRange is defined"));
        return;
    }
    let beyond = |what: &str| format!("{what} is larger than capacity value: {}", most.text());
    if amount(&low) > amount(most) {
        errors.push(low.invalid(beyond("min")));
    }
    if amount(usual) < amount(&low) {
        errors.push(low.invalid_value(usual.text(), format!("default is less than min: {}", low.text())));
    }
    if high.is_set() {
        if amount(&low) > amount(&high) {
            errors.push(high.invalid_value(low.text(), format!("min is larger than max: {}", high.text())));
        }
        if amount(&high) > amount(most) {
            errors.push(high.invalid(beyond("max")));
        }
        if amount(usual) > amount(&high) {
            errors
                .push(high.invalid_value(usual.text(), format!("default is more than max: {}", high.text())));
        }
    }
    if !step.is_set() {
        return;
    }
    let first = amount(&low) + amount(&step);
    if first > amount(most) {
        errors.push(step.invalid(beyond(&format!("one step {first}"))));
    }
    for value in [Some(usual), Some(&high).filter(|high| high.is_set())].into_iter().flatten() {
        if !is_step(amount(value), amount(&low), amount(&step)) {
            let detail =
                format!("value is not a multiple of a given step ({}) from ({})", step.text(), low.text());
            errors.push(step.invalid_value(value.text(), detail));
        }
    }
}

/// Whether an amount is the minimum plus a whole number of steps. Steps of less than one unit reach every amount.
fn is_step(value: Quantity, low: Quantity, step: Quantity) -> bool {
    let units = |amount: Quantity| amount.rounded_up().units().unwrap_or(i64::MAX);
    let distance = i128::from(units(value)) - i128::from(units(low));
    distance.checked_rem(i128::from(units(step))).is_none_or(|rest| rest == 0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wrong(policy: &Value) -> Vec<String> {
        let (capacity, mut errors) = (json!({"value": "10", "requestPolicy": policy}), Vec::new());
        check(&Field::root("c", &capacity), true, &mut errors);
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn device_amounts_fit_the_capacity() {
        let no: [&str; 0] = [];
        assert_eq!(wrong(&json!({"default": "2", "validValues": ["1", "2"]})), no);
        assert_eq!(wrong(&json!({"default": "4", "validRange": {"min": "2", "max": "8", "step": "2"}})), no);
        assert_eq!(wrong(&json!({"validValues": ["1"]})), ["c.requestPolicy.default"]);
        assert_eq!(
            wrong(&json!({"default": "2", "validValues": ["2", "1"]})),
            ["c.requestPolicy.validValues[1]"]
        );
        assert_eq!(wrong(&json!({"default": "3", "validValues": ["2"]})), ["c.requestPolicy.validValues"]);
        assert_eq!(
            wrong(&json!({"default": "12", "validValues": ["12"]})),
            ["c.requestPolicy.validValues[0]"]
        );
        assert_eq!(
            wrong(&json!({"default": "3", "validRange": {"min": "2", "step": "2"}})),
            ["c.requestPolicy.validRange.step"]
        );
        assert_eq!(
            wrong(&json!({"default": "1", "validRange": {"min": "2"}})),
            ["c.requestPolicy.validRange.min"]
        );
    }
}
