//! Validation of admission policies and their bindings, except the compilation of expressions
//! (pkg/apis/admissionregistration/validation).

use std::collections::HashSet;

use serde_json::Value;

use super::field::{Errors, Field};
use super::walk::top;
use super::{names, webhooks};
use tombolo_apicore::schema::rules::RESERVED_WORDS;
use tombolo_apicore::value::text;

const ANNOTATIONS_MAX: usize = 20;
const EXPRESSION_LEN_MAX: usize = 5 * 1024;
const MUTATING: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];

/// Checks a policy or a binding.
pub(super) fn check(kind: &str, object: &Value, errors: &mut Errors) {
    let spec = top(object, "spec");
    match kind {
        "ValidatingAdmissionPolicy" => {
            policy(&spec, errors);
            validations(&spec, text(object, &["metadata", "name"]), errors);
        }
        "MutatingAdmissionPolicy" => {
            policy(&spec, errors);
            operations(&spec.child("matchConstraints"), errors);
            mutations(&spec.child("mutations"), errors);
            spec.child("reinvocationPolicy").one_of_required(&["IfNeeded", "Never"], errors);
        }
        "ValidatingAdmissionPolicyBinding" => {
            binding(&spec, errors);
            actions(&spec.child("validationActions"), errors);
        }
        "MutatingAdmissionPolicyBinding" => {
            binding(&spec, errors);
            operations(&spec.child("matchResources"), errors);
        }
        _ => {}
    }
}

/// Checks what both kinds of policy have in common.
fn policy(spec: &Field<'_, '_>, errors: &mut Errors) {
    let failure = spec.child("failurePolicy");
    match failure.is_set() {
        true => failure.one_of(&["Fail", "Ignore"], errors),
        false => errors.push(failure.required("")),
    }
    parameter_kind(&spec.child("paramKind"), errors);
    let constraints = spec.child("matchConstraints");
    if constraints.is_set() {
        matched(&constraints, errors);
        constraints.child("resourceRules").demand(errors);
    } else {
        errors.push(constraints.required(""));
    }
    webhooks::conditions(&spec.child("matchConditions"), errors);
    spec.child("variables").items().for_each(|one| variable(&one, errors));
}

/// The kind of parameters needs all its parts.
fn parameter_kind(named: &Field<'_, '_>, errors: &mut Errors) {
    if !named.is_set() {
        return;
    }
    let (version, kind) = (named.child("apiVersion"), named.child("kind"));
    match version.text().split('/').collect::<Vec<_>>()[..] {
        [""] => errors.push(version.required("")),
        ["", ""] => errors.push(version.invalid("version must be specified")),
        [bare] => version_label(&version, bare, errors),
        [group, bare] => {
            if let Some(problem) = names::dns1123_subdomain(group).filter(|_| !group.is_empty()) {
                errors.push(version.invalid_value(group, problem));
            }
            version_label(&version, bare, errors);
        }
        _ => {
            errors.push(version.invalid(format!("unexpected GroupVersion string: {}", version.text())));
        }
    }
    match kind.text() {
        "" => errors.push(kind.required("")),
        text => errors.extend(names::dns1035_label(&text.to_lowercase()).map(|problem| {
            kind.invalid(format!("may have mixed case, but should otherwise match: {problem}"))
        })),
    }
}

fn version_label(at: &Field<'_, '_>, version: &str, errors: &mut Errors) {
    match version {
        "" => errors.push(at.invalid("version must be specified")),
        _ => errors.extend(names::dns1035_label(version).map(|problem| at.invalid_value(version, problem))),
    }
}

/// Checks which requests a policy or a binding matches.
fn matched(resources: &Field<'_, '_>, errors: &mut Errors) {
    let policy = resources.child("matchPolicy");
    match policy.is_set() {
        true => policy.one_of(&["Equivalent", "Exact"], errors),
        false => errors.push(policy.required("")),
    }
    for selector in ["namespaceSelector", "objectSelector"] {
        resources.child(selector).required_selector(errors);
    }
    for rules in ["resourceRules", "excludeResourceRules"] {
        for rule in resources.child(rules).items() {
            let names = rule.child("resourceNames");
            names.items().for_each(|name| name.grammar(names::path_segment, errors));
            names.unique(errors);
            webhooks::rule(&rule, errors);
        }
    }
}

/// A mutating policy cannot match deletions.
fn operations(resources: &Field<'_, '_>, errors: &mut Errors) {
    let at = resources.below("resourceRules.operations");
    for rule in resources.child("resourceRules").items() {
        let operations = rule.child("operations").texts().into_iter();
        for operation in operations.filter(|operation| !MUTATING.contains(operation)) {
            errors.push(super::FieldError::not_supported(at.path(), operation, &MUTATING));
        }
    }
}

fn variable(variable: &Field<'_, '_>, errors: &mut Errors) {
    let (name, expression) = (variable.child("name"), variable.child("expression"));
    let is_identifier = |text: &str| {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        text.bytes().all(fits)
            && !text.starts_with(|c: char| c.is_ascii_digit())
            && !RESERVED_WORDS.contains(&text)
    };
    if name.text().trim().is_empty() {
        errors.push(name.required("name is not specified"));
    } else if !is_identifier(name.text()) {
        errors.push(name.invalid("must be a valid CEL identifier"));
    }
    if expression.text().trim().is_empty() {
        errors.push(expression.required("expression is not specified"));
    }
}

fn validations(spec: &Field<'_, '_>, name: &str, errors: &mut Errors) {
    let (validations, annotations) = (spec.child("validations"), spec.child("auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        for list in [&validations, &annotations] {
            errors.push(list.required("validations or auditAnnotations must contain at least one item"));
        }
        return;
    }
    validations.items().for_each(|one| validation(&one, errors));
    if annotations.len() > ANNOTATIONS_MAX {
        let detail = format!("must not have more than {ANNOTATIONS_MAX} auditAnnotations");
        errors.push(annotations.invalid(detail));
    }
    let mut seen = HashSet::new();
    for annotation in annotations.items() {
        let (key, expression) = (annotation.child("key"), annotation.child("valueExpression"));
        let full = format!("{name}/{}", key.text());
        let problems = names::qualified_name(&full).into_iter();
        errors.extend(problems.map(|problem| key.invalid_value(full.as_str(), problem)));
        if expression.text().trim().is_empty() {
            errors.push(expression.required("valueExpression is not specified"));
        } else if expression.text().trim().len() > EXPRESSION_LEN_MAX {
            let detail = format!("must not exceed {EXPRESSION_LEN_MAX} bytes in length");
            errors.push(expression.required(&detail));
        }
        if !seen.insert(key.text()) {
            errors.push(key.duplicate());
        }
    }
}

fn validation(validation: &Field<'_, '_>, errors: &mut Errors) {
    let expression = validation.child("expression");
    if expression.text().trim().is_empty() {
        errors.push(expression.required("expression is not specified"));
    }
    for field in ["messageExpression", "message"] {
        let message = validation.child(field);
        if !message.text().is_empty() && message.text().trim().is_empty() {
            errors.push(message.invalid("must be non-empty if specified"));
        } else if field == "message" && message.text().trim().contains(['\n', '\r']) {
            errors.push(message.invalid("must not contain line breaks"));
        }
    }
    let reasons = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
    validation.child("reason").one_of(&reasons, errors);
}

/// Checks the results of the type checker.
pub(super) fn status(status: &Field<'_, '_>, errors: &mut Errors) {
    for warning in status.below("typeChecking.expressionWarnings").items() {
        for field in ["warning", "fieldRef"] {
            if warning.child(field).text().trim().is_empty() {
                errors.push(warning.child(field).required(""));
            }
        }
    }
}

fn mutations(mutations: &Field<'_, '_>, errors: &mut Errors) {
    const TYPES: [(&str, &str); 2] =
        [("ApplyConfiguration", "applyConfiguration"), ("JSONPatch", "jsonPatch")];
    if mutations.is_empty() {
        errors.push(mutations.required("mutations must contain at least one item"));
    }
    for mutation in mutations.items() {
        let kind = mutation.child("patchType");
        kind.one_of_required(&TYPES.map(|(kind, _)| kind), errors);
        for (named, field) in TYPES.iter().filter(|_| TYPES.iter().any(|(known, _)| *known == kind.text())) {
            let (patch, wanted) = (mutation.child(field), *named == kind.text());
            let expression = patch.child("expression");
            match (wanted, patch.is_set()) {
                (true, false) => {
                    errors.push(patch.required(&format!("must be specified when patchType is {named}")));
                }
                (true, true) if expression.text().trim().is_empty() => {
                    errors.push(expression.required(""));
                }
                (false, true) => {
                    let detail = format!("must not be specified when patchType is {}", kind.text());
                    errors.push(patch.invalid_value(format!("{{{field}}}"), detail));
                }
                _ => {}
            }
        }
    }
}

fn binding(spec: &Field<'_, '_>, errors: &mut Errors) {
    spec.child("policyName").check_required(names::dns1123_subdomain, errors);
    parameters(&spec.child("paramRef"), errors);
    let resources = spec.child("matchResources");
    if resources.is_set() {
        matched(&resources, errors);
    }
}

fn parameters(reference: &Field<'_, '_>, errors: &mut Errors) {
    if !reference.is_set() {
        return;
    }
    let (name, selector) = (reference.child("name"), reference.child("selector"));
    name.check(names::path_segment, errors);
    selector.selector(errors);
    match (name.text().is_empty(), selector.is_set()) {
        (true, false) => errors.push(reference.required("one of name or selector must be specified")),
        (false, true) => {
            for field in [&name, &selector] {
                errors.push(field.forbidden("name and selector are mutually exclusive"));
            }
        }
        _ => {}
    }
    reference.child("parameterNotFoundAction").one_of_required(&["Deny", "Allow"], errors);
}

/// Checks the actions of a binding. Without actions, it would enforce nothing.
fn actions(list: &Field<'_, '_>, errors: &mut Errors) {
    list.items().for_each(|one| one.one_of(&["Audit", "Deny", "Warn"], errors));
    list.unique(errors);
    let actions = list.texts();
    if actions.contains(&"Deny") && actions.contains(&"Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the \
                      API response and headers serves no purpose)";
        errors.push(list.invalid(detail));
    }
    if actions.is_empty() {
        errors.push(list.required("at least one validation action is required"));
    }
}
