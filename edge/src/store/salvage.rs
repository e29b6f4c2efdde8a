//! Salvages a damaged store: reads it row by row into the store that replaces it.
//!
//! Other pages and rows may be intact next to a damaged one. Reports exist nowhere else, and the node's pods need the
//! objects to start while the cloud is unreachable. The salvaged objects belong to no history of the cloud, so the
//! cloud compares all of them and sends again those that are wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use redb::{
    Database, Key, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
    Value, WriteTransaction,
};
use tombolo_apicore::store::Revision;
use tombolo_proto::ids::SubscriptionId;
use tombolo_proto::object::ContentHash;

use super::answers;
use super::error::{WriteError, storage};
use super::medium::Medium;
use super::outbox::{self, Waiting};
use super::row::{ObjectRow, SINGLE_OBJECTS, State, unreading};
use super::schema::{
    self, ANSWERS, HIDDEN, KEPT, META, OBJECTS, OUTBOX, SLOTS, SUBSCRIPTIONS, StateRow, SubscriptionRow,
};
use super::seal::Sealer;
use super::shared::{guarded, open_database};
use super::{keys, view};

/// Maximum bytes of rows that are taken over: a device has little memory, and the cloud has the objects.
const BYTES_MAX: usize = 48 * 1024 * 1024;

/// All rows that could be read from a damaged store.
#[derive(Debug, Default)]
pub(super) struct Salvage {
    state: Option<StateRow>,
    subscriptions: BTreeMap<u32, SubscriptionRow>,
    objects: Vec<(Vec<u8>, ObjectRow)>,
    reports: BTreeMap<u64, (Waiting, Vec<u8>)>,
    answers: Vec<(Vec<u8>, Vec<u8>)>,
    kept: BTreeMap<Vec<u8>, (u64, u64)>,
    /// Number of rows of objects and of reports that the damaged store recorded; `None` if unknown.
    counted: (Option<u64>, Option<u64>),
    /// Whether all objects and all subscription rows could be read.
    complete: bool,
}

/// Rows of a table as bytes.
struct Rows {
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    /// Number of rows that the table recorded; `None` if unknown.
    counted: Option<u64>,
}

impl Rows {
    fn is_complete(&self) -> bool {
        self.counted == Some(self.rows.len() as u64)
    }
}

impl Salvage {
    /// Reads what can be read. Returns nothing if the file is not a database at all.
    pub(super) fn read(medium: &dyn Medium, sealer: &Sealer) -> Self {
        let Ok(db) = open_database(medium) else { return Self::default() };
        let salvage = attempt(|| db.begin_read().ok()).flatten().map(|txn| Self::of(&txn, sealer));
        // Closing a damaged file may fail in any way.
        attempt(|| drop(db));
        salvage.unwrap_or_default()
    }

    fn of(txn: &ReadTransaction, sealer: &Sealer) -> Self {
        let mut room = BYTES_MAX;
        let state = attempt(|| schema::read_state(&txn.open_table(META).ok()?).ok()).flatten();
        // Reports first, because they exist nowhere else.
        let found = rows(txn, OUTBOX, &mut room);
        let reports = found.rows.iter().filter_map(|(number, row)| {
            let number = u64::from_le_bytes(number.as_slice().try_into().ok()?);
            Some((number, (outbox::decode(number, row).ok()?, row.clone())))
        });
        let (reports, reports_counted) = (reports.collect(), found.counted);
        let found = rows(txn, SUBSCRIPTIONS, &mut room);
        let subscriptions: BTreeMap<_, _> = found
            .rows
            .iter()
            .filter_map(|(number, row)| {
                let number = u32::from_le_bytes(number.as_slice().try_into().ok()?);
                Some((number, serde_json::from_slice(row).ok()?))
            })
            .collect();
        let all_subscriptions = found.counted == Some(subscriptions.len() as u64);
        let note = |row: &[u8]| (row.len() == 16).then(|| <(u64, u64)>::from_bytes(row));
        let kept: BTreeMap<_, _> = rows(txn, KEPT, &mut room)
            .rows
            .into_iter()
            .filter_map(|(row_key, row)| Some((row_key, note(&row)?)))
            .collect();
        let found = rows(txn, OBJECTS, &mut room);
        let (whole, objects_counted) = (found.is_complete(), found.counted);
        let objects: Vec<_> =
            found.rows.into_iter().filter_map(|(row_key, row)| object(sealer, row_key, &row)).collect();
        let complete = all_subscriptions && whole && objects_counted == Some(objects.len() as u64);
        let answers = rows(txn, ANSWERS, &mut room).rows;
        let answers =
            answers.into_iter().filter(|(row_key, row)| answers::is_sound(sealer, row_key, row)).collect();
        let counted = (objects_counted, reports_counted);
        Self { state, subscriptions, objects, reports, answers, kept, counted, complete }
    }

    /// Writes everything into a new store, in one transaction.
    ///
    /// # Errors
    /// [`WriteError`] when it cannot be written.
    pub(super) fn fill(&self, db: &Database, first: Revision) -> Result<(), WriteError> {
        let txn = db.begin_write().map_err(storage)?;
        self.fill_state(&txn, first)?;
        self.fill_subscriptions(&txn)?;
        self.fill_objects(&txn)?;
        self.fill_reports(&txn)?;
        let mut answers = txn.open_table(ANSWERS).map_err(storage)?;
        for (row_key, row) in &self.answers {
            answers.insert(row_key.as_slice(), row.as_slice()).map_err(storage)?;
        }
        drop(answers);
        txn.commit().map_err(storage)
    }

    fn fill_state(&self, txn: &WriteTransaction, first: Revision) -> Result<(), WriteError> {
        let mut state = schema::read_state(&txn.open_table(META).map_err(storage)?)?;
        let old = self.state.as_ref();
        if let Some(old) = old {
            state.store.clone_from(&old.store);
            state.attestation.clone_from(&old.attestation);
        }
        let newest =
            |of: fn(&ObjectRow) -> u64| self.objects.iter().map(|(_, row)| of(row)).max().unwrap_or(0);
        let recorded = old.map_or(0, |old| old.revision);
        state.revision = first.0.max(recorded).max(newest(|row| row.local));
        state.floor = state.revision;
        let era =
            old.map_or(0, |old| old.era).max(self.objects.iter().map(|(_, row)| row.era).max().unwrap_or(0));
        // No version belongs to the new era, so every delivery counts as newer than the salvaged objects.
        state.era = era.saturating_add(1);
        let last = self.reports.keys().next_back().map_or(0, |last| last.saturating_add(1));
        state.next_report = old.map_or(1, |old| old.next_report).max(last);
        // Counted on first use.
        state.report_bytes = None;
        let asked = self.kept.values().map(|(asked, _)| *asked).max().unwrap_or(0);
        state.questions = old.map_or(0, |old| old.questions).max(asked);
        schema::write_state(txn, &state)
    }

    fn fill_subscriptions(&self, txn: &WriteTransaction) -> Result<(), WriteError> {
        let mut subscriptions = txn.open_table(SUBSCRIPTIONS).map_err(storage)?;
        for (number, row) in &self.subscriptions {
            // A subscription counts as complete only if nothing is missing: clients rely on lists being complete.
            let row = SubscriptionRow { epoch: None, synced: row.synced && self.complete, ..row.clone() };
            let text = serde_json::to_vec(&row).map_err(|error| WriteError::Storage(error.to_string()))?;
            subscriptions.insert(number, text.as_slice()).map_err(storage)?;
        }
        Ok(())
    }

    fn fill_objects(&self, txn: &WriteTransaction) -> Result<(), WriteError> {
        let mut objects = txn.open_table(OBJECTS).map_err(storage)?;
        let mut hidden = txn.open_table(HIDDEN).map_err(storage)?;
        let mut keeping = txn.open_table(KEPT).map_err(storage)?;
        for (row_key, row) in &self.objects {
            let note = self.kept.get(row_key);
            let known = |subscription: &u32| match unreading(*subscription).unwrap_or(*subscription) {
                subscription if subscription == SubscriptionId::NODE.0 => true,
                subscription if subscription == SINGLE_OBJECTS.0 => note.is_some(),
                subscription => self.subscriptions.contains_key(&subscription),
            };
            let subscriptions: Vec<u32> = row.subscriptions.iter().copied().filter(known).collect();
            if subscriptions.is_empty() {
                continue;
            }
            if let Some(note) = note.filter(|_| subscriptions.contains(&SINGLE_OBJECTS.0)) {
                keeping.insert(row_key.as_slice(), *note).map_err(storage)?;
            }
            let row = ObjectRow { subscriptions, ..row.clone() };
            let mut row = if row.is_unread_by_all() { ObjectRow::absent(row.subscriptions) } else { row };
            if row.state == State::Hidden {
                hidden.insert(row_key.as_slice(), ()).map_err(storage)?;
            }
            // The text may differ from what the cloud sent, so its hash must not match.
            row.version.hash = ContentHash(0);
            objects.insert(row_key.as_slice(), row.encode().as_slice()).map_err(storage)?;
        }
        Ok(())
    }

    fn fill_reports(&self, txn: &WriteTransaction) -> Result<(), WriteError> {
        let mut rows = txn.open_table(OUTBOX).map_err(storage)?;
        let mut slots = txn.open_table(SLOTS).map_err(storage)?;
        let mut seen = BTreeSet::new();
        // Of two reports about the same thing, keep the newer one.
        for (number, (waiting, row)) in self.reports.iter().rev() {
            let Some(slot) = outbox::slot(waiting.kind, &waiting.key) else { continue };
            if seen.insert(slot.clone()) {
                slots.insert(slot.as_slice(), *number).map_err(storage)?;
                rows.insert(*number, row.as_slice()).map_err(storage)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Salvage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |counted: Option<u64>| {
            counted.map_or_else(|| "an unknown number of".to_owned(), |n| n.to_string())
        };
        let identity = if self.state.is_some() { "kept" } else { "lost" };
        write!(
            f,
            "saved {} of {} objects, {} of {} reports; the store's identity is {identity}, its history is lost",
            self.objects.len(),
            of(self.counted.0),
            self.reports.len(),
            of(self.counted.1),
        )
    }
}

/// The row of an object, if all of it can be read.
fn object(sealer: &Sealer, row_key: Vec<u8>, row: &[u8]) -> Option<(Vec<u8>, ObjectRow)> {
    let key = keys::decode(&row_key)?;
    let row = ObjectRow::decode(row).ok()?;
    let text = view::plain(sealer, &key, &row).ok()?;
    let readable = row.state == State::Absent
        || serde_json::from_slice::<serde_json::Value>(&text)
            .is_ok_and(|object| object["metadata"]["name"] == key.name());
    readable.then_some((row_key, row))
}

/// All rows of a table that can be read: from its beginning to the first unreadable row, and likewise from its end.
fn rows<K: Key + 'static, V: Value + 'static>(
    txn: &ReadTransaction,
    definition: TableDefinition<'static, K, V>,
    room: &mut usize,
) -> Rows {
    let mut found = Rows { rows: Vec::new(), counted: None };
    let Some(table) = attempt(|| txn.open_table(definition).ok()).flatten() else { return found };
    found.counted = attempt(|| table.len().ok()).flatten();
    let mut seen = BTreeSet::new();
    for from_end in [false, true] {
        let Some(mut range) = attempt(|| table.iter().ok()).flatten() else { break };
        loop {
            let next = attempt(|| {
                let entry = if from_end { range.next_back() } else { range.next() };
                let (key, row) = entry?.ok()?;
                let key = K::as_bytes(&key.value()).as_ref().to_vec();
                Some((key, V::as_bytes(&row.value()).as_ref().to_vec()))
            });
            let Some((key, row)) = next.flatten() else { break };
            let size = key.len() + row.len();
            if size > *room || !seen.insert(key.clone()) {
                break;
            }
            *room -= size;
            found.rows.push((key, row));
        }
        if found.is_complete() {
            break;
        }
    }
    found
}

/// Runs database code, which may panic on a damaged file. Returns `None` then.
fn attempt<T>(work: impl FnOnce() -> T) -> Option<T> {
    guarded(|| Ok(work())).ok()
}
