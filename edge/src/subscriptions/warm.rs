//! The warm set: what kubelet, kube-proxy, CoreDNS and the parts of this agent need of the cluster.

use std::sync::Arc;

use tombolo_apiserve::history::ChangeStream;
use tombolo_apiserve::store::{Revision, Snapshot, Store as ServedStore, StoreError, Stored};
use tombolo_proto::ids::ScopeId;
use tombolo_proto::object::{ObjectKey, Resource};

use crate::store::{Selection, Store};

/// Group, version and plural of each resource (design 9.13). The pushed set has the node's own Node.
const WARM: [(&str, &str, &str); 8] = [
    ("", "v1", "services"),
    ("discovery.k8s.io", "v1", "endpointslices"),
    ("", "v1", "nodes"),
    ("", "v1", "namespaces"),
    ("node.k8s.io", "v1", "runtimeclasses"),
    ("storage.k8s.io", "v1", "csidrivers"),
    ("storage.k8s.io", "v1", "csinodes"),
    ("networking.k8s.io", "v1", "servicecidrs"),
];

/// The selections that are always followed.
pub(crate) fn warm_set() -> Vec<Selection> {
    WARM.iter().map(|(group, version, name)| Selection::all(Resource::new(group, version, name))).collect()
}

/// The selections of the warm set as one store: one history, each resource in its own scope.
#[derive(Debug, Clone)]
pub(crate) struct WarmStore {
    store: Store,
    scopes: Arc<[(ScopeId, Selection)]>,
}

impl WarmStore {
    pub(super) fn new(store: Store, scopes: Vec<(ScopeId, Selection)>) -> Self {
        Self { store, scopes: scopes.into() }
    }

    fn part(&self, resource: &Resource) -> Result<impl ServedStore + use<>, StoreError> {
        let found = self.scopes.iter().find(|(_, selection)| selection.resource == *resource);
        let (scope, _) = found.ok_or_else(|| StoreError::NotSynced {
            reason: format!("{} are not among what every node follows", resource.name),
        })?;
        Ok(self.store.scoped(*scope))
    }
}

impl ServedStore for WarmStore {
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        self.part(key.resource())?.get(key)
    }

    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError> {
        self.part(resource)?.list(resource, namespace)
    }

    fn list_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        revision: Revision,
    ) -> Result<Snapshot, StoreError> {
        self.part(resource)?.list_at(resource, namespace, revision)
    }

    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError> {
        self.part(resource)?.watch(resource, since)
    }

    fn revision(&self) -> Revision {
        self.store.local_revision()
    }
}
