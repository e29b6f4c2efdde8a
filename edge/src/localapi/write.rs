//! Writes of local clients: through to the cloud, as this node; what the reply says about a held object is stored
//! before the client is answered (design 9.12).

use std::time::Duration;

use futures::future::BoxFuture;
use http::StatusCode;
use tombolo_apiserve::backend::{WriteBackend, WriteReply, WriteRequest, WriteVerb};
use tombolo_apiserve::status::ApiError;
use tombolo_proto::frame::{ApiReply, ApiRequest};
use tombolo_proto::object::{ObjectKey, Resource};
use tracing::warn;

use super::RETRY_AFTER_SECONDS;
use crate::hub::{CallError, HubHandle};
use crate::store::{Learned, Store, is_pushed};

/// Time for the cloud's answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct ThroughTheCloud {
    store: Store,
    hub: HubHandle,
}

impl ThroughTheCloud {
    pub(super) fn new(store: Store, hub: HubHandle) -> Self {
        Self { store, hub }
    }

    async fn pass(&self, request: WriteRequest) -> Result<WriteReply, ApiError> {
        let key = held_key(&request);
        let call = ApiRequest {
            method: method(request.verb).to_owned(),
            path_and_query: request.path_and_query,
            content_type: request.content_type,
            accept: "application/json".to_owned(),
            body: request.body,
        };
        let reply = self.hub.api(call, TIMEOUT, None).await.map_err(|error| refused(&error))?;
        if let Some(key) = key.filter(|_| reply.code / 100 == 2) {
            let learned = Learned { key, body: reply.body.clone() };
            if let Err(error) = self.store.learn(learned).await {
                // The write is done; the cloud delivers the object as well.
                warn!(%error, "the result of a write could not be stored");
            }
        }
        answer(reply)
    }
}

impl WriteBackend for ThroughTheCloud {
    fn execute(&self, request: WriteRequest) -> BoxFuture<'_, Result<WriteReply, ApiError>> {
        Box::pin(self.pass(request))
    }

    fn decides_creation(&self) -> bool {
        true
    }
}

/// The object whose new version the reply will hold.
fn held_key(request: &WriteRequest) -> Option<ObjectKey> {
    let about = &request.attributes;
    let resource = Resource::new(&about.group, &about.version, &about.resource);
    let changes = matches!(request.verb, WriteVerb::Update | WriteVerb::Patch(_)) && !request.options.dry_run;
    let whole = matches!(about.subresource.as_str(), "" | "status");
    (changes && whole && is_pushed(&resource) && !about.name.is_empty())
        .then(|| ObjectKey::new(resource, &about.namespace, &about.name))
}

fn method(verb: WriteVerb) -> &'static str {
    match verb {
        WriteVerb::Create => "POST",
        WriteVerb::Update => "PUT",
        WriteVerb::Patch(_) => "PATCH",
        WriteVerb::Delete | WriteVerb::DeleteCollection => "DELETE",
    }
}

fn answer(reply: ApiReply) -> Result<WriteReply, ApiError> {
    let status = StatusCode::from_u16(reply.code)
        .map_err(|_| ApiError::unavailable(format!("the cloud answered with code {}", reply.code)))?;
    let is_object = status.is_success();
    Ok(WriteReply { status, body: reply.body, is_object, warnings: Vec::new() })
}

fn refused(error: &CallError) -> ApiError {
    match error {
        CallError::Offline => {
            ApiError::unavailable("the cloud cannot be reached now, and this write needs it")
                .retry_after(RETRY_AFTER_SECONDS)
        }
        CallError::TimedOut | CallError::Lost => {
            ApiError::timeout(format!("{error}; the write may have been executed"))
        }
        CallError::Refused(_) | CallError::WrongForm => {
            ApiError::unavailable(error.to_string()).retry_after(RETRY_AFTER_SECONDS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_to_try_again() {
        let offline = refused(&CallError::Offline);
        assert_eq!(offline.code, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(offline.details.unwrap().retry_after_seconds, RETRY_AFTER_SECONDS);
        assert_eq!(refused(&CallError::Lost).code, StatusCode::GATEWAY_TIMEOUT);
    }
}
