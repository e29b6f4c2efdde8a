//! What can go wrong in the store.

use std::io;
use std::path::PathBuf;

use thiserror::Error;
use tombolo_runtime::files::is_full;

/// Why a change was not made. Nothing of it is in the store.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WriteError {
    /// The disk is full.
    #[error(
        "the disk of the data folder is full: make room on it; the cloud sends again what could not be stored"
    )]
    Full,
    /// The disk or the store's file failed.
    #[error("the store cannot write: {0}")]
    Storage(String),
    /// The change itself cannot be made.
    #[error("{0}")]
    Rejected(String),
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

/// Why the store cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The disk or the store's file failed.
    #[error("the store cannot read: {0}")]
    Storage(String),
    /// A row is not what this version writes.
    #[error("the store holds a row that cannot be read: {0}")]
    Damaged(&'static str),
}

/// Why the store cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The data folder is used by another agent.
    #[error("the data folder {path} is in use by another edgecore: stop it, or choose another dataDir", path = path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The file system refuses.
    #[error("cannot use {path}: {source}", path = path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A newer edgecore has written the store.
    #[error(
        "the store was written by a newer edgecore (schema {found}, this one reads up to {supported}): \
         run that version, or move the store file away to have it rebuilt from the cloud"
    )]
    Newer {
        /// Schema of the file.
        found: u32,
        /// Newest schema that this program reads.
        supported: u32,
    },
    /// Neither the file nor a new one in its place can be opened.
    #[error("the store cannot be opened: {0}")]
    Storage(String),
}

/// How a failure of the database reads to the rest of the store.
pub(super) fn storage(error: impl Into<redb::Error>) -> WriteError {
    match error.into() {
        redb::Error::Io(io) if is_full(&io) => WriteError::Full,
        other => WriteError::Storage(other.to_string()),
    }
}

pub(super) fn reading(error: impl Into<redb::Error>) -> ReadError {
    ReadError::Storage(error.into().to_string())
}

impl From<ReadError> for WriteError {
    fn from(error: ReadError) -> Self {
        Self::Storage(error.to_string())
    }
}
