//! Addresses and networks that must be in canonical (shortest) form, and networks within networks.

use core::net::IpAddr;

use serde_json::Value;

use super::addresses::{address, masked, network, sloppy, sloppy_network};
use super::field::{Errors, Field};

/// Checks that an address is in canonical form.
pub(super) fn check_address(field: &Field<'_, '_>, errors: &mut Errors) {
    let before = errors.len();
    address(field, field.text(), errors);
    if let Some(read) = sloppy(field.text()).filter(|_| errors.len() == before) {
        is_written(field, &read.to_string(), errors);
    }
}

/// The problem with an address as the name of an object.
pub(super) fn address_problem(name: &str) -> Option<String> {
    let (value, mut errors) = (Value::from(name), Vec::new());
    check_address(&Field::root("", &value), &mut errors);
    errors.into_iter().next().map(|error| error.detail)
}

/// Checks that a network is in canonical form.
pub(super) fn check_network(field: &Field<'_, '_>, errors: &mut Errors) {
    let before = errors.len();
    network(field, field.text(), errors);
    if let Some((address, length)) = sloppy_network(field.text()).filter(|_| errors.len() == before) {
        is_written(field, &format!("{address}/{length}"), errors);
    }
}

/// Checks the address of an interface: an address with the prefix length of its network.
pub(super) fn check_interface(field: &Field<'_, '_>, errors: &mut Errors) {
    match sloppy_network(field.text()) {
        None => {
            let detail = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
            errors.push(field.invalid(detail));
        }
        Some((address, length)) => is_written(field, &format!("{address}/{length}"), errors),
    }
}

fn is_written(field: &Field<'_, '_>, canonical: &str, errors: &mut Errors) {
    if field.text() != canonical {
        errors.push(field.invalid(format!("must be in canonical form ({canonical:?})")));
    }
}

/// Whether the inner network is completely in the outer one, and smaller.
pub(super) fn strictly_contains(outer: (IpAddr, u8), inner: (IpAddr, u8)) -> bool {
    let ((outer, length), (inner, inner_length)) = (outer, inner);
    let is_same_family = outer.is_ipv4() == inner.is_ipv4();
    is_same_family && length < inner_length && masked(inner, length) == masked(outer, length)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_shortest_form_is_the_only_one() {
        let details = |check: fn(&Field<'_, '_>, &mut Errors), text: &str| {
            let (value, mut errors) = (json!(text), Vec::new());
            check(&Field::root("p", &value), &mut errors);
            errors.into_iter().map(|error| error.detail).collect::<Vec<_>>()
        };
        assert!(details(check_address, "2001:db8::1").is_empty());
        assert_eq!(details(check_address, "2001:0db8::1"), ["must be in canonical form (\"2001:db8::1\")"]);
        assert_eq!(
            details(check_network, "2001:DB8::/64"),
            ["must be in canonical form (\"2001:db8::/64\")"]
        );
        assert_eq!(details(check_network, "10.0.0.1/8").len(), 1);
        assert!(details(check_interface, "10.0.0.1/8").is_empty());
    }

    #[test]
    fn a_network_contains_smaller_ones_of_its_family() {
        let contains = |outer: &str, inner: &str| {
            strictly_contains(sloppy_network(outer).unwrap(), sloppy_network(inner).unwrap())
        };
        assert!(contains("10.0.0.0/8", "10.1.0.0/16") && contains("::/0", "fe80::/10"));
        assert!(!contains("10.0.0.0/8", "10.0.0.0/8") && !contains("10.0.0.0/8", "11.0.0.0/16"));
        assert!(!contains("0.0.0.0/0", "fe80::/10"));
    }
}
