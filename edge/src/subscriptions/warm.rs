//! The warm set: the cluster objects that kubelet, kube-proxy, CoreDNS and the parts of this agent need.

use std::sync::Arc;

use tombolo_apicore::history::ChangeStream;
use tombolo_apicore::store::{Revision, Snapshot, Store as ServedStore, StoreError, Stored};
use tombolo_proto::documents::WARM_SET;
use tombolo_proto::object::{ObjectKey, Resource};

use super::Subscriptions;
use crate::store::{Selection, Subscribed};

/// The selections that are always followed. The pushed set has the node's own Node.
pub(crate) fn warm_set() -> Vec<Selection> {
    WARM_SET
        .iter()
        .map(|(group, version, name)| Selection::all(Resource::new(group, version, name)))
        .collect()
}

/// Whole resources as one store with one history, which follows what is read: each resource has its own subscription,
/// one outside the warm set from its first read on, for as long as it is read.
#[derive(Debug, Clone)]
pub(crate) struct FollowingStore {
    subscriptions: Subscriptions,
}

impl FollowingStore {
    pub(super) fn new(subscriptions: Subscriptions) -> Self {
        Self { subscriptions }
    }

    /// The subscription of a resource, which is followed from now on.
    fn follow(&self, resource: &Resource) -> Result<Subscribed, StoreError> {
        let selection = Selection::all(resource.clone());
        if let Some(subscription) = self.subscriptions.registry.covering(&selection) {
            self.subscriptions.registry.demand(subscription, None);
            return Ok(self.subscriptions.store.subscribed(subscription));
        }
        self.subscriptions.registry.wish(selection);
        Err(StoreError::NotSynced { reason: format!("{} were never requested on this node", resource.name) })
    }
}

impl ServedStore for FollowingStore {
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        self.follow(key.resource())?.get(key)
    }

    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError> {
        self.follow(resource)?.list(resource, namespace)
    }

    fn each(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        look: &mut dyn FnMut(Arc<Stored>),
    ) -> Result<Revision, StoreError> {
        self.follow(resource)?.each(resource, namespace, look)
    }

    fn list_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        revision: Revision,
    ) -> Result<Snapshot, StoreError> {
        self.follow(resource)?.list_at(resource, namespace, revision)
    }

    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError> {
        self.follow(resource)?.watch(resource, since)
    }

    fn revision(&self) -> Revision {
        self.subscriptions.store.local_revision()
    }
}
