//! Objects that local clients read outside the pushed set: selections of cluster objects that this node follows through
//! the hub. A selection is listed once, then kept up to date, shared by all local clients, kept on disk, and served
//! also without a cloud (docs/edge-node.md#what-the-local-api-answers).
//!
//! The warm set has what a node's own components need after a restart without a cloud. It is always followed and never
//! evicted. Other selections are followed from the first request until no client has read them for [`IDLE_LIMIT`].
//! Their copies stay on disk until room is needed.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tombolo_proto::ids::SubscriptionId;
use tracing::warn;

use crate::store::{Kept, ReadError, Selection, Store, Subscribed, WriteError};

mod callers;
mod claims;
mod entry;
mod registry;
#[cfg(test)]
mod tests;
mod warm;
mod weights;

pub(crate) use entry::Standing;
pub(crate) use registry::{SelectionRegistry, Wanted};
pub(crate) use warm::{FollowingStore, warm_set};

use entry::Duty;
use registry::SelectionLookup;
use weights::Weights;

/// A selection that no client has read for this long is no longer followed.
pub(crate) const IDLE_LIMIT: Duration = Duration::from_secs(600);

/// How long a client waits for a selection that was never requested before, including the wait for a slot.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a refusal of the cloud counts before the selection is requested again.
const REFUSAL_BELIEVED: Duration = Duration::from_secs(30);

/// How often selections that are no longer read are searched for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum number of selections on disk. Beyond it, the sender with the most unread selections gives up the one it
/// requested longest ago, which is deleted if no other sender has requested it.
pub(crate) const KEPT_MAX: usize = 256;

/// Maximum number of selections on disk for one sender.
pub(crate) const KEPT_PER_SENDER_MAX: usize = KEPT_MAX / 4;

/// Maximum bytes of objects that only selections outside the warm set keep.
const COPIES_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A caller that reads with its own rights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenCaller<'a> {
    /// The sender whose share the selection counts in, as in those of other senders that request it
    /// ([`tombolo_apicore::senders::name_of`]).
    pub(crate) sender: &'a str,
    /// Bearer token.
    pub(crate) token: &'a str,
}

/// Why a selection cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Unreadable {
    /// The cloud refuses it, with the HTTP status code that a Kubernetes client would see.
    #[error("{reason}")]
    Refused { code: u16, reason: String },
    /// There is no copy here, and the cloud cannot be asked now.
    #[error("{0}")]
    Unknown(String),
    /// The store cannot be read or written.
    #[error("{0}")]
    Store(String),
}

impl From<ReadError> for Unreadable {
    fn from(error: ReadError) -> Self {
        Self::Store(error.to_string())
    }
}

impl From<WriteError> for Unreadable {
    fn from(error: WriteError) -> Self {
        Self::Store(error.to_string())
    }
}

/// All selections of one agent. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Subscriptions {
    store: Store,
    registry: Arc<SelectionRegistry>,
    /// Selections are added one at a time, so that their number never exceeds the bound.
    adding: Arc<Mutex<()>>,
}

impl Subscriptions {
    /// Loads the selections of the store, and adds the warm set.
    ///
    /// # Errors
    /// [`Unreadable::Store`] when the store cannot be read or written.
    pub(crate) async fn load(store: Store) -> Result<Self, Unreadable> {
        let registry = Arc::new(SelectionRegistry::default());
        for kept in store.subscriptions()? {
            registry.add(kept.subscription, kept.selection, false);
        }
        for selection in warm_set() {
            let subscription = store.open_subscription(selection.clone()).await?;
            registry.add(subscription, selection, true);
        }
        Ok(Self { store, registry, adding: Arc::default() })
    }

    /// The selections for sessions with the cloud to follow, and their state.
    pub(crate) fn registry(&self) -> Arc<SelectionRegistry> {
        Arc::clone(&self.registry)
    }

    /// Whole resources as one store.
    pub(crate) fn whole(&self) -> FollowingStore {
        FollowingStore::new(self.clone())
    }

    /// Starts to follow a selection, or finds a wider one, without waiting for its first list.
    async fn request(
        &self,
        selection: &Selection,
        who: Option<TokenCaller<'_>>,
        deadline: Instant,
    ) -> Result<SubscriptionId, Unreadable> {
        let mut news = self.registry.news();
        let found = async {
            loop {
                news.borrow_and_update();
                match self.registry.look_up(selection) {
                    SelectionLookup::At(subscription) => return Ok(subscription),
                    SelectionLookup::Nowhere => return self.add(selection, who.map(|who| who.sender)).await,
                    // The registry reports when the selection is gone.
                    SelectionLookup::Leaving => drop(news.changed().await),
                }
            }
        };
        let Ok(subscription) = timeout_at(deadline, found).await else {
            return Err(Unreadable::Unknown("room is still being made for it: try again".to_owned()));
        };
        let subscription = subscription?;
        self.registry.demand(subscription, who);
        Ok(subscription)
    }

    /// A selection, or a wider one that is followed already, as a store. If none is followed yet, follows the
    /// selection, with the given caller's token if the node itself has no right, and waits briefly for its first list.
    ///
    /// # Errors
    /// [`Unreadable`] when it was never complete here and does not become complete in time.
    pub(crate) async fn reader(
        &self,
        selection: &Selection,
        who: Option<TokenCaller<'_>>,
    ) -> Result<Subscribed, Unreadable> {
        let token = who.map(|who| who.token);
        let deadline = Instant::now() + PATIENCE;
        let mut subscription = self.request(selection, who, deadline).await?;
        let mut news = self.registry.news();
        loop {
            news.borrow_and_update();
            match self.registry.standing(subscription, token) {
                Some(Standing::Live) => return Ok(self.store.subscribed(subscription)),
                Some(Standing::Refused { code, reason }) => return Err(Unreadable::Refused { code, reason }),
                None => {
                    subscription = self.request(selection, who, deadline).await?;
                    continue;
                }
                Some(Standing::Idle | Standing::Opening) => {}
            }
            if !self.registry.has_session() || timeout_at(deadline, news.changed()).await.is_err() {
                return self.copy(selection);
            }
        }
    }

    /// A selection as a store, if it or a wider one is up to date at this moment.
    pub(crate) fn live(&self, selection: &Selection) -> Option<Subscribed> {
        let subscription = self.registry.covering(selection)?;
        if self.registry.standing(subscription, None) != Some(Standing::Live) {
            return None;
        }
        self.registry.demand(subscription, None);
        Some(self.store.subscribed(subscription))
    }

    /// The local copy of a selection, or of a wider one; `None` if no copy was ever complete.
    ///
    /// # Errors
    /// [`Unreadable::Store`] when the store cannot be read.
    pub(crate) fn kept(&self, selection: &Selection) -> Result<Option<Subscribed>, Unreadable> {
        let kept = self.store.subscriptions()?;
        let readable = |kept: &Kept| kept.synced && self.registry.is_readable(kept.subscription);
        let covering = kept.into_iter().filter(|kept| readable(kept) && kept.selection.covers(selection));
        // Prefer the selection itself: a wider one may be older.
        let nearest = covering.min_by_key(|kept| kept.selection != *selection);
        Ok(nearest.map(|kept| self.store.subscribed(kept.subscription)))
    }

    /// The local copy, if it was ever complete.
    fn copy(&self, selection: &Selection) -> Result<Subscribed, Unreadable> {
        if let Some(kept) = self.kept(selection)? {
            return Ok(kept);
        }
        let what = &selection.resource;
        let why = if self.registry.has_session() {
            "the first list takes too long"
        } else {
            "the cloud cannot be reached"
        };
        Err(Unreadable::Unknown(format!("{what} were never synced to this node, and {why}")))
    }

    /// Opens a selection. Waits for a slot if all are taken; the caller bounds the time.
    async fn add(&self, selection: &Selection, sender: Option<&str>) -> Result<SubscriptionId, Unreadable> {
        let _turn = self.adding.lock().await;
        let mut news = self.registry.news();
        loop {
            news.borrow_and_update();
            if let Some(subscription) = self.registry.covering(selection) {
                return Ok(subscription);
            }
            if self.has_room(sender)? {
                return self.open(selection).await;
            }
            drop(news.changed().await);
        }
    }

    async fn open(&self, selection: &Selection) -> Result<SubscriptionId, Unreadable> {
        let subscription = self.store.open_subscription(selection.clone()).await?;
        self.registry.add(subscription, selection.clone(), false);
        Ok(subscription)
    }

    /// Whether one more selection may be opened. False means that room is being made.
    ///
    /// # Errors
    /// [`Unreadable::Unknown`] when all selections are being read.
    fn has_room(&self, sender: Option<&str>) -> Result<bool, Unreadable> {
        if let Some(sender) = sender.filter(|sender| self.registry.has_its_share(sender)) {
            if self
                .registry
                .evict_of(sender, |subscription, selection| self.readers(subscription, selection) == 0)
            {
                return Ok(false);
            }
            let share =
                format!("{KEPT_PER_SENDER_MAX} selections are read by {sender} now: end a watch of one");
            return Err(Unreadable::Unknown(share));
        }
        if self.registry.count() < KEPT_MAX {
            return Ok(true);
        }
        match self.make_room()? {
            true => Ok(false),
            false => {
                Err(Unreadable::Unknown(format!("{KEPT_MAX} selections are read now: end a watch of one")))
            }
        }
    }

    /// Evicts an unread selection, unless one is about to be forgotten already. Without a cloud, selections without a
    /// copy are evicted first, because a lost copy could not be fetched again. Returns false if all are being read.
    fn make_room(&self) -> Result<bool, Unreadable> {
        if self.registry.is_any_leaving() {
            return Ok(true);
        }
        let idle = |subscription, selection: &Selection| self.readers(subscription, selection) == 0;
        let empty = match self.registry.has_session() {
            true => None,
            false => {
                let is_empty = self.without_copy()?;
                self.registry
                    .evict(|subscription, selection| is_empty(subscription) && idle(subscription, selection))
            }
        };
        Ok(empty.or_else(|| self.registry.evict(idle)).is_some())
    }

    /// Returns a test for selections without a copy.
    fn without_copy(&self) -> Result<impl Fn(SubscriptionId) -> bool + use<>, Unreadable> {
        let kept = self.store.subscriptions()?;
        Ok(move |subscription: SubscriptionId| {
            !kept.iter().any(|kept| kept.subscription == subscription && kept.synced)
        })
    }

    fn readers(&self, subscription: SubscriptionId, selection: &Selection) -> usize {
        self.store.watchers(subscription, &selection.resource)
    }

    /// Carries out the registry's duties, stops following unread selections, and keeps the copies within their bounds,
    /// until the agent stops.
    pub(crate) async fn keep(self) {
        let mut news = self.registry.news();
        let mut weights = Weights::new(self.store.commits());
        let (mut sweep, mut stuck) = (Instant::now(), false);
        loop {
            news.borrow_and_update();
            if !stuck {
                stuck = !self.carry_out().await;
                self.grant_wishes().await;
            }
            if Instant::now() >= sweep {
                sweep = Instant::now() + SWEEP_INTERVAL;
                // Retry what the store could not do.
                stuck = false;
                if let Err(error) = self.sweep(&mut weights).await {
                    warn!(%error, "the size of the copies cannot be measured");
                }
                continue;
            }
            // A revocation does not wait for the next round.
            let _ = timeout_at(sweep, news.changed()).await;
        }
    }

    /// Carries out the registry's duties. Returns false if the store could not do all of them.
    async fn carry_out(&self) -> bool {
        let mut all = true;
        for (subscription, duty) in self.registry.duties() {
            let outcome = match duty {
                Duty::EndWatches => {
                    self.store.end_watches(subscription);
                    Ok(())
                }
                Duty::Clear => self.store.clear_subscription(subscription).await,
                Duty::Forget => self.store.drop_subscription(subscription).await,
            };
            match outcome {
                Ok(()) => self.registry.done(subscription, duty),
                Err(error) => {
                    all = false;
                    warn!(%error, ?duty, "cannot remove a copy that may no longer be read or is not needed");
                }
            }
        }
        all
    }

    /// Opens selections that parts of this agent wish for, as far as there is room.
    async fn grant_wishes(&self) {
        for selection in self.registry.wishes() {
            let granted = match self.registry.look_up(&selection) {
                SelectionLookup::At(subscription) => Ok(Some(subscription)),
                SelectionLookup::Leaving => Ok(None),
                SelectionLookup::Nowhere => self.grant(&selection).await,
            };
            match granted {
                Ok(Some(subscription)) => {
                    self.registry.demand(subscription, None);
                    self.registry.grant(&selection);
                }
                Ok(None) => {}
                Err(error) if self.registry.delay(&selection) => {
                    warn!(%error, resource = %selection.resource, "a resource cannot be followed yet");
                }
                Err(_) => {}
            }
        }
    }

    /// Opens a selection. Returns `None` while room is being made.
    async fn grant(&self, selection: &Selection) -> Result<Option<SubscriptionId>, Unreadable> {
        if !self.has_room(None)? {
            return Ok(None);
        }
        self.open(selection).await.map(Some)
    }

    async fn sweep(&self, weights: &mut Weights) -> Result<(), Unreadable> {
        self.registry.rest(|subscription, selection| self.readers(subscription, selection) > 0);
        self.registry.forget_refused(self.without_copy()?);
        let store = self.store.clone();
        weights.refresh(self.registry.cold(), move |subscription| store.weight(subscription)).await?;
        while weights.sum(&self.registry.cold()) > COPIES_BYTES_MAX {
            let idle = |subscription, selection: &Selection| {
                weights.of(subscription) > 0 && self.readers(subscription, selection) == 0
            };
            if self.registry.evict_by(|subscription| weights.of(subscription), idle).is_none() {
                break;
            }
        }
        Ok(())
    }
}
