//! The store in memory: current objects as raw JSON, one revision counter, and a bounded history per resource.
//!
//! A [`Journal`] makes it durable: changes are passed to the journal in batches, in revision order, and become visible
//! only when the journal confirms them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tombolo_proto::object::{ObjectKey, Resource};

use crate::history::{Change, ChangeKind, ChangeStream, Histories, LogLimits};
use crate::store::{InLine, Mutation, Revision, Snapshot, Store, StoreError, Stored, Write, WriteStore};
use crate::stored::compressed::Compressor;

use ledger::Ledger;
use plan::Plan;
use state::{State, rewind};

mod account;
mod ledger;
mod plan;
mod state;

#[cfg(test)]
mod tests;

pub use account::WriterShares;
pub use ledger::{Claims, DELETION_MARK_MAX, OBJECT_OVERHEAD, Rules};

/// How long the state at a revision can still be listed after later changes (etcd's usual compaction interval).
pub const SNAPSHOT_AGE_MAX: Duration = Duration::from_secs(300);

/// How often [`MemoryStore::tick`] must be called.
pub const TICK_INTERVAL: Duration = state::MARK_INTERVAL;

/// Maximum number of changes in one journal batch.
pub const JOURNAL_BATCH_MAX: usize = 512;

/// Maximum number of bytes of the objects in a batch; a larger object is written alone.
pub const JOURNAL_BATCH_LEN_MAX: usize = 4 * 1024 * 1024;

/// Maximum number of writes that wait for the journal; further ones are refused with [`StoreError::Unavailable`].
pub const JOURNAL_QUEUE_MAX: usize = 16 * 1024;

/// One change on its way to disk.
#[derive(Debug, Clone)]
pub struct JournalEntry {
    /// The new version, or for a deletion the last state under the deletion's revision.
    pub object: Arc<Stored>,
    /// Whether the object is removed.
    pub deleted: bool,
}

/// Makes changes durable.
pub trait Journal: Send + Sync + 'static {
    /// Writes a batch, in order, in one step: after a crash, either all of it or nothing is there. Called on a thread
    /// that may block, never concurrently. A restart must find the revision of the last entry, even when that is a
    /// deletion.
    ///
    /// # Errors
    /// Why nothing of the batch was written. Later batches are still passed to the journal.
    fn append(&self, batch: &[JournalEntry]) -> Result<(), StoreError>;
}

/// The store. Cheap to clone: clones share the content.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<MemoryStoreInner>,
}

struct MemoryStoreInner {
    state: RwLock<State>,
    /// Newest visible revision; written under the state lock.
    revision: AtomicU64,
    journal: Option<Box<dyn Journal>>,
    queue: Mutex<Queue>,
    /// Held while changes are made, so that checks and effects are one step.
    turn: Mutex<WriteState>,
    /// Bytes of all objects, for metrics.
    len: AtomicU64,
    rules: Arc<Rules>,
}

/// Memory in bytes of the bodies. Most bodies are compressed, so it is less than their length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Bodies of current objects.
    pub objects: u64,
    /// Bodies of former versions, which the histories keep alive.
    pub history: u64,
}

/// State that is needed only to make changes.
struct WriteState {
    compressor: Compressor,
    ledger: Ledger,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<QueuedChange>,
    draining: bool,
}

struct QueuedChange {
    change: ChangeRequest,
    answer: oneshot::Sender<CommitResult>,
    /// Released when the change is made.
    line: InLine,
}

impl Queue {
    /// How many of the oldest waiting changes are written together.
    fn next_batch(&self) -> usize {
        let mut len = 0_usize;
        let fits = |waiting: &&QueuedChange| {
            len = len.saturating_add(waiting.len());
            len <= JOURNAL_BATCH_LEN_MAX
        };
        let fitting = self.waiting.iter().take(JOURNAL_BATCH_MAX).take_while(fits).count();
        fitting.max(self.waiting.len().min(1))
    }
}

impl QueuedChange {
    fn len(&self) -> usize {
        match &self.change.0.write {
            Write::Put { body, .. } => body.len(),
            // A deletion counts with the length of the object's last state, as far as its sender has a queue.
            Write::Delete => self.line.as_ref().map_or(0, OwnedSemaphorePermit::num_permits),
        }
    }
}

/// A change, and the user who makes it if that user has a share.
type ChangeRequest = (Mutation, Option<Arc<str>>);

type CommitResult = Result<Arc<Stored>, StoreError>;

impl MemoryStore {
    /// An empty store whose first change gets the revision after `start`. Without a journal, a start above every
    /// revision that clients may have seen (see [`Self::START`]) keeps them from confusing this store with an earlier
    /// one.
    #[must_use]
    pub fn new(start: Revision, limits: LogLimits) -> Self {
        Self::restore(start, Vec::new(), None, limits, Rules::default())
    }

    /// Like [`Self::new`], for a store where fast lists matter more than memory: current objects are not compressed.
    #[must_use]
    pub fn uncompressed(start: Revision, limits: LogLimits) -> Self {
        Self::restore(start, Vec::new(), None, limits, Rules { uncompressed: true, ..Rules::default() })
    }

    /// A usual start for stores whose clients have never seen another one.
    pub const START: Revision = Revision(1);

    /// A store with content, as read from the journal's files, and rules about all objects together. `newest` is the
    /// revision of the last journaled entry. The history before it is lost: watches from there are answered with 410.
    #[must_use]
    pub fn restore(
        newest: Revision,
        objects: impl IntoIterator<Item = Stored>,
        journal: Option<Box<dyn Journal>>,
        limits: LogLimits,
        rules: Rules,
    ) -> Self {
        let rules = Arc::new(rules);
        let mut state = State::new(newest, Histories::new(limits));
        let mut turn =
            WriteState { compressor: Compressor::default(), ledger: Ledger::new(Arc::clone(&rules)) };
        for object in objects {
            turn.ledger.replace(None, Some(&object), None);
            if !rules.uncompressed {
                turn.compressor.compress(&object);
            }
            let table = state.table(object.key.resource());
            table.objects.insert(object.key.clone(), Arc::new(object));
        }
        let shared = MemoryStoreInner {
            state: RwLock::new(state),
            revision: AtomicU64::new(newest.0),
            journal,
            queue: Mutex::default(),
            len: AtomicU64::new(turn.ledger.len()),
            rules,
            turn: Mutex::new(turn),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The resources that have or had objects.
    #[must_use]
    pub fn resources(&self) -> Vec<Resource> {
        self.shared.state.read().tables.keys().cloned().collect()
    }

    /// Removes a resource with all its objects and history; its watches end. Used for withdrawn definitions. Nothing is
    /// journaled, so delete the objects first in a durable store.
    pub fn forget(&self, resource: &Resource) {
        let mut turn = self.shared.turn.lock();
        turn.compressor.forget(resource);
        for object in self.shared.state.read().objects(resource) {
            turn.ledger.replace(Some(object), None, None);
        }
        self.shared.len.store(turn.ledger.len(), Ordering::Relaxed);
        self.shared.state.write().withdraw(resource, self.revision());
    }

    /// Drops the states that were current more than [`SNAPSHOT_AGE_MAX`] before `now`. Must be called every
    /// [`TICK_INTERVAL`]: writes to the store have the same effect, but an idle store has none.
    pub fn tick(&self, now: Instant) {
        let mut state = self.shared.state.write();
        state.mark(self.revision(), now);
    }

    /// Number of watches of a resource.
    #[must_use]
    pub fn watchers(&self, resource: &Resource) -> usize {
        self.shared.state.read().tables.get(resource).map_or(0, |table| table.log.watchers())
    }

    /// Bytes of all objects as [`Rules::len_max`] counts them, and that limit.
    #[must_use]
    pub fn size(&self) -> (u64, u64) {
        (self.shared.len.load(Ordering::Relaxed), self.shared.rules.len_max)
    }

    /// Memory in bytes of the bodies of objects, for metrics.
    #[must_use]
    pub fn held(&self) -> Held {
        let mut held = Held::default();
        for resource in self.resources() {
            // One resource at a time, so that writes continue in between.
            let state = self.shared.state.read();
            let Some(table) = state.tables.get(&resource) else { continue };
            held.objects += table.objects.values().map(|object| object.text.held()).sum::<usize>() as u64;
            held.history += table.log.held() as u64;
        }
        held
    }

    /// Number of objects, for metrics.
    #[must_use]
    pub fn object_count(&self) -> usize {
        self.shared.state.read().tables.values().map(|table| table.objects.len()).sum()
    }
}

impl Store for MemoryStore {
    fn shares_bodies(&self) -> bool {
        true
    }

    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        let state = self.shared.state.read();
        Ok(state.tables.get(key.resource()).and_then(|table| table.objects.get(key)).cloned())
    }

    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError> {
        let state = self.shared.state.read();
        let revision = self.revision();
        let items = state.tables.get(resource).map(|table| table.items(resource, namespace));
        Ok(Snapshot { revision, items: items.unwrap_or_default() })
    }

    fn list_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        revision: Revision,
    ) -> Result<Snapshot, StoreError> {
        let state = self.shared.state.read();
        let newest = self.revision();
        let oldest = state.oldest_snapshot();
        if revision > newest || revision < oldest {
            return Err(StoreError::Expired { requested: revision, oldest });
        }
        let Some(table) = state.tables.get(resource) else {
            let oldest = state.floor_of(resource);
            if revision < oldest {
                return Err(StoreError::Expired { requested: revision, oldest });
            }
            return Ok(Snapshot { revision, items: Vec::new() });
        };
        let mut items = table.items(resource, namespace);
        rewind(&mut items, &table.log.newest_first(revision)?, namespace);
        Ok(Snapshot { revision, items })
    }

    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError> {
        let state = self.shared.state.read();
        if let Some(table) = state.tables.get(resource) {
            return table.log.subscribe(since);
        }
        drop(state);
        self.shared.state.write().table(resource).log.subscribe(since)
    }

    fn revision(&self) -> Revision {
        Revision(self.shared.revision.load(Ordering::Acquire))
    }
}

impl WriteStore for MemoryStore {
    fn commit(&self, mutation: Mutation) -> BoxFuture<'_, CommitResult> {
        self.change((mutation, None), None)
    }

    fn commit_for(&self, mutation: Mutation, user: &str, line: InLine) -> BoxFuture<'_, CommitResult> {
        self.change((mutation, self.shared.rules.writer(user)), line)
    }
}

impl MemoryStore {
    fn change(&self, change: ChangeRequest, line: InLine) -> BoxFuture<'_, CommitResult> {
        if self.shared.journal.is_none() {
            let answer = self.shared.make(vec![change]).pop();
            let answer = answer.unwrap_or_else(|| Err(interrupted()));
            self.shared.turn.lock().compressor.settle();
            return Box::pin(std::future::ready(answer));
        }
        Box::pin(async move {
            let answer = self.enqueue(change, line)?;
            answer.await.unwrap_or_else(|_| Err(interrupted()))
        })
    }

    /// Adds a change to the queue and makes sure that a blocking thread drains it. The thread runs to its end even when
    /// the waiting requests are cancelled.
    fn enqueue(
        &self,
        change: ChangeRequest,
        line: InLine,
    ) -> Result<oneshot::Receiver<CommitResult>, StoreError> {
        let (answer, receiver) = oneshot::channel();
        let mut queue = self.shared.queue.lock();
        if queue.waiting.len() >= JOURNAL_QUEUE_MAX {
            return Err(StoreError::Unavailable { reason: "too many writes wait for the disk".to_owned() });
        }
        queue.waiting.push_back(QueuedChange { change, answer, line });
        if !std::mem::replace(&mut queue.draining, true) {
            let shared = Arc::clone(&self.shared);
            tokio::task::spawn_blocking(move || shared.drain());
        }
        Ok(receiver)
    }
}

impl MemoryStoreInner {
    fn drain(&self) {
        // A panicking journal must not leave the queue without a thread that drains it.
        let _reset = ResetDraining(&self.queue);
        loop {
            let batch: Vec<QueuedChange> = {
                let mut queue = self.queue.lock();
                let count = queue.next_batch();
                if count == 0 {
                    queue.draining = false;
                    return;
                }
                queue.waiting.drain(..count).collect()
            };
            let (changes, waiting): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|waiting| (waiting.change, (waiting.answer, waiting.line))).unzip();
            for ((sender, line), answer) in waiting.into_iter().zip(self.make(changes)) {
                drop(line);
                // The request may have been cancelled; the change stays.
                let _ = sender.send(answer);
            }
            self.turn.lock().compressor.settle();
        }
    }

    /// Makes changes in order: check, journal, publish. Returns one answer per change.
    fn make(&self, changes: Vec<ChangeRequest>) -> Vec<CommitResult> {
        let mut turn = self.turn.lock();
        let WriteState { compressor, ledger } = &mut *turn;
        let mut plan = Plan::new(self, ledger);
        let add = |(mutation, writer): ChangeRequest| plan.add(mutation, writer.as_ref());
        let mut answers: Vec<CommitResult> = changes.into_iter().map(add).collect();
        let Plan { staged, paid, .. } = plan;
        if let (Some(journal), false) = (&self.journal, staged.is_empty()) {
            let entries: Vec<JournalEntry> = staged.iter().map(|change| JournalEntry::of(change)).collect();
            if let Err(error) = journal.append(&entries) {
                for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
                    *answer = Err(error.clone());
                }
                for (change, paid) in staged.iter().zip(paid).rev() {
                    ledger.take_back(change, paid);
                }
                return answers;
            }
        }
        for change in &staged {
            let settled =
                if self.rules.uncompressed { change.previous.as_ref() } else { Some(&change.object) };
            settled.into_iter().for_each(|version| compressor.add(version));
        }
        self.len.store(ledger.len(), Ordering::Relaxed);
        self.publish(staged);
        answers
    }

    fn publish(&self, staged: Vec<Arc<Change>>) {
        let mut state = self.state.write();
        state.mark(Revision(self.revision.load(Ordering::Acquire)), Instant::now());
        for change in staged {
            let revision = change.revision();
            let key = &change.object.key;
            let table = state.table(key.resource());
            match change.kind {
                ChangeKind::Deleted => table.objects.remove(key),
                _ => table.objects.insert(key.clone(), Arc::clone(&change.object)),
            };
            let log = Arc::clone(&table.log);
            // Before the watchers wake: a reader of the store's revision must find all changes up to it in the logs.
            log.push(change);
            self.revision.store(revision.0, Ordering::Release);
        }
        state.fit();
    }
}

impl JournalEntry {
    fn of(change: &Change) -> Self {
        Self { object: Arc::clone(&change.object), deleted: change.kind == ChangeKind::Deleted }
    }
}

struct ResetDraining<'a>(&'a Mutex<Queue>);

impl Drop for ResetDraining<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut queue = self.0.lock();
            queue.draining = false;
            queue.waiting.clear();
        }
    }
}

fn interrupted() -> StoreError {
    StoreError::Unavailable { reason: "the write was interrupted; its outcome is unknown".to_owned() }
}
