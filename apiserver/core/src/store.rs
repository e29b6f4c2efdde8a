//! What the server needs from whatever holds the objects: reads at a revision, a history, conditional writes.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::future::BoxFuture;
use thiserror::Error;
use tokio::sync::OwnedSemaphorePermit;
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};

use crate::history::ChangeStream;
use crate::packed::Text;
use crate::raw::{self, Layout};
use crate::selector::Facts;

/// Place in one store's history: what clients see as `metadata.resourceVersion`. One counter for all resources,
/// so that clients may compare revisions as numbers. Never compared with a revision of another store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Refuses a revision above this one, the newest of a store that may begin anew.
    ///
    /// # Errors
    /// [`StoreError::Unreached`] when it is above.
    pub fn reaches(self, requested: Self) -> Result<(), StoreError> {
        if requested <= self { Ok(()) } else { Err(StoreError::Unreached { requested, newest: self }) }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One version of one object.
#[derive(Debug)]
pub struct Stored {
    /// Which object, under the version in which it is stored.
    pub key: ObjectKey,
    /// Incarnation.
    pub uid: Uid,
    /// When this version was written.
    pub revision: Revision,
    pub(crate) text: Text,
    /// What selectors look at, extracted once for all watchers.
    pub(crate) facts: OnceLock<Box<Facts>>,
    layout: OnceLock<Option<Layout>>,
}

impl Stored {
    /// Puts a version together. The body must carry `revision` as its `metadata.resourceVersion`.
    #[must_use]
    pub fn new(key: ObjectKey, uid: Uid, revision: Revision, body: Bytes) -> Self {
        Self { key, uid, revision, text: Text::new(body), facts: OnceLock::new(), layout: OnceLock::new() }
    }

    /// JSON text with `metadata.resourceVersion` already set to `revision`.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.text.read()
    }

    /// Length of the body in bytes.
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.text.len()
    }

    /// Where the parts of the body are; found once. `None` for bodies that do not begin with their type.
    #[must_use]
    pub fn layout(&self) -> Option<&Layout> {
        self.layout.get_or_init(|| Layout::of(&self.body())).as_ref()
    }

    /// The same object under another revision: how it is shown when it leaves a selection.
    pub(crate) fn revised(&self, revision: Revision) -> Self {
        let body = match self.layout() {
            Some(layout) => layout.revised(&self.body(), revision),
            None => raw::with_revision(&self.body(), revision).unwrap_or_else(|_| self.body()),
        };
        Self::new(self.key.clone(), self.uid.clone(), revision, body)
    }
}

impl PartialEq for Stored {
    fn eq(&self, other: &Self) -> bool {
        self.revision == other.revision
            && self.key == other.key
            && self.uid == other.uid
            && self.body() == other.body()
    }
}

/// Objects of one resource as they were at one revision, ordered by namespace, then name.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The revision that this is a picture of.
    pub revision: Revision,
    /// The objects.
    pub items: Vec<Arc<Stored>>,
}

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

/// Why a store cannot do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The store has never been told what the answer is. Becomes 503 with Retry-After.
    #[error("{reason}")]
    NotSynced {
        /// What is missing, for the client.
        reason: String,
    },
    /// The history does not reach the revision. Becomes 410 Expired.
    #[error("too old resource version: {requested} ({oldest})")]
    Expired {
        /// The revision that was asked for.
        requested: Revision,
        /// The oldest revision that can be served.
        oldest: Revision,
    },
    /// The history, which may have begun anew, has not come to the revision. Becomes 410 Expired.
    #[error("resource version of another history: {requested} (the newest is {newest})")]
    Unreached {
        /// The revision that was asked for.
        requested: Revision,
        /// The newest revision.
        newest: Revision,
    },
    /// Another version is stored than the one expected.
    #[error("{key} was changed: revision {expected} was expected, {found} is stored")]
    Conflict {
        /// Which object.
        key: ObjectKey,
        /// Expected revision.
        expected: Revision,
        /// Stored revision.
        found: Revision,
    },
    /// Something is stored under the key already.
    #[error("{key} already exists")]
    AlreadyExists {
        /// Which object.
        key: ObjectKey,
    },
    /// Nothing is stored under the key.
    #[error("{key} is not stored")]
    NotFound {
        /// Which object.
        key: ObjectKey,
    },
    /// The store cannot take the object: not JSON of an object with metadata, or too large.
    #[error("{key} cannot be stored: {reason}")]
    Refused {
        /// Which object.
        key: ObjectKey,
        /// What is wrong with it.
        reason: String,
    },
    /// The object would have what another one has already. Becomes 409; whoever chose the value itself chooses again.
    #[error("{key} cannot be stored: {claim} is taken")]
    Taken {
        /// Which object.
        key: ObjectKey,
        /// What is taken.
        claim: String,
    },
    /// The store, or what is left of it to one kind, is full: nothing grows, deletions go on. Becomes 507.
    #[error(
        "{key} was not stored: of at most {max} bytes for such objects {len} are taken; delete objects, or let the store \
         become larger"
    )]
    Full {
        /// Which object.
        key: ObjectKey,
        /// Bytes that are stored.
        len: u64,
        /// Bytes that may be.
        max: u64,
    },
    /// The user's share of the store is used up. Becomes 507.
    #[error(
        "{key} was not stored: {writer} has made the store larger by {len} bytes and may by {max}; objects that it has \
         written have to be deleted first"
    )]
    OverShare {
        /// Which object.
        key: ObjectKey,
        /// The user.
        writer: String,
        /// Bytes by which objects have grown.
        len: u64,
        /// Bytes by which they may.
        max: u64,
    },
    /// The change could not be made durable and was taken back, for example because the disk is full. Becomes 500:
    /// clients tell their users instead of trying again by themselves.
    #[error("the change was not stored: {reason}")]
    NotStored {
        /// What is wrong.
        reason: String,
    },
    /// The store cannot work now. Becomes 503.
    #[error("the store is unavailable: {reason}")]
    Unavailable {
        /// What is wrong.
        reason: String,
    },
}
