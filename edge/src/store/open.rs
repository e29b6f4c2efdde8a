//! Opening: the lock of the folder, the check of the file, and what happens to a damaged one.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use redb::{Builder, Database, DatabaseError, StorageError};
use tokio::sync::mpsc;
use tombolo_apiserve::store::Revision;
use tracing::warn;

use super::error::OpenError;
use super::medium::{FileMedium, Medium};
use super::schema::{self, SCHEMA, Unusable};
use super::seal::Sealer;
use super::shared::{Shared, guarded, open_database};
use super::view::View;
use super::writer::{QUEUE_MAX, Writer};
use super::{LogBounds, Store, fresh_id};
use tombolo_runtime::files;

/// File with the store, in the data folder.
pub(super) const STORE_FILE: &str = "store.redb";
/// File with the key of the Secrets in the store.
const KEY_FILE: &str = "store.key";
/// File whose lock says that the folder is in use.
pub(super) const LOCK_FILE: &str = "lock";

/// A store, and what happened on the way.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: Store,
    /// Why and where the old one was moved aside; none when it was in order or new.
    pub set_aside: Option<String>,
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

/// Where the revisions of a new store begin: above all that an older store in this folder has given out, of which clients
/// may still remember some. A node makes fewer changes than one a millisecond. When the clock went back, a client may
/// remember a revision that is not reached: its watch is refused with 410, and it lists again.
fn first_revision() -> Revision {
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
    let (db, view) = loop {
        match usable(&*medium, &sealer, first) {
            Ok(usable) => break usable,
            Err(Unusable::Newer(found)) => return Err(OpenError::Newer { found, supported: SCHEMA }),
            Err(Unusable::Disk(error)) => return Err(OpenError::Storage(error.to_string())),
            Err(Unusable::Damaged(why)) if set_aside.is_some() => return Err(OpenError::Storage(why)),
            Err(Unusable::Damaged(why)) => {
                let place = medium.set_aside().map_err(|error| {
                    OpenError::Storage(format!("it is damaged ({why}) and cannot be moved aside: {error}"))
                })?;
                warn!(%why, %place, "the store was damaged and is moved aside; the cloud fills a new one");
                set_aside = Some(format!("{why}; kept as {place}"));
            }
        }
    };
    let shared =
        Shared::new(medium, sealer, bounds, lock, view).map_err(|e| OpenError::Storage(e.to_string()))?;
    let shared = Arc::new(shared);
    let (jobs, queue) = mpsc::channel(QUEUE_MAX);
    let writer = Writer { db: Some(db), shared: Arc::clone(&shared), jobs: queue };
    std::thread::Builder::new()
        .name("store-writer".to_owned())
        .spawn(move || writer.run())
        .map_err(|error| OpenError::Storage(format!("no thread for the writer: {error}")))?;
    Ok(Opened { store: Store { shared, jobs }, set_aside })
}

/// Opens and checks the content: every page and every row is read once, so that damage is found now and not in
/// the middle of an answer.
fn usable(medium: &dyn Medium, sealer: &Arc<Sealer>, first: Revision) -> Result<(Database, View), Unusable> {
    let mut db = open_database(medium).map_err(unusable)?;
    match guarded(|| db.check_integrity()) {
        Ok(true) => {}
        // The check has put the last complete commit in place of what was torn.
        Ok(false) => warn!("the store was not closed properly and has been repaired"),
        Err(error) => return Err(unusable(error)),
    }
    schema::prepare(&db, sealer, (fresh_id(), first))?;
    let read = || {
        let view = View::read(&db, Arc::clone(sealer))?;
        view.verify()?;
        Ok(view)
    };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)) {
        Ok(Ok(view)) => Ok((db, view)),
        Ok(Err(super::ReadError::Damaged(what))) => Err(Unusable::Damaged(format!("unreadable {what} row"))),
        Ok(Err(error)) => Err(Unusable::Damaged(error.to_string())),
        Err(_) => Err(Unusable::Damaged("the database code gave up on the file".to_owned())),
    }
}

/// Tells a file that is no database any more from a disk that does not let us near it.
fn unusable(error: DatabaseError) -> Unusable {
    use std::io::ErrorKind;
    if let DatabaseError::Storage(StorageError::Io(io)) = &error
        && matches!(
            io.kind(),
            ErrorKind::PermissionDenied
                | ErrorKind::NotFound
                | ErrorKind::StorageFull
                | ErrorKind::QuotaExceeded
                | ErrorKind::FileTooLarge
                | ErrorKind::ReadOnlyFilesystem
                | ErrorKind::IsADirectory
        )
    {
        return Unusable::Disk(super::error::storage(error));
    }
    Unusable::Damaged(error.to_string())
}

/// A builder with the settings of this program.
pub(super) fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(super::CACHE_BYTES);
    builder
}
