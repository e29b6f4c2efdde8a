//! From objects to names.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tombolo_apiserve::store::{Store, StoreError, Stored};
use tombolo_grid::endpoints::service_of;
use tombolo_grid::{
    Carrier, GridName, Metadata, Names, Node, Nodes, OwnPods, PodAddress, ServiceName, StatefulSetGrid,
    pod_addresses,
};
use tombolo_proto::object::{ObjectKey, Resource};
use tracing::debug;

/// What decides about uniform names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Grids,
    Nodes,
    Services,
    Slices,
}

impl Part {
    pub(super) const ALL: [Self; 4] = [Self::Grids, Self::Nodes, Self::Services, Self::Slices];

    pub(super) fn resource(self) -> Resource {
        match self {
            Self::Grids => Resource::new("superedge.io", "v1", "statefulsetgrids"),
            Self::Nodes => Resource::new("", "v1", "nodes"),
            Self::Services => Resource::new("", "v1", "services"),
            Self::Slices => Resource::new("discovery.k8s.io", "v1", "endpointslices"),
        }
    }
}

/// The objects, as this node sees them.
pub(super) struct Source {
    pub(super) store: Arc<dyn Store>,
    pub(super) me: String,
    /// Of this node.
    pub(super) pods: watch::Receiver<Arc<OwnPods>>,
}

impl Source {
    /// Waits until pods of this node are elsewhere. Cancel-safe.
    pub(super) async fn moved(&mut self) {
        if self.pods.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The names of all grids.
    ///
    /// # Errors
    /// [`StoreError`] when something is not known here, this node's labels among it.
    pub(super) fn all(&self) -> Result<Vec<(GridName, Names)>, StoreError> {
        let nodes = self.nodes()?;
        let mut all = Vec::new();
        for grid in self.grids()? {
            if let Some(names) = self.names(&grid, &nodes)? {
                all.push((grid_name(&grid), names));
            }
        }
        Ok(all)
    }

    /// The names of the grids whose pods these Services govern here.
    ///
    /// # Errors
    /// As [`Self::all`].
    pub(super) fn governed_by(
        &self,
        services: &BTreeSet<ServiceName>,
    ) -> Result<Vec<(GridName, Option<Names>)>, StoreError> {
        let nodes = self.nodes()?;
        let mut found = Vec::new();
        for grid in self.grids()? {
            let Some(service) = self.service_of(&grid, &nodes) else { continue };
            if services.contains(&ServiceName::new(&grid.metadata.namespace, service)) {
                found.push((grid_name(&grid), self.names(&grid, &nodes)?));
            }
        }
        Ok(found)
    }

    fn names(&self, grid: &StatefulSetGrid, nodes: &Nodes) -> Result<Option<Names>, StoreError> {
        let Some(name) = self.service_of(grid, nodes) else { return Ok(None) };
        let namespace = &grid.metadata.namespace;
        let key = ObjectKey::new(Part::Services.resource(), namespace, name);
        let service = self.store.get(&key)?.and_then(|service| read(&service, Metadata::of));
        let pods = self.pods(namespace, name)?;
        Ok(grid.names(&self.me, nodes, service.as_ref(), &pods))
    }

    fn service_of<'g>(&self, grid: &'g StatefulSetGrid, nodes: &Nodes) -> Option<&'g str> {
        grid.service_name(nodes.get(&self.me)?.unit(grid.key())?)
    }

    fn pods(&self, namespace: &str, service: &str) -> Result<Vec<PodAddress>, StoreError> {
        let slices = self.store.list(&Part::Slices.resource(), Some(namespace))?;
        let of_service = |slice: &&Arc<Stored>| {
            let metadata = read(slice, Metadata::of);
            let named = metadata.and_then(|metadata| service_of(Carrier::EndpointSlice, &metadata));
            named.is_some_and(|named| named.name == service)
        };
        let own = Arc::clone(&self.pods.borrow());
        let addresses = |body: &[u8]| pod_addresses(&own.relocate(Carrier::EndpointSlice, body)?);
        let pods = slices.items.iter().filter(of_service).filter_map(|slice| read(slice, addresses));
        Ok(pods.flatten().collect())
    }

    fn grids(&self) -> Result<Vec<StatefulSetGrid>, StoreError> {
        let grids = self.store.list(&Part::Grids.resource(), None)?;
        Ok(grids.items.iter().filter_map(|grid| read(grid, StatefulSetGrid::of)).collect())
    }

    fn nodes(&self) -> Result<Nodes, StoreError> {
        let nodes = self.store.list(&Part::Nodes.resource(), None)?;
        let nodes: Nodes = nodes
            .items
            .iter()
            .filter_map(|node| Some((node.key.name().to_owned(), read(node, Node::of)?)))
            .collect();
        if nodes.contains_key(&self.me) {
            return Ok(nodes);
        }
        Err(StoreError::NotSynced { reason: format!("the Node {} is not known here", self.me) })
    }
}

fn grid_name(grid: &StatefulSetGrid) -> GridName {
    let Metadata { namespace, name, .. } = &grid.metadata;
    GridName { namespace: namespace.clone(), name: name.clone() }
}

/// What an object says; nothing when it cannot be read.
fn read<T>(object: &Stored, read: impl Fn(&[u8]) -> Result<T, tombolo_grid::BodyError>) -> Option<T> {
    let result = read(&object.body());
    result.inspect_err(|error| debug!(key = %object.key, %error, "an object says nothing about names")).ok()
}
