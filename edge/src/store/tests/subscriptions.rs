//! Objects that several subscriptions want.

use tombolo_proto::ids::SubscriptionId;

use super::single_objects::answer;
use super::*;

fn in_subscription(subscription: SubscriptionId, delivery: Delivery) -> Delivery {
    Delivery { subscription, ..delivery }
}

/// A store with an open, complete subscription of ConfigMaps.
async fn with_subscription(disk: &FaultyDisk) -> (Store, SubscriptionId) {
    let store = synced(disk).await;
    let subscription =
        store.open_subscription(Selection::all(Resource::new("", "v1", "configmaps"))).await.unwrap();
    store.caught_up(subscription, epoch(1), CloudRevision(1)).await.unwrap();
    (store, subscription)
}

fn seen(store: &impl tombolo_apicore::store::Store, since: u64) -> Vec<(ChangeKind, u64)> {
    let maps = Resource::new("", "v1", "configmaps");
    let mut stream = store.watch(&maps, Revision(since)).unwrap();
    stream.poll_ready().unwrap().iter().map(|change| (change.kind, change.object.revision.0)).collect()
}

#[tokio::test]
async fn each_subscription_has_its_own_history() {
    use ChangeKind::{Added, Deleted, Modified};
    let disk = FaultyDisk::new(31);
    let (store, subscription) = with_subscription(&disk).await;
    let map = key("configmaps", "app");
    let copy = store.subscribed(subscription);
    apply(&store, &[upsert(&map, "u1", 10, &[])]).await;
    assert_eq!(copy.get(&map).unwrap(), None, "of the pushed set alone");
    apply(&store, &[in_subscription(subscription, upsert(&map, "u1", 10, &[]))]).await;
    assert!(copy.get(&map).unwrap().is_some());
    apply(&store, &[upsert(&map, "u1", 11, &[])]).await;
    apply(&store, &[delete(&map)]).await;
    assert!(copy.get(&map).unwrap().is_some(), "the subscription still has it");
    apply(&store, &[in_subscription(subscription, delete(&map))]).await;
    let (pushed, subscribed) = (seen(&store, 1), seen(&copy, 1));
    assert_eq!(pushed, [(Added, 2), (Modified, 3), (Modified, 4), (Deleted, 5)]);
    assert_eq!(subscribed, [(Added, 3), (Modified, 4), (Deleted, 6)]);
    store.close().await;
    let store = open(&disk);
    assert_eq!(
        (seen(&store, 1), seen(&store.subscribed(subscription), 1)),
        (pushed, subscribed),
        "also after a restart"
    );
}

#[tokio::test]
async fn past_list_belongs_to_its_subscription() {
    let (store, subscription) = with_subscription(&FaultyDisk::new(32)).await;
    let (one, two) = (key("configmaps", "one"), key("configmaps", "two"));
    let maps = Resource::new("", "v1", "configmaps");
    apply(&store, &[in_subscription(subscription, upsert(&one, "u1", 10, &[]))]).await;
    let then = store.revision();
    apply(&store, &[upsert(&one, "u1", 11, &[]), upsert(&two, "u2", 12, &[])]).await;
    apply(&store, &[in_subscription(subscription, delete(&one))]).await;
    let names = |snapshot: tombolo_apicore::store::Snapshot| -> Vec<String> {
        snapshot.items.iter().map(|item| item.key.name().to_owned()).collect()
    };
    let copy = store.subscribed(subscription);
    assert_eq!(names(copy.list_at(&maps, None, then).unwrap()), ["one"]);
    assert!(names(copy.list(&maps, None).unwrap()).is_empty());
    assert_eq!(names(store.list(&maps, None).unwrap()), ["one", "two"]);
}

#[tokio::test]
async fn subscription_numbers_are_stable_and_forgetting_ends_watches() {
    let disk = FaultyDisk::new(33);
    let (store, subscription) = with_subscription(&disk).await;
    let maps = Resource::new("", "v1", "configmaps");
    let again = store.open_subscription(Selection::all(maps.clone())).await.unwrap();
    let other = Selection { namespace: "x".to_owned(), ..Selection::all(maps.clone()) };
    let other = store.open_subscription(other).await.unwrap();
    assert_eq!((again, other == subscription), (subscription, false));
    assert!(matches!(store.subscribed(other).list(&maps, None), Err(StoreError::NotSynced { .. })));
    let map = key("configmaps", "app");
    apply(&store, &[in_subscription(subscription, upsert(&map, "u1", 10, &[]))]).await;
    let mut watch = store.subscribed(subscription).watch(&maps, store.revision()).unwrap();
    assert_eq!(store.watchers(subscription, &maps), 1);
    store.clear_subscription(subscription).await.unwrap();
    assert!(watch.next().await.unwrap().is_none(), "its watches end");
    assert!(matches!(store.subscribed(subscription).list(&maps, None), Err(StoreError::NotSynced { .. })));
    assert_eq!(store.counts().unwrap().visible, 0);
    assert_eq!(store.subscriptions().unwrap().len(), 2, "it may be followed again");
    store.drop_subscription(subscription).await.unwrap();
    store.close().await;
    assert_eq!(open(&disk).subscriptions().unwrap().len(), 1);
}

#[tokio::test]
async fn the_first_list_of_a_subscription_is_in_no_history() {
    let disk = FaultyDisk::new(34);
    let store = synced(&disk).await;
    let maps = Resource::new("", "v1", "configmaps");
    let subscription = store.open_subscription(Selection::all(maps.clone())).await.unwrap();
    let before = store.revision();
    assert_eq!(store.watchers(subscription, &maps), 0, "and a request starts none");
    apply(&store, &[in_subscription(subscription, upsert(&key("configmaps", "app"), "u1", 10, &[]))]).await;
    store.caught_up(subscription, epoch(1), CloudRevision(10)).await.unwrap();
    let copy = store.subscribed(subscription);
    assert!(
        matches!(copy.watch(&maps, before), Err(StoreError::Expired { .. })),
        "earlier events are unknown"
    );
    assert_eq!(copy.list(&maps, None).unwrap().items.len(), 1);
    assert_eq!(seen(&copy, store.revision().0), []);
}

#[tokio::test]
async fn removed_and_restored_subscription_has_a_new_history() {
    let disk = FaultyDisk::new(38);
    let (store, subscription) = with_subscription(&disk).await;
    let maps = Resource::new("", "v1", "configmaps");
    apply(&store, &[in_subscription(subscription, upsert(&key("configmaps", "old"), "u1", 10, &[]))]).await;
    let before = store.revision();
    store.clear_subscription(subscription).await.unwrap();
    // For a caller that found it readable a moment ago.
    assert!(store.shared.log(subscription, &maps).is_none());
    store.close().await;
    // The log on the disk still names the subscription.
    let store = open(&disk);
    store.welcome(welcome(1)).await.unwrap();
    apply(&store, &[in_subscription(subscription, upsert(&key("configmaps", "new"), "u2", 11, &[]))]).await;
    store.caught_up(subscription, epoch(1), CloudRevision(11)).await.unwrap();
    let since = store.subscribed(subscription).watch(&maps, before);
    assert!(matches!(since, Err(StoreError::Expired { .. })), "events in between are unknown");
}

#[tokio::test]
async fn revision_of_a_lost_store_is_not_awaited() {
    let maps = Resource::new("", "v1", "configmaps");
    let (store, _) = with_subscription(&FaultyDisk::new(40)).await;
    for revision in 10..20 {
        apply(&store, &[upsert(&key("configmaps", "app"), "u1", revision, &[])]).await;
    }
    let old = store.revision();
    // As after a clock that went back: the new store begins where the old one did.
    let (store, subscription) = with_subscription(&FaultyDisk::new(41)).await;
    assert!(store.revision() < old);
    let copy = store.subscribed(subscription);
    for side in [&store as &dyn tombolo_apicore::store::Store, &copy] {
        assert!(matches!(side.watch(&maps, old), Err(StoreError::Unreached { .. })));
        assert!(side.watch(&maps, store.revision()).is_ok(), "the newest is resumed from");
    }
}

/// A client that watches from the revision of the event that it has just received.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_change_never_belongs_to_another_history() {
    const CHANGES: u64 = 100;
    let (store, _) = with_subscription(&FaultyDisk::new(42)).await;
    let maps = Resource::new("", "v1", "configmaps");
    let mut told = store.watch(&maps, store.revision()).unwrap();
    let (writer, reader) = (store.clone(), store.clone());
    let reading = tokio::task::spawn_blocking(move || {
        let mut count = 0;
        while count < CHANGES {
            for change in told.poll_ready().expect("a history that is long enough") {
                reader.watch(&maps, change.revision()).expect("a revision that was published");
                count += 1;
            }
        }
    });
    for revision in 1..=CHANGES {
        apply(&writer, &[upsert(&key("configmaps", "app"), "u1", revision, &[])]).await;
    }
    reading.await.unwrap();
}

#[tokio::test]
async fn watches_can_end_and_leave_the_copy() {
    let (store, subscription) = with_subscription(&FaultyDisk::new(39)).await;
    let maps = Resource::new("", "v1", "configmaps");
    let copy = store.subscribed(subscription);
    apply(&store, &[in_subscription(subscription, upsert(&key("configmaps", "one"), "u1", 10, &[]))]).await;
    let before = Revision(store.revision().0 - 1);
    let mut watch = copy.watch(&maps, store.revision()).unwrap();
    store.end_watches(subscription);
    assert!(watch.next().await.unwrap().is_none());
    assert!(matches!(copy.watch(&maps, before), Err(StoreError::Expired { .. })), "that history went");
    let listed = copy.list(&maps, None).unwrap();
    assert_eq!(listed.items.len(), 1);
    apply(&store, &[in_subscription(subscription, upsert(&key("configmaps", "two"), "u2", 11, &[]))]).await;
    assert_eq!(seen(&copy, listed.revision.0).len(), 1, "and continues from the list");
}

#[tokio::test]
async fn pushed_version_takes_precedence() {
    let (store, _) = with_subscription(&FaultyDisk::new(35)).await;
    let nodes = store.open_subscription(Selection::all(Resource::new("", "v1", "nodes"))).await.unwrap();
    store.caught_up(nodes, epoch(1), CloudRevision(1)).await.unwrap();
    let node = key("nodes", "edge-a");
    // The subscription has it first, trimmed. Then it is pushed. Then the subscription has a newer version.
    apply(&store, &[in_subscription(nodes, upsert(&node, "u1", 12, &[]))]).await;
    apply(&store, &[upsert(&node, "u1", 11, &[])]).await;
    let at = |object: Option<Arc<Stored>>| value(&object.unwrap())["data"]["at"].clone();
    assert_eq!(at(store.get(&node).unwrap()), "11");
    apply(&store, &[in_subscription(nodes, upsert(&node, "u1", 13, &[]))]).await;
    assert_eq!(at(store.get(&node).unwrap()), "11");
    assert_eq!(at(store.subscribed(nodes).get(&node).unwrap()), "11");
    // Also if the subscription has seen a later incarnation, which will be pushed later.
    let other = key("nodes", "edge-b");
    apply(&store, &[in_subscription(nodes, upsert(&other, "u2", 20, &[])), upsert(&other, "u1", 11, &[])])
        .await;
    assert_eq!(at(store.get(&other).unwrap()), "11");
}

#[tokio::test]
async fn the_history_of_the_pushed_set_begins_before_it_is_complete() {
    let disk = FaultyDisk::new(36);
    let store = open(&disk);
    store.welcome(welcome(1)).await.unwrap();
    let map = key("configmaps", "app");
    apply(&store, &[upsert(&map, "u1", 10, &[])]).await;
    let shown = store.revision().0;
    apply(&store, &[upsert(&map, "u1", 11, &[])]).await;
    store.caught_up(SubscriptionId::NODE, epoch(1), CloudRevision(11)).await.unwrap();
    assert_eq!(seen(&store, shown).len(), 1, "clients could read it");
    store.close().await;
    assert_eq!(seen(&open(&disk), shown).len(), 1, "also after a restart");
}

#[tokio::test]
async fn late_deletion_does_not_affect_an_object_created_since() {
    use ChangeKind::{Added, Deleted};
    let (store, subscription) = with_subscription(&FaultyDisk::new(37)).await;
    let map = key("configmaps", "app");
    let copy = store.subscribed(subscription);
    let told = |revision: u64| {
        let Change::Upsert(object) = upsert(&map, "u1", revision, &[]).change else { unreachable!() };
        let gone = Change::Delete { key: map.clone(), version: Some(object.version.clone()) };
        [Change::Upsert(object), gone].map(|change| Delivery { subscription, change })
    };
    let [first, first_gone] = told(10);
    apply(&store, &[first]).await;
    let reply = Learned { keep: false, ..answer(&map, "u2", 13, 1) };
    store.learn(reply).await.unwrap().expect("the subscription wants it");
    let [late, _] = told(11);
    apply(&store, &[late, first_gone]).await;
    let held = copy.get(&map).unwrap().expect("it is there");
    assert_eq!(value(&held)["metadata"]["uid"], "u2");
    assert_eq!(seen(&copy, 1), [(Added, 2), (Deleted, 3), (Added, 4)], "and never went");
    // It is deleted by a deletion without a version, or after the later one was seen.
    apply(&store, &[in_subscription(subscription, delete(&map))]).await;
    assert_eq!(copy.get(&map).unwrap(), None);
}

/// The cloud never stores the state with which it answers, and reports the deletion under a later version.
#[tokio::test]
async fn write_that_completes_a_deletion_returns_the_last_state_without_storing_it() {
    let (store, subscription) = with_subscription(&FaultyDisk::new(39)).await;
    let (map, copy) = (key("configmaps", "app"), store.subscribed(subscription));
    let mut held = reply(&map, "u1", 10);
    held["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    held["metadata"]["deletionGracePeriodSeconds"] = 0.into();
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    learn(&store, &map, &held).await;
    let local = value(&copy.get(&map).unwrap().unwrap())["metadata"]["resourceVersion"].clone();
    for (revision, is_same) in [(10, true), (11, false)] {
        let mut last = held.clone();
        last["metadata"]["resourceVersion"] = revision.to_string().into();
        last["metadata"].as_object_mut().unwrap().remove("finalizers");
        let learned = Learned { key: map.clone(), body: last.to_string().into(), keep: false };
        let answer: Value = serde_json::from_slice(&store.learn(learned).await.unwrap().unwrap()).unwrap();
        assert_eq!(answer["metadata"].get("finalizers"), None);
        assert_eq!(answer["metadata"]["resourceVersion"] == local, is_same, "{answer}");
        let kept = value(&copy.get(&map).unwrap().unwrap());
        assert_eq!(kept["metadata"]["finalizers"], held["metadata"]["finalizers"]);
    }
    assert_eq!(seen(&copy, 1).len(), 1, "watches see nothing of it");
    apply(&store, &[in_subscription(subscription, delete(&map))]).await;
    assert_eq!(copy.get(&map).unwrap(), None);
}

fn reply(map: &ObjectKey, uid: &str, revision: u64) -> Value {
    let mut reply = body(map, uid, &json!({"at": revision.to_string()}));
    reply["metadata"]["resourceVersion"] = revision.to_string().into();
    reply
}

async fn learn(store: &Store, key: &ObjectKey, reply: &Value) {
    let learned = Learned { key: key.clone(), body: reply.to_string().into(), keep: false };
    store.learn(learned).await.unwrap();
}

#[tokio::test]
async fn late_reply_does_not_restore_a_deleted_object() {
    let (store, subscription) = with_subscription(&FaultyDisk::new(38)).await;
    let (map, copy) = (key("configmaps", "app"), store.subscribed(subscription));
    apply(&store, &[in_subscription(subscription, upsert(&map, "u1", 10, &[]))]).await;
    let version = |uid: &str, revision: u64| ObjectVersion {
        uid: Uid::parse(uid).unwrap(),
        revision: CloudRevision(revision),
        hash: ContentHash(0),
    };
    let change = Change::Delete { key: map.clone(), version: Some(version("u1", 13)) };
    apply(&store, &[Delivery { subscription, change }]).await;
    learn(&store, &map, &reply(&map, "u1", 12)).await;
    assert_eq!(copy.get(&map).unwrap(), None, "written before the deletion");

    // The answer to the write that removed the last finalizer.
    let mut last = reply(&map, "u2", 20);
    last["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    last["metadata"]["deletionGracePeriodSeconds"] = 0.into();
    learn(&store, &map, &last).await;
    assert_eq!(copy.get(&map).unwrap(), None);
    last["metadata"]["finalizers"] = json!(["a.example/b"]);
    learn(&store, &map, &last).await;
    assert!(copy.get(&map).unwrap().is_some(), "a finalizer holds it");

    learn(&store, &map, &reply(&map, "u1", 15)).await;
    assert_eq!(copy.get(&map).unwrap().unwrap().uid.as_str(), "u2", "of an earlier incarnation");
    learn(&store, &map, &reply(&map, "u3", 30)).await;
    assert_eq!(copy.get(&map).unwrap().unwrap().uid.as_str(), "u3");
}
