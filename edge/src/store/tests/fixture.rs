//! Stores of schemas 1 and 5 in the repository. Every later version must open them with all of their content.

use std::path::PathBuf;

use super::single_objects::answer;
use super::*;
use crate::store::schema::SCHEMA;

/// Longest file that a fixture unpacks to.
const LEN_MAX: usize = 64 * 1024 * 1024;

/// The file of a store of this schema, compressed. Written once by the ignored test below; never again.
fn fixture(schema: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/store-v{schema}.redb.zst"))
}

/// The store of a fixture, in this folder.
fn unpacked(schema: u32, folder: &std::path::Path) -> Store {
    let path = folder.join("store.redb");
    let packed = std::fs::read(fixture(schema)).unwrap_or_else(|error| panic!("schema {schema}: {error}"));
    std::fs::write(&path, zstd::bulk::decompress(&packed, LEN_MAX).unwrap()).unwrap();
    let medium = Box::new(FileMedium::new(&path));
    let opened = Store::open_on(medium, Sealer::new(&KEY), LogBounds::default()).unwrap();
    assert_eq!(opened.set_aside, None);
    opened.store
}

async fn fill(store: &Store) {
    store.welcome(welcome(1)).await.unwrap();
    store.caught_up(SubscriptionId::NODE, epoch(1), CloudRevision(40)).await.unwrap();
    let (map, secret, gone) = (key("configmaps", "app"), key("secrets", "token"), key("configmaps", "gone"));
    apply(store, &[upsert(&map, "u1", 10, &[]), upsert(&secret, "u2", 11, &[]), absent(&gone)]).await;
    apply(store, &[upsert(&key("pods", "web"), "u3", 12, &[map.clone(), secret.clone(), gone])]).await;
    apply(store, &[upsert(&key("pods", "hidden"), "u4", 13, &[key("configmaps", "not-here")])]).await;
    apply(store, &[upsert(&map, "u1", 14, &[])]).await;
    apply(store, &[upsert(&key("configmaps", "old"), "u5", 15, &[])]).await;
    apply(store, &[delete(&key("configmaps", "old"))]).await;
    let call = Call {
        method: "PATCH".to_owned(),
        path_and_query: "/api/v1/namespaces/default/pods/web/status".to_owned(),
        content_type: "application/strategic-merge-patch+json".to_owned(),
        body: r#"{"status":{"phase":"Pending"}}"#.to_owned(),
    };
    let status = Some(r#"{"phase":"Pending"}"#.into());
    let report = Report { kind: ReportKind::Status, key: key("pods", "web"), call, status, base: None };
    store.report(report).await.unwrap();
}

#[tokio::test]
async fn a_store_of_version_1_opens_with_everything_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = unpacked(1, folder.path());
    assert_eq!(store.counts().unwrap(), Counts { visible: 3, hidden: 1, absent: 1, reports: 1 });
    let standing = store.standing().unwrap();
    assert_eq!((standing.epoch, standing.trim_version, standing.synced), (Some(epoch(1)), 3, true));
    let map = store.get(&key("configmaps", "app")).unwrap().unwrap();
    assert_eq!(value(&map)["data"]["at"], "14");
    assert_eq!(value(&store.get(&key("secrets", "token")).unwrap().unwrap())["data"]["at"], "11");
    assert_eq!(value(&store.get(&key("pods", "web")).unwrap().unwrap())["status"]["phase"], "Pending");
    assert_eq!(store.get(&key("configmaps", "gone")).unwrap(), None);
    let inventory = store.inventory(SubscriptionId::NODE).unwrap();
    assert_eq!(inventory.len(), 5);
    // It has only the lower halves of content hashes.
    let halves = inventory.iter().filter_map(|entry| match &entry.held {
        HeldState::Present(version) => Some(version.hash.halves()),
        HeldState::Absent | HeldState::Unreadable => None,
    });
    assert!(halves.clone().count() == 4 && halves.clone().all(|(lower, upper)| lower != 0 && upper == 0));
    let kinds: Vec<_> = told(&store, "configmaps", 1).into_iter().map(|(kind, ..)| kind).collect();
    assert_eq!(kinds, [ChangeKind::Added, ChangeKind::Modified, ChangeKind::Added, ChangeKind::Deleted]);
    // The store continues from there.
    apply(&store, &[upsert(&key("configmaps", "not-here"), "u6", 16, &[])]).await;
    assert!(store.get(&key("pods", "hidden")).unwrap().is_some());
}

/// What schema 1 did not have.
async fn fill_later(store: &Store) {
    let locked = Change::Unreadable { key: key("secrets", "locked") };
    apply(store, &[Delivery { subscription: SubscriptionId::NODE, change: locked }]).await;
    let subscription = store.open_subscription(services()).await.unwrap();
    apply(store, &[Delivery { subscription, change: Change::Upsert(Arc::new(service())) }]).await;
    store.caught_up(subscription, epoch(1), CloudRevision(20)).await.unwrap();
    store.learn(answer(&key("configmaps", "asked"), "u8", 21, 1)).await.unwrap().expect("it is kept");
    store.keep_absent(&key("configmaps", "asked-gone")).await.unwrap();
    store.keep_answer(question(), reply()).await.unwrap();
    let call = Call {
        method: "POST".to_owned(),
        path_and_query: "/api/v1/namespaces/default/events".to_owned(),
        content_type: "application/json".to_owned(),
        body: "{}".to_owned(),
    };
    let key = key("events", "started");
    store.report(Report { kind: ReportKind::Event, key, call, status: None, base: None }).await.unwrap();
    store.attest(Bytes::from_static(&[2; 49]));
}

fn services() -> Selection {
    Selection::all(Resource::new("", "v1", "services"))
}

/// A followed object with both halves of its hash.
fn service() -> SharedObject {
    let key = key("services", "web");
    let text = body(&key, "u7", &json!({"at": "20"})).to_string();
    let hash = ContentHash::of_halves(7, 8);
    let version = ObjectVersion { uid: Uid::parse("u7").unwrap(), revision: CloudRevision(20), hash };
    SharedObject::new(key, version, text.into(), Vec::new())
}

fn question() -> Question {
    Question::new(Class::Document, &["/openapi/v3"])
}

fn reply() -> CachedReply {
    CachedReply { given_at: 1_786_000_000, body: Bytes::from_static(b"{\"paths\":{}}") }
}

#[tokio::test]
async fn a_store_of_version_5_opens_with_everything_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = unpacked(5, folder.path());
    let standing = store.standing().unwrap();
    assert_eq!((standing.epoch, standing.trim_version, standing.synced), (Some(epoch(1)), 3, true));
    assert_eq!(standing.attestation, [2; 49].as_slice());
    assert_eq!(value(&store.get(&key("configmaps", "app")).unwrap().unwrap())["data"]["at"], "14");
    assert_eq!(value(&store.get(&key("pods", "web")).unwrap().unwrap())["status"]["phase"], "Pending");
    assert!(store.get(&key("pods", "hidden")).is_err(), "what it needs has not arrived");
    assert!(store.is_unreadable(&key("secrets", "locked")).unwrap());
    let subscription = store.open_subscription(services()).await.unwrap();
    assert!(store.subscribed(subscription).get(&service().key).unwrap().is_some());
    let followed = store.inventory(subscription).unwrap();
    let held = HeldState::Present(service().version);
    assert_eq!(followed, [InventoryEntry { key: service().key, held }]);
    let single = |name: &str| store.single_objects().get(&key("configmaps", name)).unwrap();
    assert_eq!(value(&single("asked").unwrap())["data"]["at"], "21");
    assert_eq!(single("asked-gone"), None);
    assert_eq!(store.answer(&question()).unwrap(), Some(reply()));
    assert_eq!(store.reports(0, 10).unwrap().len(), 2);
    let kinds: Vec<_> = told(&store, "configmaps", 1).into_iter().map(|(kind, ..)| kind).collect();
    assert_eq!(kinds, [ChangeKind::Added, ChangeKind::Modified, ChangeKind::Added, ChangeKind::Deleted]);
}

/// A new schema is a new format on the disk of devices, and later versions must read it.
#[test]
fn the_present_schema_has_a_fixture() {
    assert!(fixture(SCHEMA).is_file(), "add a fixture of schema {SCHEMA} and a test that opens it");
}

#[tokio::test]
#[ignore = "writes a fixture; only for a new schema version"]
async fn write_the_fixture() {
    let target = fixture(SCHEMA);
    assert!(!target.exists(), "a fixture is never overwritten");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let medium = Box::new(FileMedium::new(&path));
    let store = Store::open_on(medium, Sealer::new(&KEY), LogBounds::default()).unwrap().store;
    fill(&store).await;
    fill_later(&store).await;
    store.close().await;
    std::fs::write(target, zstd::bulk::compress(&std::fs::read(path).unwrap(), 19).unwrap()).unwrap();
}
