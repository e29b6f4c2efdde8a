//! Which requests a webhook is called for.

use std::sync::Arc;

use serde_json::Value;
use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_apicore::kinds::{KindInfo, Kinds};
use tombolo_apicore::status::ApiError;

use super::configuration::{GROUP, Webhook, WebhookRule};
use crate::objects::{Objects, core};
use crate::selector::selects;

/// A webhook to call, and the kind and version in which it gets the object.
#[derive(Debug, Clone)]
pub(super) struct Invocation {
    pub(super) webhook: Arc<Webhook>,
    pub(super) kind: Arc<KindInfo>,
}

/// Whether a kind configures admission. Webhooks are not called for these kinds: otherwise a webhook that refuses
/// everything could not be removed.
pub(super) fn is_exempt(kind: &KindInfo) -> bool {
    const CONFIGURATIONS: [&str; 6] = [
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
    ];
    &*kind.resource.group == GROUP && CONFIGURATIONS.contains(&&*kind.kind)
}

/// The name of an operation in an AdmissionReview.
pub(super) fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
    }
}

/// Whether the rules and selectors of a webhook match a request, and in which version it is called.
///
/// # Errors
/// 404 when the namespace whose labels are needed does not exist.
pub(super) fn invocation(
    webhook: &Arc<Webhook>,
    request: &AdmissionRequest<'_>,
    objects: &Objects,
    kinds: &Kinds,
) -> Result<Option<Invocation>, ApiError> {
    if !selects_object(webhook, request) {
        return Ok(None);
    }
    let fits = |kind: &KindInfo| webhook.rules.iter().any(|rule| rule_fits(rule, kind, request));
    let kind = if fits(request.kind) {
        Some(request.kind)
    } else if webhook.wants_equivalents() {
        kinds.iter().find(|other| other.storage == request.kind.storage && fits(other))
    } else {
        None
    };
    let Some(kind) = kind else { return Ok(None) };
    if !selects_namespace(webhook, request, objects)? {
        return Ok(None);
    }
    Ok(Some(Invocation { webhook: Arc::clone(webhook), kind: Arc::clone(kind) }))
}

fn rule_fits(rule: &WebhookRule, kind: &KindInfo, request: &AdmissionRequest<'_>) -> bool {
    let has = |list: &[String], wanted: &str| list.iter().any(|own| own == "*" || own == wanted);
    let scope_fits = match rule.scope.as_deref() {
        Some("Namespaced") => kind.namespaced,
        Some("Cluster") => !kind.namespaced,
        _ => true,
    };
    let subresource = request.attributes.subresource.as_str();
    let resource_fits = rule.resources.iter().any(|wanted| {
        let (resource, sub) = wanted.split_once('/').unwrap_or((wanted, ""));
        (resource == "*" || resource == &*kind.resource.name) && (sub == "*" || sub == subresource)
    });
    scope_fits
        && has(&rule.operations, operation_name(request.operation))
        && has(&rule.api_groups, &kind.resource.group)
        && has(&rule.api_versions, &kind.resource.version)
        && resource_fits
}

fn selects_object(webhook: &Webhook, request: &AdmissionRequest<'_>) -> bool {
    let selector = &webhook.object_selector;
    is_empty(selector)
        || [request.object.as_deref(), request.old]
            .into_iter()
            .flatten()
            .any(|object| selects(selector, object))
}

/// Whether the namespace selector matches. It does not apply to cluster-scoped objects other than namespaces.
fn selects_namespace(
    webhook: &Webhook,
    request: &AdmissionRequest<'_>,
    objects: &Objects,
) -> Result<bool, ApiError> {
    let selector = &webhook.namespace_selector;
    let is_namespace = request.kind.storage == core("namespaces");
    if is_empty(selector) || (request.namespace.is_empty() && !is_namespace) {
        return Ok(true);
    }
    if let (true, Some(namespace)) = (is_namespace, request.object.as_deref()) {
        return Ok(selects(selector, namespace));
    }
    let name = if is_namespace { request.name } else { request.namespace };
    let namespace = objects.get(core("namespaces"), "", name);
    let namespace = namespace.ok_or_else(|| ApiError::not_found("", "namespaces", name))?;
    Ok(selects(selector, &namespace.value))
}

fn is_empty(selector: &Value) -> bool {
    let none = |list: &str| match selector.get(list) {
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        _ => true,
    };
    none("matchLabels") && none("matchExpressions")
}
