//! The labels of all nodes, whose values are the units.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kube::Resource as _;
use kube::runtime::watcher::Event;
use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::watch;

use crate::kube::RawObject;

type Labels = BTreeMap<String, String>;

/// A node, as far as it could be read.
#[derive(Debug, Clone)]
pub(super) struct SeenNode {
    name: String,
    /// `None` if its labels could not be read.
    labels: Option<Labels>,
}

impl SeenNode {
    /// Reads a Node. If it is too large, its labels are still known unless they are what is too large.
    pub(super) fn of(node: &RawObject) -> Self {
        let labels = match &node.value()["metadata"]["labels"] {
            Value::Null => (!node.is_unread()).then(Labels::new),
            labels => serde_json::from_value(labels.clone()).ok(),
        };
        Self { name: node.meta().name.clone().unwrap_or_default(), labels }
    }
}

/// The known nodes. Cheap to clone.
#[derive(Clone)]
pub(super) struct Units {
    nodes: Arc<RwLock<Nodes>>,
    complete: watch::Sender<bool>,
}

#[derive(Default)]
struct Nodes {
    /// `None` for a node whose labels were never read.
    labels: HashMap<String, Option<Labels>>,
    /// Nodes of a list that is not complete yet.
    listed: Option<HashMap<String, Option<Labels>>>,
}

/// The units of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Distinct, sorted values.
    pub(super) units: Vec<String>,
    /// A node whose labels could not be read: it may belong to any further unit.
    pub(super) unread: Option<String>,
}

impl Units {
    pub(super) fn new() -> Self {
        Self { nodes: Arc::default(), complete: watch::Sender::new(false) }
    }

    /// Takes one event; returns the label keys whose nodes or values it changed. A node that could not be read keeps
    /// its previous labels.
    pub(super) fn take(&self, event: Event<SeenNode>) -> BTreeSet<String> {
        let mut nodes = self.nodes.write();
        let as_known = |nodes: &Nodes, SeenNode { name, labels }: SeenNode| {
            let labels = labels.or_else(|| nodes.labels.get(&name).cloned().flatten());
            (name, labels)
        };
        match event {
            Event::Init => {
                nodes.listed = Some(HashMap::new());
                BTreeSet::new()
            }
            Event::InitApply(node) => {
                let (name, labels) = as_known(&nodes, node);
                if let Some(listed) = &mut nodes.listed {
                    listed.insert(name, labels);
                }
                BTreeSet::new()
            }
            Event::InitDone => {
                let listed = nodes.listed.take().unwrap_or_default();
                let old = std::mem::replace(&mut nodes.labels, listed);
                self.complete.send_replace(true);
                let names: BTreeSet<&String> = old.keys().chain(nodes.labels.keys()).collect();
                names.into_iter().flat_map(|name| changed(old.get(name), nodes.labels.get(name))).collect()
            }
            Event::Apply(node) => {
                let (name, labels) = as_known(&nodes, node);
                let old = nodes.labels.insert(name, labels.clone());
                changed(old.as_ref(), Some(&labels)).collect()
            }
            Event::Delete(node) => {
                let old = nodes.labels.remove(&node.name);
                changed(old.as_ref(), None).collect()
            }
        }
    }

    /// The units of a key. Waits for the first complete list of nodes.
    pub(super) async fn of(&self, key: &str) -> Found {
        // Cannot fail: `self` holds the sender.
        let _ = self.complete.subscribe().wait_for(|complete| *complete).await;
        let nodes = self.nodes.read();
        let units = tombolo_grid::units(key, nodes.labels.values().flatten()).unwrap_or_default();
        let units = units.into_iter().map(str::to_owned).collect();
        let unread = nodes.labels.iter().filter(|(_, labels)| labels.is_none()).map(|(name, _)| name);
        Found { units, unread: unread.min().cloned() }
    }
}

fn changed<'a>(
    old: Option<&'a Option<Labels>>,
    new: Option<&'a Option<Labels>>,
) -> impl Iterator<Item = String> + use<> {
    static NONE: Labels = Labels::new();
    let [old, new] = [old, new].map(|labels| labels.and_then(Option::as_ref).unwrap_or(&NONE));
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differing: Vec<String> =
        keys.into_iter().filter(|key| old.get(*key) != new.get(*key)).cloned().collect();
    differing.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, labels: &[(&str, &str)]) -> SeenNode {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        SeenNode { name: name.to_owned(), labels: Some(labels) }
    }

    fn unread(name: &str) -> SeenNode {
        SeenNode { name: name.to_owned(), labels: None }
    }

    fn found(units: &[&str], unread: Option<&str>) -> Found {
        Found {
            units: units.iter().map(|unit| (*unit).to_owned()).collect(),
            unread: unread.map(str::to_owned),
        }
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
        assert_eq!(units.of("k").await, found(&["a", "b"], None));
        assert_eq!(keys(&units.take(Event::Delete(node("n2", &[])))), ["k", "z"]);
        assert_eq!(units.of("k").await, found(&["a"], None));
        // After a gap in the watch: n1 is gone, n3 is new.
        units.take(Event::Init);
        units.take(Event::InitApply(node("n3", &[("z", "1")])));
        assert_eq!(units.of("k").await, found(&["a"], None), "until the list is complete");
        assert_eq!(keys(&units.take(Event::InitDone)), ["k", "z"]);
        assert_eq!(units.of("k").await, found(&[], None));
    }

    #[tokio::test]
    async fn unreadable_node_keeps_its_previous_labels() {
        let units = Units::new();
        for event in
            [Event::Init, Event::InitApply(node("n1", &[("k", "a")])), Event::InitApply(unread("n2"))]
        {
            units.take(event);
        }
        units.take(Event::InitDone);
        assert_eq!(units.of("k").await, found(&["a"], Some("n2")), "it may be of any unit");
        assert!(units.take(Event::Apply(unread("n1"))).is_empty());
        // After a gap in the watch.
        for event in
            [Event::Init, Event::InitApply(unread("n1")), Event::InitApply(node("n2", &[("k", "b")]))]
        {
            units.take(event);
        }
        assert_eq!(keys(&units.take(Event::InitDone)), ["k"]);
        assert_eq!(units.of("k").await, found(&["a", "b"], None));
        // The name suffices for a deletion.
        assert_eq!(keys(&units.take(Event::Delete(unread("n1")))), ["k"]);
        units.take(Event::Apply(unread("n3")));
        assert_eq!(units.of("k").await, found(&["b"], Some("n3")));
        units.take(Event::Delete(unread("n3")));
        assert_eq!(units.of("k").await, found(&["b"], None));
    }
}
