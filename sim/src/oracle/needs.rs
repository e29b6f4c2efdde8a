//! Which objects a node needs by itself: the pods bound to it, its own Node, and the ConfigMaps and Secrets that those
//! pods refer to, whether they exist or not. Finished pods count until they are deleted; mirror pods bring nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::history::History;
use crate::observation::{HistoryPosition, ObjectId};

/// Smallest weight of a reference in the share of a node, in bytes.
const REFERENCE_LEN_MIN: usize = 128;

/// Whether the node needed the object all the time from a position until now.
#[must_use]
pub(super) fn needed_since(history: &History, node: &str, id: &ObjectId, since: HistoryPosition) -> bool {
    let mut positions = BTreeSet::from([since]);
    positions.extend(changes_of_need(history, id, since));
    positions.into_iter().all(|position| needed_at(history, node, id, position))
}

/// Whether the node needed the object at some time from a position until now.
#[must_use]
pub(super) fn needed_sometime(history: &History, node: &str, id: &ObjectId, since: HistoryPosition) -> bool {
    let mut positions = BTreeSet::from([since]);
    positions.extend(changes_of_need(history, id, since));
    positions.into_iter().any(|position| needed_at(history, node, id, position))
}

/// Whether the node needs the object at a position.
#[must_use]
pub(super) fn needed_at(history: &History, node: &str, id: &ObjectId, position: HistoryPosition) -> bool {
    match &*id.resource {
        "pods" => history.state(id, position).is_some_and(|pod| pod.facts.node == node),
        "nodes" => id.name == node,
        "configmaps" | "secrets" => history.of_kind("pods", &id.namespace).any(|(pod, _)| {
            let pod = history.state(pod, position);
            pod.is_some_and(|pod| pod.facts.node == node && pod.facts.references.contains(id))
        }),
        _ => false,
    }
}

/// Positions after `since` at which the need for the object may change.
fn changes_of_need(history: &History, id: &ObjectId, since: HistoryPosition) -> Vec<HistoryPosition> {
    let later = |id: &ObjectId| {
        let changes = history.changes(id);
        let known = changes.partition_point(|change| change.position <= since);
        changes[known..].iter().map(|change| change.position).collect::<Vec<_>>()
    };
    match &*id.resource {
        "pods" => later(id),
        "configmaps" | "secrets" => {
            history.of_kind("pods", &id.namespace).flat_map(|(pod, _)| later(pod)).collect()
        }
        _ => Vec::new(),
    }
}

/// Everything that the node needs now.
#[must_use]
pub(super) fn needs(history: &History, node: &str) -> BTreeSet<ObjectId> {
    let mut all = BTreeSet::from([ObjectId::node(node)]);
    for (id, changes) in history.of_kind("pods", "") {
        let Some(pod) = changes.last().and_then(|change| change.state.as_ref()) else { continue };
        if pod.facts.node == node {
            all.insert(id.clone());
            all.extend(pod.facts.references.iter().cloned());
        }
    }
    all
}

/// Whether the pods of the node ask for more than its share at some time from a position until now: their references
/// may be left out then, and their bodies withheld (docs/security.md, "What pods refer to" and "Bounds").
#[must_use]
pub(super) fn exceeds_share(history: &History, node: &str, since: HistoryPosition, share: NodeShare) -> bool {
    // An upper bound: whatever any pod of the node had at any time since then.
    let mut weights: BTreeMap<&ObjectId, usize> = BTreeMap::new();
    let mut bodies = 0_usize;
    for (id, _) in history.of_kind("pods", "") {
        let states = history.states_since(id, since).filter_map(|(_, state)| state);
        let mut largest = 0;
        for pod in states.filter(|pod| pod.facts.node == node) {
            let references = pod.facts.references.iter();
            weights.extend(references.map(|reference| (reference, weight(reference))));
            largest = largest.max(pod.facts.len);
        }
        bodies += largest;
    }
    weights.values().sum::<usize>() > share.references || bodies > share.pods
}

fn weight(id: &ObjectId) -> usize {
    (id.namespace.len() + id.name.len()).max(REFERENCE_LEN_MIN)
}

/// What a node may need at most, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct NodeShare {
    /// Names of the objects that its pods refer to.
    pub references: usize,
    /// Bodies of its pods.
    pub pods: usize,
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Api, id};
    use super::*;

    #[test]
    fn a_need_lasts_as_long_as_any_pod_of_the_node_refers_to_the_object() {
        let mut api = Api::default();
        let config = id("configmaps/d/c");
        api.pod("one", "n", &["configmaps/d/c"]);
        let first = api.now();
        let both = api.pod("two", "n", &["configmaps/d/c"]);
        api.delete("pods/d/one");
        assert!(needed_since(&api.history, "n", &config, first), "pod two took over");
        let before = api.now();
        api.delete("pods/d/two");
        api.pod("three", "n", &["configmaps/d/c"]);
        assert!(!needed_since(&api.history, "n", &config, both), "nobody referred to it in between");
        assert!(!needed_since(&api.history, "n", &config, before));
        assert!(needed_since(&api.history, "n", &config, api.now()));
        assert!(needed_sometime(&api.history, "n", &config, api.now()));
        assert!(!needed_sometime(&api.history, "m", &config, HistoryPosition::default()));
        assert_eq!(needs(&api.history, "n").len(), 3);
        assert_eq!(needs(&api.history, "m").len(), 1);
    }

    #[test]
    fn a_share_is_exceeded_by_what_was_there_at_any_time() {
        let mut api = Api::default();
        let start = api.now();
        api.pod("one", "n", &["configmaps/d/c", "secrets/d/s"]);
        api.delete("pods/d/one");
        let share = |references| NodeShare { references, pods: 1 << 20 };
        assert!(exceeds_share(&api.history, "n", start, share(255)));
        assert!(!exceeds_share(&api.history, "n", start, share(256)));
        assert!(!exceeds_share(&api.history, "n", api.now(), share(255)), "it is gone");
        assert!(!exceeds_share(&api.history, "m", start, share(0)));
        assert!(exceeds_share(&api.history, "n", start, NodeShare { references: 1 << 20, pods: 10 }));
    }
}
