//! Why a session ended.

use thiserror::Error;
use tombolo_link::{ConnectError, LinkError, TlsError};
use tombolo_proto::error::IdError;

use crate::store::{ReadError, WriteError};

/// Why a session could not begin or continue. Every variant may be temporary.
#[derive(Debug, Error)]
pub(crate) enum SessionFailure {
    /// No link could be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The node's certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The link ended.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// An inventory that cannot be read ends the session: an empty one would mean that nothing is held.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Later work of the session builds on what could not be written.
    #[error("cannot write to the store: {0}")]
    Write(#[from] WriteError),
    /// A name that the protocol does not allow.
    #[error(transparent)]
    Id(#[from] IdError),
}
