//! NodeRestriction: a node may write only its own objects (rules of Kubernetes 1.36).

mod labels;
mod mirror;
mod token;

use http::StatusCode;
use serde_json::Value;
use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_apicore::auth::Attributes;
use tombolo_apicore::status::ApiError;
use tombolo_apicore::tree::{POD_TREE_BYTES_MAX, TREE_BYTES_MAX, value_bytes};

pub(crate) use self::token::admit_token;

use self::labels::{forbidden_labels, labels};
use self::mirror::api_reference;
use super::refuse;
use crate::authz::references::MIRROR_ANNOTATION;
use crate::controllers::csr::Request as CertificateRequest;
use crate::nodes::{LEASE_NAMESPACE, node_of};
use crate::objects::{Objects, StoredObject, core, items, text};

/// Checks a write by a node. Writes by other users pass.
///
/// # Errors
/// 403 with the reason; 404 when an object that the decision needs does not exist.
pub(super) fn admit(objects: &Objects, request: &AdmissionRequest<'_>) -> Result<(), ApiError> {
    let asked = request.attributes;
    let Some(node) = node_of(&asked.identity) else { return Ok(()) };
    let write = Write { objects, request, node };
    let result = match (asked.group.as_str(), asked.resource.as_str()) {
        ("", "pods") => write.pod(),
        ("", "nodes") => write.node(),
        ("", "persistentvolumeclaims") => write.claim(),
        ("coordination.k8s.io", "leases") => write.lease(),
        ("storage.k8s.io", "csinodes") => write.csi_node(),
        ("resource.k8s.io", "resourceslices") => write.slice(),
        ("certificates.k8s.io", "certificatesigningrequests") => write.certificate_request(),
        _ => Ok(()),
    };
    result.map_err(|refusal| refusal.into_error(asked, request.name))?;
    write.check_size()
}

/// Checks an eviction by a node: the pod must run on it.
///
/// # Errors
/// 403 when the pod runs elsewhere.
pub(crate) fn admit_eviction(asked: &Attributes, pod: &StoredObject) -> Result<(), ApiError> {
    let Some(node) = node_of(&asked.identity) else { return Ok(()) };
    if pod.text("/spec/nodeName") == node {
        return Ok(());
    }
    let why = format!("node {node} can only evict pods with spec.nodeName set to itself");
    Err(refuse(asked, &asked.name, why))
}

enum NodeRestrictionError {
    Forbidden(String),
    NotFound(&'static str, String),
}

impl NodeRestrictionError {
    fn into_error(self, asked: &Attributes, name: &str) -> ApiError {
        match self {
            Self::Forbidden(why) => refuse(asked, name, why),
            Self::NotFound(resource, name) => ApiError::not_found("", resource, &name),
        }
    }
}

impl From<String> for NodeRestrictionError {
    fn from(why: String) -> Self {
        Self::Forbidden(why)
    }
}

impl From<&str> for NodeRestrictionError {
    fn from(why: &str) -> Self {
        Self::Forbidden(why.to_owned())
    }
}

/// Bytes that a Node may take in memory as a tree, beyond its text, when the node writes it. A status with 500 images
/// takes half of it.
const NODE_TREE_BYTES_MAX: usize = TREE_BYTES_MAX / 2;

/// The same for existing pods, and for objects that others made large: others wrote most of the pod, and without the
/// part that the node writes, it is read up to [`POD_TREE_BYTES_MAX`].
const CHANGED_TREE_BYTES_MAX: usize = POD_TREE_BYTES_MAX + NODE_TREE_BYTES_MAX;

/// Bytes of text in an object that a node writes.
const NODE_TEXT_BYTES_MAX: usize = 512 * 1024;

/// The same for the metadata and the status of a pod together. Annotations may have 256 KiB, and a kubelet truncates
/// the termination messages of containers to 12 KiB per pod.
const POD_TEXT_BYTES_MAX: usize = 384 * 1024;

/// Bytes that one write by a node may add to an object that others made larger than these bounds.
const NODE_GROWTH_MAX: usize = 64 * 1024;

struct Write<'a, 'r> {
    objects: &'a Objects,
    request: &'a AdmissionRequest<'r>,
    node: &'a str,
}

impl Write<'_, '_> {
    /// The object as it would be stored; null for deletions.
    fn new_object(&self) -> &Value {
        self.request.object.as_deref().unwrap_or(&Value::Null)
    }

    fn old_object(&self) -> &Value {
        self.request.old.unwrap_or(&Value::Null)
    }

    /// Refuses a write by which the node makes an object larger than it needs. Each program that holds the object, such
    /// as this server, has several copies of it, and a tree takes many times its text. The node may still write to
    /// objects that others made large.
    fn check_size(&self) -> Result<(), ApiError> {
        let asked = self.request.attributes;
        let changes = self.request.operation == Operation::Update;
        let (parts, most, most_text): (&[&str], _, _) = match (asked.group.as_str(), asked.resource.as_str())
        {
            ("", "pods") if changes => {
                (&["/metadata", "/status"], CHANGED_TREE_BYTES_MAX, POD_TEXT_BYTES_MAX)
            }
            ("", "nodes") => (&[""], NODE_TREE_BYTES_MAX, NODE_TEXT_BYTES_MAX),
            _ => (&[""], TREE_BYTES_MAX, NODE_TEXT_BYTES_MAX),
        };
        let (old, new) = (self.old_object(), self.new_object());
        let tree = |object: &Value| value_bytes(object).saturating_sub(text_bytes(object));
        let bytes = tree(new);
        if is_too_large(bytes, || tree(old), most, CHANGED_TREE_BYTES_MAX) {
            return Err(self.too_large(bytes, "in memory beyond its text", most));
        }
        let text = |object: &Value| -> usize {
            parts.iter().filter_map(|part| object.pointer(part)).map(text_bytes).sum()
        };
        let bytes = text(new);
        if is_too_large(bytes, || text(old), most_text, 2 * NODE_TEXT_BYTES_MAX) {
            return Err(self.too_large(bytes, "of text", most_text));
        }
        Ok(())
    }

    fn too_large(&self, bytes: usize, what: &str, most: usize) -> ApiError {
        let (resource, name) = (&self.request.attributes.resource, self.request.name);
        let why = format!(
            "{resource} {name:?} would have {bytes} bytes {what}, but a node may write at most {most}: give it fewer or \
             shorter fields"
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", why)
    }

    fn pod(&self) -> Result<(), NodeRestrictionError> {
        let node = self.node;
        match (self.request.attributes.subresource.as_str(), self.request.operation) {
            ("", Operation::Create) => self.mirror_pod(),
            ("", Operation::Delete) => {
                if text(self.old_object(), "/spec/nodeName") != node {
                    return Err(format!(
                        "node {node:?} can only delete pods with spec.nodeName set to itself"
                    )
                    .into());
                }
                Ok(())
            }
            ("status", Operation::Update) => self.pod_status(),
            ("", Operation::Update) => Err(format!(
                "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
            )
            .into()),
            (other, _) => {
                Err(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed")
                    .into())
            }
        }
    }

    fn pod_status(&self) -> Result<(), NodeRestrictionError> {
        let (node, old, new) = (self.node, self.old_object(), self.new_object());
        if text(old, "/spec/nodeName") != node {
            return Err(format!(
                "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
            )
            .into());
        }
        if labels(old) != labels(new) {
            return Err(format!("node {node:?} cannot update labels through pod status").into());
        }
        let claims = |pod: &Value| items(pod, "/status/resourceClaimStatuses").to_vec();
        if claims(old) != claims(new) {
            return Err(format!("node {node:?} cannot update resource claim statues").into());
        }
        let extended = "/status/extendedResourceClaimStatus";
        if old.pointer(extended) != new.pointer(extended) {
            return Err(format!("node {node:?} cannot update extended resource claim status").into());
        }
        Ok(())
    }

    fn mirror_pod(&self) -> Result<(), NodeRestrictionError> {
        let (node, pod) = (self.node, self.new_object());
        if pod.pointer("/metadata/annotations").is_none_or(|a| a.get(MIRROR_ANNOTATION).is_none()) {
            return Err(format!(
                "pod does not have {MIRROR_ANNOTATION:?} annotation, node {node:?} can only create mirror pods"
            )
            .into());
        }
        if text(pod, "/spec/nodeName") != node {
            return Err(format!("node {node:?} can only create pods with spec.nodeName set to itself").into());
        }
        self.mirror_owner(pod)?;
        if let Some(what) = api_reference(pod) {
            return Err(format!("node {node:?} can not create pods that reference {what}").into());
        }
        Ok(())
    }

    fn mirror_owner(&self, pod: &Value) -> Result<(), NodeRestrictionError> {
        let node = self.node;
        let owner = match items(pod, "/metadata/ownerReferences") {
            [one] => one,
            [] => {
                return Err(format!(
                    "node {node:?} can only create pods with an owner reference set to itself"
                )
                .into());
            }
            _ => {
                let why =
                    format!("node {node:?} can only create pods with a single owner reference set to itself");
                return Err(why.into());
            }
        };
        if text(owner, "/apiVersion") != "v1"
            || text(owner, "/kind") != "Node"
            || text(owner, "/name") != node
        {
            return Err(
                format!("node {node:?} can only create pods with an owner reference set to itself").into()
            );
        }
        let flag = |name: &str| owner.get(name).and_then(Value::as_bool).unwrap_or_default();
        if !flag("controller") {
            let why =
                format!("node {node:?} can only create pods with a controller owner reference set to itself");
            return Err(why.into());
        }
        if flag("blockOwnerDeletion") {
            return Err(format!("node {node:?} must not set blockOwnerDeletion on an owner reference").into());
        }
        let Some(own) = self.objects.get(core("nodes"), "", node) else {
            return Err(NodeRestrictionError::NotFound("nodes", node.to_owned()));
        };
        let uid = text(owner, "/uid");
        if own.uid.as_str() != uid {
            return Err(format!("node {node} UID mismatch: expected {uid} got {}", own.uid).into());
        }
        Ok(())
    }

    fn node(&self) -> Result<(), NodeRestrictionError> {
        let (node, new, old) = (self.node, self.new_object(), self.old_object());
        if self.request.name != node {
            return Err(format!("node {node:?} is not allowed to modify node {:?}", self.request.name).into());
        }
        let source =
            |object: &Value| object.pointer("/spec/configSource").filter(|source| !source.is_null()).cloned();
        match self.request.operation {
            Operation::Create => {
                if source(new).is_some() {
                    let why =
                        format!("node {node:?} is not allowed to create pods with a non-nil configSource");
                    return Err(why.into());
                }
                let forbidden = forbidden_labels(new, &Value::Null);
                if !forbidden.is_empty() {
                    let why =
                        format!("node {node:?} is not allowed to set the following labels: {forbidden}");
                    return Err(why.into());
                }
            }
            Operation::Update => {
                if source(new).is_some() && source(new) != source(old) {
                    let why = format!(
                        "node {node:?} is not allowed to update configSource to a new non-nil configSource"
                    );
                    return Err(why.into());
                }
                if items(new, "/spec/taints") != items(old, "/spec/taints") {
                    return Err(format!("node {node:?} is not allowed to modify taints").into());
                }
                if items(new, "/metadata/ownerReferences") != items(old, "/metadata/ownerReferences") {
                    return Err(format!("node {node:?} is not allowed to modify ownerReferences").into());
                }
                let forbidden = forbidden_labels(new, old);
                if !forbidden.is_empty() {
                    return Err(format!("is not allowed to modify labels: {forbidden}").into());
                }
            }
            Operation::Delete => {}
        }
        Ok(())
    }

    fn claim(&self) -> Result<(), NodeRestrictionError> {
        if self.request.attributes.subresource != "status" || self.request.operation != Operation::Update {
            return Err("may only update PVC status".into());
        }
        if claim_without_node_fields(self.old_object()) != claim_without_node_fields(self.new_object()) {
            let why = format!(
                "node {:?} is not allowed to update fields other than status.quantity and status.conditions",
                self.node
            );
            return Err(why.into());
        }
        Ok(())
    }

    fn lease(&self) -> Result<(), NodeRestrictionError> {
        if self.request.namespace != LEASE_NAMESPACE {
            return Err(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace").into());
        }
        if self.request.name != self.node {
            return Err("can only access node lease with the same name as the requesting node".into());
        }
        Ok(())
    }

    fn csi_node(&self) -> Result<(), NodeRestrictionError> {
        if self.request.name != self.node {
            return Err("can only access CSINode with the same name as the requesting node".into());
        }
        Ok(())
    }

    fn slice(&self) -> Result<(), NodeRestrictionError> {
        let (object, verb) = match self.request.operation {
            Operation::Create => (self.new_object(), "create"),
            Operation::Delete => (self.old_object(), "delete"),
            Operation::Update => return Ok(()),
        };
        if text(object, "/spec/nodeName") != self.node {
            let why = format!("can only {verb} ResourceSlice with the same NodeName as the requesting node");
            return Err(why.into());
        }
        Ok(())
    }

    fn certificate_request(&self) -> Result<(), NodeRestrictionError> {
        let new = self.new_object();
        let signer = text(new, "/spec/signerName");
        let of_nodes = ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];
        if self.request.operation != Operation::Create || !of_nodes.contains(&signer) {
            return Ok(());
        }
        let request = CertificateRequest::parse(text(new, "/spec/request"));
        let request = request.map_err(|e| format!("unable to parse csr: {e}"))?;
        let expected = format!("system:node:{}", self.node);
        if request.common_name != expected {
            return Err(format!("can only create a node CSR with CN={expected}").into());
        }
        Ok(())
    }
}

/// A claim without the fields that a node may change in its status.
fn claim_without_node_fields(claim: &Value) -> Value {
    let mut claim = claim.clone();
    if let Some(metadata) = claim.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
        metadata.remove("managedFields");
    }
    if let Some(status) = claim.get_mut("status").and_then(Value::as_object_mut) {
        for field in ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"] {
            status.remove(field);
        }
    }
    claim
}

/// Whether a write by a node makes an object too large: it grows from `old` to `new` bytes. Above the bound `most`,
/// each write may add [`NODE_GROWTH_MAX`], up to the second bound `top`. `old` is computed only above the first bound.
fn is_too_large(new: usize, old: impl FnOnce() -> usize, most: usize, top: usize) -> bool {
    new > most && {
        let old = old();
        new > old && new > old.saturating_add(NODE_GROWTH_MAX).min(top)
    }
}

/// Bytes of the member names and strings in a value.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(members) => members.iter().map(|(name, value)| name.len() + text_bytes(value)).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
