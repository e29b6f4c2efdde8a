//! Validation of built-in kinds: the fields that the system depends on, with the messages of kube-apiserver.

mod addresses;
mod api_service;
mod apps;
mod autoscaling;
mod batch;
mod canonical;
mod certificates;
mod claims;
mod conditions;
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
mod networking;
mod node;
mod pod;
mod policies;
mod quantities;
mod quota;
mod rbac;
mod runtime_class;
mod scheduling;
mod selectors;
mod service;
mod status;
mod storage_classes;
mod volume;
mod walk;
pub(crate) mod warnings;
mod webhooks;
mod workload;

use serde_json::Value;
use tombolo_apicore::field_error::FieldError;
use tombolo_apicore::kinds::meta::{self, IMMUTABLE};
use tombolo_apicore::kinds::{KindInfo, definition};
use tombolo_apicore::names;

/// Validates a new object, except its metadata.
pub(crate) fn create(kind: &KindInfo, object: &Value, errors: &mut Vec<FieldError>) {
    content(kind, object, None, errors);
}

/// Validates an update, except the metadata.
pub(crate) fn update(
    kind: &KindInfo,
    new: &Value,
    old: &Value,
    subresource: &str,
    errors: &mut Vec<FieldError>,
) {
    if subresource.is_empty() {
        content(kind, new, Some(old), errors);
        changes(kind, new, old, errors);
    }
    if matches!(subresource, "status" | "approval") {
        status::check(kind.group_kind(), new, old, errors);
    }
    match (kind.group_kind(), subresource) {
        (("", kind), subresource) if !subresource.is_empty() => {
            core::subresource((kind, subresource), new, old, errors);
        }
        (("apiextensions.k8s.io", "CustomResourceDefinition"), "") => {
            // The name was valid when the definition was created, and its parts are immutable.
            errors.retain(|error| error.field != "metadata.name");
            definition::check_stored_versions(new, errors);
        }
        (("certificates.k8s.io", "CertificateSigningRequest"), _) => {
            certificates::update(new, old, subresource, errors);
        }
        _ => {}
    }
}

fn content(kind: &KindInfo, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    match kind.group_kind() {
        ("", kind) => core::check(kind, object, old, errors),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            errors.extend(definition::check(kind, object, old.is_none()));
        }
        (group, name) => of_group(group, name, object, old, errors),
    }
}

/// Validates an object of a group that has its own module.
fn of_group(group: &str, kind: &str, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    match (group, kind) {
        ("apps", _) => apps::check(kind, object, old, errors),
        ("batch", _) => batch::check(kind, object, old, errors),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaling::check(object, old, errors),
        ("policy", "PodDisruptionBudget") => disruption::check(object, errors),
        ("networking.k8s.io", "Ingress") => ingress::check(object, old, errors),
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

/// The problem with a name, if there is one.
pub(crate) fn name_problem(kind: &KindInfo, name: &str) -> Option<String> {
    match kind.group_kind() {
        ("", "Namespace" | "Service") => names::dns1123_label(name),
        ("networking.k8s.io", "IPAddress") => canonical::address_problem(name),
        ("rbac.authorization.k8s.io" | "flowcontrol.apiserver.k8s.io", _) => names::path_segment(name),
        _ => names::dns1123_subdomain(name),
    }
}
