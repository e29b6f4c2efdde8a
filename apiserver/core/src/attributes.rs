//! The attributes of a request for authorization.

use crate::identity::Identity;
use crate::senders::Payer;

/// The attributes of a request in terms of Kubernetes authorization: one field for each attribute of a
/// SubjectAccessReview, and the payer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// The user, after impersonation.
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
    /// Object name; empty for collections. For a list or watch, the name that a `metadata.name` field selector
    /// requires.
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
    /// The sender whose share a request uses where it waits for shared resources.
    pub payer: Payer,
}
