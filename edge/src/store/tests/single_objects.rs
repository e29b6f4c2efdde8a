//! Kept answers about single objects, and writes that this node accepts itself.

use super::*;
use crate::store::{KEPT_EVENTS_MAX, OBJECTS_MAX};

pub(super) fn answer(key: &ObjectKey, uid: &str, revision: u64, size: usize) -> Learned {
    let mut body = body(key, uid, &json!({"a": "x".repeat(size), "at": revision.to_string()}));
    body["metadata"]["resourceVersion"] = revision.to_string().into();
    Learned { key: key.clone(), body: body.to_string().into(), keep: true }
}

fn read(store: &Store, key: &ObjectKey) -> Result<Option<Value>, StoreError> {
    Ok(store.single_objects().get(key)?.map(|stored| value(&stored)))
}

#[tokio::test]
async fn newest_answer_is_kept_and_the_least_recently_requested_evicted() {
    let disk = FaultyDisk::new(30);
    let store = synced(&disk).await;
    let number = |number: u64| key("configmaps", &format!("m{number}"));
    for n in 0..OBJECTS_MAX {
        store.learn(answer(&number(n), "u", 5, 1)).await.unwrap().expect("it is kept");
    }
    // The first one is requested again, so the second one is the oldest.
    store.learn(answer(&number(0), "u", 6, 1)).await.unwrap().unwrap();
    store.keep_absent(&number(OBJECTS_MAX)).await.unwrap();
    store.close().await;
    let store = open(&disk);
    assert_eq!(read(&store, &number(0)).unwrap().unwrap()["data"]["at"], "6");
    assert_eq!(read(&store, &number(OBJECTS_MAX)).unwrap(), None, "known to be absent");
    assert!(matches!(read(&store, &number(1)), Err(StoreError::NotSynced { .. })));
    assert!(read(&store, &number(2)).unwrap().is_some());
    // Events do not evict other answers.
    for n in 0..=KEPT_EVENTS_MAX {
        store.learn(answer(&key("events", &format!("e{n}")), "u", 5, 1)).await.unwrap().unwrap();
    }
    assert!(matches!(read(&store, &key("events", "e0")), Err(StoreError::NotSynced { .. })));
    assert!(read(&store, &key("events", "e1")).unwrap().is_some());
    assert!(read(&store, &number(2)).unwrap().is_some());
}

#[tokio::test]
async fn large_answers_make_room_for_each_other() {
    let store = synced(&FaultyDisk::new(31)).await;
    let number = |number: usize| key("configmaps", &format!("m{number}"));
    let size = 1024 * 1024;
    for n in 0..12 {
        store.learn(answer(&number(n), "u", 5, size)).await.unwrap().unwrap();
    }
    let held = (0..12).filter(|n| store.is_kept(&number(*n)).unwrap()).count();
    assert!(held as u64 * size as u64 <= crate::store::BYTES_MAX && held >= 7, "{held} are held");
    assert!(store.is_kept(&number(11)).unwrap());
}

#[tokio::test]
async fn answers_do_not_change_pushed_objects() {
    let store = synced(&FaultyDisk::new(32)).await;
    let map = key("configmaps", "app");
    apply(&store, &[upsert(&map, "u1", 10, &[])]).await;
    store.keep_absent(&map).await.unwrap();
    assert!(store.get(&map).unwrap().is_some(), "the session will tell");
    store.learn(answer(&map, "u1", 11, 1)).await.unwrap();
    apply(&store, &[delete(&map)]).await;
    assert!(matches!(store.get(&map), Err(StoreError::NotSynced { .. })));
    assert_eq!(read(&store, &map).unwrap().unwrap()["data"]["at"], "11");
    store.forget(&map).await.unwrap();
    assert!(!store.is_kept(&map).unwrap());
    assert_eq!(store.counts().unwrap().visible, 0);
    // A kept answer does not satisfy a dependency: the pod's clients read the pushed set.
    store.learn(answer(&map, "u1", 12, 1)).await.unwrap();
    let pod = key("pods", "web");
    apply(&store, &[upsert(&pod, "u2", 13, std::slice::from_ref(&map))]).await;
    assert!(matches!(store.get(&pod), Err(StoreError::NotSynced { .. })));
}

#[tokio::test]
async fn another_history_replaces_answers() {
    let store = synced(&FaultyDisk::new(33)).await;
    let map = key("configmaps", "app");
    store.learn(answer(&map, "u1", 100, 1)).await.unwrap();
    store.learn(answer(&map, "u1", 50, 1)).await.unwrap();
    assert_eq!(read(&store, &map).unwrap().unwrap()["data"]["at"], "100", "versions go forward");
    store.welcome(welcome(2)).await.unwrap();
    store.learn(answer(&map, "u1", 50, 1)).await.unwrap();
    assert_eq!(read(&store, &map).unwrap().unwrap()["data"]["at"], "50", "of a cluster that was restored");
}

#[tokio::test]
async fn write_requires_its_version_and_a_slot_in_the_outbox() {
    let disk = FaultyDisk::new(34);
    let store = synced(&disk).await;
    let pod = key("pods", "web");
    apply(&store, &[upsert(&pod, "u1", 10, &[])]).await;
    let held = store.get(&pod).unwrap().unwrap();
    let write = |expected: Revision, phase: &str, replaced: Option<u64>| {
        let mut object = body(&pod, "u1", &json!({}));
        object["status"] = json!({"phase": phase});
        let call = Call {
            method: "PATCH".to_owned(),
            path_and_query: "/".to_owned(),
            content_type: String::new(),
            body: phase.to_owned(),
        };
        let report = Report {
            kind: ReportKind::Status,
            key: pod.clone(),
            call,
            status: None,
            base: Some("{}".into()),
        };
        let uid = Uid::parse("u1").unwrap();
        let (body, report) = (object.to_string().into(), Some((report, replaced)));
        OfflineWrite { key: pod.clone(), expected: Some(expected), uid, body, report }
    };
    let Accepted::Stored(first) = store.accept(write(held.revision, "A", None)).await.unwrap() else {
        panic!("it fits")
    };
    assert!(first.revision > held.revision);
    let conflict = store.accept(write(held.revision, "B", None)).await.unwrap();
    assert_eq!(conflict, Accepted::Conflict(first.revision));
    assert_eq!(store.accept(write(first.revision, "B", None)).await.unwrap(), Accepted::Overtaken);
    let number = store.waiting(ReportKind::Status, &pod).unwrap().unwrap().number;
    let second = store.accept(write(first.revision, "B", Some(number))).await.unwrap();
    assert!(matches!(second, Accepted::Stored(_)), "{second:?}");
    store.close().await;

    let store = open(&disk);
    let waiting = store.waiting(ReportKind::Status, &pod).unwrap().unwrap();
    assert_eq!((waiting.call.body.as_str(), waiting.base.as_deref()), ("B", Some("{}")));
    // Neither a delivery nor the reply to an older report reverts a write that the cloud has not answered.
    apply(&store, &[upsert(&pod, "u1", 11, &[])]).await;
    store.settle(number, Some(answer(&pod, "u1", 12, 1))).await.unwrap();
    let now = value(&store.get(&pod).unwrap().unwrap());
    assert_eq!((&now["status"]["phase"], &now["data"]["at"]), (&json!("B"), &json!("12")));
    assert_eq!(store.counts().unwrap().reports, 1);
    apply(&store, &[delete(&pod)]).await;
    let gone = store.accept(write(Revision(u64::MAX), "C", Some(waiting.number))).await.unwrap();
    assert!(matches!(gone, Accepted::Gone | Accepted::Conflict(_)), "{gone:?}");
}
