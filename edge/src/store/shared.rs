//! State shared by the writer and the readers of one store.

use std::collections::HashMap;
use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use redb::{Builder, Database, DatabaseError, StorageError};
use tokio::sync::watch;
use tombolo_apicore::history::{Change, ChangeKind, Histories, Log, LogLimits};
use tombolo_apicore::store::{Revision, Stored};
use tombolo_apicore::stored::compressed::Compressor;
use tombolo_proto::ids::SubscriptionId;
use tombolo_proto::object::Resource;

use super::LogBounds;
use super::error::ReadError;
use super::medium::Medium;
use super::publication::{Publication, Published};
use super::row::{LogRow, LogVersion};
use super::seal::Sealer;
use super::tombstones::Tombstones;
use super::view::CommittedView;

/// Bounds of the changes kept in memory for watchers. A watcher that falls behind must list again. Objects are on disk,
/// so every body in the history is a copy.
const MEMORY_LOG: LogLimits = LogLimits { count: 512, bytes: 512 * 1024, newest: 8, copies: true };

/// The shared state of one store.
pub(super) struct Shared {
    current: RwLock<Current>,
    pub(super) sealer: Arc<Sealer>,
    pub(super) bounds: LogBounds,
    pub(super) gone: Mutex<Tombstones>,
    /// The CA that clients see in addition to the cluster's.
    pub(super) trusted: ArcSwapOption<String>,
    /// The newest attestation of the cloud. Each commit writes it to disk.
    pub(super) attestation: Mutex<Bytes>,
    pub(super) medium: Box<dyn Medium>,
    /// Grows with every commit.
    pub(super) commits: watch::Sender<u64>,
    /// Grows when the set of waiting reports changes.
    pub(super) reports: watch::Sender<u64>,
    /// Why the store has failed; `None` while it works.
    pub(super) failure: watch::Sender<Option<String>>,
    /// Keeps other agents out of the data folder until the store is closed.
    lock: Mutex<Option<File>>,
    /// Compresses the bodies of the history, since almost none of them is read again.
    compressor: Mutex<Compressor>,
}

/// The current state and histories. They change together, so that a client never reads a state older than an event that
/// it has seen.
struct Current {
    view: Option<Arc<CommittedView>>,
    logs: HashMap<(SubscriptionId, Resource), Arc<Log>>,
    histories: Arc<Histories>,
    floor: Revision,
}

impl Shared {
    pub(super) fn new(
        medium: Box<dyn Medium>,
        sealer: Arc<Sealer>,
        bounds: LogBounds,
        lock: Option<File>,
        (view, log): (CommittedView, Vec<LogRow>),
    ) -> Self {
        let floor = Revision(view.state.floor);
        let mut current =
            Current { view: None, logs: HashMap::new(), histories: Histories::new(MEMORY_LOG), floor };
        let attestation = Mutex::new(view.state.attestation());
        current.view = Some(Arc::new(view));
        let mut compressor = Compressor::default();
        for publication in log.into_iter().map(published) {
            current.push(publication, &mut compressor);
        }
        current.fit();
        compressor.settle();
        let (commits, reports, lock) = (watch::Sender::new(0), watch::Sender::new(0), Mutex::new(lock));
        let trusted = ArcSwapOption::empty();
        let (current, compressor) = (RwLock::new(current), Mutex::new(compressor));
        let gone = Mutex::default();
        let failure = watch::Sender::new(None);
        Self {
            current,
            sealer,
            bounds,
            gone,
            trusted,
            attestation,
            medium,
            commits,
            reports,
            failure,
            lock,
            compressor,
        }
    }

    /// Marks the store as failed. It must be opened again.
    pub(super) fn fail(&self, why: &str) {
        self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            failure.get_or_insert_with(|| why.to_owned());
            first
        });
    }

    /// The newest state; `None` if the store is closed.
    pub(super) fn view(&self) -> Option<Arc<CommittedView>> {
        self.current.read().view.clone()
    }

    /// The history of a resource in a subscription; `None` if clients cannot read the subscription.
    pub(super) fn log(&self, subscription: SubscriptionId, resource: &Resource) -> Option<Arc<Log>> {
        let log_key = (subscription, resource.clone());
        if let Some(log) = self.current.read().logs.get(&log_key) {
            return Some(Arc::clone(log));
        }
        self.current.write().log(log_key).cloned()
    }

    /// Number of watches of a resource in a subscription.
    pub(super) fn watchers(&self, subscription: SubscriptionId, resource: &Resource) -> usize {
        let current = self.current.read();
        current.logs.get(&(subscription, resource.clone())).map_or(0, |log| log.watchers())
    }

    /// Ends the watches of a subscription and keeps its content. Clients with an earlier revision must list again.
    pub(super) fn end_watches(&self, subscription: SubscriptionId) {
        let mut current = self.current.write();
        let Current { view, logs, histories, .. } = &mut *current;
        let Some(now) = view.as_ref().map(|view| view.revision()) else { return };
        for (_, log) in logs.iter_mut().filter(|((other, _), _)| *other == subscription) {
            log.close();
            *log = histories.log(now);
        }
    }

    /// Publishes a new state and its changes to readers and watchers.
    pub(super) fn publish(&self, view: CommittedView, published: Published) {
        let mut compressor = self.compressor.lock();
        let mut current = self.current.write();
        current.view = Some(Arc::new(view));
        for change in published.changes {
            current.push(change, &mut compressor);
        }
        current.close(&published.closed);
        current.fit();
        drop(current);
        self.commits.send_modify(|commits| *commits = commits.wrapping_add(1));
        if published.reports {
            self.reports.send_modify(|reports| *reports = reports.wrapping_add(1));
        }
    }

    /// The changes between the state that readers see and one that was read from the file.
    pub(super) fn untold(&self, view: &CommittedView) -> Result<Published, ReadError> {
        let current = self.current.read();
        let shown = current.view.as_ref().map_or(view.revision(), |view| view.revision());
        let mut changes: Vec<_> = view.log()?.into_iter().map(published).collect();
        changes.retain(|change| change.object.revision > shown);
        let lost = Revision(view.state.floor) > shown;
        let readable = |subscription: SubscriptionId| {
            subscription == SubscriptionId::NODE
                || view.subscriptions.get(&subscription.0).is_some_and(|row| row.synced)
        };
        let subscriptions = current.logs.keys().map(|(subscription, _)| *subscription);
        let closed = subscriptions.filter(|subscription| lost || !readable(*subscription)).collect();
        Ok(Published { changes, closed, reports: true })
    }

    /// Compresses older bodies. Call it when no client waits for the published changes.
    pub(super) fn settle(&self) {
        self.compressor.lock().settle();
    }

    /// Drops the current state and ends all watches.
    pub(super) fn close(&self) {
        let mut current = self.current.write();
        current.view = None;
        current.logs.values().for_each(|log| log.close());
    }

    /// Releases the lock of the data folder, after the database was closed.
    pub(super) fn unlock(&self) {
        *self.lock.lock() = None;
    }

    /// Opens the database of the medium.
    pub(super) fn open_database(&self) -> Result<Database, DatabaseError> {
        open_database(&*self.medium)
    }
}

impl Current {
    /// The history of a resource in a subscription, which begins where clients could first read the subscription.
    /// Before that there is none, because its beginning is not known yet.
    fn log(&mut self, log_key: (SubscriptionId, Resource)) -> Option<&Arc<Log>> {
        let row = self.view.as_ref().and_then(|view| view.subscriptions.get(&log_key.0.0));
        if log_key.0 != SubscriptionId::NODE && !row.is_some_and(|row| row.synced) {
            return None;
        }
        let floor = self.floor.max(Revision(row.map_or(0, |row| row.since)));
        Some(self.logs.entry(log_key).or_insert_with(|| self.histories.log(floor)))
    }

    fn push(&mut self, publication: Publication, compressor: &mut Compressor) {
        publication.versions().for_each(|version| compressor.add(version));
        let Publication { views, object, previous } = publication;
        for (subscription, kind) in views {
            let previous = previous.clone().filter(|_| kind != ChangeKind::Added);
            let change = Arc::new(Change { kind, object: Arc::clone(&object), previous });
            if let Some(log) = self.log((SubscriptionId(subscription), object.key.resource().clone())) {
                log.push(change);
            }
        }
    }

    /// Ends the watches of removed subscriptions.
    fn close(&mut self, subscriptions: &[SubscriptionId]) {
        self.logs.retain(|(subscription, _), log| {
            let gone = subscriptions.contains(subscription);
            if gone {
                log.close();
            }
            !gone
        });
    }

    fn fit(&self) {
        self.histories.fit(self.logs.values());
    }
}

/// Opens the database of a medium.
/// A database builder with the settings of this program.
pub(super) fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(super::CACHE_BYTES);
    builder
}

pub(super) fn open_database(medium: &dyn Medium) -> Result<Database, DatabaseError> {
    guarded(|| medium.open(&builder()))
}

/// Turns a panic of the database code, which a damaged file may cause, into an error.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, DatabaseError>) -> Result<T, DatabaseError> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let why = "the database code panicked on the file".to_owned();
        Err(DatabaseError::Storage(StorageError::Corrupted(why)))
    })
}

fn published(row: LogRow) -> Publication {
    let key = row.key;
    let stored = |version: LogVersion| {
        Arc::new(Stored::new(key.clone(), version.uid, Revision(version.revision), version.body))
    };
    let views = row.views.into_iter().map(|(subscription, kind)| (subscription, kind_of(kind))).collect();
    Publication { views, object: stored(row.object), previous: row.previous.map(stored) }
}

fn kind_of(number: u8) -> ChangeKind {
    match number {
        0 => ChangeKind::Added,
        1 => ChangeKind::Modified,
        _ => ChangeKind::Deleted,
    }
}
