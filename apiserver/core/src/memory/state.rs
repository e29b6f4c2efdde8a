//! The current objects, with the history of each resource.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_proto::object::{ObjectKey, Resource};

use crate::history::{Change, Histories, Log};
use crate::store::{Revision, Stored};

use super::SNAPSHOT_AGE_MAX;

/// How often the newest revision is recorded with the current time.
pub(super) const MARK_INTERVAL: Duration = Duration::from_secs(15);

/// Maximum number of withdrawn resources that are remembered individually.
const WITHDRAWN_MAX: usize = 1024;

pub(super) struct State {
    pub(super) tables: HashMap<Resource, ResourceTable>,
    histories: Arc<Histories>,
    /// (time, newest revision at that time), oldest first. At most one per [`MARK_INTERVAL`] within
    /// [`SNAPSHOT_AGE_MAX`].
    marks: VecDeque<(Instant, Revision)>,
    /// Older states can no longer be listed.
    oldest: Revision,
    /// The history before this revision is unknown for resources without a table.
    floor: Revision,
    /// The same for resources that were withdrawn later: clients may have seen their objects.
    withdrawn: HashMap<Resource, Revision>,
}

pub(super) struct ResourceTable {
    pub(super) objects: BTreeMap<ObjectKey, Arc<Stored>>,
    pub(super) log: Arc<Log>,
}

impl State {
    /// An empty state; all history before `start` is unknown.
    pub(super) fn new(start: Revision, histories: Arc<Histories>) -> Self {
        Self {
            tables: HashMap::new(),
            histories,
            marks: VecDeque::new(),
            oldest: start,
            floor: start,
            withdrawn: HashMap::new(),
        }
    }

    pub(super) fn table(&mut self, resource: &Resource) -> &mut ResourceTable {
        let floor = self.floor_of(resource);
        let histories = &self.histories;
        self.tables
            .entry(resource.clone())
            .or_insert_with(|| ResourceTable { objects: BTreeMap::new(), log: histories.log(floor) })
    }

    /// All objects of a resource.
    pub(super) fn objects(&self, resource: &Resource) -> impl Iterator<Item = &Arc<Stored>> {
        self.tables.get(resource).into_iter().flat_map(|table| table.objects.values())
    }

    /// The start of the history of a resource without a table.
    pub(super) fn floor_of(&self, resource: &Resource) -> Revision {
        self.withdrawn.get(resource).copied().unwrap_or(self.floor)
    }

    /// Removes a resource. No events are sent for its objects, so watches from before `newest` must list again when the
    /// resource returns.
    pub(super) fn withdraw(&mut self, resource: &Resource, newest: Revision) {
        let Some(table) = self.tables.remove(resource) else { return };
        table.log.close();
        if self.withdrawn.len() >= WITHDRAWN_MAX {
            // A start that is too late only makes clients list again.
            self.withdrawn.clear();
            self.floor = newest;
        }
        self.withdrawn.insert(resource.clone(), newest);
    }

    /// Records the newest revision at intervals, and drops states that are too old to be listed.
    pub(super) fn mark(&mut self, newest: Revision, now: Instant) {
        while let Some((at, revision)) = self.marks.front().copied()
            && now.duration_since(at) > SNAPSHOT_AGE_MAX
        {
            self.oldest = revision;
            self.marks.pop_front();
        }
        if self.marks.back().is_none_or(|(at, _)| now.duration_since(*at) >= MARK_INTERVAL) {
            self.marks.push_back((now, newest));
        }
    }

    pub(super) fn oldest_snapshot(&self) -> Revision {
        self.oldest
    }

    /// Keeps the histories within their limits.
    pub(super) fn fit(&self) {
        self.histories.fit(self.tables.values().map(|table| &table.log));
    }
}

impl ResourceTable {
    pub(super) fn items(&self, resource: &Resource, namespace: Option<&str>) -> Vec<Arc<Stored>> {
        let Some(namespace) = namespace else {
            return self.objects.values().cloned().collect();
        };
        let start = ObjectKey::new(resource.clone(), namespace, "");
        let range = self.objects.range(start..);
        range
            .take_while(|(key, _)| key.namespace() == namespace)
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }
}

/// Undoes changes, newest first, in a list of objects.
pub(super) fn rewind(items: &mut Vec<Arc<Stored>>, changes: &[Arc<Change>], namespace: Option<&str>) {
    let wanted = |change: &&Arc<Change>| namespace.is_none_or(|own| change.object.key.namespace() == own);
    let mut before: HashMap<&ObjectKey, Option<&Arc<Stored>>> = HashMap::new();
    for change in changes.iter().filter(wanted) {
        before.insert(&change.object.key, change.previous.as_ref());
    }
    if before.is_empty() {
        return;
    }
    items.retain(|item| !before.contains_key(&item.key));
    items.extend(before.into_values().flatten().cloned());
    items.sort_unstable_by(|a, b| a.key.cmp(&b.key));
}
