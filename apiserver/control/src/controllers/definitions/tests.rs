use std::time::Duration;

use serde_json::json;
use tombolo_apicore::store::{Expect, Mutation, Store as _, Write, WriteStore as _};
use tombolo_apicore::write::CLEANUP;
use tombolo_proto::ids::Uid;

use super::*;
use crate::tests::Disk;
use crate::{Embedded, Options};

fn definition(kind: &str) -> Value {
    json!({"metadata": {"name": "tills.shop.example"}, "spec": {
        "group": "shop.example",
        "scope": "Namespaced",
        "names": {"kind": kind, "plural": "tills", "singular": "till", "listKind": "TillList"},
        "versions": [{"name": "v2", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
    }})
}

#[test]
fn status_reports_the_result_and_becomes_stable() {
    let kinds = tombolo_catalog::kinds();
    let mut crd = definition("Till");
    let accepted_names = names::judge(&crd, [].into_iter(), &kinds);
    describe(&mut crd, &accepted_names);
    assert!(is_true(&crd, "Established") && is_true(&crd, "NamesAccepted"));
    assert_eq!(crd["status"]["acceptedNames"]["kind"], "Till");
    let settled = crd.clone();
    describe(&mut crd, &names::judge(&settled, [].into_iter(), &kinds));
    assert_eq!(crd, settled);
    let holder = Holder::of(&crd);
    let mut refused = definition("Till");
    let accepted_names = names::judge(&refused, [&holder].into_iter(), &kinds);
    describe(&mut refused, &accepted_names);
    assert!(!is_true(&refused, "Established") && !is_true(&refused, "NamesAccepted"));
}

fn tills() -> Resource {
    Resource::new("shop.example", "v2", "tills")
}

/// Waits until `what` holds for the definition.
async fn until(context: &Context, what: impl Fn(Option<StoredObject>) -> bool) {
    let store = context.objects.store();
    let mut changes = store.watch(&resource(), store.revision()).unwrap();
    while !what(context.objects.get(resource(), "", "tills.shop.example")) {
        changes.next().await.unwrap();
    }
}

/// Creates and deletes a served definition. Its deletion waits for an object with another finalizer.
async fn begin_cleanup(context: &Context) {
    context.objects.create(resource(), definition("Till")).await.unwrap();
    until(context, |own| own.is_some_and(|own| is_true(&own.value, "Established"))).await;
    let metadata = json!({"name": "kept", "namespace": "default", "finalizers": ["example.com/keep"]});
    let till = json!({"kind": "Till", "apiVersion": "shop.example/v2", "metadata": metadata});
    context.objects.create(tills(), till).await.unwrap();
    let key = ObjectKey::new(resource(), "", "tills.shop.example");
    let deleted = context.objects.update(&key, |object| {
        object.value["metadata"]["finalizers"] = json!([CLEANUP]);
        object.value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        Edit::Put
    });
    deleted.await.unwrap();
    until(context, |own| own.is_some_and(|own| is_true(&own.value, "Terminating"))).await;
}

/// Replaces the definition by another one of its name in one step, so that the controller never sees it gone.
async fn replace(context: &Context, mut second: Value) {
    second["metadata"]["uid"] = "second".into();
    let (key, uid) = (ObjectKey::new(resource(), "", "tills.shop.example"), Uid::parse("second").unwrap());
    let write = Write::Put { uid, body: second.to_string().into() };
    context.objects.store().commit(Mutation { key, expected: Expect::Present, write }).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn definition_recreated_and_deleted_during_cleanup_is_cleaned_up_too() {
    let dir = tempfile::tempdir().unwrap();
    let bound = Embedded::start(Options::new(dir.path())).await.unwrap();
    let context = &*bound.context;
    let second = async {
        begin_cleanup(context).await;
        let mut second = definition("Till");
        second["metadata"]["finalizers"] = json!([CLEANUP, "example.com/keep"]);
        second["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        set_condition(&mut second, "Established", ("True", "InitialNamesAccepted", String::new()));
        replace(context, second).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let key = ObjectKey::new(resource(), "", "tills.shop.example");
        let left = context.objects.get_key(&key).expect("it waits");
        assert!(cleanup::is_left(&left), "its object is there still");
        let kept = ObjectKey::new(tills(), "default", "kept");
        context.objects.update(&kept, |_| Edit::Remove).await.unwrap();
        until(context, |own| own.is_some_and(|own| !cleanup::is_left(&own))).await;
        // The controller does not wait for finalizers of others, and does no work for them.
        tokio::time::sleep(Duration::from_secs(60)).await;
        context.objects.update(&key, |_| Edit::Remove).await.unwrap();
    };
    tokio::select! {
        () = run(context) => {}
        done = tokio::time::timeout(Duration::from_secs(600), second) => done.expect("it goes"),
    }
}

#[tokio::test(start_paused = true)]
async fn recreated_definition_keeps_its_objects() {
    let dir = tempfile::tempdir().unwrap();
    let bound = Embedded::start(Options::new(dir.path())).await.unwrap();
    let context = &*bound.context;
    let second = async {
        begin_cleanup(context).await;
        replace(context, definition("Till")).await;
        until(context, |own| own.is_some_and(|own| is_true(&own.value, "Established"))).await;
        let metadata = json!({"name": "new", "namespace": "default"});
        let till = json!({"kind": "Till", "apiVersion": "shop.example/v2", "metadata": metadata});
        context.objects.create(tills(), till).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(context.objects.exists(tills(), "default", "new"), "the definition has not been deleted");
    };
    tokio::select! {
        () = run(context) => {}
        done = tokio::time::timeout(Duration::from_secs(600), second) => done.expect("it is served"),
    }
}

/// The removal of its finalizer must be retried, because no other controller would remove it. The pauses grow while the
/// disk is full.
#[tokio::test(start_paused = true)]
async fn definition_deletion_is_retried_with_back_off_until_the_disk_accepts_it() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::new());
    let bound = disk.server(&dir).await;
    let context = &*bound.context;
    let mut deleted = definition("Till");
    deleted["metadata"]["finalizers"] = json!([CLEANUP]);
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    context.objects.create(resource(), deleted).await.unwrap();
    disk.refuse(40);
    let start = tokio::time::Instant::now();
    let gone = until(context, |own| own.is_none());
    tokio::select! {
        () = run(context) => {}
        done = tokio::time::timeout(Duration::from_secs(3600), gone) => done.expect("it goes"),
    }
    assert!(start.elapsed() > Duration::from_secs(10), "after {:?}", start.elapsed());
}
