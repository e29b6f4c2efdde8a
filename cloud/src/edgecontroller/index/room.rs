//! The memory budget of the whole index, in bytes. It is divided between namespaces and nodes; the holder with the most
//! bytes loses items first. Pure bookkeeping of lengths.

use std::collections::{BTreeSet, HashMap};

use tombolo_proto::{NodeId, ObjectKey};

/// Default budget of the index, in bytes.
pub(crate) const INDEX_BYTES_MAX: usize = 128 * 1024 * 1024;

/// A dropped item comes back only if, beside it, one part in this many of the whole budget stays free. Otherwise an
/// item that grows and shrinks a little at the bound would be read again and again.
const FREE_PART: usize = 16;

/// The holder to which an item is charged. What a node creates itself is charged to the node, everything else to the
/// namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Holder {
    /// A namespace, and thereby everyone who may write there.
    Namespace(Box<str>),
    /// A node.
    Node(NodeId),
}

/// An item that is kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Item {
    /// The references of the pod with this name.
    References(ObjectKey),
    /// The body of an object.
    Body(ObjectKey),
}

/// The order in which a holder's items are dropped: the last first, and among equals the larger before the smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ItemPriority {
    /// The body of a pod that its node must terminate.
    Ending,
    /// References: without them the needs of a node are unknown.
    References,
    /// Any other body.
    Body,
}

/// Position of an item in the order.
type ItemPosition = (ItemPriority, usize, Item);

/// Other items affected by a change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Moves {
    /// They must leave memory.
    pub(super) out: Vec<Item>,
    /// There is room for them again.
    pub(super) back: Vec<Item>,
}

/// The whole budget.
#[derive(Debug)]
pub(super) struct Room {
    max: usize,
    /// Bytes of all items inside.
    bytes: usize,
    items: HashMap<Item, (Holder, ItemPriority, usize)>,
    parts: HashMap<Holder, HolderItems>,
    /// Holders by the bytes of their items inside.
    order: BTreeSet<(usize, Holder)>,
    /// The holders that have items outside.
    waiting: BTreeSet<(usize, Holder)>,
}

/// The items of one holder. Every place inside is before every place outside.
#[derive(Debug, Default)]
struct HolderItems {
    inside: BTreeSet<ItemPosition>,
    outside: BTreeSet<ItemPosition>,
    bytes: usize,
}

impl Room {
    /// Creates a budget of `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        let (items, parts, order, waiting) = Default::default();
        Self { max, bytes: 0, items, parts, order, waiting }
    }

    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Bytes of all items inside.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the length and the holder of an item. Whether the item itself fits is answered by [`Self::is_inside`].
    pub(super) fn set(&mut self, item: &Item, holder: &Holder, standing: ItemPriority, len: usize) -> Moves {
        self.take_out(item);
        self.items.insert(item.clone(), (holder.clone(), standing, len));
        let position = (standing, len, item.clone());
        self.change(holder, |part| {
            if part.outside.first().is_some_and(|first| *first < position) {
                part.outside.insert(position);
            } else {
                part.bytes += len;
                part.inside.insert(position);
            }
        });
        let mut moves = self.balance();
        moves.out.retain(|other| other != item);
        moves.back.retain(|other| other != item);
        moves
    }

    /// Removes an item that is no longer wanted.
    pub(super) fn remove(&mut self, item: &Item) -> Moves {
        match self.take_out(item) {
            true => self.balance(),
            false => Moves::default(),
        }
    }

    /// Whether there is room for the item.
    pub(super) fn is_inside(&self, item: &Item) -> bool {
        let Some((holder, standing, len)) = self.items.get(item) else { return false };
        let position = (*standing, *len, item.clone());
        self.parts.get(holder).is_some_and(|part| part.inside.contains(&position))
    }

    /// The standing of an item; `None` if the item is not known.
    pub(super) fn standing(&self, item: &Item) -> Option<ItemPriority> {
        self.items.get(item).map(|(_, standing, _)| *standing)
    }

    /// The holder to which an item is charged.
    pub(super) fn holder(&self, item: &Item) -> Option<&Holder> {
        self.items.get(item).map(|(holder, ..)| holder)
    }

    /// Removes an item; returns whether it was known.
    fn take_out(&mut self, item: &Item) -> bool {
        let Some((holder, standing, len)) = self.items.remove(item) else { return false };
        let position = (standing, len, item.clone());
        self.change(&holder, |part| match part.inside.remove(&position) {
            true => part.bytes -= len,
            false => _ = part.outside.remove(&position),
        });
        true
    }

    fn change(&mut self, holder: &Holder, change: impl FnOnce(&mut HolderItems)) {
        let part = self.parts.entry(holder.clone()).or_default();
        let before = (part.bytes, holder.clone());
        self.order.remove(&before);
        self.waiting.remove(&before);
        change(part);
        self.bytes = self.bytes - before.0 + part.bytes;
        let after = (part.bytes, holder.clone());
        if !part.outside.is_empty() {
            self.waiting.insert(after.clone());
        }
        if part.inside.is_empty() && part.outside.is_empty() {
            self.parts.remove(holder);
        } else {
            self.order.insert(after);
        }
    }

    fn balance(&mut self) -> Moves {
        let mut moves = Moves::default();
        while self.bytes > self.max
            && let Some((_, holder)) = self.order.last().cloned()
        {
            self.change(&holder, |part| {
                let Some(position) = part.inside.pop_last() else { return };
                part.bytes -= position.1;
                moves.out.push(position.2.clone());
                part.outside.insert(position);
            });
        }
        while let Some(holder) = self.next_back() {
            self.change(&holder, |part| {
                let Some(position) = part.outside.pop_first() else { return };
                part.bytes += position.1;
                moves.back.push(position.2.clone());
                part.inside.insert(position);
            });
        }
        moves
    }

    /// The holder with the fewest bytes, among those whose next item fits.
    fn next_back(&self) -> Option<Holder> {
        let room = self.max.checked_sub(self.bytes + self.max / FREE_PART)?;
        let fits = |holder: &Holder| {
            self.parts
                .get(holder)?
                .outside
                .first()
                .filter(|position| position.1 <= room)
                .map(|_| holder.clone())
        };
        self.waiting.iter().find_map(|(_, holder)| fits(holder))
    }
}

#[cfg(test)]
mod tests {
    use tombolo_proto::Resource;

    use super::*;

    fn holder(name: &str) -> Holder {
        Holder::Namespace(name.into())
    }

    fn body(name: &str) -> Item {
        Item::Body(ObjectKey::new(Resource::new("", "v1", "configmaps"), "d", name))
    }

    fn references(name: &str) -> Item {
        Item::References(ObjectKey::new(Resource::new("", "v1", "pods"), "d", name))
    }

    fn moves(out: &[Item], back: &[Item]) -> Moves {
        Moves { out: out.to_vec(), back: back.to_vec() }
    }

    #[test]
    fn largest_holder_gives_way_regardless_of_arrival() {
        let mut room = Room::new(1600);
        let [greedy, modest] = ["greedy", "modest"].map(holder);
        for (name, len) in [("a", 700), ("b", 800)] {
            assert_eq!(room.set(&body(name), &greedy, ItemPriority::Body, len), Moves::default());
        }
        assert_eq!(room.set(&body("m"), &modest, ItemPriority::Body, 300), moves(&[body("b")], &[]));
        assert!(room.is_inside(&body("a")) && room.is_inside(&body("m")) && !room.is_inside(&body("b")));
        assert_eq!((room.bytes(), room.holder(&body("m"))), (1000, Some(&modest)));
        assert_eq!(
            room.set(&body("c"), &greedy, ItemPriority::Body, 900),
            Moves::default(),
            "it waits behind b"
        );
        // It would fit into the free room, but a part of the whole budget must stay free beside it.
        assert_eq!(room.set(&body("m"), &modest, ItemPriority::Body, 50), Moves::default());
        assert_eq!(room.remove(&body("m")), moves(&[], &[body("b")]));
        assert_eq!((room.bytes(), room.is_inside(&body("c"))), (1500, false));
    }

    #[test]
    fn bodies_give_way_first_and_pods_being_deleted_last() {
        let mut room = Room::new(1600);
        let one = holder("one");
        room.set(&references("p"), &one, ItemPriority::References, 700);
        room.set(&body("small"), &one, ItemPriority::Body, 100);
        room.set(&body("ends"), &one, ItemPriority::Ending, 750);
        assert_eq!(room.standing(&body("ends")), Some(ItemPriority::Ending));
        assert_eq!(
            room.set(&body("s"), &holder("two"), ItemPriority::Body, 60),
            moves(&[body("small")], &[])
        );
        assert_eq!(
            room.set(&body("s"), &holder("two"), ItemPriority::Body, 400),
            moves(&[references("p")], &[])
        );
        assert!(room.is_inside(&body("ends")));
    }

    #[test]
    fn oversized_item_displaces_nothing_and_removed_items_leave_nothing() {
        let mut room = Room::new(1600);
        room.set(&body("a"), &holder("one"), ItemPriority::Body, 500);
        assert_eq!(room.set(&body("giant"), &holder("two"), ItemPriority::Body, 2000), Moves::default());
        assert!(room.is_inside(&body("a")) && !room.is_inside(&body("giant")));
        for name in ["a", "giant", "unknown"] {
            room.remove(&body(name));
        }
        let sizes = (room.items.len(), room.parts.len(), room.order.len(), room.waiting.len());
        assert_eq!((sizes, room.bytes()), ((0, 0, 0, 0), 0));
    }

    #[test]
    fn reported_moves_are_complete_and_the_bound_holds() {
        let mut random = 7_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from((random >> 33) % below).expect("small")
        };
        let mut room = Room::new(10_000);
        let mut inside = std::collections::HashSet::new();
        for _ in 0..20_000 {
            let item = body(&format!("c{}", next(40)));
            inside.remove(&item);
            let moves = if next(5) == 0 {
                room.remove(&item)
            } else {
                let standing = [ItemPriority::Ending, ItemPriority::References, ItemPriority::Body][next(3)];
                let moves = room.set(&item, &holder(&next(4).to_string()), standing, next(3000));
                inside.extend(room.is_inside(&item).then(|| item.clone()));
                moves
            };
            for item in &moves.out {
                inside.remove(item);
            }
            inside.extend(moves.back);
            let told: HashMap<_, _> = room.items.keys().map(|item| (item, room.is_inside(item))).collect();
            assert!(told.iter().all(|(item, is_inside)| inside.contains(*item) == *is_inside));
            let bytes: usize = inside.iter().map(|item| room.items[item].2).sum();
            assert_eq!(bytes, room.bytes());
            assert!(bytes <= room.max());
            for part in room.parts.values() {
                let [last, first] = [part.inside.last(), part.outside.first()];
                assert!(first.is_none_or(|first| last.is_none_or(|last| last < first)));
            }
        }
    }
}
