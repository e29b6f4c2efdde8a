//! The readers' view: the state of the store after one commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableError};
use tombolo_apicore::store::{Revision, Snapshot, Stored};
use tombolo_proto::ids::{CloudRevision, SubscriptionId};
use tombolo_proto::object::{HeldState, InventoryEntry, ObjectKey, Resource};

use super::answers::{self, CachedReply, Question};
use super::error::{ReadError, reading};
use super::outbox::{self, ReportKind, Waiting};
use super::row::{LogRow, ObjectRow, State};
use super::schema::{
    self, ANSWERS, LOG, META, OBJECTS, OUTBOX, SLOTS, SUBSCRIPTIONS, StateRow, SubscriptionRow,
};
use super::seal::Sealer;
use super::selection::Selection;
use super::{is_secret, keys};

/// One committed state. Readers share it until the next commit.
pub(super) struct CommittedView {
    txn: ReadTransaction,
    sealer: Arc<Sealer>,
    pub(super) state: StateRow,
    pub(super) subscriptions: Arc<SubscriptionRows>,
    /// Number of objects in each state.
    pub(super) tally: ObjectCounts,
}

/// All subscriptions by number.
pub(super) type SubscriptionRows = BTreeMap<u32, SubscriptionRow>;

/// Results of a transaction for the view of readers.
pub(super) struct Left {
    pub(super) state: StateRow,
    pub(super) subscriptions: Arc<SubscriptionRows>,
    pub(super) tally: ObjectCounts,
}

/// Number of objects in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ObjectCounts {
    pub(super) visible: u64,
    pub(super) hidden: u64,
    pub(super) absent: u64,
}

impl ObjectCounts {
    pub(super) fn add(&mut self, state: State) {
        *self.of(state) += 1;
    }

    pub(super) fn remove(&mut self, state: State) {
        let count = self.of(state);
        *count = count.saturating_sub(1);
    }

    fn of(&mut self, state: State) -> &mut u64 {
        match state {
            State::Visible => &mut self.visible,
            State::Hidden => &mut self.hidden,
            State::Absent => &mut self.absent,
        }
    }
}

/// The result of a lookup of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Found {
    /// An object that clients see.
    Visible(Arc<Stored>),
    /// An object that clients do not see yet.
    Hidden,
    /// The cloud has no such object.
    Absent,
    /// The cloud cannot read the object.
    Unreadable,
    /// Nothing is known about the object.
    Unknown,
}

impl CommittedView {
    /// The newest committed state, read from the file. Scans every row.
    pub(super) fn read(db: &Database, sealer: Arc<Sealer>) -> Result<Self, ReadError> {
        let view = Self::uncounted(db, sealer)?;
        let mut tally = ObjectCounts::default();
        for entry in view.txn.open_table(OBJECTS).map_err(reading)?.iter().map_err(reading)? {
            tally.add(ObjectRow::head(entry.map_err(reading)?.1.value())?.0.state);
        }
        Ok(Self { tally, ..view })
    }

    /// As [`Self::read`], but reads every row whole, and returns the log too.
    pub(super) fn checked(db: &Database, sealer: Arc<Sealer>) -> Result<(Self, Vec<LogRow>), ReadError> {
        let view = Self::uncounted(db, sealer)?;
        let mut tally = ObjectCounts::default();
        for entry in view.txn.open_table(OBJECTS).map_err(reading)?.iter().map_err(reading)? {
            let (key, row) = entry.map_err(reading)?;
            let key = keys::decode(key.value()).ok_or(ReadError::Damaged("key"))?;
            let row = ObjectRow::decode(row.value())?;
            plain(&view.sealer, &key, &row)?;
            tally.add(row.state);
        }
        let log = view.log()?;
        outbox::verify(&view.txn.open_table(OUTBOX).map_err(reading)?)?;
        Ok((Self { tally, ..view }, log))
    }

    fn uncounted(db: &Database, sealer: Arc<Sealer>) -> Result<Self, ReadError> {
        let txn = db.begin_read().map_err(reading)?;
        let state = schema::read_state(&txn.open_table(META).map_err(reading)?)?;
        let subscriptions =
            Arc::new(schema::read_subscriptions(&txn.open_table(SUBSCRIPTIONS).map_err(reading)?)?);
        Ok(Self { txn, sealer, state, subscriptions, tally: ObjectCounts::default() })
    }

    /// The state after a commit, with the results of the writer.
    pub(super) fn after(db: &Database, sealer: Arc<Sealer>, left: Left) -> Result<Self, ReadError> {
        let txn = db.begin_read().map_err(reading)?;
        let Left { state, subscriptions, tally } = left;
        Ok(Self { txn, sealer, state, subscriptions, tally })
    }

    pub(super) fn revision(&self) -> Revision {
        Revision(self.state.revision)
    }

    /// Looks a key up as a reader of one subscription.
    pub(super) fn find_in(&self, subscription: SubscriptionId, key: &ObjectKey) -> Result<Found, ReadError> {
        let Some(row) = self.row(key)?.filter(|row| row.concerns(subscription)) else {
            return Ok(Found::Unknown);
        };
        Ok(match row.state {
            _ if !row.subscriptions.contains(&subscription.0) => Found::Unreadable,
            State::Visible => Found::Visible(stored(&self.sealer, key.clone(), row)?),
            State::Hidden => Found::Hidden,
            State::Absent => Found::Absent,
        })
    }

    /// The local and the cloud's revision of an object that clients see.
    pub(super) fn revisions(&self, key: &ObjectKey) -> Result<Option<(Revision, CloudRevision)>, ReadError> {
        let row = self.row(key)?.filter(|row| row.state == State::Visible);
        Ok(row.map(|row| (Revision(row.local), row.version.revision)))
    }

    /// An object that clients see in any subscription.
    pub(super) fn visible(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, ReadError> {
        let row = self.row(key)?.filter(|row| row.state == State::Visible);
        row.map(|row| stored(&self.sealer, key.clone(), row)).transpose()
    }

    /// The objects of a resource (of one namespace) that clients of a subscription see, ordered by namespace, then
    /// name.
    pub(super) fn snapshot(
        &self,
        subscription: SubscriptionId,
        resource: &Resource,
        namespace: Option<&str>,
    ) -> Result<Snapshot, ReadError> {
        let mut items = Vec::new();
        let revision = self.each(subscription, resource, namespace, &mut |object| items.push(object))?;
        Ok(Snapshot { revision, items })
    }

    /// Passes these objects to `look` one by one.
    pub(super) fn each(
        &self,
        subscription: SubscriptionId,
        resource: &Resource,
        namespace: Option<&str>,
        look: &mut dyn FnMut(Arc<Stored>),
    ) -> Result<Revision, ReadError> {
        let Some((start, end)) = keys::range(resource, namespace) else { return Ok(self.revision()) };
        let table = self.txn.open_table(OBJECTS).map_err(reading)?;
        for entry in table.range(start.as_slice()..end.as_slice()).map_err(reading)? {
            let (key, row) = entry.map_err(reading)?;
            let (row, body) = ObjectRow::head(row.value())?;
            if row.state == State::Visible && row.subscriptions.contains(&subscription.0) {
                let key = keys::decode_of(resource, key.value()).ok_or(ReadError::Damaged("key"))?;
                let row = ObjectRow { body: Bytes::copy_from_slice(body), ..row };
                look(stored(&self.sealer, key, row)?);
            }
        }
        Ok(self.revision())
    }

    /// The inventory of one subscription.
    pub(super) fn inventory(&self, subscription: SubscriptionId) -> Result<Vec<InventoryEntry>, ReadError> {
        let mut entries = Vec::new();
        self.each_in(subscription, |key, row, _| {
            let key = keys::decode(key).ok_or(ReadError::Damaged("key"))?;
            let held = match row.state {
                _ if !row.subscriptions.contains(&subscription.0) => HeldState::Unreadable,
                State::Absent => HeldState::Absent,
                State::Visible | State::Hidden => HeldState::Present(row.version),
            };
            entries.push(InventoryEntry { key, held });
            Ok(())
        })?;
        Ok(entries)
    }

    /// Bytes of bodies that only this subscription keeps.
    pub(super) fn weight(&self, subscription: SubscriptionId) -> Result<u64, ReadError> {
        let mut bytes = 0;
        self.each_in(subscription, |_, row, body| {
            if row.subscriptions.len() == 1 {
                bytes += body.len() as u64;
            }
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Passes every row of a subscription to `each`, with the body as it is on disk. A subscription has one resource,
    /// so only that part of the table is read.
    fn each_in(
        &self,
        subscription: SubscriptionId,
        mut each: impl FnMut(&[u8], ObjectRow, &[u8]) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let table = self.txn.open_table(OBJECTS).map_err(reading)?;
        let selected = self.subscriptions.get(&subscription.0).and_then(|row| row.selection.as_ref());
        let range = match selected.map(schema::SelectionRow::selection) {
            Some(Selection { resource, namespace, .. }) => {
                let namespace = Some(namespace.as_str()).filter(|namespace| !namespace.is_empty());
                let Some((start, end)) = keys::range(&resource, namespace) else { return Ok(()) };
                table.range(start.as_slice()..end.as_slice()).map_err(reading)?
            }
            None => table.iter().map_err(reading)?,
        };
        for entry in range {
            let (key, row) = entry.map_err(reading)?;
            let (row, body) = ObjectRow::head(row.value())?;
            if row.concerns(subscription) {
                each(key.value(), row, body)?;
            }
        }
        Ok(())
    }

    /// The whole log, oldest first.
    pub(super) fn log(&self) -> Result<Vec<LogRow>, ReadError> {
        let table = self.txn.open_table(LOG).map_err(reading)?;
        let mut rows = Vec::new();
        for entry in table.iter().map_err(reading)? {
            let mut row = LogRow::decode(entry.map_err(reading)?.1.value())?;
            if row.sealed {
                let row_key = keys::encode(&row.key).ok_or(ReadError::Damaged("log key"))?;
                let open = |body: &Bytes| {
                    self.sealer.open(&row_key, body).ok_or(ReadError::Damaged("encrypted body in the log"))
                };
                row.object.body = open(&row.object.body)?;
                if let Some(previous) = &mut row.previous {
                    previous.body = open(&previous.body)?;
                }
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// The answer to a question.
    pub(super) fn answer(&self, question: &Question) -> Result<Option<CachedReply>, ReadError> {
        match self.txn.open_table(ANSWERS) {
            Ok(rows) => answers::read(&rows, &self.sealer, question),
            // The first write creates the table.
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(reading(error)),
        }
    }

    pub(super) fn reports(&self, after: u64, count: usize) -> Result<Vec<Waiting>, ReadError> {
        outbox::read(&self.txn.open_table(OUTBOX).map_err(reading)?, after, count)
    }

    /// The waiting report about an object.
    pub(super) fn waiting(&self, kind: ReportKind, key: &ObjectKey) -> Result<Option<Waiting>, ReadError> {
        let Some(slot) = outbox::slot(kind, key) else { return Ok(None) };
        let rows = self.txn.open_table(OUTBOX).map_err(reading)?;
        outbox::waiting(&rows, &self.txn.open_table(SLOTS).map_err(reading)?, &slot)
    }

    pub(super) fn reports_waiting(&self) -> Result<u64, ReadError> {
        self.txn.open_table(OUTBOX).map_err(reading)?.len().map_err(reading)
    }

    fn row(&self, key: &ObjectKey) -> Result<Option<ObjectRow>, ReadError> {
        let Some(bytes) = keys::encode(key) else { return Ok(None) };
        let table = self.txn.open_table(OBJECTS).map_err(reading)?;
        let row = table.get(bytes.as_slice()).map_err(reading)?;
        row.map(|row| ObjectRow::decode(row.value())).transpose()
    }
}

/// An object as the local API serves it.
pub(super) fn stored(sealer: &Sealer, key: ObjectKey, row: ObjectRow) -> Result<Arc<Stored>, ReadError> {
    let body = plain(sealer, &key, &row)?;
    Ok(Arc::new(Stored::new(key, row.version.uid, Revision(row.local), body)))
}

/// The text of a row's body.
pub(super) fn plain(sealer: &Sealer, key: &ObjectKey, row: &ObjectRow) -> Result<Bytes, ReadError> {
    if !row.sealed {
        return Ok(row.body.clone());
    }
    let row_key = keys::encode(key).ok_or(ReadError::Damaged("key"))?;
    sealer.open(&row_key, &row.body).ok_or(ReadError::Damaged("encrypted body"))
}

/// A body as it is written: encrypted if it is that of a Secret.
pub(super) fn sealed(sealer: &Sealer, key: &ObjectKey, body: &Bytes) -> Option<(bool, Bytes)> {
    if !is_secret(key.resource()) {
        return Some((false, body.clone()));
    }
    Some((true, sealer.seal(&keys::encode(key)?, body)?))
}
