//! Finds out which form of impersonation the API server supports (docs/reference/kubernetes.md#impersonation).

use std::sync::atomic::{AtomicU8, Ordering};

use http::Method;
use serde_json::{Value, json};
use tombolo_proto::NodeId;

use super::{ApiCall, CallError, Caller, Kube};

const UNKNOWN: u8 = 0;
const CONSTRAINED: u8 = 1;
const LEGACY: u8 = 2;

/// A form of impersonation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImpersonationForm {
    /// Constrained impersonation (Kubernetes 1.36): the right covers only nodes, and only the user name is sent.
    Constrained,
    /// The verb `impersonate` on users and groups: the node's group is sent in addition to its user name.
    Legacy,
}

/// The form of impersonation in use.
#[derive(Debug, Default)]
pub struct Impersonation(AtomicU8);

impl Impersonation {
    /// The form that the last successful probe has found; none before the first success.
    #[must_use]
    pub fn form(&self) -> Option<ImpersonationForm> {
        match self.0.load(Ordering::Relaxed) {
            CONSTRAINED => Some(ImpersonationForm::Constrained),
            LEGACY => Some(ImpersonationForm::Legacy),
            _ => None,
        }
    }

    /// Whether the node's group must be sent in addition to its user name.
    pub(super) fn needs_group(&self) -> bool {
        self.form() == Some(ImpersonationForm::Legacy)
    }

    fn set(&self, form: u8) {
        self.0.store(form, Ordering::Relaxed);
    }
}

/// Name of a Node that need not exist, because only the identity is checked.
const PROBE_NODE: &str = "tombolo-probe";

impl Kube {
    /// Finds out which form of impersonation works, by asking the API server for the identity of a probe.
    ///
    /// With constrained impersonation the API server adds the node's group by itself. An older server also accepts the
    /// user name alone, but then the node has no group and the Node authorizer denies everything. The probe tells these
    /// cases apart.
    ///
    /// # Errors
    /// [`CallError::Unreachable`], or [`CallError::Invalid`] when neither form is permitted. The text contains the API
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
            "cloudcore may not impersonate nodes: apply deploy/cloudcore/20-impersonation.yaml, or \
             deploy/optional/legacy-impersonation.yaml where the API server has no constrained impersonation \
             ({reasons})"
        )))
    }

    /// None when the probe was recognised as a node; the reason otherwise.
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
