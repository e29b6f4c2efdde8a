//! Validation of the remaining kinds.

use serde_json::Value;

use super::super::value::{at, items, text};
use super::network::fixed;
use super::{FieldError, IMMUTABLE, names};

/// Together the values of a ConfigMap or Secret may not be larger.
const DATA_LEN_MAX: usize = 1024 * 1024;

/// Checks one of these kinds.
pub(super) fn create(group_kind: (&str, &str), object: &Value, errors: &mut Vec<FieldError>) {
    match group_kind {
        ("", "ConfigMap") => config_map(object, errors),
        ("", "Secret") => secret(object, errors),
        ("", "Node") => node(object, errors),
        ("" | "events.k8s.io", "Event") => event(object, errors),
        ("rbac.authorization.k8s.io", kind) => rbac(kind, object, errors),
        ("certificates.k8s.io", "CertificateSigningRequest") => signing_request(&object["spec"], errors),
        ("scheduling.k8s.io", "PriorityClass") => priority_class(object, errors),
        ("node.k8s.io", "RuntimeClass") => {
            let handler = text(object, &["handler"]);
            if handler.is_empty() {
                errors.push(FieldError::required("handler", ""));
            } else if let Some(problem) = names::dns1123_label(handler) {
                errors.push(FieldError::invalid("handler", handler, problem));
            }
        }
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

fn event(object: &Value, errors: &mut Vec<FieldError>) {
    let about = match object["regarding"].is_object() {
        true => ("regarding", &object["regarding"]),
        false => ("involvedObject", &object["involvedObject"]),
    };
    let namespace = text(object, &["metadata", "namespace"]);
    let other = text(about.1, &["namespace"]);
    let fits =
        if other.is_empty() { matches!(namespace, "default" | "kube-system") } else { other == namespace };
    if !fits {
        let text = "does not match event.namespace";
        errors.push(FieldError::invalid(format!("{}.namespace", about.0), other, text));
    }
    if about.0 == "regarding" {
        for (field, max) in
            [("reportingController", 63 + 254), ("reportingInstance", 128), ("action", 128), ("reason", 128)]
        {
            let value = text(object, &[field]);
            if value.is_empty() {
                errors.push(FieldError::required(field, ""));
            } else if value.len() > max {
                let text = format!("can have at most {max} characters");
                errors.push(FieldError::invalid(field, "", text));
            }
        }
    }
}

fn rbac(kind: &str, object: &Value, errors: &mut Vec<FieldError>) {
    if kind.ends_with("Binding") {
        let role = &object["roleRef"];
        if text(role, &["apiGroup"]) != "rbac.authorization.k8s.io" {
            let words = ["rbac.authorization.k8s.io"];
            errors.push(FieldError::not_supported("roleRef.apiGroup", role["apiGroup"].clone(), &words));
        }
        let kinds: &[&str] = if kind == "RoleBinding" { &["ClusterRole", "Role"] } else { &["ClusterRole"] };
        if !kinds.contains(&text(role, &["kind"])) {
            errors.push(FieldError::not_supported("roleRef.kind", text(role, &["kind"]), kinds));
        }
        if text(role, &["name"]).is_empty() {
            errors.push(FieldError::required("roleRef.name", ""));
        }
        for (index, subject) in items(object, &["subjects"]).iter().enumerate() {
            self::subject(kind, subject, &format!("subjects[{index}]"), errors);
        }
        return;
    }
    for (index, rule) in items(object, &["rules"]).iter().enumerate() {
        let path = format!("rules[{index}]");
        let none = |field: &str| items(rule, &[field]).is_empty();
        if none("verbs") {
            errors
                .push(FieldError::required(format!("{path}.verbs"), "verbs must contain at least one value"));
        }
        if !none("nonResourceURLs") {
            if kind == "Role" {
                let text = "namespaced rules cannot apply to non-resource URLs";
                let value = rule["nonResourceURLs"].clone();
                errors.push(FieldError::invalid(format!("{path}.nonResourceURLs"), value, text));
            }
            continue;
        }
        if none("apiGroups") {
            let text = "resource rules must supply at least one api group";
            errors.push(FieldError::required(format!("{path}.apiGroups"), text));
        }
        if none("resources") {
            let text = "resource rules must supply at least one resource";
            errors.push(FieldError::required(format!("{path}.resources"), text));
        }
    }
}

fn subject(kind: &str, subject: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if text(subject, &["name"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    match text(subject, &["kind"]) {
        "ServiceAccount" => {
            if text(subject, &["namespace"]).is_empty() && kind == "ClusterRoleBinding" {
                errors.push(FieldError::required(format!("{path}.namespace"), ""));
            }
        }
        "User" | "Group" => {}
        other => {
            let words = ["Group", "ServiceAccount", "User"];
            errors.push(FieldError::not_supported(format!("{path}.kind"), other, &words));
        }
    }
}

fn signing_request(spec: &Value, errors: &mut Vec<FieldError>) {
    if text(spec, &["request"]).is_empty() {
        let text = "PEM block type must be CERTIFICATE REQUEST";
        errors.push(FieldError::invalid("spec.request", spec["request"].clone(), text));
    }
    let signer = text(spec, &["signerName"]);
    if signer.is_empty() {
        errors.push(FieldError::required("spec.signerName", ""));
    } else if !signer.contains('/') {
        let text = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(FieldError::invalid("spec.signerName", signer, text));
    }
    if spec["expirationSeconds"].as_i64().is_some_and(|seconds| seconds < 600) {
        let text = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(FieldError::invalid("spec.expirationSeconds", spec["expirationSeconds"].clone(), text));
    }
}

/// Greater values are reserved for the system's own classes.
const PRIORITY_MAX: i64 = 1_000_000_000;

/// Classes of the system with their values; nobody else may take such a name.
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

fn priority_class(object: &Value, errors: &mut Vec<FieldError>) {
    let name = text(object, &["metadata", "name"]);
    let value = object["value"].as_i64().unwrap_or_default();
    if name.starts_with("system-") {
        let why = match SYSTEM_CLASSES.iter().find(|(known, _)| *known == name) {
            Some((_, fixed)) if *fixed == value => return,
            Some((_, fixed)) => format!("value of {name} PriorityClass must be {fixed}"),
            None => format!("{name} is not a known system priority class"),
        };
        let text = "priority class names with 'system-' prefix are reserved for system use only. error: ";
        errors.push(FieldError::forbidden("metadata.name", format!("{text}{why}")));
    } else if value > PRIORITY_MAX {
        let text = format!("maximum allowed value of a user defined priority is {PRIORITY_MAX}");
        errors.push(FieldError::forbidden("value", text));
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
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding")
            if new["roleRef"] != old["roleRef"] =>
        {
            errors.push(FieldError::invalid("roleRef", new["roleRef"].clone(), "cannot change roleRef"));
        }
        ("scheduling.k8s.io", "PriorityClass") => {
            if new["value"] != old["value"] {
                errors.push(FieldError::forbidden("value", "may not be changed in an update."));
            }
            fixed(new, old, "preemptionPolicy", errors);
        }
        ("node.k8s.io", "RuntimeClass") => fixed(new, old, "handler", errors),
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
