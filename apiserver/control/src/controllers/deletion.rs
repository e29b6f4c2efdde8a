//! Deletions by the server itself: the same way through grace periods, finalizers and propagation as a client's.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tombolo_apicore::auth::{Attributes, Identity};
use tombolo_apicore::backend::{WriteBackend, WriteOptions, WriteRequest, WriteVerb};
use tombolo_apicore::query::params::Params;
use tombolo_apicore::registry::Registry;
use tombolo_apicore::status::ApiError;
use tombolo_proto::object::ObjectKey;

/// What a deletion asks for.
#[derive(Debug, Clone)]
pub(crate) struct Deletion {
    /// `DeleteOptions`, or null.
    pub(crate) options: Value,
    /// Who deletes.
    pub(crate) identity: Identity,
    /// Do everything but delete.
    pub(crate) dry_run: bool,
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
pub(crate) struct Deletions {
    writes: Arc<dyn WriteBackend>,
    registry: Registry,
}

impl Deletions {
    /// Deletes through this backend.
    pub(crate) fn new(writes: Arc<dyn WriteBackend>, registry: Registry) -> Self {
        Self { writes, registry }
    }

    /// Deletes an object, or starts its deletion.
    ///
    /// # Errors
    /// What a client would be answered: 404 when it is gone, 409 when it is another incarnation.
    pub(crate) async fn delete(&self, key: &ObjectKey, deletion: Deletion) -> Result<(), ApiError> {
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
