//! May this node, or this local client of a node, list and watch a resource? Asked of the API server, remembered for
//! five minutes (design 9.4).

use std::time::Duration;

use dashmap::DashMap;
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;
use tombolo_proto::NodeId;
use tombolo_proto::frame::Subscribe;

use super::subscriptions::Closed;
use crate::kube::{ApiCall, Caller, Kube};

/// How long a permission is believed.
pub(super) const REVIEW_INTERVAL: Duration = Duration::from_secs(300);

/// Group of the nodes that are connected here. The API server gives it to nobody: it is named in questions only, so
/// what is granted to it reaches edge nodes through this hub and nobody else.
pub const EDGE_NODES: &str = "tombolo:edge-nodes";

/// Permissions in memory; all are asked for again when there are more.
const REMEMBERED_MAX: usize = 100_000;

/// Asks the API server about rights.
#[derive(Clone)]
pub struct Access {
    kube: Kube,
    allowed: std::sync::Arc<DashMap<u128, Instant>>,
}

impl Access {
    /// Access control by this cluster.
    #[must_use]
    pub fn new(kube: Kube) -> Self {
        Self { kube, allowed: std::sync::Arc::default() }
    }

    /// Whether the subscription's owner may both list and watch what it selects. Refusals are not remembered: a
    /// right that was just granted works at the next attempt.
    ///
    /// # Errors
    /// 403 with the API server's reason, 401 for an unknown token, 503 when the API server does not answer.
    pub(super) async fn check(&self, node: &NodeId, subscribe: &Subscribe) -> Result<(), Closed> {
        let question = digest(node, subscribe);
        if self.allowed.get(&question).is_some_and(|until| Instant::now() < *until) {
            return Ok(());
        }
        let identity = match &subscribe.caller_token {
            None => {
                let groups = ["system:nodes", "system:authenticated", EDGE_NODES];
                json!({"user": format!("system:node:{node}"), "groups": groups})
            }
            Some(token) => self.review_token(token).await?,
        };
        for verb in ["list", "watch"] {
            self.review(&identity, verb, subscribe).await?;
        }
        if self.allowed.len() >= REMEMBERED_MAX {
            self.allowed.clear();
        }
        self.allowed.insert(question, Instant::now() + REVIEW_INTERVAL);
        Ok(())
    }

    /// Forgets what was allowed, so that the next check asks.
    pub(super) fn forget(&self, node: &NodeId, subscribe: &Subscribe) {
        self.allowed.remove(&digest(node, subscribe));
    }

    async fn review(&self, identity: &Value, verb: &str, subscribe: &Subscribe) -> Result<(), Closed> {
        let resource = &subscribe.resource;
        let mut attributes = json!({
            "verb": verb, "group": &*resource.group, "version": &*resource.version, "resource": &*resource.name,
            "namespace": subscribe.namespace
        });
        // As the API server reads it: a right to one name is enough for a list of this name.
        let name = subscribe.field_selector.strip_prefix("metadata.name=");
        if let Some(name) = name.filter(|name| !name.contains(',')) {
            attributes["name"] = json!(name);
        }
        if !subscribe.field_selector.is_empty() {
            attributes["fieldSelector"] = json!({"rawSelector": subscribe.field_selector});
        }
        if !subscribe.label_selector.is_empty() {
            attributes["labelSelector"] = json!({"rawSelector": subscribe.label_selector});
        }
        let mut spec = identity.clone();
        spec["resourceAttributes"] = attributes;
        let review =
            self.post("authorization.k8s.io/v1/subjectaccessreviews", "SubjectAccessReview", &spec).await?;
        if review.pointer("/status/allowed") == Some(&Value::Bool(true)) {
            return Ok(());
        }
        let user = spec["user"].as_str().unwrap_or_default();
        let why = review.pointer("/status/reason").and_then(Value::as_str).unwrap_or_default();
        Err(Closed::new(403, &format!("{user} may not {verb} {resource} here. {why}")))
    }

    /// Who a bearer token belongs to, as the `spec` of a SubjectAccessReview names it.
    async fn review_token(&self, token: &str) -> Result<Value, Closed> {
        let spec = json!({ "token": token });
        let review = self.post("authentication.k8s.io/v1/tokenreviews", "TokenReview", &spec).await?;
        let user = review.pointer("/status/user");
        match user {
            Some(user) if review.pointer("/status/authenticated") == Some(&Value::Bool(true)) => Ok(json!({
                "user": user.get("username"), "groups": user.get("groups"), "uid": user.get("uid"),
                "extra": user.get("extra")
            })),
            _ => Err(Closed::new(401, "the cluster does not know this token")),
        }
    }

    async fn post(&self, path: &str, kind: &str, spec: &Value) -> Result<Value, Closed> {
        let version = path.rsplit_once('/').map_or(path, |(version, _)| version);
        let review = json!({"apiVersion": version, "kind": kind, "spec": spec});
        let call = ApiCall::json(Method::POST, format!("/apis/{path}"), &review);
        let answer = self.kube.call(Caller::Own, call).await;
        let answer = answer.map_err(|error| Closed::new(503, &error.to_string()))?;
        if answer.is_success() {
            return Ok(answer.json());
        }
        Err(Closed::new(503, &format!("cannot ask for rights: {}", answer.message())))
    }
}

/// Names a question without keeping its token.
fn digest(node: &NodeId, subscribe: &Subscribe) -> u128 {
    let resource = &subscribe.resource;
    let token = subscribe.caller_token.as_deref().unwrap_or_default();
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    for part in [
        node.as_str(),
        &resource.group,
        &resource.version,
        &resource.name,
        &subscribe.namespace,
        &subscribe.label_selector,
        &subscribe.field_selector,
        token,
    ] {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.digest128()
}
