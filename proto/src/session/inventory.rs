//! How an edge announces what it holds in a subscription.

use crate::frame::Inventory;
use crate::ids::StoreId;
use crate::inventory::digest;
use crate::limits::HELLO_INVENTORY_MAX;
use crate::object::InventoryEntry;

/// The entries themselves when they are few enough for a hello or a subscription, otherwise their digest in this
/// store.
#[must_use]
pub fn summarise(store: StoreId, entries: Vec<InventoryEntry>) -> Inventory {
    if entries.len() <= HELLO_INVENTORY_MAX {
        return Inventory::Full(entries);
    }
    let (digest, count) = digest(store, &entries);
    Inventory::Digest { count, digest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{HeldState, ObjectKey, Resource};

    #[test]
    fn summaries_start_above_the_hello_limit() {
        let entry = |n| InventoryEntry {
            key: ObjectKey::new(Resource::new("", "v1", "pods"), "default", &format!("p{n}")),
            held: HeldState::Absent,
        };
        let entries: Vec<_> = (0..=HELLO_INVENTORY_MAX).map(entry).collect();
        let store = StoreId([7; 16]);
        assert!(
            matches!(summarise(store, entries[1..].to_vec()), Inventory::Full(list) if list.len() == 512)
        );
        assert!(matches!(summarise(store, entries), Inventory::Digest { count: 513, .. }));
    }
}
