//! The addresses and ports behind the name of a Service.

use core::net::IpAddr;

use super::namespace::Entry;
use super::records::{Endpoint, Port};

/// One address behind a name, on one port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedAddress<'z> {
    /// Address.
    pub address: IpAddr,
    /// Label below the Service's name: the endpoint's; none for the Service's own address.
    pub label: Option<String>,
    /// Service, namespace.
    pub service: (&'z str, &'z str),
    /// Port; none where none is declared.
    pub port: Option<u16>,
}

/// The addresses behind a name with their ports, generated on demand: there may be as many as endpoints times ports.
#[derive(Debug, Clone, Copy)]
pub struct NamedAddresses<'z> {
    service: (&'z str, &'z str),
    /// Ports and addresses of the Service itself; when none, those of its endpoints are used.
    own: Option<(&'z [Port], &'z [IpAddr])>,
    entry: &'z Entry,
    asked: Asked<'z>,
}

/// Addresses with the same ports.
#[derive(Clone, Copy)]
struct Group<'z> {
    ports: &'z [Port],
    own: &'z [IpAddr],
    endpoints: &'z [Endpoint],
}

impl<'z> NamedAddresses<'z> {
    pub(super) fn new(
        service: (&'z str, &'z str),
        own: Option<(&'z [Port], &'z [IpAddr])>,
        entry: &'z Entry,
        asked: Asked<'z>,
    ) -> Self {
        Self { service, own, entry, asked }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses().next().is_none()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        let asked = self.asked;
        self.groups().map(|group| group.hosts(asked).count() * group.ports(asked).count()).sum()
    }

    /// Each address, regardless of its ports. An address may occur several times.
    pub fn addresses(self) -> impl Iterator<Item = IpAddr> + Clone + 'z {
        self.groups().flat_map(move |group| group.hosts(self.asked)).map(|(address, _)| address)
    }

    /// Each address on each of its ports.
    pub fn iter(self) -> impl Iterator<Item = NamedAddress<'z>> {
        let Self { service, asked, .. } = self;
        self.groups().flat_map(move |group| {
            group.hosts(asked).flat_map(move |(address, endpoint)| {
                group.ports(asked).map(move |port| {
                    let label = endpoint.map(Endpoint::label);
                    NamedAddress { address, label, service, port: port.number }
                })
            })
        })
    }

    /// The groups that have a requested port.
    fn groups(self) -> impl Iterator<Item = Group<'z>> + Clone {
        let own = self.own.map(|(ports, own)| Group { ports, own, endpoints: &[] });
        let slices = self.own.is_none().then(|| self.entry.slices()).into_iter().flatten();
        let slices = slices.map(|slice| Group { ports: &slice.ports, own: &[], endpoints: &slice.endpoints });
        own.into_iter().chain(slices).filter(move |group| group.ports(self.asked).next().is_some())
    }
}

impl PartialEq for NamedAddresses<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for NamedAddresses<'_> {}

impl<'z> Group<'z> {
    fn ports(self, asked: Asked<'z>) -> impl Iterator<Item = &'z Port> + Clone {
        self.ports.iter().filter(move |port| asked.matches(port))
    }

    fn hosts(self, asked: Asked<'z>) -> impl Iterator<Item = (IpAddr, Option<&'z Endpoint>)> + Clone {
        let named = move |endpoint: &&Endpoint| match asked {
            Asked::Endpoint(label) => endpoint.is_labelled(label),
            Asked::Service | Asked::Port { .. } => true,
        };
        let endpoints = self.endpoints.iter().filter(named);
        let own = self.own.iter().map(|address| (*address, None));
        own.chain(endpoints.map(|endpoint| (endpoint.address, Some(endpoint))))
    }
}

/// The requested part of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked<'q> {
    Service,
    Endpoint(&'q str),
    /// Empty texts match anything, as in CoreDNS.
    Port {
        protocol: &'q str,
        port: &'q str,
    },
}

impl Asked<'_> {
    pub(super) fn matches(self, candidate: &Port) -> bool {
        let Self::Port { protocol, port } = self else { return true };
        let is = |asked: &str, own: &str| asked.is_empty() || asked == own;
        is(port, &candidate.name) && is(protocol, candidate.protocol.name())
    }
}
