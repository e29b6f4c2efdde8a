//! Defaults of webhooks and admission policies.

use serde_json::{Map, Value, json};

use tombolo_apicore::value::object_at;
use tombolo_apicore::value::{or_default, or_insert};

pub(super) fn default(kind: &str, map: &mut Map<String, Value>) {
    match kind {
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => webhooks(kind, map),
        "MutatingAdmissionPolicy" | "ValidatingAdmissionPolicy" => {
            let spec = object_at(map, "spec");
            or_default(spec, "failurePolicy", "Fail");
            if let Some(Value::Object(constraints)) = spec.get_mut("matchConstraints") {
                resources(constraints);
            }
        }
        _ => {
            let matched = map.get_mut("spec").and_then(|spec| spec.get_mut("matchResources"));
            if let Some(Value::Object(matched)) = matched {
                resources(matched);
            }
        }
    }
}

/// Defaults of `MatchResources`.
fn resources(constraints: &mut Map<String, Value>) {
    matching(constraints);
    scopes(constraints, "resourceRules");
    scopes(constraints, "excludeResourceRules");
}

fn matching(map: &mut Map<String, Value>) {
    or_default(map, "matchPolicy", "Equivalent");
    for selector in ["namespaceSelector", "objectSelector"] {
        or_insert(map, selector, json!({}));
    }
}

fn scopes(map: &mut Map<String, Value>, list: &str) {
    for rule in map.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
        if let Value::Object(rule) = rule {
            or_default(rule, "scope", "*");
        }
    }
}

fn webhooks(kind: &str, map: &mut Map<String, Value>) {
    for webhook in map.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten() {
        let Value::Object(webhook) = webhook else { continue };
        or_default(webhook, "failurePolicy", "Fail");
        or_insert(webhook, "timeoutSeconds", 10);
        if kind == "MutatingWebhookConfiguration" {
            or_default(webhook, "reinvocationPolicy", "Never");
        }
        matching(webhook);
        let client = object_at(webhook, "clientConfig");
        if client.get("service").is_some_and(Value::is_object) {
            or_insert(object_at(client, "service"), "port", 443);
        }
        scopes(webhook, "rules");
    }
}
