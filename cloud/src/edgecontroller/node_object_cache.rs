//! The objects that every node should hold, as its session task reads them: the read side of the index.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dashmap::DashMap;
use tombolo_proto::object::{ContentHash, KeyHashes, ObjectVersion, SharedObject};
use tombolo_proto::session::Lookup;
use tombolo_proto::{CloudRevision, NodeId, ObjectKey, Uid};

use super::LocationCache;
use super::kind::Kind;
use super::observed_versions::{ObservedVersion, ObservedVersions};
use super::written::{Known, Order, Written};
use crate::kube::resources;

/// All objects that edges need, encoded once. Only the edgecontroller's task writes it; session tasks read it.
#[derive(Debug, Default)]
pub struct NodeObjectCache {
    pub(super) location: LocationCache,
    pub(super) nodes: DashMap<NodeId, NodeState>,
    pub(super) objects: DashMap<ObjectKey, Cached, KeyHashes>,
    revision: AtomicU64,
    observed_versions: ObservedVersions,
    written: Written,
    /// Mirror pods that were ignored, counted each time that a watch reports one.
    unheeded: AtomicU64,
    /// Bytes that the index keeps, by its own accounting.
    index_bytes: AtomicUsize,
}

/// State of an object that some node needs.
#[derive(Debug, Clone)]
pub(super) enum Cached {
    /// Being fetched.
    Pending,
    /// Does not exist in the API since this revision (0 when a read found it missing).
    Absent(CloudRevision),
    /// Cannot be read; the status code of the answer.
    Unreadable(u16),
    /// The newest version.
    Present(Arc<SharedObject>),
    /// Exists in this version, but its body is not kept: there is no room for it, or it could not be read.
    Withheld(ObjectVersion),
}

/// Status code of withheld objects: the node is told that they cannot be read.
pub(crate) const WITHHELD: u16 = 413;

impl Cached {
    pub(super) fn version(&self) -> Option<&ObjectVersion> {
        match self {
            Self::Present(object) => Some(&object.version),
            Self::Withheld(version) => Some(version),
            Self::Pending | Self::Absent(_) | Self::Unreadable(_) => None,
        }
    }
}

/// An edge node: a node with the edge label, or one that joined through us
/// (docs/reference/kubernetes.md#noderestriction).
#[derive(Debug, Clone, Default)]
pub(super) struct NodeState {
    pub(super) joined: bool,
    /// Its Node object exists.
    pub(super) registered: Option<Uid>,
    /// All its pods are known.
    pub(super) listed: bool,
    /// Hash of the part of its Node whose changes are delivered.
    pub(super) significant: Option<ContentHash>,
}

impl NodeState {
    pub(super) fn is_ready(&self) -> bool {
        self.registered.is_some() && self.listed
    }
}

/// Summary of one edge node, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSummary {
    /// Its name.
    pub node: NodeId,
    /// Whether its Node object exists.
    pub registered: bool,
    /// Number of pods, ConfigMaps and Secrets that it should hold.
    pub needed: usize,
}

/// The pods of a node whose bodies are in memory.
#[derive(Debug, Clone)]
pub(crate) struct PodsOn {
    pub(crate) pods: Vec<Arc<SharedObject>>,
    /// Whether these are all of the node's pods.
    pub(crate) complete: bool,
}

/// Counts of [`NodeObjectCache::tally`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Needed ConfigMaps and Secrets that cannot be read.
    pub unreadable: usize,
    /// Objects whose bodies are not kept, because there is no room for them or because they have too many parts.
    pub withheld: usize,
    /// Bytes of the bodies of pods.
    pub pod_bytes: usize,
    /// Pods whose references are not delivered to their nodes, because the pods of one node refer to too much.
    pub unserved: usize,
}

impl NodeObjectCache {
    /// All keys that the node should hold. Until the node is registered and its pods are known, that is only its own
    /// Node, and [`Self::lookup`] answers `Pending` for everything: nothing is delivered or removed on the basis of
    /// incomplete state.
    #[must_use]
    pub fn wanted(&self, node: &NodeId) -> Vec<ObjectKey> {
        let mut keys = vec![node_key(node)];
        if self.is_ready(node) {
            keys.extend(self.location.needed_by(node));
        }
        keys
    }

    /// The object that the node should hold under a key.
    #[must_use]
    pub fn lookup(&self, node: &NodeId, key: &ObjectKey) -> Lookup {
        if !self.is_ready(node) {
            return Lookup::Pending;
        }
        if !self.is_wanted(node, key) {
            let known = !self.is_doubtful(node, key);
            return if known { Lookup::Unwanted(None) } else { Lookup::Unreadable(WITHHELD) };
        }
        // Cloned first: accessing another map while holding a shard of this one could deadlock.
        let cached = self.objects.get(key).map(|cached| cached.clone());
        match cached {
            Some(Cached::Present(object)) => Lookup::Present(self.as_served(node, object)),
            Some(Cached::Absent(_)) => Lookup::Absent,
            Some(Cached::Unreadable(code)) => Lookup::Unreadable(code),
            Some(Cached::Withheld(_)) => Lookup::Unreadable(WITHHELD),
            Some(Cached::Pending) | None => Lookup::Pending,
        }
    }

    /// Removes the dependencies of a pod whose references are not delivered, so that it does not wait for them.
    fn as_served(&self, node: &NodeId, object: Arc<SharedObject>) -> Arc<SharedObject> {
        if object.dependencies.is_empty() || self.location.is_served(node, &object.version.uid) {
            return object;
        }
        Arc::new(object.without_dependencies())
    }

    /// Whether a pod of the node may refer to this object although the index had no room for the reference.
    #[must_use]
    pub(crate) fn is_doubtful(&self, node: &NodeId, key: &ObjectKey) -> bool {
        matches!(Kind::of(key), Some(Kind::ConfigMap | Kind::Secret))
            && self.location.lacks_in(node, key.namespace())
            && !self.location.is_needed_by(node, key)
    }

    /// Whether the node is registered and its pods are known.
    #[must_use]
    pub fn is_ready(&self, node: &NodeId) -> bool {
        self.nodes.get(node).is_some_and(|state| state.is_ready())
    }

    /// UID of the node's Node object, once a watch has reported it.
    #[must_use]
    pub fn registered(&self, node: &NodeId) -> Option<Uid> {
        self.nodes.get(node).and_then(|state| state.registered.clone())
    }

    /// A ConfigMap or Secret that a pod on this node refers to, or the node's own objects. `None` when the node has no
    /// claim to it or the cache does not know it.
    #[must_use]
    pub fn held_for(&self, node: &NodeId, key: &ObjectKey) -> Option<Arc<SharedObject>> {
        match self.lookup(node, key) {
            Lookup::Present(object) => Some(object),
            Lookup::Absent | Lookup::Unwanted(_) | Lookup::Unreadable(_) | Lookup::Pending => None,
        }
    }

    /// The object under a key, regardless of which node wants it.
    pub(super) fn present(&self, key: &ObjectKey) -> Option<Arc<SharedObject>> {
        match self.objects.get(key).as_deref() {
            Some(Cached::Present(object)) => Some(Arc::clone(object)),
            Some(Cached::Absent(_) | Cached::Unreadable(_) | Cached::Withheld(_) | Cached::Pending)
            | None => None,
        }
    }

    /// The pods of a node. `None` until all of them are known.
    #[must_use]
    pub(crate) fn pods_on(&self, node: &NodeId) -> Option<PodsOn> {
        let resource = resources::pods();
        let keys = self.is_ready(node).then(|| self.location.needed_by(node))?;
        let mut on = PodsOn { pods: Vec::new(), complete: true };
        for key in keys.iter().filter(|key| *key.resource() == resource) {
            match self.objects.get(key).as_deref()? {
                Cached::Present(pod) => on.pods.push(Arc::clone(pod)),
                Cached::Withheld(_) => on.complete = false,
                Cached::Pending | Cached::Absent(_) | Cached::Unreadable(_) => return None,
            }
        }
        Some(on)
    }

    /// Whether the pod with this UID is bound to this node, as far as the watches have reported.
    #[must_use]
    pub fn is_bound(&self, node: &NodeId, pod: &Uid) -> bool {
        self.location.is_bound(node, pod)
    }

    /// What the watches and the node's own writes have shown of an object.
    pub(super) fn known(&self, key: &ObjectKey) -> Known {
        let watched =
            self.objects.get(key).and_then(|cached| cached.version().map(|version| version.revision));
        self.written.newest(key, watched)
    }

    /// The newest revision that the watches and writes of nodes have shown.
    pub(super) fn seen(&self) -> CloudRevision {
        self.revision().max(self.written.revision())
    }

    /// Records what the API server returned outside the watches, and the report, if any, that it answered.
    pub(super) fn written(&self, key: &ObjectKey, known: Known, report: Option<Order>) {
        self.written.note(key, known, report);
    }

    /// Assigns a newly received report its position.
    pub(super) fn received(&self) -> Order {
        self.written.received()
    }

    /// The result written by an earlier report than this one, if its status is still the newest known.
    pub(super) fn written_before(&self, key: &ObjectKey, report: Order) -> Option<Known> {
        self.written.by_one_before(key, report)
    }

    /// The newest revision that any watch has shown.
    #[must_use]
    pub fn revision(&self) -> CloudRevision {
        CloudRevision(self.revision.load(Ordering::Relaxed))
    }

    /// The most recently watched versions, as evidence of which history the watches follow.
    #[must_use]
    pub fn observed_versions(&self) -> &ObservedVersions {
        &self.observed_versions
    }

    pub(crate) fn saw(&self, observed: ObservedVersion) {
        self.revision.fetch_max(observed.revision.0, Ordering::Relaxed);
        self.observed_versions.note(observed);
    }

    /// Number of edge nodes, objects and bound pods in memory.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.nodes.len(), self.objects.len(), self.location.pods())
    }

    /// Counts objects that cannot be given to nodes, and the bytes of pods. Visits every object.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let pods = resources::pods();
        let mut tally = Tally { unserved: self.location.unserved(), ..Tally::default() };
        for entry in &self.objects {
            match entry.value() {
                Cached::Unreadable(_) => tally.unreadable += 1,
                Cached::Withheld(_) => tally.withheld += 1,
                Cached::Present(pod) if *entry.key().resource() == pods => tally.pod_bytes += pod.body.len(),
                Cached::Present(_) | Cached::Absent(_) | Cached::Pending => {}
            }
        }
        tally
    }

    /// Bytes that the index keeps, by its own accounting.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.index_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn set_index_bytes(&self, bytes: usize) {
        self.index_bytes.store(bytes, Ordering::Relaxed);
    }

    /// How often a watch reported a mirror pod that was ignored.
    #[must_use]
    pub fn unheeded(&self) -> u64 {
        self.unheeded.load(Ordering::Relaxed)
    }

    pub(super) fn count_unheeded(&self) {
        self.unheeded.fetch_add(1, Ordering::Relaxed);
    }

    /// All edge nodes.
    #[must_use]
    pub fn summaries(&self) -> Vec<NodeSummary> {
        // Names first: accessing another map while holding a shard of this one could deadlock.
        let nodes: Vec<(NodeId, bool)> =
            self.nodes.iter().map(|entry| (entry.key().clone(), entry.registered.is_some())).collect();
        let summary = |(node, registered): (NodeId, bool)| {
            let needed = self.location.needed_by(&node).len();
            NodeSummary { node, registered, needed }
        };
        nodes.into_iter().map(summary).collect()
    }

    pub(super) fn clear(&self) {
        self.location.clear();
        self.objects.clear();
        self.written.clear();
        self.nodes.retain(|_, state| {
            *state = NodeState { joined: state.joined, ..NodeState::default() };
            state.joined
        });
        self.revision.store(0, Ordering::Relaxed);
        self.observed_versions.clear();
        self.set_index_bytes(0);
    }

    fn is_wanted(&self, node: &NodeId, key: &ObjectKey) -> bool {
        let resource = key.resource();
        match &*resource.name {
            "nodes" if resource.group.is_empty() => key.name() == node.as_str(),
            "pods" if resource.group.is_empty() => {
                let uid = self.objects.get(key).and_then(|pod| pod.version().map(|pod| pod.uid.clone()));
                uid.is_some_and(|uid| self.location.is_bound(node, &uid))
            }
            _ => self.location.is_needed_by(node, key),
        }
    }
}

/// The key of a node's own Node object.
#[must_use]
pub fn node_key(node: &NodeId) -> ObjectKey {
    ObjectKey::new(resources::nodes(), "", node.as_str())
}
