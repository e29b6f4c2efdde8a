//! The journal, with the indexes that must not lag behind it.

use tombolo_apicore::memory::{Journal, JournalEntry};
use tombolo_apicore::store::{StoreError, Stored};

use super::admission::addresses::Reservations;
use super::admission::policies::Policies;
use super::admission::webhooks;
use super::authz::Authorization;
use super::controllers::ownership::Ownership;
use super::flows::Flows;

/// Data that is derived from the objects and must be correct as soon as a change is visible.
#[derive(Debug, Clone)]
pub(super) struct Indexes {
    /// Authorization.
    pub(super) authorization: Authorization,
    /// The index of owner references.
    pub(super) ownership: Ownership,
    /// Addresses that are allocated but not stored yet.
    pub(super) reservations: Reservations,
    /// The configured webhooks.
    pub(super) webhooks: webhooks::Index,
    /// Admission policies.
    pub(super) policies: Policies,
    /// Flow schemas and priority levels.
    pub(super) flows: Flows,
}

impl Indexes {
    /// Applies a change: an object as it is now stored, or its removal.
    pub(super) fn apply(&self, stored: &Stored, deleted: bool) {
        self.authorization.apply(stored, deleted);
        self.ownership.apply(stored, deleted);
        self.webhooks.apply(stored, deleted);
        self.policies.apply(stored, deleted);
        self.flows.apply(stored, deleted);
        let resource = stored.key.resource();
        if (&*resource.group, &*resource.name) == ("", "services")
            && let Ok(service) = serde_json::from_slice(&stored.body())
        {
            self.reservations.stored(&service);
        }
    }
}

/// A journal that applies every durable change to the indexes, in order, before the change becomes visible.
pub(super) struct IndexedJournal<J> {
    /// Makes changes durable.
    pub(super) journal: J,
    /// The indexes that follow the changes.
    pub(super) indexes: Indexes,
}

impl<J: Journal> Journal for IndexedJournal<J> {
    fn append(&self, batch: &[JournalEntry]) -> Result<(), StoreError> {
        self.journal.append(batch)?;
        for entry in batch {
            self.indexes.apply(&entry.object, entry.deleted);
        }
        Ok(())
    }
}
