//! Kubernetes API calls that a node or one of its local clients makes through cloudcore.

use std::time::Duration;

use http::Method;
use tombolo_apicore::tree::TREE_BYTES_MAX;
use tombolo_proto::NodeId;
use tombolo_proto::api_path::is_unambiguous;
use tombolo_proto::frame::{ApiReply, ApiRequest};

use super::outcome::{code_of, reason_of};
use super::position::Position;
use super::register::{is_dry_run, may_create_node};
use super::{Upstream, labels, refusal, whole};
use crate::kube::{Answer, ApiCall, Caller, ISSUER_PATHS, LARGE_TREE_BYTES_MAX, exceeds, is_document};

/// First path segments that may be called: the API, its discovery and its version.
const ROOTS: [&str; 4] = ["api", "apis", "openapi", "version"];

impl Upstream {
    pub(super) async fn answer_api(
        &self,
        node: &NodeId,
        request: ApiRequest,
        token: Option<&str>,
        timeout: Duration,
        position: Option<&Position>,
    ) -> ApiReply {
        let method = match check(&request, token.is_none()) {
            Ok(method) => method,
            Err(problem) => return refusal(400, "BadRequest", &problem),
        };
        let call = ApiCall {
            method,
            content_type: request.content_type,
            accept: request.accept,
            body: request.body,
            timeout,
            ..ApiCall::get(request.path_and_query)
        };
        if token.is_none() && may_create_node(&call) {
            return self.answer_registration(node, call).await;
        }
        let caller = token.map_or(Caller::Node(node), |token| Caller::Token(node, token));
        let call = whole::complete(&self.kube, caller, call).await;
        let answer = match token {
            Some(_) => self.kube.call(caller, call).await,
            None if asks_for_token(&call) => self.call_for_token(node, call).await,
            None if is_published(&call) => self.kube.document(Some(node), call).await,
            None => self.patch_in_order(node, position, call).await,
        };
        match answer {
            Ok(answer) => reply(answer),
            Err(error) => refusal(code_of(&error), reason_of(code_of(&error)), &error.to_string()),
        }
    }

    /// A kubelet registers its node with a plain call; the node is an edge node all the same.
    async fn answer_registration(&self, node: &NodeId, call: ApiCall) -> ApiReply {
        let changes_nothing = is_dry_run(&call);
        match self.register(node, call).await {
            Ok(answer) if answer.code == 201 && !changes_nothing => {
                let body = self.grant_labels(node, &labels::edge(), answer.body).await;
                self.registered(node, &body);
                ApiReply { code: answer.code, content_type: answer.content_type, body }
            }
            Ok(answer) => reply(answer),
            Err(error) => ApiReply::refusal(&error),
        }
    }
}

fn reply(answer: Answer) -> ApiReply {
    let Answer { code, content_type, body } = answer;
    ApiReply { code, content_type, body }
}

/// Whether a call reads a document that the cluster publishes to all authenticated clients.
fn is_published(call: &ApiCall) -> bool {
    call.method == Method::GET && is_document(call.path())
}

/// Whether a call is a TokenRequest.
fn asks_for_token(call: &ApiCall) -> bool {
    let path = call.path();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    call.method == Method::POST
        && matches!(parts.as_slice(), ["api", "v1", "namespaces", _, "serviceaccounts", _, "token"])
}

/// Memory that the parsed tree of a body may take, in bytes. A node itself writes no definitions and the like, but its
/// local clients may.
const fn tree_bytes_max(is_own: bool) -> usize {
    if is_own { TREE_BYTES_MAX } else { LARGE_TREE_BYTES_MAX }
}

/// Checks that a call addresses a path of the API unambiguously. [`Kube::call`] checks whether its answer ends.
///
/// [`Kube::call`]: crate::kube::Kube::call
fn check(request: &ApiRequest, is_own: bool) -> Result<Method, String> {
    let method = match request.method.as_str() {
        "GET" => Method::GET,
        "POST" => Method::POST,
        "PUT" => Method::PUT,
        "PATCH" => Method::PATCH,
        "DELETE" => Method::DELETE,
        other => return Err(format!("method {other:?} is not one of GET, POST, PUT, PATCH, DELETE")),
    };
    // An HTTP server would strip the white space, and the call would differ from the one that was checked.
    if [&request.content_type, &request.accept].iter().any(|text| text.trim() != text.as_str()) {
        return Err("a header begins or ends with white space".to_owned());
    }
    // Parsed, here and in the API server, it would take many times its transmitted size.
    let first = request.body.iter().find(|byte| !byte.is_ascii_whitespace());
    let is_json = first.is_some_and(|first| matches!(first, b'{' | b'['));
    if is_json && exceeds(std::iter::once(&*request.body), tree_bytes_max(is_own)) {
        return Err("the body has too many parts: send fewer".to_owned());
    }
    let path = request.path_and_query.split('?').next().unwrap_or_default();
    let Some(relative) = path.strip_prefix('/') else {
        return Err(format!("path {path:?} does not start with /"));
    };
    if method == Method::GET && ISSUER_PATHS.contains(&path) {
        return Ok(method);
    }
    if !relative.split('/').next().is_some_and(|root| ROOTS.contains(&root)) {
        return Err(format!("path {path:?} is not a path of the Kubernetes API"));
    }
    if !is_unambiguous(path) {
        return Err(format!("path {path:?} is ambiguous"));
    }
    Ok(method)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, path: &str) -> ApiRequest {
        ApiRequest::new(method, path)
    }

    #[test]
    fn bounded_calls_pass() {
        for (method, path) in [
            ("GET", "/api/v1/namespaces/d/pods?fieldSelector=spec.nodeName%3Dn&limit=5"),
            ("PATCH", "/api/v1/nodes/n/status"),
            ("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"),
            ("GET", "/api/v1/pods?watch=false"),
            ("GET", "/version"),
            ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/a%20b"),
            ("GET", "/.well-known/openid-configuration"),
            ("GET", "/openid/v1/jwks"),
        ] {
            assert!(check(&request(method, path), true).is_ok(), "{method} {path}");
        }
    }

    #[test]
    fn body_with_too_many_values_is_refused() {
        let body = |values: usize| bytes::Bytes::from(format!(" \n[{}0]", r#""","#.repeat(values)));
        let send = |method, path, body, is_own| check(&ApiRequest { body, ..request(method, path) }, is_own);
        let status = "/api/v1/nodes/n/status";
        assert!(send("PATCH", status, body(30_000), true).is_ok());
        send("PATCH", status, body(35_000), true).expect_err("too many");
        send("POST", "/api/v1/namespaces/d/pods", body(35_000), true).expect_err("too many for a mirror pod");
        assert!(send("PATCH", status, body(200_000), false).is_ok(), "of a client beside the node");
        send("PATCH", status, body(500_000), false).expect_err("too many for anybody");
        let names: String = (10_000..26_000).map(|number| format!("\"{number}\":0,")).collect();
        let names = format!("{{\"metadata\":{{\"annotations\":{{{names}\"a\":0}}}}}}");
        send("PUT", "/api/v1/nodes/n", names.into(), true).expect_err("too many names");
    }

    #[test]
    fn ambiguous_header_is_refused() {
        let typed = |content_type: &str| {
            let content_type = content_type.to_owned();
            check(&ApiRequest { content_type, ..request("PATCH", "/api/v1/nodes/n") }, true)
        };
        assert!(typed("application/apply-patch+yaml").is_ok());
        typed(" application/apply-patch+yaml").expect_err("a space first");
    }

    #[test]
    fn published_documents_are_not_read_as_objects() {
        let published = |path: &str| is_published(&ApiCall::get(path));
        for path in [
            "/version",
            "/api",
            "/api/v1",
            "/apis",
            "/apis/apps/v1",
            "/openapi/v3/api/v1?hash=x",
            ISSUER_PATHS[1],
        ] {
            assert!(published(path), "{path}");
        }
        for path in
            ["/api/v1/nodes", "/apis/apps/v1/deployments", "/api/v1/namespaces/a/secrets/b", "/metrics"]
        {
            assert!(!published(path), "{path}");
        }
    }

    #[test]
    fn everything_else_is_refused_with_a_reason() {
        for (method, path) in [
            ("TRACE", "/api/v1/pods"),
            ("get", "/api/v1/pods"),
            ("GET", "api/v1/pods"),
            ("GET", "https://elsewhere/api"),
            ("GET", "/metrics"),
            ("POST", "/openid/v1/jwks"),
            ("GET", "/.well-known/../metrics"),
            ("GET", "/apis/../metrics"),
            ("GET", "/api/v1/namespaces/%2e%2e/x"),
            ("GET", "/api/v1/n%6Fdes"),
            ("GET", "/api/v1/namespaces/d/secrets/a%2Fb"),
            ("GET", "/api/v1/namespaces/d/secrets/%FF"),
        ] {
            assert!(check(&request(method, path), true).is_err(), "{method} {path}");
        }
    }
}
