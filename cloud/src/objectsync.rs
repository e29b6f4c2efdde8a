//! `ObjectSync` and `ClusterObjectSync`, in which KubeEdge cloudcore records which objects it delivered to which node
//! (docs/reference/kubeedge.md#objectsync).
//!
//! They seed the delivery ledgers at the first start in a cluster where KubeEdge cloudcore ran, so that objects deleted
//! since are deleted at the edges. For a return to KubeEdge they are written back.

mod export;
mod import;
mod record;
#[cfg(test)]
mod tests;

pub use export::{Exported, REFUSALS_TOLD, export};
pub(crate) use import::import;

use thiserror::Error;
use tombolo_proto::message::is_passing;

use crate::hub::LedgerError;
use crate::kube::{Answer, CallError};
use crate::startup_retry::Retryable;

/// API group and version.
const API: &str = "/apis/reliablesyncs.kubeedge.io/v1alpha1";

/// Why they could not be read or written.
#[derive(Debug, Error)]
pub enum ObjectSyncError {
    /// The API server did not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The API server refused.
    #[error("{path}: {message} ({code})")]
    Refused {
        /// The requested path.
        path: String,
        /// HTTP status code.
        code: u16,
        /// The server's message.
        message: String,
    },
    /// A ledger could not be read or written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Retryable for ObjectSyncError {
    fn is_passing(&self) -> bool {
        match self {
            Self::Call(error) => error.is_passing(),
            Self::Refused { code, .. } => is_passing(*code),
            Self::Ledger(LedgerError::Unavailable { passing, .. }) => *passing,
            Self::Ledger(_) => false,
        }
    }
}

fn refused(path: &str, answer: &Answer) -> ObjectSyncError {
    ObjectSyncError::Refused { path: path.to_owned(), code: answer.code, message: answer.message() }
}
