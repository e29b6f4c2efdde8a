//! Opens the store: locks the folder, checks the file, and replaces a damaged one.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redb::{Database, DatabaseError};
use tokio::sync::mpsc;
use tombolo_apicore::store::Revision;
use tracing::warn;

use super::error::{OpenError, is_damage};
use super::medium::{FileMedium, Medium};
use super::row::LogRow;
use super::salvage::Salvage;
use super::schema::{self, SCHEMA, Unusable};
use super::seal::Sealer;
use super::shared::{Shared, guarded, open_database};
use super::view::CommittedView;
use super::writer::{DatabaseWriter, QUEUE_MAX};
use super::{LogBounds, Store, fresh_id};
use tombolo_runtime::{TaskHost, files};

/// File with the store, in the data folder.
pub(super) const STORE_FILE: &str = "store.redb";
/// File with the key that encrypts Secrets in the store.
const KEY_FILE: &str = "store.key";
/// File whose lock marks the folder as in use.
pub(super) const LOCK_FILE: &str = "lock";

/// An opened store, and whether it replaced a damaged one.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: Store,
    /// Why and where the old store was moved aside; `None` if it was in order or new.
    pub set_aside: Option<String>,
}

/// Delays between attempts to open a store after errors of the disk or the system. After the last attempt the agent
/// exits, and its supervisor starts it again.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(8),
];

/// Retries after errors that may be temporary, with a pause before each further attempt.
pub(super) fn patiently<T>(
    mut open: impl FnMut() -> Result<T, OpenError>,
    mut pause: impl FnMut(Duration),
) -> Result<T, OpenError> {
    for wait in PAUSES {
        match open() {
            Err(error) if error.may_pass() => {
                warn!(%error, retry_in = ?wait, "the store cannot be opened now");
                pause(wait);
            }
            other => return other,
        }
    }
    open()
}

pub(super) fn in_folder(folder: &Path) -> Result<Opened, OpenError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Io { path, source }
    };
    files::private_folder(folder).map_err(failed(folder))?;
    let path = folder.join(LOCK_FILE);
    let lock =
        OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed(&path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { path: folder.into() }),
        Err(TryLockError::Error(source)) => return Err(OpenError::Io { path, source }),
    }
    let sealer = Sealer::load(&folder.join(KEY_FILE))?;
    let medium = Box::new(FileMedium::new(folder.join(STORE_FILE)));
    on_medium(medium, sealer, LogBounds::default(), first_revision(), Some(lock))
}

/// The first revision of a new store. It must be above all revisions of an older store in this folder, which clients
/// may still remember, so it is the time in milliseconds: a node makes fewer than one change per millisecond. If the
/// clock went back, a client may remember a revision that does not exist yet. Its watch is refused with 410, and it
/// lists again.
pub(super) fn first_revision() -> Revision {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Revision(u64::try_from(time.as_millis()).unwrap_or(1).max(1))
}

pub(super) fn on_medium(
    medium: Box<dyn Medium>,
    sealer: Sealer,
    bounds: LogBounds,
    first: Revision,
    lock: Option<File>,
) -> Result<Opened, OpenError> {
    let sealer = Arc::new(sealer);
    let mut set_aside = None;
    let (db, view, log) = loop {
        match usable(&*medium, &sealer, first) {
            Ok(usable) => break usable,
            Err(Unusable::Newer(found)) => return Err(OpenError::Newer { found, supported: SCHEMA }),
            Err(Unusable::Disk(error)) => return Err(OpenError::Storage(error.to_string())),
            Err(Unusable::Damaged(why)) if set_aside.is_some() => return Err(OpenError::Storage(why)),
            Err(Unusable::Damaged(why)) => {
                let (moved_to, kept) = replaced(&*medium, &sealer, first).map_err(|error| {
                    OpenError::Storage(format!("it is damaged ({why}) and cannot be replaced: {error}"))
                })?;
                warn!(%why, %moved_to, %kept, "the store was damaged and is moved aside; the cloud fills a new one with what was not saved");
                set_aside = Some(format!("{why}; moved to {moved_to}; {kept}"));
            }
        }
    };
    let shared = Arc::new(Shared::new(medium, sealer, bounds, lock, (view, log)));
    let (jobs, queue) = mpsc::channel(QUEUE_MAX);
    let writer = DatabaseWriter { db: Some(db), shared: Arc::clone(&shared), jobs: queue };
    start(writer)?;
    Ok(Opened { store: Store { shared, jobs }, set_aside })
}

/// Starts the writer: on a thread of its own, because its work blocks; in a simulation as a task of the agent's host.
fn start(writer: DatabaseWriter) -> Result<(), OpenError> {
    if let Some(host) = TaskHost::current() {
        host.spawn(writer.run_in_task());
        return Ok(());
    }
    let thread = std::thread::Builder::new().name("store-writer".to_owned());
    let started = thread.spawn(move || writer.run());
    started.map(drop).map_err(|error| OpenError::Storage(format!("no thread for the writer: {error}")))
}

/// Replaces a damaged store by a new one with all data that can be read. Returns where the old one is now, and what was
/// taken over. If this fails, the old one is still in place.
fn replaced(medium: &dyn Medium, sealer: &Sealer, first: Revision) -> Result<(String, String), String> {
    let salvage = Salvage::read(medium, sealer);
    if let Some(trouble) = medium.trouble() {
        return Err(trouble);
    }
    let draft = medium.draft().map_err(|error| error.to_string())?;
    let db = open_database(&*draft).map_err(|error| error.to_string())?;
    let refused = |unusable: Unusable| unusable.to_string();
    schema::prepare(&db, sealer, (fresh_id(), first)).map_err(refused)?;
    salvage.fill(&db, first).map_err(|error| error.to_string())?;
    drop(db);
    let moved_to = medium.put_draft().map_err(|error| error.to_string())?;
    Ok((moved_to, salvage.to_string()))
}

/// A database that is in order, its newest state, and its log.
type Checked = (Database, CommittedView, Vec<LogRow>);

/// Opens and checks the content. Apparent damage does not count if the disk reported an error meanwhile, since the
/// database may then fail in any way.
fn usable(medium: &dyn Medium, sealer: &Arc<Sealer>, first: Revision) -> Result<Checked, Unusable> {
    // Clear earlier errors.
    drop(medium.trouble());
    match checked(medium, sealer, first) {
        Err(Unusable::Damaged(why)) => Err(match medium.trouble() {
            Some(trouble) => Unusable::Disk(super::WriteError::Storage(trouble)),
            None => Unusable::Damaged(why),
        }),
        other => other,
    }
}

/// Reads every page and every row once, so that damage is found now and not in the middle of an answer.
fn checked(medium: &dyn Medium, sealer: &Arc<Sealer>, first: Revision) -> Result<Checked, Unusable> {
    let mut db = open_database(medium).map_err(unusable)?;
    match guarded(|| db.check_integrity()) {
        Ok(true) => {}
        // The check has restored the last complete commit.
        Ok(false) => warn!("the store was not closed properly and has been repaired"),
        Err(error) => return Err(unusable(error)),
    }
    schema::prepare(&db, sealer, (fresh_id(), first))?;
    let read = || CommittedView::checked(&db, Arc::clone(sealer));
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)) {
        Ok(Ok((view, log))) => Ok((db, view, log)),
        Ok(Err(super::ReadError::Damaged(what))) => Err(Unusable::Damaged(format!("unreadable {what} row"))),
        Ok(Err(super::ReadError::Corrupted(why))) => Err(Unusable::Damaged(why)),
        Ok(Err(error)) => Err(Unusable::Disk(error.into())),
        Err(_) => Err(Unusable::Damaged("the database code panicked on the file".to_owned())),
    }
}

/// Distinguishes a damaged file from an error of the disk or the system.
fn unusable(error: DatabaseError) -> Unusable {
    let error = redb::Error::from(error);
    match is_damage(&error) {
        true => Unusable::Damaged(error.to_string()),
        false => Unusable::Disk(super::error::storage(error)),
    }
}
