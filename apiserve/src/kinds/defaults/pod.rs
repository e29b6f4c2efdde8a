//! Defaults of pod specs and pod templates.

use serde_json::{Map, Value, json};

use super::super::value::{at_mut, items_mut, or_insert, or_number};
use crate::schema::types::object_at;

/// Defaults of a pod template: those of a pod that need not wait until there is one.
pub(super) fn template(template: &mut Map<String, Value>) {
    pod_spec(object_at(template, "spec"));
}

/// Defaults of a pod itself.
pub(super) fn pod(spec: &mut Map<String, Value>) {
    pod_spec(spec);
    or_insert(spec, "enableServiceLinks", true);
    for list in ["initContainers", "containers"] {
        for one in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(one) = one {
                requests(object_at(one, "resources"));
            }
        }
    }
}

/// Defaults of a pod spec.
fn pod_spec(spec: &mut Map<String, Value>) {
    or_insert(spec, "dnsPolicy", "ClusterFirst");
    or_insert(spec, "restartPolicy", "Always");
    or_insert(spec, "schedulerName", "default-scheduler");
    or_insert(spec, "terminationGracePeriodSeconds", 30);
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds < 0) {
        // As kube-apiserver reads what was once allowed.
        spec.insert("terminationGracePeriodSeconds".into(), json!(1));
    }
    or_insert(spec, "securityContext", json!({}));
    service_account(spec);
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        host_ports(spec);
    }
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
    for constraint in
        spec.get_mut("topologySpreadConstraints").and_then(Value::as_array_mut).into_iter().flatten()
    {
        if let Value::Object(constraint) = constraint {
            or_insert(constraint, "whenUnsatisfiable", "DoNotSchedule");
        }
    }
}

/// The two names of the service account field are kept equal.
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

/// On the host's network a container's port is the host's.
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
    if let Some(Value::Object(context)) = container.get_mut("securityContext")
        && context.contains_key("procMount")
    {
        or_insert(context, "procMount", "Default");
    }
}

/// What a container is limited to it also requests, unless it says otherwise.
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

/// Without a tag, or with `latest`, the image may change under its name.
fn is_latest(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let last = image.rsplit('/').next().unwrap_or_default();
    match last.split_once(':') {
        None => true,
        Some((_, tag)) => tag == "latest",
    }
}

const SOURCES_WITH_MODE: [(&str, &str); 4] =
    [("configMap", "items"), ("secret", "items"), ("projected", "sources"), ("downwardAPI", "items")];

/// Mode of files in volumes that are made from objects: 0644.
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

fn other_sources(volume: &mut Map<String, Value>) {
    if let Some(Value::Object(iscsi)) = volume.get_mut("iscsi") {
        or_insert(iscsi, "iscsiInterface", "default");
    }
    if let Some(Value::Object(rbd)) = volume.get_mut("rbd") {
        or_insert(rbd, "pool", "rbd");
        or_insert(rbd, "user", "admin");
        or_insert(rbd, "keyring", "/etc/ceph/keyring");
    }
    if let Some(template) =
        volume.get_mut("ephemeral").and_then(|e| at_mut(e, &["volumeClaimTemplate", "spec"]))
        && let Value::Object(spec) = template
    {
        or_insert(spec, "volumeMode", "Filesystem");
    }
    if let Some(Value::Object(image)) = volume.get_mut("image") {
        let reference = image.get("reference").and_then(Value::as_str).unwrap_or_default();
        let policy = if is_latest(reference) { "Always" } else { "IfNotPresent" };
        or_insert(image, "pullPolicy", policy);
    }
}
