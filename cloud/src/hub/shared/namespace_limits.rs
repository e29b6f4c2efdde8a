//! Limits for the namespaces in a copy that all nodes follow. A user who may write in one namespace must not be able to
//! end the watch for all nodes. So when room runs out, objects of the largest namespace are withheld.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tombolo_proto::limits::FOLLOWED_MAX;
use tombolo_proto::object::{ContentHash, ObjectVersion, SharedObject};
use tombolo_proto::{NodeId, ObjectKey};

use super::SharedWatch;
use crate::hub::shared::interned::Stored;

/// Number of objects of one kind from which on a namespace that has more than all others together gives way. An edge
/// follows [`FOLLOWED_MAX`] of all kinds together.
const LIMITED_FROM: usize = FOLLOWED_MAX / 3;

/// Objects that were left out come back when this fraction (one part in so many) of the slots is free.
pub(super) const FREE_PART: usize = 16;

/// The namespaces of one copy.
#[derive(Debug, Default)]
pub(super) struct NamespaceUsages {
    usages: HashMap<Box<str>, NamespaceUsage>,
    /// Number of objects whose bodies had to give way.
    gave_way: usize,
    /// Namespaces with objects that exist but found no slot in the copy.
    left_out: HashSet<Box<str>>,
    /// Those namespaces, as the running list has shown them; none when no list is running.
    listed: Option<HashSet<Box<str>>>,
}

#[derive(Debug, Default)]
struct NamespaceUsage {
    objects: usize,
    bytes: usize,
    /// Objects with a body, by size.
    bodies: BTreeSet<(usize, ObjectKey)>,
}

impl NamespaceUsages {
    pub(super) fn add(&mut self, stored: &Stored) {
        let key = &stored.object.key;
        let usage = self.usages.entry(key.namespace().into()).or_default();
        usage.objects += 1;
        self.gave_way += usize::from(stored.gave_way());
        usage.bytes += stored.bytes();
        if !stored.is_withheld() {
            usage.bodies.insert((stored.bytes(), key.clone()));
        }
    }

    pub(super) fn remove(&mut self, stored: &Stored) {
        let key = &stored.object.key;
        let Some(usage) = self.usages.get_mut(key.namespace()) else { return };
        usage.objects -= 1;
        self.gave_way -= usize::from(stored.gave_way());
        usage.bytes -= stored.bytes();
        usage.bodies.remove(&(stored.bytes(), key.clone()));
        if usage.objects == 0 {
            self.usages.remove(key.namespace());
        }
    }

    /// The namespace with the most objects, and their number.
    fn most_objects(&self) -> Option<(&str, usize)> {
        let most = self.usages.iter().max_by_key(|(_, usage)| usage.objects);
        most.map(|(namespace, usage)| (&**namespace, usage.objects))
            .filter(|(namespace, _)| !namespace.is_empty())
    }

    /// Number of objects of a namespace.
    fn objects(&self, namespace: &str) -> usize {
        self.usages.get(namespace).map_or(0, |usage| usage.objects)
    }

    /// The namespace with the most bytes, and their number.
    fn most_bytes(&self) -> Option<(&str, usize)> {
        let most = self.usages.iter().max_by_key(|(_, usage)| usage.bytes);
        most.map(|(namespace, usage)| (&**namespace, usage.bytes))
            .filter(|(namespace, _)| !namespace.is_empty())
    }

    fn leave_out(&mut self, namespace: &str) {
        self.left_out.insert(namespace.into());
        if let Some(listed) = &mut self.listed {
            listed.insert(namespace.into());
        }
    }

    /// A complete list begins.
    pub(super) fn list_begins(&mut self) {
        self.listed = Some(HashSet::new());
    }

    /// The list has ended. If it is complete, the namespaces that it left out replace the earlier ones.
    pub(super) fn list_ends(&mut self, complete: bool) {
        let listed = self.listed.take().filter(|_| complete);
        self.left_out = listed.unwrap_or_else(|| std::mem::take(&mut self.left_out));
    }

    /// Whether an object that is not in the copy may exist nevertheless.
    pub(super) fn may_have(&self, key: &ObjectKey) -> bool {
        !self.left_out.is_empty() && self.left_out.contains(key.namespace())
    }
}

impl SharedWatch {
    /// Whether there is a slot for one more object with this key. When all slots are taken, an object of the largest
    /// namespace gives way, which may be this one. From [`LIMITED_FROM`] objects on, one also gives way if that
    /// namespace has more objects than all others together.
    pub(super) fn has_slot(&self, key: &ObjectKey) -> bool {
        let len = self.objects.len();
        if !self.is_common || len < LIMITED_FROM || self.objects.contains_key(key) {
            return true;
        }
        let mut namespaces = self.namespaces.lock();
        let Some((most, objects)) = namespaces.most_objects() else { return true };
        let is_own = most == key.namespace();
        if len < FOLLOWED_MAX && !(is_own && objects * 2 > len) {
            return true;
        }
        let most = most.to_owned();
        namespaces.leave_out(&most);
        self.interned.payers.withheld("objects", &most);
        if is_own {
            return false;
        }
        let other = namespaces.usages.get(&*most).and_then(|usage| usage.bodies.last());
        let other = other.map(|(_, key)| key.clone());
        drop(namespaces);
        if let Some(other) = other.or_else(|| self.one_of(&most)) {
            self.remove(&other);
            self.notify_followers(&other);
        }
        true
    }

    /// The same for an object of a list that has brought `brought` others so far. Nothing gives way before the whole
    /// list is known.
    pub(super) fn has_slot_in_list(&self, key: &ObjectKey, brought: usize) -> bool {
        let (len, namespace) = (self.objects.len() + brought, key.namespace());
        if !self.is_common || len < LIMITED_FROM || namespace.is_empty() || self.objects.contains_key(key) {
            return true;
        }
        let mut namespaces = self.namespaces.lock();
        let has_slot = len < FOLLOWED_MAX && (namespaces.objects(namespace) + brought) * 2 <= len;
        if !has_slot {
            namespaces.leave_out(namespace);
        }
        has_slot
    }

    /// Whether a list would bring back objects that had to give way.
    fn has_room_again(&self) -> bool {
        let namespaces = self.namespaces.lock();
        let (len, most) = (self.objects.len(), namespaces.most_objects().map_or(0, |(_, objects)| objects));
        let is_even = most < len / 2 - len / FREE_PART && len < FOLLOWED_MAX - FOLLOWED_MAX / FREE_PART;
        let has_room =
            namespaces.left_out.is_empty() || len < LIMITED_FROM - LIMITED_FROM / FREE_PART || is_even;
        let is_short = namespaces.gave_way > 0 || !namespaces.left_out.is_empty();
        drop(namespaces);
        is_short
            && has_room
            && self.interned.has_room()
            && self.followers.lock().has_room()
            && self.is_following()
    }

    /// The node in whose list turn withheld objects are read again, if a list would bring them back and no such list is
    /// running. The caller must call [`Self::restored`] when it is done.
    pub(in crate::hub) fn begin_to_restore(&self) -> Option<NodeId> {
        let node = self.has_room_again().then(|| self.followers.lock().any())??;
        (!self.restoring.swap(true, Ordering::AcqRel)).then_some(node)
    }

    /// The work of [`Self::begin_to_restore`] is done.
    pub(in crate::hub) fn restored(&self) {
        self.restoring.store(false, Ordering::Release);
    }

    /// A list has brought an object for which there was no room. A known version of it stays.
    pub(super) fn leave_out(&self, key: &ObjectKey) {
        if !self.objects.contains_key(key) {
            self.namespaces.lock().leave_out(key.namespace());
        }
    }

    fn one_of(&self, namespace: &str) -> Option<ObjectKey> {
        self.objects.iter().map(|entry| entry.key().clone()).find(|key| key.namespace() == namespace)
    }

    /// Size in bytes of the largest namespace of this copy; none if the watch may end for want of memory, or has ended.
    pub(super) fn largest_namespace_bytes(&self) -> Option<usize> {
        let namespaces = self.namespaces.lock();
        namespaces.most_bytes().map(|(_, bytes)| bytes).filter(|_| self.is_common && !self.has_failed())
    }

    /// Withholds the largest object of the largest namespace: sessions that hold it keep it, and others learn that it
    /// cannot be read. The caller must hold no lock.
    pub(super) fn withhold_one(&self) -> bool {
        let _order = self.order.lock();
        let namespaces = self.namespaces.lock();
        let Some((namespace, _)) = namespaces.most_bytes() else { return false };
        let largest = namespaces.usages.get(namespace).and_then(|usage| usage.bodies.last());
        let Some((_, key)) = largest.cloned() else { return false };
        self.interned.payers.withheld("bytes", namespace);
        drop(namespaces);
        let Some(before) = self.objects.get(&key).map(|known| Arc::clone(&known)) else { return false };
        let withheld = self.interned.without_body(without_body(&before.object));
        // This is smaller than before, so it fits.
        self.put(withheld).is_ok()
    }
}

/// The same object without its content, with a version older than any that a list may bring.
fn without_body(object: &SharedObject) -> Arc<SharedObject> {
    let hash = ContentHash(rand::random());
    let version = ObjectVersion { hash, revision: Default::default(), ..object.version.clone() };
    Arc::new(SharedObject::new(object.key.clone(), version, bytes::Bytes::new(), Vec::new()))
}

#[cfg(test)]
mod tests;
