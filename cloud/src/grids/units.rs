//! The labels of all nodes, which are the units.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use parking_lot::RwLock;
use tokio::sync::watch;

type Labels = BTreeMap<String, String>;

/// What is known of the nodes. Cheap to clone.
#[derive(Clone)]
pub(super) struct Units {
    nodes: Arc<RwLock<Nodes>>,
    complete: watch::Sender<bool>,
}

#[derive(Default)]
struct Nodes {
    labels: HashMap<String, Labels>,
    /// Nodes of a list that is not complete yet.
    listed: Option<HashMap<String, Labels>>,
}

impl Units {
    pub(super) fn new() -> Self {
        Self { nodes: Arc::default(), complete: watch::Sender::new(false) }
    }

    /// Takes one event; the label keys whose nodes or values it has changed.
    pub(super) fn take(&self, event: Event<PartialObjectMeta<Node>>) -> BTreeSet<String> {
        let mut nodes = self.nodes.write();
        match event {
            Event::Init => {
                nodes.listed = Some(HashMap::new());
                BTreeSet::new()
            }
            Event::InitApply(node) => {
                if let Some(listed) = &mut nodes.listed {
                    listed.insert(node.name_any(), node.labels().clone());
                }
                BTreeSet::new()
            }
            Event::InitDone => {
                let listed = nodes.listed.take().unwrap_or_default();
                let old = std::mem::replace(&mut nodes.labels, listed);
                self.complete.send_replace(true);
                let none = Labels::new();
                let names: BTreeSet<&String> = old.keys().chain(nodes.labels.keys()).collect();
                let pairs = names
                    .into_iter()
                    .map(|name| (old.get(name).unwrap_or(&none), nodes.labels.get(name).unwrap_or(&none)));
                pairs.flat_map(|(old, new)| changed(old, new)).collect()
            }
            Event::Apply(node) => {
                let labels = node.labels().clone();
                let old = nodes.labels.insert(node.name_any(), labels.clone()).unwrap_or_default();
                changed(&old, &labels).collect()
            }
            Event::Delete(node) => {
                let old = nodes.labels.remove(&node.name_any()).unwrap_or_default();
                changed(&old, &Labels::new()).collect()
            }
        }
    }

    /// The units of a key: distinct, sorted values. Waits for the first complete list of nodes.
    pub(super) async fn of(&self, key: &str) -> Vec<String> {
        // Fails when nobody reads the nodes any more, and then nobody asks.
        let _ = self.complete.subscribe().wait_for(|complete| *complete).await;
        let nodes = self.nodes.read();
        let found = tombolo_grid::units(key, nodes.labels.values()).unwrap_or_default();
        found.into_iter().map(str::to_owned).collect()
    }
}

fn changed(old: &Labels, new: &Labels) -> impl Iterator<Item = String> {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differing: Vec<String> =
        keys.into_iter().filter(|key| old.get(*key) != new.get(*key)).cloned().collect();
    differing.into_iter()
}

#[cfg(test)]
mod tests {
    use kube::core::ObjectMeta;

    use super::*;

    fn node(name: &str, labels: &[(&str, &str)]) -> PartialObjectMeta<Node> {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let metadata =
            ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
        PartialObjectMeta { metadata, ..PartialObjectMeta::default() }
    }

    fn keys(found: &BTreeSet<String>) -> Vec<&str> {
        found.iter().map(String::as_str).collect()
    }

    #[tokio::test]
    async fn only_changed_labels_count() {
        let units = Units::new();
        for event in [Event::Init, Event::InitApply(node("n1", &[("k", "a")]))] {
            assert!(units.take(event).is_empty());
        }
        assert_eq!(keys(&units.take(Event::InitDone)), ["k"]);
        assert!(units.take(Event::Apply(node("n1", &[("k", "a")]))).is_empty(), "a heartbeat");
        assert_eq!(keys(&units.take(Event::Apply(node("n2", &[("k", "b"), ("z", "1")])))), ["k", "z"]);
        assert_eq!(units.of("k").await, ["a", "b"]);
        assert_eq!(keys(&units.take(Event::Delete(node("n2", &[])))), ["k", "z"]);
        assert_eq!(units.of("k").await, ["a"]);
        // After a gap in the watch: n1 is gone, n3 is new.
        units.take(Event::Init);
        units.take(Event::InitApply(node("n3", &[("z", "1")])));
        assert_eq!(units.of("k").await, ["a"], "until the list is complete");
        assert_eq!(keys(&units.take(Event::InitDone)), ["k", "z"]);
        assert!(units.of("k").await.is_empty());
    }
}
