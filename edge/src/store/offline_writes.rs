//! Writes that this node accepts itself, because no other client writes the same object. They are visible at once and
//! reported to the cloud when it is reachable.

use std::sync::Arc;

use tombolo_apicore::store::Stored;
use tombolo_proto::object::ObjectKey;

use super::error::ReadError;
use super::outbox::{ReportKind, Waiting};
use super::{Accepted, OfflineWrite, Store, WriteError, writer};

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
