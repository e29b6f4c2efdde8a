//! Validation of EndpointSlices (pkg/apis/discovery/validation).

use serde_json::Value;

use super::field::{Errors, Field};
use super::walk::top;
use super::{addresses, canonical, domains, meta, names};

const ENDPOINTS_MAX: usize = 1000;
const ADDRESSES_MAX: usize = 100;
const PORTS_MAX: usize = 20_000;
const HINTS_MAX: usize = 8;
const TOPOLOGY_MAX: usize = 16;

/// Checks a slice. Endpoints that an update does not change are not checked again.
pub(super) fn check(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let kind = top(object, "addressType");
    match kind.text() {
        "" => errors.push(kind.required("")),
        _ => kind.one_of(&["FQDN", "IPv4", "IPv6"], errors),
    }
    ports(&top(object, "ports"), errors);
    let endpoints = top(object, "endpoints");
    let is_kept = old.is_some_and(|old| old["endpoints"] == *endpoints.value());
    if !is_kept && !endpoints.overfull(ENDPOINTS_MAX, errors) {
        endpoints.items().for_each(|one| endpoint(&one, kind.text(), errors));
    }
}

fn ports(ports: &Field<'_, '_>, errors: &mut Errors) {
    if ports.overfull(PORTS_MAX, errors) {
        return;
    }
    let mut seen = std::collections::HashSet::new();
    for port in ports.items() {
        let (name, protocol) = (port.child("name"), port.child("appProtocol"));
        if !name.text().is_empty() {
            name.grammar(names::dns1123_label, errors);
        }
        if !seen.insert(name.text()) {
            errors.push(name.duplicate());
        }
        let transport = port.child("protocol");
        match transport.is_set() {
            true => transport.one_of(&["SCTP", "TCP", "UDP"], errors),
            false => errors.push(transport.required("")),
        }
        if protocol.is_set() {
            protocol.grammar(names::qualified_name, errors);
        }
    }
}

fn endpoint(endpoint: &Field<'_, '_>, kind: &str, errors: &mut Errors) {
    let list = endpoint.child("addresses");
    if list.is_empty() {
        errors.push(list.required("must contain at least 1 address"));
    }
    list.overfull(ADDRESSES_MAX, errors);
    for address in list.items() {
        match kind {
            "IPv4" | "IPv6" => of_family(&list, &address, kind, errors),
            "FQDN" => domains::host(&address, errors),
            _ => {}
        }
    }
    let node = endpoint.child("nodeName");
    if node.is_set() {
        node.grammar(names::dns1123_subdomain, errors);
    }
    let topology = endpoint.child("deprecatedTopology");
    topology.overfull(TOPOLOGY_MAX, errors);
    meta::labels(topology.value(), &topology.path(), errors);
    let host = endpoint.child("hostname");
    if host.is_set() {
        host.grammar(names::dns1123_label, errors);
    }
    hints(&endpoint.child("hints"), errors);
}

/// Checks an address. IPv6 addresses must be in canonical form, because they were introduced after that rule.
fn of_family(list: &Field<'_, '_>, address: &Field<'_, '_>, kind: &str, errors: &mut Errors) {
    let before = errors.len();
    match kind {
        "IPv4" => addresses::address(address, address.text(), errors),
        _ => canonical::check_address(address, errors),
    }
    if errors.len() > before {
        return;
    }
    if address.text().contains(':') != (kind == "IPv6") {
        errors.push(list.invalid_value(address.text(), format!("must be an {kind} address")));
    }
    addresses::endpoint(address, address.text(), errors);
}

fn hints(hints: &Field<'_, '_>, errors: &mut Errors) {
    if hint(&hints.child("forZones"), names::label_value, errors) {
        return;
    }
    hint(&hints.child("forNodes"), |name| names::dns1123_subdomain(name).into_iter().collect(), errors);
}

/// Checks a list of hints. Returns whether it has too many.
fn hint(list: &Field<'_, '_>, grammar: impl Fn(&str) -> Vec<String>, errors: &mut Errors) -> bool {
    if list.overfull(HINTS_MAX, errors) {
        return true;
    }
    let mut seen = std::collections::HashSet::new();
    for one in list.items() {
        let name = one.child("name");
        if !seen.insert(name.text()) {
            errors.push(name.duplicate());
        }
        name.grammar(&grammar, errors);
    }
    false
}
