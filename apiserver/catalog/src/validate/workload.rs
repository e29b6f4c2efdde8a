//! Validation of replication controllers, and of selectors.

use serde_json::Value;

use super::{FieldError, meta, names, pod};
use tombolo_apicore::value::{at, int, items, text};

/// Checks a replication controller.
pub(super) fn create(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    non_negative(spec, &["minReadySeconds"], "spec", errors);
    let selector = spec["selector"].as_object().filter(|selector| !selector.is_empty());
    if selector.is_none() {
        errors.push(FieldError::required("spec.selector", ""));
    }
    non_negative(spec, &["replicas"], "spec", errors);
    let template = &spec["template"];
    if !template.is_object() {
        errors.push(FieldError::required("spec.template", ""));
        return;
    }
    let labels = at(template, &["metadata", "labels"]);
    if selector.into_iter().flatten().any(|(key, value)| labels.get(key) != Some(value)) {
        let text = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid("spec.template.metadata.labels", labels.clone(), text));
    }
    pod::template(template, "spec.template", errors);
    let policy = text(template, &["spec", "restartPolicy"]);
    if policy != "Always" {
        errors.push(FieldError::not_supported("spec.template.spec.restartPolicy", policy, &["Always"]));
    }
    if !at(template, &["spec", "activeDeadlineSeconds"]).is_null() {
        let text = "activeDeadlineSeconds in ReplicationController is not Supported";
        errors.push(FieldError::forbidden("spec.template.spec.activeDeadlineSeconds", text));
    }
}

/// Reports negative counts.
pub(super) fn non_negative(of: &Value, fields: &[&str], path: &str, errors: &mut Vec<FieldError>) {
    for field in fields {
        if int(of, &[field]) < 0 {
            let text = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(format!("{path}.{field}"), of[*field].clone(), text));
        }
    }
}

/// Checks a label selector.
pub(super) fn label_selector(selector: &Value, path: &str, errors: &mut Vec<FieldError>) {
    meta::labels(&selector["matchLabels"], &format!("{path}.matchLabels"), errors);
    for (index, expression) in items(selector, &["matchExpressions"]).iter().enumerate() {
        let at = format!("{path}.matchExpressions[{index}]");
        let none = items(expression, &["values"]).is_empty();
        match text(expression, &["operator"]) {
            "In" | "NotIn" if none => {
                let text = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(format!("{at}.values"), text));
            }
            "Exists" | "DoesNotExist" if !none => {
                let text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(format!("{at}.values"), text));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let text = "not a valid selector operator";
                errors.push(FieldError::invalid(format!("{at}.operator"), other, text));
            }
        }
        let key = text(expression, &["key"]);
        for problem in names::qualified_name(key) {
            errors.push(FieldError::invalid(format!("{at}.key"), key, problem));
        }
        for (index, value) in items(expression, &["values"]).iter().enumerate() {
            for problem in names::label_value(value.as_str().unwrap_or_default()) {
                errors.push(FieldError::invalid(format!("{at}.values[{index}]"), value.clone(), problem));
            }
        }
    }
}

/// Whether a label selector matches labels.
pub(super) fn matches(selector: &Value, labels: &Value) -> bool {
    let exact = selector["matchLabels"].as_object().into_iter().flatten();
    let by_label = exact.into_iter().all(|(key, value)| labels.get(key) == Some(value));
    let by_expression = items(selector, &["matchExpressions"]).iter().all(|expression| {
        let found = labels.get(text(expression, &["key"]));
        let listed = found.is_some_and(|value| items(expression, &["values"]).contains(value));
        match text(expression, &["operator"]) {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => found.is_some(),
            _ => found.is_none(),
        }
    });
    by_label && by_expression
}
