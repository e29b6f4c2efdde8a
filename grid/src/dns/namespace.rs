//! The Services of one namespace with their slices.

use std::collections::{BTreeSet, HashMap};

use core::net::IpAddr;

use super::records::{Service, Slice, Target};

/// The Services of one namespace, and the Service of each slice.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    /// Whether the Namespace object exists; Services may be known before it.
    pub(super) exists: bool,
    services: HashMap<Box<str>, Entry>,
    /// The Service of each slice.
    slices: HashMap<Box<str>, Box<str>>,
}

/// A Service and its slices; slices may be known before the Service.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) service: Option<Service>,
    /// Ordered by name; a Service has few.
    slices: Vec<(Box<str>, Slice)>,
}

impl Entry {
    /// Its slices, ordered by name.
    pub(super) fn slices(&self) -> impl Iterator<Item = &Slice> + Clone {
        self.slices.iter().map(|(_, slice)| slice)
    }

    /// Sets a slice, or removes it.
    pub(super) fn set_slice(&mut self, name: &str, slice: Option<Slice>) {
        let found = self.slices.binary_search_by(|(known, _)| (**known).cmp(name));
        match (found, slice) {
            (Ok(at), Some(slice)) => self.slices[at].1 = slice,
            (Ok(at), None) => drop(self.slices.remove(at)),
            (Err(at), Some(slice)) => {
                self.slices.reserve_exact(1);
                self.slices.insert(at, (name.into(), slice));
            }
            (Err(_), None) => {}
        }
    }

    /// All addresses that lead back to the Service.
    pub(super) fn addresses(&self) -> BTreeSet<IpAddr> {
        let own = match &self.service {
            Some(Service { target: Target::Cluster(addresses), .. }) => &**addresses,
            _ => &[],
        };
        let endpoints = self.slices().flat_map(|slice| slice.endpoints.iter());
        own.iter().copied().chain(endpoints.map(|endpoint| endpoint.address)).collect()
    }
}

impl Namespace {
    /// A Service with its name.
    pub(super) fn named_entry(&self, service: &str) -> Option<(&str, &Entry)> {
        self.services.get_key_value(service).map(|(name, entry)| (&**name, entry))
    }

    /// Changes one Service; returns its addresses before and after.
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

    /// Records the Service of a slice; returns the previous one.
    pub(super) fn assign(&mut self, slice: &str, service: Option<&str>) -> Option<Box<str>> {
        match service {
            Some(service) => self.slices.insert(slice.into(), service.into()),
            None => self.slices.remove(slice),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.exists && self.services.is_empty() && self.slices.is_empty()
    }

    /// Whether there is nothing besides the Namespace object.
    #[cfg(test)]
    pub(super) fn is_bare(&self) -> bool {
        self.services.is_empty() && self.slices.is_empty()
    }
}
