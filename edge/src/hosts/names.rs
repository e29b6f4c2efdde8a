//! Computes uniform names from objects.
//!
//! Of the objects, only the data that names need is kept: grids, the units of nodes, and which slices belong to the
//! Services that govern pods of this node's units. So the cost of a change depends on what it affects.
//!
//! The graph of the wrapper ([`tombolo_grid::Graph`]) also has nodes and slices, but it exists only for the wrapper or
//! the DNS server, and leaves out namespaces that are too large for it. The names work with `dns.hostsPath` alone too
//! and include all namespaces, and without a StatefulSetGrid nothing else is read or kept for them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tokio::sync::watch;
use tombolo_apicore::history::{Change, ChangeKind};
use tombolo_apicore::store::{Store, StoreError, Stored};
use tombolo_grid::endpoints::service_of;
use tombolo_grid::{
    Carrier, GridName, Names, Node, Nodes, ObjectMetadata, OwnPods, PodAddress, ServiceName, StatefulSetGrid,
    pod_addresses,
};
use tombolo_proto::object::ObjectKey;
use tracing::debug;

use super::inputs::{Affected, Happened, NameInputKind};

/// The objects, as this node sees them.
pub(super) struct NameSource {
    store: Arc<dyn Store>,
    me: String,
    /// The pods of this node.
    pods: watch::Receiver<Arc<OwnPods>>,
    /// The inputs of names; none until all of them were read.
    known: Option<NameInputs>,
}

/// The inputs of names.
#[derive(Default)]
struct NameInputs {
    grids: BTreeMap<GridName, StatefulSetGrid>,
    /// Only labels whose keys are those of grids.
    nodes: Nodes,
    /// The slices of each Service that governs pods of this node's units.
    slices: HashMap<ServiceName, BTreeSet<ObjectKey>>,
}

impl NameSource {
    pub(super) fn new(store: Arc<dyn Store>, me: String, pods: watch::Receiver<Arc<OwnPods>>) -> Self {
        Self { store, me, pods, known: None }
    }

    /// Waits until the addresses of this node's pods change, and returns the affected names. Cancel-safe.
    pub(super) async fn moved(&mut self) -> Affected {
        if self.pods.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        let grids = self.known.iter().flat_map(|known| known.grids.keys());
        Affected::Grids(grids.cloned().collect())
    }

    /// Whether all inputs were read.
    pub(super) fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// Applies an event, and returns the names that may have changed.
    pub(super) fn take(&mut self, happened: Happened) -> Affected {
        let Happened::Changed(part, changes) = happened else { return Affected::Everything };
        let Some(known) = &mut self.known else { return Affected::Everything };
        let mut affected = Affected::nothing();
        for change in &changes {
            affected.join(match part {
                NameInputKind::Grids => known.take_grid(&self.me, change),
                // Without a grid there are no names, whatever else changes.
                _ if known.grids.is_empty() => Affected::nothing(),
                NameInputKind::Nodes => known.take_node(&self.me, change),
                NameInputKind::Services => {
                    Affected::Grids(known.governed_by(&service_name(&change.object.key)))
                }
                NameInputKind::Slices => known.take_slice(change),
            });
        }
        affected
    }

    /// Reads everything again, and returns the names of all grids.
    ///
    /// # Errors
    /// [`StoreError`] when an input is not known here, for example this node's labels.
    pub(super) fn all(&mut self) -> Result<Vec<(GridName, Names)>, StoreError> {
        self.known = None;
        let known = self.read()?;
        let names = known.grids.keys().map(|grid| Ok((grid.clone(), self.names(&known, grid)?)));
        let names: Vec<(GridName, Option<Names>)> = names.collect::<Result<_, StoreError>>()?;
        self.known = Some(known);
        Ok(names.into_iter().filter_map(|(grid, names)| Some((grid, names?))).collect())
    }

    /// The names of these grids; none for a grid that no longer exists.
    ///
    /// # Errors
    /// As [`Self::all`].
    pub(super) fn of(
        &self,
        grids: &BTreeSet<GridName>,
    ) -> Result<Vec<(GridName, Option<Names>)>, StoreError> {
        let Some(known) = &self.known else { return Ok(Vec::new()) };
        grids.iter().map(|grid| Ok((grid.clone(), self.names(known, grid)?))).collect()
    }

    fn names(&self, known: &NameInputs, name: &GridName) -> Result<Option<Names>, StoreError> {
        let Some(grid) = known.grids.get(name) else { return Ok(None) };
        let Some(governing) = service_of_grid(grid) else { return Ok(None) };
        let key = ObjectKey::new(NameInputKind::Services.resource(), &governing.namespace, &governing.name);
        let service = self.store.get(&key)?.and_then(|service| read(&service, ObjectMetadata::of));
        let own = Arc::clone(&self.pods.borrow());
        let addresses = |body: &[u8]| pod_addresses(&own.relocate(Carrier::EndpointSlice, body)?);
        let mut pods: Vec<PodAddress> = Vec::new();
        for slice in known.slices.get(&governing).into_iter().flatten() {
            let slice = self.store.get(slice)?;
            pods.extend(slice.and_then(|slice| read(&slice, addresses)).into_iter().flatten());
        }
        Ok(grid.names(&self.me, &known.nodes, service.as_ref(), &pods))
    }

    fn has_grids(&self) -> Result<bool, StoreError> {
        let mut any = false;
        let readable = |grid: &Stored| read(grid, |body| StatefulSetGrid::of(body, |_| None)).is_some();
        self.store
            .each(&NameInputKind::Grids.resource(), None, &mut |grid| any |= !any && readable(&grid))?;
        Ok(any)
    }

    /// Reads all inputs. Without grids it reads nothing else.
    fn read(&self) -> Result<NameInputs, StoreError> {
        let mut known = NameInputs::default();
        if !self.has_grids()? {
            return Ok(known);
        }
        let own = ObjectKey::new(NameInputKind::Nodes.resource(), "", &self.me);
        let own = self.store.get(&own)?.and_then(|node| read(&node, Node::of));
        let Some(own) = own else {
            return Err(StoreError::NotSynced { reason: format!("the Node {} is not known here", self.me) });
        };
        // Objects are read one at a time: little is kept, but all objects together may be large.
        self.store.each(&NameInputKind::Grids.resource(), None, &mut |grid| {
            if let Some(grid) = read(&grid, |body| StatefulSetGrid::of(body, |key| own.unit(key))) {
                known.grids.insert(grid.name.clone(), grid);
            }
        })?;
        let keys: BTreeSet<&str> = known.grids.values().map(StatefulSetGrid::key).collect();
        self.store.each(&NameInputKind::Nodes.resource(), None, &mut |node| {
            if let Some(units) = units(&self.me, &node, |key| keys.contains(key)) {
                known.nodes.insert(node.key.name().to_owned(), units);
            }
        })?;
        let services = known.grids.values().filter_map(service_of_grid);
        known.slices = services.map(|service| (service, BTreeSet::new())).collect();
        let namespaces: BTreeSet<String> =
            known.slices.keys().map(|service| service.namespace.clone()).collect();
        for namespace in namespaces {
            self.store.each(&NameInputKind::Slices.resource(), Some(&namespace), &mut |slice| {
                if let Some(slices) = governing(&slice).and_then(|service| known.slices.get_mut(&service)) {
                    slices.insert(slice.key.clone());
                }
            })?;
        }
        Ok(known)
    }
}

impl NameInputs {
    fn unit(&self, me: &str, key: &str) -> Option<&str> {
        self.nodes.get(me)?.unit(key)
    }

    fn governed_by(&self, service: &ServiceName) -> BTreeSet<GridName> {
        if !self.slices.contains_key(service) {
            return BTreeSet::new();
        }
        let governed = |grid: &&StatefulSetGrid| service_of_grid(grid).as_ref() == Some(service);
        self.grids.values().filter(governed).map(|grid| grid.name.clone()).collect()
    }

    /// Most changes of a grid concern its status and do not affect names.
    fn take_grid(&mut self, me: &str, change: &Change) -> Affected {
        let key = &change.object.key;
        let name = GridName { namespace: key.namespace().to_owned(), name: key.name().to_owned() };
        let grid = match change.kind {
            ChangeKind::Deleted => None,
            ChangeKind::Added | ChangeKind::Modified => {
                read(&change.object, |body| StatefulSetGrid::of(body, |key| self.unit(me, key)))
            }
        };
        let Some(grid) = grid else {
            return match self.grids.remove(&name) {
                Some(_) if self.grids.is_empty() => Affected::Everything,
                Some(_) => Affected::Grids(BTreeSet::from([name])),
                None => Affected::nothing(),
            };
        };
        let Some(old) = self.grids.get(&name) else { return Affected::Everything };
        if *old == grid {
            return Affected::nothing();
        }
        if old.key() != grid.key() || service_of_grid(old) != service_of_grid(&grid) {
            return Affected::Everything;
        }
        self.grids.insert(name.clone(), grid);
        Affected::Grids(BTreeSet::from([name]))
    }

    /// Nodes change all the time, but their units hardly ever.
    fn take_node(&mut self, me: &str, change: &Change) -> Affected {
        let name = change.object.key.name();
        let is_key = |key: &str| self.grids.values().any(|grid| grid.key() == key);
        let new = match change.kind {
            ChangeKind::Deleted => None,
            ChangeKind::Added | ChangeKind::Modified => units(me, &change.object, is_key),
        };
        if self.nodes.get(name) == new.as_ref() {
            return Affected::nothing();
        }
        if name == me {
            return Affected::Everything;
        }
        let old = match new.clone() {
            Some(new) => self.nodes.insert(name.to_owned(), new),
            None => self.nodes.remove(name),
        };
        let unit =
            |node: &Option<Node>, key: &str| node.as_ref().and_then(|node| node.unit(key)).map(str::to_owned);
        let moved = self.grids.values().filter(|grid| {
            let own = self.unit(me, grid.key());
            let units = [unit(&old, grid.key()), unit(&new, grid.key())];
            own.is_some() && units[0] != units[1] && units.iter().any(|unit| unit.as_deref() == own)
        });
        Affected::Grids(moved.map(|grid| grid.name.clone()).collect())
    }

    /// A slice that moves to another Service affects the old one too.
    fn take_slice(&mut self, change: &Change) -> Affected {
        let key = &change.object.key;
        if !self.slices.keys().any(|service| service.namespace == key.namespace()) {
            return Affected::nothing();
        }
        let mut services = BTreeSet::new();
        for (service, slices) in &mut self.slices {
            if slices.remove(key) {
                services.insert(service.clone());
            }
        }
        if change.kind != ChangeKind::Deleted
            && let Some(service) = governing(&change.object)
            && let Some(slices) = self.slices.get_mut(&service)
        {
            slices.insert(key.clone());
            services.insert(service);
        }
        Affected::Grids(services.iter().flat_map(|service| self.governed_by(service)).collect())
    }
}

/// The units of a node: its labels whose keys are those of grids. None for another node without such labels.
fn units(me: &str, node: &Stored, is_key: impl Fn(&str) -> bool) -> Option<Node> {
    let is_me = node.key.name() == me;
    let mut node = read(node, Node::of)?;
    node.labels.retain(|key, _| is_key(key));
    // Names of pods remain when their node was voted dead.
    node.unhealthy = false;
    Some(node).filter(|node| is_me || !node.labels.is_empty())
}

/// The Service of a slice.
fn governing(slice: &Stored) -> Option<ServiceName> {
    service_of(Carrier::EndpointSlice, &read(slice, ObjectMetadata::of)?)
}

fn service_name(key: &ObjectKey) -> ServiceName {
    ServiceName::new(key.namespace(), key.name())
}

/// The Service that governs the pods of a grid in this node's unit.
fn service_of_grid(grid: &StatefulSetGrid) -> Option<ServiceName> {
    Some(ServiceName::new(&grid.name.namespace, grid.service_name()?))
}

/// Parses an object; none when it is invalid.
fn read<T>(object: &Stored, read: impl Fn(&[u8]) -> Result<T, tombolo_grid::BodyError>) -> Option<T> {
    let result = read(&object.body());
    result
        .inspect_err(|error| debug!(key = %object.key, %error, "uniform names ignore an invalid object"))
        .ok()
}
