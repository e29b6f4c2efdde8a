//! Which form of impersonation the API server takes (design 9.2).

use std::sync::atomic::{AtomicU8, Ordering};

use http::Method;
use serde_json::{Value, json};
use tombolo_proto::NodeId;

use super::{ApiCall, CallError, Caller, Kube};

const UNKNOWN: u8 = 0;
const CONSTRAINED: u8 = 1;
const LEGACY: u8 = 2;

/// The form of impersonation in use.
#[derive(Debug, Default)]
pub struct Impersonation(AtomicU8);

impl Impersonation {
    /// Whether a probe has succeeded.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed) != UNKNOWN
    }

    /// Whether the node's group has to be named beside its user name.
    pub(super) fn needs_group(&self) -> bool {
        self.0.load(Ordering::Relaxed) == LEGACY
    }

    fn set(&self, form: u8) {
        self.0.store(form, Ordering::Relaxed);
    }
}

/// Name that no Node needs to have: only the identity is looked at.
const PROBE_NODE: &str = "tombolo-probe";

impl Kube {
    /// Finds out which form of impersonation works, by asking the API server who a probe is.
    ///
    /// Constrained impersonation gives the node's group by itself. An older server takes the user name alone too,
    /// but then the node has no group and the Node authorizer refuses everything: the probe tells them apart.
    ///
    /// # Errors
    /// [`CallError::Unreachable`], or [`CallError::Invalid`] when neither form is permitted: the text has the API
    /// server's reasons.
    pub async fn probe_impersonation(&self) -> Result<(), CallError> {
        let node = NodeId::parse(PROBE_NODE).map_err(|error| CallError::Invalid(error.to_string()))?;
        let mut reasons = Vec::new();
        for form in [CONSTRAINED, LEGACY] {
            self.impersonation.set(form);
            match self.probe(&node).await {
                Ok(None) => return Ok(()),
                Ok(Some(reason)) => reasons.push(reason),
                Err(error) => {
                    self.impersonation.set(UNKNOWN);
                    return Err(error);
                }
            }
        }
        self.impersonation.set(UNKNOWN);
        let reasons = reasons.join("; ");
        Err(CallError::Invalid(format!(
            "cloudcore may not impersonate nodes: apply the ClusterRoles of deploy/rbac.yaml ({reasons})"
        )))
    }

    /// None when the probe was seen as a node; the reason otherwise.
    async fn probe(&self, node: &NodeId) -> Result<Option<String>, CallError> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let answer = self.call(Caller::Node(node), ApiCall::json(Method::POST, path, &review)).await?;
        if !answer.is_success() {
            return Ok(Some(answer.message()));
        }
        let review = answer.json();
        let groups = review.pointer("/status/userInfo/groups").and_then(Value::as_array);
        let is_node = groups.is_some_and(|groups| groups.iter().any(|group| group == "system:nodes"));
        Ok((!is_node).then(|| "the impersonated node is not in group system:nodes".to_owned()))
    }
}
