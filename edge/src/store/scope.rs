//! Scopes of the store: the pushed set, and every subscription of this edge under a number of its own that stays the
//! same for as long as the subscription is kept. Sessions number their scopes anew; `crate::hub` translates.
//!
//! An object is stored once, with the scopes that want it. Each scope has its own history, so that a client that reads a
//! subscription sees objects enter and leave it whatever else holds them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tombolo_apicore::history::{Change, ChangeKind, ChangeStream, Log};
use tombolo_apicore::store::{Revision, Snapshot, Store as ServedStore, StoreError, Stored};
use tombolo_proto::ids::{Epoch, ScopeId};
use tombolo_proto::object::{InventoryEntry, ObjectKey, Resource};

use super::error::ReadError;
use super::view::{Found, View};
use super::{Store, WriteError, serve, writer};

/// What a subscription follows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selection {
    /// The resource, under the version in which it is followed.
    pub resource: Resource,
    /// One namespace, or all when empty.
    pub namespace: String,
    /// Label selector in the query form; empty for all.
    pub label_selector: String,
    /// Field selector in the query form; empty for all.
    pub field_selector: String,
    /// Whether it is followed in the name of callers and not of this node: only those may read the copy whose right the
    /// cluster has confirmed.
    pub borrowed: bool,
}

impl Selection {
    /// All objects of a resource, as far as this node may read them.
    #[must_use]
    pub fn all(resource: Resource) -> Self {
        let [namespace, label_selector, field_selector] = Default::default();
        Self { resource, namespace, label_selector, field_selector, borrowed: false }
    }

    /// Whether everything that the other selection selects is in this one, for whoever may read the other. What this node
    /// follows in its own name may be read by callers who have the right as well; what it follows for them is not its own.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let namespaces = self.namespace.is_empty() || self.namespace == other.namespace;
        let wider = |own: &str, others: &str| own.is_empty() || own == others;
        self.resource == other.resource
            && self.borrowed <= other.borrowed
            && namespaces
            && wider(&self.label_selector, &other.label_selector)
            && wider(&self.field_selector, &other.field_selector)
    }
}

/// A subscription that the store keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Its number.
    pub scope: ScopeId,
    /// What it follows.
    pub selection: Selection,
    /// Whether it was ever complete: only then can clients be told what is in it.
    pub synced: bool,
}

/// What the cloud is told of a subscription when it is opened.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// The history that all of the copy belongs to; none when it is between two.
    pub epoch: Option<Epoch>,
    /// The copy.
    pub inventory: Vec<InventoryEntry>,
}

impl Store {
    /// The number under which a selection is kept; a new one when it is not kept yet.
    ///
    /// # Errors
    /// [`WriteError`] when that could not be written.
    pub async fn open_scope(&self, selection: Selection) -> Result<ScopeId, WriteError> {
        match self.run(writer::Command::OpenScope(selection)).await? {
            writer::Done::Opened(scope) => Ok(scope),
            _ => Err(WriteError::Closed),
        }
    }

    /// Forgets what a subscription holds, because it may no longer be read: its watches end.
    ///
    /// # Errors
    /// [`WriteError`] when that could not be written.
    pub async fn clear_scope(&self, scope: ScopeId) -> Result<(), WriteError> {
        self.run(writer::Command::ClearScope(scope)).await.map(drop)
    }

    /// Ends the watches of a subscription whose copy stays: those who watch may come again.
    pub(crate) fn end_watches(&self, scope: ScopeId) {
        self.shared.end_watches(scope);
    }

    /// Forgets a subscription: its watches end, and what nothing else holds goes.
    ///
    /// # Errors
    /// [`WriteError`] when that could not be written.
    pub async fn drop_scope(&self, scope: ScopeId) -> Result<(), WriteError> {
        self.run(writer::Command::DropScope(scope)).await.map(drop)
    }

    /// All subscriptions that are kept.
    ///
    /// # Errors
    /// [`ReadError`] when the store is closed.
    pub fn subscriptions(&self) -> Result<Vec<Kept>, ReadError> {
        self.read(|view| {
            let kept = view.scopes.iter().filter_map(|(number, row)| {
                let selection = row.subscription.as_ref()?.selection();
                Some(Kept { scope: ScopeId(*number), selection, synced: row.synced })
            });
            Ok(kept.collect())
        })
    }

    /// What the store holds of a subscription.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn held(&self, scope: ScopeId) -> Result<Held, ReadError> {
        self.read(|view| {
            let row = view.scopes.get(&scope.0);
            let epoch = row.and_then(|row| row.epoch.as_ref()?.epoch());
            Ok(Held { epoch, inventory: view.inventory(scope)? })
        })
    }

    /// Bytes of bodies that only this subscription keeps.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn weight(&self, scope: ScopeId) -> Result<u64, ReadError> {
        self.read(|view| view.weight(scope))
    }

    /// Number of watches of a scope's resource.
    #[must_use]
    pub(crate) fn watchers(&self, scope: ScopeId, resource: &Resource) -> usize {
        self.shared.watchers(scope, resource)
    }

    /// The store as clients of one scope read it.
    #[must_use]
    pub fn scoped(&self, scope: ScopeId) -> Scoped {
        Scoped { store: self.clone(), scope }
    }
}

/// One scope as a store of its own.
#[derive(Debug, Clone)]
pub struct Scoped {
    store: Store,
    scope: ScopeId,
}

impl Scoped {
    fn known(&self, view: &View, resource: &Resource) -> Result<(), StoreError> {
        if self.scope == ScopeId::NODE {
            return serve::known(view, resource);
        }
        let row = view.scopes.get(&self.scope.0);
        let follows = |row: &super::schema::ScopeRow| {
            row.subscription
                .as_ref()
                .is_some_and(|subscription| subscription.selection().resource == *resource)
        };
        if row.is_some_and(|row| row.synced && follows(row)) {
            return Ok(());
        }
        Err(serve::not_synced(format!("{} are not synced to this node yet", resource.name)))
    }
}

impl ServedStore for Scoped {
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        self.store.reading(|view| {
            if let Err(unknown) = self.known(view, key.resource()) {
                return Ok(Err(unknown));
            }
            Ok(Ok(match view.find_in(self.scope, key)? {
                Found::Visible(object) => Some(object),
                Found::Unreadable => return Ok(Err(serve::not_synced(serve::why_unreadable(key)))),
                Found::Hidden | Found::Absent | Found::Unknown => None,
            }))
        })?
    }

    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError> {
        self.store.reading(|view| match self.known(view, resource) {
            Ok(()) => view.snapshot(self.scope, resource, namespace).map(Ok),
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
            Ok(()) => view.each(self.scope, resource, namespace, look).map(Ok),
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
        rewind(&self.store, self.scope, now, (resource, namespace), revision)
    }

    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError> {
        // What a client was told of is in the state that is read here, and no reply names what is not committed.
        self.store
            .reading(|view| Ok(self.known(view, resource).and_then(|()| view.revision().reaches(since))))??;
        history(&self.store, self.scope, resource)?.subscribe(since)
    }

    fn revision(&self) -> Revision {
        self.store.local_revision()
    }
}

fn history(store: &Store, scope: ScopeId, resource: &Resource) -> Result<Arc<Log>, StoreError> {
    let taken_away = || serve::not_synced(format!("{} were just taken away from this node", resource.name));
    store.shared.log(scope, resource).ok_or_else(taken_away)
}

/// What a scope's snapshot was at an earlier revision.
fn rewind(
    store: &Store,
    scope: ScopeId,
    now: Snapshot,
    (resource, namespace): (&Resource, Option<&str>),
    revision: Revision,
) -> Result<Snapshot, StoreError> {
    if revision == now.revision {
        return Ok(now);
    }
    let mut items: BTreeMap<ObjectKey, Arc<Stored>> =
        now.items.into_iter().map(|item| (item.key.clone(), item)).collect();
    for change in history(store, scope, resource)?.newest_first(revision)? {
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
