//! Reasons why the join port does not start.

use std::path::PathBuf;

use thiserror::Error;
use tombolo_link::TlsError;

use super::identities::IdentityError;
use super::secrets::SecretError;
use crate::startup_retry::Retryable;

/// Why certificates or tokens are not ready.
#[derive(Debug, Error)]
pub enum BootstrapError {
    /// The stored certificate authority is invalid. It is not overwritten, because nodes trust it.
    #[error(
        "certificate authority in {origin} is unusable: {reason}. Repair it, or delete it and join every node again"
    )]
    Authority {
        /// The file or Secret.
        origin: String,
        /// What is wrong.
        reason: String,
    },
    /// An address of the hub is neither a host name nor an IP address.
    #[error(
        "advertised addresses [{addresses}]: {reason}; expected host names and IP addresses without ports"
    )]
    Address {
        /// All addresses.
        addresses: String,
        /// What is wrong.
        reason: String,
    },
    /// A certificate could not be created.
    #[error("cannot create a certificate: {reason}")]
    Signing {
        /// What went wrong.
        reason: String,
    },
    /// The Secrets could not be read or written.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A file of the operator could not be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file named in the configuration is not a certificate or key.
    #[error("cannot use {path}: {reason}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The TLS library rejects the certificate.
    #[error("server certificate: {0}")]
    Tls(#[from] TlsError),
    /// The records of certificates cannot be used.
    #[error("cannot tell which certificates are in force: {0}")]
    Identities(#[from] IdentityError),
    /// The authority was replaced while this process was running.
    #[error(
        "the certificate authority in {origin} was replaced while cloudcore was running: all sessions of the former authority end, and cloudcore must be restarted"
    )]
    AuthorityReplaced {
        /// The file or Secret.
        origin: String,
    },
    /// The join token could not be created.
    #[error("cannot create a join token: {reason}")]
    Token {
        /// What went wrong.
        reason: String,
    },
}

impl Retryable for BootstrapError {
    fn is_passing(&self) -> bool {
        match self {
            Self::Secret(error) | Self::Identities(IdentityError::Secret(error)) => error.is_passing(),
            _ => false,
        }
    }
}

impl BootstrapError {
    #[allow(clippy::needless_pass_by_value)] // for `map_err`
    pub(super) fn signing(error: impl std::fmt::Display) -> Self {
        Self::Signing { reason: error.to_string() }
    }
}
