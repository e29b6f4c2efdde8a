//! Validation of node and pod affinity.

use serde_json::Value;

use super::super::names;
use super::super::selectors::label_selector;
use super::{Errors, Field};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Checks the affinity of a pod.
pub(super) fn check(affinity: &Field<'_, '_>, errors: &mut Errors) {
    let node = affinity.child("nodeAffinity");
    if node.child(REQUIRED).is_set() {
        node_selector(&node.child(REQUIRED), errors);
    }
    for term in node.child(PREFERRED).items() {
        weight(&term.child("weight"), errors);
        node_term(&term.child("preference"), false, errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let kind = affinity.child(kind);
        kind.child(REQUIRED).items().for_each(|term| pod_term(&term, errors));
        for term in kind.child(PREFERRED).items() {
            weight(&term.child("weight"), errors);
            pod_term(&term.child("podAffinityTerm"), errors);
        }
    }
}

fn weight(weight: &Field<'_, '_>, errors: &mut Errors) {
    if !(1..=100).contains(&weight.int()) {
        errors.push(weight.invalid_value(weight.int(), "must be in the range 1-100"));
    }
}

/// Checks which nodes a pod or a volume may be on.
pub(in super::super) fn node_selector(selector: &Field<'_, '_>, errors: &mut Errors) {
    let terms = selector.child("nodeSelectorTerms");
    if terms.is_empty() {
        errors.push(terms.required("must have at least one node selector term"));
    }
    terms.items().for_each(|term| node_term(&term, true, errors));
}

/// Checks a node selector term. Values of preferred terms are not checked.
fn node_term(term: &Field<'_, '_>, check_values: bool, errors: &mut Errors) {
    for expression in term.child("matchExpressions").items() {
        node_expression(&expression, check_values, errors);
    }
    for field in term.child("matchFields").items() {
        node_field(&field, errors);
    }
}

fn node_expression(expression: &Field<'_, '_>, check_values: bool, errors: &mut Errors) {
    let (operator, values) = (expression.child("operator"), expression.child("values"));
    let given = values.list().len();
    match operator.text() {
        "In" | "NotIn" if given == 0 => {
            errors.push(values.required("must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if given > 0 => {
            errors
                .push(values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'"));
        }
        "Gt" | "Lt" if given != 1 => {
            errors.push(values.required("must be specified single value when `operator` is 'Lt' or 'Gt'"));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        _ => errors.push(operator.invalid_value(operator.text(), "not a valid selector operator")),
    }
    label_key(&expression.child("key"), errors);
    if check_values {
        for value in values.items() {
            value.check_all(names::label_value(value.text()), errors);
        }
    }
}

fn node_field(field: &Field<'_, '_>, errors: &mut Errors) {
    let (key, operator, values) = (field.child("key"), field.child("operator"), field.child("values"));
    match operator.text() {
        "In" | "NotIn" if values.list().len() == 1 => {}
        "In" | "NotIn" => {
            let text = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.push(values.required(text));
        }
        _ => errors.push(operator.invalid_value(operator.text(), "not a valid selector operator")),
    }
    if key.text() != "metadata.name" {
        errors.push(key.invalid_value(key.text(), "not a valid field selector key"));
        return;
    }
    for value in values.items() {
        value.check_all(names::dns1123_subdomain(value.text()), errors);
    }
}

/// Checks a label key.
pub(super) fn label_key(key: &Field<'_, '_>, errors: &mut Errors) {
    key.check_all(names::qualified_name(key.text()), errors);
}

fn pod_term(term: &Field<'_, '_>, errors: &mut Errors) {
    for selector in ["labelSelector", "namespaceSelector"] {
        let selector = term.child(selector);
        if selector.is_set() {
            label_selector(selector.value(), &selector.path(), errors);
        }
    }
    let shown = term.with("namespace", &Value::Null);
    for namespace in term.child("namespaces").items() {
        let name = namespace.text();
        errors.extend(names::dns1123_label(name).map(|problem| shown.invalid_value(name, problem)));
    }
    label_keys(term, errors);
    let key = term.child("topologyKey");
    if key.is_empty() {
        errors.push(key.required("can not be empty"));
    }
    label_key(&key, errors);
}

/// Checks label keys whose values come from the pod itself.
pub(super) fn label_keys(term: &Field<'_, '_>, errors: &mut Errors) {
    let (selector, matched) = (term.child("labelSelector"), term.child("matchLabelKeys"));
    let mismatched = term.child("mismatchLabelKeys");
    for keys in [&matched, &mismatched] {
        if keys.is_empty() {
            continue;
        }
        if !selector.is_set() {
            errors.push(keys.forbidden("must not be specified when labelSelector is not set"));
            continue;
        }
        keys.items().for_each(|key| label_key(&key, errors));
    }
    let labels = selector.child("matchLabels");
    let mut selected: Vec<&str> = labels.entries().map(|(key, _)| key).collect();
    for expression in selector.child("matchExpressions").items() {
        let key = expression.child("key").text();
        let twice = matched.list().iter().rposition(|matched| matched == key);
        if let Some(index) = twice.filter(|_| selected.contains(&key)) {
            let text = "exists in both matchLabelKeys and labelSelector";
            errors.push(term.index(index).invalid_value(key, text));
        }
        selected.push(key);
    }
    for key in matched.items() {
        if mismatched.list().contains(key.value()) {
            errors.push(key.invalid("exists in both matchLabelKeys and mismatchLabelKeys"));
        }
    }
}
