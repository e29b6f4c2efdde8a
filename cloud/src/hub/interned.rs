//! Objects of shared watches, each once: however many selections cover an object, its body is in memory one time.

use std::sync::{Arc, Weak};

use dashmap::DashMap;
use tombolo_proto::ObjectKey;
use tombolo_proto::object::SharedObject;
use tombolo_runtime::{Budget, Held, Share};

/// Bytes that an object takes besides its body.
const OBJECT_OVERHEAD: usize = 512;

/// An object and its part of the memory that all shared watches have.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) object: Arc<SharedObject>,
    _held: Held,
}

/// All objects of one hub's shared watches. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Interned {
    objects: Arc<DashMap<ObjectKey, Weak<Stored>>>,
    share: Share,
}

impl Interned {
    pub(super) fn new(bytes: &Budget) -> Self {
        Self { objects: Arc::default(), share: bytes.share(usize::MAX) }
    }

    /// The object as somebody has it already, or as it is; none when there is no memory left for it.
    pub(super) fn keep(&self, object: SharedObject) -> Option<Arc<Stored>> {
        let mut entry = self.objects.entry(object.key.clone()).or_default();
        if let Some(known) = entry.upgrade()
            && known.object.version == object.version
        {
            return Some(known);
        }
        let held = self.share.take(object.body.len().saturating_add(OBJECT_OVERHEAD))?;
        let stored = Arc::new(Stored { object: Arc::new(object), _held: held });
        *entry = Arc::downgrade(&stored);
        Some(stored)
    }

    /// Forgets the objects that nobody has any more.
    pub(super) fn sweep(&self) {
        self.objects.retain(|_, object| object.strong_count() > 0);
    }
}

#[cfg(test)]
mod tests {
    use tombolo_proto::object::{ContentHash, ObjectVersion, Resource};
    use tombolo_proto::{CloudRevision, Uid};

    use super::*;

    fn object(name: &str, revision: u64) -> SharedObject {
        let key = ObjectKey::new(Resource::new("", "v1", "services"), "d", name);
        let uid = Uid::parse("u").expect("a UID");
        let version =
            ObjectVersion { uid, revision: CloudRevision(revision), hash: ContentHash(revision.into()) };
        SharedObject::new(key, version, vec![b'x'; 100 * 1024].into(), Vec::new())
    }

    #[test]
    fn an_object_is_there_once_and_the_whole_is_bounded() {
        let budget = Budget::new(350 * 1024);
        let interned = Interned::new(&budget);
        let first = interned.keep(object("a", 1)).expect("room");
        let again: Vec<_> = (0..100).map(|_| interned.keep(object("a", 1)).expect("known")).collect();
        assert!(again.iter().all(|other| Arc::ptr_eq(&first, other)));
        let newer = interned.keep(object("a", 2)).expect("another version");
        assert!(!Arc::ptr_eq(&first, &newer));
        let third = interned.keep(object("b", 3)).expect("room");
        assert!(interned.keep(object("c", 4)).is_none(), "the whole is used up");
        drop((first, again));
        assert!(interned.keep(object("c", 4)).is_some());
        drop((newer, third));
        interned.sweep();
        assert!(interned.objects.is_empty());
    }
}
