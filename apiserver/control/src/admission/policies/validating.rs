//! Policies that refuse requests, warn about them, or log them.

use serde_json::Value;
use tombolo_apicore::admission::AdmissionRequest;
use tombolo_apicore::status::ApiError;
use tombolo_cel::rules::message_text;

use super::compiled::{Compiled, Mode, Validation};
use super::request::{Asking, RequestVariables};
use super::{Enforcement, Policy, Set, denied, fails_open, matching, words};
use crate::objects::text;

/// A violation of a policy by a request.
struct PolicyViolation {
    message: String,
    reason: String,
}

impl PolicyViolation {
    fn failure(message: String) -> Self {
        Self { message, reason: String::new() }
    }
}

/// Runs every policy that is bound to requests like this one.
///
/// # Errors
/// The first refusal.
pub(super) fn run(
    enforcement: &Enforcement,
    set: &Set,
    request: &AdmissionRequest<'_>,
) -> Result<(), ApiError> {
    let objects = &enforcement.objects;
    let mut facts = None;
    for (binding, policy) in set.bound() {
        if !matching::binds(binding, policy, request, objects) {
            continue;
        }
        let facts = facts.get_or_insert_with(|| RequestVariables::of(request, objects, &enforcement.rights));
        ask(enforcement, policy, binding, facts, request)?;
    }
    Ok(())
}

/// Runs one policy with each parameter in turn. Each finding is acted on at once, because there may be any number of
/// parameters.
fn ask(
    enforcement: &Enforcement,
    policy: &Policy,
    binding: &Value,
    facts: &RequestVariables,
    request: &AdmissionRequest<'_>,
) -> Result<(), ApiError> {
    let fails_open = fails_open(&policy.object);
    let unless_open = |failure: String| match fails_open {
        true => Ok(()),
        false => act(policy, binding, PolicyViolation::failure(failure), request),
    };
    let compiled = match policy.compiled(Mode::Validating) {
        Ok(compiled) => compiled,
        Err(errors) => {
            let why = errors.first().map(ToString::to_string).unwrap_or_default();
            return unless_open(format!("failed to configure policy: {why}"));
        }
    };
    let parameters = match enforcement.parameters(&policy.object, binding, request.namespace) {
        Ok(parameters) => parameters,
        Err(why) => return unless_open(format!("failed to configure binding: {why}")),
    };
    for parameter in parameters {
        let asking = Asking::new(facts, parameter.as_ref(), compiled);
        match asking.matches() {
            Ok(true) => {
                let mut findings = judge(compiled, &asking, fails_open);
                findings.try_for_each(|finding| act(policy, binding, finding, request))?;
            }
            Ok(false) => {}
            Err(why) => unless_open(why)?,
        }
    }
    Ok(())
}

fn judge(policy: &Compiled, asking: &Asking<'_>, fails_open: bool) -> impl Iterator<Item = PolicyViolation> {
    let check = move |validation: &Validation| match asking.bool(&validation.expression) {
        Ok(true) => None,
        Ok(false) => {
            Some(PolicyViolation { message: message(validation, asking), reason: validation.reason.clone() })
        }
        Err(_) if fails_open => None,
        Err(error) => Some(PolicyViolation::failure(format!(
            "expression '{}' resulted in error: {error}",
            validation.text
        ))),
    };
    policy.validations.iter().filter_map(check)
}

fn message(validation: &Validation, asking: &Asking<'_>) -> String {
    let evaluated =
        validation.message_expression.as_ref().and_then(|expression| asking.text(expression).ok());
    match evaluated.as_deref().and_then(message_text) {
        Some(text) => text,
        None if validation.message.is_empty() => format!("failed expression: {}", validation.text),
        None => validation.message.clone(),
    }
}

/// Performs the validation actions of the binding for a finding.
fn act(
    policy: &Policy,
    binding: &Value,
    finding: PolicyViolation,
    request: &AdmissionRequest<'_>,
) -> Result<(), ApiError> {
    let PolicyViolation { message, reason } = finding;
    let (policy, binding_name) = (policy.name(), text(binding, "/metadata/name"));
    for action in words(binding, "/spec/validationActions") {
        match action {
            "Deny" => return Err(denied(request, Mode::Validating, policy, binding_name, &message, &reason)),
            "Warn" => request.warnings.add(format!(
                "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding_name}': {message}"
            )),
            // The audit log has no annotations, so the finding is written to the server's own log.
            "Audit" => tracing::warn!(
                policy,
                binding = binding_name,
                user = request.attributes.identity.user,
                resource = request.attributes.resource,
                name = request.name,
                message,
                "a request violates a policy"
            ),
            _ => {}
        }
    }
    Ok(())
}
