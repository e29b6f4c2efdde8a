//! The durable store of one edge: objects, their history, waiting reports, and the position in the cloud's history.
//!
//! One thread writes, in transactions that several commands share. Readers see the state of the last commit and never
//! wait for the writer. Deliveries are on disk before they are acknowledged to the cloud (`docs/consistency.md`).
//!
//! The store guarantees these rules:
//! - Clients see local revisions, in commit order. Revisions of the cloud are stored separately and never compared with
//!   local ones. Within one epoch the version of an object never goes back.
//! - A pod stays invisible until everything that it refers to is here or known not to exist (docs/protocol.md#lanes).
//!   Once visible it stays visible. If an update adds a missing reference, clients that read it are told to wait.
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
use tombolo_proto::ids::{CloudRevision, Epoch, StoreId, SubscriptionId};
use tombolo_proto::object::{InventoryEntry, ObjectKey, Resource};

mod answers;
mod batch;
mod cached_replies;
mod error;
#[cfg(test)]
mod faulty;
mod inspect;
mod keys;
mod lazy;
mod medium;
mod offline_writes;
mod open;
mod outbox;
mod publication;
mod reserved;
mod row;
mod salvage;
mod schema;
mod seal;
mod selection;
mod serve;
mod shared;
mod single_objects;
pub(crate) mod splice;
mod subscription;
mod tombstones;
pub(crate) mod trust;
mod view;
mod writer;

#[cfg(test)]
mod tests;

pub use answers::{CachedReply, Class, Question};
pub use batch::offline_writes::{Accepted, OfflineWrite};
pub use batch::single_objects::{BYTES_MAX, EVENTS_MAX as KEPT_EVENTS_MAX, OBJECTS_MAX};
pub use error::{OpenError, ReadError, WriteError};
#[cfg(test)]
pub(crate) use faulty::FaultyDisk;
pub use inspect::{Inspection, inspect};
pub use medium::{FileMedium, Medium};
pub use open::Opened;
pub use outbox::{Call, EVENTS_MAX, REPORTS_BYTES_MAX, REPORTS_MAX, Report, ReportKind, Waiting};
pub(crate) use reserved::Reserved;
pub use seal::Sealer;
pub use selection::Selection;
pub(crate) use serve::why_unreadable;
pub use subscription::{Kept, LocalInventory, Subscribed};

use shared::Shared;
use view::ObjectCounts;
use writer::{Command, Done, Job};

/// Memory for pages of the file, in bytes. Small, because the operating system also caches the file, and the agent must
/// leave memory for the workload of a device.
const CACHE_BYTES: usize = 256 * 1024;

/// How much history the file keeps. A watcher that falls behind it must list again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBounds {
    /// Maximum number of changes.
    pub rows: u64,
    /// Maximum bytes of changes.
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
    /// The pushed set or a subscription.
    pub subscription: SubscriptionId,
    /// The change of the object.
    pub change: Change,
}

/// Why the edge refuses a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Kind of problem.
    pub reason: RefusalReason,
    /// Message for the operator.
    pub message: String,
}

/// A version of an object from the reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Learned {
    /// The object.
    pub key: ObjectKey,
    /// JSON text from the cloud's API.
    pub body: Bytes,
    /// Whether to store it even if nothing else here needs the object.
    pub keep: bool,
}

/// State of the store for the hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Identity of the store.
    pub store: StoreId,
    /// The history that the whole pushed set belongs to; `None` during the change to another history.
    pub epoch: Option<Epoch>,
    /// Trimming rules under which the content hashes were made; 0 before the first session.
    pub trim_version: u32,
    /// Whether the pushed set was ever complete.
    pub synced: bool,
    /// The newest attestation of the cloud; empty if there is none.
    pub attestation: Bytes,
}

/// The cloud's answer to the hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// History of the cloud's revisions.
    pub epoch: Epoch,
    /// Whether epoch and trimming rules are those of the hello.
    pub resumed: bool,
    /// Trimming rules in force.
    pub trim_version: u32,
}

/// How much the store holds, for operators.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Objects that clients see.
    pub visible: u64,
    /// Pods hidden until the objects they refer to arrive.
    pub hidden: u64,
    /// Objects that are known not to exist.
    pub absent: u64,
    /// Reports that wait for the cloud.
    pub reports: u64,
}

/// Handle of a store. Clones share it. The file is closed when the last one is dropped, or by [`Store::close`].
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
    /// Opens the store of a data folder, or creates one. A damaged store is moved aside and replaced by one with all
    /// data that could be read; the cloud sends the rest. An error of the disk or the system never discards the store.
    ///
    /// # Errors
    /// [`OpenError`] when the folder is in use or cannot be used, or a newer edgecore wrote the store.
    pub fn open(folder: &Path) -> Result<Opened, OpenError> {
        open::in_folder(folder)
    }

    /// As [`Store::open`], but retries errors that may be temporary for about 20 seconds.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_patiently(folder: &Path) -> Result<Opened, OpenError> {
        open::patiently(|| Self::open(folder), std::thread::sleep)
    }

    /// As [`Store::open`], on a disk of a simulation.
    ///
    /// # Errors
    /// As [`Store::open`].
    #[cfg(feature = "simulation")]
    pub fn open_simulated(medium: Box<dyn Medium>, sealer: Sealer) -> Result<Opened, OpenError> {
        open::on_medium(medium, sealer, LogBounds::default(), open::first_revision(), None)
    }

    /// Makes the store fail.
    #[cfg(test)]
    pub(crate) fn fail(&self, why: &str) {
        self.shared.fail(why);
    }

    /// Waits until the store fails, and returns why. The store must then be opened again by another process.
    pub async fn failed(&self) -> String {
        let mut failure = self.shared.failure.subscribe();
        match failure.wait_for(Option::is_some).await.map(|why| why.clone()) {
            Ok(Some(why)) => why,
            // Unreachable: this handle keeps the sender.
            _ => std::future::pending().await,
        }
    }

    /// Waits for room in the writer's queue. Work is done in the order in which it was submitted. Cancel-safe.
    ///
    /// # Errors
    /// [`WriteError::Closed`] when the store is closed.
    pub(crate) async fn reserve(&self) -> Result<Reserved, WriteError> {
        self.jobs.clone().reserve_owned().await.map(Reserved::new).map_err(|_| WriteError::Closed)
    }

    /// Replaces the attestation of the cloud. It is written with the next commit or at the end of the process. It
    /// arrives every minute, which does not justify a commit of its own.
    pub fn attest(&self, attestation: Bytes) {
        *self.shared.attestation.lock() = attestation;
    }

    /// Keeps a report until the cloud has answered it. Replaces an older report about the same thing.
    ///
    /// # Errors
    /// [`WriteError::Rejected`] when too many reports wait; other errors when it could not be written.
    pub async fn report(&self, report: Report) -> Result<(), WriteError> {
        self.run(Command::Report(report)).await.map(drop)
    }

    /// Deletes an answered report, unless a newer one about the same thing waits. Stores the version of the object from
    /// the answer in the same transaction.
    ///
    /// # Errors
    /// [`WriteError`] when that could not be written; the report is then sent again, which is harmless.
    pub async fn settle(&self, number: u64, learned: Option<Learned>) -> Result<(), WriteError> {
        self.run(Command::Settle { number, learned }).await.map(drop)
    }

    /// Stores a version of an object from the reply to a request, if something here needs the object and the version is
    /// newer than the stored one. Returns the object as local clients see it, with its local revision; `None` if it is
    /// not stored here.
    ///
    /// # Errors
    /// [`WriteError`] when it could not be written.
    pub async fn learn(&self, learned: Learned) -> Result<Option<Bytes>, WriteError> {
        match self.run(Command::Learn(learned)).await? {
            Done::Learned(answer) => Ok(answer),
            _ => Ok(None),
        }
    }

    /// The local revision of an object, and the cloud's revision of the same version; `None` if the object is not
    /// stored here.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn revisions(&self, key: &ObjectKey) -> Result<Option<(Revision, CloudRevision)>, ReadError> {
        self.read(|view| view.revisions(key))
    }

    /// Ends all watches and closes the file.
    pub async fn close(&self) {
        // An error means that it is closed already.
        let _ = self.run(Command::Close).await;
    }

    /// What the store holds in one subscription.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn inventory(&self, subscription: SubscriptionId) -> Result<Vec<InventoryEntry>, ReadError> {
        self.read(|view| view.inventory(subscription))
    }

    /// State of the store.
    ///
    /// # Errors
    /// [`ReadError`] when the store is closed.
    pub fn standing(&self) -> Result<Standing, ReadError> {
        self.read(|view| {
            let pushed = view.subscriptions.get(&SubscriptionId::NODE.0);
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
            let ObjectCounts { visible, hidden, absent } = view.tally;
            Ok(Counts { visible, hidden, absent, reports: view.reports_waiting()? })
        })
    }

    /// A counter that grows with every commit, to wait for changes instead of polling.
    #[must_use]
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.shared.commits.subscribe()
    }

    /// A counter that grows when the set of waiting reports changes.
    #[must_use]
    pub fn reports_changed(&self) -> watch::Receiver<u64> {
        self.shared.reports.subscribe()
    }

    /// The newest local revision.
    #[must_use]
    pub fn local_revision(&self) -> Revision {
        self.shared.view().map(|view| view.revision()).unwrap_or_default()
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&view::CommittedView) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let view = self.shared.view().ok_or_else(|| ReadError::Storage("the store is closed".to_owned()))?;
        // The database may panic on a damaged file.
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| read(&view)));
        let result = result.unwrap_or_else(|_| Err(ReadError::Corrupted("a read panicked".to_owned())));
        if let Err(ReadError::Corrupted(why)) = &result {
            self.shared.fail(why);
        }
        if matches!(result, Err(ReadError::Storage(_))) {
            let (reply, _) = oneshot::channel();
            // If the queue is full, the writer has work and detects by itself that the file has failed.
            let _ = self.jobs.try_send(Job { command: Command::Reopen, reply });
        }
        result
    }

    async fn run(&self, command: Command) -> Result<Done, WriteError> {
        self.reserve().await?.run(command).await
    }
}

/// A random identity for a new store.
fn fresh_id() -> StoreId {
    let mut id = [0; 16];
    // Without random numbers TLS does not work either. Equal identities only cost a full comparison.
    let _ = random::fill(&mut id);
    StoreId(id)
}

/// Whether the pushed set has all of this node's objects of this resource.
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
