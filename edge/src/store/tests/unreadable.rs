//! Objects that pods here refer to and that the cloud cannot read.

use super::single_objects::answer;
use super::*;

fn unreadable(key: &ObjectKey) -> Delivery {
    Delivery { subscription: SubscriptionId::NODE, change: Change::Unreadable { key: key.clone() } }
}

fn held(store: &Store, subscription: SubscriptionId, key: &ObjectKey) -> Option<HeldState> {
    let inventory = store.inventory(subscription).unwrap();
    inventory.into_iter().find(|entry| entry.key == *key).map(|entry| entry.held)
}

fn why(store: &Store, key: &ObjectKey) -> String {
    match store.get(key) {
        Err(StoreError::NotSynced { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn pod_is_shown_when_all_missing_references_are_unreadable() {
    let disk = FaultyDisk::new(60);
    let store = synced(&disk).await;
    let (pod, map, secret) = (key("pods", "web"), key("configmaps", "app"), key("secrets", "locked"));
    apply(&store, &[upsert(&pod, "u1", 10, &[map.clone(), secret.clone()]), unreadable(&secret)]).await;
    assert!(matches!(store.get(&pod), Err(StoreError::NotSynced { .. })), "the ConfigMap is still to come");
    apply(&store, &[absent(&map)]).await;
    assert!(store.get(&pod).unwrap().is_some());
    store.close().await;
    let store = open(&disk);
    assert!(store.get(&pod).unwrap().is_some(), "also after a restart");
    assert!(why(&store, &secret).contains("the cloud may not read v1/secrets/default/locked"));
    assert!(store.is_unreadable(&secret).unwrap() && !store.is_delivered(&secret).unwrap());
    assert_eq!(held(&store, SubscriptionId::NODE, &secret), Some(HeldState::Unreadable));
    assert!(store.list(secret.resource(), None).unwrap().items.is_empty());
}

#[tokio::test]
async fn unreadable_object_is_resolved_or_removed_with_its_need() {
    let disk = FaultyDisk::new(61);
    let store = synced(&disk).await;
    let secret = key("secrets", "locked");
    let empty = store.counts().unwrap();
    let entry = |store: &Store| held(store, SubscriptionId::NODE, &secret);
    apply(&store, &[unreadable(&secret), upsert(&secret, "u1", 10, &[])]).await;
    assert!(store.get(&secret).unwrap().is_some() && matches!(entry(&store), Some(HeldState::Present(_))));
    apply(&store, &[delete(&secret), unreadable(&secret), absent(&secret)]).await;
    assert_eq!((store.get(&secret).unwrap(), entry(&store)), (None, Some(HeldState::Absent)));
    apply(&store, &[unreadable(&secret)]).await;
    assert_eq!(entry(&store), Some(HeldState::Unreadable), "it may be there again");
    apply(&store, &[delete(&secret)]).await;
    assert_eq!((entry(&store), store.counts().unwrap()), (None, empty), "no part of it is left");
    assert!(why(&store, &secret).contains("only what its pods refer to"));
}

#[tokio::test]
async fn held_version_of_an_unreadable_object_stays_and_counts_as_older() {
    let store = synced(&FaultyDisk::new(62)).await;
    let secret = key("secrets", "locked");
    apply(&store, &[upsert(&secret, "u1", 10, &[]), unreadable(&secret)]).await;
    let Some(HeldState::Present(version)) = held(&store, SubscriptionId::NODE, &secret) else {
        panic!("it is held")
    };
    assert_eq!(version.revision, CloudRevision(10), "of this history, so it is kept");
    let local = store.get(&secret).unwrap().unwrap();

    store.welcome(welcome(2)).await.unwrap();
    apply(&store, &[unreadable(&secret)]).await;
    let kept = ObjectVersion { revision: CloudRevision(0), ..version };
    assert_eq!(held(&store, SubscriptionId::NODE, &secret), Some(HeldState::Present(kept.clone())));
    assert_eq!(store.get(&secret).unwrap().unwrap().body(), local.body(), "and clients see no change");
    assert!(!store.is_unreadable(&secret).unwrap());
    let version = ObjectVersion { revision: CloudRevision(3), ..kept };
    let adopt = Change::Adopt { key: secret.clone(), version: version.clone() };
    apply(&store, &[Delivery { subscription: SubscriptionId::NODE, change: adopt }]).await;
    assert_eq!(held(&store, SubscriptionId::NODE, &secret), Some(HeldState::Present(version)));
    apply(&store, &[upsert(&secret, "u1", 4, &[])]).await;
    assert_eq!(value(&store.get(&secret).unwrap().unwrap())["data"]["at"], "4");
}

/// Objects that other callers read with their own rights are not shown to readers of the pushed set, and are not kept
/// when no subscription wants them.
#[tokio::test]
async fn objects_read_by_other_clients_are_hidden_from_the_pushed_set() {
    let disk = FaultyDisk::new(63);
    let store = synced(&disk).await;
    let map = key("configmaps", "locked");
    let pod = key("pods", "web");
    let subscription = store.open_subscription(Selection::all(map.resource().clone())).await.unwrap();
    store.caught_up(subscription, epoch(1), CloudRevision(1)).await.unwrap();
    let subscribed = |delivery: Delivery| Delivery { subscription, ..delivery };
    apply(&store, &[subscribed(upsert(&map, "u1", 10, &[])), unreadable(&map)]).await;
    apply(&store, &[upsert(&pod, "u2", 11, std::slice::from_ref(&map))]).await;
    assert!(store.get(&pod).unwrap().is_some());
    assert!(store.subscribed(subscription).get(&map).unwrap().is_some(), "the subscription keeps its copy");
    assert!(why(&store, &map).contains("may not read"));
    assert!(store.list(map.resource(), None).unwrap().items.is_empty());
    let entry = |subscription| held(&store, subscription, &map);
    assert!(matches!(
        (entry(SubscriptionId::NODE), entry(subscription)),
        (Some(HeldState::Unreadable), Some(HeldState::Present(_)))
    ));

    apply(&store, &[subscribed(delete(&map))]).await;
    assert_eq!(store.counts().unwrap().visible, 1, "the pod: its content is not kept");
    assert_eq!(held(&store, SubscriptionId::NODE, &map), Some(HeldState::Unreadable));
    // The answer to a caller's request does not become the node's own either.
    store.drop_subscription(subscription).await.unwrap();
    store.learn(Learned { keep: false, ..answer(&map, "u9", 12, 1) }).await.unwrap();
    assert!(why(&store, &map).contains("may not read"));
    store.learn(answer(&map, "u9", 12, 1)).await.unwrap();
    assert!(why(&store, &map).contains("may not read"));
    assert!(store.single_objects().get(&map).unwrap().is_some() && store.is_kept(&map).unwrap());
    store.keep_absent(&map).await.unwrap();
    assert_eq!(store.single_objects().get(&map).unwrap(), None, "the newest answer counts");
    store.learn(answer(&map, "u9", 13, 1)).await.unwrap();
    store.forget(&map).await.unwrap();
    assert_eq!((store.counts().unwrap().visible, store.is_kept(&map).unwrap()), (1, false));
    apply(&store, &[delete(&map)]).await;
    assert_eq!(held(&store, SubscriptionId::NODE, &map), None);
}

/// Each subscription, like the pushed set, learns separately which of its objects are unreadable.
#[tokio::test]
async fn each_subscription_tracks_unreadable_objects_separately() {
    let disk = FaultyDisk::new(64);
    let store = synced(&disk).await;
    let (held_before, never) = (key("configmaps", "before"), key("configmaps", "never"));
    let subscription = store.open_subscription(Selection::all(never.resource().clone())).await.unwrap();
    let other = store.open_subscription(Selection {
        namespace: "default".to_owned(),
        ..Selection::all(never.resource().clone())
    });
    let other = other.await.unwrap();
    for subscription in [subscription, other] {
        store.caught_up(subscription, epoch(1), CloudRevision(1)).await.unwrap();
    }
    let within = |subscription: SubscriptionId, delivery: Delivery| Delivery { subscription, ..delivery };
    apply(&store, &[within(subscription, upsert(&held_before, "u1", 10, &[]))]).await;
    apply(
        &store,
        &[within(subscription, unreadable(&held_before)), within(subscription, unreadable(&never))],
    )
    .await;
    apply(&store, &[within(other, upsert(&never, "u2", 11, &[]))]).await;
    assert!(store.subscribed(subscription).get(&held_before).unwrap().is_some(), "what is held stays");
    let entry = |subscription| held(&store, subscription, &never);
    assert_eq!((entry(subscription), entry(SubscriptionId::NODE)), (Some(HeldState::Unreadable), None));
    assert!(matches!(entry(other), Some(HeldState::Present(_))));
    let error = store.subscribed(subscription).get(&never).unwrap_err().to_string();
    assert!(error.contains("may not read"), "it is not gone: {error}");
    assert_eq!(store.subscribed(subscription).list(never.resource(), None).unwrap().items.len(), 1);
    assert!(store.subscribed(other).get(&never).unwrap().is_some() && !store.is_unreadable(&never).unwrap());

    apply(&store, &[within(other, delete(&never))]).await;
    assert_eq!((entry(subscription), entry(other)), (Some(HeldState::Unreadable), None));
    assert_eq!(store.counts().unwrap().visible, 1, "the content is not kept");
    apply(&store, &[within(subscription, upsert(&never, "u3", 12, &[]))]).await;
    assert!(matches!(entry(subscription), Some(HeldState::Present(_))), "it can be read again");
    apply(&store, &[within(other, unreadable(&never)), within(subscription, delete(&never))]).await;
    apply(&store, &[within(other, delete(&never))]).await;
    assert_eq!((entry(subscription), entry(other)), (None, None));
    apply(&store, &[within(subscription, unreadable(&never))]).await;
    store.drop_subscription(subscription).await.unwrap();
    assert_eq!(store.counts().unwrap().visible, 0, "it is removed with its subscription");
    assert_eq!(entry(subscription), None);
}
