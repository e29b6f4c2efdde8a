//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: rules about requests, which are themselves API objects.
//!
//! Policies and their bindings take effect when they are stored. Without any, a write costs one look at an empty set.

mod compiled;
pub(super) mod conditions;
mod matching;
mod mutating;
mod request;
mod request_types;
#[cfg(test)]
mod tests;
mod validating;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use serde_json::Value;
use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_apicore::blocking::run_blocking;
use tombolo_apicore::field_error::FieldError;
use tombolo_apicore::kinds::KindInfo;
use tombolo_apicore::registry::Registry;
use tombolo_apicore::status::{ApiError, Cause};
use tombolo_apicore::store::Stored;
use tombolo_cel::Authorize;
use tombolo_proto::object::Resource;

use self::compiled::{Compiled, Mode};
use crate::objects::{Objects, StoredObject, items, text};

/// Group of the policies.
const GROUP: &str = "admissionregistration.k8s.io";

/// The resource of policies and of bindings, by mode.
fn names(mode: Mode) -> (&'static str, &'static str) {
    match mode {
        Mode::Validating => ("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
        Mode::Mutating => ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"),
    }
}

/// A stored policy. Its expressions are compiled at their first use.
#[derive(Debug)]
struct Policy {
    object: Value,
    compiled: OnceLock<Result<Compiled, Vec<FieldError>>>,
}

impl Policy {
    fn name(&self) -> &str {
        text(&self.object, "/metadata/name")
    }

    fn compiled(&self, mode: Mode) -> &Result<Compiled, Vec<FieldError>> {
        self.compiled.get_or_init(|| Compiled::read(&self.object, mode))
    }
}

/// Policies and bindings of one mode.
#[derive(Debug, Clone, Default)]
struct Set {
    policies: BTreeMap<String, Arc<Policy>>,
    bindings: BTreeMap<String, Arc<Value>>,
}

impl Set {
    fn with(&self, is_policy: bool, name: &str, object: Option<Value>) -> Self {
        let mut changed = self.clone();
        match (is_policy, object) {
            (true, Some(object)) => {
                let policy = Policy { object, compiled: OnceLock::new() };
                changed.policies.insert(name.to_owned(), Arc::new(policy));
            }
            (false, Some(object)) => {
                changed.bindings.insert(name.to_owned(), Arc::new(object));
            }
            (true, None) => {
                changed.policies.remove(name);
            }
            (false, None) => {
                changed.bindings.remove(name);
            }
        }
        changed
    }

    /// Bindings with their policies, in the order of the bindings' names.
    fn bound(&self) -> impl Iterator<Item = (&Arc<Value>, &Arc<Policy>)> {
        let policy = |binding: &Value| self.policies.get(text(binding, "/spec/policyName"));
        self.bindings.values().filter_map(move |binding| Some((binding, policy(binding)?)))
    }
}

/// The stored policies and bindings. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Policies {
    validating: Arc<ArcSwap<Set>>,
    mutating: Arc<ArcSwap<Set>>,
}

impl Policies {
    /// Applies a change: an object as it is now stored, or its removal.
    pub(crate) fn apply(&self, stored: &Stored, deleted: bool) {
        let resource = stored.key.resource();
        if &*resource.group != GROUP {
            return;
        }
        for (mode, sets) in [(Mode::Validating, &self.validating), (Mode::Mutating, &self.mutating)] {
            let (policies, bindings) = names(mode);
            let is_policy = &*resource.name == policies;
            if is_policy || &*resource.name == bindings {
                let object = if deleted { None } else { serde_json::from_slice(&stored.body()).ok() };
                sets.rcu(|set| set.with(is_policy, stored.key.name(), object.clone()));
            }
        }
    }
}

/// Applies the policies to requests.
pub(crate) struct Enforcement {
    policies: Policies,
    objects: Objects,
    registry: Registry,
    rights: Arc<dyn Authorize>,
}

impl Enforcement {
    /// Applies these policies. Parameters and namespaces come from `objects`, kinds from `registry`, and authorization
    /// decisions from `rights`.
    pub(crate) fn new(
        policies: Policies,
        objects: Objects,
        registry: Registry,
        rights: Arc<dyn Authorize>,
    ) -> Self {
        Self { policies, objects, registry, rights }
    }

    /// Runs the validating policies.
    ///
    /// # Errors
    /// The first refusal.
    pub(super) async fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), ApiError> {
        let set = self.policies.validating.load_full();
        match self.concerns(&set, request) {
            true => run_blocking(&request.attributes.payer, || validating::run(self, &set, request)).await?,
            false => Ok(()),
        }
    }

    /// Runs the mutating policies. Returns whether one changed the object.
    ///
    /// # Errors
    /// A policy failed, and its failure policy is `Fail`.
    pub(super) async fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<bool, ApiError> {
        let set = self.policies.mutating.load_full();
        match request.object.is_some() && self.concerns(&set, request) {
            true => run_blocking(&request.attributes.payer, || mutating::run(self, &set, request)).await?,
            false => Ok(false),
        }
    }

    /// Whether any policy is bound to requests like this one.
    fn concerns(&self, set: &Set, request: &AdmissionRequest<'_>) -> bool {
        !is_exempt(request)
            && set.bound().any(|(binding, policy)| matching::binds(binding, policy, request, &self.objects))
    }

    /// The resource of a parameter kind, and whether it is namespaced.
    fn resource_of(&self, api_version: &str, kind: &str) -> Option<(Resource, bool)> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let catalog = self.registry.catalog();
        let info = catalog.kinds.by_kind(group, version, kind)?;
        Some((info.storage.clone(), info.namespaced))
    }
}

impl Enforcement {
    /// The kind of the object in a request.
    fn kind_of(&self, request: &AdmissionRequest<'_>) -> Arc<KindInfo> {
        let carried = self.registry.catalog().kinds.carried(request.kind, &request.attributes.subresource);
        carried.unwrap_or_else(|| Arc::clone(request.kind))
    }
}

/// Whether the request writes a policy or a binding. Policies do not apply to them: otherwise a policy that refuses
/// everything could not be deleted.
fn is_exempt(request: &AdmissionRequest<'_>) -> bool {
    let asked = request.attributes;
    let is_policy = |mode| {
        let (policies, bindings) = names(mode);
        asked.resource == policies || asked.resource == bindings
    };
    asked.group == GROUP && (is_policy(Mode::Validating) || is_policy(Mode::Mutating))
}

/// Refuses a policy with expressions that cannot be evaluated.
///
/// # Errors
/// 422 with all errors.
pub(super) async fn admit_definition(request: &AdmissionRequest<'_>) -> Result<(), ApiError> {
    let asked = request.attributes;
    if asked.group != GROUP || request.operation == Operation::Delete || !asked.subresource.is_empty() {
        return Ok(());
    }
    let mode = match asked.resource.as_str() {
        "validatingadmissionpolicies" => Mode::Validating,
        "mutatingadmissionpolicies" => Mode::Mutating,
        _ => return Ok(()),
    };
    let Some(object) = request.object.as_deref() else { return Ok(()) };
    if request.old.is_some_and(|old| old["spec"] == object["spec"]) {
        return Ok(());
    }
    let Err(errors) = run_blocking(&asked.payer, || Compiled::read(object, mode)).await? else {
        return Ok(());
    };
    Err(ApiError::invalid(GROUP, &request.kind.kind, request.name, &errors))
}

/// Whether a request passes when the policy cannot be evaluated.
fn fails_open(policy: &Value) -> bool {
    text(policy, "/spec/failurePolicy") == "Ignore"
}

/// The refusal of a request by a policy.
fn denied(
    request: &AdmissionRequest<'_>,
    mode: Mode,
    policy: &str,
    binding: &str,
    why: &str,
    reason: &str,
) -> ApiError {
    let kind = match mode {
        Mode::Validating => "ValidatingAdmissionPolicy",
        Mode::Mutating => "MutatingAdmissionPolicy",
    };
    let message = format!("{kind} '{policy}' with binding '{binding}' denied request: {why}");
    let mut refusal = super::refuse(request.attributes, request.name, &message);
    (refusal.code, refusal.reason) = match reason {
        "Unauthorized" => (http::StatusCode::UNAUTHORIZED, "Unauthorized"),
        "Forbidden" => (http::StatusCode::FORBIDDEN, "Forbidden"),
        "RequestEntityTooLarge" => (http::StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge"),
        _ => (http::StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
    };
    refusal.with_cause(Cause::new("", "", &message))
}

/// The parameters that a binding selects: objects, or one `None` when the policy takes no parameters. They are read one
/// at a time, because users who create such objects decide how many are selected and how much memory their trees take.
type Parameters<'a> = Box<dyn Iterator<Item = Option<Value>> + 'a>;

impl Enforcement {
    /// # Errors
    /// A message that says why required parameters are missing.
    fn parameters<'a>(
        &self,
        policy: &Value,
        binding: &'a Value,
        namespace: &str,
    ) -> Result<Parameters<'a>, String> {
        let Some(kind) = policy.pointer("/spec/paramKind").filter(|kind| kind.is_object()) else {
            return Ok(Box::new(std::iter::once(None)));
        };
        let Some(reference) = binding.pointer("/spec/paramRef").filter(|found| found.is_object()) else {
            // A binding without `paramRef` applies without parameters; expressions that use them fail.
            return Ok(Box::new(std::iter::once(Some(Value::Null))));
        };
        let (api_version, kind) = (text(kind, "/apiVersion"), text(kind, "/kind"));
        let (resource, namespaced) = self.resource_of(api_version, kind).ok_or_else(|| {
            format!("failed to find resource referenced by paramKind: '{api_version}, Kind={kind}'")
        })?;
        let namespace = match (namespaced, text(reference, "/namespace")) {
            (false, _) => "",
            (true, "") if namespace.is_empty() => {
                return Err(
                    "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                        .to_owned(),
                );
            }
            (true, "") => namespace,
            (true, named) => named,
        };
        let found: Box<dyn Iterator<Item = StoredObject> + 'a> = match text(reference, "/name") {
            "" => {
                let selector = reference.pointer("/selector").unwrap_or(&Value::Null);
                let all = self.objects.list(&resource, namespaced.then_some(namespace));
                let is_chosen =
                    move |object: &StoredObject| crate::selector::selects(selector, &object.value);
                Box::new(all.filter(is_chosen))
            }
            name => Box::new(self.objects.get(resource, namespace, name).into_iter()),
        };
        let mut found = found.map(|object| Some(object.value)).peekable();
        if found.peek().is_none() && text(reference, "/parameterNotFoundAction") != "Allow" {
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
        }
        Ok(Box::new(found))
    }
}

/// The strings in a list.
fn words<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a str> {
    items(value, pointer).iter().filter_map(Value::as_str)
}
