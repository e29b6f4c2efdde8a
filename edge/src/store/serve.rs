//! Serves the pushed set to the local API.

use std::sync::Arc;

use tombolo_apicore::history::ChangeStream;
use tombolo_apicore::store::{Revision, Snapshot, Store as ServedStore, StoreError, Stored};
use tombolo_proto::ids::SubscriptionId;
use tombolo_proto::object::{ObjectKey, Resource};
use tombolo_proto::references;

use super::error::ReadError;
use super::view::{CommittedView, Found};
use super::{Store, is_core, is_pod, is_pushed};

impl Store {
    pub(super) fn reading<T>(
        &self,
        read: impl FnOnce(&CommittedView) -> Result<T, ReadError>,
    ) -> Result<T, StoreError> {
        self.read(read).map_err(|error| StoreError::Unavailable { reason: error.to_string() })
    }
}

impl ServedStore for Store {
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        let (found, known) =
            self.reading(|view| Ok((view.find_in(SubscriptionId::NODE, key)?, known(view, key.resource()))))?;
        match found {
            Found::Visible(object) => Ok(Some(object)),
            Found::Absent => Ok(None),
            Found::Hidden => Err(not_synced(format!("{key} waits for an object that it refers to"))),
            Found::Unreadable => Err(not_synced(why_unreadable(key))),
            // No API server can have an object with such a name, so there is no need to ask the cloud.
            Found::Unknown if references::is_never_there(key) => Ok(None),
            Found::Unknown => {
                known?;
                // All pods of this node are here, but only those objects of other resources that this node needs.
                if is_pod(key.resource()) {
                    return Ok(None);
                }
                Err(not_synced(format!("{key} is not on this node, which holds only what its pods refer to")))
            }
        }
    }

    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError> {
        self.subscribed(SubscriptionId::NODE).list(resource, namespace)
    }

    fn list_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        revision: Revision,
    ) -> Result<Snapshot, StoreError> {
        self.subscribed(SubscriptionId::NODE).list_at(resource, namespace, revision)
    }

    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError> {
        self.subscribed(SubscriptionId::NODE).watch(resource, since)
    }

    fn revision(&self) -> Revision {
        self.local_revision()
    }
}

/// Whether the pushed set can answer for a resource: an error is better than a wrong empty list.
pub(super) fn known(view: &CommittedView, resource: &Resource) -> Result<(), StoreError> {
    if !is_pushed(resource) {
        let what = if is_core(resource) { &*resource.name } else { &resource.to_string() };
        return Err(not_synced(format!("{what} are not synced to this node")));
    }
    if view.subscriptions.get(&SubscriptionId::NODE.0).is_some_and(|row| row.synced) {
        return Ok(());
    }
    Err(not_synced("this node has not heard from the cloud yet".to_owned()))
}

/// The reason why an object that a pod here refers to is unknown.
pub(crate) fn why_unreadable(key: &ObjectKey) -> String {
    format!(
        "the cloud may not read {key}, or fails to, so it is not on this node: cloudcore's log has the reason"
    )
}

pub(super) fn not_synced(reason: String) -> StoreError {
    StoreError::NotSynced { reason }
}
