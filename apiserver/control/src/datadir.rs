//! The data directory: format version, lock, remembered port, and files that appear whole or not at all.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tombolo_runtime::files;

use super::error::EmbeddedError;

/// File with the format version of the directory.
const FORMAT_FILE: &str = "format";

/// First line of that file. The number increases when a version writes something that its predecessor misreads.
const FORMAT: &str = "tombolo-embedded/1";

/// File by which `tombolo up` recognises its data directories. The data directory of this server is a subdirectory
/// there.
pub const UP_FILE: &str = "up.json";

/// Whether a directory is, or was, the data directory of an embedded API server.
#[must_use]
pub fn is_data_dir(path: &Path) -> bool {
    path.join(FORMAT_FILE).is_file()
}

/// An open data directory. Holding it holds the lock: no second process can open it.
#[derive(Debug)]
pub(super) struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Opens the directory, creating it when it does not exist.
    ///
    /// # Errors
    /// [`EmbeddedError::InUse`] when another process holds it, [`EmbeddedError::Format`] when another version
    /// wrote it, [`EmbeddedError::OfTombolo`] when it is one of `tombolo up`, [`EmbeddedError::File`] when the file
    /// system refuses.
    pub(super) fn open(path: &Path) -> Result<Self, EmbeddedError> {
        if path.join(UP_FILE).exists() {
            return Err(EmbeddedError::OfTombolo(path.to_owned()));
        }
        files::private_folder(path).map_err(|e| EmbeddedError::file("create data directory", path, e))?;
        let lock = lock(path)?;
        check_format(path)?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Path of a file or folder inside.
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The port of the last run, so that kubeconfigs stay valid across restarts.
    pub(super) fn port(&self) -> Option<u16> {
        fs::read_to_string(self.join("port")).ok()?.trim().parse().ok()
    }

    /// Remembers the port for the next run.
    pub(super) fn keep_port(&self, port: u16) -> Result<(), EmbeddedError> {
        write_atomic(&self.join("port"), format!("{port}\n").as_bytes(), 0o600)
    }
}

fn lock(path: &Path) -> Result<File, EmbeddedError> {
    let lock_path = path.join("lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&lock_path);
    let file = file.map_err(|e| EmbeddedError::file("open", &lock_path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(EmbeddedError::InUse(path.to_owned())),
        Err(TryLockError::Error(e)) => Err(EmbeddedError::file("lock", &lock_path, e)),
    }
}

fn check_format(path: &Path) -> Result<(), EmbeddedError> {
    let file = path.join(FORMAT_FILE);
    match fs::read_to_string(&file) {
        Ok(text) if text.trim() == FORMAT => Ok(()),
        Ok(text) => Err(EmbeddedError::Format {
            path: path.to_owned(),
            found: text.trim().chars().take(64).collect(),
            expected: FORMAT,
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            write_atomic(&file, format!("{FORMAT}\n").as_bytes(), 0o600)
        }
        Err(e) => Err(EmbeddedError::file("read", &file, e)),
    }
}

/// Writes a file atomically: readers, also after a crash, see either the old or the new content.
///
/// # Errors
/// [`EmbeddedError::File`] when the file system refuses; the old content is still there.
pub(super) fn write_atomic(path: &Path, content: &[u8], mode: u32) -> Result<(), EmbeddedError> {
    files::replace(path, content, mode).map_err(|e| EmbeddedError::file("write", path, e))
}

/// Makes a rename inside the parent directory durable.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_opener_is_refused_until_the_first_has_closed() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path()).unwrap();
        assert!(matches!(DataDir::open(dir.path()), Err(EmbeddedError::InUse(_))));
        drop(first);
        DataDir::open(dir.path()).unwrap();
    }

    #[test]
    fn another_format_is_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("format"), "tombolo-embedded/9\n").unwrap();
        let error = DataDir::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("tombolo-embedded/9") && error.contains("another --data-dir"), "{error}");
        assert!(!error.contains('\n'));
    }

    #[test]
    fn directory_of_tombolo_up_is_refused_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(UP_FILE), "{}").unwrap();
        let error = DataDir::open(dir.path()).unwrap_err();
        assert!(matches!(error, EmbeddedError::OfTombolo(_)), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no file is written into the folder");
        assert!(!is_data_dir(dir.path()));
        let own = dir.path().join("cluster");
        DataDir::open(&own).unwrap();
        assert!(is_data_dir(&own));
    }

    #[test]
    fn the_port_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        assert_eq!(data.port(), None);
        data.keep_port(4711).unwrap();
        assert_eq!(data.port(), Some(4711));
    }
}
