use serde_json::json;

use super::super::trim;
use super::*;
use crate::kube::{RawObject, resources};

struct Pod {
    name: &'static str,
    uid: &'static str,
    revision: u64,
    change: Value,
}

impl Pod {
    fn at(revision: u64) -> Self {
        Self { name: "p", uid: "u1", revision, change: json!({}) }
    }

    fn uid(mut self, uid: &'static str) -> Self {
        self.uid = uid;
        self
    }

    fn with(mut self, change: Value) -> Self {
        self.change = change;
        self
    }

    fn trimmed(&self) -> Trimmed {
        let mut value = json!({
            "metadata": {"name": self.name, "namespace": "d", "uid": self.uid,
                "resourceVersion": self.revision.to_string(), "generation": 1},
            "spec": {"nodeName": "n"}, "status": {"phase": "Pending"}
        });
        json_patch::merge(&mut value, &self.change);
        trim::trim(&resources::pods(), "Pod", RawObject::new(value)).expect("identity")
    }
}

fn node() -> NodeId {
    NodeId::parse("n").expect("valid")
}

fn verdict(manager: &mut PodManager, observed: Observed, pod: &Pod) -> Verdict {
    let decision = manager.handle(observed, &node(), &pod.trimmed());
    assert_eq!(decision.replaced, None);
    decision.verdict
}

#[test]
fn first_sight_of_a_pod() {
    let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    for (observed, pod, expected) in [
        (Observed::Added, Pod::at(1), Verdict::Insert),
        (Observed::Added, Pod::at(1).with(deleting.clone()), Verdict::Update),
        (Observed::Modified, Pod::at(1), Verdict::Update),
        (Observed::Modified, Pod::at(1).with(deleting), Verdict::Update),
    ] {
        let mut manager = PodManager::default();
        assert_eq!(verdict(&mut manager, observed, &pod), expected, "{observed:?} {}", pod.change);
    }
}

#[test]
fn changes_of_a_known_pod() {
    for (change, expected) in [
        (json!({}), Verdict::Keep),
        (json!({"metadata": {"generation": 2}}), Verdict::Keep),
        (json!({"metadata": {"managedFields": [{"manager": "kubelet", "time": "t"}]}}), Verdict::Keep),
        (json!({"status": {"phase": "Running", "podIP": "10.0.0.1"}}), Verdict::Keep),
        (json!({"metadata": {"labels": {"a": "b"}}}), Verdict::Update),
        (json!({"metadata": {"annotations": {"a": "b"}}}), Verdict::Update),
        (json!({"metadata": {"finalizers": ["x/y"]}}), Verdict::Update),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), Verdict::Update),
        (json!({"spec": {"containers": [{"name": "c", "image": "i:2"}]}}), Verdict::Update),
    ] {
        let mut manager = PodManager::default();
        verdict(&mut manager, Observed::Added, &Pod::at(1));
        let second = Pod::at(2).with(change);
        assert_eq!(verdict(&mut manager, Observed::Modified, &second), expected, "{}", second.change);
        let uid = Uid::parse("u1").expect("valid");
        assert_eq!(
            manager.get(&uid).expect("known").version.revision.0,
            2,
            "the newest version is remembered"
        );
    }
}

#[test]
fn reverted_change_is_a_change() {
    let mut manager = PodManager::default();
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    verdict(&mut manager, Observed::Added, &Pod::at(1));
    assert_eq!(verdict(&mut manager, Observed::Modified, &Pod::at(2).with(labelled)), Verdict::Update);
    assert_eq!(verdict(&mut manager, Observed::Modified, &Pod::at(3)), Verdict::Update);
}

#[test]
fn the_same_name_with_a_new_uid_is_a_deletion_then_an_addition() {
    let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    for (observed, change, expected) in [
        (Observed::Added, json!({}), Verdict::Insert),
        (Observed::Modified, json!({}), Verdict::Insert),
        (Observed::Added, deleting.clone(), Verdict::Update),
        (Observed::Modified, deleting, Verdict::Update),
    ] {
        let mut manager = PodManager::default();
        let uid = |text| Uid::parse(text).expect("valid");
        verdict(&mut manager, Observed::Added, &Pod::at(1));
        let second = Pod::at(5).uid("u2").with(change);
        let decision = manager.handle(observed, &node(), &second.trimmed());
        assert_eq!(decision.replaced.expect("the first incarnation").version.uid, uid("u1"));
        assert_eq!(decision.verdict, expected, "{observed:?} {}", second.change);
        let known = manager.by_key(&Pod::at(1).trimmed().object.key).expect("known");
        assert_eq!(known.version.uid, uid("u2"));
        assert_eq!(manager.remove(&uid("u1")), None, "its deletion arrives too late to matter");
        assert_eq!(manager.keys().count(), 1);
    }
}

#[test]
fn older_versions_and_older_incarnations_are_stale() {
    let mut manager = PodManager::default();
    verdict(&mut manager, Observed::Added, &Pod::at(5));
    let old = Pod::at(4).with(json!({"metadata": {"labels": {"old": "yes"}}}));
    assert_eq!(verdict(&mut manager, Observed::Modified, &old), Verdict::Stale);
    assert_eq!(verdict(&mut manager, Observed::Added, &Pod::at(3).uid("u0")), Verdict::Stale);
    let known = manager.by_key(&Pod::at(1).trimmed().object.key).expect("known");
    assert_eq!(
        (known.version.revision.0, known.version.uid.as_str()),
        (5, "u1"),
        "what is stale is forgotten"
    );
}

#[test]
fn unchanged_content_is_tracked_since_its_last_seen_change() {
    let (mut manager, uid) = (PodManager::default(), Uid::parse("u1").expect("valid"));
    let since = |manager: &PodManager| manager.get(&uid).expect("known").same_since.0;
    let running = json!({"status": {"phase": "Running"}});
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    for (pod, expected) in [
        (Pod::at(1), 1),
        (Pod::at(2).with(running), 1),
        (Pod::at(3).with(labelled.clone()), 3),
        (Pod::at(4).with(labelled.clone()), 3),
    ] {
        verdict(&mut manager, Observed::Added, &pod);
        assert_eq!(since(&manager), expected, "at {}", pod.revision);
    }
    manager.passed_over(&uid);
    assert_eq!(since(&manager), 4, "the versions in between are unknown");
    verdict(&mut manager, Observed::Modified, &Pod::at(5).with(labelled));
    assert_eq!(since(&manager), 4);
}

#[test]
fn bursts_coalesce_into_their_newest_events() {
    let key = |name: &str| ObjectKey::new(resources::pods(), "d", name);
    let mut events = vec![("a", 1), ("b", 2), ("a", 3), ("fence", 0), ("a", 4), ("b", 5), ("b", 6)];
    let merged = coalesce(&mut events, |(name, _)| (*name != "fence").then(|| key(name)));
    assert_eq!(merged, [key("a"), key("b")].into(), "of these something was dropped");
    assert_eq!(events, [("b", 2), ("a", 3), ("fence", 0), ("a", 4), ("b", 6)]);
}
