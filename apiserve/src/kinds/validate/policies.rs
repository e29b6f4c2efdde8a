//! Validation of admission policies and their bindings: what holds without compiling an expression.

use std::collections::HashSet;

use serde_json::Value;

use super::super::value::{at, items, text};
use super::FieldError;

/// Checks a policy or a binding.
pub(super) fn check(kind: &str, object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    match kind {
        "ValidatingAdmissionPolicy" => {
            parameter_kind(spec, errors);
            one_of(spec, "failurePolicy", &["Fail", "Ignore"], "spec", errors);
            conditions(spec, errors);
            if !spec["matchConstraints"].is_object() {
                errors.push(FieldError::required("spec.matchConstraints", ""));
            }
            if items(spec, &["validations"]).is_empty() && items(spec, &["auditAnnotations"]).is_empty() {
                for field in ["validations", "auditAnnotations"] {
                    let detail = "validations or auditAnnotations must contain at least one item";
                    errors.push(FieldError::required(format!("spec.{field}"), detail));
                }
            }
            for (index, validation) in items(spec, &["validations"]).iter().enumerate() {
                check_validation(validation, &format!("spec.validations[{index}]"), errors);
            }
        }
        "MutatingAdmissionPolicy" => {
            parameter_kind(spec, errors);
            one_of(spec, "failurePolicy", &["Fail", "Ignore"], "spec", errors);
            conditions(spec, errors);
            if items(spec, &["mutations"]).is_empty() {
                let detail = "mutations must contain at least one item";
                errors.push(FieldError::required("spec.mutations", detail));
            }
        }
        "ValidatingAdmissionPolicyBinding" => {
            binding(spec, errors);
            actions(spec, errors);
        }
        "MutatingAdmissionPolicyBinding" => binding(spec, errors),
        _ => {}
    }
}

fn one_of(value: &Value, field: &str, supported: &[&str], path: &str, errors: &mut Vec<FieldError>) {
    let found = text(value, &[field]);
    if !found.is_empty() && !supported.contains(&found) {
        errors.push(FieldError::not_supported(format!("{path}.{field}"), found, supported));
    }
}

/// Parameters are of a kind that is named in full.
fn parameter_kind(spec: &Value, errors: &mut Vec<FieldError>) {
    let kind = &spec["paramKind"];
    if !kind.is_object() {
        return;
    }
    for field in ["apiVersion", "kind"] {
        if text(kind, &[field]).is_empty() {
            errors.push(FieldError::required(format!("spec.paramKind.{field}"), ""));
        }
    }
}

fn conditions(spec: &Value, errors: &mut Vec<FieldError>) {
    let mut seen = HashSet::new();
    for (index, condition) in items(spec, &["matchConditions"]).iter().enumerate() {
        let at = format!("spec.matchConditions[{index}].name");
        match text(condition, &["name"]) {
            "" => errors.push(FieldError::required(at, "")),
            name if !seen.insert(name) => errors.push(FieldError::duplicate(at, name)),
            _ => {}
        }
    }
}

fn check_validation(validation: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let message = text(validation, &["message"]);
    if message.contains(['\n', '\r']) {
        errors.push(FieldError::invalid(format!("{path}.message"), message, "must not contain line breaks"));
    }
    one_of(validation, "reason", &["Forbidden", "Invalid", "RequestEntityTooLarge"], path, errors);
}

fn binding(spec: &Value, errors: &mut Vec<FieldError>) {
    if text(spec, &["policyName"]).is_empty() {
        errors.push(FieldError::required("spec.policyName", ""));
    }
    let parameters = at(spec, &["paramRef"]);
    if !parameters.is_object() {
        return;
    }
    let is_named = !text(parameters, &["name"]).is_empty();
    match (is_named, parameters["selector"].is_object()) {
        (false, false) => {
            let detail = "one of name or selector must be specified";
            errors.push(FieldError::required("spec.paramRef", detail));
        }
        (true, true) => {
            for field in ["name", "selector"] {
                let detail = "name and selector are mutually exclusive";
                errors.push(FieldError::forbidden(format!("spec.paramRef.{field}"), detail));
            }
        }
        _ => {}
    }
    if text(parameters, &["parameterNotFoundAction"]).is_empty() {
        errors.push(FieldError::required("spec.paramRef.parameterNotFoundAction", ""));
    }
    one_of(parameters, "parameterNotFoundAction", &["Allow", "Deny"], "spec.paramRef", errors);
}

/// A binding without actions would enforce nothing.
fn actions(spec: &Value, errors: &mut Vec<FieldError>) {
    let path = "spec.validationActions";
    let actions: Vec<&str> = items(spec, &["validationActions"]).iter().filter_map(Value::as_str).collect();
    for (index, action) in actions.iter().enumerate() {
        let at = format!("{path}[{index}]");
        if !["Audit", "Deny", "Warn"].contains(action) {
            errors.push(FieldError::not_supported(at, *action, &["Audit", "Deny", "Warn"]));
        } else if actions[..index].contains(action) {
            errors.push(FieldError::duplicate(at, *action));
        }
    }
    if actions.contains(&"Deny") && actions.contains(&"Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the \
                      API response and headers serves no purpose)";
        errors.push(FieldError::invalid(path, actions.clone(), detail));
    }
    if actions.is_empty() {
        errors.push(FieldError::required(path, "at least one validation action is required"));
    }
}
