//! Deletions by the server itself: the same way through grace periods, finalizers and propagation as a client's.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tombolo_apiserve::auth::{Attributes, Identity};
use tombolo_apiserve::backend::{WriteBackend, WriteOptions, WriteRequest, WriteVerb};
use tombolo_apiserve::query::params::Params;
use tombolo_apiserve::registry::Registry;
use tombolo_apiserve::status::ApiError;
use tombolo_proto::object::ObjectKey;

/// What a deletion asks for.
#[derive(Debug, Clone)]
pub(in crate::embedded) struct Deletion {
    /// `DeleteOptions`, or null.
    pub(in crate::embedded) options: Value,
    /// Who deletes.
    pub(in crate::embedded) identity: Identity,
    /// Do everything but delete.
    pub(in crate::embedded) dry_run: bool,
}

impl Deletion {
    /// A deletion by a controller, of exactly one incarnation.
    pub(super) fn by_controller(controller: &str, uid: &str, policy: &str) -> Self {
        let user = format!("system:serviceaccount:kube-system:{controller}");
        Self {
            options: json!({"preconditions": {"uid": uid}, "propagationPolicy": policy}),
            identity: Identity::new(&user, &["system:serviceaccounts", "system:authenticated"]),
            dry_run: false,
        }
    }

    /// Without a grace period: for pods that no kubelet will ever confirm.
    pub(super) fn at_once(mut self) -> Self {
        self.options["gracePeriodSeconds"] = json!(0);
        self
    }
}

/// Deletes objects.
pub(in crate::embedded) struct Deletions {
    writes: Arc<dyn WriteBackend>,
    registry: Registry,
}

impl Deletions {
    /// Deletes through this backend.
    pub(in crate::embedded) fn new(writes: Arc<dyn WriteBackend>, registry: Registry) -> Self {
        Self { writes, registry }
    }

    /// Deletes an object, or starts its deletion.
    ///
    /// # Errors
    /// What a client would be answered: 404 when it is gone, 409 when it is another incarnation.
    pub(in crate::embedded) async fn delete(
        &self,
        key: &ObjectKey,
        deletion: Deletion,
    ) -> Result<(), ApiError> {
        let resource = key.resource();
        let Some(kind) = self.registry.catalog().kinds.get(resource).cloned() else {
            return Err(ApiError::no_such_path());
        };
        let mut options = deletion.options;
        if let Some(options) = options.as_object_mut() {
            options.insert("kind".into(), json!("DeleteOptions"));
            options.insert("apiVersion".into(), json!("v1"));
        }
        let body = if options.is_null() { Bytes::new() } else { Bytes::from(options.to_string()) };
        let attributes = Attributes {
            identity: deletion.identity,
            verb: "delete".into(),
            group: resource.group.to_string(),
            version: resource.version.to_string(),
            resource: resource.name.to_string(),
            namespace: key.namespace().to_owned(),
            name: key.name().to_owned(),
            is_resource: true,
            ..Attributes::default()
        };
        let request = WriteRequest {
            attributes,
            kind,
            verb: WriteVerb::Delete,
            may_create: false,
            options: WriteOptions { dry_run: deletion.dry_run, ..WriteOptions::default() },
            body,
            content_type: "application/json".into(),
            query: Params::default(),
            path_and_query: String::new(),
            authorization: None,
        };
        self.writes.execute(request).await.map(|_| ())
    }
}
