//! What is kept of the objects that nodes need, and what gives way when the index has no room left.

use tombolo_proto::{NodeId, ObjectKey};

use super::bodies::Rank;
use super::room::{Holder, Item, Moves, Standing};
use super::{Cached, Effect, Index, Kind};

/// Bytes that an object takes besides its body.
const OBJECT_OVERHEAD: usize = 768;

/// Bytes that a reference takes besides the text of its name, where nobody else has the same.
const REFERENCE_OVERHEAD: usize = 896;

/// What a pod takes is its namespace's, but a node makes mirror pods itself.
pub(super) fn holder_of_pod(node: &NodeId, key: &ObjectKey, rank: Rank) -> Holder {
    if rank == Rank::Mirror { Holder::Node(node.clone()) } else { holder_of(key) }
}

/// For whom what is known of an object is kept.
pub(super) fn holder_of(key: &ObjectKey) -> Holder {
    Holder::Namespace(key.namespace().into())
}

impl Index {
    /// Whether there is room for the body of an object, which has so many bytes now. Others give way to it.
    pub(super) fn has_room(
        &mut self,
        key: &ObjectKey,
        holder: &Holder,
        standing: Standing,
        len: usize,
    ) -> bool {
        self.take_room(&Item::Body(key.clone()), holder, standing, len + OBJECT_OVERHEAD)
    }

    /// The same for what a pod refers to.
    pub(super) fn has_room_for_references(&mut self, pod: &ObjectKey, references: &[ObjectKey]) -> bool {
        let item = Item::References(pod.clone());
        if references.is_empty() {
            self.give_up(&item);
            return true;
        }
        let text = |key: &ObjectKey| key.namespace().len() + key.name().len();
        let len = references.iter().map(|key| REFERENCE_OVERHEAD + text(key)).sum();
        self.take_room(&item, &holder_of(pod), Standing::References, len)
    }

    fn take_room(&mut self, item: &Item, holder: &Holder, standing: Standing, len: usize) -> bool {
        let moves = self.room.set(item, holder, standing, len);
        self.follow(moves);
        let is_inside = self.room.is_inside(item);
        if !is_inside {
            self.warn_of_room(item);
        }
        is_inside
    }

    /// Nothing of an object is kept any more.
    pub(super) fn give_up(&mut self, item: &Item) {
        let moves = self.room.remove(item);
        self.follow(moves);
    }

    fn follow(&mut self, moves: Moves) {
        self.down.set_index_bytes(self.room.bytes());
        for item in moves.out {
            // Another may have gone with what went before it.
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

    /// Whoever needs the object is told that it cannot be read.
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

    /// What the pod refers to is not known any more. A pod without that is of no use to its node, unless it is to go.
    fn drop_references(&mut self, pod: &ObjectKey) {
        let Some(known) = self.pods.by_key(pod).cloned() else { return };
        let change = self.down.location.leave_out(&known.node, &known.version.uid, pod);
        let body = Item::Body(pod.clone());
        if self.room.standing(&body) != Some(Standing::Ending) {
            self.give_up(&body);
            self.drop_body(pod);
        }
        self.follow_references(&known.node, &change);
    }

    fn warn_of_room(&self, item: &Item) {
        let Some(holder) = self.room.holder(item) else { return };
        let Some(left_out) = self.lines_of_holders.admit(holder) else { return };
        let (Item::Body(key) | Item::References(key)) = item;
        let (max, reason) =
            (self.room.max(), "the index is full, and no other has more of it: an object is withheld");
        match holder {
            Holder::Namespace(namespace) => tracing::warn!(%namespace, %key, max, left_out, "{reason}"),
            Holder::Node(node) => tracing::warn!(%node, %key, max, left_out, "{reason}"),
        }
    }
}
