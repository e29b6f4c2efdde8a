//! Subresources and kinds that are actions instead of stored objects.

pub(super) mod binding;
pub(super) mod eviction;
pub(super) mod token;

use std::future::Future;

use futures::future::BoxFuture;
use http::StatusCode;
use serde_json::{Value, json};
use tombolo_apiserve::status::ApiError;

/// What an action answers.
type Answer = Result<(StatusCode, Value), ApiError>;

/// The Status that says that an action was done.
fn success(code: StatusCode) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code.as_u16()});
    (code, status)
}

fn boxed<'a>(answer: impl Future<Output = Answer> + Send + 'a) -> BoxFuture<'a, Answer> {
    Box::pin(answer)
}
