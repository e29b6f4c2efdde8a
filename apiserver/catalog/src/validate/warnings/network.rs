//! Warnings about services, and about addresses in an unusual notation.

use core::net::IpAddr;

use serde_json::Value;

use super::super::addresses::{masked, sloppy, sloppy_network};
use super::super::field::Field;

const HINTS: &str = "service.kubernetes.io/topology-aware-hints";

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

/// The address, with an IPv4-mapped IPv6 address turned into the IPv4 address.
fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Warns of an address in an unusual notation.
pub(super) fn address(field: &Field<'_, '_>, text: &str, warnings: &mut Vec<String>) {
    let Some(read) = sloppy(text) else { return };
    match text.parse::<IpAddr>() {
        Ok(address) if !is_mapped(address) => {
            if address.is_ipv6() && address.to_string() != text {
                warnings.push(format!(
                    "{field}: IPv6 address {text:?} should be in RFC 5952 canonical format (\"{address}\")"
                ));
            }
        }
        _ => warnings
            .push(format!("{field}: non-standard IP address {text:?} is invalid: use \"{}\"", plain(read))),
    }
}

/// Warns of a network in an unusual notation.
fn network(field: &Field<'_, '_>, text: &str, warnings: &mut Vec<String>) {
    let Some((address, length)) = sloppy_network(text) else { return };
    let first = masked(address, length);
    let canonical = format!("{}/{length}", plain(first));
    let before = warnings.len();
    if first != address {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        warnings.push(format!(
            "{field}: CIDR value {text:?} is ambiguous in this context (should be \"{canonical}\" or \"{address}/{bits}\"?)"
        ));
    }
    let given = text.split_once('/').and_then(|(address, _)| address.parse::<IpAddr>().ok());
    if given.is_none_or(is_mapped) {
        warnings.push(format!("{field}: non-standard CIDR value {text:?} is invalid: use \"{canonical}\""));
    }
    if warnings.len() == before && address.is_ipv6() && format!("{address}/{length}") != text {
        warnings.push(format!(
            "{field}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format (\"{address}/{length}\")"
        ));
    }
}

/// Warnings about a service.
pub(super) fn service(service: &Value, warnings: &mut Vec<String>) {
    let annotations = Field::root("metadata.annotations", &service["metadata"]["annotations"]);
    if annotations.key(HINTS).is_set() {
        warnings.push(format!(
            "annotation {HINTS} is deprecated, please use service.kubernetes.io/topology-mode instead"
        ));
    }
    let spec = Field::root("spec", &service["spec"]);
    let kind = spec.child("type").text();
    let own = spec.child("clusterIP").text();
    let headless = kind == "ClusterIP" && own == "None";
    let outside = spec.child("externalIPs");
    if !matches!(own, "" | "None") {
        spec.child("clusterIPs").items().for_each(|one| address(&one, one.text(), warnings));
    }
    if headless {
        let affinity = spec.child("sessionAffinity").text() != "None";
        for (ignored, name) in [
            (!spec.child("loadBalancerIP").is_empty(), "loadBalancerIP"),
            (!outside.is_empty(), "externalIPs"),
            (affinity, "SessionAffinity"),
        ] {
            if ignored {
                warnings.push(format!("spec.{name} is ignored for headless services"));
            }
        }
    }
    outside.items().for_each(|one| address(&one, one.text(), warnings));
    if !outside.is_empty() && !headless && kind != "ExternalName" {
        let text = "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
        warnings.push(text.to_owned());
    }
    let balancer = spec.child("loadBalancerIP");
    address(&balancer, balancer.text(), warnings);
    let ranges = spec.child("loadBalancerSourceRanges");
    ranges.items().for_each(|range| network(&range, range.text(), warnings));
    if kind == "ExternalName" && !outside.is_empty() {
        warnings.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if kind != "ExternalName" && !spec.child("externalName").is_empty() {
        warnings.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if spec.child("trafficDistribution").text() == "PreferClose" {
        let text = "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"";
        warnings.push(text.to_owned());
    }
}

/// Warnings about a node.
pub(super) fn node(node: &Value, warnings: &mut Vec<String>) {
    let spec = Field::root("spec", &node["spec"]);
    if !spec.child("externalID").is_empty() {
        let text = "spec.externalID: this field is deprecated, and is unused by Kubernetes";
        warnings.push(text.to_owned());
    }
    spec.child("podCIDRs").items().for_each(|range| network(&range, range.text(), warnings));
}

/// Warnings about a new status.
pub(super) fn status(kind: &str, object: &Value, warnings: &mut Vec<String>) {
    let status = Field::root("status", &object["status"]);
    match kind {
        "Pod" => {
            for list in ["podIPs", "hostIPs"] {
                for one in status.child(list).items() {
                    address(&one.child("ip"), one.child("ip").text(), warnings);
                }
            }
        }
        "Service" => {
            let balancer = status.child("loadBalancer");
            for ingress in balancer.child("ingress").items() {
                address(&ingress, ingress.child("ip").text(), warnings);
            }
        }
        _ => {}
    }
}
