//! Writes that this node decides itself, because nobody else writes the same: accepted here, shown at once, and told to the
//! cloud when it can be told.

use std::sync::Arc;

use bytes::Bytes;
use tombolo_apicore::store::{Revision, Stored};
use tombolo_proto::ids::Uid;
use tombolo_proto::object::ObjectKey;

use super::error::ReadError;
use super::outbox::{Report, ReportKind, Waiting};
use super::{Store, WriteError, writer};

/// A new version of an object that a client of this node writes.
#[derive(Debug, Clone)]
pub struct OwnWrite {
    /// Which object.
    pub key: ObjectKey,
    /// The local revision that it replaces; none: nothing may be there.
    pub expected: Option<Revision>,
    /// Incarnation.
    pub uid: Uid,
    /// JSON text.
    pub body: Bytes,
    /// What the cloud is told, and the number of the report that it takes the place of; none where the cloud knows already.
    pub report: Option<(Report, Option<u64>)>,
}

/// What became of an [`OwnWrite`].
#[derive(Debug, Clone, PartialEq)]
pub enum Accepted {
    /// It is on disk and visible.
    Stored(Arc<Stored>),
    /// Another version is there.
    Conflict(Revision),
    /// Something is there already.
    Exists,
    /// Nothing is there.
    Gone,
    /// Another report waits than the one that it was made after: make it again.
    Overtaken,
}

impl Store {
    /// Accepts a write of this node and its report, in one transaction.
    ///
    /// # Errors
    /// [`WriteError::Rejected`] when too many reports wait; others when it could not be written.
    pub async fn accept(&self, write: OwnWrite) -> Result<Accepted, WriteError> {
        match self.run(writer::Command::Accept(Box::new(write))).await? {
            writer::Done::Accepted(accepted) => Ok(accepted),
            _ => Err(WriteError::Closed),
        }
    }

    /// The report about an object that waits.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn waiting(&self, kind: ReportKind, key: &ObjectKey) -> Result<Option<Waiting>, ReadError> {
        self.read(|view| view.waiting(kind, key))
    }

    /// An object that clients see in any scope.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn visible(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, ReadError> {
        self.read(|view| view.visible(key))
    }
}
