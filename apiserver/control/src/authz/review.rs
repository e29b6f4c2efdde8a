//! The review kinds: they answer what a user may do, or who a user is, without doing anything.

mod check;

use futures::future::BoxFuture;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tombolo_apicore::auth::{Attributes, Decision, Identity};
use tombolo_apicore::backend::{Endpoint, EndpointRequest};
use tombolo_apicore::selector::field::escape;
use tombolo_apicore::status::ApiError;

use super::Authorization;
use super::rules::Rule;
use crate::authn::Authentication;
use crate::authn::tokens::ISSUER;
use crate::objects::{items, text};
use check::Scope;

/// The kind of the review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Review {
    /// `subjectaccessreviews` and `localsubjectaccessreviews`: whether a user may do something.
    Subject,
    /// `selfsubjectaccessreviews`: whether the caller may do something.
    SelfSubject,
    /// `selfsubjectrulesreviews`: what the caller may do in a namespace.
    Rules,
    /// `selfsubjectreviews`: who the caller is.
    Whoami,
    /// `tokenreviews`: to which user a token belongs.
    Token,
}

/// Answers reviews.
pub(crate) struct Reviews {
    /// The kind of the review.
    pub(crate) review: Review,
    /// Decides.
    pub(crate) authorization: Authorization,
    /// Authenticates tokens.
    pub(crate) authentication: Arc<Authentication>,
}

impl Endpoint for Reviews {
    fn call(&self, request: EndpointRequest) -> BoxFuture<'_, Result<(StatusCode, Value), ApiError>> {
        Box::pin(std::future::ready(self.answer(request)))
    }
}

impl Reviews {
    fn answer(&self, request: EndpointRequest) -> Result<(StatusCode, Value), ApiError> {
        let caller = &request.attributes.identity;
        let mut review = request.body;
        let status = match self.review {
            Review::Subject | Review::SelfSubject => self.access(&review, &request.attributes)?,
            Review::Rules => self.rules(&review, caller)?,
            Review::Whoami => json!({"userInfo": caller.user_info()}),
            Review::Token => self.token(&review)?,
        };
        // These two return a new object, not the one that was sent.
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let fresh = match self.review {
            Review::Rules => Some(json!({"metadata": {}, "spec": {}})),
            Review::Whoami => Some(json!({"metadata": {"creationTimestamp": now}})),
            _ => None,
        };
        if let Some(mut fresh) = fresh {
            for field in ["kind", "apiVersion"] {
                fresh[field] = review[field].take();
            }
            review = fresh;
        }
        let whole =
            review.as_object_mut().ok_or_else(|| ApiError::bad_request("the body must be an object"))?;
        whole.insert("status".into(), status);
        Ok((StatusCode::CREATED, review))
    }

    /// Whether a user, or the caller, may do something.
    fn access(&self, review: &Value, request: &Attributes) -> Result<Value, ApiError> {
        let scope = match request.namespace.as_str() {
            "" => Scope::Cluster,
            namespace => Scope::Namespace(namespace),
        };
        check::access(self.review, review, &scope)?;
        let identity =
            if self.review == Review::Subject { subject(review) } else { request.identity.clone() };
        let mut status = decision(&self.authorization.decide(&attributes(review, identity)));
        let ignored = check::ignored(review);
        if !ignored.is_empty() {
            status["evaluationError"] = ignored.into();
        }
        Ok(status)
    }

    fn rules(&self, review: &Value, caller: &Identity) -> Result<Value, ApiError> {
        let namespace = text(review, "/spec/namespace");
        if namespace.is_empty() {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        let (rules, incomplete) = self.authorization.rules_of(caller, namespace);
        let (resources, paths): (Vec<_>, Vec<_>) =
            rules.iter().partition(|rule| rule.non_resource_urls.is_empty());
        let mut status = json!({
            "resourceRules": resources.iter().map(|rule| resource_rule(rule)).collect::<Vec<_>>(),
            "nonResourceRules":
                paths.iter().map(|r| json!({"verbs": r.verbs, "nonResourceURLs": r.non_resource_urls})).collect::<Vec<_>>(),
            "incomplete": incomplete.is_some(),
        });
        if let (Some(why), Some(status)) = (incomplete, status.as_object_mut()) {
            status.insert("evaluationError".into(), json!(why));
        }
        Ok(status)
    }

    fn token(&self, review: &Value) -> Result<Value, ApiError> {
        if text(review, "/spec/token").is_empty() {
            return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
        }
        let wanted: Vec<&str> = items(review, "/spec/audiences").iter().filter_map(Value::as_str).collect();
        let wanted = if wanted.is_empty() { vec![ISSUER] } else { wanted };
        Ok(match self.authentication.identify_token(text(review, "/spec/token")) {
            Ok((identity, audiences)) => {
                let common: Vec<&str> =
                    wanted.into_iter().filter(|wanted| audiences.iter().any(|own| own == wanted)).collect();
                if common.is_empty() {
                    let why = format!("token audiences {audiences:?} is invalid for the target audiences");
                    return Ok(json!({"user": {}, "error": why}));
                }
                json!({"authenticated": true, "user": identity.user_info(), "audiences": common})
            }
            Err(why) => json!({"user": {}, "error": why}),
        })
    }
}

fn resource_rule(rule: &Rule) -> Value {
    let mut value = json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
    if let (false, Some(object)) = (rule.resource_names.is_empty(), value.as_object_mut()) {
        object.insert("resourceNames".into(), json!(rule.resource_names));
    }
    value
}

fn decision(decision: &Decision) -> Value {
    let (allowed, denied, reason) = match decision {
        Decision::Allow => (true, false, ""),
        Decision::Deny(reason) => (false, true, reason.as_str()),
        Decision::NoOpinion(reason) | Decision::Undecided(reason) => (false, false, reason.as_str()),
    };
    let mut status = Map::from_iter([("allowed".to_owned(), json!(allowed))]);
    if denied {
        status.insert("denied".into(), json!(true));
    }
    if !reason.is_empty() {
        status.insert("reason".into(), json!(reason));
    }
    Value::Object(status)
}

/// The user of a SubjectAccessReview.
fn subject(review: &Value) -> Identity {
    let strings = |value: &Value| {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    Identity {
        user: text(review, "/spec/user").to_owned(),
        uid: Some(text(review, "/spec/uid").to_owned()).filter(|uid| !uid.is_empty()),
        groups: review.pointer("/spec/groups").map(strings).unwrap_or_default(),
        extra: review
            .pointer("/spec/extra")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(key, values)| (key.to_lowercase(), strings(values)))
            .collect(),
    }
}

/// The request that a review is about. The review must be checked before.
fn attributes(review: &Value, identity: Identity) -> Attributes {
    let Some(resource) = review.pointer("/spec/resourceAttributes").filter(|value| value.is_object()) else {
        let part = |name: &str| text(review, &format!("/spec/nonResourceAttributes/{name}")).to_owned();
        return Attributes { identity, verb: part("verb"), path: part("path"), ..Attributes::default() };
    };
    let part = |name: &str| text(resource, &format!("/{name}")).to_owned();
    Attributes {
        identity,
        verb: part("verb"),
        group: part("group"),
        version: part("version"),
        resource: part("resource"),
        subresource: part("subresource"),
        namespace: part("namespace"),
        name: part("name"),
        path: String::new(),
        is_resource: true,
        field_selector: selector(resource, "fieldSelector"),
        label_selector: selector(resource, "labelSelector"),
        ..Attributes::default()
    }
}

/// A selector as text: the raw selector, or those requirements that can be written as text.
fn selector(resource: &Value, name: &str) -> String {
    let raw = text(resource, &format!("/{name}/rawSelector"));
    if !raw.is_empty() {
        return raw.to_owned();
    }
    let terms = items(resource, &format!("/{name}/requirements")).iter().filter_map(|requirement| {
        let key = text(requirement, "/key");
        if key.contains([',', '=', '!', '\\']) {
            return None;
        }
        let [value] = items(requirement, "/values") else { return None };
        let sign = match text(requirement, "/operator") {
            "In" => "=",
            "NotIn" => "!=",
            _ => return None,
        };
        // Escaped, so that a value cannot add a term of its own.
        Some(format!("{key}{sign}{}", escape(value.as_str()?)))
    });
    terms.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_become_attributes() {
        let review = json!({"spec": {"user": "system:node:a", "groups": ["system:nodes"], "resourceAttributes": {
            "verb": "list", "resource": "pods", "version": "v1",
            "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["a"]}]},
        }}});
        let asked = attributes(&review, subject(&review));
        assert_eq!(asked.field_selector, "spec.nodeName=a");
        assert!(asked.identity.in_group("system:nodes") && asked.is_resource);
        for (key, value, wanted) in
            [("a", "x,spec.nodeName=a", r"a=x\,spec.nodeName\=a"), ("spec.nodeName=a,b", "c", "")]
        {
            let requirement = json!({"key": key, "operator": "In", "values": [value]});
            let review =
                json!({"spec": {"resourceAttributes": {"fieldSelector": {"requirements": [requirement]}}}});
            assert_eq!(attributes(&review, subject(&review)).field_selector, wanted);
        }
        let raw = json!({"spec": {"user": "u", "resourceAttributes": {"fieldSelector": {"rawSelector": "a=b,c!=d"}}}});
        assert_eq!(attributes(&raw, subject(&raw)).field_selector, "a=b,c!=d");
    }
}
