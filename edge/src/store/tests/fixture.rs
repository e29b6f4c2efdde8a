//! A store of schema 1 in the repository. Every later version must open it with all of its content.

use super::*;

/// The store's file, compressed. Written once by the ignored test below; never again.
const FIXTURE: &[u8] = include_bytes!("../../../fixtures/store-v1.redb.zst");

/// Longest file that the fixture unpacks to.
const LEN_MAX: usize = 64 * 1024 * 1024;

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
    let path = folder.path().join("store.redb");
    std::fs::write(&path, zstd::bulk::decompress(FIXTURE, LEN_MAX).unwrap()).unwrap();
    let medium = Box::new(FileMedium::new(&path));
    let opened = Store::open_on(medium, Sealer::new(&KEY), LogBounds::default()).unwrap();
    assert_eq!(opened.set_aside, None);
    let store = opened.store;
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

#[tokio::test]
#[ignore = "writes the fixture; only for a new schema version, under a new name"]
async fn write_the_fixture() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let medium = Box::new(FileMedium::new(&path));
    let store = Store::open_on(medium, Sealer::new(&KEY), LogBounds::default()).unwrap().store;
    fill(&store).await;
    store.close().await;
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/store-v1.redb.zst");
    assert!(std::fs::metadata(target).is_ok_and(|file| file.len() == 0), "a fixture is never overwritten");
    std::fs::write(target, zstd::bulk::compress(&std::fs::read(path).unwrap(), 19).unwrap()).unwrap();
}
