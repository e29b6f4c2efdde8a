//! Tables, the schema version, and values that exist once.

use std::collections::BTreeMap;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tombolo_apicore::store::Revision;
use tombolo_proto::ids::{Epoch, StoreId, Uid};
use tombolo_proto::object::{Resource, ResourceParts};

use super::error::{ReadError, WriteError, reading, storage};
use super::seal::Sealer;
use super::selection::Selection;

/// Newest schema that this program reads, and the one that it writes. Schema 2 records in the log which subscriptions
/// see a change. Schema 3 adds kept answers about single objects and reports about leases, schema 4 objects that the
/// cloud cannot read, schema 5 whole content hashes. Tests keep stores of schemas 1 and 5.
pub(super) const SCHEMA: u32 = 5;

/// Values that exist once.
pub(super) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
/// Key bytes to [`super::row::ObjectRow`].
pub(super) const OBJECTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");
/// Keys of the objects that clients do not see yet.
pub(super) const HIDDEN: TableDefinition<'_, &[u8], ()> = TableDefinition::new("hidden");
/// Local revision to [`super::row::LogRow`].
pub(super) const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// Number of a report to the report.
pub(super) const OUTBOX: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("outbox");
/// Slot of a report to the number of the newest report in it.
pub(super) const SLOTS: TableDefinition<'_, &[u8], u64> = TableDefinition::new("outbox_slots");
/// Subscription number to [`SubscriptionRow`]. Stores on disk have had this name since schema 1.
pub(super) const SUBSCRIPTIONS: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("scopes");
/// Row key of a question to its answer ([`super::answers`]); absent from stores of older versions.
pub(super) const ANSWERS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("answers");
/// Key bytes of an object in [`super::row::SINGLE_OBJECTS`] to the number of its last request (counted over all
/// such requests) and the length of its body.
pub(super) const KEPT: TableDefinition<'_, &[u8], (u64, u64)> = TableDefinition::new("kept");

const SCHEMA_KEY: &str = "schema";
const STATE_KEY: &str = "state";
const SEAL_KEY: &str = "seal";
const SEAL_TEXT: &[u8] = b"tombolo";

/// Values that exist once and change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StateRow {
    /// Identity of this store, hexadecimal.
    pub(super) store: String,
    /// Newest local revision.
    pub(super) revision: u64,
    /// The log holds every change after this revision.
    pub(super) floor: u64,
    /// Bytes of the log's rows.
    pub(super) log_bytes: u64,
    /// Counts the epochs that this store has seen.
    pub(super) era: u32,
    /// The epoch of the era.
    pub(super) epoch: Option<EpochRow>,
    /// Trimming rules under which the content hashes were made; 0 before anything was caught up.
    pub(super) trim_version: u32,
    /// Number of the next report.
    pub(super) next_report: u64,
    /// Bytes of the waiting reports; `None` in a store of an older version that did not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) report_bytes: Option<u64>,
    /// Counts the requests with kept answers.
    #[serde(default)]
    pub(super) questions: u64,
    /// The newest attestation of the cloud, hexadecimal; empty when there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) attestation: String,
}

impl StateRow {
    /// A new store, whose changes come after `first`.
    fn new(store: StoreId, first: Revision) -> Self {
        Self {
            store: hex::encode(store.0),
            revision: first.0,
            floor: first.0,
            log_bytes: 0,
            era: 0,
            epoch: None,
            trim_version: 0,
            next_report: 1,
            report_bytes: Some(0),
            questions: 0,
            attestation: String::new(),
        }
    }

    pub(super) fn store(&self) -> Option<StoreId> {
        hex::decode(&self.store).ok()?.try_into().ok().map(StoreId)
    }

    /// The attestation; empty if it cannot be read.
    pub(super) fn attestation(&self) -> Bytes {
        hex::decode(&self.attestation).unwrap_or_default().into()
    }
}

/// An epoch in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EpochRow {
    cluster: String,
    generation: u64,
}

impl From<&Epoch> for EpochRow {
    fn from(epoch: &Epoch) -> Self {
        Self { cluster: epoch.cluster.as_str().to_owned(), generation: epoch.generation }
    }
}

impl EpochRow {
    pub(super) fn epoch(&self) -> Option<Epoch> {
        Some(Epoch { cluster: Uid::parse(&self.cluster).ok()?, generation: self.generation })
    }
}

/// State of a subscription.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SubscriptionRow {
    /// Whether it was ever complete: only then is an object that is missing known not to exist.
    pub(super) synced: bool,
    /// The history that all of its objects belong to; `None` during the change to another history.
    pub(super) epoch: Option<EpochRow>,
    /// The cloud's revision at which it was last compared.
    pub(super) revision: u64,
    /// Local revision at which clients could first read it. Earlier changes are in no history.
    #[serde(default)]
    pub(super) since: u64,
    /// The selection that it follows; `None` for the pushed set. Stores on disk have had this name since schema 1.
    #[serde(rename = "subscription", default, skip_serializing_if = "Option::is_none")]
    pub(super) selection: Option<SelectionRow>,
}

/// The selection of a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SelectionRow {
    group: String,
    version: String,
    resource: String,
    namespace: String,
    label_selector: String,
    field_selector: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    borrowed: bool,
}

impl From<&Selection> for SelectionRow {
    fn from(selection: &Selection) -> Self {
        let ResourceParts { group, version, name } = &*selection.resource;
        Self {
            group: group.to_string(),
            version: version.to_string(),
            resource: name.to_string(),
            namespace: selection.namespace.clone(),
            label_selector: selection.label_selector.clone(),
            field_selector: selection.field_selector.clone(),
            borrowed: selection.borrowed,
        }
    }
}

impl SelectionRow {
    pub(super) fn selection(&self) -> Selection {
        Selection {
            resource: Resource::new(&self.group, &self.version, &self.resource),
            namespace: self.namespace.clone(),
            label_selector: self.label_selector.clone(),
            field_selector: self.field_selector.clone(),
            borrowed: self.borrowed,
        }
    }
}

/// Why a file cannot be used as it is.
#[derive(Debug, Error)]
pub(super) enum Unusable {
    /// A newer program wrote it.
    #[error("it has schema {0}")]
    Newer(u32),
    /// It is damaged, or encrypted with another key.
    #[error("{0}")]
    Damaged(String),
    /// The disk reports an error; the content may be in order.
    #[error("{0}")]
    Disk(WriteError),
}

impl From<WriteError> for Unusable {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Damaged(why) => Self::Damaged(why),
            other => Self::Disk(other),
        }
    }
}

impl From<ReadError> for Unusable {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Damaged(what) => Self::Damaged(format!("unreadable {what} row")),
            other => WriteError::from(other).into(),
        }
    }
}

/// Checks a store, or creates the tables of a new one.
pub(super) fn prepare(db: &Database, sealer: &Sealer, fresh: (StoreId, Revision)) -> Result<(), Unusable> {
    match found(db)? {
        None => Ok(create(db, sealer, fresh)?),
        Some(schema) if schema > SCHEMA => Err(Unusable::Newer(schema)),
        Some(schema) => {
            check(db, sealer)?;
            migrate(db, schema)
        }
    }
}

/// The schema of the file; `None` for an empty one.
pub(super) fn found(db: &impl ReadableDatabase) -> Result<Option<u32>, Unusable> {
    let damaged = |what: String| Unusable::Damaged(what);
    let txn = db.begin_read().map_err(reading)?;
    let table = match txn.open_table(META) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(reading(error).into()),
    };
    let row = table.get(SCHEMA_KEY).map_err(reading)?;
    let row = row.ok_or_else(|| damaged("it has no schema version".to_owned()))?;
    let bytes = row.value().try_into().map_err(|_| damaged("its schema version is unreadable".to_owned()))?;
    Ok(Some(u32::from_le_bytes(bytes)))
}

fn create(db: &Database, sealer: &Sealer, fresh: (StoreId, Revision)) -> Result<(), WriteError> {
    let txn = db.begin_write().map_err(storage)?;
    {
        let mut meta = txn.open_table(META).map_err(storage)?;
        meta.insert(SCHEMA_KEY, SCHEMA.to_le_bytes().as_slice()).map_err(storage)?;
        let sealed = sealer.seal(SEAL_KEY.as_bytes(), SEAL_TEXT);
        let sealed = sealed.ok_or_else(|| WriteError::Storage("no random numbers".to_owned()))?;
        meta.insert(SEAL_KEY, &*sealed).map_err(storage)?;
    }
    txn.open_table(OBJECTS).map_err(storage)?;
    txn.open_table(HIDDEN).map_err(storage)?;
    txn.open_table(LOG).map_err(storage)?;
    txn.open_table(OUTBOX).map_err(storage)?;
    txn.open_table(SLOTS).map_err(storage)?;
    txn.open_table(SUBSCRIPTIONS).map_err(storage)?;
    txn.open_table(ANSWERS).map_err(storage)?;
    txn.open_table(KEPT).map_err(storage)?;
    write_state(&txn, &StateRow::new(fresh.0, fresh.1))?;
    txn.commit().map_err(storage)
}

/// Migrates older schemas to the current one. To change a table, copy it into a new one, then switch in one
/// transaction.
fn migrate(db: &Database, schema: u32) -> Result<(), Unusable> {
    match schema {
        SCHEMA => Ok(()),
        // Each row has its own format number, and new rows get the new format. The first write creates the table of
        // answers.
        1..SCHEMA => Ok(mark(db)?),
        older => Err(Unusable::Damaged(format!("schema {older} was never released"))),
    }
}

/// Marks the store as having the current schema.
fn mark(db: &Database) -> Result<(), WriteError> {
    let txn = db.begin_write().map_err(storage)?;
    let present = SCHEMA.to_le_bytes();
    txn.open_table(META).map_err(storage)?.insert(SCHEMA_KEY, present.as_slice()).map_err(storage)?;
    txn.commit().map_err(storage)
}

fn check(db: &Database, sealer: &Sealer) -> Result<(), Unusable> {
    let read = || -> Result<bool, ReadError> {
        let txn = db.begin_read().map_err(reading)?;
        let meta = txn.open_table(META).map_err(reading)?;
        let sealed = meta.get(SEAL_KEY).map_err(reading)?;
        Ok(sealed.is_some_and(|row| sealer.open(SEAL_KEY.as_bytes(), row.value()).is_some()))
    };
    match read() {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err(Unusable::Damaged("it is encrypted with a key that no longer exists here".to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) fn read_state(
    meta: &impl ReadableTable<&'static str, &'static [u8]>,
) -> Result<StateRow, ReadError> {
    let row = meta.get(STATE_KEY).map_err(reading)?.ok_or(ReadError::Damaged("state"))?;
    serde_json::from_slice(row.value()).map_err(|_| ReadError::Damaged("state"))
}

pub(super) fn write_state(txn: &WriteTransaction, state: &StateRow) -> Result<(), WriteError> {
    let text = serde_json::to_vec(state).map_err(|error| WriteError::Storage(error.to_string()))?;
    let mut meta = txn.open_table(META).map_err(storage)?;
    meta.insert(STATE_KEY, text.as_slice()).map_err(storage)?;
    Ok(())
}

pub(super) fn read_subscriptions(
    table: &impl ReadableTable<u32, &'static [u8]>,
) -> Result<BTreeMap<u32, SubscriptionRow>, ReadError> {
    let row = |entry: Result<(redb::AccessGuard<'_, u32>, redb::AccessGuard<'_, &'static [u8]>), _>| {
        let (subscription, row) = entry.map_err(reading)?;
        let row = serde_json::from_slice(row.value()).map_err(|_| ReadError::Damaged("subscription"))?;
        Ok((subscription.value(), row))
    };
    table.iter().map_err(reading)?.map(row).collect()
}
