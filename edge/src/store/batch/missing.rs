//! Objects that pods here refer to, or that are followed, and that do not come: there are none, or the cloud cannot read them.

use tombolo_proto::ids::CloudRevision;
use tombolo_proto::object::ObjectKey;

use super::super::error::WriteError;
use super::super::row::{ObjectRow, State, unread_by};
use super::Batch;

impl Batch<'_> {
    /// The cloud has no such object.
    pub(super) fn absent(&mut self, scope: u32, place: &[u8], key: &ObjectKey) -> Result<(), WriteError> {
        let old = self.row(place)?;
        let mut scopes = old.as_ref().map(|row| row.scopes.clone()).unwrap_or_default();
        super::add(&mut scopes, scope);
        if let Some(row) = old.filter(|row| row.state != State::Absent) {
            if row.state == State::Visible {
                self.publish_deletion(key, &row, &row.scopes)?;
            }
            self.forget_answers(key, &row)?;
        }
        self.uncover(place)?;
        self.put(place, &ObjectRow::absent(scopes))
    }

    /// The cloud cannot read an object that a scope wants. What the scope holds of it stays; what belongs to another history is
    /// older than anything that the cloud will send in this one.
    pub(super) fn unreadable(&mut self, scope: u32, place: &[u8]) -> Result<(), WriteError> {
        let mut row = self.row(place)?.unwrap_or_else(|| ObjectRow::absent(Vec::new()));
        if row.state != State::Absent && row.scopes.contains(&scope) {
            if row.era != self.state.era {
                row.era = self.state.era;
                row.version.revision = CloudRevision(0);
            }
            return self.put(place, &row);
        }
        row.scopes.retain(|other| *other != scope);
        super::add(&mut row.scopes, unread_by(scope));
        self.put(place, &row)
    }

    /// The scope does not want it any more. Its readers have seen nothing of it.
    pub(super) fn forget_unreadable(
        &mut self,
        scope: u32,
        place: &[u8],
        mut row: ObjectRow,
    ) -> Result<(), WriteError> {
        row.scopes.retain(|other| *other != unread_by(scope));
        if row.scopes.is_empty() { self.remove(place, row.state) } else { self.put(place, &row) }
    }
}
