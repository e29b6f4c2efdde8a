use serde_json::{Value, json};
use tombolo_proto::Uid;
use tombolo_proto::session::Lookup;

use super::*;
use crate::edgecontroller::node_object_cache::node_key;

mod bodies;
mod late;
mod needs;
mod whole;

fn listed(pods: impl IntoIterator<Item = RawObject>) -> PodList {
    let mut list = PodList::default();
    pods.into_iter().for_each(|pod| list.add(pod));
    list
}

struct World {
    index: Index,
    down: Arc<NodeObjectCache>,
    revision: u64,
}

fn node(name: &str) -> NodeId {
    NodeId::parse(name).expect("valid")
}

fn key(kind: Kind, name: &str) -> ObjectKey {
    ObjectKey::new(kind.resource(), "d", name)
}

impl World {
    /// Nodes are listed; the other lists have begun and ended empty.
    fn synced(nodes: &[&str]) -> Self {
        Self::with_memory(nodes, INDEX_BYTES_MAX)
    }

    /// The same with a budget of so many bytes for the index.
    fn with_memory(nodes: &[&str], bytes: usize) -> Self {
        let down = Arc::new(NodeObjectCache::default());
        let index = Index::new(Arc::clone(&down)).with_memory(bytes);
        let mut world = Self { index, down, revision: 10 };
        world.index.handle(Kind::Node, ObjectEvent::RelistStart);
        for name in nodes {
            world.node(name, "u-node");
        }
        for kind in Kind::ALL {
            if kind != Kind::Node {
                world.index.handle(kind, ObjectEvent::RelistStart);
            }
            world.index.handle(kind, ObjectEvent::RelistEnd);
        }
        world.index.take_effects();
        world
    }

    fn raw(&mut self, namespace: &str, name: &str, uid: &str, rest: &Value) -> RawObject {
        self.revision += 1;
        let mut metadata = json!({"name": name, "uid": uid, "resourceVersion": self.revision.to_string()});
        if !namespace.is_empty() {
            metadata["namespace"] = namespace.into();
        }
        let mut value = json!({ "metadata": metadata });
        json_patch::merge(&mut value, rest);
        RawObject::new(value)
    }

    fn node(&mut self, name: &str, uid: &str) {
        let raw = self.raw("", name, uid, &json!({"metadata": {"labels": {nodes::EDGE_LABEL: ""}}}));
        self.index.handle(Kind::Node, ObjectEvent::Applied(raw));
    }

    fn pod_raw(&mut self, name: &str, on: &str, secrets: &[&str]) -> RawObject {
        let pull: Vec<_> = secrets.iter().map(|name| json!({ "name": name })).collect();
        let rest = json!({"spec": {"nodeName": on, "imagePullSecrets": pull}});
        self.raw("d", name, &format!("u-{name}"), &rest)
    }

    fn pod(&mut self, name: &str, on: &str, secrets: &[&str]) {
        let raw = self.pod_raw(name, on, secrets);
        self.index.handle(Kind::Pod, ObjectEvent::Applied(raw));
    }

    fn secret(&mut self, name: &str, data: &str) -> RawObject {
        self.raw("d", name, &format!("u-{name}"), &json!({"data": {"k": data}}))
    }

    fn offered(&mut self) -> Vec<String> {
        let show = |effect: Effect| match effect {
            Effect::Offer(node, key) => format!("{node}<-{}", key.name()),
            Effect::Ready(node) => format!("{node} ready"),
            Effect::NodeDeleted(node) => format!("{node} deleted"),
            Effect::Fetch(key, expected) => {
                format!("fetch {}{}", key.name(), if expected.is_some() { " again" } else { "" })
            }
            Effect::ListPods(node) => format!("list {node}"),
        };
        self.index.read_begun();
        self.index.take_effects().into_iter().map(show).collect()
    }

    fn state(&self, on: &str, key: &ObjectKey) -> &'static str {
        match self.down.lookup(&node(on), key) {
            Lookup::Present(_) => "present",
            Lookup::Absent => "absent",
            Lookup::Unwanted(_) => "unwanted",
            Lookup::Unreadable(_) => "unreadable",
            Lookup::Pending => "pending",
        }
    }
}

#[test]
fn secret_is_delivered_while_any_pod_needs_it() {
    let mut world = World::synced(&["a", "b"]);
    let secret = key(Kind::Secret, "s");
    world.pod("p1", "a", &["s"]);
    assert_eq!(world.offered(), ["fetch s", "a<-s", "a<-p1"]);
    assert_eq!((world.state("a", &secret), world.state("b", &secret)), ("pending", "unwanted"));
    let raw = world.secret("s", "1");
    world.index.fetched(&secret, None, Some(raw));
    assert_eq!(world.offered(), ["a<-s"]);
    assert_eq!(world.state("a", &secret), "present");

    world.pod("p2", "a", &["s"]);
    assert_eq!(world.offered(), ["a<-p2"], "the node has it already");
    world.index.pod_deleted(&Uid::parse("u-p1").expect("valid"));
    assert_eq!(world.offered(), ["a<-p1"]);
    assert_eq!(world.state("a", &secret), "present");
    world.index.pod_deleted(&Uid::parse("u-p2").expect("valid"));
    assert_eq!(world.offered(), ["a<-p2", "a<-s"]);
    assert_eq!(world.state("a", &secret), "unwanted");
    let raw = world.secret("s", "2");
    world.index.handle(Kind::Secret, ObjectEvent::Applied(raw));
    assert_eq!(world.offered(), Vec::<String>::new());
    assert_eq!(world.down.objects.len(), 2, "only the two Nodes stay in memory");
}

#[test]
fn reference_may_precede_its_object() {
    let mut world = World::synced(&["a"]);
    let config = key(Kind::ConfigMap, "c");
    let raw = world.raw(
        "d",
        "p",
        "u-p",
        &json!({
            "spec": {"nodeName": "a", "volumes": [{"configMap": {"name": "c", "optional": true}}]}
        }),
    );
    world.index.handle(Kind::Pod, ObjectEvent::Applied(raw));
    world.index.take_effects();
    world.index.fetched(&config, None, None);
    assert_eq!(world.offered(), ["a<-c"]);
    assert_eq!(world.state("a", &config), "absent");
    let raw = world.raw("d", "c", "u-c", &json!({"data": {"k": "v"}}));
    world.index.handle(Kind::ConfigMap, ObjectEvent::Applied(raw.clone()));
    assert_eq!(world.offered(), ["a<-c"]);
    world.index.handle(Kind::ConfigMap, ObjectEvent::Applied(raw));
    assert_eq!(world.offered(), Vec::<String>::new(), "the same content is no change");
    let gone = world.raw("d", "c", "u-c", &json!({}));
    world.index.handle(Kind::ConfigMap, ObjectEvent::Deleted(gone));
    assert_eq!((world.offered(), world.state("a", &config)), (vec!["a<-c".to_owned()], "absent"));
}

#[test]
fn impossible_reference_is_never_read_and_delays_nothing() {
    let mut world = World::synced(&["a"]);
    let long = "x".repeat(300);
    world.pod("p", "a", &["a/b", "a b", "A", &long, "..", "\u{0}", "ä", "good"]);
    assert_eq!(world.offered(), ["fetch good", "a<-good", "a<-p"]);
    let Lookup::Present(pod) = world.down.lookup(&node("a"), &key(Kind::Pod, "p")) else { panic!("present") };
    assert_eq!(pod.dependencies, [key(Kind::Secret, "good")]);
    assert!(std::str::from_utf8(&pod.body).expect("JSON").contains("a/b"), "the pod is as it was stored");
}

#[test]
fn unreadable_object_delays_no_node() {
    let mut world = World::synced(&["a", "b"]);
    let secret = key(Kind::Secret, "s");
    world.pod("p", "a", &["s"]);
    world.offered();
    world.index.unreadable(&secret, 403);
    assert_eq!((world.offered(), world.state("a", &secret)), (vec!["a<-s".to_owned()], "unreadable"));
    world.index.unreadable(&secret, 403);
    assert_eq!(world.offered(), Vec::<String>::new(), "told once");
    assert_eq!(world.down.tally().unreadable, 1, "operators see it");
    world.pod("q", "b", &["s"]);
    assert_eq!(
        (world.offered(), world.state("b", &secret)),
        (vec!["b<-s".to_owned(), "b<-q".to_owned()], "unreadable")
    );
    let raw = world.secret("s", "1");
    world.index.fetched(&secret, None, Some(raw));
    assert_eq!((world.state("a", &secret), world.down.tally().unreadable), ("present", 0));
    world.index.unreadable(&secret, 500);
    assert_eq!(world.state("a", &secret), "present", "known objects stay");

    world.pod("r", "a", &["t"]);
    world.index.unreadable(&key(Kind::Secret, "t"), 500);
    world.index.fetched(&key(Kind::Secret, "t"), None, None);
    assert_eq!(world.state("a", &key(Kind::Secret, "t")), "absent");
    world.index.pod_deleted(&Uid::parse("u-r").expect("valid"));
    assert_eq!(world.index.who_needs(&key(Kind::Secret, "t")), None, "the read ends");
}

/// Only the pod watch lags: what the API server lists enters the index before anyone acts on its absence.
#[test]
fn list_of_a_nodes_pods_reveals_what_a_late_watch_missed() {
    let mut world = World::synced(&["a"]);
    let raw = world.secret("other", "1");
    world.index.handle(Kind::Secret, ObjectEvent::Applied(raw));
    let (pod, secret) = (key(Kind::Pod, "running"), key(Kind::Secret, "s"));
    assert_eq!((world.state("a", &pod), world.state("a", &secret)), ("unwanted", "unwanted"));
    let raw = world.pod_raw("running", "a", &["s"]);
    world.index.pods_listed(&node("a"), listed([raw]));
    assert_eq!((world.state("a", &pod), world.state("a", &secret)), ("present", "pending"));
}

#[test]
fn the_newer_of_read_and_watch_wins() {
    let mut world = World::synced(&["a"]);
    let secret = key(Kind::Secret, "s");
    world.pod("p", "a", &["s"]);
    let (old, new) = (world.secret("s", "old"), world.secret("s", "new"));
    world.index.handle(Kind::Secret, ObjectEvent::Applied(new));
    world.index.fetched(&secret, None, Some(old));
    let Lookup::Present(object) = world.down.lookup(&node("a"), &secret) else { panic!("present") };
    assert!(std::str::from_utf8(&object.body).expect("JSON").contains("new"));

    let mut world = World::synced(&["a"]);
    world.pod("p", "a", &["s"]);
    let old = world.secret("s", "old");
    let gone = world.secret("s", "old");
    world.index.handle(Kind::Secret, ObjectEvent::Deleted(gone));
    world.index.fetched(&secret, None, Some(old));
    assert_eq!(
        world.state("a", &secret),
        "absent",
        "a read from before the deletion does not revive the object"
    );
}

#[test]
fn a_pod_bound_before_its_node_exists_is_not_lost() {
    let mut world = World::synced(&[]);
    world.pod("early", "a", &[]);
    assert_eq!(world.offered(), Vec::<String>::new());
    world.node("a", "u-node");
    assert_eq!(world.offered(), ["list a"]);
    assert_eq!(world.state("a", &node_key(&node("a"))), "pending", "half a picture is no picture");
    let raw = world.pod_raw("early", "a", &[]);
    world.index.pods_listed(&node("a"), listed([raw]));
    let effects = world.offered();
    assert!(
        effects.contains(&"a<-early".to_owned()) && effects.ends_with(&["a ready".to_owned()]),
        "{effects:?}"
    );
    assert_eq!(world.state("a", &key(Kind::Pod, "early")), "present");
}

#[test]
fn a_pod_deleted_while_its_node_is_listed_stays_deleted() {
    let mut world = World::synced(&[]);
    world.node("a", "u-node");
    world.offered();
    let raw = world.pod_raw("p", "a", &[]);
    world.index.handle(Kind::Pod, ObjectEvent::Deleted(raw.clone()));
    world.index.pods_listed(&node("a"), listed([raw]));
    assert_eq!(world.state("a", &key(Kind::Pod, "p")), "unwanted");
}

#[test]
fn deleted_node_drops_everything_and_a_new_one_gets_everything() {
    let mut world = World::synced(&["a"]);
    world.pod("p", "a", &["s"]);
    let raw = world.secret("s", "1");
    world.index.fetched(&key(Kind::Secret, "s"), None, Some(raw));
    world.index.joined(&node("a"));
    world.offered();
    let raw = world.raw("", "a", "u-node", &json!({}));
    world.index.handle(Kind::Node, ObjectEvent::Deleted(raw));
    assert_eq!(world.offered(), ["a deleted"]);
    assert!(world.down.objects.is_empty() && world.down.nodes.is_empty());
    assert_eq!(
        world.state("a", &key(Kind::Secret, "s")),
        "pending",
        "no object is sent, and none is deleted"
    );

    world.index.joined(&node("a"));
    assert_eq!(world.offered(), ["fetch a"]);
    world.index.fetched(&node_key(&node("a")), None, None);
    assert_eq!(world.state("a", &key(Kind::Pod, "p")), "pending");
    world.node("a", "u-node-2");
    assert_eq!(world.offered(), ["list a"]);
    let raw = world.pod_raw("p", "a", &["s"]);
    world.index.pods_listed(&node("a"), listed([raw]));
    assert_eq!(world.state("a", &key(Kind::Pod, "p")), "present");
}

#[test]
fn node_recreated_unseen_is_first_reported_as_deleted() {
    let mut world = World::synced(&["a"]);
    world.node("a", "u-other");
    assert_eq!(world.offered(), ["a deleted", "list a"]);
}

#[test]
fn heartbeats_are_ignored_and_label_changes_are_not() {
    let mut world = World::synced(&["a"]);
    world.node("a", "u-node");
    assert_eq!(world.offered(), Vec::<String>::new());
    let labels = json!({"metadata": {"labels": {nodes::EDGE_LABEL: "", "zone": "x"}}});
    let raw = world.raw("", "a", "u-node", &labels);
    world.index.handle(Kind::Node, ObjectEvent::Applied(raw));
    assert_eq!(world.offered(), ["a<-a"]);
}

#[test]
fn a_node_without_the_label_is_an_edge_once_it_joined() {
    let mut world = World::synced(&[]);
    let raw = world.raw("", "plain", "u-node", &json!({}));
    world.index.handle(Kind::Node, ObjectEvent::Applied(raw.clone()));
    assert_eq!((world.offered(), world.down.nodes.len()), (vec![], 0));
    world.index.joined(&node("plain"));
    assert_eq!(world.offered(), ["fetch plain"]);
    world.index.fetched(&node_key(&node("plain")), None, Some(raw));
    assert_eq!(world.offered(), ["list plain"]);
    world.index.left(&node("plain"));
    assert_eq!(world.down.nodes.len(), 1, "a registered node stays");
}

#[test]
fn objects_missing_from_a_new_list_are_read() {
    let mut world = World::synced(&["a"]);
    world.pod("p", "a", &["s"]);
    let raw = world.secret("s", "1");
    world.index.fetched(&key(Kind::Secret, "s"), None, Some(raw.clone()));
    world.offered();
    for (kind, again) in
        [(Kind::Secret, "fetch s again"), (Kind::Pod, "fetch p again"), (Kind::Node, "fetch a again")]
    {
        world.index.handle(kind, ObjectEvent::RelistStart);
        world.index.handle(kind, ObjectEvent::RelistEnd);
        assert_eq!(world.offered(), [again]);
    }
    let version = world.down.objects.get(&key(Kind::Pod, "p")).and_then(|cached| cached.version().cloned());
    world.index.fetched(&key(Kind::Pod, "p"), version.as_ref(), None);
    assert_eq!(world.offered(), ["a<-p", "a<-s"]);
    assert_eq!(world.state("a", &key(Kind::Pod, "p")), "unwanted");
}

#[test]
fn objects_in_the_new_list_are_not_read_again() {
    let mut world = World::synced(&["a"]);
    world.pod("p", "a", &[]);
    world.offered();
    world.index.handle(Kind::Pod, ObjectEvent::RelistStart);
    world.pod("p", "a", &[]);
    world.index.handle(Kind::Pod, ObjectEvent::RelistEnd);
    assert_eq!(world.offered(), Vec::<String>::new());
}

#[test]
fn the_first_lists_spare_single_reads() {
    let down = Arc::new(NodeObjectCache::default());
    let mut world = World { index: Index::new(Arc::clone(&down)), down, revision: 10 };
    world.index.handle(Kind::Node, ObjectEvent::RelistStart);
    world.node("a", "u-node");
    world.index.handle(Kind::Node, ObjectEvent::RelistEnd);
    world.index.handle(Kind::Pod, ObjectEvent::RelistStart);
    world.pod("p", "a", &["s", "missing"]);
    world.index.handle(Kind::Pod, ObjectEvent::RelistEnd);
    assert!(world.offered().ends_with(&["a ready".to_owned()]));
    world.index.handle(Kind::Secret, ObjectEvent::RelistStart);
    for name in ["s", "other"] {
        let raw = world.secret(name, "1");
        world.index.handle(Kind::Secret, ObjectEvent::Applied(raw));
    }
    world.index.handle(Kind::Secret, ObjectEvent::RelistEnd);
    assert_eq!(world.offered(), ["a<-s", "fetch missing"]);
    assert!(
        !world.down.objects.contains_key(&key(Kind::Secret, "other")),
        "an object without users is not kept"
    );
}

#[test]
fn reset_clears_the_history_but_keeps_joined_nodes() {
    let mut world = World::synced(&["a", "b"]);
    world.index.joined(&node("a"));
    world.pod("p", "a", &[]);
    world.index.reset();
    assert_eq!(world.down.nodes.len(), 1);
    assert!(world.down.objects.is_empty() && !world.index.is_synced());
    assert_eq!(world.down.revision().0, 0);
}

#[test]
fn object_without_uid_is_counted_and_ignored() {
    let mut world = World::synced(&["a"]);
    let raw = RawObject::new(json!({
        "metadata": {"name": "p", "namespace": "d", "resourceVersion": "99"}, "spec": {"nodeName": "a"}
    }));
    world.index.handle(Kind::Pod, ObjectEvent::Applied(raw));
    assert_eq!((world.index.malformed(), world.offered()), (1, vec![]));
}

/// An object of more parts than are read of any kind.
fn of_many_values(kind: Kind, name: &str, revision: u64, rest: &str) -> RawObject {
    let many: Vec<String> = (0..120_000).map(|number| format!(r#""k{number}":"""#)).collect();
    let (many, namespace) = (many.join(","), if kind == Kind::Node { "" } else { "d" });
    let text = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","uid":"u-{name}","resourceVersion":"{revision}","annotations":{{{many}}}}}{rest}}}"#
    );
    serde_json::from_str(&text).expect("an object")
}

const ON_A: &str = r#","spec":{"nodeName":"a","volumes":[{"secret":{"secretName":"s"}}]}"#;

#[test]
fn unreadable_pod_keeps_what_it_needs_until_its_deletion() {
    let mut world = World::synced(&["a"]);
    let (pod, secret) = (key(Kind::Pod, "p"), key(Kind::Secret, "s"));
    world.index.pods_listed(&node("a"), listed([of_many_values(Kind::Pod, "p", 1000, ON_A)]));
    let raw = world.secret("s", "1");
    world.index.fetched(&secret, None, Some(raw));
    assert_eq!((world.state("a", &pod), world.state("a", &secret)), ("unreadable", "present"));
    world.index.handle(Kind::Pod, ObjectEvent::Applied(of_many_values(Kind::Pod, "p", 1001, ON_A)));
    let effects = world.index.take_effects();
    let reads = effects.iter().filter(|effect| matches!(effect, Effect::Fetch(key, _) if *key == pod));
    assert_eq!(reads.count(), 0, "it is not requested repeatedly");
    assert_eq!((world.state("a", &pod), world.state("a", &secret)), ("unreadable", "present"));
    world.index.handle(Kind::Pod, ObjectEvent::Deleted(of_many_values(Kind::Pod, "p", 1002, ON_A)));
    assert_eq!((world.state("a", &pod), world.state("a", &secret)), ("unwanted", "unwanted"));
}

/// A pod too large to be read whole is being deleted: its node is notified with the part that was read.
#[test]
fn unreadable_pod_that_is_being_deleted_reaches_its_node() {
    let mut world = World::synced(&["a"]);
    let pod = key(Kind::Pod, "p");
    world.pod("p", "a", &["s"]);
    let deleted = |revision: u64, seconds: u64| {
        let text = of_many_values(Kind::Pod, "p", revision, ON_A).value().to_string();
        let marks = format!(
            r#"{{"metadata":{{"deletionTimestamp":"2026-01-01T00:00:{seconds}Z","deletionGracePeriodSeconds":{seconds},"#
        );
        let text = text.replacen(r#"{"metadata":{"#, &marks, 1);
        let many = r#""","#.repeat(270_000);
        let text = format!(r#"{},"status":[{many}0]}}"#, text.strip_suffix('}').expect("an object"));
        let raw: RawObject = serde_json::from_str(&text).expect("an object");
        assert!(raw.is_unread());
        raw
    };
    let told = |world: &World| match world.down.lookup(&node("a"), &pod) {
        Lookup::Present(object) => serde_json::from_slice::<Value>(&object.body).expect("JSON"),
        _ => panic!("{}", world.state("a", &pod)),
    };
    world.index.handle(Kind::Pod, ObjectEvent::Applied(of_many_values(Kind::Pod, "p", 1000, ON_A)));
    assert_eq!(world.state("a", &pod), "unreadable");
    world.offered();
    world.index.handle(Kind::Pod, ObjectEvent::Applied(deleted(1001, 30)));
    assert!(world.offered().contains(&"a<-p".to_owned()));
    let body = told(&world);
    assert_eq!((&body["kind"], &body["spec"]["nodeName"]), (&json!("Pod"), &json!("a")));
    assert_eq!(body["metadata"]["deletionGracePeriodSeconds"], 30);
    world.index.handle(Kind::Pod, ObjectEvent::Applied(deleted(1002, 30)));
    assert_eq!(world.offered(), [""; 0], "only fields that a node does not use have grown");
    world.index.handle(Kind::Pod, ObjectEvent::Applied(deleted(1003, 10)));
    assert_eq!(
        (world.offered(), told(&world)["metadata"]["deletionGracePeriodSeconds"].as_u64()),
        (vec!["a<-p".to_owned()], Some(10))
    );
    world.index.handle(Kind::Pod, ObjectEvent::Deleted(deleted(1004, 10)));
    assert_eq!(world.state("a", &pod), "unwanted");
}

/// An event that is too long to be read does not show where the pod runs.
#[test]
fn pod_too_long_for_an_event_is_read_when_it_is_being_deleted() {
    let mut world = World::synced(&["a"]);
    world.pod("p", "a", &[]);
    let skimmed = |revision: u64, marks: &str| {
        let metadata =
            format!(r#""name":"p","namespace":"d","uid":"u-p","resourceVersion":"{revision}"{marks}"#);
        let mut raw: RawObject =
            serde_json::from_str(&format!(r#"{{"metadata":{{{metadata}}}}}"#)).expect("an object");
        raw.leave_unread("it is too long");
        ObjectEvent::Applied(raw)
    };
    world.offered();
    world.index.handle(Kind::Pod, skimmed(1000, ""));
    assert_eq!(world.offered(), [""; 0], "its node keeps its objects");
    let marks = r#","deletionTimestamp":"2026-01-01T00:00:00Z","deletionGracePeriodSeconds":30"#;
    world.index.handle(Kind::Pod, skimmed(1001, marks));
    assert_eq!(world.offered(), ["fetch p again"]);
    let mut found = world.pod_raw("p", "a", &[]).into_value();
    found["metadata"]["resourceVersion"] = "1001".into();
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    found["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    world.index.fetched(&key(Kind::Pod, "p"), None, Some(RawObject::new(found)));
    assert_eq!(world.offered(), ["a<-p"]);
    world.index.handle(Kind::Pod, skimmed(1002, marks));
    assert_eq!(world.offered(), [""; 0], "it is known already");
    world.index.handle(Kind::Pod, skimmed(1003, &marks.replace("30", "10")));
    assert_eq!(world.offered(), ["fetch p again"], "it has less time");
}

/// A pod that is too long for an event is known as soon as a watch reports it, and is read for its references.
#[test]
fn pod_too_long_for_an_event_is_unreadable_at_once() {
    let mut world = World::synced(&["a"]);
    let skimmed = |revision: u64, spec: &str| {
        let text = format!(
            r#"{{"metadata":{{"name":"p","namespace":"d","uid":"u-p","resourceVersion":"{revision}"}}{spec}}}"#
        );
        let mut raw: RawObject = serde_json::from_str(&text).expect("an object");
        raw.leave_unread("it is too long");
        ObjectEvent::Applied(raw)
    };
    for spec in ["", r#","spec":{"nodeName":"elsewhere"}"#] {
        world.index.handle(Kind::Pod, skimmed(1000, spec));
        assert_eq!(world.offered(), [""; 0], "it is no edge node's");
    }
    world.index.handle(Kind::Pod, skimmed(1001, r#","spec":{"nodeName":"a"}"#));
    assert_eq!(world.offered(), ["a<-p", "fetch p again"]);
    assert_eq!(world.state("a", &key(Kind::Pod, "p")), "unreadable");
    let mut found = world.pod_raw("p", "a", &["s"]).into_value();
    found["metadata"]["resourceVersion"] = "1001".into();
    found["spec"]["junk"] = "x".repeat(3 << 20).into();
    world.index.fetched(&key(Kind::Pod, "p"), None, Some(RawObject::new(found)));
    assert_eq!(world.offered(), ["fetch s", "a<-s", "a<-p"], "its references are known");
    world.index.handle(Kind::Pod, skimmed(1002, r#","spec":{"nodeName":"a"}"#));
    assert_eq!(world.offered(), [""; 0], "and stays known");
    assert_eq!(world.state("a", &key(Kind::Secret, "s")), "pending");
    world.index.pod_deleted(&Uid::parse("u-p").expect("a UID"));
    assert_eq!(world.offered(), ["a<-p", "a<-s"]);
    assert_eq!(world.state("a", &key(Kind::Pod, "p")), "unwanted");
}

#[test]
fn unreadable_configmap_does_not_block_its_node() {
    for kind in [Kind::Secret, Kind::ConfigMap] {
        let mut world = World::synced(&["a"]);
        world.pod("p", "a", &["s"]);
        let wanted = key(Kind::Secret, "s");
        world.index.fetched(&wanted, None, Some(of_many_values(kind, "s", 1000, "")));
        assert_eq!(world.state("a", &wanted), "unreadable");
        world.revision = 2000;
        let raw = world.secret("s", "1");
        world.index.handle(Kind::Secret, ObjectEvent::Applied(raw));
        assert_eq!(world.state("a", &wanted), "present", "it has become smaller");
        world.index.handle(Kind::Secret, ObjectEvent::Applied(of_many_values(Kind::Secret, "s", 3000, "")));
        assert_eq!(world.state("a", &wanted), "unreadable", "the known state is out of date");
        world.index.handle(Kind::Secret, ObjectEvent::Deleted(of_many_values(Kind::Secret, "s", 3001, "")));
        assert_eq!(world.state("a", &wanted), "absent");
    }
}

#[test]
fn unreadable_node_stays_an_edge_node_and_its_deletion_is_seen() {
    let mut world = World::synced(&["a"]);
    let uid = world.down.registered(&node("a")).expect("registered");
    let text = |revision: u64| {
        let raw = of_many_values(Kind::Node, "a", revision, "").value().to_string();
        let many = r#""","#.repeat(270_000);
        let text = raw.replace(r#""u-a""#, &format!(r#""{uid}""#));
        format!(r#"{},"status":[{many}0]}}"#, text.strip_suffix('}').expect("an object"))
    };
    let raw = |revision: u64| serde_json::from_str::<RawObject>(&text(revision)).expect("an object");
    world.index.handle(Kind::Node, ObjectEvent::Applied(raw(5000)));
    let own = ObjectKey::new(Kind::Node.resource(), "", "a");
    assert!(world.down.registered(&node("a")).is_some());
    assert_eq!(world.state("a", &own), "unreadable");
    world.index.handle(Kind::Node, ObjectEvent::Deleted(raw(5001)));
    assert!(world.down.registered(&node("a")).is_none());
}
