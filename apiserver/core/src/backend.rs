//! How writes are executed: by this server ([`crate::write::LocalWrites`]), or by another implementation of the hook.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::StatusCode;
use serde_json::Value;

use crate::auth::Attributes;
use crate::kinds::KindInfo;
pub use crate::query::options::{FieldValidation, WriteOptions};
use crate::query::params::Params;
use crate::status::ApiError;

/// The kinds of patch that Kubernetes knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 6902, `application/json-patch+json`.
    Json,
    /// RFC 7386, `application/merge-patch+json`.
    Merge,
    /// Kubernetes' own, `application/strategic-merge-patch+json`.
    Strategic,
    /// Server-side apply, `application/apply-patch+yaml`.
    Apply,
}

impl PatchType {
    /// The media type of such a patch.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Apply => "application/apply-patch+yaml",
        }
    }
}

/// The kind of write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteVerb {
    /// POST to a collection, or to a subresource.
    Create,
    /// PUT.
    Update,
    /// PATCH.
    Patch(PatchType),
    /// DELETE of one object.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
}

/// One write request, authenticated and authorized.
#[derive(Debug, Clone)]
pub struct WriteRequest {
    /// Who requests what, with the namespace, the name and the subresource.
    pub attributes: Attributes,
    /// The kind that the path names.
    pub kind: Arc<KindInfo>,
    /// The kind of write.
    pub verb: WriteVerb,
    /// Parameters.
    pub options: WriteOptions,
    /// Whether an update or apply may create the object if it does not exist (the caller is authorized to).
    pub may_create: bool,
    /// Body as received: a JSON or YAML object, a patch, or `DeleteOptions`; may be empty for deletions.
    pub body: Bytes,
    /// Media type of the body without parameters; empty when none was given.
    pub content_type: String,
    /// All query parameters.
    pub query: Params,
    /// Path and query as received, for backends that forward the request.
    pub path_and_query: String,
    /// Value of the `Authorization` header, for backends that forward the request.
    pub authorization: Option<String>,
}

/// Answer to a write.
#[derive(Debug, Clone)]
pub struct WriteReply {
    /// 200, 201 or 202.
    pub status: StatusCode,
    /// JSON text of an object in the version of the path, or of another answer (a `Status`, a list).
    pub body: Bytes,
    /// Whether the body is one object of the request's kind, or its `Scale`, so that it can be shown as a Table.
    pub is_object: bool,
    /// Warnings for the client, sent as `Warning` headers.
    pub warnings: Vec<String>,
}

/// Executes writes.
pub trait WriteBackend: Send + Sync + 'static {
    /// Executes one write. When it resolves, the change (unless a dry run) is in the store that this server reads from.
    ///
    /// # Errors
    /// The answer for the client.
    fn execute(&self, request: WriteRequest) -> BoxFuture<'_, Result<WriteReply, ApiError>>;

    /// Whether the backend itself finds out if an update or apply creates its object, and if the caller may do that.
    fn decides_creation(&self) -> bool {
        false
    }
}

/// A request to a resource or subresource that is not simply stored: reviews, token requests, bindings.
#[derive(Debug, Clone)]
pub struct EndpointRequest {
    /// Who requests what.
    pub attributes: Attributes,
    /// The kind that the path names.
    pub kind: Arc<KindInfo>,
    /// Parameters.
    pub options: WriteOptions,
    /// Parsed body; null without one.
    pub body: Value,
    /// Query string as received.
    pub query: String,
    /// Value of the `Authorization` header, for endpoints that forward the request.
    pub authorization: Option<String>,
}

/// Serves one virtual resource or subresource.
pub trait Endpoint: Send + Sync + 'static {
    /// Answers a request with a code and an object.
    ///
    /// # Errors
    /// The answer for the client.
    fn call(&self, request: EndpointRequest) -> BoxFuture<'_, Result<(StatusCode, Value), ApiError>>;
}
