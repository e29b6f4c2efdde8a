use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::kube::resources;

fn node(n: u8) -> NodeId {
    NodeId::parse(&format!("node-{n}")).expect("valid")
}

fn uid(n: u8) -> Uid {
    Uid::parse(&format!("uid-{n}")).expect("valid")
}

fn pod_key(n: u8) -> ObjectKey {
    ObjectKey::new(resources::pods(), "d", &format!("pod-{n}"))
}

fn object(n: u8) -> ObjectKey {
    let resource = if n.is_multiple_of(2) { resources::configmaps() } else { resources::secrets() };
    ObjectKey::new(resource, "d", &format!("object-{n}"))
}

#[derive(Debug, Clone)]
enum Step {
    Set { node: u8, pod: u8, references: Vec<u8> },
    RemovePod { node: u8, pod: u8 },
    RemoveNode { node: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let (nodes, pods) = (0..4_u8, 0..6_u8);
    prop_oneof![
        6 => (nodes.clone(), pods.clone(), prop::collection::vec(0..8_u8, 0..6))
            .prop_map(|(node, pod, references)| Step::Set { node, pod, references }),
        3 => (nodes.clone(), pods).prop_map(|(node, pod)| Step::RemovePod { node, pod }),
        1 => nodes.prop_map(|node| Step::RemoveNode { node }),
    ]
}

/// The truth without an index: every pod with its references, searched through for each question.
#[derive(Default)]
struct Oracle(BTreeMap<(u8, u8), BTreeSet<u8>>);

impl Oracle {
    fn needs(&self, node: u8) -> BTreeSet<u8> {
        self.0.iter().filter(|((n, _), _)| *n == node).flat_map(|(_, refs)| refs.clone()).collect()
    }
}

fn keys(numbers: impl IntoIterator<Item = u8>) -> BTreeSet<ObjectKey> {
    numbers.into_iter().map(object).collect()
}

fn set(keys: Vec<ObjectKey>) -> BTreeSet<ObjectKey> {
    let count = keys.len();
    let set: BTreeSet<_> = keys.into_iter().collect();
    assert_eq!(set.len(), count, "a key was told twice");
    set
}

fn run(cache: &LocationCache, oracle: &mut Oracle, step: &Step) {
    match step {
        Step::Set { node: n, pod, references } => {
            let before = oracle.needs(*n);
            oracle.0.insert((*n, *pod), references.iter().copied().collect());
            let after = oracle.needs(*n);
            let listed: Vec<_> = references.iter().copied().map(object).collect();
            let difference = cache.set_pod(&node(*n), &uid(*pod), &pod_key(*pod), &listed);
            assert_eq!(set(difference.gained), keys(after.difference(&before).copied()));
            assert_eq!(set(difference.lost), keys(before.difference(&after).copied()));
        }
        Step::RemovePod { node: n, pod } => {
            let before = oracle.needs(*n);
            oracle.0.remove(&(*n, *pod));
            let after = oracle.needs(*n);
            let lost = cache.remove_pod(&node(*n), &uid(*pod));
            assert_eq!(set(lost), keys(before.difference(&after).copied()));
        }
        Step::RemoveNode { node: n } => {
            let before = oracle.needs(*n);
            oracle.0.retain(|(owner, _), _| owner != n);
            let others: BTreeSet<u8> = (0..4).flat_map(|n| oracle.needs(n)).collect();
            let losses = cache.remove_node(&node(*n));
            let unreferenced: BTreeSet<_> = losses.unreferenced.into_iter().collect();
            assert_eq!(unreferenced, keys(before.difference(&others).copied()));
        }
    }
}

fn compare(cache: &LocationCache, oracle: &Oracle) {
    for n in 0..4 {
        let pods = oracle.0.keys().filter(|(owner, _)| *owner == n).map(|(_, pod)| pod_key(*pod));
        let expected: BTreeSet<_> = keys(oracle.needs(n)).into_iter().chain(pods).collect();
        assert_eq!(set(cache.needed_by(&node(n))), expected);
    }
    for o in 0..8 {
        let expected: BTreeSet<_> = (0..4).filter(|n| oracle.needs(*n).contains(&o)).map(node).collect();
        let nodes: BTreeSet<_> = cache.nodes_of(&object(o)).into_iter().collect();
        assert_eq!(nodes, expected);
        assert_eq!(cache.is_referenced(&object(o)), !expected.is_empty());
        for n in 0..4 {
            assert_eq!(cache.is_needed_by(&node(n), &object(o)), expected.contains(&node(n)));
        }
    }
    let referenced: BTreeSet<u8> = (0..4).flat_map(|n| oracle.needs(n)).collect();
    assert_eq!(cache.references(), referenced.len(), "nothing is kept for objects that nobody needs");
    assert_eq!(cache.pods(), oracle.0.len());
}

proptest! {
    #[test]
    fn agrees_with_a_search_through_all_pods(steps in prop::collection::vec(step(), 1..80)) {
        let (cache, mut oracle) = (LocationCache::default(), Oracle::default());
        for step in &steps {
            run(&cache, &mut oracle, step);
            compare(&cache, &oracle);
        }
    }
}

#[test]
fn a_reference_needs_no_object_and_ends_with_the_last_pod() {
    let cache = LocationCache::default();
    let first = cache.set_pod(&node(1), &uid(1), &pod_key(1), &[object(1)]);
    assert_eq!(first.gained, [object(1)]);
    assert_eq!(cache.set_pod(&node(1), &uid(2), &pod_key(2), &[object(1)]), Difference::default());
    assert_eq!(cache.remove_pod(&node(1), &uid(1)), []);
    assert_eq!(cache.nodes_of(&object(1)), [node(1)]);
    assert_eq!(cache.remove_pod(&node(1), &uid(2)), [object(1)]);
    assert_eq!(cache.nodes_of(&object(1)), []);
}

#[test]
fn pods_are_told_by_namespace_and_nothing_stays_of_what_is_forgotten() {
    let cache = LocationCache::default();
    let other = ObjectKey::new(resources::pods(), "other", "pod-2");
    cache.set_pod(&node(0), &uid(1), &pod_key(1), &[object(0)]);
    cache.set_pod(&node(0), &uid(2), &other, &[object(0)]);
    assert_eq!(cache.pods_in(&node(0), "other"), [other]);
    assert_eq!(cache.remove_pod(&node(0), &uid(1)), []);
    assert_eq!(cache.remove_pod(&node(0), &uid(2)), [object(0)]);
    assert!(cache.pods.is_empty() && cache.places.is_empty());

    cache.set_pod(&node(1), &uid(3), &pod_key(3), &[object(1)]);
    cache.clear();
    assert_eq!((cache.pods(), cache.references()), (0, 0));
    assert!(!cache.is_referenced(&object(1)));
}
