//! Upper bounds on what one node can make the index keep, in bytes.

use super::super::bodies::{NODE_MIRROR_PODS_MAX, NODE_PODS_BYTES_MAX};
use super::super::ending::END_LEN_MAX;
use super::super::nodes::NODE_OBJECT_BYTES_MAX;
use super::*;
use crate::edgecontroller::node_object_cache::Tally;

const KIB: usize = 1024;

impl World {
    /// A pod whose status has this size.
    fn reported(&mut self, name: &str, on: &str, kib: usize) -> RawObject {
        let status = json!({"phase": "Running", "message": "x".repeat(kib * KIB)});
        let rest = json!({"spec": {"nodeName": on}, "status": status});
        self.raw("d", name, &format!("u-{name}"), &rest)
    }

    /// A mirror pod whose body has this size and which refers to a Secret.
    fn mirror(&mut self, name: &str, on: &str, kib: usize) -> RawObject {
        let annotations = json!({"kubernetes.io/config.mirror": "m", "junk": "x".repeat(kib * KIB)});
        let spec = json!({"nodeName": on, "imagePullSecrets": [{"name": "s"}]});
        self.raw(
            "d",
            name,
            &format!("u-{name}"),
            &json!({"metadata": {"annotations": annotations}, "spec": spec}),
        )
    }

    fn see(&mut self, pod: RawObject) {
        self.index.handle(Kind::Pod, ObjectEvent::Applied(pod));
    }

    fn pod_state(&self, on: &str, name: &str) -> &'static str {
        self.state(on, &key(Kind::Pod, name))
    }

    fn states(&self, on: &str, names: &[String], state: &str) -> usize {
        names.iter().filter(|name| self.pod_state(on, name) == state).count()
    }
}

#[test]
fn mirror_pods_cost_only_their_node_and_within_its_bound() {
    let mut world = World::synced(&["a", "b"]);
    for on in ["a", "b"] {
        let pod = world.reported(&format!("ordinary-{on}"), on, 8);
        world.see(pod);
    }
    let before = world.down.tally().pod_bytes;
    let names: Vec<_> = (0..200).map(|number| format!("mirror-{number}")).collect();
    for name in &names {
        let pod = world.mirror(name, "a", 60);
        world.see(pod);
    }
    let Tally { pod_bytes, withheld, .. } = world.down.tally();
    let grown = pod_bytes - before;
    // 12 MiB were written.
    assert!(grown > NODE_PODS_BYTES_MAX - 100 * KIB && grown < NODE_PODS_BYTES_MAX, "{grown}");
    assert_eq!(withheld + world.states("a", &names, "present"), NODE_MIRROR_PODS_MAX);
    assert_eq!(world.states("a", &names, "unreadable"), withheld, "none of them counts as deleted");
    assert_eq!((world.down.unheeded(), world.index.pods.keys().count()), (72, NODE_MIRROR_PODS_MAX + 2));
    assert_eq!(
        (world.pod_state("a", "ordinary-a"), world.pod_state("b", "ordinary-b")),
        ("present", "present")
    );
}

#[test]
fn mirror_pod_brings_its_node_no_objects() {
    let mut world = World::synced(&["a"]);
    let pod = world.mirror("mirror", "a", 1);
    world.see(pod);
    assert_eq!(world.offered(), ["a<-mirror"], "no Secret is read or pushed");
    assert_eq!(world.state("a", &key(Kind::Secret, "s")), "unwanted");
    assert_eq!(world.down.location.references(), 0);
}

#[test]
fn oversized_status_withholds_only_its_own_pod() {
    let mut world = World::synced(&["a"]);
    for (name, kib) in [("small", 8), ("one", 940), ("two", 941), ("three", 942)] {
        let pod = world.reported(name, "a", kib);
        world.see(pod);
    }
    let states = |world: &World| ["small", "one", "two", "three"].map(|name| world.pod_state("a", name));
    assert_eq!(states(&world), ["present", "present", "present", "unreadable"]);
    assert!(world.down.tally().pod_bytes <= NODE_PODS_BYTES_MAX);
    world.offered();
    let pod = world.reported("small", "a", 900);
    world.see(pod);
    assert_eq!(
        states(&world),
        ["present", "present", "unreadable", "unreadable"],
        "the larger one exceeds the limit"
    );
    assert_eq!(world.offered(), ["a<-two"], "a change of the status alone is not sent to the pod's own node");
    let pod = world.reported("one", "a", 1);
    world.see(pod);
    assert_eq!(
        world.offered(),
        ["fetch two again"],
        "the room that the smaller status leaves is for the other"
    );
    assert_eq!(world.pod_state("a", "two"), "unreadable", "not read yet");
    let pod = world.reported("two", "a", 941);
    let expected = world.down.objects.get(&key(Kind::Pod, "two")).and_then(|two| two.version().cloned());
    world.index.fetched(&key(Kind::Pod, "two"), expected.as_ref(), Some(pod));
    assert_eq!(states(&world), ["present", "present", "present", "unreadable"]);
    assert_eq!(world.offered(), ["a<-two"], "objects that are readable again are reported");
}

/// A pod without room is being deleted: its node is notified, and deleting large pods takes no room from others.
#[test]
fn deletion_reaches_the_node_of_a_pod_without_room() {
    let mut world = World::synced(&["a"]);
    for (name, kib) in [("small", 8), ("one", 940), ("two", 941), ("three", 942)] {
        let pod = world.reported(name, "a", kib);
        world.see(pod);
    }
    let deleted = |world: &mut World, name: &str, spec: usize, status: usize| {
        let mut pod = world.reported(name, "a", status).into_value();
        pod["spec"]["junk"] = "x".repeat(spec * KIB).into();
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        world.see(RawObject::new(pod));
    };
    let states = |world: &World| ["small", "one", "two", "three"].map(|name| world.pod_state("a", name));
    assert_eq!(states(&world), ["present", "present", "present", "unreadable"]);
    deleted(&mut world, "three", 1, 942);
    assert_eq!(states(&world), ["present", "present", "present", "present"]);
    let three = world.down.present(&key(Kind::Pod, "three")).expect("present");
    let body: Value = serde_json::from_slice(&three.body).expect("JSON");
    assert!(body["metadata"]["deletionTimestamp"].is_string() && body.get("status").is_none());
    assert_eq!(three.version.hash, tombolo_proto::inventory::content_hash(&three.body));
    deleted(&mut world, "large", 1500, 1);
    assert_eq!(states(&world), ["present", "present", "present", "present"]);
    let large = world.down.present(&key(Kind::Pod, "large")).expect("present");
    let body: Value = serde_json::from_slice(&large.body).expect("JSON");
    assert!(body["metadata"]["deletionTimestamp"].is_string() && body["spec"].get("junk").is_none());
    deleted(&mut world, "small", 1, 8);
    let body = world.down.present(&key(Kind::Pod, "small")).expect("present").body.clone();
    assert!(serde_json::from_slice::<Value>(&body).expect("JSON")["status"].is_object());
}

/// The largest of many pods is delivered as soon as it is being deleted.
#[test]
fn pod_being_deleted_has_priority_over_running_pods() {
    let mut world = World::synced(&["a"]);
    let names: Vec<_> = (0..251).map(|number| format!("small-{number}")).collect();
    for name in &names {
        let pod = world.reported(name, "a", 8);
        world.see(pod);
    }
    for kib in [15, 17] {
        let name = format!("large-{kib}");
        let mut pod = world.reported(&name, "a", 0).into_value();
        pod["spec"]["junk"] = "x".repeat(kib * KIB).into();
        world.see(RawObject::new(pod.clone()));
        assert_eq!(world.pod_state("a", &name), "unreadable");
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        pod["metadata"]["resourceVersion"] = "100000".into();
        world.see(RawObject::new(pod));
    }
    assert_eq!((world.pod_state("a", "large-15"), world.pod_state("a", "large-17")), ("present", "present"));
    assert!(
        world.states("a", &names, "present") >= names.len() - 2,
        "the room of two others is enough for it"
    );
}

/// Pods that are being deleted but never end, because of finalizers, do not keep others from being terminated: each is
/// delivered, by events, by a list, and when it has lost its room.
#[test]
fn deletion_of_a_pod_is_delivered_despite_a_full_node_share() {
    let names: Vec<_> = (0..450).map(|number| format!("p{number:03}")).collect();
    let mut world = World::synced(&["a", "b"]);
    for on in ["a", "b"] {
        let mut pods = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let mut pod = world.reported(&format!("{name}-{on}"), on, 1).into_value();
            pod["spec"]["junk"] = "x".repeat((12 + number % 9) * KIB).into();
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            pod["metadata"]["finalizers"] = json!(["never"]);
            pods.push(RawObject::new(pod));
        }
        match on {
            "a" => pods.into_iter().for_each(|pod| world.see(pod)),
            _ => world.index.pods_listed(&node(on), listed(pods)),
        }
        let mut whole = 0;
        for name in &names {
            let pod = world.down.present(&key(Kind::Pod, &format!("{name}-{on}"))).expect("present");
            let body: Value = serde_json::from_slice(&pod.body).expect("JSON");
            assert!(body["metadata"]["deletionTimestamp"].is_string(), "{name}");
            assert_eq!(pod.version.hash, tombolo_proto::inventory::content_hash(&pod.body));
            whole += usize::from(body["spec"].get("junk").is_some());
        }
        assert!(
            whole > 100 && whole < 200,
            "{whole} of 200 that have less than 16 KiB, for as many as there is room"
        );
    }
    let Tally { pod_bytes, withheld, .. } = world.down.tally();
    assert!(pod_bytes <= 2 * (NODE_PODS_BYTES_MAX + names.len() * END_LEN_MAX), "{pod_bytes}");
    assert_eq!(withheld, 0);
}

/// A pod missing from a list is read, in whichever length it is kept.
#[test]
fn pod_kept_only_for_its_deletion_is_gone_when_deleted() {
    let mut world = World::synced(&["a"]);
    let all: Vec<_> = (0..200).map(|number| format!("p{number}")).collect();
    for name in &all {
        let mut pod = world.reported(name, "a", 0).into_value();
        pod["spec"]["junk"] = "x".repeat(14 * KIB).into();
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        world.see(RawObject::new(pod));
    }
    let is_short =
        |name: &&String| world.down.present(&key(Kind::Pod, name)).expect("present").body.len() < END_LEN_MAX;
    let short = key(Kind::Pod, all.iter().find(is_short).expect("one without room"));
    let expected = world.index.pods.by_key(&short).expect("known").version.clone();
    world.index.fetched(&short, Some(&expected), None);
    assert_eq!(world.state("a", &short), "unwanted");
}

#[test]
fn pod_without_body_is_gone_only_when_deleted() {
    let mut world = World::synced(&["a"]);
    for name in ["one", "two", "three"] {
        let pod = world.reported(name, "a", 940);
        world.see(pod);
    }
    let three = key(Kind::Pod, "three");
    let expected =
        world.down.objects.get(&three).and_then(|three| three.version().cloned()).expect("withheld");
    assert_eq!(world.down.known(&three).revision, Some(expected.revision), "reports of it have its version");
    world.offered();
    world.index.handle(Kind::Pod, ObjectEvent::RelistStart);
    for name in ["one", "two"] {
        let pod = world.reported(name, "a", 940);
        world.see(pod);
    }
    world.index.handle(Kind::Pod, ObjectEvent::RelistEnd);
    assert_eq!(world.offered(), ["fetch three again"], "its absence from a list is confirmed first");
    assert_eq!(world.pod_state("a", "three"), "unreadable");
    world.index.fetched(&three, Some(&expected), None);
    assert_eq!((world.offered(), world.pod_state("a", "three")), (vec!["a<-three".to_owned()], "unwanted"));
}

#[test]
fn usual_pods_stay_below_the_node_bound() {
    let mut world = World::synced(&["a", "b"]);
    for (on, pods, kib) in [("a", 110, 17), ("b", 250, 7)] {
        for number in 0..pods {
            let pod = world.reported(&format!("{on}-{number}"), on, kib);
            world.see(pod);
        }
    }
    // Jobs that have ended give way to running pods.
    for number in 0..1000 {
        let ended = json!({"spec": {"nodeName": "a"}, "status": {"phase": "Succeeded", "message": "x".repeat(4 * KIB)}});
        let pod = world.raw("d", &format!("job-{number}"), &format!("u-job-{number}"), &ended);
        world.see(pod);
    }
    let running = |on: &str, pods| (0..pods).map(|number| format!("{on}-{number}")).collect::<Vec<_>>();
    assert_eq!(world.states("a", &running("a", 110), "present"), 110);
    assert_eq!(world.states("b", &running("b", 250), "present"), 250);
}

#[test]
fn oversized_node_is_unreadable_to_itself() {
    let mut world = World::synced(&["a"]);
    let own = node_key(&node("a"));
    let labelled = |world: &mut World, bytes: usize| {
        let labels = json!({nodes::EDGE_LABEL: "", "junk": "x".repeat(bytes)});
        let raw = world.raw("", "a", "u-node", &json!({"metadata": {"labels": labels}}));
        world.index.handle(Kind::Node, ObjectEvent::Applied(raw));
        world.state("a", &own)
    };
    assert_eq!(labelled(&mut world, NODE_OBJECT_BYTES_MAX - KIB), "present");
    assert_eq!(labelled(&mut world, NODE_OBJECT_BYTES_MAX), "unreadable");
    let expected = world.down.objects.get(&own).and_then(|own| own.version().cloned()).expect("withheld");
    assert_eq!(world.down.known(&own).revision, Some(expected.revision));
    world.offered();
    assert_eq!(labelled(&mut world, 10), "present");
    assert_eq!(world.offered(), ["a<-a"]);
    world.index.handle(Kind::Node, ObjectEvent::RelistStart);
    world.index.handle(Kind::Node, ObjectEvent::RelistEnd);
    assert_eq!(world.offered(), ["fetch a again"]);
}

/// A list is read before the index knows any of it, so it has a bound of its own.
#[test]
fn list_of_large_pods_stays_within_the_node_share() {
    let mut world = World::synced(&["a"]);
    let mirrors: Vec<_> = (0..20).map(|number| world.mirror(&format!("m{number}"), "a", 400)).collect();
    let ordinary: Vec<_> = (0..4).map(|number| world.reported(&format!("o{number}"), "a", 1000)).collect();
    let list = listed(mirrors.into_iter().chain(ordinary));
    let bytes: usize = list.bytes();
    assert!(
        bytes > NODE_PODS_BYTES_MAX && bytes <= 2 * NODE_PODS_BYTES_MAX,
        "8 MiB and 4 MiB were read: {bytes}"
    );
    world.index.pods_listed(&node("a"), list);
    let names =
        |prefix: &str, count: usize| (0..count).map(|number| format!("{prefix}{number}")).collect::<Vec<_>>();
    let (mirrors, ordinary) = (names("m", 20), names("o", 4));
    assert_eq!(
        world.states("a", &mirrors, "unreadable"),
        20,
        "pods that others have bound to the node are dropped first"
    );
    assert_eq!(
        world.states("a", &ordinary, "present") + world.states("a", &ordinary, "unreadable"),
        4,
        "none counts as deleted"
    );
    assert!(world.down.tally().pod_bytes <= NODE_PODS_BYTES_MAX);
}

/// A node may create as many mirror pods as it likes.
#[test]
fn listed_mirror_pods_are_bounded() {
    let mut world = World::synced(&["a"]);
    let pods: Vec<_> = (0..1000).map(|number| world.mirror(&format!("m{number}"), "a", 0)).collect();
    assert_eq!(listed(pods).into_pods().len(), NODE_MIRROR_PODS_MAX);
}

/// A body that the list left out is read once there is room for it.
#[test]
fn pods_left_out_of_a_list_are_read_later() {
    let mut world = World::synced(&["a"]);
    let pods: Vec<_> =
        [("m0", 940), ("m1", 940), ("m2", 940)].map(|(name, kib)| world.mirror(name, "a", kib)).into();
    world.offered();
    world.index.pods_listed(&node("a"), listed(pods));
    assert_eq!(world.pod_state("a", "m2"), "unreadable");
    world.index.pod_deleted(&Uid::parse("u-m0").expect("a UID"));
    assert!(world.offered().contains(&"fetch m2 again".to_owned()));
}
