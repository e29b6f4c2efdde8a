//! The storage of the store's file. All access goes through [`Medium`], so that tests can simulate a power loss.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use redb::{Builder, Database, DatabaseError, StorageBackend};

use super::error::is_about_content;

/// Number of damaged files that are kept for inspection; older ones are removed.
const SET_ASIDE_MAX: usize = 2;

/// Number of zero bytes that are written at once when the file grows.
const GROW_CHUNK: usize = 64 * 1024;

/// Storage from which the same database can be opened repeatedly.
pub trait Medium: Send + Sync + 'static {
    /// Opens the database, or creates an empty one.
    ///
    /// # Errors
    /// Any error of the database about the file.
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError>;

    /// An empty medium next to this one.
    ///
    /// # Errors
    /// Any failure of the file system.
    fn draft(&self) -> io::Result<Box<dyn Medium>>;

    /// Replaces the content by the last [`Medium::draft`]. Returns where the old content is now. Even after a power
    /// loss, either the old or the new content is in place, or the next [`Medium::open`] puts it there.
    ///
    /// # Errors
    /// Any failure of the file system; the old content is then still in place.
    fn put_draft(&self) -> io::Result<String>;

    /// The last error of the disk since the previous call, if any. Errors about the content do not count.
    fn trouble(&self) -> Option<String>;

    /// How long the next commit takes in a simulation, where nothing takes time by itself.
    fn delay(&self) -> Duration {
        Duration::ZERO
    }
}

/// Records errors of a disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
    pub(super) fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && !is_about_content(error)
        {
            *self.0.lock() = Some(error.to_string());
        }
        result
    }

    pub(super) fn take(&self) -> Option<String> {
        self.0.lock().take()
    }
}

/// A file on disk.
#[derive(Debug, Clone)]
pub struct FileMedium {
    path: PathBuf,
    trouble: Trouble,
    /// Creates a hard link.
    link: fn(&Path, &Path) -> io::Result<()>,
}

impl FileMedium {
    /// The file with this path; it need not exist. The caller must hold the lock of its folder to open it.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), trouble: Trouble::default(), link: |old, new| std::fs::hard_link(old, new) }
    }

    fn draft_path(&self) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        self.path.with_file_name(name)
    }

    /// An unused name for a damaged file. The lock of the folder excludes other agents.
    fn aside(&self, prefix: &str) -> PathBuf {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut names = (seconds..).map(|second| self.path.with_file_name(format!("{prefix}{second}")));
        names.find(|name| !name.exists()).unwrap_or_else(|| self.path.with_file_name(prefix))
    }

    /// Completes an interrupted [`Medium::put_draft`] on a file system without hard links. The draft is complete before
    /// the old content is moved.
    fn finish_draft(&self) -> io::Result<()> {
        let draft = self.draft_path();
        if self.path.exists() || !draft.exists() {
            return Ok(());
        }
        std::fs::rename(draft, &self.path)
    }
}

impl Medium for FileMedium {
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        self.trouble.note(self.finish_draft())?;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&self.path);
        let file = self.trouble.note(file)?;
        builder.create_with_backend(FileBackend { file, trouble: self.trouble.clone() })
    }

    fn draft(&self) -> io::Result<Box<dyn Medium>> {
        let path = self.draft_path();
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(Box::new(Self::new(path))),
        }
    }

    fn put_draft(&self) -> io::Result<String> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let prefix = format!("{name}.damaged-");
        let target = self.aside(&prefix);
        // Give the old content a second name first, so that the rename does not delete it.
        if let Err(error) = (self.link)(&self.path, &target) {
            // Some file systems (FAT, some network ones) have no hard links and return different errors. If the cause
            // is the disk, the rename fails as well.
            std::fs::rename(&self.path, &target)?;
            tracing::debug!(%error, "cannot create a hard link; the damaged store is moved instead");
        }
        std::fs::rename(self.draft_path(), &self.path)?;
        File::open(folder)?.sync_all()?;
        forget_oldest(folder, &prefix)?;
        Ok(target.display().to_string())
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.take()
    }
}

fn forget_oldest(folder: &Path, prefix: &str) -> io::Result<()> {
    let mut aside: Vec<PathBuf> = std::fs::read_dir(folder)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
        .collect();
    aside.sort();
    for path in aside.iter().rev().skip(SET_ASIDE_MAX) {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// A file backend that can open a file twice, as needed to reopen it after a full disk. The database's own backend
/// refuses that; here the lock of the data folder protects the file. This one also allocates space when the file grows:
/// with a sparse file a full disk would show only in the middle of a commit.
#[derive(Debug)]
struct FileBackend {
    file: File,
    trouble: Trouble,
}

impl StorageBackend for FileBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.trouble.note(self.file.metadata())?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.trouble.note(self.file.read_exact_at(out, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut at = self.len()?;
        let old = at;
        let zeros = vec![0; GROW_CHUNK];
        while at < len {
            let chunk = usize::try_from(len - at).unwrap_or(GROW_CHUNK).min(GROW_CHUNK);
            if let Err(error) = self.file.write_all_at(&zeros[..chunk], at) {
                // Report the first failure; a file that stays too long is harmless.
                let _ = self.file.set_len(old);
                return self.trouble.note(Err(error));
            }
            at += chunk as u64;
        }
        self.trouble.note(self.file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.trouble.note(self.file.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.trouble.note(self.file.write_all_at(data, offset))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn without_links(path: &Path) -> FileMedium {
        let link = |_: &Path, _: &Path| Err(io::ErrorKind::PermissionDenied.into());
        FileMedium { link, ..FileMedium::new(path) }
    }

    #[test]
    fn damaged_file_is_replaced_without_hard_links() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let medium = without_links(&path);
        for (old, new) in [("damaged", "second"), ("second", "third")] {
            std::fs::write(&path, old).unwrap();
            std::fs::write(medium.draft_path(), new).unwrap();
            let aside = medium.put_draft().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), new);
            assert_eq!(std::fs::read_to_string(&aside).unwrap(), old, "in {aside}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn interrupted_replacement_is_completed_at_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let medium = without_links(&folder.path().join("s"));
        let draft = medium.draft().unwrap();
        drop(draft.open(&Builder::new()).unwrap());
        let file = |path: &Path| std::fs::metadata(path).unwrap().ino();
        let made = file(&medium.draft_path());
        drop(medium.open(&Builder::new()).unwrap());
        assert!(!medium.draft_path().exists(), "the draft is what was opened");
        assert_eq!(file(&medium.path), made);
    }

    /// Only the system can refuse to sync a device that stores nothing, so the refusal shows that it was asked.
    #[test]
    fn a_sync_reaches_the_system() {
        let file = OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
        let backend = FileBackend { file, trouble: Trouble::default() };
        backend.write(0, b"content").unwrap();
        assert_eq!(backend.trouble.take(), None);
        let refused = backend.sync_data().unwrap_err();
        assert!(refused.raw_os_error().is_some(), "{refused}");
        assert_eq!(backend.trouble.take(), Some(refused.to_string()), "and a failure is recorded");
    }

    #[test]
    fn only_the_newest_damaged_files_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        for second in 1..=4 {
            std::fs::write(folder.path().join(format!("s.damaged-{second}")), b"").unwrap();
        }
        forget_oldest(folder.path(), "s.damaged-").unwrap();
        let mut left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["s.damaged-3", "s.damaged-4"]);
    }
}
