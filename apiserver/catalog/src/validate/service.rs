//! Validation of services.

mod addressing;
pub(super) mod update;

use std::collections::HashSet;

use serde_json::{Value, json};

use super::field::{Errors, Field};
use super::pod::{port_number, port_or_name};
use super::{FieldError, addresses, meta, names};
use tombolo_apicore::value::{at, items, text};

const HEADLESS: &str = "None";
const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const MODE: &str = "service.kubernetes.io/topology-mode";
const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
/// Protocols of ports.
pub(super) const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Checks a service. Stored values that were once allowed may stay.
pub(super) fn check(service: &Value, old: Option<&Value>, errors: &mut Errors) {
    topology(&service["metadata"], errors);
    let spec = Field::root("spec", &service["spec"]);
    let kind = spec.child("type").text();
    let headless = is_headless(&service["spec"]);
    if spec.child("ports").is_empty() && !headless && kind != "ExternalName" {
        errors.push(spec.child("ports").required(""));
    }
    let ips = spec.child("clusterIPs");
    match kind {
        "LoadBalancer" | "NodePort" if headless => {
            let text = format!("may not be set to 'None' for {kind} services");
            errors.push(ips.index(0).invalid(text));
        }
        "ExternalName" => external_name(&spec, errors),
        _ => {}
    }
    ports(&spec, errors);
    let selector = spec.child("selector");
    meta::labels(selector.value(), &selector.path(), errors);
    affinity(&spec, errors);
    if kind != "ExternalName" {
        addressing::cluster_ips(&spec, old, errors);
    }
    addressing::external_ips(&spec.child("externalIPs"), old, errors);
    let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    spec.child("type").one_of_required(&types, errors);
    node_ports(&spec, kind, errors);
    source_ranges(service, &spec, old, errors);
    balancer(&spec, errors);
    traffic(&spec, errors);
}

fn topology(metadata: &Value, errors: &mut Errors) {
    let annotations = Field::root("metadata.annotations", &metadata["annotations"]);
    let (hints, mode) = (annotations.key(HINTS), annotations.key(MODE));
    if hints.is_set() && mode.is_set() && hints.text() != mode.text() {
        errors.push(mode.invalid(format!("must match annotations[{HINTS}] when both are specified")));
    }
}

fn is_headless(spec: &Value) -> bool {
    matches!(items(spec, &["clusterIPs"]), [only] if only == HEADLESS)
}

fn external_name(spec: &Field<'_, '_>, errors: &mut Errors) {
    for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        let field = spec.child(field);
        if !field.is_empty() {
            errors.push(field.forbidden("may not be set for ExternalName services"));
        }
    }
    let name = spec.child("externalName");
    let bare = name.text().strip_suffix('.').unwrap_or(name.text());
    match bare.is_empty() {
        true => errors.push(name.required("")),
        false => {
            errors.extend(names::dns1123_subdomain(bare).map(|problem| name.invalid_value(bare, problem)));
        }
    }
}

fn ports(spec: &Field<'_, '_>, errors: &mut Errors) {
    let list = spec.child("ports");
    let several = list.list().len() > 1;
    let mut seen = HashSet::new();
    for port in list.items() {
        let name = port.child("name");
        if several && name.is_empty() {
            errors.push(name.required(""));
        } else if !name.is_empty() {
            name.check(names::dns1123_label, errors);
            if !seen.insert(name.text()) {
                errors.push(name.duplicate());
            }
        }
        let number = port.child("port");
        port_number(number.int(), &number.path(), errors);
        port.child("protocol").one_of_required(&PROTOCOLS, errors);
        port_or_name(&port.child("targetPort"), errors);
        app_protocol(&port, errors);
    }
}

/// Checks the application protocol of a port.
pub(super) fn app_protocol(port: &Field<'_, '_>, errors: &mut Errors) {
    let protocol = port.child("appProtocol");
    if protocol.is_set() {
        protocol.check_all(names::qualified_name(protocol.text()), errors);
    }
}

/// Maximum session affinity in seconds: a day.
const AFFINITY_SECONDS_MAX: i64 = 86_400;

fn affinity(spec: &Field<'_, '_>, errors: &mut Errors) {
    let affinity = spec.child("sessionAffinity");
    affinity.one_of_required(&["ClientIP", "None"], errors);
    let config = spec.child("sessionAffinityConfig");
    match affinity.text() {
        "None" if config.is_set() => {
            errors.push(config.forbidden("must not be set when session affinity is None"));
        }
        "ClientIP" => {
            let client = config.child("clientIP");
            let seconds = client.child("timeoutSeconds");
            let missing = [&config, &client, &seconds].into_iter().find(|field| !field.is_set());
            if let Some(missing) = missing {
                errors.push(missing.required("when session affinity type is ClientIP"));
            } else if !(1..=AFFINITY_SECONDS_MAX).contains(&seconds.int()) {
                let text = format!("must be greater than 0 and less than {AFFINITY_SECONDS_MAX}");
                errors.push(seconds.invalid(text));
            }
        }
        _ => {}
    }
}

fn node_ports(spec: &Field<'_, '_>, kind: &str, errors: &mut Errors) {
    let list = spec.child("ports");
    if kind == "ClusterIP" {
        for port in list.items() {
            let node = port.child("nodePort");
            if node.int() != 0 {
                errors.push(node.forbidden("may not be used when `type` is 'ClusterIP'"));
            }
        }
    }
    let mut seen = HashSet::new();
    for port in list.items() {
        let node = port.child("nodePort");
        if node.int() != 0 && !seen.insert((port.child("protocol").text(), node.int())) {
            errors.push(node.duplicate());
        }
    }
    let mut seen = HashSet::new();
    for port in list.items() {
        let (protocol, number) = (port.child("protocol").text(), port.child("port").int());
        if !seen.insert((protocol, number)) {
            // The real server shows the Go struct of a port with only these two fields set.
            let shown = json!({
                "Name": "", "Protocol": protocol, "AppProtocol": null, "Port": number, "TargetPort": 0, "NodePort": 0,
            });
            errors.push(FieldError::duplicate(port.path(), shown));
        }
    }
}

fn source_ranges(service: &Value, spec: &Field<'_, '_>, old: Option<&Value>, errors: &mut Errors) {
    const ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
    let balanced = spec.child("type").text() == "LoadBalancer";
    let list = spec.with("LoadBalancerSourceRanges", &spec.value()["loadBalancerSourceRanges"]);
    let annotation = at(service, &["metadata", "annotations", RANGES]);
    if !list.is_empty() {
        if !balanced {
            errors.push(list.forbidden(ONLY));
        }
        let before: Vec<&str> =
            addressing::had(old, "loadBalancerSourceRanges").into_iter().map(str::trim).collect();
        for range in list.items().filter(|range| !before.contains(&range.text().trim())) {
            addresses::network(&range, range.text().trim(), errors);
        }
    } else if let Some(ranges) = annotation.as_str() {
        let path = format!("metadata.annotations[{RANGES}]");
        let field = Field::root(&path, annotation);
        if !balanced {
            errors.push(field.forbidden(ONLY));
        }
        let same = old.is_some_and(|old| at(old, &["metadata", "annotations", RANGES]) == annotation);
        if !same && !ranges.trim().is_empty() {
            ranges.split(',').for_each(|range| addresses::network(&field, range.trim(), errors));
        }
    }
}

fn balancer(spec: &Field<'_, '_>, errors: &mut Errors) {
    let balanced = spec.child("type").text() == "LoadBalancer";
    let (allocate, class) = (spec.child("allocateLoadBalancerNodePorts"), spec.child("loadBalancerClass"));
    for field in [&allocate, &class] {
        if field.is_set() && !balanced {
            errors.push(field.forbidden("may only be used when `type` is 'LoadBalancer'"));
        }
    }
    if balanced && !allocate.is_set() {
        errors.push(FieldError::required("allocateLoadBalancerNodePorts", ""));
    }
    if balanced && class.is_set() {
        class.check_all(names::qualified_name(class.text()), errors);
    }
}

fn needs_health_port(spec: &Value) -> bool {
    spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local"
}

/// Checks the traffic policies.
fn traffic(spec: &Field<'_, '_>, errors: &mut Errors) {
    let kind = spec.child("type").text();
    let policy = spec.child("externalTrafficPolicy");
    let outside = matches!(kind, "LoadBalancer" | "NodePort")
        || (kind == "ClusterIP" && !spec.child("externalIPs").is_empty());
    match outside {
        true => policy.one_of_required(&["Cluster", "Local"], errors),
        false if !policy.is_empty() => {
            errors.push(policy.invalid("may only be set for externally-accessible services"));
        }
        false => {}
    }
    let health = spec.child("healthCheckNodePort");
    match (needs_health_port(spec.value()), health.int()) {
        // No port is set where nothing allocates ports, as on an edge.
        (_, 0) => {}
        (true, number) => port_number(number, &health.path(), errors),
        (false, _) => {
            let text = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.push(health.invalid(text));
        }
    }
    let inside = spec.child("internalTrafficPolicy");
    if !inside.is_set() && matches!(kind, "NodePort" | "LoadBalancer" | "ClusterIP") {
        errors.push(inside.required(""));
    }
    inside.one_of(&["Cluster", "Local"], errors);
    let distributions = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    spec.child("trafficDistribution").one_of(&distributions, errors);
}

/// Checks the status of a service.
pub(super) fn status(new: &Value, old: &Value, errors: &mut Errors) {
    let root = Field::root("status.loadBalancer", &new["status"]["loadBalancer"]);
    let list = root.child("ingress");
    if text(new, &["spec", "type"]) != "LoadBalancer" {
        if !list.is_empty() {
            errors.push(list.forbidden("may only be used when `spec.type` is 'LoadBalancer'"));
        }
        return;
    }
    let before = items(old, &["status", "loadBalancer", "ingress"]);
    for ingress in list.items() {
        let (ip, mode, host) = (ingress.child("ip"), ingress.child("ipMode"), ingress.child("hostname"));
        if !ip.is_empty() && !before.iter().any(|ingress| &ingress["ip"] == ip.value()) {
            addresses::address(&ip, ip.text(), errors);
        }
        match (mode.is_set(), ip.is_empty()) {
            (false, false) => errors.push(mode.required("must be specified when `ip` is set")),
            (true, true) => errors.push(mode.forbidden("may not be specified when `ip` is not set")),
            _ => mode.one_of(&["Proxy", "VIP"], errors),
        }
        host.check(names::dns1123_subdomain, errors);
        if addresses::sloppy(host.text()).is_some() {
            errors.push(host.invalid("must be a DNS name, not an IP address"));
        }
    }
}
