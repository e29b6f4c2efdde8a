//! Which requests may create a node's Node, and the mark that the records of certificates get before that.

use http::Method;
use serde::Deserialize;
use tombolo_proto::NodeId;
use tombolo_proto::message::StatusError;

use super::Upstream;
use crate::bootstrap::identities::Registration;
use crate::kube::ApiCall;

/// What may create a Node: a POST to all, or a server-side apply to one.
pub(super) fn may_create_node(call: &ApiCall) -> bool {
    let path: Vec<&str> = call.path().split('/').filter(|segment| !segment.is_empty()).collect();
    match path.as_slice() {
        ["api", "v1", "nodes"] => call.method == Method::POST,
        ["api", "v1", "nodes", _] => {
            call.method == Method::PATCH && call.content_type.starts_with("application/apply-patch")
        }
        _ => false,
    }
}

/// UID of the Node that a call has made, where its answer says so beyond doubt.
pub(super) fn created_uid(node: &NodeId, query: &str, body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: String,
        uid: String,
    }
    // A dry run makes nothing; its name could be written in other ways.
    if query.contains("dryRun") || query.contains('%') {
        return None;
    }
    let Object { metadata } = serde_json::from_slice(body).ok()?;
    (metadata.name == node.as_str() && !metadata.uid.is_empty()).then_some(metadata.uid)
}

impl Upstream {
    /// Marks that a node's Node is about to be created.
    ///
    /// # Errors
    /// What to answer instead of creating it.
    pub(super) async fn begin_registration(
        &self,
        node: &NodeId,
    ) -> Result<Option<Registration>, Box<StatusError>> {
        let Some(identities) = &self.identities else { return Ok(None) };
        let refusal = |code, reason, sentence: &str| Box::new(StatusError::new(code, reason, sentence));
        match identities.begin_registration(node).await {
            Ok(Ok(registration)) => Ok(Some(registration)),
            Ok(Err(why)) => Err(refusal(403, "Forbidden", &format!("node {node} cannot register: {why}"))),
            Err(error) => {
                let sentence = format!("the registration of node {node} cannot be recorded: {error}");
                tracing::warn!(%node, %error, "a registration cannot be recorded: no Node is created");
                Err(refusal(503, "ServiceUnavailable", &sentence))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_create_a_node_is_known_however_it_is_written() {
        let call = |method: Method, path: &str, content_type: &str| ApiCall {
            method,
            content_type: content_type.to_owned(),
            ..ApiCall::get(path)
        };
        let (json, apply) = ("application/json", "application/apply-patch+yaml");
        for path in ["/api/v1/nodes", "/api/v1/nodes/", "/api/v1/nodes?fieldManager=x"] {
            assert!(may_create_node(&call(Method::POST, path, json)), "{path}");
        }
        assert!(may_create_node(&call(Method::PATCH, "/api/v1/nodes/n?force=true", apply)));
        assert!(!may_create_node(&call(Method::PATCH, "/api/v1/nodes/n/status", apply)));
        assert!(!may_create_node(&call(Method::PATCH, "/api/v1/nodes/n", "application/merge-patch+json")));
        assert!(!may_create_node(&call(Method::GET, "/api/v1/nodes", json)));
        assert!(!may_create_node(&call(Method::POST, "/api/v1/namespaces/d/pods", json)));
    }

    #[test]
    fn only_an_answer_beyond_doubt_names_the_node_that_was_made() {
        let node = NodeId::parse("n").expect("a name");
        let body = br#"{"metadata":{"name":"n","uid":"u1"}}"#;
        assert_eq!(created_uid(&node, "", body).as_deref(), Some("u1"));
        for (query, body) in [
            ("dryRun=All", &body[..]),
            ("%64ryRun=All", body),
            ("", br#"{"metadata":{"name":"other","uid":"u1"}}"#),
            ("", br#"{"metadata":{"name":"n"}}"#),
            ("", b"k8s\0"),
        ] {
            assert_eq!(created_uid(&node, query, body), None, "{query}");
        }
    }
}
