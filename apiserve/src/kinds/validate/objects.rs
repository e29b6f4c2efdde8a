//! Validation of the remaining kinds.

use serde_json::Value;

use super::super::value::{at, items, text};
use super::{FieldError, IMMUTABLE, names};

/// Together the values of a ConfigMap or Secret may not be larger.
const DATA_LEN_MAX: usize = 1024 * 1024;

/// Checks one of these kinds.
pub(super) fn create(group_kind: (&str, &str), object: &Value, errors: &mut Vec<FieldError>) {
    match group_kind {
        ("", "ConfigMap") => config_map(object, errors),
        ("", "Secret") => secret(object, errors),
        ("", "Node") => node(object, errors),
        _ => {}
    }
}

fn config_map(object: &Value, errors: &mut Vec<FieldError>) {
    let mut size = 0;
    for list in ["data", "binaryData"] {
        for (key, value) in object[list].as_object().into_iter().flatten() {
            if let Some(problem) = names::config_key(key) {
                errors.push(FieldError::invalid(format!("{list}[{key}]"), key.as_str(), problem));
            }
            size += decoded_len(value, list == "binaryData");
        }
    }
    for (key, _) in object["data"].as_object().into_iter().flatten() {
        if object["binaryData"].get(key).is_some() {
            let text = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(format!("data[{key}]"), key.as_str(), text));
        }
    }
    if size > DATA_LEN_MAX {
        errors.push(FieldError::too_long("", DATA_LEN_MAX));
    }
}

fn decoded_len(value: &Value, base64: bool) -> usize {
    let length = value.as_str().map_or(0, str::len);
    if base64 { length / 4 * 3 } else { length }
}

fn secret(object: &Value, errors: &mut Vec<FieldError>) {
    let mut size = 0;
    for (key, value) in object["data"].as_object().into_iter().flatten() {
        if let Some(problem) = names::config_key(key) {
            errors.push(FieldError::invalid(format!("data[{key}]"), key.as_str(), problem));
        }
        size += decoded_len(value, true);
    }
    if size > DATA_LEN_MAX {
        errors.push(FieldError::too_long("data", DATA_LEN_MAX));
    }
    let mut demand = |key: &str| {
        if object["data"].get(key).is_none() {
            errors.push(FieldError::required(format!("data[{key}]"), ""));
        }
    };
    match text(object, &["type"]) {
        "kubernetes.io/tls" => {
            demand("tls.crt");
            demand("tls.key");
        }
        "kubernetes.io/ssh-auth" => demand("ssh-privatekey"),
        "kubernetes.io/dockercfg" => demand(".dockercfg"),
        "kubernetes.io/dockerconfigjson" => demand(".dockerconfigjson"),
        "kubernetes.io/service-account-token" => {
            let annotation = "kubernetes.io/service-account.name";
            if text(object, &["metadata", "annotations", annotation]).is_empty() {
                let at = format!("metadata.annotations[{annotation}]");
                errors.push(FieldError::required(at, ""));
            }
        }
        _ => {}
    }
}

fn node(object: &Value, errors: &mut Vec<FieldError>) {
    for (index, taint) in items(object, &["spec", "taints"]).iter().enumerate() {
        let path = format!("spec.taints[{index}]");
        let key = text(taint, &["key"]);
        for problem in names::qualified_name(key) {
            errors.push(FieldError::invalid(format!("{path}.key"), key, problem));
        }
        let effect = text(taint, &["effect"]);
        if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
            let words = ["NoExecute", "NoSchedule", "PreferNoSchedule"];
            errors.push(FieldError::not_supported(format!("{path}.effect"), effect, &words));
        }
    }
}

/// Checks what an update changes.
pub(super) fn update(group_kind: (&str, &str), new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    match group_kind {
        ("", "ConfigMap") => sealed(new, old, &["data", "binaryData"], errors),
        ("", "Secret") => {
            if new["type"] != old["type"] {
                errors.push(FieldError::invalid("type", new["type"].clone(), IMMUTABLE));
            }
            sealed(new, old, &["data"], errors);
        }
        ("", "Node") => node_update(new, old, errors),
        ("apiextensions.k8s.io", _) => {
            let condition = |own: &Value| own["type"] == "Established" && own["status"] == "True";
            let established = items(old, &["status", "conditions"]).iter().any(condition);
            // What objects are stored under never changes, what they look like not once they may exist.
            for (path, always) in [
                (&["spec", "scope"][..], false),
                (&["spec", "names", "kind"], false),
                (&["spec", "group"], true),
                (&["spec", "names", "plural"], true),
            ] {
                if (always || established) && at(new, path) != at(old, path) {
                    let value = at(new, path).clone();
                    errors.push(FieldError::invalid(path.join("."), value, IMMUTABLE));
                }
            }
        }
        _ => {}
    }
}

/// Once `immutable` is set neither it nor the data can change.
fn sealed(new: &Value, old: &Value, data: &[&str], errors: &mut Vec<FieldError>) {
    if old["immutable"] != true {
        return;
    }
    let text = "field is immutable when `immutable` is set";
    if new["immutable"] != true {
        errors.push(FieldError::forbidden("immutable", text));
    }
    for key in data {
        if new[*key] != old[*key] {
            errors.push(FieldError::forbidden(*key, text));
        }
    }
}

fn node_update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    for (field, message) in [
        ("podCIDR", "node updates may not change podCIDR except from \"\" to valid"),
        ("providerID", "node updates may not change providerID except from \"\" to valid"),
    ] {
        let before = text(old, &["spec", field]);
        if !before.is_empty() && text(new, &["spec", field]) != before {
            let path = if field == "podCIDR" { "spec.podCIDRs".to_owned() } else { format!("spec.{field}") };
            errors.push(FieldError::forbidden(path, message));
        }
    }
}
