//! What a replayed edge of dialect `tombolo` holds.

use std::collections::HashMap;

use tombolo_proto::frame::{Change, Deliver, Inventory, Subscribe};
use tombolo_proto::session::summarise;
use tombolo_proto::{Held, InventoryEntry, ObjectKey, ScopeId, StoreId};

/// What one node holds: of the pushed set, and of each subscription. Grows with the transcript, which is bounded.
#[derive(Debug, Clone, Default)]
pub struct Holdings {
    sets: HashMap<String, HashMap<ObjectKey, Held>>,
    /// Which set a scope is, on each connection.
    scopes: HashMap<(u64, ScopeId), String>,
}

impl Holdings {
    /// A subscription: the same selection is the same set on every connection.
    pub fn subscribe(&mut self, conn: u64, subscribe: &Subscribe) {
        let Subscribe { resource, namespace, label_selector, field_selector, .. } = subscribe;
        let set = format!("{resource} {namespace} {label_selector} {field_selector}");
        self.scopes.insert((conn, subscribe.scope), set);
    }

    fn set(&self, conn: u64, scope: ScopeId) -> &str {
        self.scopes.get(&(conn, scope)).map_or("", String::as_str)
    }

    /// Stores a delivery.
    pub fn store(&mut self, conn: u64, deliver: &Deliver) {
        let set = self.set(conn, deliver.scope).to_owned();
        let held = self.sets.entry(set).or_default();
        match &deliver.change {
            Change::Upsert(object) => {
                held.insert(object.key.clone(), Held::Present(object.version.clone()));
            }
            Change::Adopt { key, version } => {
                held.insert(key.clone(), Held::Present(version.clone()));
            }
            Change::Absent { key } => {
                held.insert(key.clone(), Held::Absent);
            }
            Change::Unreadable { key } => {
                // What is held stays.
                held.entry(key.clone())
                    .and_modify(|held| {
                        if *held == Held::Absent {
                            *held = Held::Unreadable;
                        }
                    })
                    .or_insert(Held::Unreadable);
            }
            Change::Delete { key, .. } => {
                held.remove(key);
            }
        }
    }

    /// Everything of a scope.
    #[must_use]
    pub fn entries(&self, conn: u64, scope: ScopeId) -> Vec<InventoryEntry> {
        let held = self.sets.get(self.set(conn, scope)).into_iter().flatten();
        let mut entries: Vec<_> =
            held.map(|(key, held)| InventoryEntry { key: key.clone(), held: held.clone() }).collect();
        entries.sort_by(|one, other| one.key.cmp(&other.key));
        entries
    }

    /// What is held of a scope, in place of what the recorded edge held there: its objects in the versions of this run.
    /// What was never delivered in this run is taken from the recording. A digest is that of the edge's store.
    #[must_use]
    pub fn inventory(&self, store: StoreId, conn: u64, scope: ScopeId, recorded: Inventory) -> Inventory {
        let Inventory::Full(entries) = recorded else { return summarise(store, self.entries(conn, scope)) };
        let held = self.sets.get(self.set(conn, scope));
        let translate = |entry: InventoryEntry| {
            let known = held.and_then(|held| held.get(&entry.key));
            InventoryEntry { held: known.cloned().unwrap_or(entry.held), key: entry.key }
        };
        Inventory::Full(entries.into_iter().map(translate).collect())
    }

    /// Takes over what an edge says it holds.
    pub fn adopt(&mut self, conn: u64, scope: ScopeId, entries: &[InventoryEntry]) {
        let set = self.set(conn, scope).to_owned();
        let entries = entries.iter().map(|entry| (entry.key.clone(), entry.held.clone()));
        self.sets.insert(set, entries.collect());
    }
}
