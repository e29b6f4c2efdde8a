//! What is stored now, with the history of each resource.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_proto::object::{ObjectKey, Resource};

use crate::history::{Change, Log, LogLimits};
use crate::store::{Revision, Stored};

use super::SNAPSHOT_AGE_MAX;

/// How often a revision is remembered with the time at which it was current.
const MARK_INTERVAL: Duration = Duration::from_secs(15);

#[derive(Default)]
pub(super) struct State {
    pub(super) tables: HashMap<Resource, Table>,
    /// (when, revision that was the newest then), oldest first.
    marks: VecDeque<(Instant, Revision)>,
    start: Revision,
}

pub(super) struct Table {
    pub(super) objects: BTreeMap<ObjectKey, Arc<Stored>>,
    pub(super) log: Arc<Log>,
}

impl State {
    /// Nothing yet; all history before `start` is unknown.
    pub(super) fn new(start: Revision) -> Self {
        Self { start, ..Self::default() }
    }

    pub(super) fn table(&mut self, resource: &Resource, limits: LogLimits) -> &mut Table {
        let start = self.start;
        self.tables
            .entry(resource.clone())
            .or_insert_with(|| Table { objects: BTreeMap::new(), log: Log::new(start, limits) })
    }

    /// Remembers now and then which revision was the newest.
    pub(super) fn mark(&mut self, newest: Revision) {
        let now = Instant::now();
        if self.marks.back().is_some_and(|(at, _)| now.duration_since(*at) < MARK_INTERVAL) {
            return;
        }
        self.marks.push_back((now, newest));
        while self.marks.get(1).is_some_and(|(at, _)| now.duration_since(*at) > SNAPSHOT_AGE_MAX) {
            self.marks.pop_front();
        }
    }

    pub(super) fn oldest_snapshot(&self) -> Revision {
        let old = self.marks.iter().take_while(|(at, _)| at.elapsed() > SNAPSHOT_AGE_MAX).last();
        old.map_or(self.start, |(_, revision)| *revision)
    }
}

impl Table {
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

/// Takes changes, newest first, back out of a list.
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
