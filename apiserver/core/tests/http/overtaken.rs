//! Writes that others overtake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::BoxFuture;
use serde_json::Value;
use tombolo_apicore::admission::{Admission, AdmissionRequest, Operation};
use tombolo_apicore::history::ChangeStream;
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::status::ApiError;
use tombolo_apicore::store::{
    Expect, Mutation, Revision, Snapshot, Store, StoreError, Stored, Write, WriteStore,
};
use tombolo_apicore::write::LocalWrites;
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};

use crate::server::*;

/// A store in which somebody else removes an object just before it is removed, or creates it just before it is created.
struct Overtaken(MemoryStore);

impl Store for Overtaken {
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        self.0.get(key)
    }

    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError> {
        self.0.list(resource, namespace)
    }

    fn list_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        revision: Revision,
    ) -> Result<Snapshot, StoreError> {
        self.0.list_at(resource, namespace, revision)
    }

    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError> {
        self.0.watch(resource, since)
    }

    fn revision(&self) -> Revision {
        self.0.revision()
    }
}

impl WriteStore for Overtaken {
    fn commit(&self, mutation: Mutation) -> BoxFuture<'_, Result<Arc<Stored>, StoreError>> {
        Box::pin(async move {
            if mutation.expected == Expect::Absent {
                self.0.commit(mutation.clone()).await?;
            } else if matches!(mutation.write, Write::Delete) {
                let first = Mutation { expected: Expect::Present, ..mutation.clone() };
                self.0.commit(first).await?;
            }
            self.0.commit(mutation).await
        })
    }
}

#[tokio::test]
async fn pod_that_vanishes_during_its_deletion_counts_as_deleted() {
    let server = Server::with_writes(|store| LocalWrites::new(Arc::new(Overtaken(store)))).await;
    server.post(PODS, &pod("busy", "")).await.expect(409);
    // If the scheduler writes to a pod that is marked for deletion, that write may complete the deletion.
    let gone = server.delete(&format!("{PODS}/busy")).await.expect(200);
    assert!(gone["metadata"]["deletionTimestamp"].is_string());
    server.get(&format!("{PODS}/busy")).await.expect(404);
    server.delete(&format!("{PODS}/busy")).await.expect(404);
    // Nobody can have completed the deletion of an object that is not marked.
    server.post(CONFIGMAPS, &configmap("other", "1")).await.expect(409);
    server.delete(&format!("{CONFIGMAPS}/other")).await.expect(404);
}

#[tokio::test]
async fn object_created_during_an_apply_or_put_is_updated() {
    let server = Server::with_writes(|store| LocalWrites::new(Arc::new(Overtaken(store)))).await;
    let path = format!("{CONFIGMAPS}/a?fieldManager=one");
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"v"}}"#;
    let applied = server.call("PATCH", &path, "application/apply-patch+yaml", body).await.expect(200);
    assert_eq!(applied["data"]["k"], "v");
    let path = "/api/v1/namespaces/default/endpoints/e";
    server.put(path, &serde_json::json!({"metadata": {"name": "e"}})).await.expect(200);
}

/// A store in which somebody else is faster than the first removal: another object has the name then, or the same one
/// another label.
struct Faster {
    store: MemoryStore,
    replace: bool,
    done: AtomicBool,
}

impl Store for Faster {
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        self.store.get(key)
    }

    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError> {
        self.store.list(resource, namespace)
    }

    fn list_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        revision: Revision,
    ) -> Result<Snapshot, StoreError> {
        self.store.list_at(resource, namespace, revision)
    }

    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError> {
        self.store.watch(resource, since)
    }

    fn revision(&self) -> Revision {
        self.store.revision()
    }
}

impl WriteStore for Faster {
    fn commit(&self, mutation: Mutation) -> BoxFuture<'_, Result<Arc<Stored>, StoreError>> {
        Box::pin(async move {
            if matches!(mutation.expected, Expect::Revision(_)) && !self.done.swap(true, Ordering::SeqCst) {
                let old = self.store.get(&mutation.key)?.expect("it is there");
                let text = String::from_utf8(old.body().to_vec()).unwrap();
                let mut body: Value = serde_json::from_str(&text).unwrap();
                body["metadata"]["labels"]["keep"] = "yes".into();
                let mut uid = old.uid.clone();
                if self.replace {
                    let gone = Mutation {
                        key: mutation.key.clone(),
                        expected: Expect::Present,
                        write: Write::Delete,
                    };
                    self.store.commit(gone).await?;
                    uid = Uid::parse("another").unwrap();
                    body["metadata"]["uid"] = "another".into();
                }
                let write = Write::Put { uid, body: body.to_string().into() };
                let put = Mutation { key: mutation.key.clone(), expected: Expect::Any, write };
                self.store.commit(put).await?;
            }
            self.store.commit(mutation).await
        })
    }
}

/// Refuses to delete objects with this label.
struct Keep;

impl Admission for Keep {
    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        let old = request.old.unwrap_or(&Value::Null);
        let kept = request.operation == Operation::Delete && old["metadata"]["labels"]["keep"] == "yes";
        let refusal = ApiError::forbidden(request.attributes, "it is kept");
        Box::pin(std::future::ready(if kept { Err(refusal) } else { Ok(()) }))
    }
}

async fn faster(replace: bool, guarded: bool) -> Server {
    let server = Server::with_writes(|store| {
        let writes = LocalWrites::new(Arc::new(Faster { store, replace, done: AtomicBool::new(false) }));
        if guarded { writes.admission(Arc::new(Keep)) } else { writes }
    })
    .await;
    server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(201);
    server
}

#[tokio::test]
async fn every_attempt_of_a_deletion_passes_admission() {
    let server = faster(false, true).await;
    server.delete(&format!("{CONFIGMAPS}/a")).await.expect(403);
    server.get(&format!("{CONFIGMAPS}/a")).await.expect(200);
    let server = faster(false, true).await;
    server.delete(CONFIGMAPS).await.expect(403);
    server.get(&format!("{CONFIGMAPS}/a")).await.expect(200);
}

#[tokio::test]
async fn deletion_never_removes_a_later_object_of_the_same_name() {
    let server = faster(true, false).await;
    let refused = server.delete(&format!("{CONFIGMAPS}/a")).await.expect(409);
    assert!(refused["message"].as_str().unwrap().contains("another one with UID another"), "{refused}");
    server.get(&format!("{CONFIGMAPS}/a")).await.expect(200);
    // A second request deletes the new object.
    server.delete(&format!("{CONFIGMAPS}/a")).await.expect(200);
    // By then the selected object no longer exists, and the new one was not selected.
    let server = faster(true, false).await;
    let chosen = server.delete(CONFIGMAPS).await.expect(200);
    assert_eq!(chosen["items"].as_array().map(Vec::len), Some(0), "{chosen}");
    server.get(&format!("{CONFIGMAPS}/a")).await.expect(200);
}
