//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: before an object is stored, the configured webhooks are
//! called as kube-apiserver calls them.

mod caller;
mod configuration;
mod matching;
mod review;
mod validation;

use std::sync::Arc;

use futures::future::join_all;
use serde_json::Value;
use tombolo_apicore::admission::AdmissionRequest;
use tombolo_apicore::kinds::Kinds;
use tombolo_apicore::patch::json_patch;
use tombolo_apicore::registry::Registry;
use tombolo_apicore::status::ApiError;
use tombolo_cel::Authorize;

use self::caller::Caller;
pub(crate) use self::configuration::Index;
use self::configuration::Webhook;
use self::matching::Invocation;
use self::review::ReviewOutcome;
use crate::objects::{Objects, text};

/// Calls webhooks for requests.
pub(crate) struct Webhooks {
    index: Index,
    objects: Objects,
    registry: Registry,
    caller: Caller,
    rights: Arc<dyn Authorize>,
}

/// Why a webhook did not let a request pass.
enum Failure {
    /// The call failed, or the response was invalid.
    Call(String),
    /// The webhook refused the request, or does not support dry runs.
    Refused(ApiError),
}

/// The effect of the mutating webhooks.
#[derive(Debug, Default)]
pub(super) struct Mutations {
    /// Whether the object changed.
    pub(super) changed: bool,
    /// Names of webhooks to call again when other webhooks change the object.
    reinvoked: Vec<String>,
}

impl Webhooks {
    /// Calls the webhooks of `index`. Namespaces and Services are read from `objects`, and `rights` decides the
    /// authorization checks in match conditions.
    pub(crate) fn new(
        index: Index,
        objects: Objects,
        registry: Registry,
        rights: Arc<dyn Authorize>,
    ) -> Self {
        let caller = Caller::new(objects.clone());
        Self { index, objects, registry, caller, rights }
    }

    /// Calls the mutating webhooks, one after the other.
    ///
    /// # Errors
    /// The refusal of a webhook; 500 when a call fails and the webhook's failure policy is `Fail`.
    pub(super) async fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<Mutations, ApiError> {
        self.mutate_with(request, |_| true).await
    }

    /// Calls the webhooks again that are to be reinvoked after changes.
    ///
    /// # Errors
    /// As [`Self::mutate`].
    pub(super) async fn mutate_again(
        &self,
        request: &mut AdmissionRequest<'_>,
        before: &Mutations,
    ) -> Result<(), ApiError> {
        self.mutate_with(request, |name| before.reinvoked.iter().any(|own| own == name)).await.map(|_| ())
    }

    async fn mutate_with(
        &self,
        request: &mut AdmissionRequest<'_>,
        asked: impl Fn(&str) -> bool,
    ) -> Result<Mutations, ApiError> {
        let mut mutations = Mutations::default();
        if matching::is_exempt(request.kind) {
            return Ok(mutations);
        }
        let catalog = self.registry.catalog();
        for webhook in self.index.mutating().into_iter().filter(|webhook| asked(&webhook.name)) {
            let invocation = self.invocation(&webhook, request, &catalog.kinds).await?;
            let Some(invocation) = invocation else { continue };
            if webhook.is_reinvoked() {
                mutations.reinvoked.push(webhook.name.clone());
            }
            let outcome = match self.ask(&invocation, request, true).await {
                Ok(outcome) => outcome,
                Err(failure) => {
                    pass(&invocation, failure)?;
                    continue;
                }
            };
            outcome.warnings.into_iter().for_each(|warning| request.warnings.add(warning));
            if !outcome.patch.is_empty() {
                mutations.changed |= apply(&catalog.kinds, &invocation, request, &outcome.patch)?;
            }
        }
        Ok(mutations)
    }

    /// Calls all validating webhooks for the final object, concurrently.
    ///
    /// # Errors
    /// As [`Self::mutate`].
    pub(super) async fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), ApiError> {
        validation::admit(request).await?;
        if matching::is_exempt(request.kind) {
            return Ok(());
        }
        let catalog = self.registry.catalog();
        let mut invocations = Vec::new();
        for webhook in self.index.validating() {
            invocations.extend(self.invocation(&webhook, request, &catalog.kinds).await?);
        }
        let outcomes =
            join_all(invocations.iter().map(|invocation| self.ask(invocation, request, false))).await;
        for (invocation, outcome) in invocations.iter().zip(outcomes) {
            match outcome {
                Ok(outcome) => outcome.warnings.into_iter().for_each(|warning| request.warnings.add(warning)),
                Err(failure) => pass(invocation, failure)?,
            }
        }
        Ok(())
    }

    /// Whether a webhook is called for a request, and in which version.
    async fn invocation(
        &self,
        webhook: &Arc<Webhook>,
        request: &AdmissionRequest<'_>,
        kinds: &Kinds,
    ) -> Result<Option<Invocation>, ApiError> {
        let Some(invocation) = matching::invocation(webhook, request, &self.objects, kinds)? else {
            return Ok(None);
        };
        match webhook.match_conditions.hold(request, &self.objects, &self.rights).await? {
            Ok(holds) => Ok(holds.then_some(invocation)),
            Err(_) if webhook.fails_open() => Ok(None),
            Err(why) => {
                let resource = &request.kind.resource;
                Err(ApiError::forbidden_object(&resource.group, &resource.name, request.name, &why))
            }
        }
    }

    async fn ask(
        &self,
        invocation: &Invocation,
        request: &AdmissionRequest<'_>,
        mutating: bool,
    ) -> Result<ReviewOutcome, Failure> {
        let webhook = &invocation.webhook;
        if request.dry_run && !webhook.allows_dry_run() {
            let message = format!("admission webhook {:?} does not support dry run", webhook.name);
            return Err(Failure::Refused(ApiError::bad_request(message)));
        }
        let uid = uuid::Uuid::new_v4().to_string();
        let question = review::question(&uid, invocation, request);
        let (version, question) = question.ok_or_else(|| {
            let why = "webhook does not accept known AdmissionReview versions (v1, v1beta1)";
            Failure::Call(format!("could not create admission objects: {why}"))
        })?;
        let answer = self.caller.ask(&webhook.client_config, webhook.timeout(), &question).await;
        let answer = answer.map_err(Failure::Call)?;
        let outcome = review::outcome(webhook, version, &uid, mutating, &answer).map_err(Failure::Call)?;
        match outcome.refusal {
            Some(refusal) => Err(Failure::Refused(refusal)),
            None => Ok(outcome),
        }
    }
}

/// Ignores a failed call if the webhook's failure policy is `Ignore`.
fn pass(invocation: &Invocation, failure: Failure) -> Result<(), ApiError> {
    let webhook = &invocation.webhook;
    match failure {
        Failure::Refused(refusal) => Err(refusal),
        Failure::Call(why) if webhook.fails_open() => {
            tracing::warn!(webhook = webhook.name, why, "a webhook call failed; continuing without it");
            Ok(())
        }
        Failure::Call(why) => {
            Err(ApiError::internal(format!("failed calling webhook {:?}: {why}", webhook.name)))
        }
    }
}

/// Applies a webhook's patch. Returns whether the object changed.
fn apply(
    kinds: &Kinds,
    invocation: &Invocation,
    request: &mut AdmissionRequest<'_>,
    patch: &[u8],
) -> Result<bool, ApiError> {
    let name = &invocation.webhook.name;
    let subresource = request.attributes.subresource.as_str();
    let carried = kinds.carried(request.kind, subresource);
    let (from, to) = carried.as_ref().map_or((request.kind, &invocation.kind), |own| (own, own));
    let Some(object) = request.object.as_deref_mut() else {
        return Err(ApiError::internal(format!(
            "admission webhook {name:?} attempted to modify the object, which is not supported for this operation"
        )));
    };
    let shown = review::shown(from, to, subresource, object);
    let patched = json_patch(&shown, patch).map_err(|error| ApiError::internal(error.to_string()))?;
    if patched == shown {
        return Ok(false);
    }
    for field in ["/metadata/name", "/metadata/namespace"] {
        if text(&patched, field) != text(&shown, field) {
            return Err(ApiError::internal(format!(
                "admission webhook {name:?} attempted to rename the object"
            )));
        }
    }
    if subresource == "scale" {
        tombolo_apicore::scale::put(from, object, &patched)?;
        return Ok(true);
    }
    let decoded = to.decode_value(patched).map_err(|error| ApiError::internal(error.to_string()))?;
    let mut new: Value = decoded.object;
    if from.resource != to.resource {
        to.to_storage(&mut new);
        from.from_storage(&mut new);
    }
    from.default(&mut new);
    let changed = new != *object;
    *object = new;
    Ok(changed)
}

#[cfg(test)]
mod tests;
