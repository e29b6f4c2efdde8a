//! Writes that others overtake.

use std::sync::Arc;

use futures::future::BoxFuture;
use tombolo_apiserve::history::ChangeStream;
use tombolo_apiserve::memory::MemoryStore;
use tombolo_apiserve::store::{
    Expect, Mutation, Revision, Snapshot, Store, StoreError, Stored, Write, WriteStore,
};
use tombolo_apiserve::write::LocalWrites;
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
async fn a_pod_that_goes_while_it_is_deleted_was_deleted() {
    let server = Server::with_writes(|store| LocalWrites::new(Arc::new(Overtaken(store)))).await;
    server.post(PODS, &pod("busy", "")).await.expect(409);
    // A scheduler's word on a pod that is marked makes the last step of its deletion.
    let gone = server.delete(&format!("{PODS}/busy")).await.expect(200);
    assert!(gone["metadata"]["deletionTimestamp"].is_string());
    server.get(&format!("{PODS}/busy")).await.expect(404);
    server.delete(&format!("{PODS}/busy")).await.expect(404);
    // Of what is not marked nobody can have made the last step.
    server.post(CONFIGMAPS, &configmap("other", "1")).await.expect(409);
    server.delete(&format!("{CONFIGMAPS}/other")).await.expect(404);
}

#[tokio::test]
async fn an_object_that_appears_while_it_is_applied_or_put_is_changed() {
    let server = Server::with_writes(|store| LocalWrites::new(Arc::new(Overtaken(store)))).await;
    let path = format!("{CONFIGMAPS}/a?fieldManager=one");
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"v"}}"#;
    let applied = server.call("PATCH", &path, "application/apply-patch+yaml", body).await.expect(200);
    assert_eq!(applied["data"]["k"], "v");
    let path = "/api/v1/namespaces/default/endpoints/e";
    server.put(path, &serde_json::json!({"metadata": {"name": "e"}})).await.expect(200);
}
