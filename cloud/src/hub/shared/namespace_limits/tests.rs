use serde_json::json;
use tombolo_proto::session::Lookup;
use tombolo_proto::{CloudRevision, Resource};

use super::*;
use crate::edgecontroller::node_object_cache::WITHHELD;
use crate::hub::closed::Closed;
use crate::hub::shared::Interned;
use crate::kube::RawObject;

const KIB: usize = 1024;

fn services() -> Resource {
    Resource::new("", "v1", "services")
}

fn watch_of(resource: &Resource, interned: &Interned) -> Arc<SharedWatch> {
    let watch = Arc::new(SharedWatch::new(resource.clone(), "Service".to_owned(), interned.clone()));
    interned.payers.enlist(&watch);
    watch.complete();
    watch
}

fn raw(namespace: &str, name: &str, revision: u64, len: usize) -> RawObject {
    let version = revision.to_string();
    let metadata = json!({"name": name, "namespace": namespace, "uid": "u", "resourceVersion": version});
    RawObject::new(json!({"metadata": metadata, "spec": {"text": "x".repeat(len)}}))
}

fn state(watch: &SharedWatch, namespace: &str, name: &str) -> &'static str {
    match watch.lookup(&ObjectKey::new(watch.resource().clone(), namespace, name)) {
        Lookup::Present(_) => "present",
        Lookup::Unreadable(WITHHELD) => "withheld",
        Lookup::Unwanted(Some(_)) => "gone",
        Lookup::Unwanted(None) => "unwanted",
        other => panic!("{namespace}/{name}: {other:?}"),
    }
}

fn count(watch: &SharedWatch, namespace: &str, names: usize, wanted: &str) -> usize {
    (0..names).filter(|name| state(watch, namespace, &name.to_string()) == wanted).count()
}

/// Applies objects of a namespace, named by numbers.
fn apply(watch: &SharedWatch, namespace: &str, names: usize, len: usize) -> Result<(), Closed> {
    (0..names).try_for_each(|name| watch.apply(raw(namespace, &name.to_string(), 5, len)))
}

#[test]
fn large_objects_of_one_namespace_do_not_end_a_warm_set_watch() {
    let interned = Interned::new(8192 * KIB);
    let watch = watch_of(&services(), &interned);
    apply(&watch, "modest", 20, KIB).expect("room");
    apply(&watch, "greedy", 100, 512 * KIB).expect("its own objects are dropped");
    assert!(interned.bytes() <= 8192 * KIB);
    assert_eq!(count(&watch, "modest", 20, "present"), 20);
    let present = count(&watch, "greedy", 100, "present");
    assert_eq!((present, count(&watch, "greedy", 100, "withheld")), (15, 85), "no object counts as deleted");
    // Other objects arrive later, in another watch.
    let slices = watch_of(&Resource::new("discovery.k8s.io", "v1", "endpointslices"), &interned);
    apply(&slices, "modest", 100, 20 * KIB).expect("the greedy namespace gives way");
    assert_eq!(count(&slices, "modest", 100, "present"), 100);
    assert!(count(&watch, "greedy", 100, "present") < present && !watch.has_failed());
    // Deleted objects leave room, and the withheld ones are read again.
    assert!(!watch.has_room_again());
    (0..90).for_each(|name| watch.delete(&raw("greedy", &name.to_string(), 9, 1)));
    assert!(watch.has_room_again());
    apply(&watch, "greedy", 100, KIB).expect("room");
    assert_eq!(count(&watch, "greedy", 100, "present"), 100);
    assert!(!watch.has_room_again(), "nothing is missing");
}

#[test]
fn small_namespace_never_gives_way() {
    let interned = Interned::new(800 * KIB);
    let watch = watch_of(&services(), &interned);
    for namespace in 0..10 {
        let applied = watch.apply(raw(&format!("n{namespace}"), "s", 5, 90 * KIB));
        assert_eq!(applied.is_ok(), namespace < 8, "{namespace}");
    }
}

#[test]
fn many_objects_of_one_namespace_do_not_end_a_warm_set_watch() {
    let interned = Interned::new(usize::MAX);
    let watch = watch_of(&services(), &interned);
    apply(&watch, "modest", 1000, 1).expect("a place");
    apply(&watch, "greedy", FOLLOWED_MAX + 1000, 1).expect("its own objects are left out");
    assert_eq!((watch.check_size(), watch.len()), (Ok(()), LIMITED_FROM));
    apply(&watch, "late", 1000, 1).expect("a place");
    assert_eq!(
        (count(&watch, "modest", 1000, "present"), count(&watch, "late", 1000, "present")),
        (1000, 1000)
    );
    let greedy = LIMITED_FROM - 1000;
    let states = |watch: &SharedWatch, wanted| count(watch, "greedy", FOLLOWED_MAX + 1000, wanted);
    assert_eq!(
        (states(&watch, "present"), states(&watch, "withheld")),
        (greedy, FOLLOWED_MAX + 1000 - greedy)
    );
    assert_eq!(state(&watch, "modest", "other"), "unwanted");
    // A node that holds an object which was left out is notified of its deletion.
    watch.delete(&raw("greedy", "20000", 9, 1));
    assert_eq!((state(&watch, "greedy", "20000"), state(&watch, "greedy", "20001")), ("gone", "withheld"));
    // A list that shows fewer objects ends that state.
    watch.namespaces.lock().list_begins();
    let listed = (0..greedy).map(|name| ObjectKey::new(services(), "greedy", &name.to_string()));
    watch.keep_only(&listed.collect());
    watch.namespaces.lock().list_ends(true);
    assert_eq!((state(&watch, "greedy", "20001"), watch.len()), ("unwanted", greedy));
}

#[test]
fn when_all_slots_are_taken_the_largest_namespace_gives_way() {
    let interned = Interned::new(usize::MAX);
    let watch = watch_of(&services(), &interned);
    let most = FOLLOWED_MAX / 4;
    for namespace in ["a", "b", "c", "d"] {
        apply(&watch, namespace, most, 1).expect("a place");
    }
    watch.apply(raw("a", "one-more", 5, 1)).expect("one of those that have most gives way");
    apply(&watch, "small", 100, 1).expect("one of those that have most gives way");
    assert_eq!((watch.len(), count(&watch, "small", 100, "present")), (FOLLOWED_MAX, 100));
    let present: usize =
        ["a", "b", "c", "d"].iter().map(|namespace| count(&watch, namespace, most, "present")).sum();
    assert!((FOLLOWED_MAX - 101..=FOLLOWED_MAX - 100).contains(&present), "{present}");
    // This does not apply to a selection of a node, or where there are no namespaces: the node that selects too much is
    // refused.
    let selected =
        Arc::new(SharedWatch::new(services(), "Service".to_owned(), interned.clone()).listed_at("x".into()));
    apply(&selected, "greedy", FOLLOWED_MAX + 1, 1).expect("not looked at here");
    assert_eq!(selected.check_size().expect_err("too many").code, 413);
}

#[test]
fn withheld_objects_count_as_older_than_listed_ones() {
    let interned = Interned::new(8192 * KIB);
    let watch = watch_of(&services(), &interned);
    apply(&watch, "greedy", 20, 512 * KIB).expect("its own objects are dropped");
    let key = ObjectKey::new(services(), "greedy", "0");
    let first = watch.objects.iter().find(|known| known.gave_way()).map(|known| known.key().clone());
    let known = watch.objects.get(&first.expect("one of them")).map(|known| known.object.version.revision);
    assert_eq!(known, Some(CloudRevision(0)));
    assert!(watch.objects.contains_key(&key));
}
