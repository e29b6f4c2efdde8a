//! Defaults of pod specs and pod templates.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value, json};

use crate::qos::together;
use tombolo_apicore::value::object_at;
use tombolo_apicore::value::{at_mut, items_mut, or_default, or_insert, or_number};

/// Defaults of a pod template: the part of a pod's defaults that also applies to templates.
pub(super) fn template(template: &mut Map<String, Value>) {
    pod_spec(object_at(template, "spec"));
}

/// Defaults of a pod itself.
pub(super) fn pod(spec: &mut Map<String, Value>) {
    pod_spec(spec);
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds < 0) {
        // kube-apiserver reads a negative value, which was once allowed, as 1.
        spec.insert("terminationGracePeriodSeconds".into(), json!(1));
    }
    or_insert(spec, "enableServiceLinks", true);
    for list in ["initContainers", "containers"] {
        for one in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(one) = one {
                requests(object_at(one, "resources"));
            }
        }
    }
    whole_pod(spec);
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        host_ports(spec);
    }
}

/// If the pod itself sets some resources, it also gets the sum of what its containers need
/// (pkg/apis/core/v1/defaults.go, `defaultHugePagePodLimits` and `defaultPodRequests`).
fn whole_pod(spec: &mut Map<String, Value>) {
    if spec.get("resources").and_then(Value::as_object).is_none_or(Map::is_empty) {
        return;
    }
    let containers = Value::Object(spec.clone());
    let resources = object_at(spec, "resources");
    for list in ["limits", "requests"] {
        for (name, amount) in together(&containers, list) {
            let huge = name.starts_with("hugepages-");
            if huge || (list == "requests" && matches!(name, "cpu" | "memory")) {
                let amounts = object_at(resources, list);
                amounts.entry(name).or_insert_with(|| amount.to_string().into());
            }
        }
    }
    let limits = resources.get("limits").cloned().unwrap_or_default();
    let whole = |name: &str| matches!(name, "cpu" | "memory") || name.starts_with("hugepages-");
    for (name, limit) in limits.as_object().into_iter().flatten().filter(|(name, _)| whole(name)) {
        object_at(resources, "requests").entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

/// Defaults of a pod spec.
fn pod_spec(spec: &mut Map<String, Value>) {
    or_insert(spec, "dnsPolicy", "ClusterFirst");
    or_insert(spec, "restartPolicy", "Always");
    or_insert(spec, "schedulerName", "default-scheduler");
    or_insert(spec, "terminationGracePeriodSeconds", 30);
    or_insert(spec, "securityContext", json!({}));
    service_account(spec);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for one in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(one) = one {
                container(one);
            }
        }
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Value::Object(volume) = volume {
            self::volume(volume);
        }
    }
}

/// Keeps the two names of the service account field equal.
fn service_account(spec: &mut Map<String, Value>) {
    let name = |spec: &Map<String, Value>, key: &str| {
        spec.get(key).and_then(Value::as_str).filter(|name| !name.is_empty()).map(str::to_owned)
    };
    let account = name(spec, "serviceAccountName").or_else(|| name(spec, "serviceAccount"));
    if let Some(account) = account {
        spec.insert("serviceAccountName".into(), account.clone().into());
        spec.insert("serviceAccount".into(), account.into());
    }
}

/// On the host's network, the host port defaults to the container port.
fn host_ports(spec: &mut Map<String, Value>) {
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            for port in items_mut(container, &["ports"]) {
                let Value::Object(port) = port else { continue };
                let number = port.get("containerPort").and_then(Value::as_i64).unwrap_or_default();
                or_number(port, "hostPort", number);
            }
        }
    }
}

fn container(container: &mut Map<String, Value>) {
    or_insert(container, "terminationMessagePath", "/dev/termination-log");
    or_insert(container, "terminationMessagePolicy", "File");
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = if is_latest(image) { "Always" } else { "IfNotPresent" };
    or_insert(container, "imagePullPolicy", policy);
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Value::Object(port) = port {
            or_insert(port, "protocol", "TCP");
        }
    }
    for variable in container.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(Value::Object(field)) = at_mut(variable, &["valueFrom", "fieldRef"]) {
            or_insert(field, "apiVersion", "v1");
        }
        if let Some(Value::Object(file)) = at_mut(variable, &["valueFrom", "fileKeyRef"]) {
            or_insert(file, "optional", false);
        }
    }
    for (name, successes) in [("livenessProbe", 1), ("readinessProbe", 1), ("startupProbe", 1)] {
        if let Some(Value::Object(probe)) = container.get_mut(name) {
            self::probe(probe, successes);
        }
    }
    for handler in ["postStart", "preStop"] {
        if let Some(action) = container.get_mut("lifecycle").and_then(|l| at_mut(l, &[handler, "httpGet"])) {
            http_get(action);
        }
    }
}

/// Requests default to the limits.
fn requests(resources: &mut Map<String, Value>) {
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else { return };
    let requests = object_at(resources, "requests");
    for (name, limit) in limits {
        requests.entry(name).or_insert(limit);
    }
}

fn probe(probe: &mut Map<String, Value>, successes: i64) {
    or_number(probe, "timeoutSeconds", 1);
    or_number(probe, "periodSeconds", 10);
    or_number(probe, "successThreshold", successes);
    or_number(probe, "failureThreshold", 3);
    if let Some(action) = probe.get_mut("httpGet").filter(|action| action.is_object()) {
        http_get(action);
    }
    if let Some(Value::Object(grpc)) = probe.get_mut("grpc")
        && grpc.get("service").is_none_or(Value::is_null)
    {
        grpc.insert("service".into(), "".into());
    }
}

fn http_get(action: &mut Value) {
    if let Value::Object(action) = action {
        or_insert(action, "path", "/");
        or_insert(action, "scheme", "HTTP");
    }
}

/// Host, path, tag and digest of an image (github.com/distribution/reference).
static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?";
    const PART: &str = "[a-z0-9]+(?:(?:[.]|_{1,2}|-+)[a-z0-9]+)*";
    let host = format!(r"(?:{LABEL}(?:\.{LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?");
    let text =
        format!(r"^(?:(?:{host})/)?({PART}(?:/{PART})*)(?::([a-zA-Z0-9_][a-zA-Z0-9_.-]{{0,127}}))?(@.+)?$");
    Regex::new(&text).expect("the expression is right")
});

/// Longest name of an image, in bytes.
const IMAGE_LEN_MAX: usize = 255;

/// Whether the image may change under its name: it has no digest, and no tag or the tag `latest`. False for a text that
/// is not an image name.
fn is_latest(image: &str) -> bool {
    let Some(parts) = REFERENCE.captures(image) else { return false };
    let short = parts.get(1).is_some_and(|path| path.len() <= IMAGE_LEN_MAX);
    let tag = parts.get(2).map(|tag| tag.as_str());
    short && parts.get(3).is_none() && tag.is_none_or(|tag| tag == "latest")
}

const SOURCES_WITH_MODE: [(&str, &str); 4] =
    [("configMap", "items"), ("secret", "items"), ("projected", "sources"), ("downwardAPI", "items")];

/// Mode of files in volumes that are filled from API objects: 0644.
const FILE_MODE: i64 = 420;

fn volume(volume: &mut Map<String, Value>) {
    let has_source = volume.iter().any(|(key, value)| key != "name" && !value.is_null());
    if !has_source {
        volume.insert("emptyDir".into(), json!({}));
    }
    for (source, _) in SOURCES_WITH_MODE {
        if let Some(Value::Object(source)) = volume.get_mut(source) {
            or_insert(source, "defaultMode", FILE_MODE);
        }
    }
    if let Some(Value::Object(path)) = volume.get_mut("hostPath")
        && path.get("type").is_none_or(Value::is_null)
    {
        path.insert("type".into(), "".into());
    }
    for item in volume.get_mut("downwardAPI").map_or(&mut [][..], |source| items_mut(source, &["items"])) {
        field_version(item);
    }
    for source in volume.get_mut("projected").map_or(&mut [][..], |source| items_mut(source, &["sources"])) {
        for item in items_mut(source, &["downwardAPI", "items"]) {
            field_version(item);
        }
        if let Some(Value::Object(token)) = at_mut(source, &["serviceAccountToken"]) {
            or_insert(token, "expirationSeconds", 3600);
        }
    }
    other_sources(volume);
}

fn field_version(item: &mut Value) {
    if let Some(Value::Object(field)) = at_mut(item, &["fieldRef"]) {
        or_insert(field, "apiVersion", "v1");
    }
}

/// Defaults of sources that pods and persistent volumes share.
pub(super) fn disks(volume: &mut Map<String, Value>) {
    const DEFAULTS: [(&str, &[(&str, &str)]); 4] = [
        ("iscsi", &[("iscsiInterface", "default")]),
        ("rbd", &[("pool", "rbd"), ("user", "admin"), ("keyring", "/etc/ceph/keyring")]),
        ("scaleIO", &[("storageMode", "ThinProvisioned"), ("fsType", "xfs")]),
        ("azureDisk", &[("cachingMode", "ReadWrite"), ("kind", "Shared"), ("fsType", "ext4")]),
    ];
    for (source, fields) in DEFAULTS {
        let Some(Value::Object(source)) = volume.get_mut(source) else { continue };
        for (field, value) in fields {
            or_insert(source, field, *value);
        }
    }
    if let Some(Value::Object(disk)) = volume.get_mut("azureDisk") {
        or_insert(disk, "readOnly", false);
    }
}

fn other_sources(volume: &mut Map<String, Value>) {
    disks(volume);
    if let Some(template) =
        volume.get_mut("ephemeral").and_then(|e| at_mut(e, &["volumeClaimTemplate", "spec"]))
        && let Value::Object(spec) = template
    {
        or_default(spec, "volumeMode", "Filesystem");
    }
    if let Some(Value::Object(image)) = volume.get_mut("image") {
        let reference = image.get("reference").and_then(Value::as_str).unwrap_or_default();
        let policy = if is_latest(reference) { "Always" } else { "IfNotPresent" };
        or_insert(image, "pullPolicy", policy);
    }
}

#[cfg(test)]
mod tests {
    use super::is_latest;

    #[test]
    fn latest_tag_is_only_read_from_image_names() {
        for (image, latest) in [
            ("nginx", true),
            ("nginx:latest", true),
            ("nginx:1", false),
            ("localhost:5000/a/b", true),
            ("[::1]:5000/a:1", false),
            ("a.example/b_c/d--e", true),
            ("nginx@sha256:0", false),
            ("Bad_Value", false),
            (" nginx", false),
            (&"x".repeat(300), false),
        ] {
            assert_eq!(is_latest(image), latest, "{image}");
        }
    }
}
