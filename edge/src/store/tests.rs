use bytes::Bytes;
use serde_json::{Value, json};
use tombolo_apicore::history::ChangeKind;
use tombolo_apicore::store::{Store as _, StoreError, Stored};
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ContentHash, HeldState, ObjectVersion, SharedObject};

use super::*;

mod damage;
mod epochs;
mod fixture;
mod power;
mod reports;
mod single_objects;
mod subscriptions;
mod unreadable;

pub(super) const KEY: [u8; 32] = [9; 32];

/// A store on any medium, and the writes of a session, each done when it returns.
impl Store {
    pub(crate) fn open_on(
        medium: Box<dyn Medium>,
        sealer: Sealer,
        bounds: LogBounds,
    ) -> Result<Opened, OpenError> {
        crate::store::open::on_medium(medium, sealer, bounds, Revision(1), None)
    }

    pub(crate) async fn apply(
        &self,
        deliveries: Vec<Delivery>,
    ) -> Result<Vec<Result<(), Refused>>, WriteError> {
        self.reserve().await?.apply(deliveries).await
    }

    pub(crate) async fn welcome(&self, welcome: Welcome) -> Result<(), WriteError> {
        self.reserve().await?.welcome(welcome).await
    }

    pub(crate) async fn caught_up(
        &self,
        subscription: SubscriptionId,
        epoch: Epoch,
        revision: CloudRevision,
    ) -> Result<(), WriteError> {
        self.reserve().await?.caught_up(subscription, epoch, revision).await
    }
}

pub(super) fn epoch(generation: u64) -> Epoch {
    Epoch { cluster: Uid::parse("cluster").unwrap(), generation }
}

/// The cloud's answer to a store with another history.
pub(super) fn welcome(generation: u64) -> Welcome {
    Welcome { epoch: epoch(generation), resumed: false, trim_version: 3 }
}

pub(super) fn key(resource: &str, name: &str) -> ObjectKey {
    let namespace = if resource == "nodes" { "" } else { "default" };
    ObjectKey::new(Resource::new("", "v1", resource), namespace, name)
}

pub(super) fn body(key: &ObjectKey, uid: &str, data: &Value) -> Value {
    let mut metadata = json!({"name": key.name(), "uid": uid});
    if !key.namespace().is_empty() {
        metadata["namespace"] = key.namespace().into();
    }
    json!({"apiVersion": "v1", "metadata": metadata, "data": data})
}

pub(super) fn upsert(key: &ObjectKey, uid: &str, revision: u64, refers: &[ObjectKey]) -> Delivery {
    let text = body(key, uid, &json!({"at": revision.to_string()})).to_string();
    let hash = ContentHash(xxhash_rust::xxh3::xxh3_64(text.as_bytes()).into());
    let version = ObjectVersion { uid: Uid::parse(uid).unwrap(), revision: CloudRevision(revision), hash };
    let object = SharedObject::new(key.clone(), version, text.into(), refers.to_vec());
    Delivery { subscription: SubscriptionId::NODE, change: Change::Upsert(Arc::new(object)) }
}

pub(super) fn delete(key: &ObjectKey) -> Delivery {
    Delivery {
        subscription: SubscriptionId::NODE,
        change: Change::Delete { key: key.clone(), version: None },
    }
}

pub(super) fn absent(key: &ObjectKey) -> Delivery {
    Delivery { subscription: SubscriptionId::NODE, change: Change::Absent { key: key.clone() } }
}

pub(super) fn open(disk: &FaultyDisk) -> Store {
    Store::open_on(Box::new(disk.clone()), Sealer::new(&KEY), LogBounds::default()).unwrap().store
}

/// A store that has synced with the cloud.
pub(super) async fn synced(disk: &FaultyDisk) -> Store {
    let store = open(disk);
    store.welcome(welcome(1)).await.unwrap();
    store.caught_up(SubscriptionId::NODE, epoch(1), CloudRevision(1)).await.unwrap();
    store
}

pub(super) async fn apply(store: &Store, deliveries: &[Delivery]) {
    let outcomes = store.apply(deliveries.to_vec()).await.unwrap();
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

pub(super) fn value(stored: &Stored) -> Value {
    serde_json::from_slice(&stored.body()).unwrap()
}

/// The immediate events of a watch from a revision: kind, name, revision.
fn told(store: &Store, resource: &str, since: u64) -> Vec<(ChangeKind, String, u64)> {
    let resource = Resource::new("", "v1", resource);
    let mut stream = store.watch(&resource, Revision(since)).unwrap();
    let changes = stream.poll_ready().unwrap();
    changes.iter().map(|c| (c.kind, c.object.key.name().to_owned(), c.object.revision.0)).collect()
}

#[tokio::test]
async fn new_store_reports_that_it_knows_nothing() {
    let store = open(&FaultyDisk::new(1));
    let pods = Resource::new("", "v1", "pods");
    assert!(matches!(store.list(&pods, None), Err(StoreError::NotSynced { .. })));
    assert!(matches!(store.watch(&pods, Revision(1)), Err(StoreError::NotSynced { .. })));
    assert!(matches!(store.get(&key("pods", "a")), Err(StoreError::NotSynced { .. })));
    assert_eq!(store.standing().unwrap().epoch, None);
    // A complete, empty set is different.
    store.welcome(welcome(1)).await.unwrap();
    store.caught_up(SubscriptionId::NODE, epoch(1), CloudRevision(5)).await.unwrap();
    assert_eq!(store.list(&pods, None).unwrap().items, []);
    assert_eq!(store.get(&key("pods", "a")).unwrap(), None);
    assert!(matches!(store.get(&key("configmaps", "a")), Err(StoreError::NotSynced { .. })));
    let services = Resource::new("", "v1", "services");
    assert!(matches!(store.list(&services, None), Err(StoreError::NotSynced { .. })));
    let standing = store.standing().unwrap();
    assert_eq!((standing.epoch, standing.trim_version), (Some(epoch(1)), 3));
}

#[tokio::test]
async fn newest_attestation_is_stored_with_the_next_commit() {
    let disk = FaultyDisk::new(8);
    let store = synced(&disk).await;
    assert!(store.standing().unwrap().attestation.is_empty());
    let commits = store.commits();
    let before = *commits.borrow();
    store.attest(Bytes::from_static(&[1; 49]));
    store.attest(Bytes::from_static(&[2; 49]));
    assert_eq!(store.standing().unwrap().attestation, [2; 49].as_slice(), "the next hello shows it");
    assert_eq!(*commits.borrow(), before, "it is not worth a commit");
    store.caught_up(SubscriptionId::NODE, epoch(1), CloudRevision(2)).await.unwrap();
    // The power is lost: closing the store writes nothing more.
    disk.cut_after(0);
    store.close().await;
    disk.restart();
    let store = open(&disk);
    assert_eq!(store.standing().unwrap().attestation, [2; 49].as_slice());
    // The end of the process writes the last one.
    store.attest(Bytes::from_static(&[3; 49]));
    store.close().await;
    assert_eq!(open(&disk).standing().unwrap().attestation, [3; 49].as_slice());
}

#[tokio::test]
async fn pod_waits_for_its_references_across_a_restart() {
    let disk = FaultyDisk::new(2);
    let store = synced(&disk).await;
    let (pod, map, secret) = (key("pods", "web"), key("configmaps", "app"), key("secrets", "token"));
    let pods = pod.resource().clone();
    apply(&store, &[upsert(&pod, "u1", 10, &[map.clone(), secret.clone()])]).await;
    assert!(store.list(&pods, None).unwrap().items.is_empty());
    assert!(matches!(store.get(&pod), Err(StoreError::NotSynced { .. })));
    apply(&store, &[upsert(&map, "u2", 11, &[])]).await;
    assert!(store.list(&pods, None).unwrap().items.is_empty());
    store.close().await;

    let store = open(&disk);
    assert_eq!(store.counts().unwrap(), Counts { visible: 1, hidden: 1, absent: 0, reports: 0 });
    apply(&store, &[absent(&secret)]).await;
    let pod_now = store.get(&pod).unwrap().expect("the last reference is known not to exist");
    assert_eq!(value(&pod_now)["metadata"]["resourceVersion"], pod_now.revision.to_string());
    assert_eq!(store.get(&secret).unwrap(), None, "known absence is a plain 404");
    // An update with a new reference does not hide a visible object.
    apply(&store, &[upsert(&pod, "u1", 12, &[key("configmaps", "later")])]).await;
    assert!(store.get(&pod).unwrap().is_some());
    assert_eq!(
        told(&store, "pods", 1).iter().map(|(kind, ..)| *kind).collect::<Vec<_>>(),
        [ChangeKind::Added, ChangeKind::Modified]
    );
}

/// Each delivery examines the waiting pods. Other pods must not be published again because one waits.
#[tokio::test]
async fn pod_that_stops_waiting_is_shown_once() {
    let store = synced(&FaultyDisk::new(10)).await;
    let [shown, again, waits] = ["shown", "again", "waits"].map(|name| key("pods", name));
    let (map, never) = (key("configmaps", "app"), [key("secrets", "never")]);
    apply(&store, &[upsert(&shown, "u1", 10, std::slice::from_ref(&map))]).await;
    apply(&store, &[upsert(&again, "u2", 11, &never), upsert(&waits, "u3", 12, &never)]).await;
    apply(&store, &[delete(&again)]).await;
    apply(&store, &[upsert(&map, "u4", 13, &[])]).await;
    apply(&store, &[upsert(&again, "u5", 14, &[])]).await;
    apply(&store, &[upsert(&map, "u4", 15, &[])]).await;
    let told: Vec<_> = told(&store, "pods", 1).into_iter().map(|(kind, name, _)| (kind, name)).collect();
    assert_eq!(told, [(ChangeKind::Added, "shown".to_owned()), (ChangeKind::Added, "again".to_owned())]);
    assert_eq!(store.counts().unwrap().hidden, 1);
}

#[tokio::test]
async fn commit_that_failed_but_persisted_is_published() {
    let disk = FaultyDisk::new(9);
    let store = synced(&disk).await;
    let (first, second) = (key("pods", "first"), key("pods", "second"));
    apply(&store, &[upsert(&first, "u1", 10, &[])]).await;
    let mut stream = store.watch(first.resource(), store.revision()).unwrap();
    disk.fail_sync();
    store.apply(vec![upsert(&second, "u2", 11, &[])]).await.unwrap_err();
    assert!(store.get(&second).unwrap().is_some(), "the file has it");
    let changes = stream.poll_ready().unwrap();
    let names: Vec<&str> = changes.iter().map(|change| change.object.key.name()).collect();
    assert_eq!(names, ["second"]);
    // The cloud delivers unacknowledged changes again.
    apply(&store, &[upsert(&second, "u2", 11, &[])]).await;
    assert!(stream.poll_ready().unwrap().is_empty());
}

#[tokio::test]
async fn a_new_uid_is_a_deletion_and_an_addition() {
    let store = synced(&FaultyDisk::new(3)).await;
    let map = key("configmaps", "app");
    apply(&store, &[upsert(&map, "u1", 10, &[])]).await;
    apply(&store, &[upsert(&map, "u2", 11, &[])]).await;
    apply(&store, &[delete(&map)]).await;
    let events = told(&store, "configmaps", 1);
    let kinds: Vec<_> = events.iter().map(|(kind, ..)| *kind).collect();
    assert_eq!(kinds, [ChangeKind::Added, ChangeKind::Deleted, ChangeKind::Added, ChangeKind::Deleted]);
    let revisions: Vec<_> = events.iter().map(|(.., revision)| *revision).collect();
    assert_eq!(revisions, [2, 3, 4, 5], "one order, without gaps");
    assert!(matches!(store.get(&map), Err(StoreError::NotSynced { .. })));
}

#[tokio::test]
async fn versions_do_not_go_back_within_an_epoch() {
    let store = synced(&FaultyDisk::new(4)).await;
    let map = key("configmaps", "app");
    apply(&store, &[upsert(&map, "u1", 10, &[])]).await;
    apply(&store, &[upsert(&map, "u1", 9, &[]), upsert(&map, "u1", 10, &[])]).await;
    assert_eq!(told(&store, "configmaps", 1).len(), 1, "older versions and repeats change nothing");
    // A restored cluster starts a new epoch, in which a lower revision is newer. Until all objects are compared the
    // store belongs to no epoch, but it continues to serve them.
    store.welcome(welcome(2)).await.unwrap();
    let standing = store.standing().unwrap();
    assert_eq!((standing.epoch, standing.synced), (None, true));
    apply(&store, &[upsert(&map, "u1", 5, &[])]).await;
    let now = store.get(&map).unwrap().unwrap();
    assert_eq!(value(&now)["data"]["at"], "5");
    let inventory = store.inventory(SubscriptionId::NODE).unwrap();
    let HeldState::Present(version) = &inventory[0].held else { panic!("{inventory:?}") };
    assert_eq!(version.revision, CloudRevision(5));
    // A cluster that was restored to an earlier time has an earlier incarnation.
    store.welcome(welcome(3)).await.unwrap();
    apply(&store, &[upsert(&map, "u0", 4, &[])]).await;
    assert_eq!(store.get(&map).unwrap().unwrap().uid.as_str(), "u0");
}

#[tokio::test]
async fn adopting_keeps_the_content() {
    let store = synced(&FaultyDisk::new(5)).await;
    let map = key("configmaps", "app");
    let delivery = upsert(&map, "u1", 10, &[]);
    apply(&store, std::slice::from_ref(&delivery)).await;
    let Change::Upsert(object) = &delivery.change else { unreachable!() };
    let version = ObjectVersion { revision: CloudRevision(3), ..object.version.clone() };
    let adopt = |version: &ObjectVersion| Delivery {
        subscription: SubscriptionId::NODE,
        change: Change::Adopt { key: map.clone(), version: version.clone() },
    };
    let before = store.get(&map).unwrap();
    apply(&store, &[adopt(&version)]).await;
    assert_eq!(store.get(&map).unwrap(), before, "clients see no change");
    assert_eq!(store.inventory(SubscriptionId::NODE).unwrap()[0].held, HeldState::Present(version.clone()));
    let (half, _) = version.hash.halves();
    for hash in [ContentHash(1), ContentHash::of_halves(half, 1)] {
        let outcomes = store.apply(vec![adopt(&ObjectVersion { hash, ..version.clone() })]).await.unwrap();
        assert_eq!(outcomes[0].as_ref().unwrap_err().reason, RefusalReason::Other, "{hash:?}");
    }
}

#[tokio::test]
async fn half_hash_of_an_older_cloud_keeps_the_full_local_hash() {
    let store = synced(&FaultyDisk::new(5)).await;
    let map = key("configmaps", "app");
    let mut delivery = upsert(&map, "u1", 10, &[]);
    let Change::Upsert(object) = &delivery.change else { unreachable!() };
    let (hash, told) = (ContentHash::of_halves(7, 8), ContentHash::of_halves(7, 0));
    let version = ObjectVersion { hash, ..object.version.clone() };
    let object = SharedObject::new(map.clone(), version.clone(), object.body.clone(), Vec::new());
    delivery.change = Change::Upsert(Arc::new(object));
    apply(&store, &[delivery]).await;
    let version = ObjectVersion { revision: CloudRevision(11), ..version };
    let told = ObjectVersion { hash: told, ..version.clone() };
    let change = Change::Adopt { key: map.clone(), version: told };
    apply(&store, &[Delivery { subscription: SubscriptionId::NODE, change }]).await;
    assert_eq!(store.inventory(SubscriptionId::NODE).unwrap()[0].held, HeldState::Present(version));
}

#[tokio::test]
async fn object_is_removed_with_its_last_subscription() {
    let store = synced(&FaultyDisk::new(6)).await;
    let map = key("configmaps", "app");
    let in_subscription = |subscription: u32, delivery: Delivery| Delivery {
        subscription: SubscriptionId(subscription),
        ..delivery
    };
    apply(&store, &[upsert(&map, "u1", 10, &[]), in_subscription(7, upsert(&map, "u1", 10, &[]))]).await;
    apply(&store, &[delete(&map)]).await;
    assert_eq!(store.counts().unwrap().visible, 1);
    assert_eq!(store.inventory(SubscriptionId::NODE).unwrap(), []);
    assert_eq!(store.inventory(SubscriptionId(7)).unwrap().len(), 1);
    apply(&store, &[in_subscription(7, delete(&map))]).await;
    assert_eq!(store.counts().unwrap().visible, 0);
}

#[tokio::test]
async fn object_that_cannot_be_stored_is_refused_alone() {
    let store = synced(&FaultyDisk::new(7)).await;
    let map = key("configmaps", "app");
    let version =
        ObjectVersion { uid: Uid::parse("u1").unwrap(), revision: CloudRevision(1), hash: ContentHash(0) };
    let with = |body: Bytes| Delivery {
        subscription: SubscriptionId::NODE,
        change: Change::Upsert(Arc::new(SharedObject::new(map.clone(), version.clone(), body, Vec::new()))),
    };
    let mut large = body(&map, "u1", &json!({"x": "x".repeat(3 * 1024 * 1024)})).to_string();
    large.push(' ');
    let bad_name = ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", "a\0b");
    let deliveries = vec![
        with("not json".into()),
        with(r#"{"metadata":{"name":"app","namespace":"default"}}"#.into()),
        with(body(&map, "u2", &json!({})).to_string().into()),
        with(body(&key("configmaps", "other"), "u1", &json!({})).to_string().into()),
        with(large.into()),
        upsert(&bad_name, "u1", 1, &[]),
        upsert(&map, "u1", 1, &[]),
    ];
    let outcomes = store.apply(deliveries).await.unwrap();
    let reasons: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().map_err(|r| r.reason)).collect();
    use RefusalReason::{Malformed, TooLarge};
    let expected =
        [Err(Malformed), Err(Malformed), Err(Malformed), Err(Malformed), Err(TooLarge), Err(Malformed)];
    assert_eq!(reasons[..6], expected);
    assert!(reasons[6].is_ok() && store.get(&map).unwrap().is_some());
    assert!(outcomes[1].as_ref().unwrap_err().message.contains("metadata.uid"));
}

#[tokio::test]
async fn secrets_are_not_readable_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let opened = Store::open(folder.path()).unwrap();
    let (secret, map) = (key("secrets", "s"), key("configmaps", "m"));
    let store = opened.store;
    store.welcome(welcome(1)).await.unwrap();
    for (key, text) in [(&secret, "hunter2-in-a-secret"), (&map, "plain-in-a-map")] {
        for revision in 1..3 {
            let text = body(key, "u1", &json!({"x": text, "n": revision})).to_string();
            let version = ObjectVersion {
                uid: Uid::parse("u1").unwrap(),
                revision: CloudRevision(revision),
                hash: ContentHash(revision.into()),
            };
            let object = SharedObject::new(key.clone(), version, text.into(), Vec::new());
            let change = Change::Upsert(Arc::new(object));
            apply(&store, &[Delivery { subscription: SubscriptionId::NODE, change }]).await;
        }
    }
    apply(&store, &[delete(&secret)]).await;
    store.close().await;
    let file = std::fs::read(folder.path().join("store.redb")).unwrap();
    let holds = |text: &[u8]| file.windows(text.len()).any(|window| window == text);
    assert!(holds(b"plain-in-a-map"), "the check must be able to fail");
    assert!(!holds(b"hunter2-in-a-secret"));
}

#[tokio::test]
async fn history_survives_a_restart_within_its_bounds() {
    let disk = FaultyDisk::new(8);
    let bounds = LogBounds { rows: 4, bytes: u64::MAX };
    let open = || Store::open_on(Box::new(disk.clone()), Sealer::new(&KEY), bounds).unwrap().store;
    let store = open();
    store.welcome(welcome(1)).await.unwrap();
    store.caught_up(SubscriptionId::NODE, epoch(1), CloudRevision(1)).await.unwrap();
    let map = key("configmaps", "app");
    for revision in 1..=10 {
        apply(&store, &[upsert(&map, "u1", revision, &[])]).await;
    }
    let newest = store.revision().0;
    store.close().await;
    let store = open();
    assert_eq!(store.revision().0, newest);
    assert_eq!(told(&store, "configmaps", newest - 4).len(), 4);
    let resource = map.resource();
    assert!(matches!(store.watch(resource, Revision(newest - 5)), Err(StoreError::Expired { .. })));
    let then = store.list_at(resource, None, Revision(newest - 2)).unwrap();
    assert_eq!(value(&then.items[0])["data"]["at"], "8");
    assert_eq!(then.items[0].revision, Revision(newest - 2));
    // A resource without changes can be watched from any revision in the kept history.
    assert_eq!(told(&store, "secrets", newest - 4), []);
}

#[tokio::test]
async fn a_folder_has_one_agent_and_a_newer_store_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = Store::open(folder.path()).unwrap();
    let error = Store::open(folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    first.store.close().await;
    drop(first);
    let path = folder.path().join("store.redb");
    let db = redb::Database::open(&path).unwrap();
    let txn = db.begin_write().unwrap();
    txn.open_table(schema::META)
        .unwrap()
        .insert("schema", (schema::SCHEMA + 1).to_le_bytes().as_slice())
        .unwrap();
    txn.commit().unwrap();
    drop(db);
    let error = crate::store::open::on_medium(
        Box::new(FileMedium::new(&path)),
        Sealer::load(&folder.path().join("store.key")).unwrap(),
        LogBounds::default(),
        Revision(1),
        None,
    )
    .unwrap_err();
    let newer = format!("newer edgecore (schema {}", schema::SCHEMA + 1);
    assert!(error.to_string().contains(&newer), "{error}");
    assert!(path.exists(), "a newer store is left alone");
}
