//! Reads that are granted to edge nodes in addition to what the API server allows every node.
//!
//! An impersonated call cannot carry an additional group: with constrained impersonation only the API server decides
//! which groups a node has. So when a read is forbidden to the node, cloudcore asks whether the group [`EDGE_NODES`]
//! may do it, and if so makes the read with its own rights.

use http::Method;
use serde_json::{Value, json};
use tombolo_apicore::auth::Identity;
use tombolo_proto::NodeId;

use super::{Answer, ApiCall, CallError, Caller, Kube, Right, endless};

/// Group of the nodes that are connected here. The API server assigns it to no user: it appears only in access reviews.
/// So rights that are granted to it reach edge nodes through this hub, and no other client.
pub const EDGE_NODES: &str = "tombolo:edge-nodes";

/// The code of a call to which the caller has no right.
const FORBIDDEN: u16 = 403;

/// A node that is connected here, as the `spec` of a SubjectAccessReview.
pub(crate) fn edge_node(node: &NodeId) -> Value {
    let groups = ["system:nodes", "system:authenticated", EDGE_NODES];
    json!({"user": format!("system:node:{node}"), "groups": groups})
}

impl Kube {
    /// Makes a call as a node. A read that is forbidden is still made if edge nodes are granted it.
    ///
    /// # Errors
    /// As [`Kube::call`].
    pub(crate) async fn call_as_edge_node(&self, node: &NodeId, call: ApiCall) -> Result<Answer, CallError> {
        // Only reads can be granted in addition to the node's own rights, so only they are kept for a second attempt.
        let again = (call.method == Method::GET).then(|| call.clone());
        let answer = self.call(Caller::Node(node), call).await?;
        let Some(again) = again.filter(|_| answer.code == FORBIDDEN) else { return Ok(answer) };
        let own = Caller::OwnFor(node);
        match grant(node, &again) {
            // Without an answer from the API server nothing is allowed.
            Some(spec) if matches!(self.right(own, &spec).await, Ok(Right::Allowed)) => {
                self.call(own, again).await
            }
            _ => Ok(answer),
        }
    }
}

/// The question whether edge nodes may make this read, as the `spec` of a SubjectAccessReview; none when the call reads
/// no object.
fn grant(node: &NodeId, call: &ApiCall) -> Option<Value> {
    if call.method != Method::GET {
        return None;
    }
    let asked = endless::read(call).ok()?.attributes(Identity::default());
    if !asked.is_resource || !asked.subresource.is_empty() || !matches!(asked.verb.as_str(), "get" | "list") {
        return None;
    }
    let mut attributes = json!({
        "verb": asked.verb, "group": asked.group, "version": asked.version, "resource": asked.resource,
        "namespace": asked.namespace, "name": asked.name
    });
    for (field, selector) in
        [("fieldSelector", asked.field_selector), ("labelSelector", asked.label_selector)]
    {
        if !selector.is_empty() {
            attributes[field] = json!({ "rawSelector": selector });
        }
    }
    let mut spec = edge_node(node);
    spec["resourceAttributes"] = attributes;
    Some(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: Method, path: &str) -> Option<Value> {
        let call = ApiCall { method, ..ApiCall::get(path) };
        let spec = grant(&NodeId::parse("n").expect("a name"), &call)?;
        assert_eq!(spec["user"], "system:node:n");
        assert!(spec["groups"].as_array().is_some_and(|groups| groups.contains(&json!(EDGE_NODES))));
        Some(spec["resourceAttributes"].clone())
    }

    #[test]
    fn read_is_exactly_the_one_that_was_reviewed() {
        let node = asked(Method::GET, "/api/v1/nodes/other").expect("a read");
        assert_eq!(
            (&node["verb"], &node["resource"], &node["name"]),
            (&json!("get"), &json!("nodes"), &json!("other"))
        );
        let slices = asked(
            Method::GET,
            "/apis/discovery.k8s.io/v1/namespaces/d/endpointslices?labelSelector=a%3Db&limit=5",
        );
        let slices = slices.expect("a list");
        assert_eq!((&slices["verb"], &slices["group"]), (&json!("list"), &json!("discovery.k8s.io")));
        assert_eq!(
            (&slices["namespace"], &slices["labelSelector"]["rawSelector"]),
            (&json!("d"), &json!("a=b"))
        );
    }

    #[test]
    fn only_object_reads_are_reviewed_for_the_edge_group() {
        for path in
            ["/api/v1/nodes/n/proxy", "/api/v1/namespaces/d/pods/p/log", "/version", "/api/v1/watch/nodes"]
        {
            assert_eq!(asked(Method::GET, path), None, "{path}");
        }
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert_eq!(asked(method, "/api/v1/nodes/n"), None);
        }
    }
}
