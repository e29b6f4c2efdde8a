//! The children of one kind in the API, indexed by grid, so that a pass over one grid does not visit the children of
//! all others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::watch;
use tombolo_grid::labels::GRID_SELECTOR;

use super::live::Live;

/// Limits on a child's owners in the index and on their UIDs: a child is not found through owners beyond them.
const OWNERS_MAX: usize = 16;
const UID_LEN_MAX: usize = 64;

/// The labelled objects of one kind. Cheap to clone: clones share the content.
#[derive(Clone)]
pub(super) struct Cache {
    known: Arc<RwLock<(ChildIndex, Option<ChildIndex>)>>,
    complete: watch::Sender<bool>,
}

/// The relation of a child to a grid.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Tie {
    /// The child carries the grid's name in its label.
    Label(String),
    /// The child has the grid's UID among its owners.
    Owner(String),
}

/// Objects by namespace and name, and the names of a grid's objects by namespace and tie.
#[derive(Default)]
struct ChildIndex {
    children: HashMap<(String, String), (Arc<Live>, Vec<Tie>)>,
    of_grids: HashMap<(String, Tie), BTreeSet<String>>,
}

impl Cache {
    pub(super) fn new() -> Self {
        Self { known: Arc::default(), complete: watch::Sender::new(false) }
    }

    /// Takes one event of the watch.
    pub(super) fn take(&self, event: &Event<DynamicObject>) {
        let mut known = self.known.write();
        let (now, listed) = &mut *known;
        match event {
            Event::Init => *listed = Some(ChildIndex::default()),
            Event::InitApply(child) => {
                if let Some(listed) = listed {
                    listed.put(child);
                }
            }
            Event::InitDone => {
                *now = listed.take().unwrap_or_default();
                self.complete.send_replace(true);
            }
            Event::Apply(child) => now.put(child),
            Event::Delete(child) => now.remove(child),
        }
    }

    /// The objects of a namespace that carry this grid's label or are owned by it, by name. Waits for the first
    /// complete list.
    pub(super) async fn of_grid(
        &self,
        namespace: &str,
        grid: &str,
        uid: &str,
    ) -> BTreeMap<String, Arc<Live>> {
        // Cannot fail: `self` holds the sender.
        let _ = self.complete.subscribe().wait_for(|complete| *complete).await;
        let known = self.known.read();
        let (now, _) = &*known;
        let ties = [Tie::Label(grid.to_owned()), Tie::Owner(uid.to_owned())];
        let names =
            ties.into_iter().filter_map(|tie| now.of_grids.get(&(namespace.to_owned(), tie))).flatten();
        let found = names.filter_map(|name| {
            let (child, _) = now.children.get(&(namespace.to_owned(), name.clone()))?;
            Some((name.clone(), Arc::clone(child)))
        });
        found.collect()
    }
}

impl ChildIndex {
    fn put(&mut self, child: &DynamicObject) {
        self.remove(child);
        let (namespace, name) = (child.namespace().unwrap_or_default(), child.name_any());
        let ties = ties(child);
        for tie in &ties {
            self.of_grids.entry((namespace.clone(), tie.clone())).or_default().insert(name.clone());
        }
        self.children.insert((namespace, name), (Arc::new(Live::of(child)), ties));
    }

    /// Removes what was known under the name of this object.
    fn remove(&mut self, child: &DynamicObject) {
        let (namespace, name) = (child.namespace().unwrap_or_default(), child.name_any());
        let Some((_, ties)) = self.children.remove(&(namespace.clone(), name.clone())) else { return };
        for tie in ties {
            let key = (namespace.clone(), tie);
            let Some(names) = self.of_grids.get_mut(&key) else { continue };
            names.remove(&name);
            if names.is_empty() {
                self.of_grids.remove(&key);
            }
        }
    }
}

fn ties(child: &DynamicObject) -> Vec<Tie> {
    let label = child.labels().get(GRID_SELECTOR).cloned().map(Tie::Label);
    let owners = child.owner_references().iter().filter(|owner| owner.uid.len() <= UID_LEN_MAX);
    let owners = owners.take(OWNERS_MAX).map(|owner| Tie::Owner(owner.uid.clone()));
    label.into_iter().chain(owners).collect()
}

/// An object as JSON.
pub(super) fn as_value(child: &DynamicObject) -> Value {
    serde_json::to_value(child).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_grid::reconcile::plan::plan;
    use tombolo_testkit::{Growth, alone};

    use super::super::api::{DeploymentGrid, GridKind as _};
    use super::*;

    fn child(namespace: &str, name: &str, label: &str, owner: &str) -> DynamicObject {
        let owners = if owner.is_empty() {
            json!([])
        } else {
            json!([{"apiVersion": "v1", "kind": "G", "name": "g", "uid": owner}])
        };
        let labels = if label.is_empty() { json!({}) } else { json!({GRID_SELECTOR: label}) };
        let metadata =
            json!({"namespace": namespace, "name": name, "labels": labels, "ownerReferences": owners});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    async fn names(cache: &Cache, grid: &str, uid: &str) -> Vec<String> {
        cache.of_grid("shop", grid, uid).await.into_keys().collect()
    }

    /// A template of 256 KiB, and 200 units.
    #[test]
    fn grids_and_children_are_not_cached_whole() {
        if !alone(module_path!(), "grids_and_children_are_not_cached_whole") {
            return;
        }
        let text = "x".repeat(256 * 1024);
        let template =
            json!({"selector": {}, "template": {"spec": {"containers": [{"name": "c", "args": [text]}]}}});
        let grid: DeploymentGrid = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
            "spec": {"gridUniqKey": "zone", "template": template},
        }))
        .expect("a grid");
        let grid = grid.grid();
        let units: Vec<String> = (0..200).map(|number| format!("u{number}")).collect();
        let units: Vec<&str> = units.iter().map(String::as_str).collect();
        let cache = Cache::new();
        let growth = Growth::begin();
        let made = plan(&grid, &units, &[]).expect("a plan");
        for wanted in &made.wanted {
            let child = serde_json::from_value(wanted.manifest(&grid)).expect("a child");
            cache.take(&Event::Apply(child));
        }
        let most = growth.most();
        assert_eq!((made.wanted.len(), cache.known.read().0.children.len()), (200, 200));
        // Only one template at a time is in memory.
        assert!(most < 12 * 1024 * 1024, "{} KiB", most / 1024);
    }

    #[tokio::test]
    async fn children_are_found_by_label_and_by_owner_and_forgotten_by_both() {
        let cache = Cache::new();
        cache.take(&Event::Init);
        for one in [
            child("shop", "web-a", "web", "u1"),
            child("shop", "relabelled", "other", "u1"),
            child("shop", "orphan", "web", ""),
            child("shop", "db-a", "db", "u2"),
            child("elsewhere", "web-a", "web", "u1"),
        ] {
            cache.take(&Event::InitApply(one));
        }
        cache.take(&Event::InitDone);
        assert_eq!(names(&cache, "web", "u1").await, ["orphan", "relabelled", "web-a"]);
        assert_eq!(names(&cache, "db", "u2").await, ["db-a"]);
        // Another label, another owner, and a deletion.
        cache.take(&Event::Apply(child("shop", "relabelled", "other", "u9")));
        cache.take(&Event::Apply(child("shop", "orphan", "db", "")));
        cache.take(&Event::Delete(child("shop", "web-a", "web", "u1")));
        assert!(names(&cache, "web", "u1").await.is_empty());
        assert_eq!(names(&cache, "db", "u2").await, ["db-a", "orphan"]);
        // After a gap in the watch only listed objects remain.
        cache.take(&Event::Init);
        cache.take(&Event::InitApply(child("shop", "db-b", "db", "u2")));
        assert_eq!(names(&cache, "db", "u2").await, ["db-a", "orphan"], "until the list is complete");
        cache.take(&Event::InitDone);
        assert_eq!(names(&cache, "db", "u2").await, ["db-b"]);
        let known = cache.known.read();
        assert_eq!(
            (known.0.children.len(), known.0.of_grids.len()),
            (1, 2),
            "no state of the others is left"
        );
    }
}
