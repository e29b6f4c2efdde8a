//! The selections that a session follows, with their numbers in the session and in the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use tombolo_proto::frame::{Inventory, Subscribe};
use tombolo_proto::ids::SubscriptionId;
use tombolo_proto::session::{EdgeSession, SubscribeError};
use tracing::{debug, warn};

use super::apply::Closed;
use crate::store::{ReadError, Store};
use crate::subscriptions::{SelectionRegistry, Standing, Wanted};

/// Status codes of refusals that a retry does not solve. Only these are logged as warnings.
const LASTING: [u16; 5] = [400, 401, 403, 404, 413];

/// The selections of one session.
pub(super) struct Follower {
    registry: Arc<SelectionRegistry>,
    /// Whether the session accepts subscriptions: it has begun, and the store has recorded that.
    open: bool,
    /// Subscription of the session to subscription of the store.
    followed: BTreeMap<SubscriptionId, SubscriptionId>,
}

impl Follower {
    pub(super) fn new(registry: Arc<SelectionRegistry>) -> Self {
        let followed = BTreeMap::from([(SubscriptionId::NODE, SubscriptionId::NODE)]);
        Self { registry, open: false, followed }
    }

    /// The session has begun.
    pub(super) fn begin(&mut self) {
        self.open = true;
        self.registry.session(true);
    }

    /// The session is over.
    pub(super) fn end(&mut self) {
        if self.open {
            self.registry.session(false);
        }
        self.open = false;
    }

    /// The store's number of a subscription of the session; `None` if it is no longer followed.
    pub(super) fn subscription(&self, session: SubscriptionId) -> Option<SubscriptionId> {
        self.followed.get(&session).copied()
    }

    /// Makes the session follow what the registry wants. Call it only when the store has everything that the session
    /// delivered, because the cloud takes the inventory as complete.
    pub(super) fn compare(&mut self, session: &mut EdgeSession, store: &Store) -> Result<(), ReadError> {
        if !self.open {
            return Ok(());
        }
        let wanted = self.registry.wanted();
        let is_wanted = |subscription: SubscriptionId| {
            subscription == SubscriptionId::NODE || wanted.contains(&subscription)
        };
        let unwanted = self.followed.extract_if(.., |_, subscription| !is_wanted(*subscription));
        for (number, subscription) in unwanted.collect::<Vec<_>>() {
            session.unsubscribe(number);
            self.registry.stands(subscription, Standing::Idle);
        }
        for subscription in wanted {
            if !self.follows(subscription) {
                self.follow(session, store, subscription)?;
            }
        }
        Ok(())
    }

    fn follows(&self, subscription: SubscriptionId) -> bool {
        self.followed.values().any(|followed| *followed == subscription)
    }

    fn follow(
        &mut self,
        session: &mut EdgeSession,
        store: &Store,
        subscription: SubscriptionId,
    ) -> Result<(), ReadError> {
        // From here on the copy is neither cleared nor forgotten, so it stays as the inventory says.
        let Some(Wanted { selection, token }) = self.registry.open(subscription) else { return Ok(()) };
        let held = store.held(subscription)?;
        let number = session.next_subscription();
        let subscribe = Subscribe {
            subscription: number,
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
                self.registry.stands(subscription, Standing::Refused { code: 400, reason });
                return Ok(());
            }
            Err(error) => {
                debug!(%error, "a selection cannot be followed yet");
                self.registry.put_off(subscription);
                return Ok(());
            }
        }
        self.followed.insert(number, subscription);
        Ok(())
    }

    /// Marks a subscription of the store as complete.
    pub(super) fn caught_up(&mut self, subscription: SubscriptionId) {
        if self.follows(subscription) {
            self.registry.stands(subscription, Standing::Live);
        }
    }

    /// Removes a subscription that the cloud ended or refused, so that further deliveries for it are ignored. Returns
    /// the store's number.
    pub(super) fn closed(&mut self, number: SubscriptionId) -> Option<SubscriptionId> {
        self.followed.remove(&number)
    }

    /// Marks a closed subscription as refused, after everything delivered before is stored.
    pub(super) fn refused(&mut self, Closed { subscription, code, reason }: Closed) {
        let news = self.registry.stands(subscription, Standing::Refused { code, reason: reason.clone() });
        if news && LASTING.contains(&code) {
            warn!(code, %reason, "the cloud refuses a selection");
        } else {
            debug!(code, %reason, "a subscription was closed");
        }
    }
}
