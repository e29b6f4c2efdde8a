//! Validation of NetworkPolicies, IngressClasses, IPAddresses and ServiceCIDRs (pkg/apis/networking/validation);
//! Ingresses have their own file.

use serde_json::Value;

use super::addresses::{network, sloppy_network};
use super::field::{Errors, Field};
use super::walk::top;
use super::{IMMUTABLE, canonical, domains, names};
use tombolo_apicore::value::{items, text};

const CONTROLLER_LEN_MAX: usize = 250;
const PORT: &str = "must be between 1 and 65535, inclusive";

/// Checks one of these kinds.
pub(super) fn check(kind: &str, object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let spec = top(object, "spec");
    match kind {
        "IngressClass" => ingress_class(&spec, errors),
        "NetworkPolicy" => policy(&spec, old, errors),
        "IPAddress" => parent(&spec.child("parentRef"), errors),
        "ServiceCIDR" => ranges(&spec.child("cidrs"), old.map(|old| &old["spec"]["cidrs"]), errors),
        _ => {}
    }
}

/// Reports a number that is not a valid port.
pub(super) fn port_number(port: &Field<'_, '_>, errors: &mut Errors) {
    if !(1..=65_535).contains(&port.int()) {
        errors.push(port.invalid(PORT));
    }
}

fn policy(spec: &Field<'_, '_>, old: Option<&Value>, errors: &mut Errors) {
    spec.child("podSelector").selector(errors);
    let kept = old.map_or_else(Vec::new, |old| stored_ranges(&old["spec"]));
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        for rule in spec.child(rules).items() {
            rule.child("ports").items().for_each(|port| policy_port(&port, errors));
            rule.child(peers).items().for_each(|one| peer(&one, &kept, errors));
        }
    }
    let types = spec.child("policyTypes");
    if types.len() > 2 {
        errors.push(types.invalid("may not specify more than two policyTypes"));
        return;
    }
    types.items().for_each(|one| one.one_of(&["Ingress", "Egress"], errors));
}

/// The ranges of a stored policy, which are not checked again.
fn stored_ranges(spec: &Value) -> Vec<&str> {
    let mut ranges = Vec::new();
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        for peer in items(spec, &[rules]).iter().flat_map(|rule| items(rule, &[peers])) {
            ranges.push(text(peer, &["ipBlock", "cidr"]));
            ranges.extend(items(peer, &["ipBlock", "except"]).iter().filter_map(Value::as_str));
        }
    }
    ranges.retain(|range| !range.is_empty());
    ranges
}

fn peer(peer: &Field<'_, '_>, kept: &[&str], errors: &mut Errors) {
    let fields = ["podSelector", "namespaceSelector"].map(|name| peer.child(name));
    fields.iter().for_each(|selector| selector.selector(errors));
    let block = peer.child("ipBlock");
    if block.is_set() {
        address_block(&block, kept, errors);
    }
    let selects = fields.iter().any(Field::is_set);
    match (selects, block.is_set()) {
        (false, false) => errors.push(peer.required("must specify a peer")),
        (true, true) => errors.push(peer.forbidden("may not specify both ipBlock and another peer")),
        _ => {}
    }
}

fn address_block(block: &Field<'_, '_>, kept: &[&str], errors: &mut Errors) {
    let range = block.child("cidr");
    if range.text().is_empty() {
        errors.push(range.required(""));
        return;
    }
    let checked = |at: &Field<'_, '_>, errors: &mut Errors| {
        if !kept.contains(&at.text()) {
            network(at, at.text(), errors);
        }
    };
    checked(&range, errors);
    let Some(outer) = sloppy_network(range.text()) else { return };
    for except in block.child("except").items() {
        checked(&except, errors);
        let inner = sloppy_network(except.text());
        if inner.is_some_and(|inner| !canonical::strictly_contains(outer, inner)) {
            errors.push(except.invalid("must be a strict subset of `cidr`"));
        }
    }
}

/// Checks a port or a range of ports.
fn policy_port(one: &Field<'_, '_>, errors: &mut Errors) {
    one.child("protocol").one_of(&["TCP", "UDP", "SCTP"], errors);
    let (port, end) = (one.child("port"), one.child("endPort"));
    match port.value() {
        Value::Number(_) => {
            port_number(&port, errors);
            if end.is_set() && end.int() < port.int() {
                let detail = "must be greater than or equal to `port`";
                errors.push(end.invalid_value(port.int(), detail));
            }
            if end.is_set() {
                port_number(&end, errors);
            }
        }
        Value::String(_) => {
            if end.is_set() {
                errors.push(end.invalid("may not be specified when `port` is non-numeric"));
            }
            port.grammar(names::port_name, errors);
        }
        _ if end.is_set() => errors.push(end.invalid("may not be specified when `port` is not specified")),
        _ => {}
    }
}

fn ingress_class(spec: &Field<'_, '_>, errors: &mut Errors) {
    let controller = spec.child("controller");
    controller.overlong(CONTROLLER_LEN_MAX, errors);
    domains::prefixed_path(&controller, errors);
    let parameters = spec.child("parameters");
    if !parameters.is_set() {
        return;
    }
    reference(&parameters, errors);
    let (scope, namespace) = (parameters.child("scope"), parameters.child("namespace"));
    match scope.text() {
        "Namespace" if !namespace.is_set() => {
            errors.push(namespace.required("`parameters.scope` is set to 'Namespace'"));
        }
        "Namespace" => namespace.grammar(names::dns1123_label, errors),
        "Cluster" if namespace.is_set() => {
            errors.push(namespace.forbidden("`parameters.scope` is set to 'Cluster'"));
        }
        "Cluster" => {}
        _ if !scope.is_set() => errors.push(scope.required("")),
        _ => errors.push(scope.not_supported(&["Cluster", "Namespace"])),
    }
}

/// Checks a reference to an object by group, kind and name.
pub(super) fn reference(reference: &Field<'_, '_>, errors: &mut Errors) {
    let group = reference.child("apiGroup");
    if group.is_set() {
        group.grammar(names::dns1123_subdomain, errors);
    }
    for field in ["kind", "name"] {
        reference.child(field).check_required(names::path_segment, errors);
    }
}

fn parent(parent: &Field<'_, '_>, errors: &mut Errors) {
    if !parent.is_set() {
        errors.push(parent.required(""));
        return;
    }
    let group = parent.child("group");
    if !group.text().is_empty() {
        group.grammar(names::dns1123_subdomain, errors);
    }
    for field in ["resource", "name"] {
        parent.child(field).check_required(names::path_segment, errors);
    }
    parent.child("namespace").grammar(names::path_segment, errors);
}

/// Checks the ranges of a ServiceCIDR: one of each family. A second one may be added; nothing else changes.
fn ranges(ranges: &Field<'_, '_>, old: Option<&Value>, errors: &mut Errors) {
    let Some(before) = old.map(|old| items(old, &[])) else { return range_list(ranges, errors) };
    let is_added = (before.len(), ranges.len()) == (1, 2);
    if before.len() != ranges.len() && !is_added {
        return errors.push(ranges.invalid(IMMUTABLE));
    }
    let changed = ranges.items().zip(before).filter(|(now, before)| now.value() != *before);
    errors.extend(changed.map(|(now, _)| now.invalid(IMMUTABLE)));
    if is_added {
        range_list(ranges, errors);
    }
}

fn range_list(ranges: &Field<'_, '_>, errors: &mut Errors) {
    match ranges.len() {
        0 => return errors.push(ranges.required("at least one CIDR required")),
        1 | 2 => {}
        _ => return errors.push(ranges.invalid("may only hold up to 2 values")),
    }
    ranges.items().for_each(|range| canonical::check_network(&range, errors));
    let families: Vec<bool> = ranges
        .texts()
        .iter()
        .filter_map(|text| sloppy_network(text))
        .map(|(address, _)| address.is_ipv4())
        .collect();
    if families == [true, true] || families == [false, false] {
        let detail =
            "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.push(ranges.invalid(detail));
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
            policy_port(&Field::root("p", &port), &mut errors);
            let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(fields, wrong, "{port}");
        }
    }

    #[test]
    fn a_second_range_may_be_added() {
        let no: [&str; 0] = [];
        let changed = |old: Value, new: Value| {
            let mut errors = Vec::new();
            ranges(&Field::root("cidrs", &new), Some(&old), &mut errors);
            errors.into_iter().map(|error| error.field).collect::<Vec<_>>()
        };
        assert_eq!(changed(json!(["10.0.0.0/8"]), json!(["10.0.0.0/8", "fd00::/64"])), no);
        assert_eq!(changed(json!(["10.0.0.0/8"]), json!(["11.0.0.0/8"])), ["cidrs[0]"]);
        assert_eq!(changed(json!(["10.0.0.0/8"]), json!([])), ["cidrs"]);
        assert_eq!(changed(json!(["10.0.0.0/8"]), json!(["10.0.0.0/8", "11.0.0.0/8"])), ["cidrs"]);
    }
}
