//! `pods/eviction`: a deletion that respects PodDisruptionBudgets.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::StatusCode;
use serde_json::Value;
use tombolo_apiserve::backend::{Endpoint, EndpointRequest};
use tombolo_apiserve::status::{ApiError, Cause};

use super::{Answer, boxed, success};
use crate::embedded::admission::node_restriction;
use crate::embedded::controllers::deletion::{Deletion, Deletions};
use crate::embedded::objects::{Object, Objects, core, text, v1};
use crate::embedded::selector::selects;

/// Evicts pods.
pub(in crate::embedded) struct Evictions {
    /// Where pods and budgets are.
    pub(in crate::embedded) objects: Objects,
    /// Deletes.
    pub(in crate::embedded) deletions: Arc<Deletions>,
}

impl Endpoint for Evictions {
    fn call(&self, request: EndpointRequest) -> BoxFuture<'_, Answer> {
        boxed(self.evict(request))
    }
}

impl Evictions {
    async fn evict(&self, request: EndpointRequest) -> Answer {
        let (asked, eviction) = (&request.attributes, &request.body);
        let name = asked.name.as_str();
        let given = text(eviction, "/metadata/name");
        if !given.is_empty() && given != name {
            return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
        }
        node_restriction::admit_eviction(&self.objects, asked)?;
        let pod = self.objects.get(core("pods"), &asked.namespace, name);
        let pod = pod.ok_or_else(|| ApiError::not_found("", "pods", name))?;
        let finished = matches!(pod.text("/status/phase"), "Succeeded" | "Failed" | "Pending");
        if !finished && !pod.is_terminating() {
            self.check_budgets(&pod)?;
        }
        let deletion = Deletion {
            options: eviction.get("deleteOptions").cloned().unwrap_or(Value::Null),
            identity: asked.identity.clone(),
            dry_run: request.options.dry_run,
        };
        self.deletions.delete(&pod.key, deletion).await?;
        Ok(success(StatusCode::CREATED))
    }

    /// A pod under a budget that allows no disruption stays.
    fn check_budgets(&self, pod: &Object) -> Result<(), ApiError> {
        let budgets = self.objects.list(&v1("policy", "poddisruptionbudgets"), Some(pod.key.namespace()));
        let over: Vec<&Object> = budgets.iter().filter(|budget| covers(&budget.value, &pod.value)).collect();
        match over.as_slice() {
            [] => Ok(()),
            [budget] => {
                let allowed = budget.value.pointer("/status/disruptionsAllowed").and_then(Value::as_i64);
                if allowed.unwrap_or_default() > 0 {
                    return Ok(());
                }
                let name = budget.key.name();
                let number = |field: &str| {
                    budget
                        .value
                        .pointer(&format!("/status/{field}"))
                        .and_then(Value::as_i64)
                        .unwrap_or_default()
                };
                let why = format!(
                    "The disruption budget {name} needs {} healthy pods and has {} currently",
                    number("desiredHealthy"),
                    number("currentHealthy")
                );
                let refusal = ApiError::too_many_requests(
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                );
                Err(refusal.with_cause(Cause::new("DisruptionBudget", "", &why)))
            }
            _ => Err(ApiError::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            )),
        }
    }
}

/// A budget without a selector selects nothing.
fn covers(budget: &Value, pod: &Value) -> bool {
    budget.pointer("/spec/selector").is_some_and(|selector| selects(selector, pod))
}
