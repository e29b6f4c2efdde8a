//! Referenced or followed objects that the cloud does not deliver, because they do not exist or the cloud cannot read
//! them.

use tombolo_proto::ids::CloudRevision;
use tombolo_proto::object::ObjectKey;

use super::super::error::WriteError;
use super::super::row::{ObjectRow, State, unread_by};
use super::Batch;

impl Batch<'_> {
    /// Records that the cloud has no such object.
    pub(super) fn absent(
        &mut self,
        subscription: u32,
        row_key: &[u8],
        key: &ObjectKey,
    ) -> Result<(), WriteError> {
        let old = self.row(row_key)?;
        let mut subscriptions = old.as_ref().map(|row| row.subscriptions.clone()).unwrap_or_default();
        super::add(&mut subscriptions, subscription);
        if let Some(row) = old.filter(|row| row.state != State::Absent) {
            if row.state == State::Visible {
                self.publish_deletion(key, &row, &row.subscriptions)?;
            }
            self.forget_answers(key, &row)?;
        }
        self.uncover(row_key)?;
        self.put(row_key, &ObjectRow::absent(subscriptions))
    }

    /// Records that the cloud cannot read an object that a subscription wants. A stored version of the subscription
    /// stays. If it belongs to another history, it counts as older than everything that the cloud will send in this
    /// one.
    pub(super) fn unreadable(&mut self, subscription: u32, row_key: &[u8]) -> Result<(), WriteError> {
        let mut row = self.row(row_key)?.unwrap_or_else(|| ObjectRow::absent(Vec::new()));
        if row.state != State::Absent && row.subscriptions.contains(&subscription) {
            if row.era != self.state.era {
                row.era = self.state.era;
                row.version.revision = CloudRevision(0);
            }
            return self.put(row_key, &row);
        }
        row.subscriptions.retain(|other| *other != subscription);
        super::add(&mut row.subscriptions, unread_by(subscription));
        self.put(row_key, &row)
    }

    /// Forgets an unreadable object that the subscription no longer wants. Its readers have never seen it.
    pub(super) fn forget_unreadable(
        &mut self,
        subscription: u32,
        row_key: &[u8],
        mut row: ObjectRow,
    ) -> Result<(), WriteError> {
        row.subscriptions.retain(|other| *other != unread_by(subscription));
        if row.subscriptions.is_empty() { self.remove(row_key, row.state) } else { self.put(row_key, &row) }
    }
}
