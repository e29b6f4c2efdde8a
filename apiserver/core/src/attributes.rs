//! What a request wants to do.

use crate::identity::Identity;
use crate::senders::Payer;

/// What a request wants to do, in the terms of Kubernetes authorization.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Who asks (after impersonation).
    pub identity: Identity,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, `impersonate`, or the
    /// lower-case HTTP method for paths that are not resources.
    pub verb: String,
    /// API group; empty for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural resource name; empty for paths that are not resources.
    pub resource: String,
    /// Subresource; empty without one.
    pub subresource: String,
    /// Namespace; empty for cluster-scoped requests.
    pub namespace: String,
    /// Object name; empty for collections. Of a list or a watch, the one that a `metadata.name` field selector fixes.
    pub name: String,
    /// Path of the request.
    pub path: String,
    /// Whether the request is about a resource.
    pub is_resource: bool,
    /// The `fieldSelector` parameter as given (the node authorizer reads `spec.nodeName=`); empty for verbs other than
    /// `list`, `watch` and `deletecollection`.
    pub field_selector: String,
    /// The `labelSelector` parameter as given, for the same verbs.
    pub label_selector: String,
    /// Whose share is taken of what all share, where a request waits for it: whoever has sent it.
    pub payer: Payer,
}
