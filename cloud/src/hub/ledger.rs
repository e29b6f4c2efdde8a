//! Storage of the delivery ledgers of KubeEdge edges (docs/decisions/0004-kubeedge-dialect.md).
//!
//! There is one record per node, and it changes only by compare-and-swap. A record names its holder, the cloudcore that
//! serves the node. When a node connects to another cloudcore, that one takes the record over, and any further write of
//! the former holder fails. So a replica that has not yet noticed that the node has left can never undo a stored
//! version.

mod cluster;
mod record;

pub(crate) use cluster::NO_LEDGERS;
pub use cluster::{ClusterLedgers, LEDGER_LABEL};
pub use record::{Record, RecordError};

use std::sync::Arc;

use futures::future::BoxFuture;
use thiserror::Error;
use tokio::sync::Semaphore;
use tombolo_proto::session::kubeedge::Ledger;
use tombolo_proto::{NodeId, Uid};

/// Concurrent calls of the store over all nodes; further calls queue. Thousands of nodes connect and leave in the same
/// second. A store that receives all those calls at once rejects some (kube-apiserver with code 429) and slows all
/// other clients down. This number keeps it busy.
const CALLS_MAX: usize = 16;

/// Attempts to take over a record. Each failed attempt means that another writer changed it in the meantime.
const TAKEOVER_ATTEMPTS: usize = 8;

/// Version of a stored record. It changes with every write.
pub type RecordVersion = String;

/// Keeps one record per node.
pub trait LedgerStore: Send + Sync {
    /// The record of a node and its version, or none.
    fn read<'a>(
        &'a self,
        node: &'a NodeId,
    ) -> BoxFuture<'a, Result<Option<(Record, RecordVersion)>, LedgerError>>;

    /// Writes a record if the stored version is still `expected`; `None` means that no record exists. Returns the new
    /// version.
    fn write<'a>(
        &'a self,
        node: &'a NodeId,
        expected: Option<&'a RecordVersion>,
        record: &'a Record,
    ) -> BoxFuture<'a, Result<RecordVersion, LedgerError>>;
}

/// A record that could not be read or written.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// Another writer changed the record in the meantime.
    #[error("the record was changed by another cloudcore")]
    Conflict,
    /// The store does not answer, or rejects the call.
    #[error("the delivery ledger of {node} cannot be {action}: {reason}")]
    Unavailable {
        /// The node of the ledger.
        node: NodeId,
        /// `read` or `written`.
        action: &'static str,
        /// The reason that the store gave.
        reason: String,
        /// Whether a retry soon may succeed.
        passing: bool,
    },
    /// The store cannot list its records.
    #[error("the delivery ledgers cannot be listed: {reason}")]
    List {
        /// The reason that the store gave.
        reason: String,
    },
    /// The stored bytes are not a valid record.
    #[error("the delivery ledger of {node} is damaged ({source}); delete it to start with an empty one")]
    Damaged {
        /// The node of the ledger.
        node: NodeId,
        /// What is wrong with the record.
        source: RecordError,
    },
}

/// The ledger of a node as it was found. Empty and without a version when there was none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Opened {
    pub(super) ledger: Ledger,
    pub(super) owner: Option<Uid>,
    pub(super) version: Option<RecordVersion>,
}

/// Outcome of a write.
#[derive(Debug)]
pub(super) enum Saved {
    /// The record is stored.
    Done(RecordVersion),
    /// The record is not stored; another attempt may work.
    Failed(LedgerError),
    /// The record has changed meanwhile, under this cloudcore's name, or was deleted.
    Conflict(Ledger, Option<RecordVersion>),
    /// The node now belongs to another cloudcore.
    TakenOver,
}

/// The ledgers as this cloudcore uses them. Cheap to clone.
#[derive(Clone)]
pub struct Ledgers {
    store: Arc<dyn LedgerStore>,
    /// Identifies this process among all that ever served the nodes.
    holder: Arc<str>,
    /// [`CALLS_MAX`] permits.
    turns: Arc<Semaphore>,
}

impl Ledgers {
    /// Ledgers in this store, for the process that `holder` identifies.
    #[must_use]
    pub fn new(store: Arc<dyn LedgerStore>, holder: &str) -> Self {
        Self { store, holder: holder.into(), turns: Arc::new(Semaphore::new(CALLS_MAX)) }
    }

    async fn read(&self, node: &NodeId) -> Result<Option<(Record, RecordVersion)>, LedgerError> {
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        self.store.read(node).await
    }

    async fn write(
        &self,
        node: &NodeId,
        expected: Option<&RecordVersion>,
        record: &Record,
    ) -> Result<RecordVersion, LedgerError> {
        let _turn = self.turns.acquire().await;
        self.store.write(node, expected, record).await
    }

    /// Opens the ledger of a node that has connected. From now on this cloudcore is its writer.
    ///
    /// # Errors
    /// [`LedgerError`] when it cannot be read or taken over.
    pub(super) async fn open(&self, node: &NodeId) -> Result<Opened, LedgerError> {
        for _ in 0..TAKEOVER_ATTEMPTS {
            let Some((mut record, version)) = self.read(node).await? else {
                return Ok(Opened::default());
            };
            if *record.holder == *self.holder {
                return Ok(Opened { ledger: record.ledger, owner: record.owner, version: Some(version) });
            }
            record.holder = self.holder.as_ref().into();
            match self.write(node, Some(&version), &record).await {
                Ok(version) => {
                    return Ok(Opened { ledger: record.ledger, owner: record.owner, version: Some(version) });
                }
                Err(LedgerError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Err(LedgerError::Conflict)
    }

    /// Stores the current ledger. `owner` is the UID of the Node object with which the record is garbage-collected.
    pub(super) async fn save(
        &self,
        node: &NodeId,
        expected: Option<RecordVersion>,
        ledger: Ledger,
        owner: Option<Uid>,
    ) -> Saved {
        let record = Record { holder: self.holder.as_ref().into(), owner, ledger };
        match self.write(node, expected.as_ref(), &record).await {
            Ok(version) => return Saved::Done(version),
            Err(LedgerError::Conflict) => {}
            Err(error) => return Saved::Failed(error),
        }
        match self.read(node).await {
            // The record was deleted together with its Node.
            Ok(None) => Saved::Conflict(Ledger::default(), None),
            Ok(Some((record, version))) if *record.holder == *self.holder => {
                Saved::Conflict(record.ledger, Some(version))
            }
            Ok(Some(_)) => Saved::TakenOver,
            Err(error) => Saved::Failed(error),
        }
    }
}

#[cfg(test)]
mod tests;
