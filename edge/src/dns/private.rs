//! Reverse zones of private addresses (RFC 6303, 7793). Servers outside have no answers for them, and a forwarded query
//! would reveal how this network is built.

use hickory_proto::rr::Name;

/// Zones below `in-addr.arpa`: private, loopback, link-local and documentation networks, and addresses that are no
/// hosts.
const FOUR: [&str; 10] =
    ["10", "168.192", "254.169", "127", "0", "2.0.192", "100.51.198", "113.0.203", "255.255.255.255", "255"];

/// Zones below `ip6.arpa`: unique local and link-local networks, those of documentation, and the addresses `::` and
/// `::1`.
const SIX: [&str; 8] = [
    "d.f",
    "c.f",
    "8.e.f",
    "9.e.f",
    "a.e.f",
    "b.e.f",
    "8.b.d.0.1.0.0.2",
    "0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0",
];

/// The private zone that a reverse name belongs to; none for public addresses and for other names.
pub(super) fn zone_of(name: &Name) -> Option<Name> {
    let labels: Vec<String> =
        name.iter().map(|label| String::from_utf8_lossy(label).to_ascii_lowercase()).collect();
    let (tree, count) = match labels.as_slice() {
        [.., tree, top] if top == "arpa" && (tree == "in-addr" || tree == "ip6") => (tree, labels.len() - 2),
        _ => return None,
    };
    let own = labels.get(..count)?;
    let depth = match tree.as_str() {
        "ip6" => SIX.iter().find_map(|zone| within(own, zone)),
        _ => FOUR.iter().find_map(|zone| within(own, zone)).or_else(|| numbered(own)),
    }?;
    let zone = labels.get(count - depth..)?.join(".");
    Name::from_ascii(format!("{zone}.")).ok()
}

/// Number of labels of the zone, if the name belongs to it.
fn within(own: &[String], zone: &str) -> Option<usize> {
    let depth = zone.split('.').count();
    let end = own.get(own.len().checked_sub(depth)?..)?;
    end.iter().map(String::as_str).eq(zone.split('.')).then_some(depth)
}

/// 172.16.0.0/12 (private) and 100.64.0.0/10 (shared), which consist of many zones.
fn numbered(own: &[String]) -> Option<usize> {
    let [.., second, first] = own else { return None };
    let second: u8 = second.parse().ok()?;
    match first.as_str() {
        "172" => (16..=31).contains(&second).then_some(2),
        "100" => (64..=127).contains(&second).then_some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_networks_have_zones_and_public_ones_none() {
        for (name, zone) in [
            ("5.0.96.10.in-addr.arpa.", Some("10.in-addr.arpa.")),
            ("10.IN-ADDR.arpa.", Some("10.in-addr.arpa.")),
            ("1.1.168.192.in-addr.arpa.", Some("168.192.in-addr.arpa.")),
            ("1.1.16.172.in-addr.arpa.", Some("16.172.in-addr.arpa.")),
            ("1.1.31.172.in-addr.arpa.", Some("31.172.in-addr.arpa.")),
            ("1.1.32.172.in-addr.arpa.", None),
            ("1.1.15.172.in-addr.arpa.", None),
            ("9.1.64.100.in-addr.arpa.", Some("64.100.in-addr.arpa.")),
            ("9.1.63.100.in-addr.arpa.", None),
            ("10.20.254.169.in-addr.arpa.", Some("254.169.in-addr.arpa.")),
            ("1.0.0.127.in-addr.arpa.", Some("127.in-addr.arpa.")),
            ("8.8.8.8.in-addr.arpa.", None),
            ("172.in-addr.arpa.", None),
            ("in-addr.arpa.", None),
            ("1.0.0.d.f.ip6.arpa.", Some("d.f.ip6.arpa.")),
            ("1.8.e.f.ip6.arpa.", Some("8.e.f.ip6.arpa.")),
            ("8.b.d.0.1.0.0.2.ip6.arpa.", Some("8.b.d.0.1.0.0.2.ip6.arpa.")),
            ("8.8.8.8.0.6.8.4.1.0.0.2.ip6.arpa.", None),
            ("10.example.", None),
            ("10.in-addr.arpa.example.", None),
            (".", None),
        ] {
            let found = zone_of(&Name::from_ascii(name).unwrap()).map(|zone| zone.to_ascii());
            assert_eq!(found.as_deref(), zone, "{name}");
        }
    }
}
