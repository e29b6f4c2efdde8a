//! Atomic replacement of a certificate and its key. The two files must never be of different pairs, even if the process
//! is killed between the two writes. Therefore both are first written to one file, which is put in place by a rename.
//! If that file exists at the next start, the replacement is finished then.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tombolo_runtime::files;

use super::KeyedCertificate;
use crate::datadir::{sync_parent, write_atomic};
use crate::error::EmbeddedError;

/// Start of the key in the file with both.
const KEY_BEGINS: &str = "-----BEGIN PRIVATE KEY-----";

/// Replaces a pair.
///
/// # Errors
/// [`EmbeddedError::File`] when the file system refuses. Either the old pair is still in place, or the next start
/// finishes the replacement.
pub(super) fn replace(folder: &Path, name: &str, pair: &KeyedCertificate) -> Result<(), EmbeddedError> {
    let both = format!("{}{}", pair.certificate, pair.key);
    write_atomic(&both_path(folder, name), both.as_bytes(), files::PRIVATE)?;
    complete(folder, name)
}

/// Finishes an interrupted replacement.
///
/// # Errors
/// As [`replace`].
pub(super) fn complete(folder: &Path, name: &str) -> Result<(), EmbeddedError> {
    let path = both_path(folder, name);
    let failed = |action, error| EmbeddedError::file(action, &path, error);
    let Some(both) = files::read_private(&path).map_err(|error| failed("read", error))? else {
        return Ok(());
    };
    let both = String::from_utf8(both).map_err(|_| failed("read", io::ErrorKind::InvalidData.into()))?;
    let key = both.find(KEY_BEGINS).ok_or_else(|| failed("read", io::ErrorKind::InvalidData.into()))?;
    let (certificate, key) = both.split_at(key);
    write(folder, name, &KeyedCertificate { certificate: certificate.to_owned(), key: key.to_owned() })?;
    fs::remove_file(&path).and_then(|()| sync_parent(&path)).map_err(|error| failed("remove", error))
}

/// Writes both files, one after the other.
///
/// # Errors
/// [`EmbeddedError::File`] when the file system refuses.
pub(super) fn write(folder: &Path, name: &str, pair: &KeyedCertificate) -> Result<(), EmbeddedError> {
    write_atomic(&folder.join(format!("{name}.crt")), pair.certificate.as_bytes(), files::PUBLIC)?;
    write_atomic(&folder.join(format!("{name}.key")), pair.key.as_bytes(), files::PRIVATE)
}

fn both_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.pair"))
}
