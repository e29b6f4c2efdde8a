//! Atomic replacement of files, and private files that other users cannot read.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Mode of files that only the program's user may read.
pub const PRIVATE: u32 = 0o600;

/// Mode of files that every user may read.
pub const PUBLIC: u32 = 0o644;

/// Replaces a file: writes a temporary one beside it, syncs it, renames it, syncs the folder. After a crash the file
/// has the old content or the new one, never a mixture.
///
/// # Errors
/// Any failure of the file system. If it happens before the rename, the old file is still in place.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = folder.join(name);
    let result = write_new(&temporary, content, mode).and_then(|()| std::fs::rename(&temporary, path));
    if result.is_err() {
        // The reason for the failure matters more than a leftover file, which the next attempt replaces.
        let _ = std::fs::remove_file(&temporary);
        return result;
    }
    File::open(folder)?.sync_all()
}

/// Creates a file with this content unless it exists. If several programs do so at once, one creates it, and none sees
/// partial content. Returns whether this call created it.
///
/// # Errors
/// Any failure of the file system, except that the file exists.
pub fn create(path: &Path, content: &[u8], mode: u32) -> io::Result<bool> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = Path::new(&name);
    // A link, unlike a rename, never replaces an existing file.
    let linked = write_new(temporary, content, mode).and_then(|()| std::fs::hard_link(temporary, path));
    let removed = std::fs::remove_file(temporary);
    match linked {
        Ok(()) => removed.map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
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

/// Creates a folder, and its parents, that only the program's user may enter. An existing folder is left unchanged.
///
/// # Errors
/// Any failure of the file system.
pub fn private_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The content of a file; `None` if it does not exist.
///
/// # Errors
/// Any other failure of the file system.
pub fn read_if_there(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The content of a file that holds a secret; `None` if it does not exist.
///
/// # Errors
/// The file is refused if other users can access it; the error says what to do. Also any other failure of the file
/// system.
pub fn read_private(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mode = file.metadata()?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        let problem = format!(
            "its mode is {mode:04o}, so other users can access the secret in it: set it to 0600 (chmod 600), and \
             replace the secret if another user may have read it"
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(Some(content))
}

/// Whether a write failed for lack of space. A file that has reached its size limit (`LimitFSIZE`, `ulimit -f`) counts
/// as a full disk.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind;
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_content_and_mode_without_leftovers() {
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
    fn only_the_first_writer_creates_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert!(create(&path, b"one", PRIVATE).unwrap());
        assert!(!create(&path, b"two", PRIVATE).unwrap());
        assert_eq!(read_private(&path).unwrap().as_deref(), Some(b"one".as_slice()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        create(&folder.path().join("none/a"), b"one", PRIVATE).unwrap_err();
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

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert_eq!(read_private(&path).unwrap(), None);
        replace(&path, b"secret", PRIVATE).unwrap();
        assert_eq!(read_private(&path).unwrap().as_deref(), Some(b"secret".as_slice()));
        for mode in [0o644, 0o640, 0o602] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = read_private(&path).unwrap_err().to_string();
            assert!(error.contains("its mode is 06") && error.contains("chmod 600"), "{error}");
        }
    }
}
