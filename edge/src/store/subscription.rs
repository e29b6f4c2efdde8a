//! Subscriptions of the store: the pushed set, and every subscription of this edge. Each has a number that stays the
//! same for as long as the subscription is kept. Each session numbers its subscriptions anew; `crate::hub` translates.
//!
//! An object is stored once, with the subscriptions that want it. Each subscription has its own history, so that its
//! readers see objects enter and leave it, independently of other subscriptions.

use std::collections::BTreeMap;
use std::sync::Arc;

use tombolo_apicore::history::{Change, ChangeKind, ChangeStream, Log};
use tombolo_apicore::store::{Revision, Snapshot, Store as ServedStore, StoreError, Stored};
use tombolo_proto::ids::{Epoch, SubscriptionId};
use tombolo_proto::object::{InventoryEntry, ObjectKey, Resource};

use super::error::ReadError;
use super::selection::Selection;
use super::view::{CommittedView, Found};
use super::{Store, WriteError, serve, writer};

/// A subscription that the store keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Its number.
    pub subscription: SubscriptionId,
    /// The selection that it follows.
    pub selection: Selection,
    /// Whether it was ever complete: only then can clients read it.
    pub synced: bool,
}

/// The part of the request that opens a subscription that describes the local copy.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalInventory {
    /// The history that the whole copy belongs to; `None` during the change to another history.
    pub epoch: Option<Epoch>,
    /// The copy.
    pub inventory: Vec<InventoryEntry>,
}

impl Store {
    /// The number of a selection's subscription; a new one if it has none yet.
    ///
    /// # Errors
    /// [`WriteError`] when that could not be written.
    pub async fn open_subscription(&self, selection: Selection) -> Result<SubscriptionId, WriteError> {
        match self.run(writer::Command::OpenSubscription(selection)).await? {
            writer::Done::Opened(subscription) => Ok(subscription),
            _ => Err(WriteError::Closed),
        }
    }

    /// Deletes the copy of a subscription, because it may no longer be read, and ends its watches.
    ///
    /// # Errors
    /// [`WriteError`] when that could not be written.
    pub async fn clear_subscription(&self, subscription: SubscriptionId) -> Result<(), WriteError> {
        self.run(writer::Command::ClearSubscription(subscription)).await.map(drop)
    }

    /// Ends the watches of a subscription and keeps its copy. Clients may watch again.
    pub(crate) fn end_watches(&self, subscription: SubscriptionId) {
        self.shared.end_watches(subscription);
    }

    /// Forgets a subscription: ends its watches, and deletes the objects that no other subscription has.
    ///
    /// # Errors
    /// [`WriteError`] when that could not be written.
    pub async fn drop_subscription(&self, subscription: SubscriptionId) -> Result<(), WriteError> {
        self.run(writer::Command::DropSubscription(subscription)).await.map(drop)
    }

    /// All kept subscriptions.
    ///
    /// # Errors
    /// [`ReadError`] when the store is closed.
    pub fn subscriptions(&self) -> Result<Vec<Kept>, ReadError> {
        self.read(|view| {
            let kept = view.subscriptions.iter().filter_map(|(number, row)| {
                let selection = row.selection.as_ref()?.selection();
                Some(Kept { subscription: SubscriptionId(*number), selection, synced: row.synced })
            });
            Ok(kept.collect())
        })
    }

    /// The copy of a subscription, as sent to the cloud.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn held(&self, subscription: SubscriptionId) -> Result<LocalInventory, ReadError> {
        self.read(|view| {
            let row = view.subscriptions.get(&subscription.0);
            let epoch = row.and_then(|row| row.epoch.as_ref()?.epoch());
            Ok(LocalInventory { epoch, inventory: view.inventory(subscription)? })
        })
    }

    /// Bytes of bodies that only this subscription keeps.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn weight(&self, subscription: SubscriptionId) -> Result<u64, ReadError> {
        self.read(|view| view.weight(subscription))
    }

    /// Number of watches of a subscription's resource.
    #[must_use]
    pub(crate) fn watchers(&self, subscription: SubscriptionId, resource: &Resource) -> usize {
        self.shared.watchers(subscription, resource)
    }

    /// The store as clients of one subscription read it.
    #[must_use]
    pub fn subscribed(&self, subscription: SubscriptionId) -> Subscribed {
        Subscribed { store: self.clone(), subscription }
    }
}

/// One subscription as a store of its own.
#[derive(Debug, Clone)]
pub struct Subscribed {
    store: Store,
    subscription: SubscriptionId,
}

impl Subscribed {
    fn known(&self, view: &CommittedView, resource: &Resource) -> Result<(), StoreError> {
        if self.subscription == SubscriptionId::NODE {
            return serve::known(view, resource);
        }
        let row = view.subscriptions.get(&self.subscription.0);
        let follows = |row: &super::schema::SubscriptionRow| {
            row.selection.as_ref().is_some_and(|selected| selected.selection().resource == *resource)
        };
        if row.is_some_and(|row| row.synced && follows(row)) {
            return Ok(());
        }
        Err(serve::not_synced(format!("{} are not synced to this node yet", resource.name)))
    }
}

impl ServedStore for Subscribed {
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        self.store.reading(|view| {
            if let Err(unknown) = self.known(view, key.resource()) {
                return Ok(Err(unknown));
            }
            Ok(Ok(match view.find_in(self.subscription, key)? {
                Found::Visible(object) => Some(object),
                Found::Unreadable => return Ok(Err(serve::not_synced(serve::why_unreadable(key)))),
                Found::Hidden | Found::Absent | Found::Unknown => None,
            }))
        })?
    }

    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError> {
        self.store.reading(|view| match self.known(view, resource) {
            Ok(()) => view.snapshot(self.subscription, resource, namespace).map(Ok),
            Err(unknown) => Ok(Err(unknown)),
        })?
    }

    fn each(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        look: &mut dyn FnMut(Arc<Stored>),
    ) -> Result<Revision, StoreError> {
        self.store.reading(|view| match self.known(view, resource) {
            Ok(()) => view.each(self.subscription, resource, namespace, look).map(Ok),
            Err(unknown) => Ok(Err(unknown)),
        })?
    }

    fn list_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        revision: Revision,
    ) -> Result<Snapshot, StoreError> {
        let now = self.list(resource, namespace)?;
        rewind(&self.store, self.subscription, now, (resource, namespace), revision)
    }

    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError> {
        // Every revision that a client was given is committed, so a revision above this state is invalid.
        self.store
            .reading(|view| Ok(self.known(view, resource).and_then(|()| view.revision().reaches(since))))??;
        history(&self.store, self.subscription, resource)?.subscribe(since)
    }

    fn revision(&self) -> Revision {
        self.store.local_revision()
    }
}

fn history(store: &Store, subscription: SubscriptionId, resource: &Resource) -> Result<Arc<Log>, StoreError> {
    let taken_away = || serve::not_synced(format!("{} were just removed from this node", resource.name));
    store.shared.log(subscription, resource).ok_or_else(taken_away)
}

/// The snapshot of a subscription at an earlier revision.
fn rewind(
    store: &Store,
    subscription: SubscriptionId,
    now: Snapshot,
    (resource, namespace): (&Resource, Option<&str>),
    revision: Revision,
) -> Result<Snapshot, StoreError> {
    if revision == now.revision {
        return Ok(now);
    }
    let mut items: BTreeMap<ObjectKey, Arc<Stored>> =
        now.items.into_iter().map(|item| (item.key.clone(), item)).collect();
    for change in history(store, subscription, resource)?.newest_first(revision)? {
        let elsewhere = namespace.is_some_and(|namespace| namespace != change.object.key.namespace());
        if !elsewhere && change.object.revision <= now.revision {
            undo(&mut items, &change);
        }
    }
    Ok(Snapshot { revision, items: items.into_values().collect() })
}

fn undo(items: &mut BTreeMap<ObjectKey, Arc<Stored>>, change: &Change) {
    let key = &change.object.key;
    match (&change.kind, &change.previous) {
        (ChangeKind::Modified | ChangeKind::Deleted, Some(previous)) => {
            items.insert(key.clone(), Arc::clone(previous));
        }
        _ => {
            items.remove(key);
        }
    }
}
