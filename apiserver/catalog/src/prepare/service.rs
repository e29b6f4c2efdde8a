//! Allocated fields that an update of a Service keeps, and fields that it drops because of the new type.

use serde_json::{Map, Value};

use tombolo_apicore::value::put_below;
use tombolo_apicore::value::{at, items, items_mut, text};

/// Copies the single address of a new Service into the list of addresses, if the list is empty.
pub(super) fn create(service: &mut Map<String, Value>) {
    let Some(Value::Object(spec)) = service.get_mut("spec") else { return };
    let unset = spec.get("clusterIPs").and_then(Value::as_array).is_none_or(Vec::is_empty);
    let address =
        spec.get("clusterIP").filter(|address| address.as_str().is_some_and(|text| !text.is_empty()));
    if let Some(address) = address.filter(|_| unset).cloned() {
        spec.insert("clusterIPs".into(), Value::from(vec![address]));
    }
}

/// Completes an update of a Service.
pub(super) fn update(new: &mut Value, old: &Value) {
    follow_address(new, old);
    keep_allocated(new, old);
    drop_unneeded(new, old);
}

/// Updates the list of addresses if an older client, which does not know the list, changed the single address.
fn follow_address(new: &mut Value, old: &Value) {
    let (now, before) = (at(new, &["spec", "clusterIP"]), at(old, &["spec", "clusterIP"]));
    let same_list = at(new, &["spec", "clusterIPs"]) == at(old, &["spec", "clusterIPs"]);
    let changed = now != before && now.as_str().is_some_and(|address| !address.is_empty());
    if changed && same_list && !before.is_null() {
        let list = Value::from(vec![now.clone()]);
        put_below(new, "spec", "clusterIPs", &list);
    }
}

/// Keeps allocated addresses and ports that the update does not name.
fn keep_allocated(new: &mut Value, old: &Value) {
    if text(new, &["spec", "type"]) == "ExternalName" || text(old, &["spec", "type"]) == "ExternalName" {
        return;
    }
    if text(new, &["spec", "clusterIP"]).is_empty() {
        for key in ["clusterIP", "clusterIPs"] {
            put_below(new, "spec", key, at(old, &["spec", key]));
        }
    }
    if at(new, &["spec", "clusterIPs"]).is_null() {
        put_below(new, "spec", "clusterIPs", at(old, &["spec", "clusterIPs"]));
    }
    for key in ["ipFamilies", "ipFamilyPolicy"] {
        if at(new, &["spec", key]).is_null() {
            put_below(new, "spec", key, at(old, &["spec", key]));
        }
    }
    if !matches!(text(new, &["spec", "type"]), "NodePort" | "LoadBalancer") {
        return;
    }
    let before = items(old, &["spec", "ports"]).to_vec();
    for port in items_mut(new, &["spec", "ports"]) {
        let same = |other: &&Value| other["port"] == port["port"] && other["protocol"] == port["protocol"];
        let found = before.iter().find(same).map(|other| other["nodePort"].clone());
        if let (Some(found), Value::Object(map)) = (found.filter(Value::is_number), port) {
            map.entry("nodePort").or_insert(found);
        }
    }
}

/// Drops values that the new type does not use, unless the update changes them: validation then refuses the update
/// (pkg/registry/core/service/strategy.go, dropTypeDependentFields).
fn drop_unneeded(new: &mut Value, old: &Value) {
    let lost = |new: &Value, needed: fn(&Value) -> bool| needed(old) && !needed(new);
    let mut fields: Vec<&str> = Vec::new();
    if lost(new, has_address) {
        fields.extend(["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"]);
    }
    if lost(new, has_health_port) {
        fields.push("healthCheckNodePort");
    }
    if lost(new, is_balanced) {
        fields.extend(["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    if lost(new, is_reached_from_outside) {
        fields.push("externalTrafficPolicy");
    }
    if lost(new, has_address) {
        fields.push("internalTrafficPolicy");
    }
    for field in fields {
        if at(new, &["spec", field]) == at(old, &["spec", field]) {
            put_below(new, "spec", field, &Value::Null);
        }
    }
    if lost(new, has_node_ports) && node_ports(new) == node_ports(old) {
        for port in items_mut(new, &["spec", "ports"]) {
            if let Value::Object(port) = port {
                port.remove("nodePort");
            }
        }
    }
    if !is_balanced(new) && new["status"].is_object() {
        new["status"]["loadBalancer"] = serde_json::json!({});
    }
}

fn kind(service: &Value) -> &str {
    match text(service, &["spec", "type"]) {
        "" => "ClusterIP",
        kind => kind,
    }
}

fn has_address(service: &Value) -> bool {
    kind(service) != "ExternalName"
}

fn has_node_ports(service: &Value) -> bool {
    kind(service) == "NodePort"
        || (is_balanced(service)
            && at(service, &["spec", "allocateLoadBalancerNodePorts"]) != &Value::Bool(false))
}

fn has_health_port(service: &Value) -> bool {
    is_balanced(service) && text(service, &["spec", "externalTrafficPolicy"]) == "Local"
}

fn is_balanced(service: &Value) -> bool {
    kind(service) == "LoadBalancer"
}

fn is_reached_from_outside(service: &Value) -> bool {
    is_balanced(service)
        || kind(service) == "NodePort"
        || (kind(service) == "ClusterIP" && !items(service, &["spec", "externalIPs"]).is_empty())
}

/// Node ports that are set, in ascending order.
fn node_ports(service: &Value) -> Vec<i64> {
    let set = items(service, &["spec", "ports"]).iter().filter_map(|port| port["nodePort"].as_i64());
    let mut ports: Vec<i64> = set.filter(|port| *port != 0).collect();
    ports.sort_unstable();
    ports
}
