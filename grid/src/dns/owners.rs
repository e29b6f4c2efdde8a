//! Maps addresses back to Services.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::endpoints::ServiceName;

/// Services by address. There are ten thousand addresses, almost all of one family, and almost none has two Services.
/// This map is most of the memory of the name index.
#[derive(Debug, Default)]
pub(super) struct Owners {
    v4: HashMap<Ipv4Addr, Arc<ServiceName>>,
    v6: HashMap<Ipv6Addr, Arc<ServiceName>>,
    /// Further Services of an address, besides the first.
    more: HashMap<IpAddr, BTreeSet<Arc<ServiceName>>>,
}

impl Owners {
    /// The Services of an address: the one that was added first, then the others by name.
    pub(super) fn of(&self, address: IpAddr) -> impl Iterator<Item = &Arc<ServiceName>> {
        let first = match &address {
            IpAddr::V4(address) => self.v4.get(address),
            IpAddr::V6(address) => self.v6.get(address),
        };
        first.into_iter().chain(self.more.get(&address).into_iter().flatten())
    }

    /// A Service of an address, if it is one of them.
    pub(super) fn known(&self, address: IpAddr, service: &ServiceName) -> Option<&Arc<ServiceName>> {
        let first = self.of(address).next().filter(|first| ***first == *service);
        first.or_else(|| self.more.get(&address)?.get(service))
    }

    /// Adds a Service to an address.
    pub(super) fn add(&mut self, address: IpAddr, service: &Arc<ServiceName>) {
        let is_first = self.of(address).next().map(|first| first == service);
        match is_first {
            None => self.set_first(address, Some(Arc::clone(service))),
            Some(true) => {}
            Some(false) => drop(self.more.entry(address).or_default().insert(Arc::clone(service))),
        }
    }

    /// Removes a Service from an address.
    pub(super) fn remove(&mut self, address: IpAddr, service: &ServiceName) {
        let is_first = self.of(address).next().is_some_and(|first| **first == *service);
        let mut more = self.more.remove(&address).unwrap_or_default();
        if is_first {
            self.set_first(address, more.pop_first());
        } else {
            more.remove(service);
        }
        if !more.is_empty() {
            self.more.insert(address, more);
        }
    }

    fn set_first(&mut self, address: IpAddr, service: Option<Arc<ServiceName>>) {
        match (address, service) {
            (IpAddr::V4(address), Some(service)) => drop(self.v4.insert(address, service)),
            (IpAddr::V4(address), None) => drop(self.v4.remove(&address)),
            (IpAddr::V6(address), Some(service)) => drop(self.v6.insert(address, service)),
            (IpAddr::V6(address), None) => drop(self.v6.remove(&address)),
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty() && self.more.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_services_of_one_address_cause_no_quadratic_work() {
        let (address, mut owners) = ("10.0.0.1".parse().unwrap(), Owners::default());
        let services: Vec<_> =
            (0..200_000).map(|number| Arc::new(ServiceName::new("shop", &number.to_string()))).collect();
        for service in &services {
            owners.add(address, service);
        }
        assert_eq!(owners.of(address).count(), services.len());
        for service in &services {
            owners.remove(address, service);
        }
        assert!(owners.is_empty());
    }

    #[test]
    fn services_of_an_address_come_and_go_in_order() {
        for address in ["10.0.0.1", "fd00::1"] {
            let address: IpAddr = address.parse().unwrap();
            let [a, b, c] = ["a", "b", "c"].map(|name| Arc::new(ServiceName::new("shop", name)));
            let mut owners = Owners::default();
            for service in [&a, &b, &a, &c] {
                owners.add(address, service);
            }
            let names =
                |owners: &Owners| owners.of(address).map(|service| service.name.clone()).collect::<Vec<_>>();
            assert_eq!(names(&owners), ["a", "b", "c"]);
            owners.remove(address, &ServiceName::new("shop", "other"));
            owners.remove(address, &a);
            assert_eq!(names(&owners), ["b", "c"]);
            owners.remove(address, &c);
            assert_eq!(names(&owners), ["b"]);
            owners.remove(address, &b);
            assert!(owners.is_empty());
        }
    }
}
