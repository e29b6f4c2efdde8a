//! The selections that a session follows: their numbers in the session, and in the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use tombolo_proto::frame::{Inventory, Subscribe};
use tombolo_proto::ids::ScopeId;
use tombolo_proto::session::{EdgeSession, SubscribeError};
use tracing::{debug, warn};

use super::apply::Closed;
use crate::store::Store;
use crate::subscriptions::{Board, Standing, Wanted};

/// Refusals that last: everything else is tried again when somebody asks.
const LASTING: [u16; 5] = [400, 401, 403, 404, 413];

/// See the module.
pub(super) struct Follower {
    board: Arc<Board>,
    /// Whether the session can be asked to follow anything: it has begun, and the store knows that.
    open: bool,
    /// Scope of the session to scope of the store.
    followed: BTreeMap<ScopeId, ScopeId>,
}

impl Follower {
    pub(super) fn new(board: Arc<Board>) -> Self {
        let followed = BTreeMap::from([(ScopeId::NODE, ScopeId::NODE)]);
        Self { board, open: false, followed }
    }

    /// The session has begun.
    pub(super) fn begin(&mut self) {
        self.open = true;
        self.board.session(true);
    }

    /// The session is over.
    pub(super) fn end(&mut self) {
        if self.open {
            self.board.session(false);
        }
        self.open = false;
    }

    /// The store's number of a scope of the session; none for what is followed no longer.
    pub(super) fn scope(&self, session: ScopeId) -> Option<ScopeId> {
        self.followed.get(&session).copied()
    }

    /// Brings what the session follows to what the board wants. To be called when the store has everything that the
    /// session has told: the cloud takes the inventory as the whole truth.
    pub(super) fn compare(&mut self, session: &mut EdgeSession, store: &Store) -> Result<(), String> {
        if !self.open {
            return Ok(());
        }
        let wanted = self.board.wanted();
        let is_wanted = |scope: ScopeId| scope == ScopeId::NODE || wanted.contains(&scope);
        let unwanted = self.followed.extract_if(.., |_, scope| !is_wanted(*scope));
        for (number, scope) in unwanted.collect::<Vec<_>>() {
            session.unsubscribe(number);
            self.board.stands(scope, Standing::Idle);
        }
        for scope in wanted {
            if !self.follows(scope) {
                self.follow(session, store, scope)?;
            }
        }
        Ok(())
    }

    fn follows(&self, scope: ScopeId) -> bool {
        self.followed.values().any(|followed| *followed == scope)
    }

    fn follow(&mut self, session: &mut EdgeSession, store: &Store, scope: ScopeId) -> Result<(), String> {
        // From here on nobody clears or forgets it: the copy that is read now stays what the cloud is told.
        let Some(Wanted { selection, token }) = self.board.open(scope) else { return Ok(()) };
        let held = store.held(scope).map_err(|error| error.to_string())?;
        let number = session.next_scope();
        let subscribe = Subscribe {
            scope: number,
            resource: selection.resource,
            namespace: selection.namespace,
            label_selector: selection.label_selector,
            field_selector: selection.field_selector,
            caller_token: token,
            epoch: held.epoch,
            inventory: Inventory::Full(held.inventory),
        };
        match session.subscribe(subscribe) {
            Ok(()) => {}
            Err(SubscribeError::Invalid(reason)) => {
                self.board.stands(scope, Standing::Refused { code: 400, reason });
                return Ok(());
            }
            Err(error) => {
                debug!(%error, "a selection waits");
                self.board.put_off(scope);
                return Ok(());
            }
        }
        self.followed.insert(number, scope);
        Ok(())
    }

    /// A scope of the store is complete.
    pub(super) fn caught_up(&mut self, scope: ScopeId) {
        if self.follows(scope) {
            self.board.stands(scope, Standing::Live);
        }
    }

    /// The cloud has ended or refused a scope of the session: the store's number, of which nothing is taken any more.
    pub(super) fn closed(&mut self, number: ScopeId) -> Option<ScopeId> {
        self.followed.remove(&number)
    }

    /// A scope that was closed has all that was told of it.
    pub(super) fn refused(&mut self, Closed { scope, code, reason }: Closed) {
        let news = self.board.stands(scope, Standing::Refused { code, reason: reason.clone() });
        if news && LASTING.contains(&code) {
            warn!(code, %reason, "the cloud refuses a selection");
        } else {
            debug!(code, %reason, "a subscription was closed");
        }
    }
}
