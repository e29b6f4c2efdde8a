//! Subresources and kinds that are actions instead of stored objects.

pub(super) mod binding;
pub(super) mod eviction;
pub(super) mod token;

use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use http::StatusCode;
use serde_json::{Value, json};
use tombolo_apiserve::admission::{AdmissionRequest, Operation, Warnings};
use tombolo_apiserve::backend::{Endpoint, EndpointRequest};
use tombolo_apiserve::status::ApiError;

use super::admission::Plugins;
use super::objects::text;

/// What an action answers.
type Answer = Result<(StatusCode, Value), ApiError>;

/// An action that policies and webhooks are asked about first, as about every other write. They cannot change it.
pub(super) struct Judged<E> {
    action: E,
    plugins: Arc<Plugins>,
}

impl<E> Judged<E> {
    pub(super) fn new(action: E, plugins: &Arc<Plugins>) -> Arc<Self> {
        Arc::new(Self { action, plugins: Arc::clone(plugins) })
    }
}

impl<E: Endpoint> Endpoint for Judged<E> {
    fn call(&self, mut request: EndpointRequest) -> BoxFuture<'_, Answer> {
        boxed(async move {
            let mut body = request.body.take();
            {
                let asked = &request.attributes;
                let name = if asked.name.is_empty() {
                    text(&body, "/metadata/name").to_owned()
                } else {
                    asked.name.clone()
                };
                let admission = AdmissionRequest {
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
                self.plugins.judge_action(&admission).await?;
            }
            request.body = body;
            self.action.call(request).await
        })
    }
}

/// The Status that says that an action was done.
fn success(code: StatusCode) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code.as_u16()});
    (code, status)
}

fn boxed<'a>(answer: impl Future<Output = Answer> + Send + 'a) -> BoxFuture<'a, Answer> {
    Box::pin(answer)
}
