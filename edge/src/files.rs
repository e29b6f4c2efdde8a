//! Files that are either the old ones or the new ones, whatever happens in between.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Mode of files that only the agent's user may read.
pub(crate) const PRIVATE: u32 = 0o600;

/// Mode of files that everybody may read.
pub(crate) const PUBLIC: u32 = 0o644;

/// Replaces a file: writes a temporary one beside it, syncs it, renames it, syncs the folder. After a crash
/// the old content or the new one is there, never a mixture.
///
/// # Errors
/// Any failure of the file system; the old file is then still in place.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = folder.join(name);
    let result = write_new(&temporary, content, mode).and_then(|()| std::fs::rename(&temporary, path));
    if result.is_err() {
        // The reason of the failure matters more than a leftover, which the next attempt replaces.
        let _ = std::fs::remove_file(&temporary);
        return result;
    }
    File::open(folder)?.sync_all()
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Makes a folder, and its parents, that only the agent's user may enter. An existing one stays as it is.
///
/// # Errors
/// Any failure of the file system.
pub(crate) fn private_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The content of a file; `None` when there is none.
///
/// # Errors
/// Any other failure of the file system.
pub(crate) fn read_if_there(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn replaces_content_and_mode_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        replace(&path, b"one", PUBLIC).unwrap();
        std::fs::write(folder.path().join("a.new"), b"left by a crash").unwrap();
        replace(&path, b"two", PRIVATE).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, PRIVATE);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_keeps_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("child"), b"").unwrap();
        replace(&path, b"two", PUBLIC).unwrap_err();
        assert!(path.join("child").exists());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_file_is_no_error() {
        assert_eq!(read_if_there(Path::new("/nonexistent/file")).unwrap(), None);
    }
}
