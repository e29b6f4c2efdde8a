//! The objects that a replayed edge of dialect `tombolo` holds.

use std::collections::HashMap;

use tombolo_proto::frame::{Change, Deliver, Inventory, Subscribe};
use tombolo_proto::session::summarise;
use tombolo_proto::{HeldState, InventoryEntry, ObjectKey, StoreId, SubscriptionId};

/// The objects that one node holds, of the pushed set and of each subscription. Bounded by the transcript.
#[derive(Debug, Clone, Default)]
pub struct Holdings {
    sets: HashMap<String, HashMap<ObjectKey, HeldState>>,
    /// The set that each subscription stands for, on each connection.
    subscriptions: HashMap<(u64, SubscriptionId), String>,
}

impl Holdings {
    /// Registers a subscription: the same selection is the same set on every connection.
    pub fn subscribe(&mut self, conn: u64, subscribe: &Subscribe) {
        let Subscribe { resource, namespace, label_selector, field_selector, .. } = subscribe;
        let set = format!("{resource} {namespace} {label_selector} {field_selector}");
        self.subscriptions.insert((conn, subscribe.subscription), set);
    }

    fn set(&self, conn: u64, subscription: SubscriptionId) -> &str {
        self.subscriptions.get(&(conn, subscription)).map_or("", String::as_str)
    }

    /// Stores a delivery.
    pub fn store(&mut self, conn: u64, deliver: &Deliver) {
        let set = self.set(conn, deliver.subscription).to_owned();
        let held = self.sets.entry(set).or_default();
        match &deliver.change {
            Change::Upsert(object) => {
                held.insert(object.key.clone(), HeldState::Present(object.version.clone()));
            }
            Change::Adopt { key, version } => {
                held.insert(key.clone(), HeldState::Present(version.clone()));
            }
            Change::Absent { key } => {
                held.insert(key.clone(), HeldState::Absent);
            }
            Change::Unreadable { key } => {
                // A held object stays.
                held.entry(key.clone())
                    .and_modify(|held| {
                        if *held == HeldState::Absent {
                            *held = HeldState::Unreadable;
                        }
                    })
                    .or_insert(HeldState::Unreadable);
            }
            Change::Delete { key, .. } => {
                held.remove(key);
            }
        }
    }

    /// All entries of a subscription.
    #[must_use]
    pub fn entries(&self, conn: u64, subscription: SubscriptionId) -> Vec<InventoryEntry> {
        let held = self.sets.get(self.set(conn, subscription)).into_iter().flatten();
        let mut entries: Vec<_> =
            held.map(|(key, held)| InventoryEntry { key: key.clone(), held: held.clone() }).collect();
        entries.sort_by(|one, other| one.key.cmp(&other.key));
        entries
    }

    /// The inventory of a subscription, in place of what the recorded edge held there: its objects in the versions of
    /// this run. Objects that were never delivered in this run are taken from the recording. A digest is that of the
    /// edge's store.
    #[must_use]
    pub fn inventory(
        &self,
        store: StoreId,
        conn: u64,
        subscription: SubscriptionId,
        recorded: Inventory,
    ) -> Inventory {
        let Inventory::Full(entries) = recorded else {
            return summarise(store, self.entries(conn, subscription));
        };
        let held = self.sets.get(self.set(conn, subscription));
        let translate = |entry: InventoryEntry| {
            let known = held.and_then(|held| held.get(&entry.key));
            InventoryEntry { held: known.cloned().unwrap_or(entry.held), key: entry.key }
        };
        Inventory::Full(entries.into_iter().map(translate).collect())
    }

    /// Takes over the objects that an edge says it holds.
    pub fn adopt(&mut self, conn: u64, subscription: SubscriptionId, entries: &[InventoryEntry]) {
        let set = self.set(conn, subscription).to_owned();
        let entries = entries.iter().map(|entry| (entry.key.clone(), entry.held.clone()));
        self.sets.insert(set, entries.collect());
    }
}
