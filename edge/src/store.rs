//! The durable store of one edge: objects, their history, reports that wait, and where the cloud's history was left.
//!
//! One thread writes, in transactions that several commands share; readers read the state after the last commit
//! and never wait for the writer. What is acknowledged to the cloud is on disk first (`docs/consistency.md`).
//!
//! Rules that only the store can keep:
//! - Clients see local revisions, in commit order. Revisions of the cloud are kept beside and never compared with
//!   them; within one epoch a version never goes back.
//! - A pod stays invisible until everything that it refers to is here or known not to exist (docs/protocol.md#lanes).
//!   Once seen it stays visible; for a reference that an update adds, clients are told to wait.
//! - A new UID under an old name is a deletion followed by an addition.
//! - A report and the status that it shows to clients are written in one transaction. Until the cloud has
//!   answered, that status also survives newer deliveries of the object.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::rand as random;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tombolo_apicore::store::Revision;
use tombolo_proto::frame::{Change, RefusalReason};
use tombolo_proto::ids::{CloudRevision, Epoch, ScopeId, StoreId};
use tombolo_proto::object::{InventoryEntry, ObjectKey, Resource};

mod answers;
mod batch;
mod error;
#[cfg(test)]
mod faulty;
mod gone;
mod inspect;
mod kept;
mod keys;
mod lazy;
mod medium;
mod open;
mod outbox;
mod own;
mod row;
mod salvage;
mod schema;
mod scope;
mod seal;
mod serve;
mod shared;
pub(crate) mod splice;
pub(crate) mod trust;
mod view;
mod writer;

#[cfg(test)]
mod tests;

pub use answers::{Answer, Class, Question};
pub use error::{OpenError, ReadError, WriteError};
#[cfg(test)]
pub(crate) use faulty::FaultyDisk;
pub use inspect::{Inspection, inspect};
pub use kept::{BYTES_MAX, EVENTS_MAX as KEPT_EVENTS_MAX, OBJECTS_MAX};
pub use medium::{FileMedium, Medium};
pub use open::Opened;
pub use outbox::{Call, EVENTS_MAX, REPORTS_BYTES_MAX, REPORTS_MAX, Report, ReportKind, Waiting};
pub use own::{Accepted, OwnWrite};
pub use scope::{Held, Kept, Scoped, Selection};
pub use seal::Sealer;
pub(crate) use serve::why_unreadable;

use shared::Shared;
use view::Tally;
use writer::{Command, Done, Job};

/// Memory for pages of the file, in bytes. Small: the operating system keeps the file in its own cache, and the agent has
/// to fit beside the workload of a device.
const CACHE_BYTES: usize = 256 * 1024;

/// How much history the file keeps: what an older watcher misses it lists again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBounds {
    /// Changes.
    pub rows: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl Default for LogBounds {
    fn default() -> Self {
        Self { rows: 1024, bytes: 2 * 1024 * 1024 }
    }
}

/// One delivered change.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Pushed set or subscription.
    pub scope: ScopeId,
    /// What happens to which object.
    pub change: Change,
}

/// Why the edge does not take a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Kind of trouble.
    pub reason: RefusalReason,
    /// Sentence for the operator.
    pub message: String,
}

/// A version of an object that came as the reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Learned {
    /// Which object.
    pub key: ObjectKey,
    /// JSON text, as the cloud's API gave it.
    pub body: Bytes,
    /// Whether it is kept also when nothing else here wants it.
    pub keep: bool,
}

/// Where the store stands, for the hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Identity of the store.
    pub store: StoreId,
    /// The history that all of the pushed set belongs to; none when it is between two.
    pub epoch: Option<Epoch>,
    /// Trimming rules under which the content hashes were made; 0 before the first session.
    pub trim_version: u32,
    /// Whether the pushed set was ever complete.
    pub synced: bool,
    /// The newest attestation of the cloud; empty when there is none.
    pub attestation: Bytes,
}

/// How the cloud has answered the hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// History of the cloud's revisions.
    pub epoch: Epoch,
    /// Epoch and trimming rules are those of the hello.
    pub resumed: bool,
    /// Trimming rules in force.
    pub trim_version: u32,
}

/// How much the store holds, for operators.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Objects that clients see.
    pub visible: u64,
    /// Pods that wait for something that they refer to.
    pub hidden: u64,
    /// Objects that are known not to exist.
    pub absent: u64,
    /// Reports that wait for the cloud.
    pub reports: u64,
}

/// Handle of a store. Clones share it; the file is let go when the last one is dropped, or by [`Store::close`].
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    jobs: mpsc::Sender<Job>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store of a data folder, or makes one. A damaged one is moved aside, and one with all that could be read of it
    /// takes its place: the cloud fills in the rest. A disk or a system that refuses never costs the store.
    ///
    /// # Errors
    /// [`OpenError`] when the folder is in use or cannot be used, or a newer edgecore has written the store.
    pub fn open(folder: &Path) -> Result<Opened, OpenError> {
        open::in_folder(folder)
    }

    /// The same, again and again for some 20 seconds where what is in the way may pass by itself.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_patiently(folder: &Path) -> Result<Opened, OpenError> {
        open::patiently(|| Self::open(folder), std::thread::sleep)
    }

    /// Lets the store fail.
    #[cfg(test)]
    pub(crate) fn fail(&self, why: &str) {
        self.shared.fail(why);
    }

    /// Waits until the store can do nothing any more, and tells why. It has to be opened anew then, by another process.
    pub async fn failed(&self) -> String {
        let mut failure = self.shared.failure.subscribe();
        match failure.wait_for(Option::is_some).await.map(|why| why.clone()) {
            Ok(Some(why)) => why,
            // Not to be: this handle keeps the sender.
            _ => std::future::pending().await,
        }
    }

    /// Opens the store on a medium.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_on(medium: Box<dyn Medium>, sealer: Sealer, bounds: LogBounds) -> Result<Opened, OpenError> {
        open::on_medium(medium, sealer, bounds, Revision(1), None)
    }

    /// Applies deliveries in one transaction, in order. When this returns, those that were not refused are on
    /// disk. The inner results belong to the deliveries one by one.
    ///
    /// # Errors
    /// [`WriteError`] when nothing of them could be written.
    pub async fn apply(&self, deliveries: Vec<Delivery>) -> Result<Vec<Result<(), Refused>>, WriteError> {
        match self.run(Command::Apply(deliveries)).await? {
            Done::Applied(outcomes) => Ok(outcomes),
            _ => Ok(Vec::new()),
        }
    }

    /// A session has started: the cloud's side of the hello.
    ///
    /// # Errors
    /// [`WriteError`] when that could not be written; nothing may be applied then.
    pub async fn welcome(&self, welcome: Welcome) -> Result<(), WriteError> {
        self.run(Command::Welcome(welcome)).await.map(drop)
    }

    /// A scope is complete as of a revision of the cloud.
    ///
    /// # Errors
    /// [`WriteError`] when that could not be written.
    pub async fn caught_up(
        &self,
        scope: ScopeId,
        epoch: Epoch,
        revision: CloudRevision,
    ) -> Result<(), WriteError> {
        self.run(Command::CaughtUp { scope, epoch, revision }).await.map(drop)
    }

    /// Keeps an attestation of the cloud in place of an older one. It comes to the disk with the next commit, whatever that is
    /// about, and with the end of the process: it comes every minute, and is not worth a commit of its own.
    pub fn attest(&self, attestation: Bytes) {
        *self.shared.attestation.lock() = attestation;
    }

    /// Keeps a report until the cloud has answered it, in the place of an older one about the same thing.
    ///
    /// # Errors
    /// [`WriteError::Rejected`] when too many reports wait; others when it could not be written.
    pub async fn report(&self, report: Report) -> Result<(), WriteError> {
        self.run(Command::Report(report)).await.map(drop)
    }

    /// A report was answered: it goes, unless a newer one about the same thing waits. What the answer says about
    /// the object is kept in the same transaction.
    ///
    /// # Errors
    /// [`WriteError`] when that could not be written; the report is then sent again, which is harmless.
    pub async fn settle(&self, number: u64, learned: Option<Learned>) -> Result<(), WriteError> {
        self.run(Command::Settle { number, learned }).await.map(drop)
    }

    /// Keeps a version of an object that came as the reply to a request, when something here wants it and it is newer than
    /// what is held. The object as local clients see it, under its local revision; none when nothing here holds it.
    ///
    /// # Errors
    /// [`WriteError`] when it could not be written.
    pub async fn learn(&self, learned: Learned) -> Result<Option<Bytes>, WriteError> {
        match self.run(Command::Learn(learned)).await? {
            Done::Learned(answer) => Ok(answer),
            _ => Ok(None),
        }
    }

    /// The local revision under which clients see an object, and the cloud's revision of the same version; none when
    /// nothing here holds it.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn revisions(&self, key: &ObjectKey) -> Result<Option<(Revision, CloudRevision)>, ReadError> {
        self.read(|view| view.revisions(key))
    }

    /// Ends all watches and lets go of the file.
    pub async fn close(&self) {
        // An error says that it is closed already.
        let _ = self.run(Command::Close).await;
    }

    /// What the store holds in one scope.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn inventory(&self, scope: ScopeId) -> Result<Vec<InventoryEntry>, ReadError> {
        self.read(|view| view.inventory(scope))
    }

    /// Where the store stands.
    ///
    /// # Errors
    /// [`ReadError`] when the store is closed.
    pub fn standing(&self) -> Result<Standing, ReadError> {
        self.read(|view| {
            let pushed = view.scopes.get(&ScopeId::NODE.0);
            Ok(Standing {
                store: view.state.store().ok_or(ReadError::Damaged("state"))?,
                epoch: pushed.and_then(|row| row.epoch.as_ref()?.epoch()),
                trim_version: view.state.trim_version,
                synced: pushed.is_some_and(|row| row.synced),
                attestation: self.shared.attestation.lock().clone(),
            })
        })
    }

    /// The oldest waiting reports with numbers above `after`.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn reports(&self, after: u64, count: usize) -> Result<Vec<Waiting>, ReadError> {
        self.read(|view| view.reports(after, count))
    }

    /// How much the store holds.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn counts(&self) -> Result<Counts, ReadError> {
        self.read(|view| {
            let Tally { visible, hidden, absent } = view.tally;
            Ok(Counts { visible, hidden, absent, reports: view.reports_waiting()? })
        })
    }

    /// A counter that grows with every commit: wait for it instead of asking again and again.
    #[must_use]
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.shared.commits.subscribe()
    }

    /// A counter that grows when other reports wait than before.
    #[must_use]
    pub fn reports_changed(&self) -> watch::Receiver<u64> {
        self.shared.reports.subscribe()
    }

    /// The newest local revision.
    #[must_use]
    pub fn local_revision(&self) -> Revision {
        self.shared.view().map(|view| view.revision()).unwrap_or_default()
    }

    fn read<T>(&self, read: impl FnOnce(&view::View) -> Result<T, ReadError>) -> Result<T, ReadError> {
        let view = self.shared.view().ok_or_else(|| ReadError::Storage("the store is closed".to_owned()))?;
        // The database's code may give up on a damaged file.
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| read(&view)));
        let result = result.unwrap_or_else(|_| Err(ReadError::Corrupted("a read has panicked".to_owned())));
        if let Err(ReadError::Corrupted(why)) = &result {
            self.shared.fail(why);
        }
        if matches!(result, Err(ReadError::Storage(_))) {
            let (reply, _) = oneshot::channel();
            // When the queue is full the writer has work, and finds out for itself that the file has failed.
            let _ = self.jobs.try_send(Job { command: Command::Reopen, reply });
        }
        result
    }

    async fn run(&self, command: Command) -> Result<Done, WriteError> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job { command, reply }).await.map_err(|_| WriteError::Closed)?;
        answer.await.map_err(|_| WriteError::Closed)?
    }
}

/// A random identity for a new store.
fn fresh_id() -> StoreId {
    let mut id = [0; 16];
    // Without random numbers no TLS connection works either; equal identities only cost a full comparison.
    let _ = random::fill(&mut id);
    StoreId(id)
}

/// Whether objects of this resource come with the pushed set, complete for this node.
pub(crate) fn is_pushed(resource: &Resource) -> bool {
    is_core(resource) && matches!(&*resource.name, "pods" | "nodes" | "configmaps" | "secrets")
}

fn is_core(resource: &Resource) -> bool {
    resource.group.is_empty() && &*resource.version == "v1"
}

fn is_pod(resource: &Resource) -> bool {
    is_core(resource) && &*resource.name == "pods"
}

fn is_secret(resource: &Resource) -> bool {
    resource.group.is_empty() && &*resource.name == "secrets"
}
