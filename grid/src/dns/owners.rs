//! Which Services an address leads back to.

use std::collections::HashMap;
use std::sync::Arc;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::endpoints::ServiceName;

/// Services by address. There are ten thousand addresses, next to all of one family, and next to none has two Services: this
/// is most of what the index of names takes.
#[derive(Debug, Default)]
pub(super) struct Owners {
    v4: HashMap<Ipv4Addr, Arc<ServiceName>>,
    v6: HashMap<Ipv6Addr, Arc<ServiceName>>,
    /// Those beside the first one, in the order in which they came.
    more: HashMap<IpAddr, Vec<Arc<ServiceName>>>,
}

impl Owners {
    /// The Services of an address, in the order in which they came.
    pub(super) fn of(&self, address: IpAddr) -> impl Iterator<Item = &Arc<ServiceName>> {
        let first = match &address {
            IpAddr::V4(address) => self.v4.get(address),
            IpAddr::V6(address) => self.v6.get(address),
        };
        first.into_iter().chain(self.more.get(&address).into_iter().flatten())
    }

    /// An address leads to a Service, too.
    pub(super) fn add(&mut self, address: IpAddr, service: &Arc<ServiceName>) {
        if self.of(address).any(|known| known == service) {
            return;
        }
        if self.of(address).next().is_some() {
            self.more.entry(address).or_default().push(Arc::clone(service));
        } else {
            self.set_first(address, Some(Arc::clone(service)));
        }
    }

    /// An address leads to a Service no longer.
    pub(super) fn remove(&mut self, address: IpAddr, service: &ServiceName) {
        let left: Vec<_> = self.of(address).filter(|known| ***known != *service).cloned().collect();
        let mut left = left.into_iter();
        self.set_first(address, left.next());
        if left.len() == 0 {
            self.more.remove(&address);
        } else {
            self.more.insert(address, left.collect());
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
