//! The interface between the server and a store: reads at a revision, a history, conditional writes.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};

use crate::history::ChangeStream;
pub use crate::revision::Revision;
pub use crate::store_error::StoreError;
pub use crate::stored::{Snapshot, Stored};

/// A readable store with a history.
///
/// Reads are answered from memory or from a local file and must not block for long.
pub trait Store: Send + Sync + 'static {
    /// The object under a key.
    ///
    /// # Errors
    /// [`StoreError::NotSynced`] when the store is not synced.
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError>;

    /// The current objects of a resource (in one namespace).
    ///
    /// # Errors
    /// [`StoreError::NotSynced`] when the store is not synced: an empty list would be wrong.
    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError>;

    /// Visits the current objects of a resource (in one namespace), one after the other, and returns their revision. A
    /// store that reads from a file has one of them in memory at a time.
    ///
    /// # Errors
    /// As [`Self::list`]. Some objects may already have been visited.
    fn each(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        look: &mut dyn FnMut(Arc<Stored>),
    ) -> Result<Revision, StoreError> {
        let snapshot = self.list(resource, namespace)?;
        snapshot.items.into_iter().for_each(look);
        Ok(snapshot.revision)
    }

    /// All objects of a resource (of one namespace) as they were at an earlier revision.
    ///
    /// # Errors
    /// [`StoreError::Expired`] when the history no longer includes it.
    fn list_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        revision: Revision,
    ) -> Result<Snapshot, StoreError>;

    /// Every change of a resource after a revision, in order, without gaps or repeats. A future revision is waited for.
    ///
    /// # Errors
    /// [`StoreError::Expired`] when the history no longer includes it. A store whose history may restart does not wait
    /// but returns [`StoreError::Unreached`]: a client with such a revision knows another history.
    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError>;

    /// The newest revision. Every change up to it is visible to lists and watches.
    fn revision(&self) -> Revision;

    /// Whether reads return the objects that the store itself has in memory. Otherwise every list that is not sent yet
    /// holds its own copies.
    fn shares_bodies(&self) -> bool {
        false
    }
}

/// A store that can be written to.
pub trait WriteStore: Store {
    /// Makes one conditional change. When it resolves, the change is visible, and as durable as the store makes it. The
    /// result is the new version; for a deletion, the last state with the deletion's revision.
    ///
    /// Dropping the future does not undo a change that was already accepted.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`], [`StoreError::NotFound`] or [`StoreError::Conflict`] when `expected`
    /// does not hold; [`StoreError::NotStored`] when the change cannot be made durable.
    fn commit(&self, mutation: Mutation) -> BoxFuture<'_, Result<Arc<Stored>, StoreError>>;

    /// Like [`Self::commit`], charged to a user who may have a share of the store, and with its permit for the disk
    /// queue.
    ///
    /// # Errors
    /// As [`Self::commit`], and [`StoreError::OverShare`].
    fn commit_for(
        &self,
        mutation: Mutation,
        user: &str,
        line: InLine,
    ) -> BoxFuture<'_, Result<Arc<Stored>, StoreError>> {
        let _ = (user, line);
        self.commit(mutation)
    }
}

/// A sender's permit for the queue of the disk. A store with such a queue keeps it until the change is made, even when
/// the request is cancelled.
pub type InLine = Option<OwnedSemaphorePermit>;

/// A change to make.
#[derive(Debug, Clone)]
pub struct Mutation {
    /// The key of the object.
    pub key: ObjectKey,
    /// The condition for the change.
    pub expected: Expect,
    /// The change.
    pub write: Write,
}

/// Condition of a [`Mutation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing is stored under the key.
    Absent,
    /// Exactly this version is stored.
    Revision(Revision),
    /// Something is stored.
    Present,
    /// Any state.
    Any,
}

/// The change that a [`Mutation`] makes.
#[derive(Debug, Clone)]
pub enum Write {
    /// Stores this JSON text; the store sets `metadata.resourceVersion`.
    Put {
        /// `metadata.uid` of the object.
        uid: Uid,
        /// JSON text of the object.
        body: Bytes,
    },
    /// Removes the object.
    Delete,
}
