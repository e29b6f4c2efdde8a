//! ConfigMaps and Secrets: in memory only while a pod on an edge node refers to them.

use std::sync::Arc;

use tombolo_proto::ObjectKey;

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
        // A read may have brought something newer than the watch shows yet, and the other way round.
        if newest.is_some_and(|newest| newest > revision) {
            return Ok(());
        }
        let key = self.down.location.shared(&key);
        let mut object = kind.trimmed(raw)?.object;
        if object.body.is_empty() {
            self.set_config(&key, Cached::Withheld(object.version));
            self.warn_of_unread(&key);
            return Ok(());
        }
        object.key = key.clone();
        let object = Arc::new(object);
        let same = current
            .as_ref()
            .and_then(Cached::version)
            .is_some_and(|version| version.uid == object.version.uid && version.hash == object.version.hash);
        if same {
            self.down.objects.insert(key, Cached::Present(object));
        } else {
            self.set_config(&key, Cached::Present(object));
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

    /// The state of a referenced object has changed for all nodes that need it.
    pub(super) fn set_config(&mut self, key: &ObjectKey, cached: Cached) {
        self.down.objects.insert(key.clone(), cached);
        self.look_again(key);
    }
}
