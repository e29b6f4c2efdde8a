//! Random changes of a source that is lost now and then. In the end a watcher that has followed every change holds the
//! listed objects, and the list is what the rules require.

use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::StdRng;
use tombolo_grid::{Carrier, Graph, Link, Node, Reach, ServiceName, prune};
use tombolo_testkit::{Seed, seeds};

use super::*;

/// Runs with seeds that are always the same, and with new ones.
const FIXED: u64 = 12;
const NEW: u64 = 12;
const CHANGES: usize = 120;

/// Bodies without revision, by name.
type Shown = BTreeMap<String, Value>;

fn change(store: &MemoryStore, rng: &mut StdRng) {
    let (part, name, object) = match rng.random_range(0..6) {
        0 | 1 => {
            let unit = ["a", "b", ""][rng.random_range(0..3)];
            (ProjectedKind::Nodes, format!("n{}", rng.random_range(1..4)), node(unit))
        }
        2 => (ProjectedKind::Services, format!("s{}", rng.random_range(0..3)), service(rng.random())),
        _ => {
            let of = format!("s{}", rng.random_range(0..3));
            let endpoints: Vec<String> = (0..rng.random_range(0..4))
                .map(|_| format!("{}@n{}", rng.random_range(1..9), rng.random_range(1..5)))
                .collect();
            (
                ProjectedKind::EndpointSlices,
                format!("e{}", rng.random_range(0..6)),
                slice(&of, &endpoints.join(" ")),
            )
        }
    };
    if rng.random_range(0..4) > 0 {
        put_as(store, part, &name, &format!("uid-{}", rng.random_range(0..2)), object);
    } else if store.get(&key(part, &name)).unwrap().is_some() {
        delete(store, part, &name);
    }
}

fn plain(stored: &Stored) -> (String, Value) {
    let mut body: Value = serde_json::from_slice(&stored.body()).unwrap();
    body["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    (stored.key.name().to_owned(), body)
}

/// The slices as node n1 should see them, computed in one go.
fn expected(store: &MemoryStore) -> Shown {
    let items = |part: ProjectedKind| store.list(&part.resource(), None).unwrap().items;
    let mut graph = Graph::<ObjectKey>::new("n1");
    for node in items(ProjectedKind::Nodes) {
        graph.set_node(node.key.name(), Some(Node::of(&node.body()).unwrap()));
    }
    for service in items(ProjectedKind::Services) {
        let reach = Reach::of(&service.body()).unwrap();
        graph.set_service(ServiceName::new("default", service.key.name()), Some(reach));
    }
    let seen = |slice: &Arc<Stored>| {
        let link = Link::of(Carrier::EndpointSlice, &slice.body()).unwrap();
        let body = prune(Carrier::EndpointSlice, &slice.body(), &graph.verdict(&link)).unwrap().into_owned();
        plain(&Stored::new(slice.key.clone(), slice.uid.clone(), slice.revision, body.into()))
    };
    items(ProjectedKind::EndpointSlices).iter().map(seen).collect()
}

/// Applies the changes of a watch as a client would.
fn replay(changes: &mut ChangeStream, held: &mut Shown) {
    loop {
        let batch = changes.poll_ready().unwrap();
        if batch.is_empty() {
            return;
        }
        for change in batch {
            let (name, body) = plain(&change.object);
            match change.kind {
                ChangeKind::Added => assert!(held.insert(name, body).is_none(), "added twice"),
                ChangeKind::Modified => {
                    let before = held.insert(name, body.clone()).expect("modified a missing object");
                    assert_ne!(before, body, "an event without a change");
                    assert_eq!(before["metadata"]["uid"], body["metadata"]["uid"], "another object");
                }
                ChangeKind::Deleted => assert!(held.remove(&name).is_some(), "deleted a missing object"),
            }
        }
    }
}

async fn run(seed: &Seed) {
    let mut rng = seed.rng();
    let source = Source::new();
    for _ in 0..rng.random_range(0..20) {
        change(&source.store(), &mut rng);
    }
    let world = World::start(&source, Kubernetes::AsItIs);
    let mut slices = world.watch(ProjectedKind::EndpointSlices).await;
    let list = world.view.list(&ProjectedKind::EndpointSlices.resource(), None).unwrap();
    assert_eq!(slices.position(), list.revision, "nothing has changed in between");
    let mut held: Shown = list.items.iter().map(|item| plain(item)).collect();
    for _ in 0..CHANGES {
        change(&source.store(), &mut rng);
        if rng.random_range(0..3) == 0 {
            tokio::task::yield_now().await;
            replay(&mut slices, &mut held);
        }
        if rng.random_range(0..50) == 0 {
            // The source comes back with other content, under other revisions.
            let other = Source::empty(Revision(rng.random_range(1..10_000)));
            for _ in 0..rng.random_range(0..30) {
                change(&other, &mut rng);
            }
            source.exchange(other);
        }
    }
    let wanted = expected(&source.store());
    let listed = || -> Shown {
        let list = world.view.list(&ProjectedKind::EndpointSlices.resource(), None);
        list.map(|list| list.items.iter().map(|item| plain(item)).collect()).unwrap_or_default()
    };
    wait_until("the list to settle", DEADLINE, async || listed() == wanted).await;
    replay(&mut slices, &mut held);
    assert_eq!(held, wanted, "what a watcher holds");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn watchers_and_lists_agree_with_the_rules() {
    for seed in seeds(NEW).chain((0..FIXED).map(Seed::fixed)) {
        run(&seed).await;
    }
}
