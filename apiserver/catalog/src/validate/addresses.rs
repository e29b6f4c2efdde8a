//! Validation of IP addresses and networks (`StrictIPCIDRValidation` of Kubernetes 1.36).

use core::net::{IpAddr, Ipv4Addr};

use super::field::{Errors, Field};

const NO_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const NO_NETWORK: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

/// Reads an address like Go's old parser: the parts of an IPv4 address may have leading zeros.
pub(super) fn sloppy(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let parts: Option<Vec<u8>> = text
        .split('.')
        .map(|part| {
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            digits
                .then(|| part.trim_start_matches('0'))
                .and_then(|part| if part.is_empty() { Some(0) } else { part.parse().ok() })
        })
        .collect();
    let parts: [u8; 4] = parts?.try_into().ok()?;
    Some(IpAddr::V4(Ipv4Addr::from(parts)))
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

/// Checks an address in a field that existed before strict validation.
pub(super) fn address(field: &Field<'_, '_>, text: &str, errors: &mut Errors) {
    let problem = match (text.parse::<IpAddr>(), sloppy(text)) {
        (_, None) => NO_ADDRESS,
        (Err(_), Some(_)) => "must not have leading 0s",
        (Ok(address), _) if is_mapped(address) => "must not be an IPv4-mapped IPv6 address",
        _ => return,
    };
    errors.push(field.invalid_value(text, problem));
}

/// Checks an address that traffic is sent to.
pub(super) fn endpoint(field: &Field<'_, '_>, text: &str, errors: &mut Errors) {
    let Some(address) = sloppy(text) else {
        errors.push(field.invalid_value(text, "must be a valid IP address"));
        return;
    };
    let mapped = match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    };
    let mut wrong = |problem: String| errors.push(field.invalid_value(text, problem));
    if mapped.is_unspecified() {
        wrong(format!("may not be unspecified ({text})"));
    }
    if mapped.is_loopback() {
        wrong("may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned());
    }
    let (local, multicast) = match mapped {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => {
            let [first, ..] = v6.segments();
            (first & 0xffc0 == 0xfe80, first & 0xff0f == 0xff02)
        }
    };
    if local {
        wrong("may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned());
    }
    if multicast {
        wrong("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned());
    }
}

/// An address and the length of its prefix, as Go's old parser read it.
pub(super) fn sloppy_network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let address = sloppy(address)?;
    let digits = !length.is_empty() && length.len() <= 4 && length.bytes().all(|b| b.is_ascii_digit());
    let length: u8 = digits.then(|| length.parse().ok()).flatten()?;
    (length <= bits(address)).then_some((address, length))
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The first address of a network.
pub(super) fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(u32::from(32 - length)).unwrap_or(0);
            IpAddr::V4((u32::from(v4) & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(u32::from(128 - length)).unwrap_or(0);
            IpAddr::V6((u128::from(v6) & mask).into())
        }
    }
}

/// Checks a network in a field that existed before strict validation.
pub(super) fn network(field: &Field<'_, '_>, text: &str, errors: &mut Errors) {
    let problem = match sloppy_network(text) {
        None => NO_NETWORK,
        Some((address, length)) => {
            let (given, prefix) = text.split_once('/').unwrap_or((text, ""));
            let plain = given.parse::<IpAddr>().is_ok() && (prefix == "0" || !prefix.starts_with('0'));
            match plain {
                false => "must not have leading 0s in IP or prefix length",
                true if is_mapped(address) => "must not have an IPv4-mapped IPv6 address",
                true if masked(address, length) != address => {
                    "must not have bits set beyond the prefix length"
                }
                true => return,
            }
        }
    };
    errors.push(field.invalid_value(text, problem));
}

/// Whether a list has one IPv4 and one IPv6 entry.
pub(super) fn is_dual_stack(addresses: &[Option<IpAddr>]) -> bool {
    let has = |v4: bool| addresses.iter().flatten().any(|address| address.is_ipv4() == v4);
    has(true) && has(false)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn networks_have_nothing_beyond_their_prefix() {
        for (text, wrong) in [
            ("10.0.0.0/8", ""),
            ("2001:db8::/64", ""),
            ("0.0.0.0/0", ""),
            ("10.0.0.1/8", "beyond"),
            ("010.0.0.0/8", "leading 0s"),
            ("10.0.0.0/08", "leading 0s"),
            ("::ffff:10.0.0.0/104", "IPv4-mapped"),
            ("10.0.0.0/33", "valid CIDR"),
            ("10.0.0.0", "valid CIDR"),
        ] {
            let mut errors = Vec::new();
            network(&Field::root("a", &Value::Null), text, &mut errors);
            let found = errors.first().map(|error| error.detail.clone()).unwrap_or_default();
            assert!(found.contains(wrong) && wrong.is_empty() == errors.is_empty(), "{text}: {found}");
        }
    }
}
