//! Subresources and kinds that are actions instead of stored objects.

pub(super) mod binding;
pub(super) mod eviction;
pub(super) mod token;

use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use http::StatusCode;
use serde_json::{Value, json};
use tombolo_apicore::admission::{AdmissionRequest, Operation, Warnings};
use tombolo_apicore::backend::{Endpoint, EndpointRequest};
use tombolo_apicore::registry::Registry;
use tombolo_apicore::status::ApiError;

use super::admission::Plugins;
use super::objects::text;

/// The result of an action.
type ActionResult = Result<(StatusCode, Value), ApiError>;

/// An action that passes policies and webhooks first, as every other write does.
pub(super) struct Judged<E> {
    action: E,
    plugins: Arc<Plugins>,
    registry: Registry,
}

impl<E> Judged<E> {
    pub(super) fn new(action: E, plugins: &Arc<Plugins>, registry: &Registry) -> Arc<Self> {
        Arc::new(Self { action, plugins: Arc::clone(plugins), registry: registry.clone() })
    }

    /// The body of an action, decoded as its type. A body of another type is refused before policies and webhooks run.
    /// A missing body counts as an empty object.
    fn read(&self, request: &EndpointRequest) -> Result<Value, ApiError> {
        let mut body = request.body.clone();
        let kinds = &self.registry.catalog().kinds;
        let Some(kind) = kinds.carried(&request.kind, &request.attributes.subresource) else {
            return Ok(body);
        };
        // The older version of Eviction has the same fields.
        if text(&body, "/apiVersion") == "policy/v1beta1" {
            body["apiVersion"] = kind.api_version().into();
        }
        let decoded = kind.decode_value(body);
        decoded.map(|decoded| decoded.object).map_err(|error| ApiError::bad_request(error.to_string()))
    }
}

impl<E: Endpoint> Endpoint for Judged<E> {
    fn call(&self, mut request: EndpointRequest) -> BoxFuture<'_, ActionResult> {
        boxed(async move {
            let mut body = self.read(&request)?;
            let asked = &request.attributes;
            let named = if asked.name.is_empty() { text(&body, "/metadata/name") } else { &asked.name };
            let name = named.to_owned();
            let mut admission = AdmissionRequest {
                attributes: asked,
                operation: Operation::Create,
                kind: &request.kind,
                namespace: &asked.namespace,
                name: &name,
                object: Some(&mut body),
                old: None,
                dry_run: request.options.dry_run,
                warnings: Warnings::default(),
            };
            self.plugins.judge_action(&mut admission).await?;
            request.body = body;
            self.action.call(request).await
        })
    }
}

/// The Status of a successful action.
fn success(code: StatusCode) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code.as_u16()});
    (code, status)
}

fn boxed<'a>(answer: impl Future<Output = ActionResult> + Send + 'a) -> BoxFuture<'a, ActionResult> {
    Box::pin(answer)
}
