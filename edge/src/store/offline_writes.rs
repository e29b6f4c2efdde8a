//! Writes that this node accepts itself, because no other client writes the same object. They are visible at once and
//! reported to the cloud when it is reachable.

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
pub struct OfflineWrite {
    /// The object.
    pub key: ObjectKey,
    /// The local revision that it replaces; `None` means that the object must not exist.
    pub expected: Option<Revision>,
    /// UID of the object.
    pub uid: Uid,
    /// JSON text.
    pub body: Bytes,
    /// The report to the cloud, and the number of the report that it replaces; `None` if the cloud has the change
    /// already.
    pub report: Option<(Report, Option<u64>)>,
}

/// The result of an [`OfflineWrite`].
#[derive(Debug, Clone, PartialEq)]
pub enum Accepted {
    /// It is on disk and visible.
    Stored(Arc<Stored>),
    /// The object has another version.
    Conflict(Revision),
    /// The object exists already.
    Exists,
    /// The object does not exist.
    Gone,
    /// Another report waits than the expected one: make the write again.
    Overtaken,
}

impl Store {
    /// Accepts a write of this node and its report, in one transaction.
    ///
    /// # Errors
    /// [`WriteError::Rejected`] when too many reports wait; other errors when it could not be written.
    pub async fn accept(&self, write: OfflineWrite) -> Result<Accepted, WriteError> {
        match self.run(writer::Command::Accept(Box::new(write))).await? {
            writer::Done::Accepted(accepted) => Ok(accepted),
            _ => Err(WriteError::Closed),
        }
    }

    /// The waiting report about an object.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn waiting(&self, kind: ReportKind, key: &ObjectKey) -> Result<Option<Waiting>, ReadError> {
        self.read(|view| view.waiting(kind, key))
    }

    /// An object that clients see in any subscription.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn visible(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, ReadError> {
        self.read(|view| view.visible(key))
    }
}
