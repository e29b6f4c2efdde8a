//! Validation of pods and pod templates.

use std::collections::HashSet;

use serde_json::Value;

use super::super::value::{at, int, items, text};
use super::{FieldError, meta, names};
use crate::schema::format::Quantity;

/// Checks a pod.
pub(super) fn pod(pod: &Value, errors: &mut Vec<FieldError>) {
    spec(&pod["spec"], "spec", &[], errors);
}

/// Checks a pod template at a path.
pub(super) fn template(template: &Value, path: &str, errors: &mut Vec<FieldError>) {
    template_with_claims(template, path, &[], errors);
}

/// Checks a pod template whose pods get a volume for each of these claims.
pub(super) fn template_with_claims(
    template: &Value,
    path: &str,
    claims: &[&str],
    errors: &mut Vec<FieldError>,
) {
    meta::labels(at(template, &["metadata", "labels"]), &format!("{path}.metadata.labels"), errors);
    spec(&template["spec"], &format!("{path}.spec"), claims, errors);
    if !items(template, &["spec", "ephemeralContainers"]).is_empty() {
        let text = "ephemeral containers not allowed in pod template";
        errors.push(FieldError::forbidden(format!("{path}.spec.ephemeralContainers"), text));
    }
}

fn spec(spec: &Value, path: &str, claims: &[&str], errors: &mut Vec<FieldError>) {
    let mut volumes = volumes(spec, path, errors);
    volumes.extend(claims);
    let mut seen = HashSet::new();
    for list in ["initContainers", "containers"] {
        for (index, container) in items(spec, &[list]).iter().enumerate() {
            let at = format!("{path}.{list}[{index}]");
            self::container(container, &at, &volumes, errors);
            let name = text(container, &["name"]);
            if !name.is_empty() && !seen.insert(name) {
                errors.push(FieldError::duplicate(format!("{at}.name"), name));
            }
        }
    }
    if items(spec, &["containers"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.containers"), ""));
    }
    one_of(spec, "restartPolicy", &["Always", "OnFailure", "Never"], path, errors);
    one_of(spec, "dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"], path, errors);
    if let Some(deadline) = spec["activeDeadlineSeconds"].as_i64()
        && !(1..=i64::from(i32::MAX)).contains(&deadline)
    {
        let at = format!("{path}.activeDeadlineSeconds");
        errors.push(FieldError::invalid(at, deadline, "must be between 1 and 2147483647, inclusive"));
    }
    for (field, grammar) in [
        ("serviceAccountName", names::dns1123_subdomain as fn(&str) -> Option<String>),
        ("nodeName", names::dns1123_subdomain),
        ("hostname", names::dns1123_label),
        ("subdomain", names::dns1123_label),
        ("priorityClassName", names::dns1123_subdomain),
        ("runtimeClassName", names::dns1123_subdomain),
    ] {
        let value = text(spec, &[field]);
        if let Some(problem) = (!value.is_empty()).then(|| grammar(value)).flatten() {
            errors.push(FieldError::invalid(format!("{path}.{field}"), value, problem));
        }
    }
    meta::labels(&spec["nodeSelector"], &format!("{path}.nodeSelector"), errors);
    tolerations(spec, path, errors);
    if spec["dnsPolicy"] == "None" && items(spec, &["dnsConfig", "nameservers"]).is_empty() {
        let text = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        errors.push(FieldError::required(format!("{path}.dnsConfig.nameservers"), text));
    }
}

/// A field that takes one of a few words; messages list them in the given order.
fn one_of(of: &Value, field: &str, words: &[&str], path: &str, errors: &mut Vec<FieldError>) {
    let at = format!("{path}.{field}");
    match text(of, &[field]) {
        "" => errors.push(FieldError::required(at, "")),
        word if words.contains(&word) => {}
        word => {
            errors.push(FieldError::not_supported(at, word, words));
        }
    }
}

/// Checks the volumes, and gives their names.
fn volumes<'a>(spec: &'a Value, path: &str, errors: &mut Vec<FieldError>) -> HashSet<&'a str> {
    let mut seen = HashSet::new();
    for (index, volume) in items(spec, &["volumes"]).iter().enumerate() {
        let at = format!("{path}.volumes[{index}]");
        let name = text(volume, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        } else if let Some(problem) = names::dns1123_label(name) {
            errors.push(FieldError::invalid(format!("{at}.name"), name, problem));
        } else if !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        volume_source(volume, &at, errors);
    }
    seen
}

fn volume_source(volume: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let sources: Vec<&String> = volume
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, value)| *key != "name" && !value.is_null())
        .map(|(key, _)| key)
        .collect();
    if sources.is_empty() {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
    for extra in sources.iter().skip(1) {
        errors.push(FieldError::forbidden(
            format!("{path}.{extra}"),
            "may not specify more than 1 volume type",
        ));
    }
    for (source, field, message) in [
        ("secret", "secretName", ""),
        ("configMap", "name", ""),
        ("hostPath", "path", ""),
        ("persistentVolumeClaim", "claimName", ""),
        ("csi", "driver", ""),
        ("nfs", "server", ""),
    ] {
        let given = volume[source].is_object();
        if given && text(volume, &[source, field]).is_empty() {
            errors.push(FieldError::required(format!("{path}.{source}.{field}"), message));
        }
    }
}

fn container(container: &Value, path: &str, volumes: &HashSet<&str>, errors: &mut Vec<FieldError>) {
    let name = text(container, &["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    } else if let Some(problem) = names::dns1123_label(name) {
        errors.push(FieldError::invalid(format!("{path}.name"), name, problem));
    }
    let image = text(container, &["image"]);
    if image.is_empty() {
        errors.push(FieldError::required(format!("{path}.image"), ""));
    } else if image.trim() != image {
        let text = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(format!("{path}.image"), image, text));
    }
    ports(container, path, errors);
    environment(container, path, errors);
    mounts(container, path, volumes, errors);
    one_of(container, "terminationMessagePolicy", &["FallbackToLogsOnError", "File"], path, errors);
    one_of(container, "imagePullPolicy", &["Always", "IfNotPresent", "Never"], path, errors);
    resources(&container["resources"], &format!("{path}.resources"), errors);
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        self::probe(&container[probe], &format!("{path}.{probe}"), probe != "readinessProbe", errors);
    }
}

/// Checks the number of a port.
pub(super) fn port_number(number: i64, path: &str, errors: &mut Vec<FieldError>) {
    if !(1..=65_535).contains(&number) {
        errors.push(FieldError::invalid(path, number, "must be between 1 and 65535, inclusive"));
    }
}

fn ports(container: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut seen = HashSet::new();
    for (index, port) in items(container, &["ports"]).iter().enumerate() {
        let at = format!("{path}.ports[{index}]");
        let name = text(port, &["name"]);
        if !name.is_empty() {
            for problem in names::port_name(name) {
                errors.push(FieldError::invalid(format!("{at}.name"), name, problem));
            }
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(format!("{at}.name"), name));
            }
        }
        match int(port, &["containerPort"]) {
            0 => errors.push(FieldError::required(format!("{at}.containerPort"), "")),
            number => port_number(number, &format!("{at}.containerPort"), errors),
        }
        if int(port, &["hostPort"]) != 0 {
            port_number(int(port, &["hostPort"]), &format!("{at}.hostPort"), errors);
        }
        one_of(port, "protocol", &["SCTP", "TCP", "UDP"], &at, errors);
    }
}

fn environment(container: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (index, variable) in items(container, &["env"]).iter().enumerate() {
        let at = format!("{path}.env[{index}]");
        let name = text(variable, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        } else if name.contains('=') || !name.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
            let text = "a valid environment variable name must consist only of printable ASCII characters other than '='";
            errors.push(FieldError::invalid(format!("{at}.name"), name, text));
        }
        let from = &variable["valueFrom"];
        if from.is_object() {
            let sources = from.as_object().map_or(0, serde_json::Map::len);
            if !text(variable, &["value"]).is_empty() {
                let text = "may not be specified when `value` is not empty";
                errors.push(FieldError::invalid(format!("{at}.valueFrom"), "", text));
            } else if sources == 0 {
                let text = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
                errors.push(FieldError::invalid(format!("{at}.valueFrom"), "", text));
            } else if sources > 1 {
                let text = "may not have more than one field specified at a time";
                errors.push(FieldError::invalid(format!("{at}.valueFrom"), "", text));
            }
            for source in ["configMapKeyRef", "secretKeyRef"] {
                if from[source].is_object() && text(from, &[source, "key"]).is_empty() {
                    errors.push(FieldError::required(format!("{at}.valueFrom.{source}.key"), ""));
                }
            }
        }
    }
}

fn mounts(container: &Value, path: &str, volumes: &HashSet<&str>, errors: &mut Vec<FieldError>) {
    let mut seen = HashSet::new();
    for (index, mount) in items(container, &["volumeMounts"]).iter().enumerate() {
        let at = format!("{path}.volumeMounts[{index}]");
        let name = text(mount, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        } else if !volumes.contains(name) {
            errors.push(FieldError {
                kind: crate::kinds::error::ErrorKind::NotFound,
                field: format!("{at}.name"),
                value: Some(name.into()),
                detail: String::new(),
            });
        }
        let target = text(mount, &["mountPath"]);
        if target.is_empty() {
            errors.push(FieldError::required(format!("{at}.mountPath"), ""));
        } else if !seen.insert(target) {
            errors.push(FieldError::invalid(format!("{at}.mountPath"), target, "must be unique"));
        }
    }
}

/// Checks requests and limits.
pub(super) fn resources(resources: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for list in ["limits", "requests"] {
        for (name, value) in resources[list].as_object().into_iter().flatten() {
            let at = format!("{path}.{list}[{name}]");
            let quantity = Quantity::parse(value.as_str().unwrap_or_default());
            if quantity.as_ref().is_ok_and(|quantity| quantity.sign().is_lt()) {
                let text = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(at, value.clone(), text));
                continue;
            }
            let plain = ["cpu", "memory", "ephemeral-storage"].contains(&name.as_str());
            if !plain && !name.contains('/') && !name.starts_with("hugepages-") {
                let text = "must be a standard resource type or fully qualified";
                errors.push(FieldError::invalid(at, name.as_str(), text));
            }
        }
    }
    for (name, value) in resources["requests"].as_object().into_iter().flatten() {
        let parse = |value: &Value| Quantity::parse(value.as_str().unwrap_or_default()).ok();
        let limit = &resources["limits"][name];
        if let (Some(request), Some(limit)) = (parse(value), parse(limit))
            && request > limit
        {
            let text = format!("must be less than or equal to {name} limit of {limit}");
            errors.push(FieldError::invalid(format!("{path}.requests"), value.clone(), text));
        }
    }
}

fn probe(probe: &Value, path: &str, one_success: bool, errors: &mut Vec<FieldError>) {
    if !probe.is_object() {
        return;
    }
    let handlers: Vec<&str> =
        ["exec", "httpGet", "tcpSocket", "grpc"].into_iter().filter(|key| probe[*key].is_object()).collect();
    if handlers.is_empty() {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
    for extra in handlers.iter().skip(1) {
        errors.push(FieldError::forbidden(
            format!("{path}.{extra}"),
            "may not specify more than 1 handler type",
        ));
    }
    for field in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        if int(probe, &[field]) < 0 {
            let at = format!("{path}.{field}");
            errors.push(FieldError::invalid(at, probe[field].clone(), "must be greater than or equal to 0"));
        }
    }
    if one_success && int(probe, &["successThreshold"]) != 1 {
        let at = format!("{path}.successThreshold");
        errors.push(FieldError::invalid(at, probe["successThreshold"].clone(), "must be 1"));
    }
    for handler in ["httpGet", "tcpSocket"] {
        if let Some(number) = probe[handler]["port"].as_i64() {
            port_number(number, &format!("{path}.{handler}.port"), errors);
        }
    }
}

fn tolerations(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (index, toleration) in items(spec, &["tolerations"]).iter().enumerate() {
        let at = format!("{path}.tolerations[{index}]");
        let operator = text(toleration, &["operator"]);
        if text(toleration, &["key"]).is_empty() && operator != "Exists" {
            let text =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(format!("{at}.operator"), operator, text));
        }
        if operator == "Exists" && !text(toleration, &["value"]).is_empty() {
            let text = "value must be empty when `operator` is 'Exists'";
            errors.push(FieldError::invalid(format!("{at}.operator"), toleration.clone(), text));
        }
        let effect = text(toleration, &["effect"]);
        if !effect.is_empty() && !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
            let words = ["NoExecute", "NoSchedule", "PreferNoSchedule"];
            errors.push(FieldError::not_supported(format!("{at}.effect"), effect, &words));
        }
    }
}
