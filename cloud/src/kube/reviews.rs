//! Access reviews and token reviews of the API server.

use http::Method;
use serde_json::{Value, json};
use thiserror::Error;
use tombolo_proto::Resource;

use super::{Answer, ApiCall, CallError, Caller, Kube};

/// The API server's answer to an access review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Right {
    Allowed,
    /// Denied, with the reason, which may be empty.
    Refused(String),
}

/// A review without an answer. It allows nothing.
#[derive(Debug, Error)]
pub(crate) enum Unanswered {
    /// The API server cannot parse the review, and a retry will not help.
    #[error("access review failed: {0}")]
    Unreadable(String),
    /// Any other failure, which is the cluster's.
    #[error("access review failed: {0}")]
    Failed(String),
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Kube {
    /// Asks whether a user has a right. `spec` is that of a SubjectAccessReview.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub(crate) async fn right(&self, caller: Caller<'_>, spec: &Value) -> Result<Right, Unanswered> {
        right(&self.call(caller, of_right(spec)).await?)
    }

    /// Asks for the owner of a bearer token, in the form of a SubjectAccessReview's `spec`; none when the cluster does
    /// not know the token.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub(crate) async fn holder(&self, caller: Caller<'_>, token: &str) -> Result<Option<Value>, Unanswered> {
        let spec = json!({ "token": token });
        let review = review("authentication.k8s.io/v1", "TokenReview", &spec);
        let review = answered(&self.call(caller, review).await?)?;
        let known = review.pointer("/status/authenticated") == Some(&Value::Bool(true));
        Ok(review.pointer("/status/user").filter(|_| known).map(|user| {
            json!({
                "user": user.get("username"), "groups": user.get("groups"), "uid": user.get("uid"),
                "extra": user.get("extra")
            })
        }))
    }
}

/// The `resourceAttributes` of a question about following objects. An empty namespace means all namespaces.
pub(crate) fn may_follow(verb: &str, resource: &Resource, namespace: &str) -> Value {
    json!({
        "verb": verb, "group": &*resource.group, "version": &*resource.version, "resource": &*resource.name,
        "namespace": namespace
    })
}

/// The request of an access review.
pub(super) fn of_right(spec: &Value) -> ApiCall {
    review("authorization.k8s.io/v1", "SubjectAccessReview", spec)
}

/// Parses the answer to [`of_right`].
pub(super) fn right(answer: &Answer) -> Result<Right, Unanswered> {
    let review = answered(answer)?;
    if review.pointer("/status/allowed") == Some(&Value::Bool(true)) {
        return Ok(Right::Allowed);
    }
    let reason = review.pointer("/status/reason").and_then(Value::as_str).unwrap_or_default();
    Ok(Right::Refused(reason.to_owned()))
}

fn review(version: &str, kind: &str, spec: &Value) -> ApiCall {
    let review = json!({"apiVersion": version, "kind": kind, "spec": spec});
    ApiCall::json(Method::POST, format!("/apis/{version}/{}s", kind.to_ascii_lowercase()), &review)
}

fn answered(answer: &Answer) -> Result<Value, Unanswered> {
    match answer.code {
        200..300 => Ok(answer.json()),
        400 | 422 => Err(Unanswered::Unreadable(answer.message())),
        _ => Err(Unanswered::Failed(answer.message())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn asked(code: u16, status: Value) -> Result<Right, Unanswered> {
        let answer = move |request: http::Request<kube::client::Body>| {
            assert_eq!(request.uri().path(), "/apis/authorization.k8s.io/v1/subjectaccessreviews");
            let body = json!({"message": "said", "status": status}).to_string().into_bytes();
            let response = http::Response::builder().status(code).body(kube::client::Body::from(body));
            async { Ok::<_, std::convert::Infallible>(response.expect("a response")) }
        };
        let kube = Kube::from(kube::Client::new(tower::service_fn(answer), "default"));
        kube.right(Caller::Own, &json!({"user": "u"})).await
    }

    #[tokio::test]
    async fn review_answers_are_parsed() {
        assert_eq!(asked(201, json!({"allowed": true})).await.expect("an answer"), Right::Allowed);
        for status in [json!({"allowed": false, "reason": "no"}), json!({"allowed": "true", "reason": "no"})]
        {
            assert_eq!(asked(201, status).await.expect("an answer"), Right::Refused("no".to_owned()));
        }
        assert_eq!(asked(201, Value::Null).await.expect("an answer"), Right::Refused(String::new()));
    }

    #[tokio::test]
    async fn malformed_review_is_distinguished_from_a_failure() {
        for code in [400, 422] {
            let error = asked(code, json!({"allowed": true})).await.expect_err("no answer");
            assert!(matches!(&error, Unanswered::Unreadable(text) if text == "said"), "{code}: {error}");
        }
        for code in [401, 403, 404, 429, 500, 503] {
            let error = asked(code, json!({"allowed": true})).await.expect_err("no answer");
            assert!(matches!(&error, Unanswered::Failed(text) if text == "said"), "{code}: {error}");
        }
    }
}
