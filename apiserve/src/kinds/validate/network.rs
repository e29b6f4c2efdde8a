//! Validation of services and endpoints.

use std::collections::HashSet;
use std::net::IpAddr;

use serde_json::Value;

use super::super::value::{int, items, text};
use super::{FieldError, meta, names, pod};

/// Checks one of these kinds.
pub(super) fn create(kind: &str, object: &Value, errors: &mut Vec<FieldError>) {
    match kind {
        "Service" => service(object, errors),
        "Endpoints" => endpoints(object, errors),
        _ => {}
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
