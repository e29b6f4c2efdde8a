//! Validation of built-in kinds: the fields that the system depends on, worded as kube-apiserver words them.

mod api_service;
mod autoscaling;
mod certificates;
mod meta;
pub mod names;
mod network;
mod objects;
mod pod;
mod pod_update;
mod policies;
mod storage;
mod workload;

use serde_json::Value;

use super::{FieldError, KindInfo, custom};
use crate::kinds::error::CAUSES_MAX;
use crate::schema::check;
use crate::schema::rules::judge;

/// What is wrong with a new object.
pub(crate) fn create(kind: &KindInfo, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::object(kind, object, &mut errors);
    content(kind, object, None, &mut errors);
    rules(kind, object, None, &mut errors);
    errors.truncate(CAUSES_MAX);
    errors
}

/// What is wrong with an update.
pub(crate) fn update(kind: &KindInfo, new: &Value, old: &Value, subresource: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::object(kind, new, &mut errors);
    meta::update(new, old, &mut errors);
    if kind.custom || subresource.is_empty() {
        content(kind, new, Some(old), &mut errors);
        rules(kind, new, Some(old), &mut errors);
    }
    if !kind.custom && subresource.is_empty() {
        immutable(kind, new, old, &mut errors);
    }
    match (kind.group_kind(), subresource) {
        (("", "Pod"), "ephemeralcontainers") => pod_update::ephemeral(new, old, &mut errors),
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
    errors
}

/// Rules of a custom kind's definition: they are written for values that fit the schema.
fn rules(kind: &KindInfo, new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if kind.custom && errors.is_empty() {
        errors.extend(judge(kind.place(), new, old));
    }
}

fn content(kind: &KindInfo, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if kind.custom {
        errors.extend(check::check(kind.place(), object, old));
        return;
    }
    match kind.group_kind() {
        ("", "Pod") => pod::pod(object, errors),
        ("", "PodTemplate") => pod::template(&object["template"], "template", errors),
        ("apps" | "batch", _) | ("", "ReplicationController") => workload::create(&kind.kind, object, errors),
        ("", "Service" | "Endpoints")
        | ("discovery.k8s.io" | "networking.k8s.io" | "policy" | "coordination.k8s.io", _) => {
            network::create(&kind.kind, object, errors);
        }
        ("", "PersistentVolume" | "PersistentVolumeClaim") | ("storage.k8s.io", _) => {
            storage::create(&kind.kind, object, errors);
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            errors.extend(custom::check(object, kind.schema().types()));
        }
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaling::check(&object["spec"], errors),
        ("admissionregistration.k8s.io", kind) => policies::check(kind, object, errors),
        ("apiregistration.k8s.io", "APIService") => api_service::check(object, errors),
        group_kind => objects::create(group_kind, object, errors),
    }
}

fn immutable(kind: &KindInfo, new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    match kind.group_kind() {
        ("", "Pod") => pod_update::pod(new, old, errors),
        ("apps" | "batch", _) => workload::update(&kind.kind, new, old, errors),
        ("", "Service") => network::service_update(new, old, errors),
        ("", "PersistentVolume" | "PersistentVolumeClaim") | ("storage.k8s.io", _) => {
            storage::update(&kind.kind, new, old, errors);
        }
        ("discovery.k8s.io", "EndpointSlice") => {
            same(new, old, &["addressType"], errors);
        }
        group_kind => objects::update(group_kind, new, old, errors),
    }
}

const IMMUTABLE: &str = "field is immutable";

/// Reports a field that may not change.
fn same(new: &Value, old: &Value, path: &[&str], errors: &mut Vec<FieldError>) {
    let (now, before) = (super::value::at(new, path), super::value::at(old, path));
    if now != before {
        errors.push(FieldError::invalid(path.join("."), now.clone(), IMMUTABLE));
    }
}
