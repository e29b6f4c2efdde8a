//! The zone of the cluster domain: an index that answers queries, and the changes that maintain it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use core::net::IpAddr;

use super::named_addresses::{Asked, NamedAddresses};
use super::namespace::{Entry, Namespace};
use super::owners::Owners;
use super::records::{Endpoint, Service, Slice, Target};
use crate::endpoints::ServiceName;
use crate::hosts::Hosts;

/// The parts that must be known before a name can be reported as nonexistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Namespaces.
    Namespaces,
    /// Services.
    Services,
    /// EndpointSlices.
    Slices,
}

/// The names of the cluster domain.
#[derive(Debug, Default)]
pub struct Zone {
    namespaces: HashMap<Box<str>, Namespace>,
    owners: Owners,
    /// Addresses by name below the domain; none until they are first known.
    uniform: Option<HashMap<String, Box<[IpAddr]>>>,
    known: [bool; 3],
}

/// Result of looking up a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding<'z> {
    /// Not known: the objects that decide were never received here.
    Unknown,
    /// There is no such name.
    NoName,
    /// The name exists and has no records.
    Empty,
    /// The version of the specification, as text.
    Version,
    /// A Service that leads to another name.
    External(&'z str),
    /// Addresses, with ports; at least one.
    NamedAddresses(NamedAddresses<'z>),
    /// A uniform name.
    Uniform(&'z [IpAddr]),
    /// The name of a pod's address.
    Pod(IpAddr),
}

/// A name to which an address leads back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Label of the endpoint; none for the Service's own address.
    pub label: Option<String>,
    /// The Service.
    pub service: ServiceName,
}

/// Text of the name `dns-version` (Kubernetes specification of DNS-based service discovery).
pub const VERSION: &str = "1.1.0";

impl Zone {
    /// All objects of a part are known from now on.
    pub fn open(&mut self, part: Part) {
        self.known[part as usize] = true;
    }

    /// Whether every part has been known.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.known == [true; 3]
    }

    /// Sets whether a namespace exists.
    pub fn set_namespace(&mut self, name: &str, exists: bool) {
        self.namespace(name).exists = exists;
        self.tidy(name);
    }

    /// Sets a Service; none removes it.
    pub fn set_service(&mut self, name: &ServiceName, service: Option<Service>) {
        self.change(name, |entry| entry.service = service);
    }

    /// Sets a slice of a namespace and its Service; none when it was deleted or has no Service.
    pub fn set_slice(&mut self, namespace: &str, slice: &str, of: Option<(&str, Slice)>) {
        let before = self.namespace(namespace).assign(slice, of.as_ref().map(|(service, _)| *service));
        if let Some(before) = before.filter(|before| of.as_ref().is_none_or(|(now, _)| **before != **now)) {
            self.change(&ServiceName::new(namespace, &before), |entry| {
                entry.set_slice(slice, None);
            });
        }
        match of {
            Some((service, content)) => self.change(&ServiceName::new(namespace, service), |entry| {
                entry.set_slice(slice, Some(content));
            }),
            None => self.tidy(namespace),
        }
    }

    /// Sets the uniform names of this node's units.
    pub fn set_uniform(&mut self, hosts: &Hosts) {
        self.uniform = Some(hosts.below_domain());
    }

    fn namespace(&mut self, name: &str) -> &mut Namespace {
        self.namespaces.entry(name.into()).or_default()
    }

    /// Removes a namespace that is empty.
    fn tidy(&mut self, namespace: &str) {
        if self.namespaces.get(namespace).is_some_and(Namespace::is_empty) {
            self.namespaces.remove(namespace);
        }
    }

    fn change(&mut self, name: &ServiceName, change: impl FnOnce(&mut Entry)) {
        let namespace = self.namespace(&name.namespace);
        let [before, after] = namespace.change(&name.name, change);
        self.tidy(&name.namespace);
        if before != after {
            self.own(name, &before, &after);
        }
    }

    fn own(&mut self, name: &ServiceName, before: &BTreeSet<IpAddr>, after: &BTreeSet<IpAddr>) {
        let known = before.first().and_then(|address| self.owners.known(*address, name));
        let own = known.cloned().unwrap_or_else(|| Arc::new(name.clone()));
        for address in before.difference(after) {
            self.owners.remove(*address, name);
        }
        for address in after.difference(before) {
            self.owners.add(*address, &own);
        }
    }

    /// Whether no address leads anywhere and every namespace has only its object.
    #[cfg(test)]
    pub(super) fn is_bare(&self) -> bool {
        self.owners.is_empty() && self.namespaces.values().all(Namespace::is_bare)
    }

    /// Looks up a name below the cluster domain: lower case, labels separated by dots, empty for the domain itself.
    #[must_use]
    pub fn find<'z>(&'z self, name: &'z str) -> Finding<'z> {
        if let Some(addresses) = self.uniform.as_ref().and_then(|names| names.get(name)) {
            return Finding::Uniform(addresses);
        }
        let mut labels = name.rsplit('.');
        let (kind, namespace, service) = (labels.next().unwrap_or_default(), labels.next(), labels.next());
        match kind {
            "" => return Finding::Empty,
            "dns-version" if namespace.is_none() => return Finding::Version,
            "svc" | "pod" => {}
            _ => return Finding::NoName,
        }
        let Some(namespace) = namespace else { return Finding::Empty };
        if !self.is_known() {
            return Finding::Unknown;
        }
        let Some(namespace) = self.namespaces.get_key_value(namespace).filter(|(_, found)| found.exists)
        else {
            return Finding::NoName;
        };
        let Some(service) = service else { return Finding::Empty };
        let rest: Vec<&str> = labels.take(3).collect();
        let part = match *rest {
            [] => Asked::Service,
            [label] => Asked::Endpoint(label),
            [protocol, port] => Asked::Port {
                protocol: protocol.strip_prefix('_').unwrap_or(protocol),
                port: port.strip_prefix('_').unwrap_or(port),
            },
            _ => return Finding::NoName,
        };
        if kind == "pod" {
            return pod(service);
        }
        self.in_namespace((namespace.0, namespace.1), service, part)
    }

    fn in_namespace<'z>(
        &self,
        (name, namespace): (&'z str, &'z Namespace),
        service: &str,
        asked: Asked<'z>,
    ) -> Finding<'z> {
        let Some((entry_name, entry)) = namespace.named_entry(service) else { return Finding::NoName };
        let Some(object) = entry.service.as_ref() else { return Finding::NoName };
        let is_endpoint = matches!(asked, Asked::Endpoint(_));
        let own = match &object.target {
            Target::Nowhere => return Finding::NoName,
            Target::External(target) => {
                return if asked == Asked::Service { Finding::External(target) } else { Finding::NoName };
            }
            Target::Cluster(addresses) if !is_endpoint => Some((&*object.ports, &**addresses)),
            Target::Cluster(_) | Target::Headless => None,
        };
        if own.is_some_and(|(ports, own)| own.is_empty() && ports.iter().any(|port| asked.matches(port))) {
            return Finding::Empty;
        }
        let named_addresses = NamedAddresses::new((entry_name, name), own, entry, asked);
        if !named_addresses.is_empty() {
            return Finding::NamedAddresses(named_addresses);
        }
        // A pod of a grid may have this name, but the grids are not known here yet.
        let may_be_uniform = object.of_grid && is_endpoint;
        if may_be_uniform && self.uniform.is_none() { Finding::Unknown } else { Finding::NoName }
    }

    /// The names to which an address leads back, at most `max`: the Service that has the address, or else the
    /// endpoints that do.
    #[must_use]
    pub fn owners(&self, address: IpAddr, max: usize) -> Vec<Owner> {
        let entries = self.owners.of(address).filter_map(|name| {
            Some((name, self.namespaces.get(&*name.namespace)?.named_entry(&name.name)?.1))
        });
        let mut owners = Vec::new();
        for (name, entry) in entries {
            if let Some(Service { target: Target::Cluster(own), .. }) = entry.service.as_ref()
                && own.contains(&address)
            {
                return vec![Owner { label: None, service: (**name).clone() }];
            }
            for slice in entry.slices() {
                let here = slice.endpoints.iter().filter(|endpoint| endpoint.address == address);
                let owner =
                    |endpoint: &Endpoint| Owner { label: Some(endpoint.label()), service: (**name).clone() };
                owners.extend(here.take(max - owners.len()).map(owner));
            }
            if owners.len() == max {
                break;
            }
        }
        owners.dedup();
        owners
    }
}

/// The address in a pod's name. Whether such a pod exists is not checked, as with `pods insecure` of CoreDNS.
fn pod(name: &str) -> Finding<'static> {
    let is_v4 = name.matches('-').count() == 3 && !name.contains("--");
    let text = name.replace('-', if is_v4 { "." } else { ":" });
    text.parse().map_or(Finding::NoName, Finding::Pod)
}
