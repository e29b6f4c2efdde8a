//! Storage of the certificate authority, the server certificate and the join tokens.

mod cluster;

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use thiserror::Error;

use crate::startup_retry::Retryable;

pub use cluster::{ClusterSecrets, OWN_LABEL};

/// Keys and values of an Opaque Secret, decoded.
pub type SecretData = BTreeMap<String, Vec<u8>>;

/// A stored Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredSecret {
    /// Its content.
    pub data: SecretData,
    /// Opaque version for compare-and-swap.
    pub version: String,
}

impl std::fmt::Debug for StoredSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The values are private keys, so only their names are logged.
        f.debug_struct("StoredSecret").field("keys", &self.data.keys()).finish_non_exhaustive()
    }
}

/// Why a Secret could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SecretError {
    /// Another replica has created it first; read it.
    #[error("secret {name} exists already")]
    Exists {
        /// The Secret.
        name: String,
    },
    /// Another replica has changed it since it was read; read it again.
    #[error("secret {name} was changed by another writer")]
    Conflict {
        /// The Secret.
        name: String,
    },
    /// The Kubernetes API rejected the call or did not answer.
    #[error("secret {name}: {reason}")]
    Unavailable {
        /// The Secret.
        name: String,
        /// The error of the API.
        reason: String,
        /// Whether a retry soon may succeed.
        passing: bool,
    },
}

impl Retryable for SecretError {
    fn is_passing(&self) -> bool {
        match self {
            // Other replicas start at the same time.
            Self::Exists { .. } | Self::Conflict { .. } => true,
            Self::Unavailable { passing, .. } => *passing,
        }
    }
}

/// Opaque Secrets of one namespace, with compare-and-swap.
pub trait SecretStore: Send + Sync + 'static {
    /// Reads a Secret; `None` when it does not exist.
    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<StoredSecret>, SecretError>>;

    /// Creates a Secret and returns its version; [`SecretError::Exists`] when another writer was faster.
    fn create<'a>(&'a self, name: &'a str, data: SecretData) -> BoxFuture<'a, Result<String, SecretError>>;

    /// Replaces a Secret that is still at `version` and returns its new version; [`SecretError::Conflict`] when it has
    /// changed.
    fn update<'a>(
        &'a self,
        name: &'a str,
        version: &'a str,
        data: SecretData,
    ) -> BoxFuture<'a, Result<String, SecretError>>;
}

/// Overwrites a Secret regardless of its content: the values of all replicas are equally good.
///
/// # Errors
/// [`SecretError`] when the API fails, or others keep writing at the same time.
pub(super) async fn put(store: &dyn SecretStore, name: &str, data: SecretData) -> Result<(), SecretError> {
    const ATTEMPTS: usize = 3;
    let mut last = SecretError::Conflict { name: name.to_owned() };
    for _ in 0..ATTEMPTS {
        let written = match store.get(name).await? {
            Some(stored) if stored.data == data => return Ok(()),
            Some(stored) => store.update(name, &stored.version, data.clone()).await,
            None => store.create(name, data.clone()).await,
        };
        match written {
            Err(error @ (SecretError::Exists { .. } | SecretError::Conflict { .. })) => last = error,
            done => return done.map(|_| ()),
        }
    }
    Err(last)
}
