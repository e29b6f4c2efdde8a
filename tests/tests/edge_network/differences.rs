//! Deliberate differences between the agent's DNS server and CoreDNS. docs/dns.md describes them for users.

use hickory_proto::rr::RecordType;

use crate::ask::Way;

/// A difference: its reason, and the queries that show it.
pub(crate) struct Difference {
    pub(crate) name: &'static str,
    pub(crate) shows: fn(&str, RecordType, Way) -> bool,
}

const DOMAIN: &str = ".cluster.local";

fn below(name: &str) -> &str {
    let name = name.strip_suffix(DOMAIN).unwrap_or(name);
    if name == "cluster.local" { "" } else { name }
}

pub(crate) const DIFFERENCES: [Difference; 10] = [
    Difference {
        name: "it is not an authority for all addresses of the world: SOA queries about them are forwarded, \
               or denied where they are private",
        shows: |name, record_type, _| record_type == RecordType::SOA && name.ends_with(".arpa"),
    },
    Difference {
        name: "a name that does not exist is denied for every query type, SOA too",
        shows: |name, record_type, _| {
            record_type == RecordType::SOA && !below(name).is_empty() && name.ends_with(DOMAIN)
        },
    },
    Difference {
        name: "a name that exists is not denied because it has no TXT record: resolvers that cache it would deny \
               everything below it (RFC 8020)",
        shows: |name, record_type, _| {
            record_type == RecordType::TXT
                && matches!(below(name), "" | "svc" | "pod" | "shop.svc" | "shop.pod")
        },
    },
    Difference {
        name: "dns-version exists for every query type",
        shows: |name, record_type, _| below(name) == "dns-version" && record_type != RecordType::TXT,
    },
    Difference {
        name: "a uniform name without a record of the type brings the SOA record, without which resolvers cannot keep the \
               answer (RFC 2308)",
        shows: |name, record_type, _| {
            matches!(below(name), "db-0.db.shop.svc" | "db-1.db.shop.svc") && record_type != RecordType::A
        },
    },
    Difference {
        name: "the name of a pod's address has no SRV record on port 0",
        shows: |name, record_type, _| below(name).ends_with(".shop.pod") && record_type == RecordType::SRV,
    },
    Difference {
        name: "an ANY query about an outside name is not forwarded (RFC 8482)",
        shows: |name, record_type, _| record_type == RecordType::ANY && !name.ends_with("cluster.local"),
    },
    Difference {
        name: "answers over UDP have at most 1232 bytes, whatever the client accepts (RFC 9715)",
        shows: |name, record_type, way| {
            below(name) == "many.shop.svc" && record_type == RecordType::A && matches!(way, Way::Edns(4096))
        },
    },
    Difference {
        name: "zone transfers are not supported: a query about an outside zone is refused, not forwarded",
        shows: |name, record_type, _| record_type == RecordType::AXFR && !name.ends_with("cluster.local"),
    },
    Difference {
        name: "reverse lookups of private addresses are answered or denied here, not forwarded (RFC 6303)",
        shows: |name, _, _| name.ends_with(".10.in-addr.arpa") || name.ends_with(".d.f.ip6.arpa"),
    },
];
