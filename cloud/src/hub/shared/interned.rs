//! Objects of shared watches, each stored once: an object's body is in memory only one time, however many selections
//! cover it. Also decides who pays for objects that one node alone follows.

use std::sync::{Arc, Weak};

use dashmap::DashMap;
use tombolo_proto::ObjectKey;
use tombolo_proto::object::SharedObject;
use tombolo_runtime::{Budget, Held, Share};

use super::payers::Payers;
use crate::metrics::Metrics;

/// Bytes that an object takes in addition to its body.
const OBJECT_OVERHEAD: usize = 512;

/// Withheld bodies come back when this fraction (one part in so many) of the memory is free.
const FREE_PART: usize = 16;

/// An object and its part of the memory budget that all shared watches have.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) object: Arc<SharedObject>,
    held: Held,
}

impl Stored {
    /// Whether the object exists, but only its version is known here.
    pub(super) fn is_withheld(&self) -> bool {
        self.object.body.is_empty()
    }

    /// Whether the object was read and there is no memory for its body.
    pub(super) fn gave_way(&self) -> bool {
        self.is_withheld() && self.held.bytes() == 0
    }

    /// Bytes that the object takes.
    pub(in crate::hub) fn bytes(&self) -> usize {
        self.held.bytes()
    }
}

/// All objects of one hub's shared watches. Clones share the same state.
#[derive(Debug, Clone)]
pub(in crate::hub) struct Interned {
    objects: Arc<DashMap<ObjectKey, Weak<Stored>>>,
    share: Share,
    pub(in crate::hub) payers: Payers,
}

impl Interned {
    /// Room for objects of `bytes` bytes in total.
    pub(in crate::hub) fn new(bytes: usize) -> Self {
        let share = Budget::new(bytes).share(bytes);
        Self { objects: Arc::default(), share, payers: Payers::new(bytes) }
    }

    /// The same, and counts in `metrics` what ends because memory runs out.
    pub(in crate::hub) fn counted(self, metrics: &Metrics) -> Self {
        Self { payers: self.payers.counted(metrics), ..self }
    }

    /// Bytes of all objects.
    pub(in crate::hub) fn bytes(&self) -> usize {
        self.share.used()
    }

    /// The stored object of the same version if there is one, otherwise this object; none when there is no memory left
    /// for it.
    pub(super) fn keep(&self, object: &Arc<SharedObject>) -> Option<Arc<Stored>> {
        let mut entry = self.objects.entry(object.key.clone()).or_default();
        if let Some(known) = entry.upgrade()
            && known.object.version == object.version
        {
            return Some(known);
        }
        let held = self.share.take(object.body.len().saturating_add(OBJECT_OVERHEAD))?;
        let stored = Arc::new(Stored { object: Arc::clone(object), held });
        *entry = Arc::downgrade(&stored);
        Some(stored)
    }

    /// An object whose body is withheld from its followers. It takes no memory from the budget and is not shared.
    pub(super) fn without_body(&self, object: Arc<SharedObject>) -> Arc<Stored> {
        Arc::new(Stored { object, held: self.share.nothing() })
    }

    /// Whether enough of the memory is free to restore withheld bodies.
    pub(super) fn has_room(&self) -> bool {
        self.share.room() >= self.share.max() / FREE_PART
    }

    /// Forgets the objects that no watch holds any more.
    pub(in crate::hub) fn sweep(&self) {
        self.objects.retain(|_, object| object.strong_count() > 0);
        self.payers.sweep();
    }
}

#[cfg(test)]
mod tests {
    use tombolo_proto::object::{ContentHash, ObjectVersion, Resource};
    use tombolo_proto::{CloudRevision, Uid};

    use super::*;

    fn object(name: &str, revision: u64) -> Arc<SharedObject> {
        let key = ObjectKey::new(Resource::new("", "v1", "services"), "d", name);
        let uid = Uid::parse("u").expect("a UID");
        let version =
            ObjectVersion { uid, revision: CloudRevision(revision), hash: ContentHash(revision.into()) };
        Arc::new(SharedObject::new(key, version, vec![b'x'; 100 * 1024].into(), Vec::new()))
    }

    #[test]
    fn shared_object_is_stored_once_and_the_total_is_bounded() {
        let interned = Interned::new(350 * 1024);
        let first = interned.keep(&object("a", 1)).expect("room");
        let again: Vec<_> = (0..100).map(|_| interned.keep(&object("a", 1)).expect("known")).collect();
        assert!(again.iter().all(|other| Arc::ptr_eq(&first, other)));
        let newer = interned.keep(&object("a", 2)).expect("another version");
        assert!(!Arc::ptr_eq(&first, &newer));
        let third = interned.keep(&object("b", 3)).expect("room");
        assert!(interned.keep(&object("c", 4)).is_none(), "the whole is used up");
        drop((first, again));
        assert!(interned.keep(&object("c", 4)).is_some());
        drop((newer, third));
        interned.sweep();
        assert!(interned.objects.is_empty());
    }
}
