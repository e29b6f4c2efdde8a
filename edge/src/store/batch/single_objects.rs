//! Kept answers of the cloud to requests for single objects that are not delivered otherwise.

use redb::ReadableTable;
use tombolo_proto::object::ObjectKey;

use super::super::error::{WriteError, storage};
use super::super::row::{ObjectRow, SINGLE_OBJECTS, State};
use super::super::{ReportKind, keys};
use super::{Batch, damaged};

/// Maximum number of kept answers; the one with the oldest request is deleted first.
pub const OBJECTS_MAX: u64 = 512;

/// Maximum number of kept events, in addition to [`OBJECTS_MAX`].
pub const EVENTS_MAX: u64 = 128;

/// Maximum bytes of kept answers; the same again for events.
pub const BYTES_MAX: u64 = 8 * 1024 * 1024;

/// One kept answer.
struct KeptObject {
    row_key: Vec<u8>,
    asked: u64,
    len: u64,
}

impl Batch<'_> {
    /// Keeps the answer that the cloud has no such object. Objects that sessions keep up to date are left unchanged.
    pub(in crate::store) fn keep_absent(&mut self, key: &ObjectKey) -> Result<(), WriteError> {
        let Some(row_key) = keys::encode(key) else { return Ok(()) };
        let mut subscriptions = match self.row(&row_key)? {
            Some(row) if !row.is_left_to_questions() => return Ok(()),
            row => row.map(|row| row.subscriptions).unwrap_or_default(),
        };
        super::add(&mut subscriptions, SINGLE_OBJECTS.0);
        self.put(&row_key, &ObjectRow::absent(subscriptions))?;
        self.note_question(&row_key)
    }

    /// Deletes the kept answer about an object, which may no longer be served.
    pub(in crate::store) fn forget(&mut self, key: &ObjectKey) -> Result<(), WriteError> {
        let Some(row_key) = keys::encode(key) else { return Ok(()) };
        self.kept.open()?.remove(row_key.as_slice()).map_err(storage)?;
        self.delete(SINGLE_OBJECTS.0, &row_key, key)
    }

    /// Records a request for a kept object. A recent one is not written again, because the order matters only for the
    /// oldest answers.
    pub(super) fn note_question(&mut self, row_key: &[u8]) -> Result<(), WriteError> {
        let Some(row) = self.row(row_key)? else { return Ok(()) };
        let len = if row.state == State::Absent { 0 } else { row.body.len() as u64 };
        let known = self.kept.open()?.get(row_key).map_err(storage)?.map(|entry| entry.value());
        let recent = |asked: u64| self.state.questions.saturating_sub(asked) < OBJECTS_MAX / 4;
        if known.is_some_and(|(asked, known)| known == len && recent(asked)) {
            return Ok(());
        }
        self.state.questions = self.state.questions.saturating_add(1);
        self.kept.open()?.insert(row_key, (self.state.questions, len)).map_err(storage)?;
        self.fit_kept()
    }

    /// Deletes the answers with the oldest requests until the rest is within its bounds. Events have their own bound,
    /// because there are always new ones.
    fn fit_kept(&mut self) -> Result<(), WriteError> {
        let (mut events, mut others) = (Vec::new(), Vec::new());
        for entry in self.kept.open()?.iter().map_err(storage)? {
            let (row_key, value) = entry.map_err(storage)?;
            let (asked, len) = value.value();
            let key = keys::decode(row_key.value()).ok_or_else(|| damaged("kept key"))?;
            let is_event = ReportKind::shown_in(key.resource()) == ReportKind::Event;
            let list = if is_event { &mut events } else { &mut others };
            list.push(KeptObject { row_key: row_key.value().to_vec(), asked, len });
        }
        self.fit_list(events, EVENTS_MAX)?;
        self.fit_list(others, OBJECTS_MAX)
    }

    fn fit_list(&mut self, mut list: Vec<KeptObject>, count_max: u64) -> Result<(), WriteError> {
        list.sort_by_key(|entry| entry.asked);
        let mut bytes: u64 = list.iter().map(|entry| entry.len).sum();
        let mut count = list.len() as u64;
        for entry in list {
            if count <= count_max && bytes <= BYTES_MAX {
                break;
            }
            let key = keys::decode(&entry.row_key).ok_or_else(|| damaged("kept key"))?;
            self.forget(&key)?;
            (count, bytes) = (count - 1, bytes.saturating_sub(entry.len));
        }
        Ok(())
    }
}
