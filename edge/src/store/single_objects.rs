//! Kept answers to requests for single objects. They are served while the cloud is unreachable; otherwise the cloud is
//! always asked.

use std::sync::Arc;

use tombolo_apicore::history::ChangeStream;
use tombolo_apicore::store::{Revision, Snapshot, Store as ServedStore, StoreError, Stored};
use tombolo_proto::ids::SubscriptionId;
use tombolo_proto::object::{ObjectKey, Resource};

use super::error::ReadError;
use super::row::SINGLE_OBJECTS;
use super::serve::not_synced;
use super::view::Found;
use super::{Store, WriteError, writer};

impl Store {
    /// Keeps the answer that there is no such object.
    ///
    /// # Errors
    /// [`WriteError`] when it could not be written.
    pub async fn keep_absent(&self, key: &ObjectKey) -> Result<(), WriteError> {
        self.run(writer::Command::KeepAbsent(key.clone())).await.map(drop)
    }

    /// Deletes the kept answer about an object.
    ///
    /// # Errors
    /// [`WriteError`] when that could not be written.
    pub async fn forget(&self, key: &ObjectKey) -> Result<(), WriteError> {
        self.run(writer::Command::Forget(key.clone())).await.map(drop)
    }

    /// Whether an answer about this object is kept, including the answer that it does not exist.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn is_kept(&self, key: &ObjectKey) -> Result<bool, ReadError> {
        self.read(|view| Ok(view.find_in(SINGLE_OBJECTS, key)? != Found::Unknown))
    }

    /// Whether the pushed set can answer for this object, also if it is hidden or known not to exist.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub(crate) fn is_delivered(&self, key: &ObjectKey) -> Result<bool, ReadError> {
        self.read(|view| {
            Ok(!matches!(view.find_in(SubscriptionId::NODE, key)?, Found::Unknown | Found::Unreadable))
        })
    }

    /// Whether a pod here refers to this object and the cloud cannot read it.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub(crate) fn is_unreadable(&self, key: &ObjectKey) -> Result<bool, ReadError> {
        self.read(|view| Ok(view.find_in(SubscriptionId::NODE, key)? == Found::Unreadable))
    }

    /// The kept answers as a store, from which only single objects can be read.
    pub(crate) fn single_objects(&self) -> SingleObjects {
        SingleObjects(self.clone())
    }
}

/// The kept answers as a store.
#[derive(Debug, Clone)]
pub(crate) struct SingleObjects(Store);

impl SingleObjects {
    fn no_list<T>(resource: &Resource) -> Result<T, StoreError> {
        Err(not_synced(format!("only single objects of {} are known here", resource.name)))
    }
}

impl ServedStore for SingleObjects {
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        match self.0.reading(|view| view.find_in(SINGLE_OBJECTS, key))? {
            Found::Visible(object) => Ok(Some(object)),
            Found::Absent => Ok(None),
            Found::Hidden | Found::Unreadable | Found::Unknown => {
                Err(not_synced(format!("{key} was never requested on this node")))
            }
        }
    }

    fn list(&self, resource: &Resource, _: Option<&str>) -> Result<Snapshot, StoreError> {
        Self::no_list(resource)
    }

    fn list_at(&self, resource: &Resource, _: Option<&str>, _: Revision) -> Result<Snapshot, StoreError> {
        Self::no_list(resource)
    }

    fn watch(&self, resource: &Resource, _: Revision) -> Result<ChangeStream, StoreError> {
        Self::no_list(resource)
    }

    fn revision(&self) -> Revision {
        self.0.local_revision()
    }
}
