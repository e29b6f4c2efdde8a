//! Opening: the lock of the folder, the check of the file, and what happens to a damaged one.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redb::{Builder, Database, DatabaseError};
use tokio::sync::mpsc;
use tombolo_apicore::store::Revision;
use tracing::warn;

use super::error::{OpenError, is_damage};
use super::medium::{FileMedium, Medium};
use super::salvage::Salvage;
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

/// Waits between attempts to open a store that the disk or the system does not give away; after the last one the agent ends, and
/// whoever started it starts it again.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(8),
];

/// Opens again after what may pass by itself, with a pause before each further attempt.
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
                let (place, kept) = replaced(&*medium, &sealer, first).map_err(|error| {
                    OpenError::Storage(format!("it is damaged ({why}) and cannot be replaced: {error}"))
                })?;
                warn!(%why, %place, %kept, "the store was damaged and is moved aside; the cloud fills a new one with what was not saved");
                set_aside = Some(format!("{why}; moved to {place}; {kept}"));
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

/// Makes another store with what can be read of a damaged one, and puts it in that one's place. Where the old one is now, and
/// what was taken over. When this fails the old one is where it was.
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
    let place = medium.put_draft().map_err(|error| error.to_string())?;
    Ok((place, salvage.to_string()))
}

/// Opens and checks the content. What looks like damage is none when the disk has refused something meanwhile: the database's
/// code may give up in any way then.
fn usable(medium: &dyn Medium, sealer: &Arc<Sealer>, first: Revision) -> Result<(Database, View), Unusable> {
    // What was before this is no reason now.
    drop(medium.trouble());
    match checked(medium, sealer, first) {
        Err(Unusable::Damaged(why)) => Err(match medium.trouble() {
            Some(trouble) => Unusable::Disk(super::WriteError::Storage(trouble)),
            None => Unusable::Damaged(why),
        }),
        other => other,
    }
}

/// Every page and every row is read once, so that damage is found now and not in the middle of an answer.
fn checked(medium: &dyn Medium, sealer: &Arc<Sealer>, first: Revision) -> Result<(Database, View), Unusable> {
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
        Ok(Err(super::ReadError::Corrupted(why))) => Err(Unusable::Damaged(why)),
        Ok(Err(error)) => Err(Unusable::Disk(error.into())),
        Err(_) => Err(Unusable::Damaged("the database code gave up on the file".to_owned())),
    }
}

/// Tells a file that is no database any more from a disk or a system that does not let us near it.
fn unusable(error: DatabaseError) -> Unusable {
    let error = redb::Error::from(error);
    match is_damage(&error) {
        true => Unusable::Damaged(error.to_string()),
        false => Unusable::Disk(super::error::storage(error)),
    }
}

/// A builder with the settings of this program.
pub(super) fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(super::CACHE_BYTES);
    builder
}
