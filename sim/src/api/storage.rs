//! What etcd and the watch cache are in a cluster: all objects under one revision, and the changes that led to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::kinds::KindKey;
use super::object;

/// How a change appears in a watch of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeType {
    /// The object was created.
    Added,
    /// The object was written.
    Modified,
    /// The object was removed.
    Deleted,
}

/// One write.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectChange {
    /// The revision that it has made.
    pub revision: u64,
    /// Number of restored backups before it: a revision names a write only together with this.
    pub era: u64,
    /// Time since the model began.
    pub at: Duration,
    /// User that made it, after impersonation.
    pub caller: String,
    /// Kind of the object.
    pub kind: KindKey,
    /// Namespace of the object; empty for objects of the cluster.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// What was done.
    pub what: ChangeType,
    /// The object after the write; after a deletion its last state, with the revision of the deletion.
    pub object: Arc<Value>,
    /// The object before the write.
    pub before: Option<Arc<Value>>,
}

/// Objects of one kind by their place.
pub(super) type ObjectMap = BTreeMap<String, Arc<Value>>;

/// Interval of compaction. History is kept from one interval to two (`k8s.io/apiserver/pkg/storage/etcd3/compact.go`).
const COMPACTION_INTERVAL: Duration = Duration::from_secs(300);

/// The watch cache keeps at least this many changes of a kind, and all that are younger than [`CACHE_FRESH`].
const CACHE_EVENTS: usize = 100;
const CACHE_FRESH: Duration = Duration::from_secs(75);

/// Who makes a write, and when.
#[derive(Debug, Clone, Copy)]
pub(super) struct WriteStamp<'a> {
    pub(super) caller: &'a str,
    pub(super) at: Duration,
}

/// Objects and history.
#[derive(Debug, Default)]
pub(super) struct ObjectStorage {
    revision: u64,
    objects: BTreeMap<KindKey, ObjectMap>,
    /// The changes of this era, by revision.
    changes: Vec<Arc<ObjectChange>>,
    /// All changes since the model began, also those that a restored backup took back.
    recorded: Vec<Arc<ObjectChange>>,
    /// Revision up to which the history was compacted on demand.
    compacted: u64,
    /// Revision at which the watch cache began.
    cache_from: u64,
    era: u64,
    /// When each pod was bound, by its UID.
    bound: BTreeMap<String, Duration>,
}

impl ObjectStorage {
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Number of backups that were restored.
    pub(super) fn era(&self) -> u64 {
        self.era
    }

    pub(super) fn recorded(&self) -> &[Arc<ObjectChange>] {
        &self.recorded
    }

    pub(super) fn changes(&self) -> &[Arc<ObjectChange>] {
        &self.changes
    }

    pub(super) fn get(&self, kind: &KindKey, place: &str) -> Option<&Arc<Value>> {
        self.objects.get(kind)?.get(place)
    }

    /// The objects of a kind, in the order of their places.
    pub(super) fn all<'s>(
        &'s self,
        kind: &KindKey,
    ) -> impl Iterator<Item = (&'s String, &'s Arc<Value>)> + use<'s> {
        self.objects.get(kind).into_iter().flatten()
    }

    /// All objects of all kinds.
    pub(super) fn everything(&self) -> impl Iterator<Item = (&KindKey, &Arc<Value>)> {
        self.objects.iter().flat_map(|(kind, objects)| objects.values().map(move |object| (kind, object)))
    }

    /// When a pod was bound to its node.
    pub(super) fn bound_at(&self, uid: &str) -> Option<Duration> {
        self.bound.get(uid).copied()
    }

    /// Stores an object under the next revision.
    pub(super) fn put(
        &mut self,
        kind: &KindKey,
        place: &str,
        mut object: Value,
        stamp: WriteStamp<'_>,
    ) -> Arc<Value> {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let is_bound = kind.resource == "pods" && !object::text(&object, "/spec/nodeName").is_empty();
        if is_bound {
            self.bound.entry(object::uid(&object).to_owned()).or_insert(stamp.at);
        }
        let object = Arc::new(object);
        let objects = self.objects.entry(kind.clone()).or_default();
        let before = objects.insert(place.to_owned(), Arc::clone(&object));
        let what = if before.is_some() { ChangeType::Modified } else { ChangeType::Added };
        self.record(kind, what, &object, before, stamp);
        object
    }

    /// Removes an object; returns its last state, with the revision of the deletion.
    pub(super) fn remove(
        &mut self,
        kind: &KindKey,
        place: &str,
        stamp: WriteStamp<'_>,
    ) -> Option<Arc<Value>> {
        let before = self.objects.get_mut(kind)?.remove(place)?;
        self.revision += 1;
        let mut last = (*before).clone();
        last["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let last = Arc::new(last);
        self.record(kind, ChangeType::Deleted, &last, Some(before), stamp);
        Some(last)
    }

    fn record(
        &mut self,
        kind: &KindKey,
        what: ChangeType,
        object: &Arc<Value>,
        before: Option<Arc<Value>>,
        stamp: WriteStamp<'_>,
    ) {
        let change = Arc::new(ObjectChange {
            revision: self.revision,
            era: self.era,
            at: stamp.at,
            caller: stamp.caller.to_owned(),
            kind: kind.clone(),
            namespace: object::namespace(object).to_owned(),
            name: object::name(object).to_owned(),
            what,
            object: Arc::clone(object),
            before,
        });
        self.changes.push(Arc::clone(&change));
        self.recorded.push(change);
    }

    /// The objects of a kind as they were at a revision.
    pub(super) fn state_at(&self, kind: &KindKey, revision: u64) -> ObjectMap {
        let mut state = self.objects.get(kind).cloned().unwrap_or_default();
        for change in self.changes.iter().rev().take_while(|change| change.revision > revision) {
            if change.kind != *kind {
                continue;
            }
            let place = if change.namespace.is_empty() {
                change.name.clone()
            } else {
                format!("{}/{}", change.namespace, change.name)
            };
            match &change.before {
                Some(before) => drop(state.insert(place, Arc::clone(before))),
                None => drop(state.remove(&place)),
            }
        }
        state
    }

    /// Index of the first change after a revision.
    pub(super) fn after(&self, revision: u64) -> usize {
        self.changes.partition_point(|change| change.revision <= revision)
    }

    /// The revision that somebody knows who hears of everything so much later.
    pub(super) fn revision_seen(&self, now: Duration, lag: Duration) -> u64 {
        let seen = self.changes.partition_point(|change| change.at + lag <= now);
        match (seen, self.changes.get(seen)) {
            (_, None) => self.revision,
            (0, Some(first)) => first.revision - 1,
            (seen, Some(_)) => self.changes[seen - 1].revision,
        }
    }

    /// The oldest revision whose state can still be listed.
    pub(super) fn oldest_state(&self, now: Duration) -> u64 {
        let ticks = u32::try_from(now.as_secs() / COMPACTION_INTERVAL.as_secs()).unwrap_or(u32::MAX);
        let by_time = match ticks.checked_sub(1) {
            None | Some(0) => 0,
            Some(before) => {
                let until = COMPACTION_INTERVAL * before;
                let count = self.changes.partition_point(|change| change.at <= until);
                count.checked_sub(1).map_or(0, |last| self.changes[last].revision)
            }
        };
        self.compacted.max(by_time)
    }

    /// The oldest revision from which a kind can still be watched.
    pub(super) fn oldest_watch(&self, kind: &KindKey, now: Duration) -> u64 {
        let of_kind = self.changes.iter().rev().filter(|change| change.kind == *kind);
        let mut old = of_kind.skip(CACHE_EVENTS).filter(|change| change.at + CACHE_FRESH < now);
        let dropped = old.next().map_or(0, |change| change.revision);
        self.cache_from.max(self.compacted).max(dropped)
    }

    /// Forgets the history up to now.
    pub(super) fn compact(&mut self) {
        self.compacted = self.revision;
    }

    /// The watch cache begins anew, as after a restart.
    pub(super) fn restart_cache(&mut self) {
        self.cache_from = self.revision;
    }

    /// Goes back to the state of an earlier revision of this era. False when there is no such revision.
    pub(super) fn restore(&mut self, revision: u64) -> bool {
        let begin = self.changes.first().map_or(self.revision, |first| first.revision - 1);
        if revision > self.revision || revision < begin {
            return false;
        }
        let kinds: Vec<KindKey> = self.objects.keys().cloned().collect();
        for kind in kinds {
            let state = self.state_at(&kind, revision);
            self.objects.insert(kind, state);
        }
        self.changes.truncate(self.after(revision));
        self.revision = revision;
        self.compacted = self.compacted.min(revision);
        self.era += 1;
        self.restart_cache();
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stamp(seconds: u64) -> WriteStamp<'static> {
        WriteStamp { caller: "c", at: Duration::from_secs(seconds) }
    }

    fn pods() -> KindKey {
        KindKey::new("", "pods")
    }

    fn put(storage: &mut ObjectStorage, name: &str, value: u64, seconds: u64) {
        let object = json!({"metadata": {"namespace": "d", "name": name}, "value": value});
        storage.put(&pods(), &format!("d/{name}"), object, stamp(seconds));
    }

    fn values(state: &ObjectMap) -> Vec<(&str, u64)> {
        state.iter().map(|(place, object)| (&**place, object["value"].as_u64().expect("a number"))).collect()
    }

    #[test]
    fn every_write_has_a_revision_and_every_revision_a_state() {
        let mut storage = ObjectStorage::default();
        put(&mut storage, "a", 1, 0);
        put(&mut storage, "b", 2, 1);
        put(&mut storage, "a", 3, 2);
        let last = storage.remove(&pods(), "d/b", stamp(3)).expect("there was one");
        assert_eq!((object::version(&last), storage.revision()), (4, 4));
        assert_eq!(values(&storage.state_at(&pods(), 0)), []);
        assert_eq!(values(&storage.state_at(&pods(), 2)), [("d/a", 1), ("d/b", 2)]);
        assert_eq!(values(&storage.state_at(&pods(), 3)), [("d/a", 3), ("d/b", 2)]);
        assert_eq!(values(&storage.state_at(&pods(), 4)), [("d/a", 3)]);
        let what: Vec<ChangeType> = storage.recorded().iter().map(|change| change.what).collect();
        use ChangeType::{Added, Deleted, Modified};
        assert_eq!(what, [Added, Added, Modified, Deleted]);
        assert_eq!(storage.revision_seen(Duration::from_secs(3), Duration::from_secs(2)), 2);
        assert_eq!(storage.revision_seen(Duration::from_secs(3), Duration::ZERO), 4);
        assert_eq!(storage.revision_seen(Duration::from_secs(1), Duration::from_secs(9)), 0);
    }

    #[test]
    fn a_restored_backup_takes_back_what_came_after_it_but_not_the_record() {
        let mut storage = ObjectStorage::default();
        put(&mut storage, "a", 1, 0);
        put(&mut storage, "a", 2, 1);
        put(&mut storage, "b", 3, 2);
        assert!(!storage.restore(9));
        assert!(storage.restore(1));
        assert_eq!(values(&storage.state_at(&pods(), 1)), [("d/a", 1)]);
        put(&mut storage, "a", 4, 3);
        assert_eq!((storage.revision(), storage.changes().len()), (2, 2));
        let recorded: Vec<(u64, u64)> =
            storage.recorded().iter().map(|change| (change.era, change.revision)).collect();
        assert_eq!(recorded, [(0, 1), (0, 2), (0, 3), (1, 2)]);
        assert_eq!(storage.oldest_watch(&pods(), Duration::from_secs(3)), 1, "the cache began at the backup");
    }

    #[test]
    fn history_is_compacted_by_time_and_the_cache_by_number_and_age() {
        let mut storage = ObjectStorage::default();
        for number in 0..150 {
            put(&mut storage, "a", number, number);
        }
        let at = Duration::from_secs;
        assert_eq!(storage.oldest_state(at(599)), 0);
        assert_eq!(storage.oldest_state(at(600)), 150, "all of it is older than one interval");
        assert_eq!(storage.oldest_watch(&pods(), at(75)), 0);
        assert_eq!(storage.oldest_watch(&pods(), at(149)), 50);
        assert_eq!(storage.oldest_watch(&KindKey::new("", "nodes"), at(149)), 0);
        storage.compact();
        assert_eq!(storage.oldest_state(at(149)), 150);
    }
}
