//! Upper bounds on what the index keeps for all nodes, in bytes.

use tombolo_testkit::{Growth, alone};

use super::*;

const MIB: usize = 1024 * 1024;

fn key_in(namespace: &str, kind: Kind, name: &str) -> ObjectKey {
    ObjectKey::new(kind.resource(), namespace, name)
}

impl World {
    /// A pod with a body of at least `len` bytes that refers to these Secrets.
    fn pod_in(&mut self, namespace: &str, name: &str, on: &str, secrets: &[String], len: usize) {
        let pull: Vec<_> = secrets.iter().map(|name| json!({ "name": name })).collect();
        let annotations = json!({"junk": "x".repeat(len)});
        let spec = json!({"nodeName": on, "imagePullSecrets": pull});
        let rest = json!({"metadata": {"annotations": annotations}, "spec": spec});
        let raw = self.raw(namespace, name, &format!("u-{namespace}-{name}"), &rest);
        self.index.handle(Kind::Pod, ObjectEvent::Applied(raw));
    }

    fn secret_in(&mut self, namespace: &str, name: &str, len: usize) {
        let raw = self.secret_of(namespace, name, len);
        self.index.handle(Kind::Secret, ObjectEvent::Applied(raw));
    }

    fn secret_of(&mut self, namespace: &str, name: &str, len: usize) -> RawObject {
        self.raw(namespace, name, &format!("u-{name}"), &json!({"data": {"k": "x".repeat(len)}}))
    }

    /// Answers the reads that the index requested with Secrets of this length.
    fn answer(&mut self, len: usize) -> usize {
        let effects = self.index.take_effects();
        let fetched: Vec<_> = effects
            .into_iter()
            .filter_map(|effect| match effect {
                Effect::Fetch(key, expected) => Some((key, expected)),
                _ => None,
            })
            .collect();
        for (key, expected) in &fetched {
            let is_gone = self.state("a", key) == "absent";
            let found = (!is_gone).then(|| self.secret_of(key.namespace(), key.name(), len));
            self.index.fetched(key, expected.as_ref(), found);
        }
        fetched.len()
    }

    /// Bytes of all bodies.
    fn body_bytes(&self) -> usize {
        let keys = self.down.objects.iter().map(|entry| entry.key().clone());
        let keys: Vec<_> = keys.collect();
        keys.iter().filter_map(|key| self.down.present(key)).map(|object| object.body.len()).sum()
    }

    fn counts(&self, on: &str, keys: &[ObjectKey]) -> (usize, usize) {
        let states: Vec<_> = keys.iter().map(|key| self.state(on, key)).collect();
        let count = |state: &str| states.iter().filter(|other| **other == state).count();
        (count("present"), count("unreadable"))
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("s{number}")).collect()
}

#[test]
fn objects_of_the_largest_namespace_give_way_first_and_return() {
    let mut world = World::with_memory(&["a"], 16 * MIB);
    let secrets = names(40);
    let keys: Vec<_> = secrets.iter().map(|name| key_in("greedy", Kind::Secret, name)).collect();
    world.pod_in("greedy", "p", "a", &secrets, 10);
    for name in &secrets {
        world.secret_in("greedy", name, MIB);
    }
    assert!(world.body_bytes() <= 16 * MIB && world.down.index_bytes() <= 16 * MIB);
    assert_eq!(world.counts("a", &keys), (15, 25), "none of them counts as deleted");
    // A later holder with fewer bytes still finds room.
    world.index.take_effects();
    world.pod_in("modest", "p", "a", &names(1), 10);
    world.secret_in("modest", "s0", 3 * MIB);
    let modest = [key_in("modest", Kind::Pod, "p"), key_in("modest", Kind::Secret, "s0")];
    assert_eq!(world.counts("a", &modest), (2, 0));
    assert_eq!(world.counts("a", &keys), (12, 28));
    let told = world.offered().iter().filter(|told| told.starts_with("a<-s") && **told != "a<-s0").count();
    assert!(told >= 3, "the node is notified of the dropped objects: {told}");
    // Another version of a withheld object is not offered, and an object that shrinks fits again.
    let withheld = |world: &World| keys.iter().find(|key| world.state("a", key) == "unreadable").cloned();
    let one = withheld(&world).expect("one of them");
    world.secret_in("greedy", one.name(), MIB + 1);
    assert_eq!((world.state("a", &one), world.offered().len()), ("unreadable", 0));
    world.secret_in("greedy", one.name(), 10);
    assert_eq!((world.state("a", &one), world.offered()), ("present", vec![format!("a<-{}", one.name())]));
    for key in keys.iter().filter(|key| **key != one).take(30) {
        let gone = world.secret_of("greedy", key.name(), 1);
        world.index.handle(Kind::Secret, ObjectEvent::Deleted(gone));
    }
    let left: Vec<_> = keys.iter().filter(|key| world.state("a", key) != "absent").cloned().collect();
    assert!(world.answer(MIB) > 0, "what has room again is read");
    assert_eq!(world.counts("a", &left), (10, 0));
    world.index.reset();
    assert_eq!((world.down.index_bytes(), world.index.room.max()), (0, 16 * MIB));
}

/// As with a DaemonSet that has a large template. No node exceeds its own share.
#[test]
fn largest_namespace_gives_way_first_across_nodes() {
    let nodes: Vec<_> = (0..30).map(|number| format!("n{number}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let mut world = World::with_memory(&nodes, 16 * MIB);
    for on in &nodes {
        world.pod_in("greedy", on, on, &[], 1200 * 1024);
    }
    for on in &nodes {
        world.pod_in("modest", on, on, &[], 100 * 1024);
    }
    assert!(world.body_bytes() <= 16 * MIB);
    let state = |world: &World, namespace, on| world.state(on, &key_in(namespace, Kind::Pod, on));
    assert!(nodes.iter().all(|on| state(&world, "modest", on) == "present"));
    let present = nodes.iter().filter(|on| state(&world, "greedy", on) == "present").count();
    assert!((8..=13).contains(&present), "{present}");
    let rest = nodes.len() - present;
    assert_eq!(nodes.iter().filter(|on| state(&world, "greedy", on) == "unreadable").count(), rest);
    // A pod that is being deleted is reported to its node, which would otherwise never terminate it.
    let on = nodes.iter().find(|on| state(&world, "greedy", on) == "unreadable").expect("one of them");
    let metadata = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    let rest = json!({"metadata": metadata, "spec": {"nodeName": on}});
    let raw = world.raw("greedy", on, &format!("u-greedy-{on}"), &rest);
    world.index.handle(Kind::Pod, ObjectEvent::Applied(raw));
    assert_eq!(state(&world, "greedy", on), "present");
    for on in &nodes {
        let uid = Uid::parse(&format!("u-greedy-{on}")).expect("valid");
        world.index.pod_deleted(&uid);
    }
    assert!(nodes.iter().all(|on| state(&world, "greedy", on) == "unwanted"));
    assert!(world.down.index_bytes() < 4 * MIB, "{}", world.down.index_bytes());
}

#[test]
fn references_to_absent_objects_are_bounded_and_held_objects_stay() {
    if !alone(module_path!(), "references_to_absent_objects_are_bounded_and_held_objects_stay") {
        return;
    }
    let nodes: Vec<_> = (0..60).map(|number| format!("n{number}")).chain(["b".to_owned()]).collect();
    let mut world = World::with_memory(&nodes.iter().map(String::as_str).collect::<Vec<_>>(), 16 * MIB);
    world.pod_in("modest", "p", "n0", &names(3), 10);
    let growth = Growth::begin();
    for pod in 0..60 {
        let secrets: Vec<_> = (0..1500).map(|number| format!("made-up-{pod}-{number}")).collect();
        world.pod_in("greedy", &format!("p{pod}"), &format!("n{pod}"), &secrets, 10);
        world.index.take_effects();
    }
    // 90,000 names would take some 90 MiB.
    let most = growth.most();
    assert!(most < 40 * MIB, "{} KiB", most / 1024);
    let references = world.down.location.references();
    assert!((10_000..20_000).contains(&references), "{references}");
    let on = |pod: usize| format!("n{pod}");
    let state = |world: &World, pod| world.state(&on(pod), &key_in("greedy", Kind::Pod, &format!("p{pod}")));
    let told = |state: &str| matches!(state, "present" | "unreadable");
    assert!((0..60).all(|pod| told(state(&world, pod))), "none of them counts as deleted");
    assert_eq!(world.state("n0", &key_in("modest", Kind::Pod, "p")), "present");
    let lacks = |world: &World, pod: usize| {
        let uid = Uid::parse(&format!("u-greedy-p{pod}")).expect("valid");
        world.down.location.lacks(&node(&on(pod)), &uid)
    };
    let lacking = (0..60).find(|pod| lacks(&world, *pod)).map(on).expect("one of them");
    // The edge may hold an object to which the pod refers, although there was no room for the reference.
    let held = |namespace| key_in(namespace, Kind::Secret, "held");
    let states = |world: &World| {
        [(&*lacking, "greedy"), ("b", "greedy"), ("n0", "modest")]
            .map(|(on, index)| world.state(on, &held(index)))
    };
    assert_eq!(states(&world), ["unreadable", "unwanted", "unwanted"]);
    assert_eq!(world.state("n0", &key_in("modest", Kind::Secret, "s1")), "pending");
    for pod in 0..60 {
        world.index.pod_deleted(&Uid::parse(&format!("u-greedy-p{pod}")).expect("valid"));
    }
    assert_eq!(states(&world), ["unwanted"; 3]);
    assert!(world.offered().contains(&format!("{lacking} ready")), "what was kept is looked at again");
    assert_eq!(world.down.location.references(), 3);
}

#[test]
fn pod_references_are_restored_when_there_is_room() {
    let nodes: Vec<_> = (0..16).map(|number| format!("n{number}")).collect();
    let mut world = World::with_memory(&nodes.iter().map(String::as_str).collect::<Vec<_>>(), 16 * MIB);
    let many = |pod: &str| (0..1500).map(|number| format!("{pod}-{number}")).collect::<Vec<_>>();
    let pods: Vec<_> = nodes.iter().map(|on| (format!("p-{on}"), on)).collect();
    for (pod, on) in &pods {
        world.pod_in("greedy", pod, on, &many(pod), 10);
    }
    let uid = |pod: &str| Uid::parse(&format!("u-greedy-{pod}")).expect("valid");
    let lacks = |world: &World, pod: &str, on: &str| world.down.location.lacks(&node(on), &uid(pod));
    let (lacking, others): (Vec<_>, Vec<_>) = pods.iter().partition(|(pod, on)| lacks(&world, pod, on));
    assert!(!lacking.is_empty() && !others.is_empty(), "{lacking:?}");
    world.offered();
    for (pod, _) in &others {
        world.index.pod_deleted(&uid(pod));
    }
    let asked = world.offered();
    for (pod, on) in &lacking {
        assert!(asked.contains(&format!("fetch {pod} again")), "{pod}");
        let revision = world.revision;
        world.pod_in("greedy", pod, on, &many(pod), 10);
        assert!(world.revision > revision && !lacks(&world, pod, on), "{pod}");
        assert_eq!(world.state(on, &key_in("greedy", Kind::Pod, pod)), "present");
        assert_eq!(world.state(on, &key_in("greedy", Kind::Secret, &format!("{pod}-7"))), "pending");
    }
    let told = world.offered();
    let (pod, on) = &lacking[0];
    assert!(told.contains(&format!("{on} ready")) && told.contains(&format!("{on}<-{pod}-7")));
}
