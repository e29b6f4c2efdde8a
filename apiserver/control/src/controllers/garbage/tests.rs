use parking_lot::Mutex;
use serde_json::json;
use tombolo_apicore::store::{Expect, Mutation, Revision, Stored, Write, WriteStore as _};
use tombolo_proto::ids::Uid;
use tombolo_proto::object::Resource;

use super::super::ownership::Owner;
use super::*;
use crate::objects::core;
use crate::tests::Disk;
use crate::{Bound, Embedded, Options};

#[test]
fn actions() {
    use Presence::{Absent, Solid, Waiting};
    let item = |owners: &[Presence]| Item {
        uid: "u".into(),
        key: ObjectKey::new(core("pods"), "shop", "p"),
        revision: Revision(1),
        owners: owners
            .iter()
            .map(|own| (Owner { uid: "o".into(), block_owner_deletion: None }, *own))
            .collect(),
        waits: None,
    };
    for (owners, has_dependents, expected) in [
        (&[Solid][..], false, DependentAction::Keep),
        (&[Solid, Absent], false, DependentAction::Unlink),
        (&[Solid, Waiting], true, DependentAction::Unlink),
        (&[Absent], false, DependentAction::Delete("Background")),
        (&[Absent], true, DependentAction::Delete("Background")),
        (&[Waiting], false, DependentAction::Delete("Background")),
        (&[Waiting, Absent], true, DependentAction::Delete("Foreground")),
    ] {
        assert_eq!(action(&item(owners), has_dependents), expected, "{owners:?} {has_dependents}");
    }
}

#[test]
fn repeated_event_during_a_collection_is_handled_after_it() {
    let item = |uid: &str| Item {
        uid: uid.into(),
        key: ObjectKey::new(core("pods"), "shop", uid),
        revision: Revision(1),
        owners: Vec::new(),
        waits: None,
    };
    let (mut turns, again, other) = (Turns::default(), item("a"), item("b"));
    assert!(turns.begin(&again) && turns.begin(&other));
    assert!(!turns.begin(&again), "it is being collected");
    turns.end(&other);
    assert_eq!(turns.next("shop"), None, "not on account of another one's end");
    turns.end(&again);
    assert_eq!(turns.next("shop").as_deref(), Some("a"));
    assert_eq!(turns.next("shop"), None);
}

/// One namespace has a webhook that refuses, another one a webhook that never responds. Their objects do not delay
/// other namespaces, and the pauses between tries grow.
#[tokio::test(start_paused = true)]
async fn uncollectable_object_does_not_delay_others() {
    let ownership = Ownership::default();
    for (namespace, count) in [("hangs", 100), ("refuses", 100), ("well", 100)] {
        for number in 0..count {
            let (key, uid) = (core("configmaps"), format!("{namespace}-{number}"));
            let key = ObjectKey::new(key, namespace, &uid);
            let metadata = json!({"metadata": {"ownerReferences": [{"uid": "gone"}]}});
            let body = bytes::Bytes::from(metadata.to_string());
            ownership.apply(&Stored::new(key, Uid::parse(&uid).unwrap(), Revision(1), body), false);
        }
    }
    let tried = Mutex::new(HashMap::<String, usize>::new());
    let work = async |item: Item| {
        *tried.lock().entry(item.key.namespace().to_owned()).or_default() += 1;
        match item.key.namespace() {
            "hangs" => std::future::pending().await,
            "well" => CollectionOutcome::Done,
            _ => CollectionOutcome::Failed,
        }
    };
    let following = follow(&ownership, work);
    tokio::time::timeout(PAUSE / 2, following).await.expect_err("it continues");
    let count = |namespace: &str| tried.lock().get(namespace).copied();
    assert_eq!(count("well"), Some(100), "without a pause");
    assert_eq!(count("hangs"), Some(COLLECTING_OF_NAMESPACE_MAX));
    assert_eq!(count("refuses"), Some(100), "each once");

    let mut turns = Turns::default();
    let pauses: Vec<_> = (0..12)
        .map(|_| {
            let pause = turns.pause("u", CollectionOutcome::Failed).expect("a pause");
            assert_eq!(turns.pause("u", CollectionOutcome::Failed), None, "one at a time");
            turns.paused.remove("u");
            pause
        })
        .collect();
    assert_eq!((pauses[0], pauses[1], pauses[11]), (PAUSE, 2 * PAUSE, PAUSE_MAX));
    turns.paused.clear();
    assert_eq!(turns.pause("v", CollectionOutcome::Early), Some(EARLY_PAUSE));
    turns.pause("v", CollectionOutcome::Done);
    turns.pause("u", CollectionOutcome::Done);
    assert!(turns.failures.is_empty(), "what was done is forgotten");
}

#[test]
fn object_is_deleted_with_its_last_finalizer() {
    let object = |metadata: Value| StoredObject {
        key: ObjectKey::new(core("configmaps"), "shop", "m"),
        uid: Uid::parse("u").unwrap(),
        revision: Revision(1),
        value: json!({"metadata": metadata}),
    };
    let deleted = "2026-01-01T00:00:00Z";
    let mut waiting = object(json!({"finalizers": [ORPHAN, "mine"], "deletionTimestamp": deleted}));
    assert_eq!(without_finalizer(&mut waiting, ORPHAN), Edit::Put);
    assert_eq!(without_finalizer(&mut waiting, ORPHAN), Edit::Keep);
    assert_eq!(without_finalizer(&mut waiting, "mine"), Edit::Remove);
    let mut graceful = object(
        json!({"finalizers": [ORPHAN], "deletionTimestamp": deleted, "deletionGracePeriodSeconds": 30}),
    );
    assert_eq!(without_finalizer(&mut graceful, ORPHAN), Edit::Put);
    assert_eq!(without_finalizer(&mut object(json!({"finalizers": [ORPHAN]})), ORPHAN), Edit::Put);
}

async fn server(dir: &tempfile::TempDir) -> Bound {
    Embedded::start(Options::new(dir.path())).await.unwrap()
}

/// Adds a ConfigMap with this revision to the index, before it can be read from the store.
fn known(context: &Context, name: &str, metadata: &Value, revision: Revision) -> Stored {
    let key = ObjectKey::new(core("configmaps"), "default", name);
    let mut object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata});
    object["metadata"]["name"] = name.into();
    object["metadata"]["namespace"] = "default".into();
    object["metadata"]["uid"] = name.into();
    let stored = Stored::new(key, Uid::parse(name).unwrap(), revision, object.to_string().into());
    context.ownership.apply(&stored, false);
    stored
}

/// Stores the object, so that it can be read.
async fn publish(context: &Context, stored: &Stored) {
    let write = Write::Put { uid: stored.uid.clone(), body: stored.body() };
    let mutation = Mutation { key: stored.key.clone(), expected: Expect::Any, write };
    context.objects.store().commit(mutation).await.unwrap();
}

fn item(context: &Context, uid: &str) -> Item {
    context.ownership.take(uid).expect("it is there")
}

/// The index gets a change when it is durable, and readers see it a moment later.
#[tokio::test]
async fn object_indexed_before_it_is_readable_is_collected_later() {
    let dir = tempfile::tempdir().unwrap();
    let bound = server(&dir).await;
    let context = &*bound.context;
    let next = |more: u64| Revision(context.objects.store().revision().0 + more);
    let gone =
        json!({"ownerReferences": [{"uid": "gone", "apiVersion": "v1", "kind": "ConfigMap", "name": "g"}]});
    let orphaned = json!({"ownerReferences": [{"uid": "owner", "apiVersion": "v1", "kind": "ConfigMap", "name": "owner"}]});
    let waiting =
        |finalizer: &str| json!({"finalizers": [finalizer], "deletionTimestamp": "2026-01-01T00:00:00Z"});
    for (name, before, after) in [
        ("new", None, gone.clone()),
        ("foreground", Some(json!({})), waiting(FOREGROUND)),
        ("orphans", Some(json!({})), waiting(ORPHAN)),
    ] {
        if let Some(before) = before {
            publish(context, &known(context, name, &before, next(1))).await;
        }
        let stored = known(context, name, &after, next(1));
        let early = collect(context, &item(context, name)).await.unwrap();
        assert_eq!(early, CollectionOutcome::Early, "{name} cannot be read yet");
        publish(context, &stored).await;
        assert_eq!(collect(context, &item(context, name)).await.unwrap(), CollectionOutcome::Done);
        assert!(context.objects.get_key(&stored.key).is_none(), "{name} has gone");
    }
    // A dependent that is in the index but cannot be read yet is orphaned before its owner is removed.
    let owner = known(context, "owner", &waiting(ORPHAN), next(1));
    publish(context, &owner).await;
    let dependent = known(context, "dependent", &orphaned, next(1));
    assert_eq!(collect(context, &item(context, "owner")).await.unwrap(), CollectionOutcome::Early);
    assert!(context.objects.get_key(&owner.key).is_some());
    publish(context, &dependent).await;
    assert_eq!(collect(context, &item(context, "owner")).await.unwrap(), CollectionOutcome::Done);
    let left = context.objects.get_key(&dependent.key).expect("it lives on");
    assert!(items(&left.value, "/metadata/ownerReferences").is_empty());
    assert!(context.objects.get_key(&owner.key).is_none());
}

/// The store has reached every revision in the index: objects that it does not have are gone.
#[tokio::test]
async fn collection_is_done_when_the_object_is_gone_and_retried_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let bound = server(&dir).await;
    let context = &*bound.context;
    let owners =
        json!({"ownerReferences": [{"uid": "gone", "apiVersion": "v1", "kind": "ConfigMap", "name": "g"}]});
    for metadata in [&owners, &json!({"finalizers": [ORPHAN], "deletionTimestamp": "2026-01-01T00:00:00Z"})] {
        known(context, "never", metadata, context.objects.store().revision());
        assert_eq!(collect(context, &item(context, "never")).await.unwrap(), CollectionOutcome::Done);
    }
    let key = ObjectKey::new(Resource::new("example.com", "v1", "things"), "default", "unserved");
    let mut metadata = owners;
    metadata["uid"] = "unserved".into();
    let body = bytes::Bytes::from(json!({"metadata": metadata}).to_string());
    let write = Write::Put { uid: Uid::parse("unserved").unwrap(), body };
    context.objects.store().commit(Mutation { key, expected: Expect::Any, write }).await.unwrap();
    let error = collect(context, &item(context, "unserved")).await.unwrap_err();
    assert_eq!(error.code.as_u16(), 404, "{error}: it is there, and is tried again with pauses");
}

/// An object that waits only for its finalizer does not change any more, so no other event causes a retry.
#[tokio::test(start_paused = true)]
async fn finalizer_is_removed_later_when_the_disk_refused_the_write() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::new());
    let bound = disk.server(&dir).await;
    let context = &*bound.context;
    let metadata = json!({
        "name": "owner", "namespace": "default", "finalizers": [FOREGROUND], "deletionTimestamp": "2026-01-01T00:00:00Z",
    });
    context.objects.create(core("configmaps"), json!({"metadata": metadata})).await.unwrap();
    disk.refuse(40);
    let start = tokio::time::Instant::now();
    let gone = async {
        while context.objects.exists(core("configmaps"), "default", "owner") {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        () = run(context) => {}
        done = tokio::time::timeout(Duration::from_secs(3600), gone) => done.expect("it goes"),
    }
    assert!(start.elapsed() > Duration::from_secs(10), "after {:?}", start.elapsed());
}
