//! Scopes of this edge: which are open, pending frames about them, and inventories being sent.

use std::collections::VecDeque;

use crate::codec;
use crate::frame::{Frame, Inventory, InventoryPart, Subscribe};
use crate::ids::{ScopeId, StoreId};
use crate::limits::{INVENTORY_PART_MAX, SUBSCRIPTIONS_MAX};
use crate::object::InventoryEntry;
use crate::session::SessionError;
use crate::session::edge::SubscribeError;
use crate::session::inventory::summarise;

/// State of a scope id at the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Followed.
    Open,
    /// Followed before: frames about it may still be under way.
    Ended,
}

#[derive(Debug)]
struct Upload {
    scope: ScopeId,
    entries: std::vec::IntoIter<InventoryEntry>,
}

/// Open scopes and the pending frames about them.
#[derive(Debug)]
pub(super) struct Scopes {
    /// The store whose inventories are sent.
    store: StoreId,
    newest: ScopeId,
    open: Vec<ScopeId>,
    /// New and ended subscriptions, in one lane and thus in order.
    outgoing: VecDeque<Frame>,
    uploads: VecDeque<Upload>,
}

impl Scopes {
    pub(super) fn new(store: StoreId) -> Self {
        let (outgoing, uploads) = (VecDeque::new(), VecDeque::new());
        Self { store, newest: ScopeId::NODE, open: vec![ScopeId::NODE], outgoing, uploads }
    }

    pub(super) fn next(&self) -> ScopeId {
        ScopeId(self.newest.0.saturating_add(1))
    }

    pub(super) fn subscribe(&mut self, mut subscribe: Subscribe) -> Result<(), SubscribeError> {
        if subscribe.scope <= self.newest {
            return Err(SubscribeError::ScopeUsed(subscribe.scope));
        }
        if self.open.len() > SUBSCRIPTIONS_MAX {
            return Err(SubscribeError::Full);
        }
        codec::check_subscribe(&subscribe).map_err(|error| SubscribeError::Invalid(error.to_string()))?;
        self.newest = subscribe.scope;
        self.open.push(subscribe.scope);
        if let Inventory::Full(entries) = subscribe.inventory {
            subscribe.inventory = summarise(self.store, entries);
        }
        self.outgoing.push_back(Frame::Subscribe(subscribe));
        Ok(())
    }

    pub(super) fn unsubscribe(&mut self, scope: ScopeId) {
        if scope == ScopeId::NODE || !self.close(scope) {
            return;
        }
        let before = self.outgoing.len();
        self.outgoing.retain(|frame| !matches!(frame, Frame::Subscribe(unsent) if unsent.scope == scope));
        // A subscription that was never sent needs no `Unsubscribe`.
        if self.outgoing.len() == before {
            self.outgoing.push_back(Frame::Unsubscribe { scope });
        }
    }

    /// Stops following the scope. False when it is not open.
    pub(super) fn close(&mut self, scope: ScopeId) -> bool {
        self.uploads.retain(|upload| upload.scope != scope);
        let index = self.open.iter().position(|open| *open == scope);
        index.map(|index| self.open.remove(index)).is_some()
    }

    /// # Errors
    /// [`SessionError::Protocol`] when the scope was never opened in this session.
    pub(super) fn standing(&self, scope: ScopeId, what: &str) -> Result<Standing, SessionError> {
        if self.open.contains(&scope) {
            Ok(Standing::Open)
        } else if scope <= self.newest {
            Ok(Standing::Ended)
        } else {
            let text = format!("{what} came for scope {}, which was never opened", scope.0);
            Err(SessionError::Protocol(text))
        }
    }

    /// Queues the inventory of a scope for sending. False when it is already being sent.
    pub(super) fn upload(&mut self, scope: ScopeId, entries: impl FnOnce() -> Vec<InventoryEntry>) -> bool {
        if self.uploads.iter().any(|upload| upload.scope == scope) {
            return false;
        }
        self.uploads.push_back(Upload { scope, entries: entries().into_iter() });
        true
    }

    pub(super) fn poll_outgoing(&mut self) -> Option<Frame> {
        self.outgoing.pop_front()
    }

    pub(super) fn poll_upload(&mut self) -> Option<InventoryPart> {
        let upload = self.uploads.front_mut()?;
        let scope = upload.scope;
        let entries: Vec<_> = upload.entries.by_ref().take(INVENTORY_PART_MAX).collect();
        let last = upload.entries.len() == 0;
        if last {
            self.uploads.pop_front();
        }
        Some(InventoryPart { scope, entries, last })
    }
}
