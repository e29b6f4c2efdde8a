//! What one session may see: the node's own set, and the subscriptions that were granted to it.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tombolo_proto::session::{Certainty, Lookup, NodeView};
use tombolo_proto::{CloudRevision, NodeId, ObjectKey, ScopeId};

use super::shared::SharedWatch;
use super::volumes::Volumes;
use crate::edgecontroller::{Downstream, Kind, local_endpoint};
use crate::record::Connection;

/// The view of one session.
pub(super) struct View {
    node: NodeId,
    down: Arc<Downstream>,
    /// Keys that were asked for before the node's picture was complete: the edge may hold something under them that
    /// the index has never heard of. Bounded by the inventory of the edge.
    deferred: Mutex<HashSet<ObjectKey>>,
    /// Keys of the node's own set that the edge holds and that are about to be taken from it: nobody was asked about the
    /// first, the API server has confirmed the second in this session.
    doubts: Mutex<HashSet<ObjectKey>>,
    proven: HashSet<ObjectKey>,
    subscriptions: Vec<(ScopeId, Arc<SharedWatch>)>,
    /// The edge is a stock one: its pods reach the API server through MetaServer.
    stock: bool,
    /// What a stock edge has asked for of volumes.
    pub(super) volumes: Volumes,
    /// What the session looks at is recorded.
    recording: Option<Arc<Connection>>,
}

impl View {
    pub(super) fn new(node: NodeId, down: Arc<Downstream>) -> Self {
        let (deferred, doubts, proven, subscriptions, volumes, recording) = Default::default();
        Self { node, down, deferred, doubts, proven, subscriptions, stock: false, volumes, recording }
    }

    /// Has what the session looks at recorded.
    pub(super) fn record(&mut self, recording: Arc<Connection>) {
        self.recording = Some(recording);
    }

    /// These keys have changed: what is there now is recorded, whether or not it is sent.
    pub(super) fn witness<'k>(&self, keys: impl IntoIterator<Item = &'k (ScopeId, ObjectKey)>) {
        if self.recording.is_some() {
            for (scope, key) in keys {
                self.lookup(*scope, key);
            }
        }
    }

    /// The view of a stock edge.
    pub(super) fn stock(node: NodeId, down: Arc<Downstream>) -> Self {
        Self { stock: true, ..Self::new(node, down) }
    }

    /// The keys that waited for the picture to be complete.
    pub(super) fn take_deferred(&self) -> HashSet<ObjectKey> {
        std::mem::take(&mut *self.deferred.lock())
    }

    /// What the API server has to be asked about before it is taken from the edge.
    pub(super) fn take_doubts(&self) -> Vec<ObjectKey> {
        std::mem::take(&mut *self.doubts.lock()).into_iter().collect()
    }

    /// The index knows what the API server has answered: what it takes for gone, is.
    pub(super) fn prove(&mut self, keys: &[ObjectKey]) {
        self.proven.extend(keys.iter().cloned());
    }

    pub(super) fn open(&mut self, scope: ScopeId, watch: Arc<SharedWatch>) {
        self.subscriptions.push((scope, watch));
    }

    pub(super) fn close(&mut self, scope: ScopeId) -> Option<Arc<SharedWatch>> {
        let index = self.subscriptions.iter().position(|(id, _)| *id == scope)?;
        Some(self.subscriptions.swap_remove(index).1)
    }

    pub(super) fn subscriptions(&self) -> &[(ScopeId, Arc<SharedWatch>)] {
        &self.subscriptions
    }

    fn watch(&self, scope: ScopeId) -> Option<&Arc<SharedWatch>> {
        self.subscriptions.iter().find(|(id, _)| *id == scope).map(|(_, watch)| watch)
    }
}

/// The API server's slice with the local endpoint.
fn local(lookup: Lookup) -> Lookup {
    match &lookup {
        Lookup::Present(object) => {
            local_endpoint::local(object).map_or(lookup, |object| Lookup::Present(Arc::new(object)))
        }
        Lookup::Absent | Lookup::Unwanted(_) | Lookup::Unreadable(_) | Lookup::Pending => lookup,
    }
}

impl NodeView for View {
    fn wanted(&self, scope: ScopeId) -> Vec<ObjectKey> {
        match scope {
            ScopeId::NODE => self.down.wanted(&self.node),
            _ => self.watch(scope).map(|watch| watch.keys()).unwrap_or_default(),
        }
    }

    fn count(&self, scope: ScopeId) -> usize {
        match scope {
            ScopeId::NODE => self.down.wanted(&self.node).len(),
            _ => self.watch(scope).map_or(0, |watch| watch.len()),
        }
    }

    fn lookup(&self, scope: ScopeId, key: &ObjectKey) -> Lookup {
        let found = self.find(scope, key);
        if let Some(recording) = &self.recording {
            recording.looked_up(scope, key, &found);
        }
        if scope != ScopeId::NODE && self.stock && local_endpoint::concerns(key) {
            local(found)
        } else {
            found
        }
    }

    fn is_optional(&self, key: &ObjectKey) -> bool {
        self.down.is_optional(&self.node, key)
    }

    fn certainty(&self, scope: ScopeId, key: &ObjectKey, held: CloudRevision) -> Certainty {
        // The watches of the kinds are independent, and what one of them has shown says nothing of the others.
        let asks = scope == ScopeId::NODE
            && matches!(Kind::of(key), Some(Kind::Pod | Kind::ConfigMap | Kind::Secret));
        match asks {
            true if self.proven.contains(key) => Certainty::Certain,
            true => {
                self.doubts.lock().insert(key.clone());
                Certainty::Asked
            }
            false if held > self.revision(scope) => Certainty::Late,
            false => Certainty::Certain,
        }
    }

    fn revision(&self, scope: ScopeId) -> CloudRevision {
        match scope {
            ScopeId::NODE => self.down.revision(),
            _ => self.watch(scope).map(|watch| watch.revision()).unwrap_or_default(),
        }
    }
}

impl View {
    fn find(&self, scope: ScopeId, key: &ObjectKey) -> Lookup {
        if scope != ScopeId::NODE {
            return self.watch(scope).map_or(Lookup::Pending, |watch| watch.lookup(key));
        }
        let pods = || self.down.pods_on(&self.node);
        let volume = if self.stock { self.volumes.lookup(key, pods) } else { None };
        let lookup = volume.unwrap_or_else(|| self.down.lookup(&self.node, key));
        if matches!(lookup, Lookup::Pending) {
            self.deferred.lock().insert(key.clone());
        }
        lookup
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::resources;

    #[test]
    fn nothing_that_the_edge_holds_is_taken_away_on_the_word_of_a_late_watch() {
        let node = NodeId::parse("edge-1").expect("valid");
        let mut view = View::new(node, Arc::default());
        let key = |resource, name| ObjectKey::new(resource, "d", name);
        let pod = key(resources::pods(), "p");
        let keys = [pod.clone(), key(resources::configmaps(), "c"), key(resources::secrets(), "s")];
        // No revision, however old, is a proof: another kind's watch may have shown a newer one.
        for key in &keys {
            for held in [CloudRevision(0), CloudRevision(7), CloudRevision(u64::MAX)] {
                assert_eq!(view.certainty(ScopeId::NODE, key, held), Certainty::Asked, "{key}");
            }
        }
        assert_eq!(view.take_doubts().len(), 3, "each is asked about once");
        assert_eq!(view.certainty(ScopeId::NODE, &pod, CloudRevision(7)), Certainty::Asked);
        view.prove(std::slice::from_ref(&pod));
        assert_eq!(view.certainty(ScopeId::NODE, &pod, CloudRevision(7)), Certainty::Certain);
        assert_eq!(view.certainty(ScopeId::NODE, &keys[1], CloudRevision(7)), Certainty::Asked);
    }
}
