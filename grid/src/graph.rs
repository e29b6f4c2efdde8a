//! Determines which objects a change affects: Services, the objects that carry their endpoints, and nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::endpoints::{Link, ServiceName};
use crate::node::{Node, Nodes};
use crate::prune::{Units, Verdict};
use crate::reach::Reach;

#[cfg(test)]
mod tests;

/// What is known about Services, their endpoints and nodes, as seen from one node. `C` identifies an object that
/// carries endpoints. Its size is that of the cluster: input from peers is bounded where it is stored.
#[derive(Debug, Clone)]
pub struct Graph<C> {
    me: String,
    nodes: Nodes,
    services: BTreeMap<ServiceName, Reach>,
    links: BTreeMap<C, Link>,
    by_service: BTreeMap<ServiceName, BTreeSet<C>>,
}

impl<C: Ord + Clone> Graph<C> {
    /// An empty graph. `me` is the name of this node's Node object.
    #[must_use]
    pub fn new(me: &str) -> Self {
        Self {
            me: me.to_owned(),
            nodes: Nodes::new(),
            services: BTreeMap::new(),
            links: BTreeMap::new(),
            by_service: BTreeMap::new(),
        }
    }

    /// Sets a node, or removes it. Returns the objects that may look different now: those of Services that are closed
    /// by a key whose unit has changed, and that have an endpoint on the node; all of these Services' objects when it
    /// is this node.
    pub fn set_node(&mut self, name: &str, node: Option<Node>) -> Vec<C> {
        let old = self.nodes.get(name);
        if old == node.as_ref() {
            return Vec::new();
        }
        let voted = |node: Option<&Node>| node.is_some_and(|node| node.unhealthy) && name != self.me;
        let vote_changed = voted(old) != voted(node.as_ref());
        let has_moved = |key: &&str| {
            let units = [old, node.as_ref()].map(|node| node.and_then(|node| node.unit(key)));
            units[0] != units[1] || (vote_changed && units[1].is_some())
        };
        let labels = old.into_iter().chain(node.as_ref()).flat_map(|node| node.labels.keys());
        let moved: BTreeSet<&str> = labels.map(String::as_str).filter(has_moved).collect();
        let closed = self.services.iter().filter(|(_, reach)| match reach {
            Reach::Units(keys) => keys.iter().any(|key| moved.contains(key)),
            Reach::Everywhere | Reach::Nowhere => false,
        });
        let carriers = closed.filter_map(|(service, _)| self.by_service.get(service)).flatten();
        let touched = |carrier: &&C| {
            name == self.me || self.links.get(*carrier).is_some_and(|link| link.mentions(name))
        };
        let affected = carriers.filter(touched).cloned().collect();
        match node {
            Some(node) => self.nodes.insert(name.to_owned(), node),
            None => self.nodes.remove(name),
        };
        affected
    }

    /// Sets a Service, or removes it. Returns the objects that may look different now: its own, when its reach has
    /// changed.
    pub fn set_service(&mut self, service: ServiceName, reach: Option<Reach>) -> Vec<C> {
        if self.services.get(&service) == reach.as_ref() {
            return Vec::new();
        }
        let affected = self.by_service.get(&service).into_iter().flatten().cloned().collect();
        match reach {
            Some(reach) => self.services.insert(service, reach),
            None => self.services.remove(&service),
        };
        affected
    }

    /// Sets the references of an object with endpoints, or removes the object. No other object is affected.
    pub fn set_link(&mut self, carrier: C, link: Option<Link>) {
        let service = link.as_ref().and_then(|link| link.service.clone());
        let old = match link {
            Some(link) => self.links.insert(carrier.clone(), link),
            None => self.links.remove(&carrier),
        };
        let old = old.and_then(|link| link.service);
        if old == service {
            return;
        }
        if let Some(old) = old
            && let Some(carriers) = self.by_service.get_mut(&old)
        {
            carriers.remove(&carrier);
            if carriers.is_empty() {
                self.by_service.remove(&old);
            }
        }
        if let Some(service) = service {
            self.by_service.entry(service).or_default().insert(carrier);
        }
    }

    /// Objects that have an endpoint on a node.
    pub fn mentioning(&self, node: &str) -> impl Iterator<Item = &C> {
        self.links.iter().filter(move |(_, link)| link.mentions(node)).map(|(carrier, _)| carrier)
    }

    /// What this node sees of an object that refers to `link`.
    #[must_use]
    pub fn verdict(&self, link: &Link) -> Verdict<'_> {
        let Some(service) = &link.service else { return Verdict::Whole };
        match self.services.get(service) {
            None | Some(Reach::Nowhere) => Verdict::Nothing,
            Some(Reach::Everywhere) => Verdict::Whole,
            Some(Reach::Units(keys)) => Verdict::Units(Units::new(keys, &self.me, &self.nodes)),
        }
    }

    /// Names of the known nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    /// The known Services, and which endpoints of them may be used.
    pub fn services(&self) -> impl Iterator<Item = (&ServiceName, &Reach)> {
        self.services.iter()
    }
}
