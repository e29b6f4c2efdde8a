//! What the server needs from whatever holds the objects: reads at a revision, a history, conditional writes.

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
/// Reads answer from memory or from a local file and must not block for long.
pub trait Store: Send + Sync + 'static {
    /// The object under a key.
    ///
    /// # Errors
    /// [`StoreError::NotSynced`] when the store cannot know yet.
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError>;

    /// All objects of a resource (of one namespace), now.
    ///
    /// # Errors
    /// [`StoreError::NotSynced`] when the store cannot know yet: an empty list would be a lie.
    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError>;

    /// Looks at all objects of a resource (of one namespace), now, one after the other; gives the revision that this is a picture
    /// of. A store that reads from a file has one of them in memory at a time.
    ///
    /// # Errors
    /// As [`Self::list`]. Some may have been looked at then.
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
    /// [`StoreError::Expired`] when the history no longer reaches that far.
    fn list_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        revision: Revision,
    ) -> Result<Snapshot, StoreError>;

    /// Every change of a resource after a revision, in order, without gaps or repeats. A revision that is not reached
    /// yet is waited for.
    ///
    /// # Errors
    /// [`StoreError::Expired`] when the history no longer reaches that far. A store that may begin anew does not wait but
    /// answers [`StoreError::Unreached`]: whoever names such a revision knows another history.
    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError>;

    /// The newest revision. Every change up to it is visible in lists and in watches.
    fn revision(&self) -> Revision;

    /// Whether objects that are read are those that the store itself has in memory. Else every list that is not sent yet
    /// has copies of its own.
    fn shares_bodies(&self) -> bool {
        false
    }
}

/// A store that can be written to.
pub trait WriteStore: Store {
    /// Makes one conditional change. When it resolves, the change is as durable as the store makes it, and
    /// visible. The result is the new version; for a deletion, the last state with the deletion's revision.
    ///
    /// Dropping the future does not undo a change that was already accepted.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`], [`StoreError::NotFound`] or [`StoreError::Conflict`] when `expected`
    /// does not hold; [`StoreError::NotStored`] when the change cannot be made durable.
    fn commit(&self, mutation: Mutation) -> BoxFuture<'_, Result<Arc<Stored>, StoreError>>;

    /// The same on the account of a user, where users have shares of the store, and of the line for the disk.
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

/// A user's part of what may be in line for the disk. A store that has such a line keeps it for as long as the change is there, whatever
/// becomes of the request.
pub type InLine = Option<OwnedSemaphorePermit>;

/// A change to make.
#[derive(Debug, Clone)]
pub struct Mutation {
    /// Which object.
    pub key: ObjectKey,
    /// What must be there for the change to be made.
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
    /// Whatever is stored.
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
