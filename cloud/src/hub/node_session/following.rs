//! What one node follows in addition to its own set: subscriptions and volumes, from the rights check to the end.

use std::sync::Arc;
use std::time::Duration;

use futures::future::abortable;
use tokio::time::Instant;
use tombolo_proto::SubscriptionId;
use tombolo_proto::frame::Subscribe;

use super::super::access::{Granted, next_review};
use super::super::closed::Closed;
use super::super::metaserver::size_of_texts;
use super::super::shared::SharedWatch;
use super::super::volumes::{VolumeKind, is_volume};
use super::{Done, NodeSession};
use crate::metrics::Label;

impl NodeSession {
    /// Aborts the opening of a subscription.
    pub(super) fn give_up(&mut self, subscription: SubscriptionId) {
        self.opening.retain(|(opening, work, _)| {
            if *opening == subscription {
                work.abort();
            }
            *opening != subscription
        });
        self.reviews.retain(|(_, subscribe)| subscribe.subscription != subscription);
        self.weigh_texts();
        self.stop_asking(subscription);
    }

    /// Accounts for the texts of subscriptions. They exist twice for as long as a subscription lasts: here, and in the
    /// watch that serves it.
    fn weigh_texts(&mut self) {
        let opening = self.opening.iter().map(|(_, _, texts)| *texts);
        let open = self.reviews.iter().map(|(_, subscribe)| size_of_texts(subscribe));
        self.texts = opening.chain(open).map(|texts| texts.saturating_mul(2)).fold(0, usize::saturating_add);
    }

    pub(super) fn start_subscription(&mut self, subscribe: Subscribe, after: Duration) {
        let (hub, node) = (Arc::clone(&self.hub), self.node.clone());
        let subscribe = Box::new(subscribe);
        let (subscription, texts) = (subscribe.subscription, size_of_texts(&subscribe));
        let (work, handle) = abortable(async move {
            if !after.is_zero() {
                tokio::time::sleep(after).await;
            }
            let outcome = hub.subscriptions.open(&node, &subscribe).await;
            Done::Subscribed { subscribe, outcome }
        });
        self.opening.push((subscription, handle, texts));
        self.weigh_texts();
        self.work.push(Box::pin(async move { work.await.unwrap_or(Done::GivenUp) }));
    }

    /// Follows the volumes of a kind with cloudcore's own rights. The node receives only the objects that it was given
    /// before.
    pub(super) fn follow_volumes(&mut self, kind: VolumeKind) {
        let hub = Arc::clone(&self.hub);
        self.work.push(Box::pin(async move {
            Done::Volumes { kind, outcome: hub.subscriptions.follow(Granted::volumes(kind)).await }
        }));
    }

    pub(super) fn volumes_followed(&mut self, kind: VolumeKind, outcome: Result<Arc<SharedWatch>, Closed>) {
        let followed = outcome.and_then(|watch| self.view.volumes.open(kind, watch, &self.handle));
        match followed {
            Ok(()) => {
                for key in self.view.take_deferred() {
                    self.channel.offer(SubscriptionId::NODE, key, &self.view);
                }
                self.channel.offer_held(is_volume);
            }
            Err(closed) => self.volumes_lost(kind, &closed),
        }
    }

    /// Volumes of a kind could not be followed, or are no longer followed. Another attempt follows after a wait, if a
    /// pod still needs any.
    pub(super) fn volumes_lost(&mut self, kind: VolumeKind, closed: &Closed) {
        let (wait, Closed { code, reason }) = (self.view.volumes.failed(kind), closed);
        if let Some(left_out) = self.hub.registry.may_log(&self.node) {
            tracing::warn!(node = %self.node, kind = %kind.resource(), code, reason, ?wait, left_out,
                "cannot follow volumes; trying again");
        }
        self.work.push(Box::pin(async move {
            tokio::time::sleep(wait).await;
            Done::VolumesDue(kind)
        }));
    }

    pub(super) fn volumes_due(&mut self, kind: VolumeKind) {
        self.view.volumes.retry(kind);
        self.channel.offer_held(is_volume);
    }

    /// Schedules the next rights check. Rights may be revoked, so they are checked again for as long as the
    /// subscription lasts.
    pub(super) fn start_review(&mut self, subscribe: Box<Subscribe>) {
        let due = Instant::now() + next_review();
        let index = self.reviews.partition_point(|(other, _)| *other <= due);
        self.reviews.insert(index, (due, subscribe));
        self.weigh_texts();
    }

    pub(super) fn start_reviews(&mut self) {
        let now = Instant::now();
        while let Some((_, subscribe)) = self.reviews.pop_front_if(|(due, _)| *due <= now) {
            let (hub, node) = (Arc::clone(&self.hub), self.node.clone());
            self.work.push(Box::pin(async move {
                let outcome = hub.subscriptions.review(&node, &subscribe).await;
                Done::Reviewed { subscribe, outcome }
            }));
        }
    }

    pub(super) fn subscribed(
        &mut self,
        subscribe: Box<Subscribe>,
        outcome: Result<Arc<SharedWatch>, Closed>,
    ) {
        let subscription = subscribe.subscription;
        let Some(index) = self.opening.iter().position(|(opening, ..)| *opening == subscription) else {
            return;
        };
        self.opening.swap_remove(index);
        self.weigh_texts();
        // The watch may have ended since it was opened.
        let outcome = outcome.and_then(|watch| watch.follow(&self.handle, subscription).map(|()| watch));
        match outcome {
            Ok(watch) => {
                self.view.open(subscription, watch);
                if self.channel.open_subscription(subscription, &self.view) {
                    self.watch_opened(subscription, Ok(()));
                    self.start_review(subscribe);
                } else {
                    // The session reports the reason.
                    self.unfollow(subscription);
                }
            }
            Err(closed) => {
                self.watch_opened(subscription, Err(&closed));
                self.refuse_subscription(subscription, closed.code, &closed.reason);
            }
        }
    }

    /// Reports the outcome of a watch to a KubeEdge edge's MetaServer.
    fn watch_opened(&mut self, subscription: SubscriptionId, outcome: Result<(), &Closed>) {
        if let Some(metaserver) = self.channel.metaserver() {
            metaserver.opened(subscription, outcome, Instant::now());
        }
    }

    /// The session has ended a subscription, or refused to begin it because the node would follow too much.
    pub(super) fn subscription_ended(&mut self, subscription: SubscriptionId, closed: &Closed) {
        self.give_up(subscription);
        self.unfollow(subscription);
        self.watch_opened(subscription, Err(closed));
        self.refuse_subscription(subscription, closed.code, &closed.reason);
    }

    pub(super) fn reviewed(&mut self, subscribe: Box<Subscribe>, outcome: Result<(), Closed>) {
        let subscription = subscribe.subscription;
        let open = self.view.subscriptions().iter().any(|(id, _)| *id == subscription);
        match outcome {
            _ if !open => {}
            Ok(()) => self.start_review(subscribe),
            Err(closed) => {
                self.unfollow(subscription);
                self.forget_watch(subscription);
                self.refuse_subscription(subscription, closed.code, &closed.reason);
            }
        }
    }

    /// Tells the node that it does not follow this, and why.
    pub(super) fn refuse_subscription(&mut self, subscription: SubscriptionId, code: u16, reason: &str) {
        let kind = refusal_label(code);
        self.hub.metrics.subscriptions_refused.get_or_create(&Label { kind }).inc();
        self.channel.close_subscription(subscription, code, reason);
    }

    /// Ends the notifications of this subscription to the session.
    pub(super) fn unfollow(&mut self, subscription: SubscriptionId) {
        self.stop_asking(subscription);
        if let Some(watch) = self.view.close(subscription) {
            watch.unfollow(&self.handle, subscription);
        }
    }

    pub(super) fn forget_watch(&mut self, subscription: SubscriptionId) {
        if let Some(metaserver) = self.channel.metaserver() {
            metaserver.ended(subscription);
        }
    }
}

/// Metric label of the reason why a node does not follow something.
fn refusal_label(code: u16) -> &'static str {
    match code {
        400 | 422 => "malformed",
        401 | 403 => "forbidden",
        404 | 405 => "unknown",
        410 => "restored",
        413 => "objects",
        429 => "share",
        _ => "unavailable",
    }
}
