//! Hidden pods: clients do not see a pod before the objects that it refers to are known.

use redb::ReadableTable;
use tombolo_proto::ids::SubscriptionId;
use tombolo_proto::object::ObjectKey;

use super::super::error::{WriteError, storage};
use super::super::row::{ObjectRow, State};
use super::super::{keys, view};
use super::{Batch, damaged};

impl Batch<'_> {
    /// Adds an object to the hidden ones.
    pub(super) fn hide(&mut self, row_key: &[u8]) -> Result<(), WriteError> {
        self.hidden.open()?.insert(row_key, ()).map_err(storage)?;
        Ok(())
    }

    /// Removes an object from the hidden ones.
    pub(super) fn uncover(&mut self, row_key: &[u8]) -> Result<(), WriteError> {
        if self.tally.hidden > 0 {
            self.hidden.open()?.remove(row_key).map_err(storage)?;
        }
        Ok(())
    }

    /// Shows the hidden pods whose references are all known now.
    pub(super) fn reveal(&mut self) -> Result<(), WriteError> {
        if self.tally.hidden == 0 {
            return Ok(());
        }
        let mut waiting = Vec::new();
        for entry in self.hidden.open()?.iter().map_err(storage)? {
            waiting.push(entry.map_err(storage)?.0.value().to_vec());
        }
        for row_key in waiting {
            let Some(row) = self.row(&row_key)? else { continue };
            if self.all_known(&row.dependencies)? {
                let key = keys::decode(&row_key).ok_or_else(|| damaged("key"))?;
                let body = view::plain(self.sealer, &key, &row)?;
                let row = ObjectRow { state: State::Visible, body, ..row };
                self.replace(&row_key, &key, None, row)?;
            }
        }
        Ok(())
    }

    /// Whether readers of the pushed set see all these objects, or know that they do not exist.
    pub(super) fn all_known(&self, dependencies: &[ObjectKey]) -> Result<bool, WriteError> {
        for key in dependencies {
            let Some(row_key) = keys::encode(key) else { continue };
            // Readers of the pushed set do not see objects of other subscriptions.
            if !self.row(&row_key)?.is_some_and(|row| row.concerns(SubscriptionId::NODE)) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
