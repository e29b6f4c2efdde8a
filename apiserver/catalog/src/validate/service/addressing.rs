//! Validation of the addresses of services.

use core::net::IpAddr;
use std::collections::HashSet;

use serde_json::Value;

use super::super::addresses;
use super::super::field::{Errors, Field};
use super::{HEADLESS, is_headless};
use tombolo_apicore::value::items;

/// Texts in a list of the old service.
pub(super) fn had<'a>(old: Option<&'a Value>, field: &str) -> Vec<&'a str> {
    let list = old.map(|old| items(old, &["spec", field])).unwrap_or_default();
    list.iter().filter_map(Value::as_str).collect()
}

/// Checks the cluster IPs of a service and their families.
pub(super) fn cluster_ips(spec: &Field<'_, '_>, old: Option<&Value>, errors: &mut Errors) {
    let (one, list) = (spec.child("clusterIP"), spec.child("clusterIPs"));
    if one.is_empty() && !list.is_empty() {
        errors.push(list.invalid("must be empty when `clusterIP` is not specified"));
    } else if !one.is_empty() && list.is_empty() {
        errors.push(list.required(""));
    } else if !one.is_empty() && list.index(0).text() != one.text() {
        errors.push(list.invalid("first value must match `clusterIP`"));
    }
    families(spec, errors);
    let before = had(old, "clusterIPs");
    let mut wrong = Errors::new();
    for (index, address) in list.items().enumerate() {
        if index == 0 && address.text() == HEADLESS {
            if list.list().len() > 1 {
                wrong.push(list.invalid("'None' must be the first and only value"));
            }
        } else if !before.contains(&address.text()) {
            addresses::address(&address, address.text(), &mut wrong);
        }
    }
    let all_right = wrong.is_empty();
    errors.append(&mut wrong);
    if list.list().len() > 2 {
        errors.push(list.invalid("may only hold up to 2 values"));
    }
    if !all_right {
        return;
    }
    let parsed: Vec<Option<IpAddr>> = list.items().map(|one| addresses::sloppy(one.text())).collect();
    if parsed.len() > 1 && !addresses::is_dual_stack(&parsed) {
        errors.push(list.invalid("may specify no more than one IP for each IP family"));
    }
    if !is_headless(spec.value()) {
        for (index, family) in spec.child("ipFamilies").items().enumerate().take(parsed.len()) {
            let is_v6 = parsed[index].is_some_and(|address| address.is_ipv6());
            if matches!((family.text(), is_v6), ("IPv4", true) | ("IPv6", false)) {
                let text =
                    format!("expected an {} value as indicated by `ipFamilies[{index}]`", family.text());
                errors.push(list.index(index).invalid(text));
            }
        }
    }
}

fn families(spec: &Field<'_, '_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for family in spec.child("ipFamilies").items() {
        family.one_of(&["IPv4", "IPv6"], errors);
        if !seen.insert(family.text()) {
            errors.push(family.duplicate());
        }
    }
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    spec.child("ipFamilyPolicy").one_of(&policies, errors);
}

/// Checks external IPs of the service.
pub(super) fn external_ips(list: &Field<'_, '_>, old: Option<&Value>, errors: &mut Errors) {
    let before = had(old, "externalIPs");
    for address in list.items() {
        let mut wrong = Errors::new();
        if !before.contains(&address.text()) {
            addresses::address(&address, address.text(), &mut wrong);
        }
        if wrong.is_empty() {
            addresses::endpoint(&address, address.text(), errors);
        }
        errors.append(&mut wrong);
    }
}
