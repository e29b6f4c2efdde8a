//! Policies that change objects before they are stored.

use jiff::Timestamp;
use serde_json::Value;
use tombolo_apicore::admission::AdmissionRequest;
use tombolo_apicore::kinds::KindInfo;
use tombolo_apicore::patch::json_patch;
use tombolo_apicore::ssa::{self, Writer};
use tombolo_apicore::status::ApiError;

use super::compiled::{Mode, Mutation};
use super::request::{Asking, RequestVariables};
use super::{Enforcement, Policy, Set, denied, fails_open, matching};
use crate::objects::text;

/// Applies every bound policy to the object. Policies with reinvocation policy `IfNeeded` are applied once more if
/// others changed the object after them. Returns whether any policy changed the object.
///
/// # Errors
/// A policy failed, and its failure policy is `Fail`.
pub(super) fn run(
    enforcement: &Enforcement,
    set: &Set,
    request: &mut AdmissionRequest<'_>,
) -> Result<bool, ApiError> {
    // Only the number of changes is kept: a copy of the object for each policy would take many times its memory.
    let (mut changes, mut again) = (0_usize, Vec::new());
    for (binding, policy) in set.bound() {
        let applied = apply(enforcement, policy, binding, request)?;
        changes += usize::from(applied == Applied::Changed);
        if applied != Applied::Passed && text(&policy.object, "/spec/reinvocationPolicy") == "IfNeeded" {
            again.push((binding, policy, changes));
        }
    }
    for (binding, policy, seen) in again {
        if changes != seen {
            let applied = apply(enforcement, policy, binding, request)?;
            changes += usize::from(applied == Applied::Changed);
        }
    }
    Ok(changes > 0)
}

/// The effect of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Applied {
    /// The policy does not match the request, its conditions do not hold, or its failure is ignored.
    Passed,
    /// The policy applied, and the object needed no change.
    Kept,
    /// The policy changed the object.
    Changed,
}

/// Applies one policy.
fn apply(
    enforcement: &Enforcement,
    policy: &Policy,
    binding: &Value,
    request: &mut AdmissionRequest<'_>,
) -> Result<Applied, ApiError> {
    if !matching::binds(binding, policy, request, &enforcement.objects) {
        return Ok(Applied::Passed);
    }
    match changed(enforcement, policy, binding, request) {
        Ok(None) => Ok(Applied::Passed),
        Ok(Some(object)) => match request.object.as_deref_mut() {
            Some(slot) if *slot != object => {
                *slot = object;
                Ok(Applied::Changed)
            }
            _ => Ok(Applied::Kept),
        },
        Err(_) if fails_open(&policy.object) => Ok(Applied::Passed),
        Err(why) => {
            let binding = text(binding, "/metadata/name");
            Err(denied(request, Mode::Mutating, policy.name(), binding, &why, ""))
        }
    }
}

/// The object after the mutations of a policy; `None` when its conditions do not hold.
fn changed(
    enforcement: &Enforcement,
    policy: &Policy,
    binding: &Value,
    request: &AdmissionRequest<'_>,
) -> Result<Option<Value>, String> {
    let compiled = policy.compiled(Mode::Mutating).as_ref();
    let compiled = compiled.map_err(|errors| {
        format!("failed to configure policy: {}", errors.first().map(ToString::to_string).unwrap_or_default())
    })?;
    let parameters = enforcement.parameters(&policy.object, binding, request.namespace)?;
    let mut facts = RequestVariables::of(request, &enforcement.objects, &enforcement.rights);
    let (kind, mut applied) = (enforcement.kind_of(request), false);
    for parameter in parameters {
        if !Asking::new(&facts, parameter.as_ref(), compiled).matches()? {
            continue;
        }
        applied = true;
        for mutation in &compiled.mutations {
            let asking = Asking::new(&facts, parameter.as_ref(), compiled);
            let object = match mutation {
                Mutation::Apply(expression) => {
                    let fields = asking.json(expression).map_err(|error| error.to_string())?;
                    merged(&kind, facts.object(), fields)?
                }
                Mutation::Patch(expression) => {
                    let patch = asking.json(expression).map_err(|error| error.to_string())?;
                    json_patch(facts.object(), patch.to_string().as_bytes())
                        .map_err(|error| error.to_string())?
                }
            };
            facts.replace_object(object);
        }
    }
    Ok(applied.then(|| facts.into_object()))
}

/// Sets fields as in server-side apply, without recording field owners.
fn merged(kind: &KindInfo, object: &Value, mut fields: Value) -> Result<Value, String> {
    let members = fields.as_object_mut().ok_or("an apply configuration must be an object")?;
    members.insert("apiVersion".to_owned(), kind.api_version().into());
    members.insert("kind".to_owned(), (&*kind.kind).into());
    let mut bare = object.clone();
    let ownership =
        bare.pointer_mut("/metadata").and_then(|metadata| metadata.as_object_mut()?.remove("managedFields"));
    let writer = Writer {
        manager: "admission",
        api_version: kind.api_version(),
        subresource: "",
        now: Timestamp::now(),
    };
    let mut merged =
        ssa::apply(kind, Some(&bare), &fields, &writer, true).map_err(|error| error.to_string())?;
    if let Some(metadata) = merged.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        match ownership {
            Some(ownership) => metadata.insert("managedFields".to_owned(), ownership),
            None => metadata.remove("managedFields"),
        };
    }
    Ok(merged)
}
