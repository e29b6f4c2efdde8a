//! Recognizes requests that may create a node's Node, and marks the certificate records before such a request runs.

use http::Method;
use serde::Deserialize;
use tombolo_proto::NodeId;
use tombolo_proto::message::StatusError;

use super::Upstream;
use super::outcome::{reason_of, status_of_failure};
use crate::bootstrap::identities::{Denied, IdentityError, Registration};
use crate::kube::{Answer, ApiCall, CallError, Caller};

/// Whether a call may create a Node: a POST to the collection, or a server-side apply to one Node.
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

/// UID of the Node that a call has created, if its answer proves it.
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
    // A dry run creates nothing; the parameter could be percent-encoded.
    if query.contains("dryRun") || query.contains('%') {
        return None;
    }
    let Object { metadata } = serde_json::from_slice(body).ok()?;
    (metadata.name == node.as_str() && !metadata.uid.is_empty()).then_some(metadata.uid)
}

/// Whether a call certainly changes nothing. Only the plain spelling of the parameter is recognized: other spellings
/// count as calls that change something. Text after a `#` is not sent.
pub(super) fn is_dry_run(call: &ApiCall) -> bool {
    let (_, query) = call.path_and_query.split_once('?').unwrap_or_default();
    !query.contains('#') && query.split('&').any(|parameter| parameter == "dryRun=All")
}

impl Upstream {
    /// Makes a call that may create the node's Node, as the node. Its record is marked before, and the outcome is
    /// recorded afterwards. The permits of the node and of all nodes for such a call are held the whole time.
    ///
    /// # Errors
    /// The answer to give when the API server does not answer, or was not called.
    pub(super) async fn register(&self, node: &NodeId, call: ApiCall) -> Result<Answer, Box<StatusError>> {
        let failed = |error: CallError| Box::new(status_of_failure(&error));
        let Some(identities) = self.identities.as_ref().filter(|_| !is_dry_run(&call)) else {
            return self.kube.call(Caller::Node(node), call).await.map_err(failed);
        };
        let limit = call.timeout;
        let beginning = async {
            let registering = self.kube.register_as(node, &call).await.map_err(failed)?;
            let registration = identities.begin_registration(node).await;
            Ok::<_, Box<StatusError>>((registering, begun(node, registration)?))
        };
        let begun = tokio::time::timeout(limit, beginning).await;
        let (registering, registration) = begun.map_err(|_| failed(CallError::TimedOut(limit)))??;
        let query = call.path_and_query.split_once('?').map_or("", |(_, query)| query).to_owned();
        let answer = registering.call(call).await;
        let created = answer.as_ref().ok().filter(|answer| answer.is_success());
        registration.end(created.and_then(|answer| created_uid(node, &query, &answer.body))).await;
        drop(registering);
        answer.map_err(failed)
    }
}

/// A registration that has begun, or the answer to give instead.
fn begun(
    node: &NodeId,
    registration: Result<Result<Registration, Denied>, IdentityError>,
) -> Result<Registration, Box<StatusError>> {
    let refusal = |code, sentence: &str| Box::new(StatusError::new(code, reason_of(code), sentence));
    match registration {
        Ok(Ok(registration)) => Ok(registration),
        Ok(Err(why)) => Err(refusal(403, &format!("node {node} cannot register: {why}"))),
        Err(error @ (IdentityError::Paused(_) | IdentityError::Elsewhere)) => {
            Err(refusal(429, &format!("node {node}: {error}")))
        }
        Err(error) => {
            tracing::warn!(%node, %error, "cannot record a registration: no Node is created");
            let sentence = format!("the registration of node {node} cannot be recorded: {error}");
            Err(refusal(503, &sentence))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_creating_calls_are_recognised_in_every_spelling() {
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
    fn only_an_unambiguous_answer_names_the_created_node() {
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
