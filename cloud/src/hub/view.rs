//! The objects that one session may see: the node's own set, and its granted subscriptions.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tombolo_proto::session::{Certainty, Lookup, Loss, NodeView};
use tombolo_proto::{CloudRevision, NodeId, ObjectKey, SubscriptionId};

use super::followed::Followed;
use super::shared::SharedWatch;
use super::volumes::{VolumeKind, Volumes};
use crate::edgecontroller::{Kind, NodeObjectCache, local_endpoint};
use crate::record::Connection;

/// The view of one session.
pub(super) struct View {
    node: NodeId,
    down: Arc<NodeObjectCache>,
    /// Keys that were looked up before the node's picture was complete, or while the index had no room for what a pod
    /// refers to. The edge may hold an object under such a key that the index does not know. Bounded by the inventory
    /// of the edge.
    deferred: Mutex<HashSet<ObjectKey>>,
    /// Keys that are about to be deleted at the edge, by the question to ask first: for the node's own set a list of
    /// its pods, otherwise a list of the selection of the watch with this subscription. Bounded by what the edge holds.
    unconfirmed: Mutex<BTreeMap<SubscriptionId, HashSet<ObjectKey>>>,
    /// The API server has listed the node's pods in this session. From then on the index knows what the node needs, at
    /// least as well as any earlier session could know it.
    pods_proven: bool,
    /// Objects of the node's own set that the API server has confirmed to be absent.
    proven: BTreeSet<ObjectKey>,
    subscriptions: Vec<(SubscriptionId, Followed)>,
    /// Whether this is a KubeEdge edge, whose pods reach the API server through MetaServer.
    kubeedge: bool,
    /// The volumes and claims that a KubeEdge edge has asked for.
    pub(super) volumes: Volumes,
    /// Records what the session looks up.
    recording: Option<Arc<Connection>>,
}

impl View {
    pub(super) fn new(node: NodeId, down: Arc<NodeObjectCache>) -> Self {
        let (deferred, unconfirmed, proven, subscriptions, volumes, recording) = Default::default();
        let (pods_proven, kubeedge) = (false, false);
        Self {
            node,
            down,
            deferred,
            unconfirmed,
            pods_proven,
            proven,
            subscriptions,
            kubeedge,
            volumes,
            recording,
        }
    }

    /// Records every lookup of the session from now on.
    pub(super) fn record(&mut self, recording: Arc<Connection>) {
        self.recording = Some(recording);
    }

    /// Records the current state of these changed keys, whether or not it is sent.
    pub(super) fn record_changes<'k>(&self, keys: impl IntoIterator<Item = &'k (SubscriptionId, ObjectKey)>) {
        if let Some(recording) = &self.recording {
            for (subscription, key) in keys {
                recording.looked_up(*subscription, key, &self.find(*subscription, key));
            }
        }
    }

    /// The view of a KubeEdge edge.
    pub(super) fn kubeedge(node: NodeId, down: Arc<NodeObjectCache>) -> Self {
        Self { kubeedge: true, ..Self::new(node, down) }
    }

    /// Takes the keys that waited for the picture to be complete.
    pub(super) fn take_deferred(&self) -> HashSet<ObjectKey> {
        std::mem::take(&mut *self.deferred.lock())
    }

    /// Takes the keys that the API server must be asked about before they are deleted at the edge, except for
    /// subscriptions with a running question.
    pub(super) fn take_unconfirmed(
        &self,
        asked: impl Fn(SubscriptionId) -> bool,
    ) -> Vec<(SubscriptionId, HashSet<ObjectKey>)> {
        self.unconfirmed.lock().extract_if(.., |subscription, _| !asked(*subscription)).collect()
    }

    /// The index now has the node's pods as the API server has listed them, and the API server has confirmed these
    /// objects to be absent.
    pub(super) fn prove(&mut self, absent: Vec<ObjectKey>) {
        self.pods_proven = true;
        self.proven.extend(absent);
        // The list may have brought pods that the watch has not shown yet.
        self.volumes.pods_changed();
    }

    pub(super) fn open(&mut self, subscription: SubscriptionId, watch: Arc<SharedWatch>) {
        self.subscriptions.push((subscription, Followed::new(watch)));
    }

    pub(super) fn close(&mut self, subscription: SubscriptionId) -> Option<Arc<SharedWatch>> {
        self.unconfirmed.lock().remove(&subscription);
        let index = self.subscriptions.iter().position(|(id, _)| *id == subscription)?;
        Some(self.subscriptions.swap_remove(index).1.watch)
    }

    pub(super) fn subscriptions(&self) -> &[(SubscriptionId, Followed)] {
        &self.subscriptions
    }

    /// The watch with this subscription, among the subscriptions and the volumes.
    pub(super) fn followed(&self, subscription: SubscriptionId) -> Option<&Followed> {
        match VolumeKind::of_subscription(subscription) {
            Some(kind) => self.volumes.followed(kind),
            None => {
                self.subscriptions.iter().find(|(id, _)| *id == subscription).map(|(_, followed)| followed)
            }
        }
    }

    fn watch(&self, subscription: SubscriptionId) -> Option<&Arc<SharedWatch>> {
        self.followed(subscription).map(|followed| &followed.watch)
    }

    /// The subscription of the question to ask before this object is deleted at the edge; none when no question is
    /// needed. The watches of the kinds are independent: the state of one proves nothing about the others.
    fn confirmation_needed(
        &self,
        subscription: SubscriptionId,
        key: &ObjectKey,
        loss: Loss,
    ) -> Option<SubscriptionId> {
        if subscription != SubscriptionId::NODE {
            // A deletion that the watch has shown needs no question, nor does an object that the watch does not select.
            let was_shown = matches!(loss, Loss::Need { claimed: false });
            let followed = self.followed(subscription).filter(|_| !was_shown)?;
            let concerns = followed.watch.resource() == key.resource();
            return (concerns && !followed.is_proven()).then_some(subscription);
        }
        let pods = (!self.pods_proven).then_some(SubscriptionId::NODE);
        match (Kind::of(key), loss) {
            (_, Loss::Object) => (!self.proven.contains(key)).then_some(SubscriptionId::NODE),
            (Some(Kind::Pod | Kind::Node), Loss::Need { claimed: false }) => None,
            // Pods need these objects. Only the watch of pods shows that, whatever the watches of the objects
            // themselves have shown.
            (Some(_), Loss::Need { .. }) => pods,
            (None, _) if self.kubeedge => {
                let kind = VolumeKind::of(key)?;
                pods.or_else(|| self.volumes.confirmation_needed(kind, key))
            }
            (None, _) => None,
        }
    }
}

/// The API server's EndpointSlice with the local endpoint added.
fn local(lookup: Lookup) -> Lookup {
    match &lookup {
        Lookup::Present(object) => {
            local_endpoint::local(object).map_or(lookup, |object| Lookup::Present(Arc::new(object)))
        }
        Lookup::Absent | Lookup::Unwanted(_) | Lookup::Unreadable(_) | Lookup::Pending => lookup,
    }
}

impl NodeView for View {
    fn wanted(&self, subscription: SubscriptionId) -> Vec<ObjectKey> {
        match subscription {
            SubscriptionId::NODE => self.down.wanted(&self.node),
            _ => self.watch(subscription).map(|watch| watch.keys()).unwrap_or_default(),
        }
    }

    fn count(&self, subscription: SubscriptionId) -> usize {
        match subscription {
            SubscriptionId::NODE => self.down.wanted(&self.node).len(),
            _ => self.watch(subscription).map_or(0, |watch| watch.len()),
        }
    }

    /// Notes a key whose state is not known yet, so that it is offered again once it is.
    fn lookup(&self, subscription: SubscriptionId, key: &ObjectKey) -> Lookup {
        let found = self.find(subscription, key);
        if subscription == SubscriptionId::NODE && self.is_late(key, &found) {
            self.deferred.lock().insert(key.clone());
        }
        if let Some(recording) = &self.recording {
            recording.looked_up(subscription, key, &found);
        }
        if subscription != SubscriptionId::NODE && self.kubeedge && local_endpoint::concerns(key) {
            local(found)
        } else {
            found
        }
    }

    fn is_optional(&self, key: &ObjectKey) -> bool {
        self.down.is_optional(&self.node, key)
    }

    fn certainty(&self, subscription: SubscriptionId, key: &ObjectKey, loss: Loss) -> Certainty {
        match self.confirmation_needed(subscription, key, loss) {
            None => Certainty::Certain,
            Some(asked) => {
                self.unconfirmed.lock().entry(asked).or_default().insert(key.clone());
                Certainty::Asked
            }
        }
    }

    fn revision(&self, subscription: SubscriptionId) -> CloudRevision {
        match subscription {
            SubscriptionId::NODE => self.down.revision(),
            _ => self.watch(subscription).map(|watch| watch.revision()).unwrap_or_default(),
        }
    }
}

impl View {
    fn find(&self, subscription: SubscriptionId, key: &ObjectKey) -> Lookup {
        if subscription != SubscriptionId::NODE {
            return self.watch(subscription).map_or(Lookup::Pending, |watch| watch.lookup(key));
        }
        let pods = || self.down.pods_on(&self.node);
        let volume = if self.kubeedge { self.volumes.lookup(key, pods) } else { None };
        volume.unwrap_or_else(|| self.down.lookup(&self.node, key))
    }

    fn is_late(&self, key: &ObjectKey, found: &Lookup) -> bool {
        match found {
            Lookup::Pending => true,
            Lookup::Unreadable(_) => self.down.is_doubtful(&self.node, key),
            Lookup::Present(_) | Lookup::Absent | Lookup::Unwanted(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::Interned;
    use super::*;
    use crate::kube::resources;

    const CLAIMED: Loss = Loss::Need { claimed: true };
    const TOLD: Loss = Loss::Need { claimed: false };

    fn view() -> (View, [ObjectKey; 3]) {
        let node = NodeId::parse("edge-1").expect("valid");
        let key = |resource, name| ObjectKey::new(resource, "d", name);
        let keys =
            [key(resources::pods(), "p"), key(resources::configmaps(), "c"), key(resources::secrets(), "s")];
        (View::new(node, Arc::default()), keys)
    }

    fn asked(view: &View) -> usize {
        view.take_unconfirmed(|_| false).iter().map(|(_, keys)| keys.len()).sum()
    }

    #[test]
    fn late_watch_removes_nothing_that_the_edge_holds() {
        let (mut view, keys) = view();
        for key in &keys {
            for loss in [CLAIMED, CLAIMED, Loss::Object] {
                assert_eq!(view.certainty(SubscriptionId::NODE, key, loss), Certainty::Asked, "{key}");
            }
        }
        assert!(view.take_unconfirmed(|_| true).is_empty(), "one question at a time");
        assert_eq!(asked(&view), 3, "each is confirmed once");
        view.prove(vec![keys[1].clone()]);
        for key in &keys {
            assert_eq!(view.certainty(SubscriptionId::NODE, key, CLAIMED), Certainty::Certain, "{key}");
        }
        // The API server has confirmed the absence of only one of them.
        assert_eq!(view.certainty(SubscriptionId::NODE, &keys[1], Loss::Object), Certainty::Certain);
        assert_eq!(view.certainty(SubscriptionId::NODE, &keys[2], Loss::Object), Certainty::Asked);
    }

    /// The watch of pods shows the end of a pod. For a ConfigMap it shows that an older pod no longer needs it, and
    /// perhaps does not show yet that a newer pod does.
    #[test]
    fn end_of_a_need_is_confirmed_whatever_the_object_watch_showed() {
        let (mut view, [pod, config, secret]) = view();
        assert_eq!(view.certainty(SubscriptionId::NODE, &pod, TOLD), Certainty::Certain);
        for key in [&config, &secret] {
            assert_eq!(view.certainty(SubscriptionId::NODE, key, TOLD), Certainty::Asked, "{key}");
        }
        view.prove(Vec::new());
        assert_eq!(view.certainty(SubscriptionId::NODE, &config, TOLD), Certainty::Certain);
    }

    #[test]
    fn only_objects_a_watch_may_have_missed_need_confirmation() {
        let (mut view, [pod, config, _]) = view();
        let subscription = SubscriptionId(3);
        let watch =
            SharedWatch::new(resources::configmaps(), "ConfigMap".to_owned(), Interned::new(1024 * 1024));
        view.open(subscription, Arc::new(watch));
        assert_eq!(
            view.certainty(subscription, &config, TOLD),
            Certainty::Certain,
            "the watch has reported its deletion"
        );
        assert_eq!(
            view.certainty(subscription, &pod, CLAIMED),
            Certainty::Certain,
            "the watch is of no pods"
        );
        assert_eq!(view.certainty(subscription, &config, CLAIMED), Certainty::Asked);
        assert_eq!(asked(&view), 1);
        assert_eq!(view.certainty(subscription, &config, CLAIMED), Certainty::Asked);
        view.close(subscription);
        assert_eq!(asked(&view), 0, "objects that are no longer followed are not confirmed");
    }
}
