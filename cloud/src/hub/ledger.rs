//! Where the delivery ledgers of stock edges are kept (docs/decisions/0004-kubeedge-dialect.md).
//!
//! One record a node, changed by compare-and-swap alone. A record names its holder, the cloudcore that serves the node: a
//! node that connects to another cloudcore takes its record along, and whatever the former holder still wants to write
//! fails. So a stored version is never undone by a replica that has not noticed yet that the node has left it.

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

/// Calls of the store under way over all nodes; further ones wait for their turn. Thousands of nodes connect and leave in
/// the same second, and a store that is asked by all of them at once refuses some (kube-apiserver with code 429) and keeps
/// everybody else waiting. This many keep it busy.
const CALLS_MAX: usize = 16;

/// Attempts to take a record over; each loss means that somebody else wrote it meanwhile.
const TAKEOVER_ATTEMPTS: usize = 8;

/// Version of a stored record: changes with every write.
pub type RecordVersion = String;

/// Keeps one record a node.
pub trait LedgerStore: Send + Sync {
    /// The record of a node and its version; none when there is none.
    fn read<'a>(
        &'a self,
        node: &'a NodeId,
    ) -> BoxFuture<'a, Result<Option<(Record, RecordVersion)>, LedgerError>>;

    /// Writes a record if the stored version is still `expected`, where none means that there is no record. The new
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
    /// Somebody else wrote it meanwhile.
    #[error("the record was changed by another cloudcore")]
    Conflict,
    /// The store does not answer or refuses.
    #[error("the delivery ledger of {node} cannot be {action}: {reason}")]
    Unavailable {
        /// Whose.
        node: NodeId,
        /// `read` or `written`.
        action: &'static str,
        /// Why, in the store's words.
        reason: String,
        /// Whether the store may say something else in a moment.
        passing: bool,
    },
    /// The store does not tell which records there are.
    #[error("the delivery ledgers cannot be listed: {reason}")]
    List {
        /// Why, in the store's words.
        reason: String,
    },
    /// The stored bytes are no record.
    #[error("the delivery ledger of {node} is damaged ({source}); delete it to start with an empty one")]
    Damaged {
        /// Whose.
        node: NodeId,
        /// What is wrong.
        source: RecordError,
    },
}

/// The ledger of a node as it was found; an empty one without a version when there was none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Opened {
    pub(super) ledger: Ledger,
    pub(super) owner: Option<Uid>,
    pub(super) version: Option<RecordVersion>,
}

/// How a write ended.
#[derive(Debug)]
pub(super) enum Saved {
    /// It is stored.
    Done(RecordVersion),
    /// Not stored; another attempt may work.
    Failed(LedgerError),
    /// Somebody wrote this meanwhile, under this cloudcore's name or nobody's.
    Conflict(Ledger, Option<RecordVersion>),
    /// The node is another cloudcore's now.
    TakenOver,
}

/// The ledgers as this cloudcore uses them. Cheap to clone.
#[derive(Clone)]
pub struct Ledgers {
    store: Arc<dyn LedgerStore>,
    /// Names this process among all that ever served the nodes.
    holder: Arc<str>,
    /// [`CALLS_MAX`] of them.
    turns: Arc<Semaphore>,
}

impl Ledgers {
    /// Ledgers in this store, for a process that `holder` names.
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

    /// The ledger of a node that has connected. From now on it is this cloudcore's to write.
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

    /// Stores a state of the ledger. `owner` is the UID of the Node object with which the record disappears.
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
            // Deleted with its node.
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
