//! Cluster addresses and node ports of Services: which are free, and which are allocated but not stored yet.
//!
//! The store guarantees that no two Services get the same one ([`ServiceClaims`]). The reservations here, for Services
//! that are not stored yet, only avoid retries.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::Rng as _;
use serde_json::Value;
use tombolo_apicore::memory::Claims;
use tombolo_apicore::store::Stored;

use crate::error::EmbeddedError;
use crate::objects::{Objects, core, items, text};

/// Ports of Services of type `NodePort` and `LoadBalancer` (kube-apiserver's default).
pub(super) const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// How long an allocation that has not been stored keeps its address: longer than any write takes.
const RESERVATION: Duration = Duration::from_secs(30);

/// Random tries before the range is searched in order.
const RANDOM_TRIES: usize = 16;

/// A range of IPv4 addresses for Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServiceRange {
    first: u32,
    count: u32,
}

impl ServiceRange {
    /// Parses `ADDRESS/BITS`. The range must have 8 to 65,536 addresses.
    ///
    /// # Errors
    /// [`EmbeddedError::Option`] for anything else.
    pub(crate) fn parse(text: &str) -> Result<Self, EmbeddedError> {
        let parse = || {
            let (address, bits) = text.split_once('/')?;
            let (address, bits): (Ipv4Addr, u32) = (address.parse().ok()?, bits.parse().ok()?);
            if !(16..=29).contains(&bits) {
                return None;
            }
            let mask = u32::MAX << (32 - bits);
            Some(Self { first: u32::from(address) & mask, count: 1 << (32 - bits) })
        };
        parse().ok_or_else(|| EmbeddedError::Option {
            option: "service range",
            message: format!("{text:?} is not an IPv4 range like 10.0.0.0/16 with a prefix of 16 to 29 bits"),
        })
    }

    /// The address of the `kubernetes` Service: the first usable one.
    pub(crate) fn kubernetes(self) -> Ipv4Addr {
        Ipv4Addr::from(self.first + 1)
    }

    /// Whether an address is usable. The range's own address and its broadcast address are not.
    fn contains(self, address: Ipv4Addr) -> bool {
        let offset = u32::from(address).wrapping_sub(self.first);
        offset >= 1 && offset < self.count - 1
    }

    fn at(self, offset: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.first + 1 + offset % (self.count - 2))
    }

    fn usable(self) -> u32 {
        self.count - 2
    }
}

/// Allocates addresses and node ports. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Addresses {
    objects: Objects,
    range: ServiceRange,
    reservations: Reservations,
}

/// Addresses and ports that are allocated but not stored yet. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reservations(Arc<Mutex<Reserved>>);

impl Reservations {
    /// Drops the reservations of a Service that was stored: the store now knows what it uses.
    pub(crate) fn stored(&self, service: &Value) {
        let mut reserved = self.0.lock();
        if let Some(address) = address_of(service) {
            reserved.addresses.remove(&address);
        }
        for port in ports_of(service) {
            reserved.ports.remove(&port);
        }
    }
}

#[derive(Debug, Default)]
struct Reserved {
    addresses: HashMap<Ipv4Addr, Instant>,
    ports: HashMap<u16, Instant>,
}

/// Claims the addresses and node ports of Services: each belongs to one Service only.
pub(crate) struct ServiceClaims;

impl Claims for ServiceClaims {
    fn of(&self, object: &Stored) -> Vec<String> {
        let resource = object.key.resource();
        if (&*resource.group, &*resource.name) != ("", "services") {
            return Vec::new();
        }
        let service: Value = serde_json::from_slice(&object.body()).unwrap_or_default();
        let listed = items(&service, "/spec/clusterIPs").iter().filter_map(Value::as_str);
        let listed = listed.filter_map(|text| text.parse::<IpAddr>().ok());
        let addresses = listed.chain(address_of(&service).map(IpAddr::V4));
        let addresses = addresses.map(|address| format!("cluster address {address}"));
        addresses.chain(ports_of(&service).map(|port| format!("node port {port}"))).collect()
    }
}

/// The addresses and ports that Services use.
struct Used {
    addresses: HashSet<Ipv4Addr>,
    ports: HashSet<u16>,
}

impl Addresses {
    /// An allocator for one range.
    pub(crate) fn new(objects: Objects, range: ServiceRange, reservations: Reservations) -> Self {
        Self { objects, range, reservations }
    }

    /// An allocator with reservations of its own: it sees what is used, but its allocations do not affect other
    /// requests.
    pub(super) fn for_dry_run(&self) -> Self {
        Self { objects: self.objects.clone(), range: self.range, reservations: Reservations::default() }
    }

    /// Allocates a free address.
    fn any_address(&self) -> Result<Ipv4Addr, String> {
        let used = self.used();
        let mut reserved = self.reserved();
        let free = |address: &Ipv4Addr| {
            !used.addresses.contains(address) && !reserved.addresses.contains_key(address)
        };
        let mut random = rand::rng();
        let mut guesses =
            (0..RANDOM_TRIES).map(|_| self.range.at(random.random_range(0..self.range.usable())));
        let found =
            guesses.find(free).or_else(|| (0..self.range.usable()).map(|i| self.range.at(i)).find(free));
        let address = found.ok_or("the range of cluster addresses is full")?;
        reserved.addresses.insert(address, Instant::now());
        Ok(address)
    }

    /// Allocates this address.
    fn this_address(&self, address: Ipv4Addr) -> Result<(), String> {
        if !self.range.contains(address) {
            return Err("the provided network does not match the current range".into());
        }
        let mut reserved = self.reserved();
        if self.used().addresses.contains(&address) || reserved.addresses.contains_key(&address) {
            return Err("provided IP is already allocated".into());
        }
        reserved.addresses.insert(address, Instant::now());
        Ok(())
    }

    /// Allocates a free node port.
    fn any_port(&self) -> Result<u16, String> {
        let used = self.used();
        let mut reserved = self.reserved();
        let free = |port: &u16| !used.ports.contains(port) && !reserved.ports.contains_key(port);
        let mut random = rand::rng();
        let found = (0..RANDOM_TRIES).map(|_| random.random_range(NODE_PORTS)).find(free);
        let port =
            found.or_else(|| NODE_PORTS.clone().find(free)).ok_or("the range of node ports is full")?;
        reserved.ports.insert(port, Instant::now());
        Ok(port)
    }

    /// Allocates this node port.
    fn this_port(&self, port: u16) -> Result<(), String> {
        if !NODE_PORTS.contains(&port) {
            let (first, last) = (NODE_PORTS.start(), NODE_PORTS.end());
            return Err(format!(
                "provided port is not in the valid range. The range of valid ports is {first}-{last}"
            ));
        }
        let mut reserved = self.reserved();
        if self.used().ports.contains(&port) || reserved.ports.contains_key(&port) {
            return Err("provided port is already allocated".into());
        }
        reserved.ports.insert(port, Instant::now());
        Ok(())
    }

    /// Starts the allocations of one request.
    pub(super) fn grant(&self) -> Grant<'_> {
        Grant { from: self, addresses: Vec::new(), ports: Vec::new() }
    }

    /// Releases the reservations of a Service that will not be stored.
    pub(super) fn release(&self, service: &Value) {
        self.give_back(address_of(service), ports_of(service));
    }

    fn give_back(&self, addresses: impl IntoIterator<Item = Ipv4Addr>, ports: impl IntoIterator<Item = u16>) {
        let mut reserved = self.reserved();
        for address in addresses {
            reserved.addresses.remove(&address);
        }
        for port in ports {
            reserved.ports.remove(&port);
        }
    }

    fn reserved(&self) -> parking_lot::MutexGuard<'_, Reserved> {
        let mut reserved = self.reservations.0.lock();
        reserved.addresses.retain(|_, since| since.elapsed() < RESERVATION);
        reserved.ports.retain(|_, since| since.elapsed() < RESERVATION);
        reserved
    }

    fn used(&self) -> Used {
        let mut used = Used { addresses: HashSet::from([self.range.kubernetes()]), ports: HashSet::new() };
        for service in self.objects.list(&core("services"), None) {
            used.addresses.extend(address_of(&service.value));
            used.ports.extend(ports_of(&service.value));
        }
        used
    }
}

/// The allocations of one request. They are released on drop unless [`Self::keep`] is called.
pub(super) struct Grant<'a> {
    from: &'a Addresses,
    addresses: Vec<Ipv4Addr>,
    ports: Vec<u16>,
}

impl Grant<'_> {
    /// Allocates a free address.
    pub(super) fn any_address(&mut self) -> Result<Ipv4Addr, String> {
        let address = self.from.any_address()?;
        self.addresses.push(address);
        Ok(address)
    }

    /// Allocates this address.
    pub(super) fn this_address(&mut self, address: Ipv4Addr) -> Result<(), String> {
        self.from.this_address(address)?;
        self.addresses.push(address);
        Ok(())
    }

    /// Allocates a free node port.
    pub(super) fn any_port(&mut self) -> Result<u16, String> {
        let port = self.from.any_port()?;
        self.ports.push(port);
        Ok(port)
    }

    /// Allocates this node port.
    pub(super) fn this_port(&mut self, port: u16) -> Result<(), String> {
        self.from.this_port(port)?;
        self.ports.push(port);
        Ok(())
    }

    /// Keeps the reservations until the Service is stored or the request fails.
    pub(super) fn keep(mut self) {
        self.addresses.clear();
        self.ports.clear();
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        self.from.give_back(self.addresses.drain(..), self.ports.drain(..));
    }
}

/// A Service's node ports.
fn ports_of(service: &Value) -> impl Iterator<Item = u16> + '_ {
    let ports = items(service, "/spec/ports").iter().filter_map(|port| port_number(port, "nodePort"));
    ports.chain(service.get("spec").and_then(|spec| port_number(spec, "healthCheckNodePort")))
}

/// A Service's IPv4 cluster address.
pub(super) fn address_of(service: &Value) -> Option<Ipv4Addr> {
    text(service, "/spec/clusterIP").parse().ok()
}

/// A port number that is set and not zero.
pub(super) fn port_number(value: &Value, field: &str) -> Option<u16> {
    value
        .get(field)
        .and_then(Value::as_u64)
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port != 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;

    use super::*;

    #[test]
    fn ranges() {
        let range = ServiceRange::parse("10.0.0.9/29").unwrap();
        assert_eq!(range.kubernetes(), Ipv4Addr::new(10, 0, 0, 9));
        let inside: Vec<bool> = (8..16).map(|last| range.contains(Ipv4Addr::new(10, 0, 0, last))).collect();
        assert_eq!(inside, [false, true, true, true, true, true, true, false]);
        for bad in ["", "10.0.0.0", "10.0.0.0/8", "10.0.0.0/30", "fd00::/112", "x/16"] {
            assert!(ServiceRange::parse(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_small_range_is_used_up_without_repeats() {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let stored =
            json!({"metadata": {"namespace": "default", "name": "s"}, "spec": {"clusterIP": "10.0.0.2"}});
        objects.create(core("services"), stored).await.unwrap();
        let addresses =
            Addresses::new(objects, ServiceRange::parse("10.0.0.0/29").unwrap(), Reservations::default());
        let mut given: Vec<u8> = (0..4).map(|_| addresses.any_address().unwrap().octets()[3]).collect();
        given.sort_unstable();
        assert_eq!(given, [3, 4, 5, 6], "1 is the server's own, 2 is stored");
        assert!(addresses.any_address().is_err());
        assert!(
            addresses.this_address(Ipv4Addr::new(10, 0, 0, 2)).unwrap_err().contains("already allocated")
        );
        assert!(addresses.this_address(Ipv4Addr::new(10, 0, 1, 2)).is_err());
    }

    #[test]
    fn node_ports_are_in_range_and_unique() {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let addresses =
            Addresses::new(objects, ServiceRange::parse("10.0.0.0/24").unwrap(), Reservations::default());
        assert!(addresses.this_port(80).unwrap_err().contains("30000-32767"));
        addresses.this_port(30_080).unwrap();
        assert!(addresses.this_port(30_080).is_err());
        assert!(NODE_PORTS.contains(&addresses.any_port().unwrap()));
    }
}
