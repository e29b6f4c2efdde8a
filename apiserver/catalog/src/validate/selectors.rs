//! Label selectors: their validation, and which labels they match.

use serde_json::Value;

use super::{FieldError, meta, names};
use tombolo_apicore::value::{items, text};

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
