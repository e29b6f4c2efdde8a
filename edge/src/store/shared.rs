//! What the writer and the readers of one store share.

use std::collections::HashMap;
use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use redb::{Database, DatabaseError, StorageError};
use tokio::sync::watch;
use tombolo_apiserve::history::{Change as Published, ChangeKind, Histories, Log, LogLimits};
use tombolo_apiserve::store::{Revision, Stored};
use tombolo_proto::object::Resource;

use super::LogBounds;
use super::error::ReadError;
use super::medium::Medium;
use super::open::builder;
use super::row::{LogRow, LogVersion};
use super::seal::Sealer;
use super::view::View;

/// Changes that are kept in memory for watchers. What an older watcher misses it lists again. Objects are on the disk,
/// so every body in the history is a copy.
const MEMORY_LOG: LogLimits = LogLimits { count: 512, bytes: 4 * 1024 * 1024, newest: 8, copies: true };

/// See the module.
pub(super) struct Shared {
    current: RwLock<Current>,
    pub(super) sealer: Arc<Sealer>,
    pub(super) bounds: LogBounds,
    pub(super) medium: Box<dyn Medium>,
    /// Grows with every commit.
    pub(super) commits: watch::Sender<u64>,
    /// Keeps other agents out of the data folder until the store is closed.
    lock: Mutex<Option<File>>,
}

/// Swapped in one step, so that a client never reads a state older than an event that it has seen.
struct Current {
    view: Option<Arc<View>>,
    logs: HashMap<Resource, Arc<Log>>,
    histories: Arc<Histories>,
    floor: Revision,
}

impl Shared {
    pub(super) fn new(
        medium: Box<dyn Medium>,
        sealer: Arc<Sealer>,
        bounds: LogBounds,
        lock: Option<File>,
        view: View,
    ) -> Result<Self, ReadError> {
        let floor = Revision(view.state.floor);
        let mut current =
            Current { view: None, logs: HashMap::new(), histories: Histories::new(MEMORY_LOG), floor };
        for row in view.log()? {
            let change = Arc::new(published(row));
            current.log(change.object.key.resource()).push(change);
        }
        current.fit();
        current.view = Some(Arc::new(view));
        let commits = watch::Sender::new(0);
        Ok(Self { current: RwLock::new(current), sealer, bounds, medium, commits, lock: Mutex::new(lock) })
    }

    /// The newest state; `None` when the store is closed.
    pub(super) fn view(&self) -> Option<Arc<View>> {
        self.current.read().view.clone()
    }

    /// The history of a resource.
    pub(super) fn log(&self, resource: &Resource) -> Arc<Log> {
        if let Some(log) = self.current.read().logs.get(resource) {
            return Arc::clone(log);
        }
        Arc::clone(self.current.write().log(resource))
    }

    /// Shows a new state and tells watchers what has changed.
    pub(super) fn publish(&self, view: View, changes: Vec<Arc<Published>>) {
        let mut current = self.current.write();
        for change in changes {
            current.log(change.object.key.resource()).push(Arc::clone(&change));
        }
        current.fit();
        current.view = Some(Arc::new(view));
        drop(current);
        self.commits.send_modify(|commits| *commits = commits.wrapping_add(1));
    }

    /// Lets go of the file and ends all watches.
    pub(super) fn close(&self) {
        let mut current = self.current.write();
        current.view = None;
        current.logs.values().for_each(|log| log.close());
    }

    /// Lets other agents into the data folder: the database is closed.
    pub(super) fn unlock(&self) {
        *self.lock.lock() = None;
    }

    /// Opens the database of the medium.
    pub(super) fn open_database(&self) -> Result<Database, DatabaseError> {
        open_database(&*self.medium)
    }
}

impl Current {
    fn log(&mut self, resource: &Resource) -> &Arc<Log> {
        let floor = self.floor;
        self.logs.entry(resource.clone()).or_insert_with(|| self.histories.log(floor))
    }

    fn fit(&self) {
        self.histories.fit(self.logs.values());
    }
}

/// Opens the database of a medium.
pub(super) fn open_database(medium: &dyn Medium) -> Result<Database, DatabaseError> {
    guarded(|| medium.open(&builder()))
}

/// A damaged file may make the database's own code panic; that is an error here.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, DatabaseError>) -> Result<T, DatabaseError> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let why = "the database code gave up on the file".to_owned();
        Err(DatabaseError::Storage(StorageError::Corrupted(why)))
    })
}

fn published(row: LogRow) -> Published {
    let kind = match row.kind {
        0 => ChangeKind::Added,
        1 => ChangeKind::Modified,
        _ => ChangeKind::Deleted,
    };
    let key = row.key;
    let stored = |version: LogVersion| {
        Arc::new(Stored::new(key.clone(), version.uid, Revision(version.revision), version.body))
    };
    Published { kind, object: stored(row.object), previous: row.previous.map(stored) }
}
