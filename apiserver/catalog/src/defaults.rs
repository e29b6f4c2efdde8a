//! Defaults of built-in kinds, according to the Kubernetes API conventions. The kubelet and controllers rely on them:
//! they read fields such as `enableServiceLinks` and `replicas` without checking whether they are set.

mod admission;
mod devices;
mod pod;
mod storage;
mod workload;

use serde_json::{Map, Value, json};

pub(crate) use self::workload::TEMPLATE_GENERATION;
use tombolo_apicore::kinds::KindInfo;
use tombolo_apicore::value::object_at;
use tombolo_apicore::value::{at_mut, items_mut, or_default, or_insert, or_number, text};

/// Sets the defaults of a built-in kind in a decoded object.
pub(crate) fn default(kind: &KindInfo, object: &mut Value) {
    let Value::Object(map) = object else { return };
    match kind.group_kind() {
        ("", "Pod") => pod::pod(object_at(map, "spec")),
        ("", "PodTemplate") => pod::template(object_at(map, "template")),
        ("", "ReplicationController") => workload::replication_controller(map),
        ("", "Service") => {
            service(object_at(map, "spec"));
            ingress_mode(map);
        }
        ("", "Secret") => secret(map),
        ("", "Namespace") => namespace(map),
        ("", "Node") => node(map),
        ("", "Endpoints") => endpoints(map),
        ("", "LimitRange") => limit_range(map),
        ("", "PersistentVolume") => storage::volume(object_at(map, "spec")),
        ("", "PersistentVolumeClaim") => storage::claim(map),
        ("apps" | "batch" | "autoscaling", _) => workload::default(kind.group_kind(), map),
        ("storage.k8s.io", _) => storage::default(&kind.kind, map),
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice(map),
        ("networking.k8s.io", "NetworkPolicy") => network_policy(object_at(map, "spec")),
        ("networking.k8s.io", "IngressClass") => ingress_class(map),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => binding(map),
        ("scheduling.k8s.io", "PriorityClass") => or_default(map, "preemptionPolicy", "PreemptLowerPriority"),
        ("apiregistration.k8s.io", "APIService") => {
            if let Some(Value::Object(service)) = map.get_mut("spec").and_then(|spec| spec.get_mut("service"))
            {
                or_default(service, "port", 443);
            }
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition(object_at(map, "spec")),
        ("resource.k8s.io", "ResourceClaim") => map.get_mut("spec").into_iter().for_each(devices::claim),
        ("resource.k8s.io", "ResourceClaimTemplate") => {
            let spec = map.get_mut("spec").and_then(|template| template.get_mut("spec"));
            spec.into_iter().for_each(devices::claim);
        }
        ("admissionregistration.k8s.io", _) => admission::default(&kind.kind, map),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => {
            or_number(object_at(map, "spec"), "matchingPrecedence", 1000);
        }
        ("flowcontrol.apiserver.k8s.io", _) => priority_level(object_at(map, "spec")),
        _ => {}
    }
}

fn service(spec: &mut Map<String, Value>) {
    or_insert(spec, "sessionAffinity", "None");
    if spec.get("sessionAffinity") == Some(&json!("None")) {
        spec.remove("sessionAffinityConfig");
    } else {
        let config = object_at(object_at(spec, "sessionAffinityConfig"), "clientIP");
        or_insert(config, "timeoutSeconds", 10_800);
    }
    or_insert(spec, "type", "ClusterIP");
    let ty = spec["type"].as_str().unwrap_or_default().to_owned();
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let Value::Object(port) = port else { continue };
        or_insert(port, "protocol", "TCP");
        let number = port.get("port").cloned().unwrap_or_else(|| json!(0));
        let unset = port.get("targetPort").is_none_or(|target| target == &json!(0) || target == "");
        if unset {
            port.insert("targetPort".into(), number);
        }
    }
    let external = matches!(ty.as_str(), "NodePort" | "LoadBalancer");
    let addressed =
        spec.get("externalIPs").is_some_and(|list| list.as_array().is_some_and(|l| !l.is_empty()));
    if external || (addressed && ty == "ClusterIP") {
        or_insert(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(ty.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer") {
        or_default(spec, "internalTrafficPolicy", "Cluster");
    }
    if ty == "LoadBalancer" {
        or_insert(spec, "allocateLoadBalancerNodePorts", true);
    }
}

/// Sets the mode of the ingress IP addresses of a load balancer.
fn ingress_mode(map: &mut Map<String, Value>) {
    if map.get("spec").is_none_or(|spec| spec["type"] != "LoadBalancer") {
        return;
    }
    let Some(status) = map.get_mut("status") else { return };
    for ingress in items_mut(status, &["loadBalancer", "ingress"]) {
        if let Value::Object(ingress) = ingress
            && ingress.get("ip").is_some_and(|ip| !ip.is_null() && ip != "")
        {
            or_default(ingress, "ipMode", "VIP");
        }
    }
}

/// Moves `stringData` into `data`: it is a write-only way to set `data` without base64.
fn secret(map: &mut Map<String, Value>) {
    use base64::Engine as _;
    or_insert(map, "type", "Opaque");
    if let Some(Value::Object(plain)) = map.remove("stringData") {
        let data = object_at(map, "data");
        for (key, value) in plain {
            let bytes = value.as_str().unwrap_or_default().as_bytes();
            data.insert(key, base64::engine::general_purpose::STANDARD.encode(bytes).into());
        }
    }
}

fn namespace(map: &mut Map<String, Value>) {
    let name = map.get("metadata").map(|metadata| text(metadata, &["name"]).to_owned()).unwrap_or_default();
    if !name.is_empty() {
        let labels = object_at(object_at(map, "metadata"), "labels");
        labels.insert("kubernetes.io/metadata.name".into(), name.into());
    }
    or_insert(object_at(map, "status"), "phase", "Active");
}

/// Defaults of a node: the allocatable resources are the capacity, and `podCIDR` and `podCIDRs` follow each other.
fn node(map: &mut Map<String, Value>) {
    let spec = object_at(map, "spec");
    let (one, list) = (spec.get("podCIDR").cloned(), spec.get("podCIDRs").cloned());
    match (one.unwrap_or_default(), list.unwrap_or_default()) {
        (Value::String(one), list) if !one.is_empty() && list.get(0) != Some(&json!(one)) => {
            spec.insert("podCIDRs".into(), json!([one]));
        }
        (Value::Null, Value::Array(list)) if !list.is_empty() => {
            spec.insert("podCIDR".into(), list[0].clone());
        }
        _ => {}
    }
    let status = object_at(map, "status");
    let empty = |value: Option<&Value>| {
        value.is_none_or(|value| value.is_null() || value.as_object().is_some_and(Map::is_empty))
    };
    if empty(status.get("allocatable")) && !empty(status.get("capacity")) {
        let capacity = status["capacity"].clone();
        status.insert("allocatable".into(), capacity);
    }
}

fn endpoints(map: &mut Map<String, Value>) {
    for subset in map.get_mut("subsets").and_then(Value::as_array_mut).into_iter().flatten() {
        for port in items_mut(subset, &["ports"]) {
            if let Value::Object(port) = port {
                or_insert(port, "protocol", "TCP");
            }
        }
    }
}

fn endpoint_slice(map: &mut Map<String, Value>) {
    for port in map.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let Value::Object(port) = port else { continue };
        or_default(port, "name", "");
        or_default(port, "protocol", "TCP");
    }
}

fn limit_range(map: &mut Map<String, Value>) {
    for limit in map.get_mut("spec").map_or(&mut [][..], |spec| items_mut(spec, &["limits"])) {
        let Value::Object(limit) = limit else { continue };
        if limit.get("type") != Some(&json!("Container")) {
            continue;
        }
        let fill = |limit: &mut Map<String, Value>, to: &str, from: &str| {
            if let Some(Value::Object(values)) = limit.get(from).cloned() {
                let target = object_at(limit, to);
                for (key, value) in values {
                    target.entry(key).or_insert(value);
                }
            }
        };
        fill(limit, "default", "max");
        fill(limit, "defaultRequest", "default");
        fill(limit, "defaultRequest", "min");
    }
}

fn network_policy(spec: &mut Map<String, Value>) {
    for (list, below) in [("ingress", "ports"), ("egress", "ports")] {
        for rule in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            for port in items_mut(rule, &[below]) {
                if let Value::Object(port) = port {
                    or_default(port, "protocol", "TCP");
                }
            }
        }
    }
    let has = |list: Option<&Value>| list.and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    if !has(spec.get("policyTypes")) {
        let types = if has(spec.get("egress")) { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        spec.insert("policyTypes".into(), types);
    }
}

fn ingress_class(map: &mut Map<String, Value>) {
    if let Some(Value::Object(parameters)) =
        map.get_mut("spec").and_then(|spec| at_mut(spec, &["parameters"]))
    {
        or_default(parameters, "scope", "Cluster");
    }
}

const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

fn binding(map: &mut Map<String, Value>) {
    or_insert(object_at(map, "roleRef"), "apiGroup", RBAC_GROUP);
    for subject in map.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
        let Value::Object(subject) = subject else { continue };
        if matches!(subject.get("kind").and_then(Value::as_str), Some("User" | "Group")) {
            or_insert(subject, "apiGroup", RBAC_GROUP);
        }
    }
}

fn definition(spec: &mut Map<String, Value>) {
    or_default(spec, "conversion", json!({"strategy": "None"}));
    let names = object_at(spec, "names");
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    if !kind.is_empty() {
        or_insert(names, "singular", kind.to_lowercase());
        or_insert(names, "listKind", format!("{kind}List"));
    }
}

/// Shares of a priority level; an explicit zero is kept.
fn priority_level(spec: &mut Map<String, Value>) {
    for part in ["limited", "exempt"] {
        let Some(Value::Object(level)) = spec.get_mut(part) else { continue };
        let shares = if part == "limited" { 30 } else { 0 };
        or_insert(level, "nominalConcurrencyShares", shares);
        or_insert(level, "lendablePercent", 0);
    }
    if let Some(Value::Object(response)) = spec.get_mut("limited").and_then(|l| l.get_mut("limitResponse"))
        && let Some(Value::Object(queuing)) = response.get_mut("queuing")
    {
        for (field, value) in [("queues", 64), ("handSize", 8), ("queueLengthLimit", 50)] {
            or_number(queuing, field, value);
        }
    }
}
