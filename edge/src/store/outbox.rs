//! Reports that must reach the cloud. They survive a crash, and a newer report replaces an older one about the same
//! thing.

use bytes::Bytes;
use redb::{ReadableTable, Table};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tombolo_apicore::backend::PatchType;
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};

use super::error::{ReadError, WriteError, reading, storage};
use super::keys;
use super::splice::{self, SpliceError};
use crate::paths;

/// Maximum number of waiting reports; further ones are refused.
pub const REPORTS_MAX: u64 = 8192;

/// Maximum bytes of waiting reports. Beyond it the oldest events are dropped first. Other reports stay, because each
/// has the newest state of its object. If that does not make enough room, the new report is refused.
pub const REPORTS_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Maximum bytes of reports that are read at a time; a larger one is read alone.
pub(super) const READ_BYTES_MAX: usize = 1024 * 1024;

/// Maximum number of waiting events. Beyond it the oldest event is dropped, as the API server drops old events too.
pub const EVENTS_MAX: u64 = 512;

/// The subject of a report about an object. Only the newest report of each kind about an object is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReportKind {
    /// Its status.
    Status,
    /// Its removal from the API, because what it represents on this node has ended.
    Removal,
    /// An event.
    Event,
    /// The node's lease.
    Lease,
}

impl ReportKind {
    fn tag(self) -> u8 {
        match self {
            Self::Status => 1,
            Self::Removal => 2,
            Self::Event => 3,
            Self::Lease => 4,
        }
    }

    /// The kind of reports that change objects of a resource as clients of this node see them.
    pub(crate) fn shown_in(resource: &Resource) -> Self {
        match (&*resource.group, &*resource.name) {
            ("coordination.k8s.io", "leases") => Self::Lease,
            ("", "events") => Self::Event,
            _ => Self::Status,
        }
    }

    /// The part of an object that reports of this kind change; `None` means the whole object.
    pub(crate) fn member(self) -> Option<&'static str> {
        match self {
            Self::Status => Some("status"),
            Self::Lease => Some("spec"),
            Self::Removal | Self::Event => None,
        }
    }

    /// Whether the object in the cloud's answer is stored even if nothing else here needs it.
    pub(crate) fn keeps_answer(self) -> bool {
        matches!(self, Self::Lease | Self::Event)
    }
}

/// A Kubernetes API call to make as this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// HTTP method.
    pub method: String,
    /// Path and query.
    pub path_and_query: String,
    /// Media type of the body; empty without one.
    pub content_type: String,
    /// JSON text; empty for none.
    pub body: String,
}

impl Call {
    /// The call that changes the status of an object by a strategic merge patch. The UID prevents the change of another
    /// object that got the name meanwhile.
    pub(crate) fn patch_status(key: &ObjectKey, uid: Option<&str>, mut patch: Value) -> Self {
        if let Some(uid) = uid {
            patch["metadata"] = json!({"uid": uid});
        }
        Self {
            method: "PATCH".to_owned(),
            path_and_query: paths::part(key, "status"),
            content_type: PatchType::Strategic.media_type().to_owned(),
            body: patch.to_string(),
        }
    }
}

/// A report to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Its subject.
    pub kind: ReportKind,
    /// The object.
    pub key: ObjectKey,
    /// The API call that makes the report.
    pub call: Call,
    /// The status that clients of the local API see from now on (JSON text); `None` leaves it unchanged.
    pub status: Option<Bytes>,
    /// The version at the cloud (JSON text) that the changes in the call are based on; `None` if the call has the whole
    /// content. A report that replaces another one keeps the other's base.
    pub base: Option<String>,
}

/// A waiting report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Its number. A newer report about the same thing has another number.
    pub number: u64,
    /// Its subject.
    pub kind: ReportKind,
    /// The object.
    pub key: ObjectKey,
    /// The API call that makes the report.
    pub call: Call,
    /// As [`Report::base`].
    pub base: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct ReportRow {
    kind: ReportKind,
    /// Key bytes, hexadecimal.
    key: String,
    call: Call,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sent: Option<SentPart>,
}

/// The part of an object that a waiting report hides, as the cloud sent it last.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SentPart {
    /// UID of the object.
    pub(super) uid: String,
    /// The value of [`ReportKind::member`], or the whole object.
    pub(super) part: Box<RawValue>,
}

impl SentPart {
    /// The part of a sent object that reports of this kind change.
    pub(super) fn of(kind: ReportKind, uid: &Uid, sent: &[u8]) -> Result<Self, SpliceError> {
        let part = match kind.member() {
            None => serde_json::from_slice(sent)?,
            Some(name) => match splice::member(sent, name) {
                Some(part) => part.to_owned(),
                None => to_raw_value(&json!({}))?,
            },
        };
        Ok(Self { uid: uid.as_str().to_owned(), part })
    }
}

/// A report that no longer waits.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) kind: ReportKind,
    pub(super) key: ObjectKey,
    /// What the cloud sent while the report waited.
    pub(super) sent: Option<SentPart>,
}

/// The slot of a report. Reports about the same thing have the same slot.
pub(super) fn slot(kind: ReportKind, key: &ObjectKey) -> Option<Vec<u8>> {
    let mut slot = vec![kind.tag()];
    slot.extend_from_slice(&keys::encode(key)?);
    Some(slot)
}

fn encode(report: &Report, sent: Option<SentPart>) -> Option<Vec<u8>> {
    let key = hex::encode(keys::encode(&report.key)?);
    let (call, base) = (report.call.clone(), report.base.clone());
    serde_json::to_vec(&ReportRow { kind: report.kind, key, call, base, sent }).ok()
}

impl ReportRow {
    fn decode(row: &[u8]) -> Result<Self, ReadError> {
        serde_json::from_slice(row).map_err(|_| ReadError::Damaged("outbox"))
    }

    fn key(&self) -> Result<ObjectKey, ReadError> {
        let key = hex::decode(&self.key).ok().and_then(|key| keys::decode(&key));
        key.ok_or(ReadError::Damaged("outbox"))
    }
}

pub(super) fn decode(number: u64, row: &[u8]) -> Result<Waiting, ReadError> {
    let row = ReportRow::decode(row)?;
    Ok(Waiting { number, kind: row.kind, key: row.key()?, call: row.call, base: row.base })
}

pub(super) type Rows<'t> = Table<'t, u64, &'static [u8]>;
pub(super) type Slots<'t> = Table<'t, &'static [u8], u64>;

/// Adds a report, or replaces the one about the same thing. Updates `bytes`, the size of all rows. Returns the events
/// that made room.
pub(super) fn put(
    rows: &mut Rows<'_>,
    slots: &mut Slots<'_>,
    bytes: &mut u64,
    number: u64,
    report: &Report,
) -> Result<Vec<Settled>, WriteError> {
    let unusable = || WriteError::Rejected(format!("{} cannot be reported", report.key));
    let slot = slot(report.kind, &report.key).ok_or_else(unusable)?;
    let older = slots.insert(slot.as_slice(), number).map_err(storage)?.map(|older| older.value());
    let older = older.map(|older| remove(rows, bytes, older)).transpose()?.flatten();
    let row = encode(report, older.and_then(|older| older.sent)).ok_or_else(unusable)?;
    let evicted = make_room(rows, slots, bytes, (number, report.kind), row.len() as u64)?;
    insert(rows, bytes, number, &row)?;
    Ok(evicted)
}

/// Drops the oldest events until there is room for a report of this length.
fn make_room(
    rows: &mut Rows<'_>,
    slots: &mut Slots<'_>,
    bytes: &mut u64,
    (number, kind): (u64, ReportKind),
    len: u64,
) -> Result<Vec<Settled>, WriteError> {
    let mut events = if kind == ReportKind::Event || *bytes + len > REPORTS_BYTES_MAX {
        older_events(slots, number)?
    } else {
        Vec::new()
    };
    let mut evicted = Vec::new();
    while let Some(oldest) = events.pop()
        && (events.len() as u64 + 1 >= EVENTS_MAX || *bytes + len > REPORTS_BYTES_MAX)
    {
        evicted.extend(settle(rows, slots, bytes, oldest)?);
    }
    if reading_len(rows)? >= REPORTS_MAX {
        return Err(WriteError::Rejected(format!("{REPORTS_MAX} reports wait for the cloud already")));
    }
    if *bytes + len > REPORTS_BYTES_MAX {
        let text = format!("reports of {} MiB wait for the cloud already", REPORTS_BYTES_MAX >> 20);
        return Err(WriteError::Rejected(text));
    }
    Ok(evicted)
}

fn insert(rows: &mut Rows<'_>, bytes: &mut u64, number: u64, row: &[u8]) -> Result<(), WriteError> {
    rows.insert(number, row).map_err(storage)?;
    *bytes += row.len() as u64;
    Ok(())
}

fn remove(rows: &mut Rows<'_>, bytes: &mut u64, number: u64) -> Result<Option<ReportRow>, WriteError> {
    let Some(row) = rows.remove(number).map_err(storage)? else { return Ok(None) };
    *bytes = bytes.saturating_sub(row.value().len() as u64);
    Ok(Some(ReportRow::decode(row.value())?))
}

/// Bytes of all rows.
pub(super) fn bytes(rows: &Rows<'_>) -> Result<u64, WriteError> {
    let len = |entry: Result<(redb::AccessGuard<'_, u64>, redb::AccessGuard<'_, &'static [u8]>), _>| {
        Ok(entry.map_err(storage)?.1.value().len() as u64)
    };
    rows.iter().map_err(storage)?.map(len).sum()
}

/// Keeps what the cloud has sent with the report that hides it. It counts as bytes of the report, but a delivery is
/// never refused for them: they are at most those of the object.
pub(super) fn note_sent(
    rows: &mut Rows<'_>,
    slots: &Slots<'_>,
    bytes: &mut u64,
    slot: &[u8],
    sent: SentPart,
) -> Result<(), WriteError> {
    let number = slots.get(slot).map_err(storage)?.map(|number| number.value());
    let Some(number) = number else { return Ok(()) };
    let Some(row) = remove(rows, bytes, number)? else { return Ok(()) };
    let row = serde_json::to_vec(&ReportRow { sent: Some(sent), ..row });
    insert(rows, bytes, number, &row.map_err(|error| WriteError::Storage(error.to_string()))?)
}

/// Removes a report, unless a newer one has replaced it.
pub(super) fn settle(
    rows: &mut Rows<'_>,
    slots: &mut Slots<'_>,
    bytes: &mut u64,
    number: u64,
) -> Result<Option<Settled>, WriteError> {
    let Some(row) = remove(rows, bytes, number)? else { return Ok(None) };
    let settled = Settled { kind: row.kind, key: row.key()?, sent: row.sent };
    if let Some(slot) = slot(settled.kind, &settled.key) {
        slots.remove(slot.as_slice()).map_err(storage)?;
    }
    Ok(Some(settled))
}

fn reading_len(rows: &Rows<'_>) -> Result<u64, WriteError> {
    use redb::ReadableTableMetadata;
    rows.len().map_err(storage)
}

/// Numbers of the waiting events, the oldest last, without the one that is about to be added. The slots of events are
/// contiguous, because they start with the tag.
fn older_events(slots: &Slots<'_>, number: u64) -> Result<Vec<u64>, WriteError> {
    let tag = ReportKind::Event.tag();
    let (start, end) = ([tag], [tag + 1]);
    let mut events = Vec::new();
    for entry in slots.range(start.as_slice()..end.as_slice()).map_err(storage)? {
        events.push(entry.map_err(storage)?.1.value());
    }
    events.retain(|event| *event != number);
    events.sort_unstable_by_key(|event| std::cmp::Reverse(*event));
    Ok(events)
}

/// The waiting report of a slot.
pub(super) fn waiting(
    rows: &impl ReadableTable<u64, &'static [u8]>,
    slots: &impl ReadableTable<&'static [u8], u64>,
    slot: &[u8],
) -> Result<Option<Waiting>, ReadError> {
    let Some(number) = slots.get(slot).map_err(reading)?.map(|number| number.value()) else {
        return Ok(None);
    };
    let row = rows.get(number).map_err(reading)?;
    row.map(|row| decode(number, row.value())).transpose()
}

/// The oldest reports above a number, up to `count` and up to [`READ_BYTES_MAX`], but at least one.
pub(super) fn read(
    rows: &impl ReadableTable<u64, &'static [u8]>,
    after: u64,
    count: usize,
) -> Result<Vec<Waiting>, ReadError> {
    let (mut reports, mut bytes) = (Vec::new(), 0);
    for entry in rows.range(after.saturating_add(1)..).map_err(reading)?.take(count) {
        let (number, row) = entry.map_err(reading)?;
        bytes += row.value().len();
        if bytes > READ_BYTES_MAX && !reports.is_empty() {
            break;
        }
        reports.push(decode(number.value(), row.value())?);
    }
    Ok(reports)
}

/// Checks that every report can be read.
pub(super) fn verify(rows: &impl ReadableTable<u64, &'static [u8]>) -> Result<(), ReadError> {
    for entry in rows.iter().map_err(reading)? {
        let (number, row) = entry.map_err(reading)?;
        decode(number.value(), row.value())?;
    }
    Ok(())
}
