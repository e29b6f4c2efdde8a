//! Errors that stop the embedded API server from starting or running.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Why the embedded API server could not start or continue. The message says what failed, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// A file of the data directory could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    File {
        /// The attempted action, as a verb.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Another process holds the data directory.
    #[error("data directory {} is in use by another process; stop it or choose another --data-dir", .0.display())]
    InUse(PathBuf),
    /// The data directory was written by another version.
    #[error("data directory {} has format {found:?}, this version reads {expected:?}; use the version that wrote it or another --data-dir", path.display())]
    Format {
        /// The data directory.
        path: PathBuf,
        /// The content of its format file.
        found: String,
        /// The format of this version.
        expected: &'static str,
    },
    /// The directory belongs to another program.
    #[error("data directory {} belongs to `tombolo up`: start it with `tombolo up` or choose another --data-dir", .0.display())]
    OfTombolo(PathBuf),
    /// The port is in use.
    #[error("cannot listen on {addr}: {source}; stop the process that uses it or choose another address")]
    Listen {
        /// The requested address.
        addr: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A key or certificate could not be made or read.
    #[error("{what}: {message}")]
    Pki {
        /// Which key or certificate.
        what: String,
        /// What is wrong with it.
        message: String,
    },
    /// The journal could not be opened, read or written.
    #[error("journal {}: {message}", path.display())]
    Journal {
        /// The journal's file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// An option has an invalid value.
    #[error("{option}: {message}")]
    Option {
        /// Which option.
        option: &'static str,
        /// What is wrong with its value.
        message: String,
    },
    /// The listener failed while serving.
    #[error("serving the Kubernetes API: {0}")]
    Serve(#[source] io::Error),
    /// A controller or another task of the server failed.
    #[error("embedded API server: {0}")]
    Task(#[source] tombolo_runtime::TaskError),
    /// An object that every cluster has could not be written.
    #[error("bootstrap of {object}: {message}")]
    Bootstrap {
        /// Which object.
        object: String,
        /// The error of the store.
        message: String,
    },
}

impl EmbeddedError {
    /// A failed file operation; `action` is a verb such as `read`.
    pub(super) fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File { action, path: path.to_owned(), source }
    }

    /// A failure with a key or certificate.
    #[expect(clippy::needless_pass_by_value, reason = "callers hand over errors that they are done with")]
    pub(super) fn pki(what: impl Into<String>, message: impl ToString) -> Self {
        Self::Pki { what: what.into(), message: message.to_string() }
    }
}
