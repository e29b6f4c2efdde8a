//! Checks whether the API server isolates nodes from each other, with the Node authorizer and the admission plugin
//! NodeRestriction. Without them a request in the name of one node may change objects of another, whatever cloudcore
//! does.

use http::Method;
use serde_json::json;
use tombolo_proto::NodeId;

use super::{ApiCall, CallError, Caller, Kube, Right, Unanswered};

/// A node that need not exist.
const PROBE_NODE: &str = "tombolo-probe";

/// Another node, whose objects the first must not change.
const OTHER_NODE: &str = "tombolo-probe-other";

/// Part of NodeRestriction's message about a Node that is not the caller's.
const RESTRICTED: &str = "is not allowed to modify node";

/// The protections that isolate nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protections {
    /// Whether a node may read what it needs, but no Secret that it does not need.
    pub node_authorizer: bool,
    /// Whether a node may only change its own objects; none when the API server did not say.
    pub node_restriction: Option<bool>,
}

impl Protections {
    /// A description of what is missing; none when nothing is.
    #[must_use]
    pub fn problem(&self) -> Option<&'static str> {
        match (self.node_authorizer, self.node_restriction) {
            (false, _) => Some(
                "the Node authorizer is off, or a role grants all nodes more than it would: start kube-apiserver with \
                 --authorization-mode=Node,RBAC, and bind no broader role to system:nodes",
            ),
            (true, Some(false)) => Some(
                "the admission plugin NodeRestriction is off, so each node may change the others: start kube-apiserver \
                 with --enable-admission-plugins=NodeRestriction",
            ),
            (true, None) => Some("cannot tell whether the admission plugin NodeRestriction is on"),
            (true, Some(true)) => None,
        }
    }
}

impl Kube {
    /// Tests both protections with requests that change nothing, in the name of a node that need not exist.
    ///
    /// # Errors
    /// [`CallError`] when the API server does not answer.
    pub async fn probe_protections(&self) -> Result<Protections, CallError> {
        let own = self.node_may("get", "nodes", "", PROBE_NODE).await?;
        let foreign = self.node_may("get", "secrets", "kube-system", PROBE_NODE).await?;
        let node_restriction = self.node_restriction().await?;
        Ok(Protections { node_authorizer: own && !foreign, node_restriction })
    }

    async fn node_may(
        &self,
        verb: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<bool, CallError> {
        let spec = json!({
            "user": format!("system:node:{PROBE_NODE}"), "groups": ["system:nodes", "system:authenticated"],
            "resourceAttributes": {"verb": verb, "resource": resource, "namespace": namespace, "name": name},
        });
        match self.right(Caller::Own, &spec).await {
            Ok(right) => Ok(right == Right::Allowed),
            Err(Unanswered::Call(error)) => Err(error),
            Err(error) => Err(CallError::Invalid(error.to_string())),
        }
    }

    /// Tries to create another node's Node, in a way that creates nothing.
    async fn node_restriction(&self) -> Result<Option<bool>, CallError> {
        let node = NodeId::parse(PROBE_NODE).map_err(|error| CallError::Invalid(error.to_string()))?;
        let other = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER_NODE}});
        let call = ApiCall::json(Method::POST, "/api/v1/nodes?dryRun=All", &other);
        let answer = self.call(Caller::Node(&node), call).await?;
        Ok(match answer.code {
            201 => Some(false),
            403 if answer.message().contains(RESTRICTED) => Some(true),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// An API server that gives a node these rights to its own Node and to a foreign Secret.
    fn server((own, foreign): (bool, bool), restriction: bool) -> Kube {
        let answer = move |request: http::Request<kube::client::Body>| async move {
            let path = request.uri().path().to_owned();
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.expect("in memory");
            let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
            let secret = asked.pointer("/spec/resourceAttributes/resource") == Some(&json!("secrets"));
            let (code, answer) = match path.as_str() {
                "/api/v1/nodes" if restriction => {
                    assert_eq!(parts.uri.query(), Some("dryRun=All"), "no object may be created");
                    let message =
                        format!("node \"{PROBE_NODE}\" is not allowed to modify node \"{OTHER_NODE}\"");
                    (403, json!({"kind": "Status", "status": "Failure", "code": 403, "message": message}))
                }
                "/api/v1/nodes" => (201, asked),
                _ => (201, json!({"status": {"allowed": if secret { foreign } else { own }}})),
            };
            let response = http::Response::builder().status(code).header("content-type", "application/json");
            let body = kube::client::Body::from(answer.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(response.body(body).expect("a response"))
        };
        Kube::from(kube::Client::new(tower::service_fn(answer), "default"))
    }

    #[tokio::test]
    async fn node_isolation_of_the_api_server_is_probed() {
        for (own, foreign, authorizer) in
            [(true, false, true), (false, false, false), (true, true, false), (false, true, false)]
        {
            for restriction in [true, false] {
                let found = server((own, foreign), restriction).probe_protections().await.expect("answers");
                let expected =
                    Protections { node_authorizer: authorizer, node_restriction: Some(restriction) };
                assert_eq!(found, expected, "{own} {foreign}");
            }
        }
    }

    #[test]
    fn missing_protections_are_named() {
        let problem = |node_authorizer, node_restriction| {
            Protections { node_authorizer, node_restriction }.problem().unwrap_or_default()
        };
        assert_eq!(problem(true, Some(true)), "");
        assert!(problem(false, Some(true)).contains("Node authorizer"));
        assert!(problem(true, Some(false)).contains("NodeRestriction is off"));
        assert!(problem(true, None).contains("cannot tell"));
    }
}
