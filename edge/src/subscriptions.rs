//! What local clients read beside the pushed set: parts of the cluster that this node follows through the hub, listed once
//! and then kept up to date, shared by all local clients, kept on disk and served also without a cloud
//! (docs/edge-node.md#what-the-local-api-answers).
//!
//! The warm set is what a node's own components need after a restart without a cloud; it is always followed and never
//! evicted. Everything else is followed from the first question until nobody has read it for [`IDLE_LIMIT`]; its copy
//! stays on disk until room is needed.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tombolo_proto::ids::ScopeId;
use tracing::warn;

use crate::store::{Kept, ReadError, Scoped, Selection, Store, WriteError};

mod board;
mod callers;
mod claims;
mod entry;
#[cfg(test)]
mod tests;
mod warm;
mod weights;

pub(crate) use board::{Board, Wanted};
pub(crate) use entry::Standing;
pub(crate) use warm::{WholeStore, warm_set};

use board::Place;
use entry::Duty;
use weights::Weights;

/// A selection that nobody has read for this long is followed no longer.
pub(crate) const IDLE_LIMIT: Duration = Duration::from_secs(600);

/// How long a client waits for a selection that was never asked for before, also for a place.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a refusal of the cloud is believed.
const REFUSAL_BELIEVED: Duration = Duration::from_secs(30);

/// How often what is no longer read is looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// Selections that are kept on disk, at most; of those that nobody reads the sender that has most gives up first the one that it
/// asked for longest ago, which goes when nobody else has asked for it.
pub(crate) const KEPT_MAX: usize = 256;

/// Selections that are kept for one sender, at most.
pub(crate) const KEPT_PER_SENDER_MAX: usize = KEPT_MAX / 4;

/// Bytes of objects that only selections outside the warm set keep, at most.
const COPIES_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Somebody who reads with a right of their own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Borrower<'a> {
    /// Who has the selection in its share, beside others who ask for it ([`tombolo_apicore::senders::name_of`]).
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
    /// It was never brought here, and the cloud cannot be asked now.
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
    board: Arc<Board>,
    /// Selections are added one by one, so that there are never more than may be.
    adding: Arc<Mutex<()>>,
}

impl Subscriptions {
    /// What the store keeps, and the warm set.
    ///
    /// # Errors
    /// [`Unreadable::Store`] when the store cannot be read or written.
    pub(crate) async fn load(store: Store) -> Result<Self, Unreadable> {
        let board = Arc::new(Board::default());
        for kept in store.subscriptions()? {
            board.add(kept.scope, kept.selection, false);
        }
        for selection in warm_set() {
            let scope = store.open_scope(selection.clone()).await?;
            board.add(scope, selection, true);
        }
        Ok(Self { store, board, adding: Arc::default() })
    }

    /// What sessions with the cloud follow, and how far they have come.
    pub(crate) fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Whole resources as one store.
    pub(crate) fn whole(&self) -> WholeStore {
        WholeStore::new(self.clone())
    }

    /// Follows a selection, or a wider one, from now on, without waiting for its first list.
    async fn request(
        &self,
        selection: &Selection,
        who: Option<Borrower<'_>>,
        deadline: Instant,
    ) -> Result<ScopeId, Unreadable> {
        let mut news = self.board.news();
        let found = async {
            loop {
                news.borrow_and_update();
                match self.board.place(selection) {
                    Place::At(scope) => return Ok(scope),
                    Place::Nowhere => return self.add(selection, who.map(|who| who.sender)).await,
                    // The board tells of its end for as long as it is there.
                    Place::Leaving => drop(news.changed().await),
                }
            }
        };
        let Ok(scope) = timeout_at(deadline, found).await else {
            return Err(Unreadable::Unknown("room is still being made for it: ask again".to_owned()));
        };
        let scope = scope?;
        self.board.demand(scope, who);
        Ok(scope)
    }

    /// A selection as a store, or a wider one that is followed already. Follows it when nobody did, in the name of the
    /// caller whose token is given where the node itself may not, and waits a little for its first list.
    ///
    /// # Errors
    /// [`Unreadable`] when it was never complete here, and does not become so now.
    pub(crate) async fn reader(
        &self,
        selection: &Selection,
        who: Option<Borrower<'_>>,
    ) -> Result<Scoped, Unreadable> {
        let token = who.map(|who| who.token);
        let deadline = Instant::now() + PATIENCE;
        let mut scope = self.request(selection, who, deadline).await?;
        let mut news = self.board.news();
        loop {
            news.borrow_and_update();
            match self.board.standing(scope, token) {
                Some(Standing::Live) => return Ok(self.store.scoped(scope)),
                Some(Standing::Refused { code, reason }) => return Err(Unreadable::Refused { code, reason }),
                None => {
                    scope = self.request(selection, who, deadline).await?;
                    continue;
                }
                Some(Standing::Idle | Standing::Opening) => {}
            }
            if !self.board.has_session() || timeout_at(deadline, news.changed()).await.is_err() {
                return self.copy(selection);
            }
        }
    }

    /// A selection as a store where it, or a wider one, is kept up to date at this moment.
    pub(crate) fn live(&self, selection: &Selection) -> Option<Scoped> {
        let scope = self.board.covering(selection)?;
        if self.board.standing(scope, None) != Some(Standing::Live) {
            return None;
        }
        self.board.demand(scope, None);
        Some(self.store.scoped(scope))
    }

    /// The copy of a selection, or of a wider one, that is here; none when there is none that was complete once.
    ///
    /// # Errors
    /// [`Unreadable::Store`] when the store cannot be read.
    pub(crate) fn kept(&self, selection: &Selection) -> Result<Option<Scoped>, Unreadable> {
        let kept = self.store.subscriptions()?;
        let readable = |kept: &Kept| kept.synced && self.board.is_readable(kept.scope);
        let covering = kept.into_iter().filter(|kept| readable(kept) && kept.selection.covers(selection));
        // The selection itself was followed last when it was asked for last; a wider one may be older.
        let nearest = covering.min_by_key(|kept| kept.selection != *selection);
        Ok(nearest.map(|kept| self.store.scoped(kept.scope)))
    }

    /// What was kept, as long as it was complete once.
    fn copy(&self, selection: &Selection) -> Result<Scoped, Unreadable> {
        if let Some(kept) = self.kept(selection)? {
            return Ok(kept);
        }
        let what = &selection.resource;
        let why = if self.board.has_session() {
            "the first list takes too long"
        } else {
            "there is no cloud to ask"
        };
        Err(Unreadable::Unknown(format!("{what} were never synced to this node, and {why}")))
    }

    /// Opens a selection; waits for a place where all are taken. The caller bounds the time.
    async fn add(&self, selection: &Selection, sender: Option<&str>) -> Result<ScopeId, Unreadable> {
        let _turn = self.adding.lock().await;
        let mut news = self.board.news();
        loop {
            news.borrow_and_update();
            if let Some(scope) = self.board.covering(selection) {
                return Ok(scope);
            }
            if self.has_room(sender)? {
                return self.open(selection).await;
            }
            drop(news.changed().await);
        }
    }

    async fn open(&self, selection: &Selection) -> Result<ScopeId, Unreadable> {
        let scope = self.store.open_scope(selection.clone()).await?;
        self.board.add(scope, selection.clone(), false);
        Ok(scope)
    }

    /// Whether one more may be opened; false: room is being made.
    ///
    /// # Errors
    /// [`Unreadable::Unknown`] when all are being read.
    fn has_room(&self, sender: Option<&str>) -> Result<bool, Unreadable> {
        if let Some(sender) = sender.filter(|sender| self.board.has_its_share(sender)) {
            if self.board.evict_of(sender, |scope, selection| self.readers(scope, selection) == 0) {
                return Ok(false);
            }
            let share =
                format!("{KEPT_PER_SENDER_MAX} selections are read by {sender} at this moment: end one");
            return Err(Unreadable::Unknown(share));
        }
        if self.board.count() < KEPT_MAX {
            return Ok(true);
        }
        match self.make_room()? {
            true => Ok(false),
            false => {
                Err(Unreadable::Unknown(format!("{KEPT_MAX} selections are read at this moment: end one")))
            }
        }
    }

    /// Has the selection forgotten that was read longest ago, unless another one is about to go. Without a cloud one that has
    /// no copy goes first: it costs nothing, and a copy could not be had again. False when all are being read.
    fn make_room(&self) -> Result<bool, Unreadable> {
        if self.board.is_any_leaving() {
            return Ok(true);
        }
        let idle = |scope, selection: &Selection| self.readers(scope, selection) == 0;
        let empty = match self.board.has_session() {
            true => None,
            false => {
                let is_empty = self.without_copy()?;
                self.board.evict(|scope, selection| is_empty(scope) && idle(scope, selection))
            }
        };
        Ok(empty.or_else(|| self.board.evict(idle)).is_some())
    }

    /// Says of which selections there is no copy.
    fn without_copy(&self) -> Result<impl Fn(ScopeId) -> bool + use<>, Unreadable> {
        let kept = self.store.subscriptions()?;
        Ok(move |scope: ScopeId| !kept.iter().any(|kept| kept.scope == scope && kept.synced))
    }

    fn readers(&self, scope: ScopeId, selection: &Selection) -> usize {
        self.store.watchers(scope, &selection.resource)
    }

    /// Does what the board says is to be done, ends what nobody reads, and keeps the copies within their bounds, until the
    /// agent stops.
    pub(crate) async fn keep(self) {
        let mut news = self.board.news();
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
                // What the store could not do is tried again.
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

    /// False when the store could not do all of it.
    async fn carry_out(&self) -> bool {
        let mut all = true;
        for (scope, duty) in self.board.duties() {
            let outcome = match duty {
                Duty::EndWatches => {
                    self.store.end_watches(scope);
                    Ok(())
                }
                Duty::Clear => self.store.clear_scope(scope).await,
                Duty::Forget => self.store.drop_scope(scope).await,
            };
            match outcome {
                Ok(()) => self.board.done(scope, duty),
                Err(error) => {
                    all = false;
                    warn!(%error, ?duty, "a copy that may no longer be read or is not needed cannot be removed");
                }
            }
        }
        all
    }

    /// Opens what parts of this agent have wished for, as far as there is room.
    async fn grant_wishes(&self) {
        for selection in self.board.wishes() {
            let granted = match self.board.place(&selection) {
                Place::At(scope) => Ok(Some(scope)),
                Place::Leaving => Ok(None),
                Place::Nowhere => self.grant(&selection).await,
            };
            match granted {
                Ok(Some(scope)) => {
                    self.board.demand(scope, None);
                    self.board.grant(&selection);
                }
                Ok(None) => {}
                Err(error) if self.board.delay(&selection) => {
                    warn!(%error, resource = %selection.resource, "a resource cannot be followed yet");
                }
                Err(_) => {}
            }
        }
    }

    /// None: room is being made.
    async fn grant(&self, selection: &Selection) -> Result<Option<ScopeId>, Unreadable> {
        if !self.has_room(None)? {
            return Ok(None);
        }
        self.open(selection).await.map(Some)
    }

    async fn sweep(&self, weights: &mut Weights) -> Result<(), Unreadable> {
        self.board.rest(|scope, selection| self.readers(scope, selection) > 0);
        self.board.forget_refused(self.without_copy()?);
        let store = self.store.clone();
        weights.refresh(self.board.cold(), move |scope| store.weight(scope)).await?;
        while weights.sum(&self.board.cold()) > COPIES_BYTES_MAX {
            let idle =
                |scope, selection: &Selection| weights.of(scope) > 0 && self.readers(scope, selection) == 0;
            if self.board.evict_by(|scope| weights.of(scope), idle).is_none() {
                break;
            }
        }
        Ok(())
    }
}
