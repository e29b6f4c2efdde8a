//! Scopes that an edge opens, and the inventories that do not fit a hello.

use crate::frame::{Inventory, InventoryPart, Subscribe};
use crate::ids::ScopeId;
use crate::limits::SUBSCRIPTIONS_MAX;
use crate::session::SessionError;
use crate::session::cloud::compare::Comparison;
use crate::session::cloud::scope::Scope;
use crate::session::cloud::{CloudEvent, CloudSession, NodeView, Notice};
use crate::session::error::clip;

impl CloudSession {
    /// Scope ids only grow: whatever is still under way for an ended subscription can never be taken for another one's.
    pub(super) fn handle_subscribe(&mut self, mut subscribe: Subscribe) -> Result<(), SessionError> {
        let scope = subscribe.scope;
        if scope <= self.newest_scope {
            return Err(SessionError::Protocol(format!(
                "subscription {} came, but scope ids must grow and {} was used already",
                scope.0, self.newest_scope.0
            )));
        }
        self.newest_scope = scope;
        if self.scopes.len() > SUBSCRIPTIONS_MAX {
            let reason = format!("{SUBSCRIPTIONS_MAX} subscriptions of this node are open already");
            self.notify(Notice::Closed { scope, code: 429, reason });
            return Ok(());
        }
        let announced = std::mem::replace(&mut subscribe.inventory, Inventory::Full(Vec::new()));
        let comparison = Comparison::new(subscribe.epoch.clone(), self.same_rules, announced)?;
        self.scopes.push(Scope::new(scope, comparison));
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
        let now = self.now;
        let awaited =
            match self.scope_index(part.scope).and_then(|index| Some((index, self.scopes.get_mut(index)?))) {
                None => false,
                Some((index, scope)) => {
                    let awaited = scope.add_part(now, part, &self.config.epoch, view)?;
                    self.announce_caught_up(index);
                    awaited
                }
            };
        if awaited { Ok(()) } else { self.patience.ignore(now, "an inventory part that nobody asked for") }
    }

    /// Accepts a subscription: its inventory is compared and its view followed from now on. Does nothing when the edge
    /// has ended it meanwhile.
    pub fn open_subscription(&mut self, scope: ScopeId, view: &impl NodeView) {
        if scope == ScopeId::NODE {
            return;
        }
        if let Err(error) = self.open_scope(scope, view) {
            self.leave(error.goodbye());
        }
    }

    /// Refuses or ends a subscription, with the HTTP status code that a Kubernetes client would see. Deliveries under
    /// way are dropped by the edge. Does nothing when the subscription is not open.
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
