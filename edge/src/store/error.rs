//! Errors of the store.

use std::io;
use std::path::PathBuf;

use thiserror::Error;
use tombolo_runtime::files::is_full;

use super::splice::SpliceError;

/// Why a change was not made. No part of it is in the store.
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
    /// The file is damaged: nothing more can be written until it is opened again.
    #[error("the store's file is damaged: {0}")]
    Damaged(String),
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
    /// The file itself is damaged.
    #[error("the store's file is damaged: {0}")]
    Corrupted(String),
    /// A row does not have the format of this version.
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
    /// The file system reports an error.
    #[error("cannot use {path}: {source}", path = path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A newer edgecore wrote the store.
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
    /// An error of the disk or the system prevents opening the store, or replacing a damaged one. The file is
    /// unchanged.
    #[error("the store cannot be opened and its file is kept unchanged: {0}")]
    Storage(String),
}

impl OpenError {
    /// Whether it may be temporary.
    pub(super) fn may_pass(&self) -> bool {
        use io::ErrorKind::{IsADirectory, NotADirectory, PermissionDenied, ReadOnlyFilesystem};
        match self {
            Self::InUse { .. } | Self::Newer { .. } => false,
            Self::Io { source, .. } => {
                let kind = source.kind();
                !matches!(kind, PermissionDenied | ReadOnlyFilesystem | NotADirectory | IsADirectory)
            }
            Self::Storage(_) => true,
        }
    }
}

/// Whether a database error means that the file is damaged. All other errors come from the disk or the system (I/O
/// error, no file descriptors, no memory, no permission) and say nothing about the content.
pub(super) fn is_damage(error: &redb::Error) -> bool {
    use redb::Error as E;
    match error {
        E::Io(io) => is_about_content(io),
        E::Corrupted(_)
        | E::UpgradeRequired(_)
        | E::RepairAborted
        | E::TableTypeMismatch { .. }
        | E::TableIsMultimap(_)
        | E::TableIsNotMultimap(_)
        | E::TypeDefinitionChanged { .. }
        | E::TableDoesNotExist(_) => true,
        _ => false,
    }
}

/// Whether a file error is about the content: the file is too short, or its data is invalid.
pub(super) fn is_about_content(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    // Errors of the system have an error number.
    error.raw_os_error().is_none() && matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof)
}

/// Converts a database error to an error of the store.
pub(super) fn storage(error: impl Into<redb::Error>) -> WriteError {
    match error.into() {
        redb::Error::Io(io) if is_full(&io) => WriteError::Full,
        other if is_damage(&other) => WriteError::Damaged(other.to_string()),
        other => WriteError::Storage(other.to_string()),
    }
}

pub(super) fn reading(error: impl Into<redb::Error>) -> ReadError {
    let error = error.into();
    if is_damage(&error) {
        return ReadError::Corrupted(error.to_string());
    }
    ReadError::Storage(error.to_string())
}

impl From<SpliceError> for WriteError {
    fn from(error: SpliceError) -> Self {
        Self::Rejected(error.to_string())
    }
}

impl From<ReadError> for WriteError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Corrupted(why) => Self::Damaged(why),
            other => Self::Storage(other.to_string()),
        }
    }
}
