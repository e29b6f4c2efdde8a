//! Subscriptions of this edge: which are open, pending frames about them, and inventories being sent.

use std::collections::VecDeque;

use crate::codec;
use crate::frame::{Frame, Inventory, InventoryPart, Subscribe};
use crate::ids::{StoreId, SubscriptionId};
use crate::limits::{INVENTORY_PART_MAX, SUBSCRIPTIONS_MAX};
use crate::object::InventoryEntry;
use crate::session::SessionError;
use crate::session::edge::SubscribeError;
use crate::session::inventory::summarise;

/// State of a subscription id at the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubscriptionState {
    /// Followed.
    Open,
    /// Followed before: frames about it may still be under way.
    Ended,
}

#[derive(Debug)]
struct Upload {
    subscription: SubscriptionId,
    entries: std::vec::IntoIter<InventoryEntry>,
}

/// Open subscriptions and the pending frames about them.
#[derive(Debug)]
pub(super) struct Subscriptions {
    /// The store whose inventories are sent.
    store: StoreId,
    newest: SubscriptionId,
    open: Vec<SubscriptionId>,
    /// New and ended subscriptions, in one lane and thus in order.
    outgoing: VecDeque<Frame>,
    uploads: VecDeque<Upload>,
}

impl Subscriptions {
    pub(super) fn new(store: StoreId) -> Self {
        let (outgoing, uploads) = (VecDeque::new(), VecDeque::new());
        Self { store, newest: SubscriptionId::NODE, open: vec![SubscriptionId::NODE], outgoing, uploads }
    }

    pub(super) fn next(&self) -> SubscriptionId {
        SubscriptionId(self.newest.0.saturating_add(1))
    }

    pub(super) fn subscribe(&mut self, mut subscribe: Subscribe) -> Result<(), SubscribeError> {
        if subscribe.subscription <= self.newest {
            return Err(SubscribeError::SubscriptionUsed(subscribe.subscription));
        }
        if self.open.len() > SUBSCRIPTIONS_MAX {
            return Err(SubscribeError::Full);
        }
        codec::check_subscribe(&subscribe).map_err(|error| SubscribeError::Invalid(error.to_string()))?;
        self.newest = subscribe.subscription;
        self.open.push(subscribe.subscription);
        if let Inventory::Full(entries) = subscribe.inventory {
            subscribe.inventory = summarise(self.store, entries);
        }
        self.outgoing.push_back(Frame::Subscribe(subscribe));
        Ok(())
    }

    pub(super) fn unsubscribe(&mut self, subscription: SubscriptionId) {
        if subscription == SubscriptionId::NODE || !self.close(subscription) {
            return;
        }
        let before = self.outgoing.len();
        self.outgoing.retain(
            |frame| !matches!(frame, Frame::Subscribe(unsent) if unsent.subscription == subscription),
        );
        // A subscription that was never sent needs no `Unsubscribe`.
        if self.outgoing.len() == before {
            self.outgoing.push_back(Frame::Unsubscribe { subscription });
        }
    }

    /// Stops following the subscription. False when it is not open.
    pub(super) fn close(&mut self, subscription: SubscriptionId) -> bool {
        self.uploads.retain(|upload| upload.subscription != subscription);
        let index = self.open.iter().position(|open| *open == subscription);
        index.map(|index| self.open.remove(index)).is_some()
    }

    /// # Errors
    /// [`SessionError::Protocol`] when the subscription was never opened in this session.
    pub(super) fn standing(
        &self,
        subscription: SubscriptionId,
        what: &str,
    ) -> Result<SubscriptionState, SessionError> {
        if self.open.contains(&subscription) {
            Ok(SubscriptionState::Open)
        } else if subscription <= self.newest {
            Ok(SubscriptionState::Ended)
        } else {
            let text = format!("{what} arrived for subscription {}, which was never opened", subscription.0);
            Err(SessionError::Protocol(text))
        }
    }

    /// Queues the inventory of a subscription for sending. False when it is already being sent.
    pub(super) fn upload(
        &mut self,
        subscription: SubscriptionId,
        entries: impl FnOnce() -> Vec<InventoryEntry>,
    ) -> bool {
        if self.uploads.iter().any(|upload| upload.subscription == subscription) {
            return false;
        }
        self.uploads.push_back(Upload { subscription, entries: entries().into_iter() });
        true
    }

    pub(super) fn poll_outgoing(&mut self) -> Option<Frame> {
        self.outgoing.pop_front()
    }

    pub(super) fn poll_upload(&mut self) -> Option<InventoryPart> {
        let upload = self.uploads.front_mut()?;
        let subscription = upload.subscription;
        let entries: Vec<_> = upload.entries.by_ref().take(INVENTORY_PART_MAX).collect();
        let last = upload.entries.len() == 0;
        if last {
            self.uploads.pop_front();
        }
        Some(InventoryPart { subscription, entries, last })
    }
}
