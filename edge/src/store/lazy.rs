//! Tables of a write transaction that are opened on first use. Each open table makes a commit slower, and most commits
//! touch only three.

use redb::{Key, Table, TableDefinition, Value, WriteTransaction};

use super::error::{WriteError, storage};

/// A table that is opened on first use.
pub(super) struct Lazy<'t, K: Key + 'static, V: Value + 'static> {
    txn: &'t WriteTransaction,
    definition: TableDefinition<'static, K, V>,
    table: Option<Table<'t, K, V>>,
}

impl<'t, K: Key + 'static, V: Value + 'static> Lazy<'t, K, V> {
    pub(super) fn new(txn: &'t WriteTransaction, definition: TableDefinition<'static, K, V>) -> Self {
        Self { txn, definition, table: None }
    }

    /// The table.
    ///
    /// # Errors
    /// [`WriteError`] when the file cannot be read.
    pub(super) fn open(&mut self) -> Result<&mut Table<'t, K, V>, WriteError> {
        let table = match self.table.take() {
            Some(table) => table,
            None => self.txn.open_table(self.definition).map_err(storage)?,
        };
        Ok(self.table.insert(table))
    }

    /// Whether it was used.
    pub(super) fn is_open(&self) -> bool {
        self.table.is_some()
    }
}
