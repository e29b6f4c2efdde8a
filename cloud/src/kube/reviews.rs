//! Questions to the API server about rights and tokens.

use http::Method;
use serde_json::{Value, json};
use thiserror::Error;

use super::{ApiCall, CallError, Caller, Kube};

/// What the API server says to a question about a right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Right {
    Allowed,
    /// With its reason, which may be empty.
    Refused(String),
}

/// A question without an answer. Nothing is allowed by it.
#[derive(Debug, Error)]
pub(crate) enum Unanswered {
    /// The API server cannot read it, and never will.
    #[error("cannot ask for rights: {0}")]
    Unreadable(String),
    /// Anything else is the cluster's trouble.
    #[error("cannot ask for rights: {0}")]
    Trouble(String),
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Kube {
    /// Asks whether somebody may do something: the `spec` of a SubjectAccessReview.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub(crate) async fn right(&self, caller: Caller<'_>, spec: &Value) -> Result<Right, Unanswered> {
        let review = self.review(caller, "authorization.k8s.io/v1", "SubjectAccessReview", spec).await?;
        if review.pointer("/status/allowed") == Some(&Value::Bool(true)) {
            return Ok(Right::Allowed);
        }
        let reason = review.pointer("/status/reason").and_then(Value::as_str).unwrap_or_default();
        Ok(Right::Refused(reason.to_owned()))
    }

    /// Asks whose a bearer token is, as the `spec` of a SubjectAccessReview names it; none when the cluster does not know it.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub(crate) async fn holder(&self, caller: Caller<'_>, token: &str) -> Result<Option<Value>, Unanswered> {
        let spec = json!({ "token": token });
        let review = self.review(caller, "authentication.k8s.io/v1", "TokenReview", &spec).await?;
        let known = review.pointer("/status/authenticated") == Some(&Value::Bool(true));
        Ok(review.pointer("/status/user").filter(|_| known).map(|user| {
            json!({
                "user": user.get("username"), "groups": user.get("groups"), "uid": user.get("uid"),
                "extra": user.get("extra")
            })
        }))
    }

    async fn review(
        &self,
        caller: Caller<'_>,
        version: &str,
        kind: &str,
        spec: &Value,
    ) -> Result<Value, Unanswered> {
        let review = json!({"apiVersion": version, "kind": kind, "spec": spec});
        let path = format!("/apis/{version}/{}s", kind.to_ascii_lowercase());
        let answer = self.call(caller, ApiCall::json(Method::POST, path, &review)).await?;
        match answer.code {
            200..300 => Ok(answer.json()),
            400 | 422 => Err(Unanswered::Unreadable(answer.message())),
            _ => Err(Unanswered::Trouble(answer.message())),
        }
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
    async fn a_right_is_what_the_api_server_says_it_is() {
        assert_eq!(asked(201, json!({"allowed": true})).await.expect("an answer"), Right::Allowed);
        for status in [json!({"allowed": false, "reason": "no"}), json!({"allowed": "true", "reason": "no"})]
        {
            assert_eq!(asked(201, status).await.expect("an answer"), Right::Refused("no".to_owned()));
        }
        assert_eq!(asked(201, Value::Null).await.expect("an answer"), Right::Refused(String::new()));
    }

    #[tokio::test]
    async fn a_bad_question_is_told_from_trouble() {
        for code in [400, 422] {
            let error = asked(code, json!({"allowed": true})).await.expect_err("no answer");
            assert!(matches!(&error, Unanswered::Unreadable(text) if text == "said"), "{code}: {error}");
        }
        for code in [401, 403, 404, 429, 500, 503] {
            let error = asked(code, json!({"allowed": true})).await.expect_err("no answer");
            assert!(matches!(&error, Unanswered::Trouble(text) if text == "said"), "{code}: {error}");
        }
    }
}
