//! The Services of one namespace with their slices.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use core::net::IpAddr;

use super::records::{Service, Slice, Target};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    /// Whether the object exists; Services may be known before it.
    pub(super) exists: bool,
    services: HashMap<Box<str>, Entry>,
    /// The Service of each slice.
    slices: HashMap<Box<str>, Box<str>>,
}

/// A Service and what belongs to it; slices may be known before it.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) service: Option<Service>,
    pub(super) slices: BTreeMap<Box<str>, Slice>,
}

impl Entry {
    /// All addresses that lead back to it.
    pub(super) fn addresses(&self) -> BTreeSet<IpAddr> {
        let own = match &self.service {
            Some(Service { target: Target::Cluster(addresses), .. }) => &**addresses,
            _ => &[],
        };
        let endpoints = self.slices.values().flat_map(|slice| slice.endpoints.iter());
        own.iter().copied().chain(endpoints.map(|endpoint| endpoint.address)).collect()
    }
}

impl Namespace {
    /// A Service with its name.
    pub(super) fn named_entry(&self, service: &str) -> Option<(&str, &Entry)> {
        self.services.get_key_value(service).map(|(name, entry)| (&**name, entry))
    }

    /// Changes one Service; gives its addresses before and after.
    pub(super) fn change(&mut self, service: &str, change: impl FnOnce(&mut Entry)) -> [BTreeSet<IpAddr>; 2] {
        let mut entry = self.services.remove(service).unwrap_or_default();
        let before = entry.addresses();
        change(&mut entry);
        let after = entry.addresses();
        if entry.service.is_some() || !entry.slices.is_empty() {
            self.services.insert(service.into(), entry);
        }
        [before, after]
    }

    /// Notes whose slice this is; gives whose it was.
    pub(super) fn assign(&mut self, slice: &str, service: Option<&str>) -> Option<Box<str>> {
        match service {
            Some(service) => self.slices.insert(slice.into(), service.into()),
            None => self.slices.remove(slice),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.exists && self.services.is_empty() && self.slices.is_empty()
    }

    /// Whether it has nothing but its object.
    #[cfg(test)]
    pub(super) fn is_bare(&self) -> bool {
        self.services.is_empty() && self.slices.is_empty()
    }
}
