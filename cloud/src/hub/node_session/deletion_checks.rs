//! Questions to the API server before something is deleted at the edge, because a watch may lag behind.

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt as _, abortable};
use tokio::sync::oneshot;
use tombolo_proto::{ObjectKey, SubscriptionId};

use super::super::volumes::VolumeKind;
use super::{Done, NodeSession};
use crate::edgecontroller::{Input, Proven};

impl NodeSession {
    /// Asks the API server about keys that the view cannot confirm. Keys that arrive during a question wait for the
    /// next one.
    pub(super) fn ask_about_deletions(&mut self) {
        let asking = &self.asking;
        let unconfirmed =
            self.view.take_unconfirmed(|subscription| asking.iter().any(|(asked, _)| *asked == subscription));
        for (subscription, keys) in unconfirmed {
            let question = match subscription {
                SubscriptionId::NODE => Some(self.ask_for_pods(keys)),
                _ => self.ask_for_selection(subscription, keys),
            };
            let Some((work, handle)) = question.map(abortable) else { continue };
            self.asking.push((subscription, handle));
            self.work.push(Box::pin(async move { work.await.unwrap_or(Done::GivenUp) }));
        }
    }

    fn ask_for_pods(&self, keys: HashSet<ObjectKey>) -> BoxFuture<'static, Done> {
        let (hub, node) = (Arc::clone(&self.hub), self.node.clone());
        async move {
            let (answer, proof) = oneshot::channel();
            let about = keys.iter().cloned().collect();
            let asked = hub.inputs.send(Input::Prove(node, about, answer)).await.is_ok();
            let proven = if asked { proof.await.ok() } else { None };
            Done::PodsListed { keys, proven }
        }
        .boxed()
    }

    fn ask_for_selection(
        &self,
        subscription: SubscriptionId,
        keys: HashSet<ObjectKey>,
    ) -> Option<BoxFuture<'static, Done>> {
        let followed = self.view.followed(subscription)?;
        let (watch, since) = (Arc::clone(&followed.watch), followed.since());
        let (hub, node) = (Arc::clone(&self.hub), self.node.clone());
        let work = async move {
            let complete = hub.subscriptions.prove(&node, &watch, since).await;
            Done::SelectionListed { subscription, keys, complete }
        };
        Some(work.boxed())
    }

    pub(super) fn pods_listed(&mut self, keys: HashSet<ObjectKey>, proven: Option<Proven>) {
        self.stop_asking(SubscriptionId::NODE);
        // There is no answer when the cloud's history has ended; the session then ends as well.
        let Some(Proven { read, put_off }) = proven else { return };
        self.view.prove(read);
        for key in keys.into_iter().filter(|key| !put_off.contains(key)) {
            self.channel.offer(SubscriptionId::NODE, key, &self.view);
        }
    }

    /// A watch that has ended reports this itself. Its keys are looked at again when it is open again.
    pub(super) fn selection_listed(
        &mut self,
        subscription: SubscriptionId,
        keys: HashSet<ObjectKey>,
        complete: bool,
    ) {
        self.stop_asking(subscription);
        if complete {
            let subscription = if VolumeKind::of_subscription(subscription).is_some() {
                SubscriptionId::NODE
            } else {
                subscription
            };
            for key in keys {
                self.channel.offer(subscription, key, &self.view);
            }
        }
    }

    /// Aborts the question of a subscription.
    pub(super) fn stop_asking(&mut self, subscription: SubscriptionId) {
        self.asking.retain(|(asked, work)| {
            if *asked == subscription {
                work.abort();
            }
            *asked != subscription
        });
    }
}
