//! `pods/eviction`: a deletion that respects PodDisruptionBudgets, as kube-apiserver's `eviction.go` decides.
//!
//! The budget is charged before the pod is deleted, in a write that fails if the budget changed meanwhile. The deletion
//! is only of the pod that was checked, not of another one of its name.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::StatusCode;
use serde_json::{Value, json};
use tombolo_apicore::backend::{Endpoint, EndpointRequest};
use tombolo_apicore::status::{ApiError, Cause};
use tombolo_apicore::store::StoreError;

use super::{ActionResult, boxed, success};
use crate::admission::node_restriction;
use crate::controllers::deletion::{Deletion, Deletions};
use crate::objects::{Objects, StoredObject, core, items, member, text, timestamp, v1};
use crate::selector::selects;

/// Number of tries when others change the pod or the budget meanwhile.
const TRIES: usize = 16;

/// Maximum number of evicted pods that a budget lists until its controller has seen their deletion.
const DISRUPTED_MAX: usize = 2000;

/// Seconds after which a client retries when the budget's controller has not processed the last change.
const PROCESSED_WITHIN_SECONDS: u32 = 10;

/// Evicts pods.
pub(crate) struct Evictions {
    /// Where pods and budgets are.
    pub(crate) objects: Objects,
    /// Deletes.
    pub(crate) deletions: Arc<Deletions>,
}

/// The decision of the budgets about one pod.
enum BudgetDecision {
    /// It may be evicted in its current version: as long as it does not change, no budget counts it.
    Unchanged,
    /// It may be evicted.
    Free,
    /// The budget was changed meanwhile.
    Overtaken,
}

impl Endpoint for Evictions {
    fn call(&self, request: EndpointRequest) -> BoxFuture<'_, ActionResult> {
        boxed(self.evict(request))
    }
}

impl Evictions {
    async fn evict(&self, request: EndpointRequest) -> ActionResult {
        let (asked, eviction) = (&request.attributes, &request.body);
        let name = asked.name.as_str();
        let given = text(eviction, "/metadata/name");
        if !given.is_empty() && given != name {
            return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
        }
        let wanted = eviction.get("deleteOptions").filter(|options| options.is_object());
        let conditional =
            wanted.is_some_and(|options| options["preconditions"]["resourceVersion"].is_string());
        let tried =
            wanted.and_then(|options| options["dryRun"].as_array()).is_some_and(|dry| !dry.is_empty());
        let dry_run = request.options.dry_run || tried;
        let mut judged = None;
        for _ in 0..TRIES {
            let pod = self.objects.get(core("pods"), &asked.namespace, name);
            let pod = pod.ok_or_else(|| ApiError::not_found("", "pods", name))?;
            if *judged.get_or_insert_with(|| pod.uid.clone()) != pod.uid {
                return Err(ApiError::not_found("", "pods", name));
            }
            node_restriction::admit_eviction(asked, &pod)?;
            let decision = self.judge(&pod, dry_run).await?;
            let pinned = matches!(decision, BudgetDecision::Unchanged) && !conditional;
            if matches!(decision, BudgetDecision::Overtaken) {
                continue;
            }
            let deletion = Deletion {
                options: options(wanted, &pod, pinned),
                identity: asked.identity.clone(),
                dry_run,
            };
            match self.deletions.delete(&pod.key, deletion).await {
                Err(error) if pinned && error.code == StatusCode::CONFLICT => {}
                outcome => return outcome.map(|()| success(StatusCode::CREATED)),
            }
        }
        let why = "the pod or its disruption budget changes too often";
        Err(ApiError::conflict("", "pods", name, why))
    }

    /// Decides about a pod. If a budget covers it and allows a disruption, one is charged; if it allows none, the
    /// eviction is refused.
    async fn judge(&self, pod: &StoredObject, dry_run: bool) -> Result<BudgetDecision, ApiError> {
        match pod.text("/status/phase") {
            "Succeeded" | "Failed" => return Ok(BudgetDecision::Free),
            _ if pod.is_terminating() => return Ok(BudgetDecision::Free),
            // It may be running by the time of the deletion.
            "Pending" => return Ok(BudgetDecision::Unchanged),
            _ => {}
        }
        let budgets = self.objects.list(&v1("policy", "poddisruptionbudgets"), Some(pod.key.namespace()));
        let mut over = budgets.filter(|budget| covers(&budget.value, &pod.value));
        match (over.next(), over.next()) {
            (None, _) => Ok(BudgetDecision::Free),
            (Some(budget), None) if goes_without(&budget.value, &pod.value) => Ok(BudgetDecision::Unchanged),
            (Some(budget), None) => self.spend(budget, pod, dry_run).await,
            _ => Err(ApiError::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            )),
        }
    }

    /// Charges one disruption to a budget, and records the pod in it.
    async fn spend(
        &self,
        mut budget: StoredObject,
        pod: &StoredObject,
        dry_run: bool,
    ) -> Result<BudgetDecision, ApiError> {
        let left = allowed(&budget)?;
        if dry_run {
            return Ok(BudgetDecision::Free);
        }
        let status = member(&mut budget.value, "status");
        status.insert("disruptionsAllowed".into(), json!(left - 1));
        let disrupted = member(&mut budget.value["status"], "disruptedPods");
        disrupted.insert(pod.key.name().to_owned(), json!(timestamp(jiff::Timestamp::now())));
        match self.objects.replace(&budget).await {
            Ok(_) => Ok(BudgetDecision::Free),
            Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => Ok(BudgetDecision::Overtaken),
            Err(error) => Err(error.into()),
        }
    }
}

/// The options of the deletion, with the UID of the checked pod as precondition, and its revision if it is pinned.
fn options(wanted: Option<&Value>, pod: &StoredObject, pinned: bool) -> Value {
    let mut options = wanted.cloned().unwrap_or_else(|| json!({}));
    let conditions = member(&mut options, "preconditions");
    let unset = |conditions: &serde_json::Map<String, Value>, name: &str| {
        conditions.get(name).is_none_or(Value::is_null)
    };
    if unset(conditions, "uid") {
        conditions.insert("uid".into(), json!(pod.uid.as_str()));
    }
    if pinned && unset(conditions, "resourceVersion") {
        conditions.insert("resourceVersion".into(), json!(pod.revision.to_string()));
    }
    options
}

/// A budget without a selector selects nothing.
fn covers(budget: &Value, pod: &Value) -> bool {
    budget.pointer("/spec/selector").is_some_and(|selector| selects(selector, pod))
}

/// Whether a pod that is not ready may be evicted without a charge.
fn goes_without(budget: &Value, pod: &Value) -> bool {
    let ready = items(pod, "/status/conditions")
        .iter()
        .any(|condition| text(condition, "/type") == "Ready" && text(condition, "/status") == "True");
    let (healthy, wanted) = (number(budget, "currentHealthy"), number(budget, "desiredHealthy"));
    let always = text(budget, "/spec/unhealthyPodEvictionPolicy") == "AlwaysAllow";
    !ready && (always || (healthy >= wanted && wanted > 0))
}

fn number(budget: &Value, field: &str) -> i64 {
    budget.get("status").and_then(|status| status.get(field)).and_then(Value::as_i64).unwrap_or_default()
}

/// How many disruptions a budget allows.
///
/// # Errors
/// 429 when it allows none or its last change is not processed yet, 403 when its status is invalid.
fn allowed(budget: &StoredObject) -> Result<i64, ApiError> {
    let name = budget.key.name();
    let refused = |why: &str, seconds: u32| {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        let refusal = ApiError::too_many_requests(message).retry_after(seconds);
        Err(refusal.with_cause(Cause::new("DisruptionBudget", "", why)))
    };
    let generation = budget.value.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default();
    if number(&budget.value, "observedGeneration") < generation {
        let why = format!("The disruption budget {name} is still being processed by the server.");
        return refused(&why, PROCESSED_WITHIN_SECONDS);
    }
    let forbidden = |why: &str| Err(ApiError::forbidden_object("policy", "poddisruptionbudgets", name, why));
    let left = number(&budget.value, "disruptionsAllowed");
    let disrupted = budget.value.pointer("/status/disruptedPods").and_then(Value::as_object);
    match left {
        ..0 => forbidden("pdb disruptions allowed is negative"),
        _ if disrupted.is_some_and(|pods| pods.len() > DISRUPTED_MAX) => {
            forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller")
        }
        0 => {
            let (wanted, healthy) =
                (number(&budget.value, "desiredHealthy"), number(&budget.value, "currentHealthy"));
            let why = format!(
                "The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently"
            );
            refused(&why, 1)
        }
        left => Ok(left),
    }
}
