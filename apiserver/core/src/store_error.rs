//! Why a store cannot do what was asked.

use thiserror::Error;
use tombolo_proto::object::ObjectKey;

use crate::revision::Revision;

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

impl Revision {
    /// Refuses a revision above this one, the newest of a store that may begin anew.
    ///
    /// # Errors
    /// [`StoreError::Unreached`] when it is above.
    pub fn reaches(self, requested: Self) -> Result<(), StoreError> {
        if requested <= self { Ok(()) } else { Err(StoreError::Unreached { requested, newest: self }) }
    }
}
