//! Lists of a selection beside its watch, made when the copy must be certain of what it does not have: a watch may lag
//! behind, a list does not. Listed objects enter the copy in the order of the cloud's history. When the watch shows the
//! same objects later, they change nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::select_all;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::MutexGuard;
use tokio::time::Instant;
use tombolo_proto::limits::FOLLOWED_MAX;
use tombolo_proto::{CloudRevision, NodeId, ObjectKey};
use tombolo_runtime::doubled;

use super::{SharedWatch, too_many};
use crate::hub::closed::Closed;
use crate::hub::shared::interned::Stored;
use crate::kube::{CallError, Caller, Kube, ListTurn};

/// Pause after a first failure; it doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(200);

/// Longest pause.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Number of nodes that are remembered as waiting for a first list. Further nodes wait behind these.
const ASKERS_MAX: usize = 8;

/// The lists of one selection, numbered.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// Permits one list at a time. Callers that wait are mostly served by another caller's list.
    turn: tokio::sync::Mutex<()>,
    begun: AtomicU64,
    complete: AtomicU64,
    rest: Mutex<Rest>,
}

/// The pause after a failed list, during which no further list is made, however many callers want one.
#[derive(Debug, Default)]
struct Rest {
    failures: u32,
    until: Option<Instant>,
}

/// Keeps the results of lists and the events of the watch in one order.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Objects that a list has brought in these versions and that the watch has not shown yet.
    ahead: HashMap<ObjectKey, CloudRevision>,
    /// Objects that were deleted since the running list began, with the latest version that they can have had; none
    /// when no list is running, or when more was deleted than is remembered.
    gone: Option<HashMap<ObjectKey, CloudRevision>>,
    /// The watch's own lists: the number begun, the number whose beginning the copy has processed, and the last of
    /// these that is complete.
    relists: [u64; 3],
}

impl Order {
    /// Whether an event of the watch is older than what a list has brought. An event that is not older ends that state.
    pub(super) fn is_older(&mut self, key: &ObjectKey, revision: CloudRevision) -> bool {
        let older = self.ahead.get(key).is_some_and(|newer| revision < *newer);
        if !older && !self.ahead.is_empty() {
            self.ahead.remove(key);
        }
        older
    }

    /// Records the deletion of an object, whose last version was at most this one.
    pub(super) fn bury(&mut self, key: &ObjectKey, revision: CloudRevision) {
        self.ahead.remove(key);
        if let Some(gone) = &mut self.gone {
            gone.insert(key.clone(), revision);
            if gone.len() > FOLLOWED_MAX {
                self.gone = None;
            }
        }
    }

    /// The watch is about to relist.
    pub(super) fn relist_begins(&mut self) {
        self.relists[0] += 1;
    }

    /// The copy has processed the beginning of that list.
    pub(super) fn relist_taken(&mut self) {
        self.relists[1] += 1;
    }

    /// The copy now matches that list.
    pub(super) fn relist_complete(&mut self) {
        self.relists[2] = self.relists[1];
    }

    /// The number of the watch's own lists; none while one is running, because objects that it lacks may have been
    /// created after it.
    fn relists(&self) -> Option<u64> {
        (self.relists[0] == self.relists[2]).then_some(self.relists[0])
    }
}

/// Why a list proves nothing.
#[derive(Debug, Error)]
pub(in crate::hub) enum ListError {
    /// The watch's own list is running.
    #[error("the watch itself is listing")]
    WatchLists,
    /// The watch's own list began meanwhile.
    #[error("the watch itself has started to list")]
    WatchBeganToList,
    /// There is nothing to list for.
    #[error("the watch has ended")]
    Ended,
    /// More objects were deleted meanwhile than are remembered.
    #[error("too many objects were deleted meanwhile")]
    TooManyDeletions,
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The API server refuses the list.
    #[error("{0}")]
    Refused(String),
    /// The objects do not fit; the watch has ended.
    #[error("{}", .0.reason)]
    Closed(Closed),
}

impl From<Closed> for ListError {
    fn from(closed: Closed) -> Self {
        Self::Closed(closed)
    }
}

/// Drops the state of a running list, however the list ends.
struct Listing<'w>(&'w SharedWatch);

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        self.0.order.lock().gone = None;
        self.0.namespaces.lock().list_ends(false);
    }
}

impl SharedWatch {
    /// Number of lists that have begun.
    pub(in crate::hub) fn lists_begun(&self) -> u64 {
        self.lists.begun.load(Ordering::SeqCst)
    }

    /// Number of the newest complete list. All its objects are in the copy.
    pub(in crate::hub) fn lists_complete(&self) -> u64 {
        self.lists.complete.load(Ordering::SeqCst)
    }

    /// Waits for the permit to list.
    pub(in crate::hub) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.lists.turn.lock().await
    }

    /// End of the pause after a failed list, if there is one.
    pub(in crate::hub) fn rests_until(&self) -> Option<Instant> {
        self.lists.rest.lock().until.filter(|until| *until > Instant::now())
    }

    /// Records that a list has failed. Returns the number of consecutive failures.
    pub(in crate::hub) fn list_failed(&self) -> u32 {
        let mut rest = self.lists.rest.lock();
        rest.failures = rest.failures.saturating_add(1);
        rest.until = Some(Instant::now() + doubled(RETRY_MIN, rest.failures, RETRY_MAX));
        rest.failures
    }

    /// One more node, or cloudcore itself, waits for the first list.
    pub(in crate::hub) fn ask(&self, node: Option<&NodeId>) {
        self.askers.send_if_modified(|askers| match (askers.as_mut(), node) {
            (None, _) => false,
            (Some(_), None) => {
                *askers = None;
                true
            }
            (Some(nodes), Some(node)) => {
                let is_new = nodes.len() < ASKERS_MAX && !nodes.contains(node);
                nodes.extend(is_new.then(|| node.clone()));
                is_new
            }
        });
    }

    /// The list turn for the watch's own list. If one node alone follows, it is that node's turn. Before the first list
    /// is complete, it is the first free turn among the nodes that wait for it, so that no node waits behind other work
    /// of another node. None for watches of several nodes or of cloudcore, which need no turn.
    pub(in crate::hub) async fn own_turn(&self, kube: &Kube) -> Option<ListTurn> {
        let mut askers = self.askers.subscribe();
        loop {
            let nodes = match self.is_following() {
                true => self.followers.lock().payer().map(|node| vec![node.clone()]),
                false => askers.borrow_and_update().clone(),
            }?;
            let turns = nodes.iter().map(|node| kube.list_turn(node).boxed());
            tokio::select! {
                (turn, ..) = select_all(turns) => return Some(turn),
                Ok(()) = askers.changed() => {}
            }
        }
    }

    /// Lists once, in the list turn of a node. The caller must hold the permit of [`Self::turn`]. Cancel-safe: a
    /// partial list is dropped.
    ///
    /// # Errors
    /// [`ListError`] says why the list proves nothing.
    pub(in crate::hub) async fn list(&self, kube: &Kube, node: &ListTurn) -> Result<(), ListError> {
        let number = self.lists.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let relists = {
            let mut order = self.order.lock();
            let relists = order.relists().ok_or(ListError::WatchLists)?;
            order.gone = Some(HashMap::new());
            relists
        };
        self.namespaces.lock().list_begins();
        let _listing = Listing(self);
        let (mut brought, mut full) = (Vec::new(), None);
        let answer = kube.list(Caller::OwnInTurn(node), &self.path, |object| {
            let news = self.trimmed(object).filter(|object| {
                self.objects
                    .get(&object.key)
                    .is_none_or(|known| known.object.version.revision < object.version.revision)
            });
            if let Some(object) = news
                && self.has_slot_in_list(&object.key, brought.len())
            {
                match self.keep(&object) {
                    Ok(stored) if brought.len() <= FOLLOWED_MAX => brought.push(stored),
                    Ok(_) => full = Some(too_many()),
                    Err(closed) => full = Some(closed),
                }
            }
        });
        if let Some(answer) = answer.await? {
            return Err(ListError::Refused(answer.message()));
        }
        let entered = match full {
            Some(closed) => Err(closed.into()),
            None => self.enter(brought, relists),
        };
        if let Err(ListError::Closed(closed)) = &entered {
            self.fail(closed);
        }
        entered?;
        self.namespaces.lock().list_ends(true);
        self.lists.complete.fetch_max(number, Ordering::SeqCst);
        *self.lists.rest.lock() = Rest::default();
        Ok(())
    }

    fn enter(&self, brought: Vec<Arc<Stored>>, relists: u64) -> Result<(), ListError> {
        self.enter_in_order(brought, relists)?;
        Ok(self.check_size()?)
    }

    fn enter_in_order(&self, brought: Vec<Arc<Stored>>, relists: u64) -> Result<(), ListError> {
        let mut order = self.order.lock();
        if order.relists() != Some(relists) {
            return Err(ListError::WatchBeganToList);
        }
        if self.has_failed() {
            return Err(ListError::Ended);
        }
        let gone = order.gone.take().ok_or(ListError::TooManyDeletions)?;
        for stored in brought {
            let (key, revision) = (&stored.object.key, stored.object.version.revision);
            let known = self.objects.get(key).map(|known| known.object.version.revision);
            if known.max(gone.get(key).copied()) >= Some(revision) {
                continue;
            }
            order.ahead.insert(key.clone(), revision);
            let key = key.clone();
            if let Err(lack) = self.put(stored) {
                if self.is_common {
                    self.leave_out(&key);
                    continue;
                }
                return Err(self.interned.payers.refuse(&lack).into());
            }
        }
        Ok(())
    }
}
