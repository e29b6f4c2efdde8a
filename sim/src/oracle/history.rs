//! The history of the model API: which state every object had at every position.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::content::Facts;
use crate::observation::{ApiWrite, HistoryPosition, Millis, ObjectId};

/// Group of roles and bindings, whose bodies are kept.
pub(super) const RBAC: &str = "rbac.authorization.k8s.io";

/// An object in one version.
#[derive(Debug)]
pub(super) struct PastObject {
    /// What rules ask about it.
    pub(super) facts: Facts,
    /// The whole object, of roles and bindings only.
    pub(super) body: Option<Arc<Value>>,
}

/// A change of one object.
#[derive(Debug, Clone)]
pub(super) struct PastChange {
    /// When.
    pub(super) at: Millis,
    /// Where in the history.
    pub(super) position: HistoryPosition,
    /// The object from then on; `None` if it did not exist.
    pub(super) state: Option<Arc<PastObject>>,
    /// A restored backup does not contain this change.
    undone: bool,
}

/// All changes of all objects.
#[derive(Debug, Default)]
pub(super) struct History {
    objects: BTreeMap<ObjectId, Vec<PastChange>>,
    /// Times with the newest position at that time.
    times: Vec<(Millis, HistoryPosition)>,
}

impl History {
    /// Adds a write.
    pub(super) fn write(&mut self, at: Millis, write: &ApiWrite) {
        let keeps_body = write.object.resource.ends_with(RBAC);
        let state = write.body.as_ref().map(|body| {
            Arc::new(PastObject {
                facts: Facts::read(&write.object, body),
                body: keeps_body.then(|| Arc::clone(body)),
            })
        });
        self.times.push((at, write.position));
        let change = PastChange { at, position: write.position, state, undone: false };
        self.objects.entry(write.object.clone()).or_default().push(change);
    }

    /// Every object is again as it was at this revision.
    pub(super) fn restore(&mut self, at: Millis, position: HistoryPosition) {
        self.times.push((at, position));
        for changes in self.objects.values_mut() {
            for change in changes.iter_mut().filter(|change| change.position.revision > position.revision) {
                change.undone = true;
            }
            let state = changes.iter().rev().find(|change| !change.undone);
            let state = state.and_then(|change| change.state.clone());
            changes.push(PastChange { at, position, state, undone: false });
        }
    }

    /// The newest position.
    #[must_use]
    pub(super) fn now(&self) -> HistoryPosition {
        self.times.last().map_or_else(HistoryPosition::default, |(_, position)| *position)
    }

    /// The newest position at a time; the first of all before the first write.
    #[must_use]
    pub(super) fn at(&self, time: Millis) -> HistoryPosition {
        let before = self.times.partition_point(|(at, _)| *at <= time);
        before.checked_sub(1).map_or_else(HistoryPosition::default, |index| self.times[index].1)
    }

    /// All changes of one object, the oldest first.
    #[must_use]
    pub(super) fn changes(&self, id: &ObjectId) -> &[PastChange] {
        self.objects.get(id).map_or(&[], Vec::as_slice)
    }

    /// The object at a position.
    #[must_use]
    pub(super) fn state(&self, id: &ObjectId, position: HistoryPosition) -> Option<&Arc<PastObject>> {
        let changes = self.changes(id);
        let known = changes.partition_point(|change| change.position <= position);
        changes[..known].last()?.state.as_ref()
    }

    /// The object as it is.
    #[must_use]
    pub(super) fn present(&self, id: &ObjectId) -> Option<&Arc<PastObject>> {
        self.changes(id).last()?.state.as_ref()
    }

    /// Every state of the object from a position until now, each with the position where it began; the state at that
    /// position comes first.
    pub(super) fn states_since(
        &self,
        id: &ObjectId,
        since: HistoryPosition,
    ) -> impl Iterator<Item = (HistoryPosition, Option<&Arc<PastObject>>)> {
        let changes = self.changes(id);
        let known = changes.partition_point(|change| change.position <= since);
        let first = changes[..known].last().and_then(|change| change.state.as_ref());
        let later = changes[known..].iter().map(|change| (change.position, change.state.as_ref()));
        std::iter::once((since, first)).chain(later)
    }

    /// All objects of a kind, deleted ones too; of one namespace unless that is empty.
    pub(super) fn of_kind(
        &self,
        resource: &str,
        namespace: &str,
    ) -> impl Iterator<Item = (&ObjectId, &[PastChange])> {
        let from = ObjectId::new(resource, namespace, "");
        let all = self.objects.range(from..).take_while(move |(id, _)| {
            id.resource == resource && (namespace.is_empty() || id.namespace == namespace)
        });
        all.map(|(id, changes)| (id, changes.as_slice()))
    }

    /// Whether the object existed all the time from a position until now, in one incarnation.
    #[must_use]
    pub(super) fn existed_since(&self, id: &ObjectId, since: HistoryPosition) -> bool {
        let mut uids = self.states_since(id, since).map(|(_, state)| Some(&*state?.facts.version.uid));
        let first = uids.next().flatten();
        first.is_some() && uids.all(|uid| uid == first)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Api, id};

    #[test]
    fn a_restored_backup_gives_back_what_was_there() {
        let mut api = Api::default();
        api.config("a", "1");
        let backup = api.now();
        api.config("a", "2");
        api.config("b", "1");
        api.delete("configmaps/d/a");
        api.restore(backup.revision);
        let (a, b) = (id("configmaps/d/a"), id("configmaps/d/b"));
        assert!(api.history.present(&a).is_some() && api.history.present(&b).is_none());
        assert!(!api.history.existed_since(&a, backup), "it was deleted in between");
        assert!(api.history.existed_since(&a, api.now()));
        assert!(!api.history.existed_since(&b, api.now()));
        api.config("c", "1");
        assert!(api.now() > backup);
    }

    #[test]
    fn another_incarnation_is_another_object() {
        let mut api = Api::default();
        let first = api.config("a", "1");
        api.delete("configmaps/d/a");
        api.config("a", "1");
        assert!(!api.history.existed_since(&id("configmaps/d/a"), first));
        assert_eq!(api.history.states_since(&id("configmaps/d/a"), first).count(), 3);
        assert_eq!(api.history.of_kind("configmaps", "d").count(), 1);
        assert_eq!(api.history.of_kind("configmaps", "e").count(), 0);
    }
}
