//! Validation of services, endpoints and the networking, policy and coordination groups.

use std::collections::HashSet;
use std::net::IpAddr;

use serde_json::Value;

use super::super::value::{at, int, items, text};
use super::workload::label_selector;
use super::{FieldError, IMMUTABLE, meta, names, pod};

/// Checks one of these kinds.
pub(super) fn create(kind: &str, object: &Value, errors: &mut Vec<FieldError>) {
    match kind {
        "Service" => service(object, errors),
        "Endpoints" => endpoints(object, errors),
        "EndpointSlice" => endpoint_slice(object, errors),
        "Lease" => lease(&object["spec"], errors),
        "NetworkPolicy" => {
            label_selector(at(object, &["spec", "podSelector"]), "spec.podSelector", errors);
            for list in ["ingress", "egress"] {
                for (rule, content) in items(object, &["spec", list]).iter().enumerate() {
                    for (port, content) in items(content, &["ports"]).iter().enumerate() {
                        policy_port(content, &format!("spec.{list}[{rule}].ports[{port}]"), errors);
                    }
                }
            }
        }
        "Ingress" => ingress(&object["spec"], errors),
        "IngressClass" if text(object, &["spec", "controller"]).is_empty() => {
            errors.push(FieldError::required("spec.controller", ""));
        }
        "PodDisruptionBudget" => budget(&object["spec"], errors),
        _ => {}
    }
}

/// One port, or range of ports, of a NetworkPolicy.
fn policy_port(port: &Value, path: &str, errors: &mut Vec<FieldError>) {
    const NUMBER: &str = "must be between 1 and 65535, inclusive";
    let protocols = ["TCP", "UDP", "SCTP"];
    let protocol = text(port, &["protocol"]);
    if !protocol.is_empty() && !protocols.contains(&protocol) {
        errors.push(FieldError::not_supported(format!("{path}.protocol"), protocol, &protocols));
    }
    let is_port = |number: i64| (1..=65_535).contains(&number);
    if port["port"].is_number() && !port["port"].as_i64().is_some_and(is_port) {
        errors.push(FieldError::invalid(format!("{path}.port"), port["port"].clone(), NUMBER));
    }
    let end = port["endPort"].as_i64();
    let mut end_is = |value: i64, why: &str| {
        errors.push(FieldError::invalid(format!("{path}.endPort"), value, why));
    };
    match (&port["port"], end) {
        (Value::Number(start), Some(end)) => {
            let start = start.as_i64().unwrap_or_default();
            if end < start {
                end_is(start, "must be greater than or equal to `port`");
            }
            if !is_port(end) {
                end_is(end, NUMBER);
            }
        }
        (Value::String(_), Some(end)) => end_is(end, "may not be specified when `port` is non-numeric"),
        (Value::Null, Some(end)) => end_is(end, "may not be specified when `port` is not specified"),
        _ => {}
    }
    if let Value::String(name) = &port["port"] {
        for problem in names::port_name(name) {
            errors.push(FieldError::invalid(format!("{path}.port"), name.as_str(), problem));
        }
    }
}

fn service(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    let ty = text(spec, &["type"]);
    let headless = text(spec, &["clusterIP"]) == "None";
    let words = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    if !words.contains(&ty) {
        errors.push(FieldError::not_supported("spec.type", ty, &words));
    }
    if items(spec, &["ports"]).is_empty() && !headless && ty != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    if headless && matches!(ty, "NodePort" | "LoadBalancer") {
        let text = format!("may not be set to 'None' for {ty} services");
        errors.push(FieldError::invalid("spec.clusterIPs[0]", "None", text));
    }
    if ty == "ExternalName" {
        let name = text(spec, &["externalName"]);
        if name.is_empty() {
            errors.push(FieldError::required("spec.externalName", ""));
        } else if let Some(problem) = names::dns1123_subdomain(name.trim_end_matches('.')) {
            errors.push(FieldError::invalid("spec.externalName", name, problem));
        }
        if !text(spec, &["clusterIP"]).is_empty() {
            let text = "may not be set when `type` is 'ExternalName'";
            errors.push(FieldError::forbidden("spec.clusterIPs", text));
        }
    }
    service_ports(spec, errors);
    meta::labels(&spec["selector"], "spec.selector", errors);
    let affinity = text(spec, &["sessionAffinity"]);
    if !matches!(affinity, "None" | "ClientIP") {
        errors.push(FieldError::not_supported("spec.sessionAffinity", affinity, &["ClientIP", "None"]));
    }
    let address = text(spec, &["clusterIP"]);
    if !matches!(address, "" | "None") && address.parse::<IpAddr>().is_err() {
        let text = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        errors.push(FieldError::invalid("spec.clusterIPs[0]", address, text));
    }
}

fn service_ports(spec: &Value, errors: &mut Vec<FieldError>) {
    let ports = items(spec, &["ports"]);
    let (mut seen, mut numbers) = (HashSet::new(), HashSet::new());
    for (index, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let name = text(port, &["name"]);
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(FieldError::required(format!("{path}.name"), ""));
            }
        } else if let Some(problem) = names::dns1123_label(name) {
            errors.push(FieldError::invalid(format!("{path}.name"), name, problem));
        } else if !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
        pod::port_number(int(port, &["port"]), &format!("{path}.port"), errors);
        protocol(port, &path, errors);
        match &port["targetPort"] {
            Value::Number(number) => {
                let number = number.as_i64().unwrap_or_default();
                pod::port_number(number, &format!("{path}.targetPort"), errors);
            }
            Value::String(name) => {
                for problem in names::port_name(name) {
                    errors.push(FieldError::invalid(format!("{path}.targetPort"), name.as_str(), problem));
                }
            }
            _ => {}
        }
        let node_port = int(port, &["nodePort"]);
        if node_port != 0 && text(spec, &["type"]) == "ClusterIP" {
            let text = "may not be used when `type` is 'ClusterIP'";
            errors.push(FieldError::forbidden(format!("{path}.nodePort"), text));
        }
        if !numbers.insert((int(port, &["port"]), text(port, &["protocol"]))) {
            errors.push(FieldError::duplicate(path, port.clone()));
        }
    }
}

fn protocol(port: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match text(port, &["protocol"]) {
        "" => errors.push(FieldError::required(format!("{path}.protocol"), "")),
        "TCP" | "UDP" | "SCTP" => {}
        other => {
            let words = ["SCTP", "TCP", "UDP"];
            errors.push(FieldError::not_supported(format!("{path}.protocol"), other, &words));
        }
    }
}

/// A service keeps its cluster IP for life, unless it turns into or out of an external name.
pub(super) fn service_update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let outside = |service: &Value| text(service, &["spec", "type"]) == "ExternalName";
    let (now, before) = (text(new, &["spec", "clusterIP"]), text(old, &["spec", "clusterIP"]));
    if outside(new) || outside(old) || before.is_empty() || now == before {
        return;
    }
    let text = if now.is_empty() { "primary clusterIP can not be unset" } else { "may not change once set" };
    errors.push(FieldError::invalid("spec.clusterIPs[0]", now, text));
}

fn endpoints(object: &Value, errors: &mut Vec<FieldError>) {
    for (index, subset) in items(object, &["subsets"]).iter().enumerate() {
        let path = format!("subsets[{index}]");
        let none = |list: &str| items(subset, &[list]).is_empty();
        if none("addresses") && none("notReadyAddresses") {
            errors.push(FieldError::required(&path, "must specify `addresses` or `notReadyAddresses`"));
        }
        for list in ["addresses", "notReadyAddresses"] {
            for (at, address) in items(subset, &[list]).iter().enumerate() {
                ip(text(address, &["ip"]), &format!("{path}.{list}[{at}].ip"), errors);
            }
        }
        for (at, port) in items(subset, &["ports"]).iter().enumerate() {
            pod::port_number(int(port, &["port"]), &format!("{path}.ports[{at}].port"), errors);
            protocol(port, &format!("{path}.ports[{at}]"), errors);
        }
    }
}

fn ip(address: &str, path: &str, errors: &mut Vec<FieldError>) {
    if address.parse::<IpAddr>().is_err() {
        let text = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        errors.push(FieldError::invalid(path, address, text));
    }
}

fn endpoint_slice(object: &Value, errors: &mut Vec<FieldError>) {
    let ty = text(object, &["addressType"]);
    match ty {
        "IPv4" | "IPv6" | "FQDN" => {}
        "" => errors.push(FieldError::required("addressType", "")),
        other => errors.push(FieldError::not_supported("addressType", other, &["FQDN", "IPv4", "IPv6"])),
    }
    for (index, endpoint) in items(object, &["endpoints"]).iter().enumerate() {
        let path = format!("endpoints[{index}].addresses");
        let addresses = items(endpoint, &["addresses"]);
        if addresses.is_empty() {
            errors.push(FieldError::required(&path, "must contain at least 1 address"));
        }
        for (at, address) in addresses.iter().enumerate() {
            let address = address.as_str().unwrap_or_default();
            let fits = match (ty, address.parse::<IpAddr>()) {
                ("IPv4", Ok(IpAddr::V4(_))) | ("IPv6", Ok(IpAddr::V6(_))) => true,
                ("IPv4" | "IPv6", _) => false,
                _ => names::dns1123_subdomain(address).is_none(),
            };
            if !fits {
                let text = format!("must be a valid {ty} address");
                errors.push(FieldError::invalid(format!("{path}[{at}]"), address, text));
            }
        }
    }
    let mut seen = HashSet::new();
    for (index, port) in items(object, &["ports"]).iter().enumerate() {
        let name = text(port, &["name"]);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("ports[{index}].name"), name));
        }
        protocol(port, &format!("ports[{index}]"), errors);
    }
}

fn lease(spec: &Value, errors: &mut Vec<FieldError>) {
    if spec["leaseDurationSeconds"].as_i64().is_some_and(|seconds| seconds <= 0) {
        let text = "must be greater than 0";
        let value = spec["leaseDurationSeconds"].clone();
        errors.push(FieldError::invalid("spec.leaseDurationSeconds", value, text));
    }
    if spec["leaseTransitions"].as_i64().is_some_and(|count| count < 0) {
        let text = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.leaseTransitions", spec["leaseTransitions"].clone(), text));
    }
}

fn ingress(spec: &Value, errors: &mut Vec<FieldError>) {
    if items(spec, &["rules"]).is_empty() && !spec["defaultBackend"].is_object() {
        let text = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid("spec", Value::Null, text));
    }
    for (index, rule) in items(spec, &["rules"]).iter().enumerate() {
        let path = format!("spec.rules[{index}]");
        let host = text(rule, &["host"]);
        let bare = host.strip_prefix("*.").unwrap_or(host);
        if let Some(problem) = (!host.is_empty()).then(|| names::dns1123_subdomain(bare)).flatten() {
            errors.push(FieldError::invalid(format!("{path}.host"), host, problem));
        }
        for (at, one) in items(rule, &["http", "paths"]).iter().enumerate() {
            let path = format!("{path}.http.paths[{at}]");
            match text(one, &["pathType"]) {
                "Exact" | "Prefix" if !text(one, &["path"]).starts_with('/') => {
                    let text = "must be an absolute path";
                    errors.push(FieldError::invalid(format!("{path}.path"), one["path"].clone(), text));
                }
                "Exact" | "Prefix" | "ImplementationSpecific" => {}
                "" => errors
                    .push(FieldError::required(format!("{path}.pathType"), "pathType must be specified")),
                other => {
                    let words = ["Exact", "ImplementationSpecific", "Prefix"];
                    errors.push(FieldError::not_supported(format!("{path}.pathType"), other, &words));
                }
            }
        }
    }
}

fn budget(spec: &Value, errors: &mut Vec<FieldError>) {
    if !spec["minAvailable"].is_null() && !spec["maxUnavailable"].is_null() {
        let text = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid("spec", spec.clone(), text));
    }
    label_selector(&spec["selector"], "spec.selector", errors);
}

/// Used by kinds whose whole content is fixed.
pub(super) fn fixed(new: &Value, old: &Value, key: &str, errors: &mut Vec<FieldError>) {
    if new[key] != old[key] {
        errors.push(FieldError::invalid(key, new[key].clone(), IMMUTABLE));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ranges_of_ports_have_a_numeric_beginning() {
        for (port, wrong) in [
            (json!({"port": 80}), &[][..]),
            (json!({"port": 80, "endPort": 80}), &[]),
            (json!({"port": "web"}), &[]),
            (json!({"endPort": 80}), &["p.endPort"]),
            (json!({"port": "web", "endPort": 80}), &["p.endPort"]),
            (json!({"port": 81, "endPort": 80}), &["p.endPort"]),
            (json!({"port": 0, "protocol": "ICMP"}), &["p.protocol", "p.port"]),
        ] {
            let mut errors = Vec::new();
            policy_port(&port, "p", &mut errors);
            let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(fields, wrong, "{port}");
        }
    }
}
