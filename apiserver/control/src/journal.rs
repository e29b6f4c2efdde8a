//! The durable copy of the objects: a redb file with one row per object, written in batches.
//!
//! Objects are served from memory. After a crash at any instruction, the journal must have every change that was
//! acknowledged to a client. A batch is one transaction with one sync to disk. If the disk refuses a batch, the batch
//! is undone before the failure is reported, or the rows that it replaced are kept beside the file ([`refused`]), so
//! that the batch does not reappear after a restart. Only if both fail is the outcome unknown, and the error says so.
//! The file is opened again for later batches, so no restart is needed when the disk has room again.

mod refused;
mod row;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, StorageBackend, TableDefinition};
use tombolo_apicore::memory::{Journal, JournalEntry};
use tombolo_apicore::store::{Revision, StoreError, Stored};
use tombolo_apicore::stored::compressed::Compressor;
use tombolo_runtime::files::is_full;

use self::refused::{Refused, Undo};
use super::error::EmbeddedError;

/// One row per object, keyed by [`row::key`].
const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");

/// Numbers, by name.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");

/// Row of [`NUMBERS`]: the newest revision, including those of deletions.
const REVISION: &str = "revision";

/// redb's page cache. Objects live in memory, so the cache only serves the inner pages of the tree.
const CACHE_BYTES: usize = 256 * 1024;

/// The file is compacted at start when it is this many times larger than its content.
const SLACK_FACTOR: u64 = 4;

/// Files smaller than this are never compacted.
const SLACK_BYTES_MIN: u64 = 64 * 1024 * 1024;

/// Opens the journal's storage. Called again after the storage failed. Tests use failing disks here.
pub(super) type OpenStorage = dyn Fn(&Path) -> io::Result<Box<dyn StorageBackend>> + Send + Sync;

/// The ordinary storage: a file that only its owner can read.
pub(super) fn file_storage(path: &Path) -> io::Result<Box<dyn StorageBackend>> {
    use std::os::unix::fs::OpenOptionsExt as _;

    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    FileBackend::new(file).map(|backend| Box::new(backend) as _).map_err(io::Error::other)
}

/// The content of a journal when it is opened.
#[derive(Debug, Default)]
pub(super) struct Restored {
    /// The newest revision that was ever stored.
    pub(super) revision: Revision,
    /// All objects.
    pub(super) objects: Vec<Stored>,
}

/// The journal of one data directory. Cheap to clone: clones share the file.
#[derive(Clone)]
pub(super) struct RedbJournal {
    shared: Arc<JournalInner>,
}

struct JournalInner {
    path: PathBuf,
    open: Box<OpenStorage>,
    state: Mutex<JournalState>,
}

/// `None` after a failure, until the file is opened again.
struct JournalState {
    database: Option<Database>,
    /// Newest revision whose batch was reported as stored.
    revision: u64,
    /// The batch that failed, in case it reached the disk nevertheless.
    refused: Option<Refused>,
    closed: bool,
}

impl RedbJournal {
    /// Opens the file, creating it when it does not exist, and reads it.
    ///
    /// # Errors
    /// [`EmbeddedError::Journal`] when the file is damaged or cannot be opened.
    pub(super) fn open(path: &Path, open: Box<OpenStorage>) -> Result<(Self, Restored), EmbeddedError> {
        let failed = |message: String| EmbeddedError::Journal { path: path.to_owned(), message };
        let mut database = open_database(path, &*open).map_err(|e| failed(e.to_string()))?;
        let kept = Refused::kept(path).map_err(|e| failed(e.to_string()))?;
        if let Some(refused) = kept {
            take_back(&database, &refused).map_err(|e| failed(e.to_string()))?;
            Refused::forget(path).map_err(|e| failed(e.to_string()))?;
        }
        let restored = restore(&database).map_err(|e| failed(e.to_string()))?;
        let live: u64 = restored.objects.iter().map(|object| object.body_len() as u64 + 256).sum();
        let size = std::fs::metadata(path).map(|meta| meta.len()).unwrap_or_default();
        if size > SLACK_BYTES_MIN && size / SLACK_FACTOR > live {
            database.compact().map_err(|e| failed(e.to_string()))?;
        }
        let state = JournalState {
            database: Some(database),
            revision: restored.revision.0,
            refused: None,
            closed: false,
        };
        let shared = JournalInner { path: path.to_owned(), open, state: Mutex::new(state) };
        Ok((Self { shared: Arc::new(shared) }, restored))
    }
}

impl RedbJournal {
    /// Closes the file, even if other clones of this journal exist. Nothing is written from now on, so that another
    /// server may open the directory.
    pub(super) fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        state.database = None;
    }
}

impl Journal for RedbJournal {
    fn append(&self, batch: &[JournalEntry]) -> Result<(), StoreError> {
        let mut state = self.shared.state.lock();
        let Some(newest) = batch.iter().map(|entry| entry.object.revision.0).max() else { return Ok(()) };
        let not_stored = |e: Failure| StoreError::NotStored { reason: e.to_string() };
        let state = &mut *state;
        let database = self.reopened(state).map_err(not_stored)?;
        let mut undo = Vec::with_capacity(batch.len());
        let written = write(&database, batch, newest, &mut undo);
        match written {
            Ok(()) => {
                state.database = Some(database);
                state.revision = newest;
                Ok(())
            }
            Err(failure) => {
                // The file's state is unknown now. It is opened again and checked before the next batch.
                drop(database);
                tracing::warn!(path = %self.shared.path.display(), error = %failure, "a batch of changes was not written");
                state.refused = Some(Refused { before: state.revision, newest, undo });
                Err(self.refuse(state, &failure))
            }
        }
    }
}

impl RedbJournal {
    /// Ensures that a batch does not reappear after a restart, and only then reports that it was not stored.
    fn refuse(&self, state: &mut JournalState, failure: &Failure) -> StoreError {
        let (path, reason) = (&self.shared.path, failure.to_string());
        let settled = self.reopened(state).map(|database| state.database = Some(database));
        let Err(unsettled) = settled else { return StoreError::NotStored { reason } };
        match state.refused.as_ref().map_or(Ok(()), |refused| refused.keep(path)) {
            Ok(()) => StoreError::NotStored { reason },
            Err(unkept) => {
                tracing::warn!(path = %path.display(), %unsettled, %unkept, "the outcome of a batch is unknown");
                let reason = format!(
                    "{reason}; whether the change is stored is not known until the disk works again: read the object \
                     before you try again"
                );
                StoreError::Unavailable { reason }
            }
        }
    }

    /// The database. After a failure it is opened again, and the failed batch is undone.
    fn reopened(&self, state: &mut JournalState) -> Result<Database, Failure> {
        if state.closed {
            return Err(Failure::Closed);
        }
        if let Some(database) = state.database.take() {
            return Ok(database);
        }
        let database = open_database(&self.shared.path, &*self.shared.open)?;
        if let Some(refused) = &state.refused {
            take_back(&database, refused)?;
            // This must happen before another batch gets its revisions.
            Refused::forget(&self.shared.path).map_err(redb::StorageError::Io)?;
        }
        state.refused = None;
        Ok(database)
    }
}

impl fmt::Debug for RedbJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbJournal").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

/// Any failure of the database.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the disk of the data folder is full: make room on it")]
    Full,
    #[error("{0}")]
    Database(String),
    #[error("the server has stopped")]
    Closed,
    #[error("row {0:?} cannot be read")]
    Row(String),
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        match error.into() {
            redb::Error::Io(io) if is_full(&io) => Self::Full,
            other => Self::Database(other.to_string()),
        }
    }
}

fn open_database(path: &Path, open: &OpenStorage) -> Result<Database, Failure> {
    let storage = open(path).map_err(redb::StorageError::Io)?;
    let mut builder = Database::builder();
    Ok(builder.set_cache_size(CACHE_BYTES).create_with_backend(Boxed(storage))?)
}

fn write(database: &Database, batch: &[JournalEntry], newest: u64, undo: &mut Undo) -> Result<(), Failure> {
    let transaction = database.begin_write()?;
    {
        let mut objects = transaction.open_table(OBJECTS)?;
        for entry in batch {
            let key = row::key(&entry.object.key);
            let old = if entry.deleted {
                objects.remove(key.as_str())?
            } else {
                objects.insert(key.as_str(), row::encode(&entry.object).as_slice())?
            };
            let old = old.map(|row| row.value().to_vec());
            undo.push((key, old));
        }
        transaction.open_table(NUMBERS)?.insert(REVISION, newest)?;
    }
    Ok(transaction.commit()?)
}

/// Restores the old rows if the batch is in the file, newest change first: one key may have changed twice in a batch.
fn take_back(database: &Database, refused: &Refused) -> Result<(), Failure> {
    if revision(database)? != refused.newest {
        return Ok(());
    }
    let transaction = database.begin_write()?;
    {
        let mut objects = transaction.open_table(OBJECTS)?;
        for (key, old) in refused.undo.iter().rev() {
            match old {
                Some(row) => objects.insert(key.as_str(), row.as_slice())?,
                None => objects.remove(key.as_str())?,
            };
        }
        transaction.open_table(NUMBERS)?.insert(REVISION, refused.before)?;
    }
    Ok(transaction.commit()?)
}

fn revision(database: &Database) -> Result<u64, Failure> {
    let transaction = database.begin_read()?;
    match transaction.open_table(NUMBERS) {
        Ok(numbers) => Ok(numbers.get(REVISION)?.map_or(0, |row| row.value())),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(0),
        Err(e) => Err(e.into()),
    }
}

fn restore(database: &Database) -> Result<Restored, Failure> {
    let revision = Revision(revision(database)?);
    let transaction = database.begin_read()?;
    let table = match transaction.open_table(OBJECTS) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Restored { revision, objects: Vec::new() }),
        Err(e) => return Err(e.into()),
    };
    let mut objects = Vec::new();
    let mut compressor = Compressor::default();
    for entry in table.iter()? {
        let (key, value) = entry?;
        let object = row::decode(key.value(), value.value());
        let object = object.ok_or_else(|| Failure::Row(key.value().replace('\0', "/")))?;
        // Compressed at once: uncompressed, all objects together would be the server's peak memory use.
        compressor.compress(&object);
        objects.push(object);
    }
    Ok(Restored { revision, objects })
}

/// redb takes a storage by type, but this one is chosen at run time. The data directory has the lock.
#[derive(Debug)]
struct Boxed(Box<dyn StorageBackend>);

impl StorageBackend for Boxed {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }
}

#[cfg(test)]
mod tests;
