//! An index of the owner references of all objects. It is updated before a change becomes visible.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Notify;
use tombolo_apicore::store::{Revision, Stored};
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};

/// Finalizer of an owner that waits for its dependents.
pub(super) const FOREGROUND: &str = "foregroundDeletion";

/// Finalizer of an owner whose dependents are orphaned.
pub(super) const ORPHAN: &str = "orphan";

/// Group and plural of resources that are not in the index: they change often, and are hardly ever owners. Whether such
/// an owner exists is read from the store.
const UNTRACKED: [(&str, &str); 2] = [("", "events"), ("coordination.k8s.io", "leases")];

/// Whether objects of a storage resource are not in the index.
pub(super) fn is_untracked(resource: &Resource) -> bool {
    UNTRACKED.contains(&(&*resource.group, &*resource.name))
}

/// The needed metadata of an object.
#[derive(Debug, Default, Deserialize)]
struct PartialObject {
    metadata: Metadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    owner_references: Vec<Owner>,
    finalizers: Vec<String>,
    deletion_timestamp: Option<String>,
}

/// One owner reference.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Owner {
    /// UID of the owner.
    pub(super) uid: String,
    /// Whether a foreground deletion of the owner waits for this dependent.
    #[serde(default)]
    pub(super) block_owner_deletion: Option<bool>,
}

#[derive(Debug)]
struct TrackedObject {
    key: ObjectKey,
    revision: Revision,
    owners: Box<[Owner]>,
    /// The finalizer of this controller with which the object waits, if it is being deleted.
    waits: Option<&'static str>,
}

/// What is known about an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// It exists.
    Solid,
    /// It is being deleted in the foreground.
    Waiting,
    /// It does not exist, or not where the reference could reach it.
    Absent,
    /// It does not exist and was never seen: its kind may not be stored here.
    Unseen,
}

#[derive(Debug, Default)]
struct OwnershipIndex {
    /// Objects by UID.
    nodes: HashMap<Uid, TrackedObject>,
    /// Owner → dependents, both by UID.
    dependents: HashMap<String, BTreeSet<String>>,
    /// Owners that were removed while they had dependents. They are kept until the dependents are gone.
    departed: BTreeSet<String>,
    /// UIDs of objects to process: dependents of changed owners, and owners that wait.
    work: BTreeSet<String>,
}

/// The index and its work list. Grows only with the stored objects. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ownership {
    index: Arc<Mutex<OwnershipIndex>>,
    news: Arc<Notify>,
}

/// A dependent, or an owner that waits for its dependents.
#[derive(Debug, Clone)]
pub(super) struct Item {
    /// Its UID.
    pub(super) uid: String,
    /// Where it is stored.
    pub(super) key: ObjectKey,
    /// Its revision. The index has it before the object can be read.
    pub(super) revision: Revision,
    /// Its owners and what is known about each.
    pub(super) owners: Vec<(Owner, Presence)>,
    /// The finalizer that it waits with, if it is being deleted.
    pub(super) waits: Option<&'static str>,
}

impl Ownership {
    /// Applies a change: an object as it is now stored, or its removal.
    pub(crate) fn apply(&self, stored: &Stored, deleted: bool) {
        let uid = stored.uid.as_str();
        let mut index = self.index.lock();
        if is_untracked(stored.key.resource()) {
            if deleted {
                index.depart(uid);
            }
        } else if deleted {
            // Only the removal of the object itself counts, not that of another object with the same UID.
            if index.nodes.get(uid).is_some_and(|node| node.key == stored.key) {
                index.remove(uid);
            }
        } else {
            let metadata =
                serde_json::from_slice::<PartialObject>(&stored.body()).unwrap_or_default().metadata;
            index.put(stored, metadata);
        }
        if !index.work.is_empty() {
            self.news.notify_one();
        }
    }

    /// Waits for the next item to process. Cancel-safe.
    pub(super) async fn next(&self) -> Item {
        loop {
            let news = self.news.notified();
            if let Some(item) = self.pop() {
                return item;
            }
            news.await;
        }
    }

    fn pop(&self) -> Option<Item> {
        let mut index = self.index.lock();
        while let Some(uid) = index.work.pop_first() {
            if let Some(item) = index.item(&uid) {
                return Some(item);
            }
        }
        None
    }

    /// Lists an object for processing again. Returns false when it is gone.
    pub(super) fn retry(&self, uid: &str) -> bool {
        let mut index = self.index.lock();
        let is_there = index.nodes.contains_key(uid);
        if is_there {
            index.work.insert(uid.to_owned());
            self.news.notify_one();
        }
        is_there
    }

    /// Takes an item for processing now, if it still exists, and removes it from the work list.
    pub(super) fn take(&self, uid: &str) -> Option<Item> {
        let mut index = self.index.lock();
        index.work.remove(uid);
        index.item(uid)
    }

    /// Lists all objects again that have owners or wait for their dependents.
    pub(super) fn retry_all(&self) {
        let mut index = self.index.lock();
        let relevant = |node: &TrackedObject| !node.owners.is_empty() || node.waits.is_some();
        let uids: Vec<String> =
            index.nodes.iter().filter(|(_, node)| relevant(node)).map(|(uid, _)| uid.to_string()).collect();
        index.work.extend(uids);
        self.news.notify_one();
    }

    /// The dependents of an owner, and whether each blocks its foreground deletion.
    pub(super) fn dependents(&self, owner: &str) -> Vec<(Item, bool)> {
        let index = self.index.lock();
        let uids = index.dependents.get(owner).into_iter().flatten();
        let items = uids.filter_map(|uid| index.item(uid));
        items
            .map(|item| {
                let own = item.owners.iter().find(|(reference, _)| reference.uid == owner);
                let blocks = own.is_some_and(|(reference, _)| reference.block_owner_deletion == Some(true));
                (item, blocks)
            })
            .collect()
    }
}

impl OwnershipIndex {
    fn put(&mut self, stored: &Stored, metadata: Metadata) {
        let uid = stored.uid.as_str();
        let deleting = metadata.deletion_timestamp.is_some();
        let waits = [FOREGROUND, ORPHAN]
            .into_iter()
            .find(|own| deleting && metadata.finalizers.iter().any(|f| f == own));
        let old = self.nodes.get(uid);
        let same_owners = old.is_some_and(|old| *old.owners == *metadata.owner_references);
        let began_to_wait = waits.is_some() && old.is_none_or(|old| old.waits != waits);
        if !same_owners {
            self.unlink(uid);
            for owner in &metadata.owner_references {
                self.dependents.entry(owner.uid.clone()).or_default().insert(uid.to_owned());
            }
        }
        if began_to_wait || (!same_owners && !metadata.owner_references.is_empty()) {
            self.work.insert(uid.to_owned());
        }
        if began_to_wait {
            self.work.extend(self.dependents.get(uid).into_iter().flatten().cloned());
        }
        let owners: Box<[Owner]> = metadata.owner_references.into();
        self.notify_waiting_owners(&owners);
        let (key, revision) = (stored.key.clone(), stored.revision);
        self.nodes.insert(stored.uid.clone(), TrackedObject { key, revision, owners, waits });
    }

    fn remove(&mut self, uid: &str) {
        self.unlink(uid);
        self.work.remove(uid);
        if let Some(node) = self.nodes.remove(uid) {
            self.notify_waiting_owners(&node.owners);
        }
        self.depart(uid);
    }

    /// Lists the dependents of an owner that is gone.
    fn depart(&mut self, uid: &str) {
        if let Some(dependents) = self.dependents.get(uid) {
            self.departed.insert(uid.to_owned());
            self.work.extend(dependents.iter().cloned());
        }
    }

    /// Lists those owners again that wait for a changed dependent.
    fn notify_waiting_owners(&mut self, owners: &[Owner]) {
        for owner in owners {
            if self.nodes.get(owner.uid.as_str()).is_some_and(|node| node.waits.is_some()) {
                self.work.insert(owner.uid.clone());
            }
        }
    }

    fn unlink(&mut self, uid: &str) {
        let Some(node) = self.nodes.get(uid) else { return };
        for owner in &node.owners {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.departed.remove(&owner.uid);
                    self.dependents.remove(&owner.uid);
                }
            }
        }
    }

    fn item(&self, uid: &str) -> Option<Item> {
        let node = self.nodes.get(uid)?;
        let owners =
            node.owners.iter().map(|owner| (owner.clone(), self.presence(owner, &node.key))).collect();
        let (key, revision) = (node.key.clone(), node.revision);
        Some(Item { uid: uid.to_owned(), key, revision, owners, waits: node.waits })
    }

    /// The presence of an owner. It must be in the dependent's namespace or cluster-scoped (Kubernetes: owners and
    /// dependents).
    fn presence(&self, owner: &Owner, dependent: &ObjectKey) -> Presence {
        match self.nodes.get(owner.uid.as_str()) {
            Some(node)
                if !node.key.namespace().is_empty() && node.key.namespace() != dependent.namespace() =>
            {
                Presence::Absent
            }
            Some(node) if node.waits == Some(FOREGROUND) => Presence::Waiting,
            Some(_) => Presence::Solid,
            None if self.departed.contains(&owner.uid) => Presence::Absent,
            None => Presence::Unseen,
        }
    }
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "literals read better by value in tests")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::core;

    fn stored(uid: &str, namespace: &str, metadata: Value) -> Stored {
        let key = ObjectKey::new(core("configmaps"), namespace, uid);
        let body = bytes::Bytes::from(json!({"metadata": metadata}).to_string());
        Stored::new(key, Uid::parse(uid).unwrap(), Revision(1), body)
    }

    fn owned_by(owners: &[&str]) -> Value {
        let owners: Vec<Value> =
            owners.iter().map(|uid| json!({"uid": uid, "blockOwnerDeletion": true})).collect();
        json!({"ownerReferences": owners})
    }

    fn work(ownership: &Ownership) -> Vec<String> {
        std::iter::from_fn(|| ownership.pop()).map(|item| item.uid).collect()
    }

    #[test]
    fn removal_of_an_owner_queues_its_dependents() {
        let ownership = Ownership::default();
        ownership.apply(&stored("owner", "shop", json!({})), false);
        ownership.apply(&stored("child", "shop", owned_by(&["owner"])), false);
        assert_eq!(work(&ownership), ["child"], "new owners are checked");
        ownership.apply(&stored("child", "shop", owned_by(&["owner"])), false);
        assert!(work(&ownership).is_empty(), "the index has not changed");
        ownership.apply(&stored("owner", "shop", json!({})), true);
        let item = ownership.pop().unwrap();
        assert_eq!((item.uid.as_str(), item.owners[0].1), ("child", Presence::Absent));
        ownership.apply(&stored("child", "shop", owned_by(&["owner"])), true);
        let index = ownership.index.lock();
        assert!(index.nodes.is_empty() && index.dependents.is_empty() && index.work.is_empty());
    }

    #[test]
    fn waiting_owner_is_rechecked_when_a_dependent_is_deleted() {
        let ownership = Ownership::default();
        ownership.apply(&stored("owner", "shop", json!({})), false);
        ownership.apply(&stored("child", "shop", owned_by(&["owner"])), false);
        work(&ownership);
        let waiting = json!({"finalizers": [FOREGROUND], "deletionTimestamp": "2026-01-01T00:00:00Z"});
        ownership.apply(&stored("owner", "shop", waiting), false);
        assert_eq!(work(&ownership), ["child", "owner"]);
        let dependents = ownership.dependents("owner");
        assert!(dependents.len() == 1 && dependents[0].1);
        assert_eq!(dependents[0].0.owners[0].1, Presence::Waiting);
        ownership.apply(&stored("child", "shop", owned_by(&["owner"])), true);
        assert_eq!(work(&ownership), ["owner"]);
        assert!(ownership.dependents("owner").is_empty());
    }

    #[test]
    fn owner_in_another_namespace_is_ignored() {
        let ownership = Ownership::default();
        ownership.apply(&stored("owner", "home", json!({})), false);
        ownership.apply(&stored("child", "shop", owned_by(&["owner"])), false);
        assert_eq!(ownership.pop().unwrap().owners[0].1, Presence::Absent);
    }
}
