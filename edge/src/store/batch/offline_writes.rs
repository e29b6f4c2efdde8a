//! Writes that this node accepts itself.

use std::sync::Arc;

use bytes::Bytes;
use redb::ReadableTable;
use tombolo_apicore::store::{Revision, Stored};
use tombolo_proto::ids::{CloudRevision, Uid};
use tombolo_proto::limits;
use tombolo_proto::object::{ContentHash, ObjectKey, ObjectVersion};

use super::super::error::{WriteError, storage};
use super::super::keys;
use super::super::outbox::{self, Report};
use super::super::row::{ObjectRow, SINGLE_OBJECTS, State};
use super::Batch;

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

impl Batch<'_> {
    /// Writes a version and its report, unless another write came first.
    pub(in crate::store) fn accept(&mut self, write: &OfflineWrite) -> Result<Accepted, WriteError> {
        let rejected = |why: String| WriteError::Rejected(why);
        if write.body.len() > limits::OBJECT_LEN_MAX {
            return Err(rejected(format!("{} is larger than {} bytes", write.key, limits::OBJECT_LEN_MAX)));
        }
        let row_key =
            keys::encode(&write.key).ok_or_else(|| rejected(format!("{} is not a valid name", write.key)))?;
        let old = self.row(&row_key)?;
        let seen = old.as_ref().filter(|row| row.state == State::Visible);
        match (write.expected, seen) {
            (Some(expected), Some(held)) if held.local != expected.0 => {
                return Ok(Accepted::Conflict(tombolo_apicore::store::Revision(held.local)));
            }
            (Some(_), None) => return Ok(Accepted::Gone),
            (None, Some(_)) => return Ok(Accepted::Exists),
            (Some(_), Some(_)) | (None, None) => {}
        }
        let base = match seen {
            Some(held) => held.clone(),
            None => self.unconfirmed(write, old.as_ref())?,
        };
        if let Some((report, replaced)) = &write.report
            && !self.succeed(report, *replaced)?
        {
            return Ok(Accepted::Overtaken);
        }
        let row = ObjectRow { body: write.body.clone(), sealed: false, local: 0, ..base };
        let in_kept = row.subscriptions.contains(&SINGLE_OBJECTS.0);
        self.replace(&row_key, &write.key, old, row)?;
        if in_kept {
            self.note_question(&row_key)?;
        }
        let row = self.row(&row_key)?.ok_or_else(|| super::damaged("object"))?;
        Ok(Accepted::Stored(self.stored(&write.key, &row)?))
    }

    /// The row of an object that the cloud does not know.
    fn unconfirmed(&self, write: &OfflineWrite, old: Option<&ObjectRow>) -> Result<ObjectRow, WriteError> {
        let mut subscriptions = self.wanting(&write.key, old);
        super::add(&mut subscriptions, SINGLE_OBJECTS.0);
        let version =
            ObjectVersion { uid: write.uid.clone(), revision: CloudRevision(0), hash: ContentHash(0) };
        let era = self.state.era;
        Ok(ObjectRow { state: State::Visible, version, era, ..ObjectRow::absent(subscriptions) })
    }

    /// Replaces the report that this one was made from. Returns false if another one waits.
    fn succeed(&mut self, report: &Report, replaced: Option<u64>) -> Result<bool, WriteError> {
        let slot = outbox::slot(report.kind, &report.key);
        let slot = slot.ok_or_else(|| WriteError::Rejected(format!("{} cannot be reported", report.key)))?;
        let waiting = self.slots.open()?.get(slot.as_slice()).map_err(storage)?.map(|number| number.value());
        if waiting != replaced {
            return Ok(false);
        }
        self.report(report)?;
        Ok(true)
    }
}
