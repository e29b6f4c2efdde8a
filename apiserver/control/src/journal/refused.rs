//! The rows that a refused batch replaced, in a separate file beside the journal. The disk may have kept a batch whose
//! last sync failed, and a refused batch must not reappear after a restart.

use std::io;
use std::path::{Path, PathBuf};

use tombolo_runtime::files;

/// First bytes of the file: its form is part of the data directory's format version.
const MAGIC: &[u8; 8] = b"refused1";

/// Old rows by key, in the order in which the batch changed them.
pub(super) type Undo = Vec<(String, Option<Vec<u8>>)>;

/// A batch that was refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// The newest revision before it.
    pub(super) before: u64,
    /// Its own newest revision: that of the journal if the disk kept the batch.
    pub(super) newest: u64,
    pub(super) undo: Undo,
}

/// The path of the file.
pub(super) fn path(journal: &Path) -> PathBuf {
    let mut name = journal.as_os_str().to_owned();
    name.push(".refused");
    PathBuf::from(name)
}

impl Refused {
    /// Writes the file durably.
    ///
    /// # Errors
    /// Any failure of the file system.
    pub(super) fn keep(&self, journal: &Path) -> io::Result<()> {
        let mut content = MAGIC.to_vec();
        content.extend_from_slice(&self.before.to_be_bytes());
        content.extend_from_slice(&self.newest.to_be_bytes());
        for (key, row) in &self.undo {
            put(&mut content, key.as_bytes());
            content.push(u8::from(row.is_some()));
            put(&mut content, row.as_deref().unwrap_or_default());
        }
        files::replace(&path(journal), &content, files::PRIVATE)
    }

    /// Reads the file; `None` when it does not exist.
    ///
    /// # Errors
    /// When the file cannot be read: it must not be ignored.
    pub(super) fn kept(journal: &Path) -> io::Result<Option<Self>> {
        let Some(content) = files::read_if_there(&path(journal))? else { return Ok(None) };
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the list of a refused batch is damaged");
        Self::read(&content).map(Some).ok_or_else(damaged)
    }

    fn read(content: &[u8]) -> Option<Self> {
        let mut rest = content.strip_prefix(MAGIC)?;
        let (before, newest) = (u64::from_be_bytes(*take(&mut rest)?), u64::from_be_bytes(*take(&mut rest)?));
        let mut undo = Vec::new();
        while !rest.is_empty() {
            let key = String::from_utf8(get(&mut rest)?.to_vec()).ok()?;
            let [was_there] = *take(&mut rest)?;
            let row = get(&mut rest)?.to_vec();
            undo.push((key, (was_there == 1).then_some(row)));
        }
        Some(Self { before, newest, undo })
    }

    /// Removes the file durably. Called once the journal does not have the batch, because its revisions are reused
    /// then.
    ///
    /// # Errors
    /// Any failure of the file system.
    pub(super) fn forget(journal: &Path) -> io::Result<()> {
        let path = path(journal);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => path.parent().map_or(Ok(()), |folder| std::fs::File::open(folder)?.sync_all()),
        }
    }
}

fn put(content: &mut Vec<u8>, bytes: &[u8]) {
    content.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    content.extend_from_slice(bytes);
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(taken)
}

fn get<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(u64::from_be_bytes(*take(rest)?)).ok()?;
    let (taken, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_file_reads_back_and_damage_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("journal");
        assert_eq!(Refused::kept(&journal).unwrap(), None);
        let undo = vec![("a".to_owned(), Some(b"row".to_vec())), ("b".to_owned(), None)];
        let refused = Refused { before: 3, newest: 7, undo };
        refused.keep(&journal).unwrap();
        assert_eq!(Refused::kept(&journal).unwrap(), Some(refused));
        let whole = std::fs::read(path(&journal)).unwrap();
        std::fs::write(path(&journal), &whole[..whole.len() - 1]).unwrap();
        Refused::kept(&journal).unwrap_err();
        Refused::forget(&journal).unwrap();
        assert_eq!(Refused::kept(&journal).unwrap(), None);
        Refused::forget(&journal).unwrap();
    }
}
