//! Validation of built-in kinds: the fields that the system depends on, worded as kube-apiserver words them.

mod addresses;
mod api_service;
mod apps;
mod autoscaling;
mod batch;
mod canonical;
mod certificates;
mod claims;
mod coordination;
mod core;
mod csi;
mod definitions;
mod devices;
mod discovery;
mod disruption;
mod domains;
mod endpoints;
mod events;
mod field;
mod flowcontrol;
mod immutable;
mod ingress;
mod int_or_percent;
mod meta;
pub mod names;
mod networking;
mod node;
mod pod;
mod policies;
mod quantities;
mod quota;
mod rbac;
mod replicas;
mod runtime_class;
mod scheduling;
mod service;
mod status;
mod storage_classes;
mod volume;
mod walk;
pub(crate) mod warnings;
mod webhooks;
mod workload;

use serde_json::Value;

use super::{FieldError, KindInfo, custom};
use crate::kinds::error::CAUSES_MAX;
use crate::schema::check;
use crate::schema::rules::judge;

/// What validation says of an update.
#[derive(Debug, Default)]
pub struct Verdict {
    /// What is wrong with it.
    pub errors: Vec<FieldError>,
    /// Rules of a custom kind that the object breaks as the one that it replaces did: clients are warned of them, also
    /// when the object is refused for something else.
    pub overlooked: Vec<FieldError>,
}

/// What is wrong with a new object.
pub(crate) fn create(kind: &KindInfo, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::object(kind, object, &mut errors);
    content(kind, object, None, &mut errors);
    replicas::check(kind, object, "", &mut errors);
    rules(kind, object, None, &mut errors);
    errors.truncate(CAUSES_MAX);
    errors
}

/// What is wrong with an update.
pub(crate) fn update(kind: &KindInfo, new: &Value, old: &Value, subresource: &str) -> Verdict {
    let mut errors = Vec::new();
    let mut overlooked = Vec::new();
    meta::object(kind, new, &mut errors);
    meta::update(new, old, &mut errors);
    if kind.custom || subresource.is_empty() {
        content(kind, new, Some(old), &mut errors);
        replicas::check(kind, new, subresource, &mut errors);
        overlooked = rules(kind, new, Some(old), &mut errors);
    }
    if !kind.custom && subresource.is_empty() {
        changes(kind, new, old, &mut errors);
    }
    if !kind.custom && matches!(subresource, "status" | "approval") {
        status::check(kind.group_kind(), new, old, &mut errors);
    }
    match (kind.group_kind(), subresource) {
        (("", kind), subresource) if !subresource.is_empty() => {
            core::subresource((kind, subresource), new, old, &mut errors);
        }
        (("apiextensions.k8s.io", "CustomResourceDefinition"), "") => {
            // The name was right when the definition was created, and what it consists of is immutable.
            errors.retain(|error| error.field != "metadata.name");
            custom::check_stored_versions(new, &mut errors);
        }
        (("certificates.k8s.io", "CertificateSigningRequest"), _) => {
            certificates::update(new, old, subresource, &mut errors);
        }
        _ => {}
    }
    errors.truncate(CAUSES_MAX);
    Verdict { errors, overlooked }
}

/// Rules of a custom kind's definition: they are written for values that fit the schema, and not asked of others. What
/// is given back is overlooked.
fn rules(kind: &KindInfo, new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) -> Vec<FieldError> {
    if !kind.custom {
        return Vec::new();
    }
    if errors.iter().any(|error| error.kind.is_blocking()) {
        if kind.schema().types().has_rules() {
            errors.push(FieldError::invalid("<nil>", Value::Null, UNCHECKED));
        }
        return Vec::new();
    }
    let judgement = judge(kind.place(), new, old);
    errors.extend(judgement.errors);
    judgement.overlooked
}

fn content(kind: &KindInfo, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if kind.custom {
        errors.extend(check::check(kind.place(), object, old));
        return;
    }
    match kind.group_kind() {
        ("", kind) => core::check(kind, object, old, errors),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            errors.extend(custom::check(object, kind.schema().types(), old.is_none()));
        }
        (group, name) => of_group(group, name, object, old, errors),
    }
}

/// What is wrong with an object of a group that has a module of its own.
fn of_group(group: &str, kind: &str, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    match (group, kind) {
        ("apps", _) => apps::check(kind, object, old, errors),
        ("batch", _) => batch::check(kind, object, old, errors),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaling::check(object, old, errors),
        ("policy", "PodDisruptionBudget") => disruption::check(object, errors),
        ("networking.k8s.io", _) => networking::check(kind, object, old, errors),
        ("discovery.k8s.io", "EndpointSlice") => discovery::check(object, old, errors),
        ("coordination.k8s.io", "Lease") => coordination::check(object, errors),
        ("storage.k8s.io", _) => storage_classes::check(kind, object, old, errors),
        ("scheduling.k8s.io", "PriorityClass") if old.is_none() => scheduling::check(object, errors),
        ("node.k8s.io", "RuntimeClass") => runtime_class::check(object, errors),
        ("rbac.authorization.k8s.io", _) => rbac::check(kind, object, errors),
        ("certificates.k8s.io", "CertificateSigningRequest") => certificates::check(object, old, errors),
        ("" | "events.k8s.io", "Event") => events::check(group, object, old, errors),
        ("resource.k8s.io", _) => devices::check(kind, object, old, errors),
        ("flowcontrol.apiserver.k8s.io", _) => flowcontrol::check(kind, object, errors),
        (
            "admissionregistration.k8s.io",
            "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration",
        ) => webhooks::check(object, old, errors),
        ("admissionregistration.k8s.io", _) => policies::check(kind, object, errors),
        ("apiregistration.k8s.io", "APIService") => api_service::check(object, errors),
        _ => {}
    }
}

fn changes(kind: &KindInfo, new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    match kind.group_kind() {
        ("", kind) => core::update(kind, new, old, errors),
        ("apps", "StatefulSet") => apps::stateful_set_update(new, old, errors),
        ("batch", "Job") => batch::update(new, old, errors),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definitions::update(new, old, errors),
        _ => {}
    }
    immutable::check(kind.group_kind(), new, old, errors);
}

const IMMUTABLE: &str = "field is immutable";

/// Said of a custom object that is too wrong for the rules of its definition.
const UNCHECKED: &str = "some validation rules were not checked because the object was invalid; correct the existing \
                         errors to complete validation";
