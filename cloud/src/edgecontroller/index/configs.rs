//! ConfigMaps and Secrets: in memory only while a pod on an edge node refers to them.

use std::sync::Arc;

use tombolo_proto::ObjectKey;

use super::needed_objects::holder_of;
use super::room::{Item, ItemPriority};
use super::{Cached, Index, Kind, ObjectError, RawObject};

impl Index {
    pub(super) fn config_applied(&mut self, kind: Kind, raw: RawObject) -> Result<(), ObjectError> {
        let key = raw.key(&kind.resource());
        if !self.down.location.is_referenced(&key) {
            return Ok(());
        }
        let revision = raw.revision()?;
        let current = self.down.objects.get(&key).map(|cached| cached.clone());
        let newest = match &current {
            Some(Cached::Absent(gone)) => Some(*gone),
            cached => cached.as_ref().and_then(Cached::version).map(|version| version.revision),
        };
        // A read may return a newer version than the watch has shown, and the other way round.
        if newest.is_some_and(|newest| newest > revision) {
            return Ok(());
        }
        let key = self.down.location.shared(&key);
        let mut object = kind.trimmed(raw)?.object;
        if object.body.is_empty() {
            self.set_config(&key, Cached::Withheld(object.version));
            self.give_up(&Item::Body(key.clone()));
            self.warn_of_unread(&key);
            return Ok(());
        }
        object.key = key.clone();
        let fits = self.has_room(&key, &holder_of(&key), ItemPriority::Body, object.body.len());
        if !self.down.location.is_referenced(&key) {
            // The pod that refers to it was dropped to make room.
            self.forget(&key);
            return Ok(());
        }
        let same = match &current {
            Some(Cached::Present(known)) if fits => {
                known.version.uid == object.version.uid && known.version.hash == object.version.hash
            }
            Some(Cached::Withheld(_)) => !fits,
            _ => false,
        };
        let cached = match fits {
            true => Cached::Present(Arc::new(object)),
            false => Cached::Withheld(object.version),
        };
        if same {
            self.down.objects.insert(key, cached);
        } else {
            self.set_config(&key, cached);
        }
        Ok(())
    }

    fn warn_of_unread(&self, key: &ObjectKey) {
        let node = self.down.location.nodes_of(key).into_iter().next();
        if let Some(node) = node
            && let Some(left_out) = self.lines.admit(&node)
        {
            tracing::warn!(%key, %node, left_out, "an object that a node needs has too many parts: it is not delivered");
        }
    }

    pub(super) fn config_deleted(&mut self, kind: Kind, raw: &RawObject) -> Result<(), ObjectError> {
        let key = raw.key(&kind.resource());
        let revision = raw.revision()?;
        let newer = self.down.objects.get(&key).is_some_and(|cached| match &*cached {
            Cached::Absent(gone) => *gone > revision,
            cached => cached.version().is_some_and(|version| version.revision > revision),
        });
        if !newer && self.down.location.is_referenced(&key) {
            self.set_config(&key, Cached::Absent(revision));
        }
        Ok(())
    }

    /// Stores the state of a referenced object and offers it to all nodes that need it.
    pub(super) fn set_config(&mut self, key: &ObjectKey, cached: Cached) {
        let is_there = cached.version().is_some();
        self.down.objects.insert(key.clone(), cached);
        if !is_there {
            self.give_up(&Item::Body(key.clone()));
        }
        self.look_again(key);
    }
}
