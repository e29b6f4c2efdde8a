//! Subscriptions that an edge opens, and the inventories that do not fit a hello.

use crate::frame::{Inventory, InventoryPart, Subscribe};
use crate::ids::{Moment, SubscriptionId};
use crate::limits::{FOLLOWED_MAX, INVENTORY_BYTES_MAX, SUBSCRIBE_WINDOW, SUBSCRIBES_MAX, SUBSCRIPTIONS_MAX};
use crate::session::SessionError;
use crate::session::cloud::subscription::compare::InventoryComparison;
use crate::session::cloud::subscription::{Stage, Subscription};
use crate::session::cloud::{CloudEvent, CloudSession, NodeView, Notice};
use crate::session::error::clip;

impl CloudSession {
    /// Subscription ids only grow: frames under way for an ended subscription can never be taken for those of another
    /// one.
    pub(super) fn handle_subscribe(&mut self, mut subscribe: Subscribe) -> Result<(), SessionError> {
        let subscription = subscribe.subscription;
        if subscription <= self.newest_subscription {
            return Err(SessionError::Protocol(format!(
                "subscription {} arrived, but subscription ids must increase and {} was used already",
                subscription.0, self.newest_subscription.0
            )));
        }
        self.newest_subscription = subscription;
        if !self.subscribes.begin(self.now) {
            let reason = format!(
                "this node opened {SUBSCRIBES_MAX} subscriptions within {} s: subscribe again later",
                SUBSCRIBE_WINDOW.as_secs()
            );
            self.notify(Notice::Closed { subscription, code: 429, reason });
            return Ok(());
        }
        if self.subscriptions.len() > SUBSCRIPTIONS_MAX {
            let reason = format!("this node already has {SUBSCRIPTIONS_MAX} open subscriptions");
            self.notify(Notice::Closed { subscription, code: 429, reason });
            return Ok(());
        }
        let announced = std::mem::replace(&mut subscribe.inventory, Inventory::Full(Vec::new()));
        let comparison = InventoryComparison::new(subscribe.epoch.clone(), self.comparable, announced)?;
        self.add_subscription(subscription, comparison);
        let claims = self.claims();
        if claims > INVENTORY_BYTES_MAX {
            // The other subscriptions are compared meanwhile, and need less memory then.
            let reason = format!(
                "the inventories of this node take {claims} bytes, more than the {INVENTORY_BYTES_MAX} allowed for one node: subscribe again later"
            );
            self.close_subscription(subscription, 429, &reason);
            return Ok(());
        }
        self.events.push_back(CloudEvent::Subscribe(subscribe));
        Ok(())
    }

    pub(super) fn handle_unsubscribe(&mut self, subscription: SubscriptionId) -> Result<(), SessionError> {
        if subscription == SubscriptionId::NODE {
            return Err(SessionError::Protocol("the pushed set cannot be unsubscribed".to_owned()));
        }
        if !self.drop_subscription(subscription) {
            return self.patience.ignore(self.now, "the end of a subscription that is not open");
        }
        self.events.push_back(CloudEvent::Unsubscribe { subscription });
        Ok(())
    }

    pub(super) fn handle_part(
        &mut self,
        part: InventoryPart,
        view: &impl NodeView,
    ) -> Result<(), SessionError> {
        let (now, id, room) =
            (self.now, part.subscription, INVENTORY_BYTES_MAX.saturating_sub(self.claims()));
        if part.last && self.awaits_inventory(id) && !self.has_room(Some(id), view) {
            self.end_overfull(id);
            return Ok(());
        }
        let awaited = match self
            .subscription_index(part.subscription)
            .and_then(|index| Some((index, self.subscriptions.get_mut(index)?)))
        {
            None => false,
            Some((index, subscription)) => {
                let awaited = subscription.add_part(now, part, room, &self.config.epoch, view)?;
                self.announce_caught_up(index);
                awaited
            }
        };
        self.ask_rest()?;
        if awaited { Ok(()) } else { self.patience.ignore(now, "an inventory part that was not requested") }
    }

    /// Accepts a subscription: its inventory is compared and its view followed from now on. False when it is not open
    /// afterwards, because the edge has ended it meanwhile or would follow too much; the owner need not follow it
    /// then.
    pub fn open_subscription(&mut self, subscription: SubscriptionId, view: &impl NodeView) -> bool {
        if subscription == SubscriptionId::NODE || self.subscription_index(subscription).is_none() {
            return false;
        }
        if !self.has_room(Some(subscription), view) {
            self.end_overfull(subscription);
            return false;
        }
        if let Err(error) = self.compare_subscription(subscription, view) {
            self.leave(error.goodbye());
            return false;
        }
        true
    }

    /// Number of keys in the compared subscriptions.
    pub(super) fn keys(&self) -> usize {
        let opened = self.subscriptions.iter().filter(|subscription| subscription.id != SubscriptionId::NODE);
        opened.map(|subscription| subscription.slots.len()).fold(0, usize::saturating_add)
    }

    /// Whether the node is within its bound of followed objects. For a subscription that is compared next, or once its
    /// inventory has arrived, all keys that the view wants there now are counted.
    pub(super) fn has_room(&mut self, next: Option<SubscriptionId>, view: &impl NodeView) -> bool {
        let is_expected = |subscription: &&Subscription| {
            let compared = !matches!(subscription.stage, Stage::Comparing(_));
            !compared && (next == Some(subscription.id) || subscription.comparison_deadline().is_some())
        };
        let expected = self
            .subscriptions
            .iter()
            .filter(|subscription| subscription.id != SubscriptionId::NODE)
            .filter(is_expected);
        let expected =
            expected.map(|subscription| view.count(subscription.id)).fold(0, usize::saturating_add);
        if self.keys().saturating_add(expected) <= FOLLOWED_MAX {
            return true;
        }
        let opened =
            self.subscriptions.iter_mut().filter(|subscription| subscription.id != SubscriptionId::NODE);
        let wanted = opened.map(Subscription::drop_unneeded).fold(0, usize::saturating_add);
        self.room.counted(wanted.saturating_add(expected), self.keys().saturating_add(expected))
    }

    fn awaits_inventory(&self, id: SubscriptionId) -> bool {
        let subscription = self.subscription_index(id).and_then(|index| self.subscriptions.get(index));
        subscription.is_some_and(|subscription| subscription.comparison_deadline().is_some())
    }

    /// Ends a subscription that makes the node follow too much. The edge and the owner are notified.
    pub(super) fn end_overfull(&mut self, subscription: SubscriptionId) {
        let ended = CloudEvent::too_many(subscription, FOLLOWED_MAX);
        if let CloudEvent::Ended { code, reason, .. } = &ended {
            self.close_subscription(subscription, *code, reason);
        }
        self.events.push_back(ended);
    }

    /// Refuses or ends a subscription, with the HTTP status code that a Kubernetes client would see. The edge drops
    /// deliveries under way. Does nothing when the subscription is not open.
    pub fn close_subscription(&mut self, subscription: SubscriptionId, code: u16, reason: &str) {
        if subscription != SubscriptionId::NODE && self.drop_subscription(subscription) {
            self.notify(Notice::Closed { subscription, code, reason: clip(reason.to_owned()) });
        }
    }

    fn drop_subscription(&mut self, id: SubscriptionId) -> bool {
        let Some(index) = self.subscription_index(id) else { return false };
        self.subscriptions.remove(index);
        self.notices.retain(
            |notice| !matches!(notice, Notice::InventoryRequest(subscription) | Notice::CaughtUp(subscription, _) if *subscription == id),
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
