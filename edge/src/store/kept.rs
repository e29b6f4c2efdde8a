//! Single objects that the cloud was asked for: the answers are kept, so that they can be given when the cloud is away. The
//! answer to a question is always the cloud's while it can be asked.

use std::sync::Arc;

use tombolo_apicore::history::ChangeStream;
use tombolo_apicore::store::{Revision, Snapshot, Store as ServedStore, StoreError, Stored};
use tombolo_proto::ids::ScopeId;
use tombolo_proto::object::{ObjectKey, Resource};

use super::error::ReadError;
use super::serve::not_synced;
use super::view::Found;
use super::{Store, WriteError, writer};

/// The scope of what was asked for one by one. No session follows it.
pub(super) const SCOPE: ScopeId = ScopeId(u32::MAX);

/// Answers that are kept, at most; what was asked for longest ago goes first.
pub const OBJECTS_MAX: u64 = 512;

/// Events that are kept, at most, beside [`OBJECTS_MAX`].
pub const EVENTS_MAX: u64 = 128;

/// Bytes of kept answers, at most; as many again for events.
pub const BYTES_MAX: u64 = 8 * 1024 * 1024;

impl Store {
    /// Keeps the answer that there is no such object.
    ///
    /// # Errors
    /// [`WriteError`] when it could not be written.
    pub async fn keep_absent(&self, key: &ObjectKey) -> Result<(), WriteError> {
        self.run(writer::Command::KeepAbsent(key.clone())).await.map(drop)
    }

    /// Forgets what was answered about an object.
    ///
    /// # Errors
    /// [`WriteError`] when that could not be written.
    pub async fn forget(&self, key: &ObjectKey) -> Result<(), WriteError> {
        self.run(writer::Command::Forget(key.clone())).await.map(drop)
    }

    /// Whether an answer about this object is kept, also that there is none.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn is_kept(&self, key: &ObjectKey) -> Result<bool, ReadError> {
        self.read(|view| Ok(view.find_in(SCOPE, key)? != Found::Unknown))
    }

    /// Whether the pushed set answers for this object, if only that it waits for what it refers to.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub(crate) fn is_delivered(&self, key: &ObjectKey) -> Result<bool, ReadError> {
        self.read(|view| Ok(!matches!(view.find_in(ScopeId::NODE, key)?, Found::Unknown | Found::Unreadable)))
    }

    /// Whether a pod here refers to this object, and the cloud has said that it cannot read it.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub(crate) fn is_unreadable(&self, key: &ObjectKey) -> Result<bool, ReadError> {
        self.read(|view| Ok(view.find_in(ScopeId::NODE, key)? == Found::Unreadable))
    }

    /// The kept answers as a store: only single objects can be read from it.
    pub(crate) fn singles(&self) -> Singles {
        Singles(self.clone())
    }
}

/// See [`Store::singles`].
#[derive(Debug, Clone)]
pub(crate) struct Singles(Store);

impl Singles {
    fn no_list<T>(resource: &Resource) -> Result<T, StoreError> {
        Err(not_synced(format!("of {} only single objects are known here", resource.name)))
    }
}

impl ServedStore for Singles {
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        match self.0.reading(|view| view.find_in(SCOPE, key))? {
            Found::Visible(object) => Ok(Some(object)),
            Found::Absent => Ok(None),
            Found::Hidden | Found::Unreadable | Found::Unknown => {
                Err(not_synced(format!("{key} was never asked for here")))
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
