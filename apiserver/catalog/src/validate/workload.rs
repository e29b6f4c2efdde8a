//! Validation of replication controllers.

use serde_json::Value;

use super::{FieldError, pod};
use tombolo_apicore::value::{at, int, text};

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
