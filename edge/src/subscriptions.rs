//! What local clients read beside the pushed set: parts of the cluster that this node follows through the hub, listed once
//! and then kept up to date, shared by all local clients, kept on disk and served also without a cloud (design 9.13).
//!
//! The warm set is what a node's own components need after a restart without a cloud; it is always followed and never
//! evicted. Everything else is followed from the first question until nobody has read it for [`IDLE_LIMIT`]; its copy
//! stays on disk until room is needed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tombolo_proto::ids::ScopeId;
use tracing::warn;

use crate::store::{ReadError, Scoped, Selection, Store, WriteError};

mod board;
mod warm;

pub(crate) use board::{Board, Standing, Wanted};
pub(crate) use warm::{WholeStore, warm_set};

/// A selection that nobody has read for this long is followed no longer.
pub(crate) const IDLE_LIMIT: Duration = Duration::from_secs(600);

/// How long a client waits for a selection that was never asked for before.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a refusal of the cloud is believed.
const REFUSAL_BELIEVED: Duration = Duration::from_secs(30);

/// How often what is no longer read is looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// Selections that are kept on disk, at most; of those that nobody reads the one that was read longest ago goes first.
pub(crate) const KEPT_MAX: usize = 256;

/// Bytes of objects that only selections outside the warm set keep, at most.
const COPIES_BYTES_MAX: u64 = 64 * 1024 * 1024;

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
        Ok(Self { store, board })
    }

    /// What sessions with the cloud follow, and how far they have come.
    pub(crate) fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Whole resources as one store. To be called inside a runtime.
    pub(crate) fn whole(&self) -> WholeStore {
        WholeStore::new(self.clone(), Handle::current())
    }

    /// Follows a selection, or a wider one, from now on, without waiting for it.
    async fn request(&self, selection: &Selection, token: Option<&str>) -> Result<ScopeId, Unreadable> {
        let scope = match self.board.covering(selection) {
            Some(scope) => scope,
            None => self.add(selection).await?,
        };
        self.board.demand(scope, token);
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
        token: Option<&str>,
    ) -> Result<Scoped, Unreadable> {
        let deadline = Instant::now() + PATIENCE;
        let scope = self.request(selection, token).await?;
        let mut news = self.board.news();
        loop {
            news.borrow_and_update();
            match self.board.standing(scope) {
                Some(Standing::Live) => return Ok(self.store.scoped(scope)),
                Some(Standing::Refused { code, reason }) => return Err(Unreadable::Refused { code, reason }),
                None => return Err(Unreadable::Unknown("it was just forgotten: ask again".to_owned())),
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
        if self.board.standing(scope) != Some(Standing::Live) {
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
        let covering = kept.into_iter().filter(|kept| kept.synced && kept.selection.covers(selection));
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

    async fn add(&self, selection: &Selection) -> Result<ScopeId, Unreadable> {
        if self.board.count() >= KEPT_MAX && !self.evict_one().await? {
            return Err(Unreadable::Unknown(format!(
                "{KEPT_MAX} selections are read at this moment: end one"
            )));
        }
        let scope = self.store.open_scope(selection.clone()).await?;
        self.board.add(scope, selection.clone(), false);
        Ok(scope)
    }

    /// Forgets the selection that was read longest ago. Without a cloud one that has no copy goes first: it costs nothing,
    /// and a copy could not be had again. False when all are being read.
    async fn evict_one(&self) -> Result<bool, Unreadable> {
        let idle = |scope, selection: &Selection| self.readers(scope, selection) == 0;
        let empty = match self.board.has_session() {
            true => None,
            false => {
                let kept = self.store.subscriptions()?;
                let has_copy = |scope: ScopeId| kept.iter().any(|kept| kept.scope == scope && kept.synced);
                self.board.evictable(|scope, selection| !has_copy(scope) && idle(scope, selection))
            }
        };
        match empty.or_else(|| self.board.evictable(idle)) {
            Some(scope) => Ok(self.forget(scope).await),
            None => Ok(false),
        }
    }

    async fn forget(&self, scope: ScopeId) -> bool {
        self.board.remove(scope);
        match self.store.drop_scope(scope).await {
            Ok(()) => true,
            Err(error) => {
                warn!(%error, "a copy that is no longer needed cannot be removed");
                false
            }
        }
    }

    fn readers(&self, scope: ScopeId, selection: &Selection) -> usize {
        self.store.watchers(scope, &selection.resource)
    }

    /// Ends what nobody reads, and keeps the copies within their bounds, until the agent stops.
    pub(crate) async fn keep(self) {
        let mut news = self.board.news();
        loop {
            self.board.rest(|scope, selection| self.readers(scope, selection) > 0);
            // What the cloud has taken away is not served any more.
            for scope in self.board.revoked() {
                match self.store.clear_scope(scope).await {
                    Ok(()) => self.board.cleared(scope),
                    Err(error) => warn!(%error, "a copy that may no longer be read cannot be removed"),
                }
            }
            for scope in self.board.forgettable() {
                self.forget(scope).await;
            }
            if let Err(error) = self.fit().await {
                warn!(?error, "the size of the copies cannot be measured");
            }
            let sweep = Instant::now() + SWEEP_INTERVAL;
            // A revocation does not wait for the next round.
            let _ = timeout_at(sweep, async {
                loop {
                    if news.changed().await.is_err() {
                        return std::future::pending().await;
                    }
                    if !self.board.revoked().is_empty() {
                        return;
                    }
                }
            })
            .await;
        }
    }

    async fn fit(&self) -> Result<(), Unreadable> {
        let mut weights = BTreeMap::new();
        for scope in self.board.cold() {
            weights.insert(scope, self.store.weight(scope)?);
        }
        let mut bytes: u64 = weights.values().sum();
        while bytes > COPIES_BYTES_MAX {
            let weight = |scope| weights.get(&scope).copied().unwrap_or(0);
            let idle =
                |scope, selection: &Selection| weight(scope) > 0 && self.readers(scope, selection) == 0;
            let Some(scope) = self.board.evictable(idle) else { break };
            bytes = bytes.saturating_sub(weight(scope));
            self.forget(scope).await;
        }
        Ok(())
    }
}
