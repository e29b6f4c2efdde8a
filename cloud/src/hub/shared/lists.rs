//! Lists of a selection that are made beside its watch, when the copy has to be sure of what it does not have: a watch may be
//! late, a list is not. What a list shows enters the copy in the order of the cloud's history, and the watch, which shows the
//! same later, changes nothing of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::select_all;
use parking_lot::Mutex;
use tokio::sync::MutexGuard;
use tokio::time::Instant;
use tombolo_proto::limits::FOLLOWED_MAX;
use tombolo_proto::{CloudRevision, NodeId, ObjectKey};
use tombolo_runtime::doubled;

use super::{SharedWatch, too_many};
use crate::hub::interned::Stored;
use crate::hub::subscriptions::Closed;
use crate::kube::{Caller, Kube, ListTurn};

/// Rest after a first failure; it doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(200);

/// Longest rest.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Nodes of which is remembered that they wait for a first list. Whoever is not among them waits behind those.
const ASKERS_MAX: usize = 8;

/// The lists of one selection, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// One at a time: whoever waits is mostly served by the list of another.
    turn: tokio::sync::Mutex<()>,
    begun: AtomicU64,
    complete: AtomicU64,
    rest: Mutex<Rest>,
}

/// After a list that has failed nobody makes another one for a while, however many ask.
#[derive(Debug, Default)]
struct Rest {
    failures: u32,
    until: Option<Instant>,
}

/// What keeps the lists and the events of the watch in one order.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Objects that a list has brought and the watch has not shown yet, in these versions.
    ahead: HashMap<ObjectKey, CloudRevision>,
    /// What has gone since the list under way began, and in which version at the latest; none when there is no such list, or
    /// more has gone than is remembered.
    gone: Option<HashMap<ObjectKey, CloudRevision>>,
    /// The watch's own lists: those that have begun, those whose beginning was taken, and the last of these that is complete.
    relists: [u64; 3],
}

impl Order {
    /// Whether an event of the watch is older than what a list has brought. One that is not, ends that.
    pub(super) fn is_older(&mut self, key: &ObjectKey, revision: CloudRevision) -> bool {
        let older = self.ahead.get(key).is_some_and(|newer| revision < *newer);
        if !older && !self.ahead.is_empty() {
            self.ahead.remove(key);
        }
        older
    }

    /// An object has gone that was there in no newer version than this.
    pub(super) fn bury(&mut self, key: &ObjectKey, revision: CloudRevision) {
        self.ahead.remove(key);
        if let Some(gone) = &mut self.gone {
            gone.insert(key.clone(), revision);
            if gone.len() > FOLLOWED_MAX {
                self.gone = None;
            }
        }
    }

    /// The watch is about to list everything by itself.
    pub(super) fn relist_begins(&mut self) {
        self.relists[0] += 1;
    }

    /// The copy has come to the beginning of that list.
    pub(super) fn relist_taken(&mut self) {
        self.relists[1] += 1;
    }

    /// The copy is what that list has shown.
    pub(super) fn relist_complete(&mut self) {
        self.relists[2] = self.relists[1];
    }

    /// The watch's own lists so far; none while one is under way: what it does not have may have come after it.
    fn relists(&self) -> Option<u64> {
        (self.relists[0] == self.relists[2]).then_some(self.relists[0])
    }
}

/// Forgets what was remembered for a list, however that ends.
struct Listing<'w>(&'w SharedWatch);

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        self.0.order.lock().gone = None;
        self.0.crowds.lock().list_ends(false);
    }
}

impl SharedWatch {
    /// Lists that have begun.
    pub(in crate::hub) fn lists_begun(&self) -> u64 {
        self.lists.begun.load(Ordering::SeqCst)
    }

    /// The newest list that is complete: all that it has shown is in the copy.
    pub(in crate::hub) fn lists_complete(&self) -> u64 {
        self.lists.complete.load(Ordering::SeqCst)
    }

    /// The turn to list.
    pub(in crate::hub) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.lists.turn.lock().await
    }

    /// Until when nobody lists, because a list has failed.
    pub(in crate::hub) fn rests_until(&self) -> Option<Instant> {
        self.lists.rest.lock().until.filter(|until| *until > Instant::now())
    }

    /// A list has failed; the how manieth in a row.
    pub(in crate::hub) fn list_failed(&self) -> u32 {
        let mut rest = self.lists.rest.lock();
        rest.failures = rest.failures.saturating_add(1);
        rest.until = Some(Instant::now() + doubled(RETRY_MIN, rest.failures, RETRY_MAX));
        rest.failures
    }

    /// One more node waits for the first list, or cloudcore itself.
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

    /// The turn of the watch's own list: that of the node which follows alone; of those who wait for the first list the one that
    /// comes first, so that nobody waits behind what else another node has under way. None for what several nodes follow, or
    /// cloudcore, who need no turn.
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

    /// Lists once, for a node. Only whoever has the turn may ask for it. Cancel-safe: what a list has shown in part is dropped.
    ///
    /// # Errors
    /// Why the list is no proof.
    pub(in crate::hub) async fn list(&self, kube: &Kube, node: &ListTurn) -> Result<(), String> {
        let number = self.lists.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let relists = {
            let mut order = self.order.lock();
            let relists = order.relists().ok_or("the watch itself is listing")?;
            order.gone = Some(HashMap::new());
            relists
        };
        self.crowds.lock().list_begins();
        let _listing = Listing(self);
        let (mut brought, mut full) = (Vec::new(), None);
        let answer = kube.list(Caller::OwnInTurn(node), &self.path, |object| {
            let news = self.trimmed(object).filter(|object| {
                self.objects
                    .get(&object.key)
                    .is_none_or(|known| known.object.version.revision < object.version.revision)
            });
            if let Some(object) = news
                && self.has_place_in_list(&object.key, brought.len())
            {
                match self.keep(&object) {
                    Ok(stored) if brought.len() <= FOLLOWED_MAX => brought.push(stored),
                    Ok(_) => full = Some(too_many()),
                    Err(closed) => full = Some(closed),
                }
            }
        });
        match answer.await {
            Err(error) => return Err(error.to_string()),
            Ok(Some(answer)) => return Err(answer.message()),
            Ok(None) => {}
        }
        if let Some(closed) = full {
            self.fail(&closed);
            return Err(closed.reason);
        }
        self.enter(brought, relists)?;
        self.crowds.lock().list_ends(true);
        self.lists.complete.fetch_max(number, Ordering::SeqCst);
        *self.lists.rest.lock() = Rest::default();
        Ok(())
    }

    fn enter(&self, brought: Vec<Arc<Stored>>, relists: u64) -> Result<(), String> {
        let entered = self.enter_in_order(brought, relists)?;
        match entered.and_then(|()| self.check_size()) {
            Ok(()) => Ok(()),
            Err(closed) => {
                self.fail(&closed);
                Err(closed.reason)
            }
        }
    }

    fn enter_in_order(&self, brought: Vec<Arc<Stored>>, relists: u64) -> Result<Result<(), Closed>, String> {
        let mut order = self.order.lock();
        if order.relists() != Some(relists) {
            return Err("the watch itself has begun to list".to_owned());
        }
        if self.has_failed() {
            return Err("the watch has ended".to_owned());
        }
        let gone = order.gone.take().ok_or("too much was deleted meanwhile")?;
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
                return Ok(Err(self.interned.payers.refuse(&lack)));
            }
        }
        Ok(Ok(()))
    }
}
