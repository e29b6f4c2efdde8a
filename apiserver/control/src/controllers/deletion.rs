//! Deletions by the server itself, with the same grace periods, finalizers and propagation as a client's deletion.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tombolo_apicore::auth::{Attributes, Identity};
use tombolo_apicore::backend::{WriteBackend, WriteOptions, WriteRequest, WriteVerb};
use tombolo_apicore::query::params::Params;
use tombolo_apicore::registry::Registry;
use tombolo_apicore::status::ApiError;
use tombolo_proto::object::ObjectKey;

/// The parameters of a deletion.
#[derive(Debug, Clone)]
pub(crate) struct Deletion {
    /// `DeleteOptions`, or null.
    pub(crate) options: Value,
    /// The deleting user.
    pub(crate) identity: Identity,
    /// Whether the deletion is a dry run.
    pub(crate) dry_run: bool,
}

impl Deletion {
    /// A deletion by a controller of the object with this UID.
    pub(super) fn by_controller(controller: &str, uid: &str, policy: &str) -> Self {
        let user = format!("system:serviceaccount:kube-system:{controller}");
        Self {
            options: json!({"preconditions": {"uid": uid}, "propagationPolicy": policy}),
            identity: Identity::new(&user, &["system:serviceaccounts", "system:authenticated"]),
            dry_run: false,
        }
    }

    /// Sets the grace period to 0, for pods whose end no kubelet will confirm.
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
    /// The error that a client would get: 404 when it is gone, 409 when it has another UID.
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
