//! Reports, and the parts of objects that they hide. While a report waits, clients see the part that it changes as this
//! node has it. What the cloud sends of that part meanwhile is kept with the report and shown when the report is
//! answered: the cloud will not send it again.

use bytes::Bytes;
use redb::ReadableTable;
use tombolo_proto::object::{ObjectKey, ObjectVersion};

use super::super::error::{WriteError, storage};
use super::super::outbox::{self, Report, ReportKind, SentPart, Settled};
use super::super::row::{ObjectRow, State};
use super::super::{Learned, keys, splice, view};
use super::Batch;

impl Batch<'_> {
    /// Puts a report into the outbox and shows its status to clients, in one transaction.
    pub(in crate::store) fn report(&mut self, report: &Report) -> Result<(), WriteError> {
        let (number, mut bytes) = (self.state.next_report, self.report_bytes()?);
        let evicted = outbox::put(self.outbox.open()?, self.slots.open()?, &mut bytes, number, report)?;
        self.state.report_bytes = Some(bytes);
        self.state.next_report = number.saturating_add(1);
        evicted.into_iter().try_for_each(|settled| self.show_sent(settled))?;
        let Some(status) = &report.status else { return Ok(()) };
        let Some(row_key) = keys::encode(&report.key) else { return Ok(()) };
        let Some(old) = self.row(&row_key)?.filter(|row| row.state != State::Absent) else { return Ok(()) };
        let body = view::plain(self.sealer, &report.key, &old)?;
        let text = std::str::from_utf8(status).map_err(|error| WriteError::Rejected(error.to_string()))?;
        let body = splice::with_member(&body, "status", text)?;
        let row = ObjectRow { body, sealed: false, local: 0, ..old.clone() };
        self.replace(&row_key, &report.key, Some(old), row)
    }

    /// Removes a report from the outbox, unless a newer one about the same thing waits, and stores the object from its
    /// answer. If the cloud has already sent that version or a newer one, clients now see all of what it sent.
    pub(in crate::store) fn settle(
        &mut self,
        number: u64,
        learned: Option<&Learned>,
    ) -> Result<(), WriteError> {
        let mut bytes = self.report_bytes()?;
        let settled = outbox::settle(self.outbox.open()?, self.slots.open()?, &mut bytes, number)?;
        self.state.report_bytes = Some(bytes);
        let sent = settled.as_ref().map(|settled| self.version(&settled.key)).transpose()?;
        if let Some(learned) = learned {
            self.learn(learned)?;
        }
        match settled {
            Some(settled) if sent == Some(self.version(&settled.key)?) => self.show_sent(settled),
            _ => Ok(()),
        }
    }

    fn version(&self, key: &ObjectKey) -> Result<Option<ObjectVersion>, WriteError> {
        let Some(row_key) = keys::encode(key) else { return Ok(None) };
        Ok(self.row(&row_key)?.map(|row| row.version))
    }

    /// Shows what the cloud has sent while a report hid it.
    fn show_sent(&mut self, settled: Settled) -> Result<(), WriteError> {
        let Settled { kind, key, sent: Some(sent) } = settled else { return Ok(()) };
        let Some(row_key) = keys::encode(&key) else { return Ok(()) };
        let held = self.row(&row_key)?;
        let meant = |row: &ObjectRow| row.state != State::Absent && row.version.uid.as_str() == sent.uid;
        let Some(old) = held.filter(meant) else { return Ok(()) };
        let shown = view::plain(self.sealer, &key, &old)?;
        let body = match kind.member() {
            Some(name) => splice::with_member(&shown, name, sent.part.get())?,
            None => Bytes::copy_from_slice(sent.part.get().as_bytes()),
        };
        if body == shown {
            return Ok(());
        }
        let row = ObjectRow { body, sealed: false, local: 0, ..old.clone() };
        self.replace(&row_key, &key, Some(old), row)
    }

    /// The object sent by the cloud, with the part that this node has reported and the cloud has not confirmed yet.
    pub(super) fn with_own(
        &mut self,
        held: &ObjectRow,
        key: &ObjectKey,
        sent: &Bytes,
    ) -> Result<Bytes, WriteError> {
        let kind = ReportKind::shown_in(key.resource());
        let Some(slot) = outbox::slot(kind, key) else { return Ok(sent.clone()) };
        if self.slots.open()?.get(slot.as_slice()).map_err(storage)?.is_none() {
            return Ok(sent.clone());
        }
        let own = view::plain(self.sealer, key, held)?;
        let shown = match kind.member() {
            None => own,
            Some(name) => match splice::member(&own, name) {
                Some(part) => splice::with_member(sent, name, part.get())?,
                None => return Ok(sent.clone()),
            },
        };
        let mut bytes = self.report_bytes()?;
        let part = SentPart::of(kind, &held.version.uid, sent)?;
        outbox::note_sent(self.outbox.open()?, self.slots.open()?, &mut bytes, &slot, part)?;
        self.state.report_bytes = Some(bytes);
        Ok(shown)
    }

    /// Bytes of the waiting reports. Counted on first use in a store of an older version that did not record them.
    fn report_bytes(&mut self) -> Result<u64, WriteError> {
        match self.state.report_bytes {
            Some(bytes) => Ok(bytes),
            None => outbox::bytes(self.outbox.open()?),
        }
    }
}
