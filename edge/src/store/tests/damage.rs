//! Disk errors, damaged files, and panics of the database code.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use redb::{Database, ReadableTable};
use tombolo_testkit::{Seed, seeds};

use super::*;

const DEADLINE: Duration = Duration::from_secs(20);

/// System errors that are not about the content of a file: EIO, ENOMEM, EACCES, ENFILE, EMFILE, EROFS.
const REFUSALS: [i32; 6] = [5, 12, 13, 23, 24, 30];

fn report(name: &str) -> Report {
    let call = Call {
        method: "PATCH".to_owned(),
        path_and_query: "/".to_owned(),
        content_type: String::new(),
        body: "{}".to_owned(),
    };
    Report { kind: ReportKind::Status, key: key("pods", name), call, status: None, base: None }
}

async fn fill(store: &Store) {
    for number in 0..20 {
        apply(store, &[upsert(&key("configmaps", &format!("m{number:02}")), "u1", 5, &[])]).await;
    }
    apply(store, &[upsert(&key("secrets", "s"), "u2", 6, &[])]).await;
    store.report(report("web")).await.unwrap();
}

#[tokio::test]
async fn disk_error_at_opening_never_discards_the_store() {
    let disk = FaultyDisk::new(61);
    let store = synced(&disk).await;
    fill(&store).await;
    store.close().await;
    drop(store);
    let mut refused = 0;
    // Permanently, or for one operation only, after which the next ones succeed.
    for (errno, once) in REFUSALS.into_iter().flat_map(|errno| [(errno, false), (errno, true)]) {
        for operations in (0..40).chain([60, 100, 150]) {
            if once {
                disk.fail_once_after(operations, errno);
            } else {
                disk.break_after(operations, errno);
            }
            match Store::open_on(Box::new(disk.clone()), Sealer::new(&KEY), LogBounds::default()) {
                Ok(opened) => {
                    assert_eq!(opened.set_aside, None, "{errno} after {operations}");
                    disk.mend();
                    opened.store.close().await;
                }
                Err(error) => {
                    refused += 1;
                    assert!(matches!(error, OpenError::Storage(_)) && error.may_pass(), "{errno}: {error:?}");
                    assert!(error.to_string().contains("kept unchanged"), "{error}");
                }
            }
            assert_eq!(disk.times_set_aside(), 0, "{errno} after {operations}");
            disk.mend();
        }
    }
    assert!(refused > 120, "{refused} openings were refused");
    let store = open(&disk);
    assert_eq!(store.counts().unwrap(), Counts { visible: 21, hidden: 0, absent: 0, reports: 1 });
}

#[test]
fn only_temporary_errors_are_retried() {
    let storage = || OpenError::Storage("busy".to_owned());
    let io = |kind: io::ErrorKind| OpenError::Io { path: "x".into(), source: kind.into() };
    let tried = |error: &dyn Fn() -> OpenError, heals_after: usize| {
        let (attempts, waited) = (Cell::new(0), Cell::new(Duration::ZERO));
        let outcome = crate::store::open::patiently(
            || {
                attempts.set(attempts.get() + 1);
                if attempts.get() > heals_after { Ok(()) } else { Err(error()) }
            },
            |pause| waited.set(waited.get() + pause),
        );
        (outcome.is_ok(), attempts.get(), waited.get())
    };
    assert_eq!(tried(&storage, 2), (true, 3, Duration::from_millis(1500)));
    let (healed, attempts, waited) = tried(&storage, usize::MAX);
    assert!(!healed && attempts == 7 && waited > Duration::from_secs(20), "{attempts} in {waited:?}");
    let at_once = (false, 1, Duration::ZERO);
    assert_eq!(tried(&|| io(io::ErrorKind::PermissionDenied), 2), at_once);
    assert_eq!(tried(&|| OpenError::InUse { path: "x".into() }, 2), at_once);
    assert!(tried(&|| io(io::ErrorKind::OutOfMemory), 2).0);
}

/// Changes the file of a closed store in a way that no program of ours does.
fn tamper(path: &Path, change: impl FnOnce(&redb::WriteTransaction)) {
    let db = Database::open(path).unwrap();
    let txn = db.begin_write().unwrap();
    change(&txn);
    txn.commit().unwrap();
}

struct Damaged {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    id: StoreId,
    revision: Revision,
}

impl Damaged {
    /// A store with 21 objects, a report, and this change.
    async fn by(change: impl FnOnce(&redb::WriteTransaction)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.redb");
        let store = Self::open_at(&path).store;
        store.welcome(welcome(1)).await.unwrap();
        store.caught_up(SubscriptionId::NODE, epoch(1), CloudRevision(1)).await.unwrap();
        store.attest(vec![4; 49].into());
        fill(&store).await;
        let (id, revision) = (store.standing().unwrap().store, store.revision());
        store.close().await;
        tamper(&path, change);
        Self { _folder: folder, path, id, revision }
    }

    fn open_at(path: &Path) -> Opened {
        let medium = Box::new(FileMedium::new(path));
        Store::open_on(medium, Sealer::new(&KEY), LogBounds::default()).unwrap()
    }
}

#[tokio::test]
async fn unreadable_row_is_lost_alone() {
    let damaged = Damaged::by(|txn| {
        let mut objects = txn.open_table(schema::OBJECTS).unwrap();
        let row_key = keys::encode(&key("configmaps", "m07")).unwrap();
        objects.insert(row_key.as_slice(), [1_u8, 9, 9].as_slice()).unwrap();
    })
    .await;
    let opened = Damaged::open_at(&damaged.path);
    let told = opened.set_aside.unwrap();
    assert!(told.contains("saved 20 of 21 objects, 1 of 1 reports"), "{told}");
    let moved_to = told.split("moved to ").nth(1).unwrap().split(';').next().unwrap().to_owned();
    assert!(std::fs::metadata(&moved_to).is_ok_and(|file| file.len() > 0), "the old file is in {moved_to}");
    let store = opened.store;
    assert_eq!(store.counts().unwrap(), Counts { visible: 20, hidden: 0, absent: 0, reports: 1 });
    assert_eq!(store.reports(0, 9).unwrap()[0].key, key("pods", "web"));
    let standing = store.standing().unwrap();
    assert_eq!((standing.store, standing.epoch, standing.synced), (damaged.id, None, false));
    assert_eq!(standing.attestation, [4; 49].as_slice(), "it is correct regardless of other losses");
    // A missing object may exist, so no list may count as complete.
    let list = store.list(key("pods", "x").resource(), None);
    assert!(matches!(list, Err(StoreError::NotSynced { .. })), "{list:?}");
    assert!(store.revision() >= damaged.revision, "local revisions do not go back");
    // Everything that the cloud sends counts as newer than the salvaged objects, even an older version: their content
    // was not compared, and the stored hash may not match it.
    let saved = store.inventory(SubscriptionId::NODE).unwrap();
    let hash = |entry: &InventoryEntry| match &entry.held {
        HeldState::Present(version) => version.hash,
        other => panic!("{other:?}"),
    };
    assert!(saved.len() == 20 && saved.iter().all(|entry| hash(entry) == ContentHash(0)), "{saved:?}");
    store.welcome(welcome(1)).await.unwrap();
    let (kept, lost) = (key("configmaps", "m03"), key("configmaps", "m07"));
    let before = store.visible(&kept).unwrap().unwrap().revision;
    apply(&store, &[upsert(&kept, "u1", 4, &[]), upsert(&lost, "u1", 5, &[])]).await;
    assert!(store.visible(&kept).unwrap().unwrap().revision > before);
    store.caught_up(SubscriptionId::NODE, epoch(1), CloudRevision(7)).await.unwrap();
    assert_eq!(store.list(kept.resource(), None).unwrap().items.len(), 20);
    store.close().await;
    drop(store);
    assert_eq!(Damaged::open_at(&damaged.path).set_aside, None, "the new one is sound");
}

#[tokio::test]
async fn store_with_all_objects_saved_continues_to_serve_them() {
    let damaged = Damaged::by(|txn| {
        let mut log = txn.open_table(schema::LOG).unwrap();
        let last = log.last().unwrap().unwrap().0.value();
        log.insert(last, b"nonsense".as_slice()).unwrap();
    })
    .await;
    let opened = Damaged::open_at(&damaged.path);
    assert!(opened.set_aside.unwrap().contains("saved 21 of 21 objects, 1 of 1 reports"));
    let store = opened.store;
    assert_eq!(store.list(key("configmaps", "x").resource(), None).unwrap().items.len(), 20);
    assert_eq!(value(&store.get(&key("secrets", "s")).unwrap().unwrap())["data"]["at"], "6");
    let history = store.watch(key("pods", "x").resource(), damaged.revision);
    assert!(matches!(history, Err(StoreError::Expired { .. }) | Ok(_)), "{:?}", history.err());
    store.report(report("other")).await.unwrap();
    assert_eq!(store.reports(0, 9).unwrap().len(), 2, "numbers continue");
}

#[tokio::test]
async fn readable_rows_of_a_damaged_file_are_salvaged() {
    let (mut replaced, mut saved) = (0, 0);
    for seed in seeds(20).chain((0..20).map(Seed::fixed)) {
        let number = seed.number();
        let disk = FaultyDisk::new(number);
        let store = synced(&disk).await;
        fill(&store).await;
        store.close().await;
        drop(store);
        disk.damage(if number % 2 == 0 { 4_000 } else { 40 });
        let opened = Store::open_on(Box::new(disk.clone()), Sealer::new(&KEY), LogBounds::default()).unwrap();
        let counts = opened.store.counts().unwrap();
        let Some(told) = opened.set_aside else {
            // Damage in unused space does not count.
            assert_eq!((counts.visible, counts.reports), (21, 1), "damage was not noticed");
            continue;
        };
        replaced += 1;
        saved += counts.visible;
        assert!(told.contains("saved "), "{told}");
        let standing = opened.store.standing().unwrap();
        assert_eq!(standing.epoch, None);
        if counts.visible < 21 {
            assert!(!standing.synced, "{told}");
        }
        // The new store works like any other.
        opened.store.welcome(welcome(1)).await.unwrap();
        apply(&opened.store, &[upsert(&key("configmaps", "m00"), "u1", 5, &[])]).await;
    }
    assert!(replaced > 0, "nothing was damaged");
    println!("{replaced} of 40 replaced, {saved} objects saved");
}

#[tokio::test]
async fn panic_of_the_writer_fails_the_store_visibly() {
    let disk = FaultyDisk::new(62);
    let store = synced(&disk).await;
    fill(&store).await;
    disk.panic_at_next_write();
    let lost = store.apply(vec![upsert(&key("configmaps", "late"), "u9", 9, &[])]).await;
    assert!(matches!(lost, Err(WriteError::Closed)), "{lost:?}");
    let why = tokio::time::timeout(DEADLINE, store.failed()).await.expect("it says so");
    assert!(why.contains("panicked"), "{why}");
    drop(store);
    assert!(open(&disk).counts().unwrap().visible >= 21, "another process continues");
}
