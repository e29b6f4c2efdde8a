//! Inspects a store without changing it: nothing is repaired, moved aside or created.

use std::fs::{OpenOptions, TryLockError};
use std::path::Path;

use redb::{DatabaseError, ReadableDatabase};

use super::error::is_damage;
use super::open::{LOCK_FILE, STORE_FILE};
use super::schema::{self, SCHEMA, Unusable};
use super::shared::{builder, guarded};

/// State of the store in a data folder, as seen from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inspection {
    /// A running agent uses the folder.
    InUse,
    /// There is no store yet: the agent has never run with this folder.
    Absent,
    /// The store can be opened.
    Sound {
        /// Schema of its content.
        schema: u32,
    },
    /// It was not closed; the agent repairs it when it starts.
    Unclosed,
    /// A newer program wrote it.
    Newer {
        /// Schema of its content.
        found: u32,
        /// Newest schema that this program reads.
        supported: u32,
    },
    /// It is damaged; the agent moves it aside when it starts.
    Damaged(String),
    /// The file system reports an error.
    Unreadable(String),
}

/// Inspects the store of a data folder.
#[must_use]
pub fn inspect(folder: &Path) -> Inspection {
    let path = folder.join(STORE_FILE);
    // Held until the end: an agent that starts meanwhile reports that the folder is in use, which is true.
    let _lock = match OpenOptions::new().read(true).open(folder.join(LOCK_FILE)) {
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => Some(file),
            Err(TryLockError::WouldBlock) => return Inspection::InUse,
            Err(TryLockError::Error(error)) => return Inspection::Unreadable(error.to_string()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Inspection::Unreadable(format!("{}: {error}", folder.display())),
    };
    match std::fs::File::open(&path) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Inspection::Absent,
        Err(error) => return Inspection::Unreadable(format!("{}: {error}", path.display())),
    }
    match guarded(|| builder().open_read_only(&path)) {
        Ok(db) => schema_of(&db),
        Err(DatabaseError::RepairAborted) => Inspection::Unclosed,
        Err(error) => {
            let error = redb::Error::from(error);
            if is_damage(&error) {
                return Inspection::Damaged(error.to_string());
            }
            Inspection::Unreadable(format!("{}: {error}", path.display()))
        }
    }
}

fn schema_of(db: &impl ReadableDatabase) -> Inspection {
    match schema::found(db) {
        Ok(Some(found)) if found > SCHEMA => Inspection::Newer { found, supported: SCHEMA },
        Ok(Some(schema)) => Inspection::Sound { schema },
        Ok(None) => Inspection::Absent,
        Err(Unusable::Damaged(why)) => Inspection::Damaged(why),
        Err(Unusable::Newer(found)) => Inspection::Newer { found, supported: SCHEMA },
        Err(Unusable::Disk(error)) => Inspection::Unreadable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use redb::Database;

    use super::*;
    use crate::store::Store;

    #[tokio::test]
    async fn store_is_inspected_without_changes() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(inspect(folder.path()), Inspection::Absent);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "looking makes no files");
        let store = Store::open(folder.path()).unwrap().store;
        assert_eq!(inspect(folder.path()), Inspection::InUse);
        store.close().await;
        assert_eq!(inspect(folder.path()), Inspection::Sound { schema: SCHEMA });
        let path = folder.path().join(STORE_FILE);
        {
            let db = Database::open(&path).unwrap();
            let txn = db.begin_write().unwrap();
            let newer = (SCHEMA + 1).to_le_bytes();
            txn.open_table(schema::META).unwrap().insert("schema", newer.as_slice()).unwrap();
            txn.commit().unwrap();
        }
        let newer = Inspection::Newer { found: SCHEMA + 1, supported: SCHEMA };
        assert_eq!(inspect(folder.path()), newer);
        std::fs::write(&path, vec![7; 8192]).unwrap();
        assert!(matches!(inspect(folder.path()), Inspection::Damaged(_)));
        assert_eq!(std::fs::read(&path).unwrap(), vec![7; 8192], "a damaged store stays where it is");
    }
}
