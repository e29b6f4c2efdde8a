//! What the index keeps of needed objects, and what it drops when it has no room left.

use tombolo_proto::{NodeId, ObjectKey};

use super::bodies::Rank;
use super::room::{Holder, Item, ItemPriority, Moves};
use super::{Cached, Effect, Index, Kind};

/// Bytes that an object takes besides its body.
const OBJECT_OVERHEAD: usize = 768;

/// Bytes that a reference takes besides the text of its name, when no other pod shares it.
const REFERENCE_OVERHEAD: usize = 896;

/// The holder charged for a pod: its namespace. A mirror pod is charged to its node, which creates it itself.
pub(super) fn holder_of_pod(node: &NodeId, key: &ObjectKey, rank: Rank) -> Holder {
    if rank == Rank::Mirror { Holder::Node(node.clone()) } else { holder_of(key) }
}

/// The holder charged for an object: its namespace.
pub(super) fn holder_of(key: &ObjectKey) -> Holder {
    Holder::Namespace(key.namespace().into())
}

impl Index {
    /// Whether there is room for the body of an object of this length. Other items may be dropped to make room.
    pub(super) fn has_room(
        &mut self,
        key: &ObjectKey,
        holder: &Holder,
        standing: ItemPriority,
        len: usize,
    ) -> bool {
        self.take_room(&Item::Body(key.clone()), holder, standing, len + OBJECT_OVERHEAD)
    }

    /// Whether there is room for the references of a pod.
    pub(super) fn has_room_for_references(&mut self, pod: &ObjectKey, references: &[ObjectKey]) -> bool {
        let item = Item::References(pod.clone());
        if references.is_empty() {
            self.give_up(&item);
            return true;
        }
        let text = |key: &ObjectKey| key.namespace().len() + key.name().len();
        let len = references.iter().map(|key| REFERENCE_OVERHEAD + text(key)).sum();
        self.take_room(&item, &holder_of(pod), ItemPriority::References, len)
    }

    fn take_room(&mut self, item: &Item, holder: &Holder, standing: ItemPriority, len: usize) -> bool {
        let moves = self.room.set(item, holder, standing, len);
        self.follow(moves);
        let is_inside = self.room.is_inside(item);
        if !is_inside {
            self.warn_of_room(item);
        }
        is_inside
    }

    /// Releases the room of an item.
    pub(super) fn give_up(&mut self, item: &Item) {
        let moves = self.room.remove(item);
        self.follow(moves);
    }

    fn follow(&mut self, moves: Moves) {
        self.down.set_index_bytes(self.room.bytes());
        for item in moves.out {
            // An earlier item may have taken this one with it.
            if self.room.standing(&item).is_none() {
                continue;
            }
            self.warn_of_room(&item);
            match &item {
                Item::Body(key) => self.drop_body(key),
                Item::References(pod) => self.drop_references(pod),
            }
        }
        for item in moves.back {
            let (Item::Body(key) | Item::References(key)) = item;
            if let Some(version) = self.down.objects.get(&key).and_then(|cached| cached.version().cloned()) {
                self.effects.push(Effect::Fetch(key, Some(version)));
            }
        }
    }

    /// Notifies the nodes that need the object that it cannot be read.
    fn drop_body(&mut self, key: &ObjectKey) {
        if let Some(mut cached) = self.down.objects.get_mut(key)
            && let Cached::Present(object) = &*cached
        {
            *cached = Cached::Withheld(object.version.clone());
        }
        let nodes = match Kind::of(key) {
            Some(Kind::ConfigMap | Kind::Secret) => self.down.location.nodes_of(key),
            _ => self.who_needs(key).into_iter().collect(),
        };
        for node in nodes {
            self.offer(&node, key);
        }
    }

    /// Forgets the references of a pod. Without them its node cannot use the pod, unless the pod is being deleted.
    fn drop_references(&mut self, pod: &ObjectKey) {
        let Some(known) = self.pods.by_key(pod).cloned() else { return };
        let change = self.down.location.leave_out(&known.node, &known.version.uid, pod);
        let body = Item::Body(pod.clone());
        if self.room.standing(&body) != Some(ItemPriority::Ending) {
            self.give_up(&body);
            self.drop_body(pod);
        }
        self.follow_references(&known.node, &change);
    }

    fn warn_of_room(&self, item: &Item) {
        let Some(holder) = self.room.holder(item) else { return };
        let Some(left_out) = self.lines_of_holders.admit(holder) else { return };
        let (Item::Body(key) | Item::References(key)) = item;
        let (max, reason) = (self.room.max(), "the index is full: withholding an object of its largest user");
        match holder {
            Holder::Namespace(namespace) => tracing::warn!(%namespace, %key, max, left_out, "{reason}"),
            Holder::Node(node) => tracing::warn!(%node, %key, max, left_out, "{reason}"),
        }
    }
}
