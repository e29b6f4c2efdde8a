use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tombolo_proto::limits::INVENTORY_BYTES_MAX;
use tombolo_proto::session::kubeedge::{LedgerEntry, Share};

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

/// The reference model without an index: every pod with its references, searched for each query.
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
    assert_eq!(set.len(), count, "a key was reported twice");
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
            let Difference { gained, lost, moved } = cache.remove_pod(&node(*n), &uid(*pod));
            assert_eq!(set(lost), keys(before.difference(&after).copied()));
            assert!(gained.is_empty() && moved.is_empty(), "there is room for all");
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
    assert_eq!(cache.references(), referenced.len(), "no state is kept for objects without users");
    assert_eq!(cache.pods(), oracle.0.len());
    let nodes: BTreeSet<u8> = oracle.0.keys().map(|(node, _)| *node).collect();
    assert_eq!(cache.nodes.len(), nodes.len(), "nor for nodes without pods");
    let empty =
        |place: &HashMap<NodeId, HashSet<Uid>>| place.is_empty() || place.values().any(HashSet::is_empty);
    assert!(
        !cache.locations.iter().any(|location| empty(location.value())),
        "nor for nodes that do not need an object"
    );
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
    assert_eq!(cache.remove_pod(&node(1), &uid(1)), Difference::default());
    assert_eq!(cache.nodes_of(&object(1)), [node(1)]);
    assert_eq!(cache.remove_pod(&node(1), &uid(2)).lost, [object(1)]);
    assert_eq!(cache.nodes_of(&object(1)), []);
}

#[test]
fn pods_are_listed_by_namespace_and_forgotten_completely() {
    let cache = LocationCache::default();
    let other = ObjectKey::new(resources::pods(), "other", "pod-2");
    cache.set_pod(&node(0), &uid(1), &pod_key(1), &[object(0)]);
    cache.set_pod(&node(0), &uid(2), &other, &[object(0)]);
    assert_eq!(cache.pods_in(&node(0), "other"), [other]);
    assert_eq!(cache.remove_pod(&node(0), &uid(1)), Difference::default());
    assert_eq!(cache.remove_pod(&node(0), &uid(2)).lost, [object(0)]);
    assert!(cache.nodes.is_empty() && cache.locations.is_empty());

    cache.set_pod(&node(1), &uid(3), &pod_key(3), &[object(1)]);
    cache.clear();
    assert_eq!((cache.pods(), cache.references()), (0, 0));
    assert!(!cache.is_referenced(&object(1)));
}

/// A tenant whose pods refer to many objects goes without them. Pods with few references get theirs, and the needs of a
/// node never exceed its share.
#[test]
fn pods_with_too_many_references_are_not_served_until_there_is_room() {
    let cache = LocationCache::default();
    let key = |namespace: &str, number: usize| {
        ObjectKey::new(resources::configmaps(), namespace, &format!("settings-{number}"))
    };
    let set = |uid: &str, namespace: &str, numbers: std::ops::Range<usize>| {
        let references: Vec<_> = numbers.map(|number| key(namespace, number)).collect();
        let pod = ObjectKey::new(resources::pods(), namespace, uid);
        cache.set_pod(&node(0), &Uid::parse(uid).expect("valid"), &pod, &references)
    };
    let is_served = |name: &str| cache.is_served(&node(0), &Uid::parse(name).expect("valid"));
    assert_eq!(set("large", "tenant", 0..1500).gained.len(), 1500);
    // A pod that can never be served takes nothing from the others.
    assert_eq!(set("giant", "tenant", 0..4096), Difference::default());
    assert_eq!((is_served("large"), is_served("giant"), cache.unserved()), (true, false, 1));
    let change = set("honest", "shop", 0..100);
    assert_eq!((change.gained.len(), change.lost.len()), (100, 1500));
    assert_eq!(change.moved, [ObjectKey::new(resources::pods(), "tenant", "large")]);
    assert_eq!(set("small", "tenant", 0..10).gained.len(), 10);
    assert_eq!((is_served("large"), is_served("honest"), cache.unserved()), (false, true, 2));
    assert!(cache.is_bound(&node(0), &Uid::parse("giant").expect("valid")));
    assert_eq!(cache.needed_by(&node(0)).len(), 4 + 100 + 10, "all pods, and what is served");
    assert_eq!(cache.references(), 110, "no state of the others is kept");
    // Unserved pods also count for the question whether all pods start without an object.
    assert_eq!(cache.pods_that_need(&node(0), &key("tenant", 5)).len(), 3);
    assert_eq!(cache.pods_that_need(&node(0), &key("tenant", 1400)).len(), 2);
    // Once the others are removed there is room.
    let change = cache.remove_pod(&node(0), &Uid::parse("honest").expect("valid"));
    assert_eq!((change.gained.len(), change.lost.len(), change.moved.len()), (1490, 100, 1));
    assert!(is_served("large") && cache.unserved() == 1);
}

#[derive(Debug, Clone)]
struct Tenant {
    namespace: u8,
    pod: u8,
    from: u16,
    references: u16,
    len: usize,
    goes: bool,
}

fn tenant() -> impl Strategy<Value = Tenant> {
    let size = prop_oneof![0..20_u16, 0..600_u16, 1000..4096_u16];
    (
        0..4_u8,
        0..12_u8,
        0..2000_u16,
        size,
        prop_oneof![Just(8_usize), Just(60), Just(253)],
        prop::bool::weighted(0.2),
    )
        .prop_map(|(namespace, pod, from, references, len, goes)| Tenant {
            namespace,
            pod,
            from,
            references,
            len,
            goes,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tombolo_testkit::cases(48)))]

    /// Whatever pods there are, and in whatever order they came and went: the needs of a node fit its edge's inventory
    /// and ledger, small requests are met, and the result depends only on the present pods.
    #[test]
    fn references_of_any_pods_fit_inventory_and_ledger(steps in prop::collection::vec(tenant(), 1..40)) {
        let cache = LocationCache::default();
        let mut pods: BTreeMap<(u8, u8), Vec<ObjectKey>> = BTreeMap::new();
        let name = |namespace: u8, pod: u8| format!("uid-{namespace}-{pod}");
        let set = |cache: &LocationCache, namespace: u8, pod: u8, references: &[ObjectKey]| {
            let (uid, own) = (name(namespace, pod), format!("team-{namespace}"));
            let key = ObjectKey::new(resources::pods(), &own, &uid);
            cache.set_pod(&node(0), &Uid::parse(&uid).expect("valid"), &key, references)
        };
        let mut told = BTreeSet::new();
        for Tenant { namespace, pod, from, references, len, goes } in steps {
            let own = format!("team-{namespace}");
            let key = |number: u16| ObjectKey::new(resources::configmaps(), &own, &format!("{number:x>len$}"));
            let references: Vec<_> = (from..from + references).map(key).collect();
            let change = match goes {
                true => cache.remove_pod(&node(0), &Uid::parse(&name(namespace, pod)).expect("valid")),
                false => set(&cache, namespace, pod, &references),
            };
            match goes {
                true => _ = pods.remove(&(namespace, pod)),
                false => _ = pods.insert((namespace, pod), references),
            }
            for gained in change.gained {
                prop_assert!(told.insert(gained), "gained once");
            }
            for lost in change.lost {
                prop_assert!(told.remove(&lost), "what was lost was needed");
            }
        }
        let needed: Vec<_> = cache.needed_by(&node(0)).into_iter().filter(|key| *key.resource() != resources::pods()).collect();
        prop_assert_eq!(&needed.iter().cloned().collect::<BTreeSet<_>>(), &told, "following the changes is enough to know all");
        prop_assert!(needed.iter().map(weight).sum::<usize>() <= NODE_REFERENCES_BYTES_MAX);
        let mut ledger = tombolo_proto::session::kubeedge::Ledger::default();
        for key in &needed {
            prop_assert!(ledger.has_room(key, Share::Followed), "even beside half of what a node may follow");
            let entry = LedgerEntry { kind: "ConfigMap".into(), uid: None, revision: None };
            ledger.insert(key.clone(), entry).expect("room");
        }
        // Counted as in sessions: 384 bytes an entry, and its texts.
        let claimed: usize = needed.iter().map(|key| 384 + 12 + key.namespace().len() + key.name().len()).sum();
        prop_assert!(claimed <= INVENTORY_BYTES_MAX / 4);
        // Every namespace is entitled to an equal part.
        let part = NODE_REFERENCES_BYTES_MAX / 4;
        for namespace in 0..4 {
            let own: BTreeSet<_> = pods.iter().filter(|((of, _), _)| *of == namespace).flat_map(|(_, all)| all).collect();
            if own.iter().map(|key| weight(key)).sum::<usize>() <= part {
                prop_assert!(own.iter().all(|key| told.contains(*key)), "team-{namespace} requests few objects");
            }
        }
        let other = LocationCache::default();
        for ((namespace, pod), references) in pods.iter().rev() {
            set(&other, *namespace, *pod, references);
        }
        let again: BTreeSet<_> = other.needed_by(&node(0)).into_iter().collect();
        let here: BTreeSet<_> = cache.needed_by(&node(0)).into_iter().collect();
        prop_assert_eq!(again, here, "another replica computes the same");
    }
}
