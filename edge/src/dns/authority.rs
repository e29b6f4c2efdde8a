//! The zone's own records, and which names belong to the zone.

use std::net::IpAddr;

use hickory_proto::rr::rdata::{A, AAAA, SOA};
use hickory_proto::rr::{Name, RData, Record};
use tombolo_grid::dns;

/// Time to live of all records of the zone in seconds, as in CoreDNS.
pub(super) const TTL: u32 = 5;

/// The cluster domain.
#[derive(Debug)]
pub(super) struct Authority {
    /// Without a dot at its end.
    domain: String,
    pub(super) name: Name,
    /// Where this server listens; none if other machines cannot reach that address.
    address: Option<IpAddr>,
    /// Whether reverse lookups of private addresses are forwarded.
    pub(super) forwards_private: bool,
}

/// Where a name is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NameLocation {
    /// In the domain: the labels below it in lower case, empty for the domain itself.
    Here(String),
    /// In the domain, but with characters that no name there has.
    HereOdd,
    /// Not in the domain.
    Elsewhere,
}

impl Authority {
    pub(super) fn new(domain: &str, address: IpAddr) -> Self {
        // The settings are checked, so the domain is a valid name.
        let name = Name::from_ascii(format!("{domain}.")).unwrap_or_else(|_| Name::root());
        let address = Some(address).filter(|address| !address.is_loopback() && !address.is_unspecified());
        Self { domain: domain.to_owned(), name, address, forwards_private: false }
    }

    /// Whether reverse lookups of private addresses are forwarded.
    pub(super) fn with_private_reverse(self, forwards_private: bool) -> Self {
        Self { forwards_private, ..self }
    }

    /// Where a name is.
    pub(super) fn locate(&self, name: &Name) -> NameLocation {
        let (mut text, mut odd) = (String::with_capacity(64), false);
        for label in name.iter() {
            if !text.is_empty() {
                text.push('.');
            }
            for byte in label {
                odd |= !byte.is_ascii_graphic() || *byte == b'.';
                text.push(char::from(byte.to_ascii_lowercase()));
            }
        }
        let Some(rest) = text.strip_suffix(&*self.domain) else { return NameLocation::Elsewhere };
        let below = match rest.strip_suffix('.') {
            Some(below) => below.len(),
            None if rest.is_empty() => 0,
            None => return NameLocation::Elsewhere,
        };
        if odd {
            return NameLocation::HereOdd;
        }
        text.truncate(below);
        NameLocation::Here(text)
    }

    /// A name of the zone; none if it is too long for DNS.
    pub(super) fn below(&self, text: &str) -> Option<Name> {
        Name::from_ascii(format!("{text}.{}.", self.domain)).ok()
    }

    /// The SOA record, which also accompanies negative answers.
    pub(super) fn soa(&self, serial: u32) -> Record {
        self.soa_of(self.name.clone(), serial)
    }

    /// The SOA record of another zone that this server answers.
    pub(super) fn soa_of(&self, zone: Name, serial: u32) -> Record {
        let below = |label: &str| self.below(label).unwrap_or_else(|| self.name.clone());
        let soa = SOA::new(below("ns.dns"), below("hostmaster"), serial, 7200, 1800, 86400, TTL);
        Record::from_rdata(zone, TTL, RData::SOA(soa))
    }

    /// The address of this server as a record of a name.
    pub(super) fn own_address(&self, name: &Name) -> Option<Record> {
        self.address.map(|address| address_record(name.clone(), address))
    }
}

/// An A or AAAA record.
pub(super) fn address_record(name: Name, address: IpAddr) -> Record {
    let data = match address {
        IpAddr::V4(address) => RData::A(A(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(address)),
    };
    Record::from_rdata(name, TTL, data)
}

/// The name of a place, relative to the domain.
pub(super) fn target_name(named: &dns::NamedAddress<'_>) -> String {
    let (service, namespace) = named.service;
    match &named.label {
        Some(label) => format!("{label}.{service}.{namespace}.svc"),
        None => format!("{service}.{namespace}.svc"),
    }
}
