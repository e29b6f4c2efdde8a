//! Reads, applies and removes the children of grids in the API.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, PropagationPolicy,
};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tombolo_grid::name::ChildKind;
use tombolo_grid::reconcile::ownership::claimed;
use tombolo_grid::reconcile::plan::Removal;
use tombolo_grid::reconcile::status::UnitError;
use tombolo_grid::reconcile::union::in_the_way;

use super::MANAGER;
use super::cache::{Cache, as_value};
use super::live::Live;

/// Status code of an answer that rejects the object's content (`Invalid`).
const INVALID: u16 = 422;

/// The children of one kind of grid.
#[derive(Clone)]
pub(super) struct Children {
    client: Client,
    resource: ApiResource,
    /// Objects that carry the label of a grid's children.
    labelled: Cache,
}

/// The API resource of children.
pub(super) fn resource(kind: ChildKind) -> ApiResource {
    let (group, version) = kind.api_version().rsplit_once('/').unwrap_or(("", kind.api_version()));
    let plural = format!("{}s", kind.kind().to_lowercase());
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind.kind()), &plural)
}

/// Keeps only the other field managers that set a part of the spec. The rest of `managedFields` is large and unused.
pub(super) fn slim(child: &mut DynamicObject) {
    let entries = std::mem::take(child.managed_fields_mut());
    let foreign = entries.into_iter().filter(|entry| {
        let sets_spec = entry.fields_v1.as_ref().is_some_and(|fields| !fields.0["f:spec"].is_null());
        let is_ours = entry.manager.as_deref() == Some(MANAGER);
        sets_spec && !is_ours && entry.subresource.as_deref().unwrap_or_default().is_empty()
    });
    *child.managed_fields_mut() =
        foreign.map(|entry| ManagedFieldsEntry { fields_v1: None, ..entry }).collect();
}

/// Other field managers that set fields of a child's spec.
pub(super) fn sharers(child: &Value) -> Vec<String> {
    let entries = child["metadata"]["managedFields"].as_array().map_or(&[][..], Vec::as_slice);
    let mut names: Vec<String> =
        entries.iter().filter_map(|entry| Some(entry["manager"].as_str()?.to_owned())).collect();
    names.sort_unstable();
    names.dedup();
    names
}

impl Children {
    pub(super) fn new(client: Client, kind: ChildKind, labelled: Cache) -> Self {
        Self { client, resource: resource(kind), labelled }
    }

    fn api(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &self.resource)
    }

    /// The objects of a namespace that carry this grid's label or are owned by it.
    pub(super) async fn of_grid(
        &self,
        namespace: &str,
        grid: &str,
        uid: &str,
    ) -> BTreeMap<String, Arc<Live>> {
        self.labelled.of_grid(namespace, grid, uid).await
    }

    /// The object that the API has under a name now.
    pub(super) async fn read(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<DynamicObject>, kube::Error> {
        let mut found = self.api(namespace).get_opt(name).await?;
        found.iter_mut().for_each(slim);
        Ok(found)
    }

    /// Applies the manifest of a child under its name; returns the stored object. The API may reject the manifest
    /// because the child has another member where only one of several is allowed. If the controller may remove that
    /// member, the manifest is applied once more (docs/application-grid.md#what-belongs-to-whom).
    pub(super) async fn apply(
        &self,
        namespace: &str,
        name: &str,
        manifest: &Value,
    ) -> Result<Live, UnitError> {
        let mut applied = self.try_apply(namespace, name, manifest).await;
        if matches!(&applied, Err(kube::Error::Api(status)) if status.code == INVALID)
            && self.claim(namespace, name, manifest).await.map_err(|error| unit_error(&error))?
        {
            applied = self.try_apply(namespace, name, manifest).await;
        }
        let mut child = applied.map_err(|error| unit_error(&error))?;
        slim(&mut child);
        Ok(Live::of(&child))
    }

    async fn try_apply(
        &self,
        namespace: &str,
        name: &str,
        manifest: &Value,
    ) -> Result<DynamicObject, kube::Error> {
        let params = PatchParams::apply(MANAGER).force();
        self.api(namespace).patch(name, &params, &Patch::Apply(manifest)).await
    }

    /// Takes ownership of the fields that conflict with a manifest, if the child is the one that the manifest was made
    /// for. Returns whether it did.
    async fn claim(&self, namespace: &str, name: &str, manifest: &Value) -> Result<bool, kube::Error> {
        let api = self.api(namespace);
        let Some(child) = api.get_opt(name).await? else { return Ok(false) };
        let child = as_value(&child);
        let metadata = &child["metadata"];
        let in_the_way = in_the_way(&child, manifest);
        let is_seen = metadata["uid"].is_string() && metadata["uid"] == manifest["metadata"]["uid"];
        if in_the_way.is_empty() || !is_seen {
            return Ok(false);
        }
        let version = manifest["apiVersion"].as_str().unwrap_or_default();
        let owners = claimed(&metadata["managedFields"], &in_the_way, MANAGER, version);
        // With the version: a concurrent writer may change the ownership.
        let revision = &metadata["resourceVersion"];
        let claim = json!({"metadata": {"uid": metadata["uid"], "resourceVersion": revision, "managedFields": owners}});
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        api.patch(name, &params, &Patch::Merge(&claim)).await?;
        Ok(true)
    }

    /// Removes a child, if it is still the one that was seen. A child that no longer exists is not an error.
    pub(super) async fn remove(&self, namespace: &str, removal: &Removal) -> Result<(), kube::Error> {
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            preconditions: Some(Preconditions {
                uid: Some(removal.uid.clone()),
                resource_version: Some(removal.resource_version.clone()),
            }),
            ..DeleteParams::default()
        };
        match self.api(namespace).delete(&removal.name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Converts an API error into the error of a unit.
pub(super) fn unit_error(error: &kube::Error) -> UnitError {
    match error {
        kube::Error::Api(status) => {
            let reason = if status.reason.is_empty() { "ApiError" } else { status.reason.as_str() };
            UnitError { reason: reason.to_owned(), message: status.message.clone() }
        }
        other => UnitError { reason: "ApiUnreachable".to_owned(), message: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use http::Method;

    use super::*;
    use crate::kube::tests::double::answering;

    /// Without its UID, the manifest of a child that was replaced would be applied to the object that replaced it.
    #[tokio::test]
    async fn a_manifest_is_applied_as_it_was_planned() {
        let (sent, calls) = mpsc::channel();
        let client = answering(move |call, body| {
            let _ = sent.send((call, serde_json::from_slice::<Value>(&body).expect("an object")));
            let status = json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409});
            std::future::ready((409, status))
        });
        let children = Children::new(client, ChildKind::Deployment, Cache::new());
        let metadata = json!({"name": "web-a", "uid": "b0a1ce14", "labels": {"a": "b"}});
        let manifest =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {}});
        let refused = children.apply("default", "web-a", &manifest).await.expect_err("it is another object");
        assert_eq!(refused.reason, "Conflict");
        let (call, body) = calls.try_recv().expect("a call");
        assert_eq!((call.method, body), (Method::PATCH, manifest));
        assert_eq!(call.uri.path(), "/apis/apps/v1/namespaces/default/deployments/web-a");
        assert_eq!(call.uri.query(), Some("&force=true&fieldManager=tombolo-grid"));
        calls.try_recv().expect_err("one call");
    }
}
