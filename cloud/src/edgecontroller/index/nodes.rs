//! Nodes: which of them are edge nodes, and the state that is created and removed with them.

use std::sync::Arc;

use tombolo_proto::NodeId;

use super::room::{Holder, Item, ItemPriority};
use super::{Cached, Effect, Index, Kind, ObjectError, RawObject, Trimmed};
use crate::edgecontroller::node_object_cache::{NodeState, node_key};

/// Label of an edge node (docs/reference/kubeedge.md#registration-order).
pub(crate) const EDGE_LABEL: &str = "node-role.kubernetes.io/edge";

/// Maximum size of a node's own Node in memory, in bytes: all annotations that the API allows (256 KiB), and 1,000
/// images. A node is told that a larger one cannot be read.
pub(crate) const NODE_OBJECT_BYTES_MAX: usize = 512 * 1024;

impl Index {
    /// Records that a node has connected with a certificate of ours.
    pub fn joined(&mut self, node: &NodeId) {
        let mut state = self.down.nodes.entry(node.clone()).or_default();
        state.joined = true;
        let known = state.registered.is_some();
        drop(state);
        if !known {
            self.needed_anew(&node_key(node));
            self.down.objects.entry(node_key(node)).or_insert(Cached::Pending);
            self.effects.push(Effect::Fetch(node_key(node), None));
        }
    }

    /// Records that a node's session has ended and no other took over.
    pub fn left(&mut self, node: &NodeId) {
        if self.down.nodes.remove_if(node, |_, state| state.registered.is_none()).is_some() {
            self.forget(&node_key(node));
        }
    }

    pub(super) fn node_applied(&mut self, raw: RawObject) -> Result<(), ObjectError> {
        let labelled =
            raw.value().pointer("/metadata/labels").is_some_and(|labels| labels.get(EDGE_LABEL).is_some());
        let key = raw.key(&Kind::Node.resource());
        let Ok(node) = NodeId::parse(key.name()) else { return Ok(()) };
        let (uid, is_unread) = (raw.uid()?, raw.is_unread());
        let before = self.down.nodes.get(&node).map(|state| state.clone()).unwrap_or_default();
        // If it was not read, its labels are not known.
        let is_edge = labelled || (is_unread && before.registered.is_some());
        if !is_edge && !before.joined {
            if before.registered.is_some() {
                self.forget_node(&node);
            }
            return Ok(());
        }
        if before.registered.as_ref().is_some_and(|known| *known != uid) {
            // Deleted and created again while no watch ran: the edge must still be notified of the deletion.
            self.remove_node(node.as_str());
            return self.node_applied(raw);
        }
        let Trimmed { mut object, significant } = Kind::Node.trimmed(raw)?;
        let current = self.down.objects.get(&key).map(|cached| cached.clone());
        let newest = current.as_ref().and_then(Cached::version);
        if newest.is_some_and(|newest| newest.revision > object.version.revision) {
            return Ok(());
        }
        let same = match current {
            Some(Cached::Present(same)) if before.significant == Some(significant) => Some(same),
            _ => None,
        };
        let changed = same.is_none();
        if let Some(same) = same.filter(|_| !self.may_have_missed(Kind::Node, &key)) {
            object.same_since = same.same_since;
        }
        let len = object.body.len();
        let mut is_kept = (1..=NODE_OBJECT_BYTES_MAX).contains(&len);
        if is_kept {
            is_kept = self.has_room(&key, &Holder::Node(node.clone()), ItemPriority::Body, len);
        } else {
            self.give_up(&Item::Body(key.clone()));
        }
        let cached = match is_kept {
            true => Cached::Present(Arc::new(object)),
            false => Cached::Withheld(object.version),
        };
        self.down.objects.insert(key.clone(), cached);
        let state = NodeState { registered: Some(uid), significant: Some(significant), ..before.clone() };
        self.down.nodes.insert(node.clone(), state);
        if before.registered.is_none() && self.pods_watched {
            // The pod watch has ignored this node's pods until now.
            self.needed_anew(&key);
            self.listing.insert(node.clone());
            self.effects.push(Effect::ListPods(node));
        } else if changed {
            self.offer(&node, &key);
        }
        Ok(())
    }

    pub(super) fn node_deleted(&mut self, raw: &RawObject) {
        let key = raw.key(&Kind::Node.resource());
        let Ok(node) = NodeId::parse(key.name()) else { return };
        let known = self.down.nodes.get(&node).and_then(|state| state.registered.clone());
        // The deletion of an incarnation that was already replaced does not concern the present one.
        if known.is_some() && known == raw.uid().ok() {
            self.remove_node(key.name());
        }
    }

    /// The Node was deleted: removes everything that belongs to it, and notifies its edge.
    pub(super) fn remove_node(&mut self, name: &str) {
        let Ok(node) = NodeId::parse(name) else { return };
        let Some((_, state)) = self.down.nodes.remove(&node) else { return };
        self.forget_pods_of(&node);
        if state.registered.is_some() {
            self.forget(&node_key(&node));
            self.effects.push(Effect::NodeDeleted(node));
        } else {
            // Still connected but not registered: its Node is known to be absent, and registration comes next.
            self.down.nodes.insert(node, state);
        }
    }

    /// The node is no longer an edge node.
    fn forget_node(&mut self, node: &NodeId) {
        self.down.nodes.remove(node);
        self.forget(&node_key(node));
        self.forget_pods_of(node);
    }

    fn forget_pods_of(&mut self, node: &NodeId) {
        self.bodies.forget(node);
        let losses = self.down.location.remove_node(node);
        for (uid, key) in losses.pods {
            self.pods.remove(&uid);
            self.down.objects.remove(&key);
            self.give_up(&Item::References(key.clone()));
            self.give_up(&Item::Body(key));
        }
        for key in losses.unreferenced {
            self.forget(&key);
        }
    }

    /// Called when all pods of the nodes known before the pod watch began are in memory.
    pub(super) fn first_pods_listed(&mut self) {
        let waiting: Vec<NodeId> = self
            .down
            .nodes
            .iter()
            .filter(|entry| {
                entry.registered.is_some() && !entry.listed && !self.listing.contains(entry.key())
            })
            .map(|entry| entry.key().clone())
            .collect();
        for node in waiting {
            self.set_listed(&node);
        }
    }

    /// Marks the node's pods as known and offers all its objects.
    pub(super) fn set_listed(&mut self, node: &NodeId) {
        let Some(mut state) = self.down.nodes.get_mut(node) else { return };
        if state.registered.is_none() || state.listed {
            return;
        }
        state.listed = true;
        drop(state);
        for key in self.down.wanted(node) {
            self.offer(node, &key);
        }
        self.effects.push(Effect::Ready(node.clone()));
    }
}
