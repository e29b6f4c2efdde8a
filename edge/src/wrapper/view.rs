//! The objects that the wrapper shows, as a store with its own revisions.

use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::Notify;
use tombolo_apicore::api::builder::Check;
use tombolo_apicore::history::{ChangeStream, LogLimits};
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::store::{Revision, Snapshot, Store, StoreError, Stored};
use tombolo_proto::object::{ObjectKey, Resource};

use super::projected_kind::ProjectedKind;

/// Bytes of bodies that all histories together keep alive, at most.
const HISTORY_BYTES_MAX: usize = 1024 * 1024;

/// Changes of each kind that are kept whatever their size.
const HISTORY_NEWEST_MIN: usize = 8;

/// The view. Cheap to clone: clones share the content.
#[derive(Clone)]
pub(super) struct View {
    served: MemoryStore,
    gates: Arc<Gates>,
}

struct Gates {
    /// By [`ProjectedKind::index`].
    parts: RwLock<[KindAvailability; ProjectedKind::ALL.len()]>,
    /// Notified when a part that is read on demand was requested.
    asked: Notify,
}

#[derive(Clone)]
struct KindAvailability {
    /// Why the part cannot be shown; none if it can.
    closed: Option<String>,
    wanted: bool,
}

impl View {
    /// A view in which nothing is known yet. The watch of a client that is more than `watch_queue` changes behind is
    /// ended.
    pub(super) fn new(start: Revision, watch_queue: usize) -> Self {
        let limits = LogLimits {
            count: watch_queue,
            bytes: HISTORY_BYTES_MAX,
            newest: HISTORY_NEWEST_MIN.min(watch_queue),
            copies: false,
        };
        let gate = |part: ProjectedKind| {
            let closed = Some(format!("{} are not read yet", part.names().2));
            KindAvailability { closed, wanted: !part.is_on_demand() }
        };
        let gates = Gates { parts: RwLock::new(ProjectedKind::ALL.map(gate)), asked: Notify::new() };
        Self { served: MemoryStore::uncompressed(start, limits), gates: Arc::new(gates) }
    }

    /// The store of shown objects, without the check whether they are complete.
    pub(super) fn served(&self) -> MemoryStore {
        self.served.clone()
    }

    /// Marks a part as completely known.
    pub(super) fn open(&self, part: ProjectedKind) {
        self.gates.parts.write()[part.index()].closed = None;
    }

    /// Marks a part as not known.
    pub(super) fn close(&self, part: ProjectedKind, reason: String) {
        self.gates.parts.write()[part.index()].closed = Some(reason);
    }

    /// Whether a part is to be read.
    pub(super) fn is_wanted(&self, part: ProjectedKind) -> bool {
        self.gates.parts.read()[part.index()].wanted
    }

    /// Waits until a client requests a part that was not wanted before.
    pub(super) async fn asked(&self) {
        self.gates.asked.notified().await;
    }

    /// Why a part cannot be shown now.
    pub(super) fn trouble(&self, part: ProjectedKind) -> Option<String> {
        let gates = self.gates.parts.read();
        part.needs().iter().find_map(|need| gates[need.index()].closed.clone())
    }

    fn admit(&self, resource: &Resource) -> Result<(), StoreError> {
        let Some(part) = ProjectedKind::of(resource) else {
            let reason = format!("{} are not served by the wrapper", resource.name);
            return Err(StoreError::NotSynced { reason });
        };
        if !self.is_wanted(part) {
            self.gates.parts.write()[part.index()].wanted = true;
            self.gates.asked.notify_one();
        }
        match self.trouble(part) {
            Some(reason) => Err(StoreError::NotSynced { reason }),
            None => Ok(()),
        }
    }
}

impl Store for View {
    fn shares_bodies(&self) -> bool {
        true
    }

    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        self.admit(key.resource())?;
        self.served.get(key)
    }

    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError> {
        self.admit(resource)?;
        self.served.list(resource, namespace)
    }

    fn list_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        revision: Revision,
    ) -> Result<Snapshot, StoreError> {
        self.admit(resource)?;
        self.served.list_at(resource, namespace, revision)
    }

    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError> {
        self.admit(resource)?;
        let changes = self.served.watch(resource, since)?;
        // Read after the store's lock was held, so that the revision covers everything that was shown to clients.
        self.revision().reaches(since)?;
        Ok(changes)
    }

    fn revision(&self) -> Revision {
        self.served.revision()
    }
}

impl Check for View {
    fn name(&self) -> &'static str {
        "topology"
    }

    fn check(&self) -> Result<(), String> {
        let missing = |part: ProjectedKind| self.is_wanted(part).then(|| self.trouble(part)).flatten();
        ProjectedKind::ALL.into_iter().find_map(missing).map_or(Ok(()), Err)
    }
}
