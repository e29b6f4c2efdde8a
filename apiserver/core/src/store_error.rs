//! Errors of a store.

use thiserror::Error;
use tombolo_proto::object::ObjectKey;

use crate::revision::Revision;

/// Why a store cannot do what was requested.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The store never received the data. Becomes 503 with Retry-After.
    #[error("{reason}")]
    NotSynced {
        /// What is missing, for the client.
        reason: String,
    },
    /// The history does not include the revision. Becomes 410 Expired.
    #[error("too old resource version: {requested} ({oldest})")]
    Expired {
        /// The requested revision.
        requested: Revision,
        /// The oldest revision that can be served.
        oldest: Revision,
    },
    /// The history, which may have restarted, has not reached the revision. Becomes 410 Expired.
    #[error("resource version of another history: {requested} (the newest is {newest})")]
    Unreached {
        /// The requested revision.
        requested: Revision,
        /// The newest revision.
        newest: Revision,
    },
    /// The stored version is not the expected one.
    #[error("{key} was changed: revision {expected} was expected, {found} is stored")]
    Conflict {
        /// The key of the object.
        key: ObjectKey,
        /// Expected revision.
        expected: Revision,
        /// Stored revision.
        found: Revision,
    },
    /// An object is already stored under the key.
    #[error("{key} already exists")]
    AlreadyExists {
        /// The key of the object.
        key: ObjectKey,
    },
    /// No object is stored under the key.
    #[error("{key} is not stored")]
    NotFound {
        /// The key of the object.
        key: ObjectKey,
    },
    /// The store cannot accept the object: it is not the JSON of an object with metadata, or it is too large.
    #[error("{key} cannot be stored: {reason}")]
    Refused {
        /// The key of the object.
        key: ObjectKey,
        /// The reason.
        reason: String,
    },
    /// The object has a value that another one already has. Becomes 409, or a new value is chosen if the server chose
    /// it.
    #[error("{key} cannot be stored: {claim} is taken")]
    Taken {
        /// The key of the object.
        key: ObjectKey,
        /// The value that is taken.
        claim: String,
    },
    /// The store, or its part for one resource, is full: nothing grows, deletions continue. Becomes 507.
    #[error(
        "{key} was not stored: of at most {max} bytes for such objects {len} are taken; delete objects, or let the store \
         become larger"
    )]
    Full {
        /// The key of the object.
        key: ObjectKey,
        /// Bytes in use.
        len: u64,
        /// Maximum number of bytes.
        max: u64,
    },
    /// The user's share of the store is used up. Becomes 507.
    #[error(
        "{key} was not stored: {writer} has made the store larger by {len} bytes and may by {max}; objects that it has \
         written have to be deleted first"
    )]
    OverShare {
        /// The key of the object.
        key: ObjectKey,
        /// The user.
        writer: String,
        /// Bytes by which the user made objects grow.
        len: u64,
        /// Maximum of these bytes.
        max: u64,
    },
    /// The change could not be made durable and was undone, for example because the disk is full. Becomes 500: clients
    /// report this to their users instead of retrying.
    #[error("the change was not stored: {reason}")]
    NotStored {
        /// The reason.
        reason: String,
    },
    /// The store cannot work now. Becomes 503.
    #[error("the store is unavailable: {reason}")]
    Unavailable {
        /// The reason.
        reason: String,
    },
}

impl Revision {
    /// Refuses a revision above this one, which is the newest of a store whose history may restart.
    ///
    /// # Errors
    /// [`StoreError::Unreached`] when it is above.
    pub fn reaches(self, requested: Self) -> Result<(), StoreError> {
        if requested <= self { Ok(()) } else { Err(StoreError::Unreached { requested, newest: self }) }
    }
}
