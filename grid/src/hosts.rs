//! The hosts file with uniform names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use core::net::IpAddr;

use crate::syntax::is_dns_label;

#[cfg(test)]
mod tests;

/// Namespace and name of a StatefulSetGrid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GridName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// The names of one grid on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// The Service that governs the pods.
    pub service: String,
    /// Addresses by uniform name, without Service and domain.
    pub addresses: BTreeMap<String, BTreeSet<IpAddr>>,
}

/// All uniform names of a node, and the text of the file that publishes them.
///
/// Names are stored per grid, so that a change of one grid never affects another one's names. The writer of the file
/// changes a copy, and keeps the copy once the text is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    domain: String,
    grids: BTreeMap<GridName, Names>,
}

impl Hosts {
    /// An empty set of names in a cluster domain, for example `cluster.local`.
    #[must_use]
    pub fn new(domain: &str) -> Self {
        Self { domain: domain.trim_matches('.').to_owned(), grids: BTreeMap::new() }
    }

    /// Sets the names of one grid; none withdraws them. Returns whether that changes anything.
    pub fn set(&mut self, grid: GridName, names: Option<Names>) -> bool {
        let names = names.filter(|names| !names.addresses.is_empty());
        match names {
            Some(names) if self.grids.get(&grid) == Some(&names) => false,
            Some(names) => {
                self.grids.insert(grid, names);
                true
            }
            None => self.grids.remove(&grid).is_some(),
        }
    }

    /// Replaces all names. Returns whether that changes anything.
    pub fn replace(&mut self, grids: impl IntoIterator<Item = (GridName, Names)>) -> bool {
        let mut new = Self::new(&self.domain);
        for (grid, names) in grids {
            new.set(grid, Some(names));
        }
        let changed = *self != new;
        *self = new;
        changed
    }

    /// Whether there are no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.grids.is_empty()
    }

    /// The file's text: one `ADDRESS NAME` per line, ordered by name, then address. Equal names give equal text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = BTreeSet::new();
        for (name, addresses) in self.named() {
            lines.extend(addresses.iter().map(|address| (format!("{name}.{}", self.domain), *address)));
        }
        let mut text = String::new();
        for (name, address) in lines {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "{address} {name}");
        }
        text
    }

    /// Addresses by name below the domain, `NAME.SERVICE.NAMESPACE.svc`.
    #[must_use]
    pub fn below_domain(&self) -> HashMap<String, Box<[IpAddr]>> {
        let mut all: HashMap<String, BTreeSet<IpAddr>> = HashMap::new();
        for (name, addresses) in self.named() {
            all.entry(name).or_default().extend(addresses);
        }
        all.into_iter().map(|(name, addresses)| (name, addresses.into_iter().collect())).collect()
    }

    fn named(&self) -> impl Iterator<Item = (String, &BTreeSet<IpAddr>)> {
        // A text that is not a DNS name cannot be looked up, and must not end a line.
        let named = self
            .grids
            .iter()
            .filter(|(grid, names)| is_dns_label(&grid.namespace) && is_dns_label(&names.service));
        named.flat_map(|(GridName { namespace, .. }, Names { service, addresses })| {
            addresses.iter().map(move |(name, all)| (format!("{name}.{service}.{namespace}.svc"), all))
        })
    }
}
