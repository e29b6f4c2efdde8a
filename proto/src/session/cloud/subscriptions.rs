//! Scopes that an edge opens, and the inventories that do not fit a hello.

use crate::frame::{Inventory, InventoryPart, Subscribe};
use crate::ids::{Moment, ScopeId};
use crate::limits::{FOLLOWED_MAX, INVENTORY_BYTES_MAX, SUBSCRIBE_WINDOW, SUBSCRIBES_MAX, SUBSCRIPTIONS_MAX};
use crate::session::SessionError;
use crate::session::cloud::compare::Comparison;
use crate::session::cloud::scope::{Scope, Stage};
use crate::session::cloud::{CloudEvent, CloudSession, NodeView, Notice};
use crate::session::error::clip;

impl CloudSession {
    /// Scope ids only grow: frames under way for an ended subscription can never be taken for those of another one.
    pub(super) fn handle_subscribe(&mut self, mut subscribe: Subscribe) -> Result<(), SessionError> {
        let scope = subscribe.scope;
        if scope <= self.newest_scope {
            return Err(SessionError::Protocol(format!(
                "subscription {} came, but scope ids must grow and {} was used already",
                scope.0, self.newest_scope.0
            )));
        }
        self.newest_scope = scope;
        if !self.subscribes.begin(self.now) {
            let reason = format!(
                "this node began {SUBSCRIBES_MAX} subscriptions within {} s: subscribe again later",
                SUBSCRIBE_WINDOW.as_secs()
            );
            self.notify(Notice::Closed { scope, code: 429, reason });
            return Ok(());
        }
        if self.scopes.len() > SUBSCRIPTIONS_MAX {
            let reason = format!("{SUBSCRIPTIONS_MAX} subscriptions of this node are open already");
            self.notify(Notice::Closed { scope, code: 429, reason });
            return Ok(());
        }
        let announced = std::mem::replace(&mut subscribe.inventory, Inventory::Full(Vec::new()));
        let comparison = Comparison::new(subscribe.epoch.clone(), self.comparable, announced)?;
        self.add_scope(scope, comparison);
        let claims = self.claims();
        if claims > INVENTORY_BYTES_MAX {
            // The other scopes are compared meanwhile, and need less memory then.
            let reason = format!(
                "the inventories of this node take {claims} bytes, and {INVENTORY_BYTES_MAX} are kept of one node: subscribe again later"
            );
            self.close_subscription(scope, 429, &reason);
            return Ok(());
        }
        self.events.push_back(CloudEvent::Subscribe(subscribe));
        Ok(())
    }

    pub(super) fn handle_unsubscribe(&mut self, scope: ScopeId) -> Result<(), SessionError> {
        if scope == ScopeId::NODE {
            return Err(SessionError::Protocol("the pushed set cannot be unsubscribed".to_owned()));
        }
        if !self.drop_scope(scope) {
            return self.patience.ignore(self.now, "the end of a subscription that is not open");
        }
        self.events.push_back(CloudEvent::Unsubscribe { scope });
        Ok(())
    }

    pub(super) fn handle_part(
        &mut self,
        part: InventoryPart,
        view: &impl NodeView,
    ) -> Result<(), SessionError> {
        let (now, id, room) = (self.now, part.scope, INVENTORY_BYTES_MAX.saturating_sub(self.claims()));
        if part.last && self.awaits_inventory(id) && !self.has_room(Some(id), view) {
            self.end_overfull(id);
            return Ok(());
        }
        let awaited =
            match self.scope_index(part.scope).and_then(|index| Some((index, self.scopes.get_mut(index)?))) {
                None => false,
                Some((index, scope)) => {
                    let awaited = scope.add_part(now, part, room, &self.config.epoch, view)?;
                    self.announce_caught_up(index);
                    awaited
                }
            };
        self.ask_rest()?;
        if awaited { Ok(()) } else { self.patience.ignore(now, "an inventory part that nobody asked for") }
    }

    /// Accepts a subscription: its inventory is compared and its view followed from now on. False when it is not open
    /// afterwards, because the edge has ended it meanwhile or would follow too much; the owner need not follow it
    /// then.
    pub fn open_subscription(&mut self, scope: ScopeId, view: &impl NodeView) -> bool {
        if scope == ScopeId::NODE || self.scope_index(scope).is_none() {
            return false;
        }
        if !self.has_room(Some(scope), view) {
            self.end_overfull(scope);
            return false;
        }
        if let Err(error) = self.open_scope(scope, view) {
            self.leave(error.goodbye());
            return false;
        }
        true
    }

    /// Number of keys in the compared subscriptions.
    pub(super) fn keys(&self) -> usize {
        let subscriptions = self.scopes.iter().filter(|scope| scope.id != ScopeId::NODE);
        subscriptions.map(|scope| scope.slots.len()).fold(0, usize::saturating_add)
    }

    /// Whether the node is within its bound of followed objects. For a scope that is compared next, or once its
    /// inventory has arrived, all keys that the view wants there now are counted.
    pub(super) fn has_room(&mut self, next: Option<ScopeId>, view: &impl NodeView) -> bool {
        let is_expected = |scope: &&Scope| {
            let compared = !matches!(scope.stage, Stage::Comparing(_));
            !compared && (next == Some(scope.id) || scope.comparison_deadline().is_some())
        };
        let expected = self.scopes.iter().filter(|scope| scope.id != ScopeId::NODE).filter(is_expected);
        let expected = expected.map(|scope| view.count(scope.id)).fold(0, usize::saturating_add);
        if self.keys().saturating_add(expected) <= FOLLOWED_MAX {
            return true;
        }
        let subscriptions = self.scopes.iter_mut().filter(|scope| scope.id != ScopeId::NODE);
        let wanted = subscriptions.map(Scope::drop_unneeded).fold(0, usize::saturating_add);
        self.room.counted(wanted.saturating_add(expected), self.keys().saturating_add(expected))
    }

    fn awaits_inventory(&self, id: ScopeId) -> bool {
        let scope = self.scope_index(id).and_then(|index| self.scopes.get(index));
        scope.is_some_and(|scope| scope.comparison_deadline().is_some())
    }

    /// Ends a subscription that makes the node follow too much. The edge and the owner are notified.
    pub(super) fn end_overfull(&mut self, scope: ScopeId) {
        let ended = CloudEvent::too_many(scope, FOLLOWED_MAX);
        if let CloudEvent::Ended { code, reason, .. } = &ended {
            self.close_subscription(scope, *code, reason);
        }
        self.events.push_back(ended);
    }

    /// Refuses or ends a subscription, with the HTTP status code that a Kubernetes client would see. The edge drops
    /// deliveries under way. Does nothing when the subscription is not open.
    pub fn close_subscription(&mut self, scope: ScopeId, code: u16, reason: &str) {
        if scope != ScopeId::NODE && self.drop_scope(scope) {
            self.notify(Notice::Closed { scope, code, reason: clip(reason.to_owned()) });
        }
    }

    fn drop_scope(&mut self, id: ScopeId) -> bool {
        let Some(index) = self.scope_index(id) else { return false };
        self.scopes.remove(index);
        self.notices.retain(
            |notice| !matches!(notice, Notice::InventoryRequest(scope) | Notice::CaughtUp(scope, _) if *scope == id),
        );
        true
    }
}

/// Number of subscriptions begun recently.
#[derive(Debug, Default)]
pub(super) struct Begun {
    since: Moment,
    count: u32,
}

impl Begun {
    /// Counts one more; false when it exceeds the limit.
    fn begin(&mut self, now: Moment) -> bool {
        if now.since(self.since) >= SUBSCRIBE_WINDOW {
            *self = Self { since: now, count: 0 };
        }
        self.count = self.count.saturating_add(1);
        self.count <= SUBSCRIBES_MAX
    }
}
