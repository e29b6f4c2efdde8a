//! Rows of services, endpoints and the networking group.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{created, dated, labels, name, named, or_none, shortened, shown_selector};
use crate::value::{at, int, items, text};

/// Name, type, cluster IP, external IP, ports, age, selector.
pub(super) fn service(service: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &service["spec"];
    let cluster_ip = items(spec, &["clusterIPs"]).first().and_then(Value::as_str).unwrap_or("<none>");
    let port = |port: &Value| {
        let protocol = text(port, &["protocol"]);
        match (int(port, &["port"]), int(port, &["nodePort"])) {
            (number, 0) => format!("{number}/{protocol}"),
            (number, node) => format!("{number}:{node}/{protocol}"),
        }
    };
    let ports: Vec<String> = items(spec, &["ports"]).iter().map(port).collect();
    vec![
        name(service),
        json!(text(spec, &["type"])),
        json!(cluster_ip),
        json!(external_ip(service)),
        json!(or_none(&ports.join(","))),
        json!(created(service, now)),
        json!(labels(&spec["selector"])),
    ]
}

fn external_ip(service: &Value) -> String {
    let spec = &service["spec"];
    let external: Vec<&str> = items(spec, &["externalIPs"]).iter().filter_map(Value::as_str).collect();
    match text(spec, &["type"]) {
        "ClusterIP" | "NodePort" => or_none(&external.join(",")).to_owned(),
        "LoadBalancer" => {
            let balanced = balancer(service);
            let all: Vec<&str> = balanced.iter().map(String::as_str).chain(external).collect();
            match all.is_empty() {
                true => "<pending>".to_owned(),
                false => all.join(","),
            }
        }
        "ExternalName" => text(spec, &["externalName"]).to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

/// Addresses of a load balancer, sorted, each once.
fn balancer(object: &Value) -> BTreeSet<String> {
    let ingress = items(object, &["status", "loadBalancer", "ingress"]).iter();
    let address = |entry: &Value| match text(entry, &["ip"]) {
        "" => text(entry, &["hostname"]).to_owned(),
        ip => ip.to_owned(),
    };
    ingress.map(address).filter(|address| !address.is_empty()).collect()
}

/// Name, addresses, age.
pub(super) fn endpoints(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut list = Vec::new();
    for subset in items(object, &["subsets"]) {
        let addresses = || items(subset, &["addresses"]).iter().map(|address| text(address, &["ip"]));
        let ports = items(subset, &["ports"]);
        if ports.is_empty() {
            list.extend(addresses().map(str::to_owned));
        }
        for port in ports {
            let number = int(port, &["port"]);
            list.extend(addresses().map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{number}"),
                false => format!("{ip}:{number}"),
            }));
        }
    }
    let shown = if items(object, &["subsets"]).is_empty() {
        "<none>".to_owned()
    } else if list.is_empty() {
        String::new()
    } else {
        shortened(&list, 3)
    };
    named(object, now, [json!(shown)])
}

/// Name, address type, ports, endpoints, age.
pub(super) fn endpoint_slice(object: &Value, now: Timestamp) -> Vec<Value> {
    let port = |port: &Value| match port["port"].as_i64() {
        Some(number) => number.to_string(),
        None => port["name"].as_str().unwrap_or("*").to_owned(),
    };
    let ports: Vec<String> = items(object, &["ports"]).iter().map(port).collect();
    let addresses: Vec<String> = items(object, &["endpoints"])
        .iter()
        .flat_map(|endpoint| items(endpoint, &["addresses"]))
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let cells =
        [json!(text(object, &["addressType"])), json!(shortened(&ports, 3)), json!(shortened(&addresses, 3))];
    named(object, now, cells)
}

/// Rows of the networking group.
pub(super) fn networking(kind: &str, object: &Value, now: Timestamp) -> Vec<Value> {
    match kind {
        "NetworkPolicy" => named(object, now, [json!(shown_selector(at(object, &["spec", "podSelector"])))]),
        "ServiceCIDR" => {
            let cidrs: Vec<&str> =
                items(object, &["spec", "cidrs"]).iter().filter_map(Value::as_str).collect();
            named(object, now, [json!(cidrs.join(","))])
        }
        "IPAddress" => vec![name(object), json!(parent(at(object, &["spec", "parentRef"])))],
        "Ingress" => ingress(object, now),
        "IngressClass" => ingress_class(object, now),
        _ => dated(object),
    }
}

fn parent(reference: &Value) -> String {
    if !reference.is_object() {
        return "<none>".to_owned();
    }
    let mut out = match text(reference, &["group"]) {
        "" => text(reference, &["resource"]).to_owned(),
        group => format!("{}.{group}", text(reference, &["resource"])),
    };
    for part in ["namespace", "name"] {
        match text(reference, &[part]) {
            "" if part == "namespace" => {}
            part => out = format!("{out}/{part}"),
        }
    }
    out
}

fn ingress(object: &Value, now: Timestamp) -> Vec<Value> {
    let class = at(object, &["spec", "ingressClassName"]).as_str().unwrap_or("<none>");
    let rules = items(object, &["spec", "rules"]);
    let hosts: Vec<String> =
        rules.iter().map(|rule| text(rule, &["host"]).to_owned()).filter(|host| !host.is_empty()).collect();
    let hosts = if hosts.is_empty() { "*".to_owned() } else { shortened(&hosts, 3) };
    let address = balancer(object).into_iter().collect::<Vec<_>>().join(",");
    let ports = if items(object, &["spec", "tls"]).is_empty() { "80" } else { "80, 443" };
    named(object, now, [json!(class), json!(hosts), json!(address), json!(ports)])
}

fn ingress_class(object: &Value, now: Timestamp) -> Vec<Value> {
    let annotations = at(object, &["metadata", "annotations"]);
    let default = annotations["ingressclass.kubernetes.io/is-default-class"] == "true";
    let parameters = at(object, &["spec", "parameters"]);
    let shown = match parameters.is_object() {
        false => "<none>".to_owned(),
        true => match parameters["apiGroup"].as_str() {
            Some(group) => {
                format!("{}.{group}/{}", text(parameters, &["kind"]), text(parameters, &["name"]))
            }
            None => format!("{}/{}", text(parameters, &["kind"]), text(parameters, &["name"])),
        },
    };
    let mut row = named(object, now, [json!(text(object, &["spec", "controller"])), json!(shown)]);
    if default {
        row[0] = json!(format!("{} (default)", text(object, &["metadata", "name"])));
    }
    row
}
