//! Validation of endpoints.

use serde_json::Value;

use super::field::{Errors, Field};
use super::pod::port_number;
use super::service::{PROTOCOLS, app_protocol};
use super::{addresses, names};

/// Checks endpoints.
pub(super) fn check(endpoints: &Value, old: Option<&Value>, errors: &mut Errors) {
    if old.is_some_and(|old| old["subsets"] == endpoints["subsets"]) {
        return;
    }
    let subsets = Field::root("subsets", &endpoints["subsets"]);
    for subset in subsets.items() {
        let lists = [subset.child("addresses"), subset.child("notReadyAddresses")];
        if lists.iter().all(Field::is_empty) {
            errors.push(subset.required("must specify `addresses` or `notReadyAddresses`"));
        }
        for list in &lists {
            list.items().for_each(|address| endpoint(&address, errors));
        }
        let ports = subset.child("ports");
        for port in ports.items() {
            let name = port.child("name");
            if ports.list().len() > 1 && name.is_empty() {
                errors.push(name.required(""));
            }
            name.check(names::dns1123_label, errors);
            let number = port.child("port");
            port_number(number.int(), &number.path(), errors);
            port.child("protocol").one_of_required(&PROTOCOLS, errors);
            app_protocol(&port, errors);
        }
    }
}

fn endpoint(address: &Field<'_, '_>, errors: &mut Errors) {
    let ip = address.child("ip");
    addresses::address(&ip, ip.text(), errors);
    address.child("hostname").check(names::dns1123_label, errors);
    let node = address.child("nodeName");
    if node.is_set() {
        node.check_all(names::dns1123_subdomain(node.text()), errors);
    }
    addresses::endpoint(&ip, ip.text(), errors);
}
