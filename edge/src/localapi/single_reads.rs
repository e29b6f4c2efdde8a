//! Reads of single objects that neither the pushed set nor a subscription keeps up to date. Each read asks the cloud;
//! without a cloud the last answer is used.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tombolo_apicore::sources::Read;
use tombolo_apicore::status::ApiError;
use tombolo_apicore::store::Store as ServedStore;
use tombolo_proto::frame::ApiReply;
use tombolo_proto::message::is_passing;
use tombolo_proto::object::ObjectKey;
use tracing::warn;

use super::callers::caller;
use super::{RETRY_AFTER_SECONDS, pass};
use crate::hub::{CallError, SharedHub};
use crate::paths;
use crate::store::{Learned, Selection, Store, why_unreadable};
use crate::subscriptions::Subscriptions;

/// Time for the cloud's answer. It is shorter than the timeouts of clients, so that they can still get the kept answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Reads single objects through the cloud.
pub(super) struct SingleReads {
    store: Store,
    subscriptions: Subscriptions,
    hub: SharedHub,
}

impl SingleReads {
    pub(super) fn new(store: Store, subscriptions: Subscriptions, hub: SharedHub) -> Self {
        Self { store, subscriptions, hub }
    }

    /// The store that has the answer.
    pub(super) async fn ask(
        &self,
        read: Read<'_>,
        selection: &Selection,
        key: &ObjectKey,
    ) -> Result<Arc<dyn ServedStore>, ApiError> {
        let call = pass::get(&paths::object(key), "application/json");
        match self.hub.api(&caller(&read.attributes.identity), call, TIMEOUT, None).await {
            Ok(reply) => self.answered(read, selection, key, reply).await,
            Err(error @ CallError::Busy) => Err(pass::unanswered(&error)),
            Err(_) => self.remembered(selection, key, "the cloud cannot be reached"),
        }
    }

    async fn answered(
        &self,
        read: Read<'_>,
        selection: &Selection,
        key: &ObjectKey,
        reply: ApiReply,
    ) -> Result<Arc<dyn ServedStore>, ApiError> {
        let resource = &read.kind.resource;
        match reply.code {
            200 => {
                let learned = Learned { key: key.clone(), body: reply.body, keep: true };
                match self.store.learn(learned).await {
                    Ok(Some(_)) => Ok(Arc::new(self.store.single_objects())),
                    Ok(None) => Err(ApiError::internal(format!(
                        "the cloud's answer about {key} is not an object, or it has more parts than this node keeps"
                    ))),
                    Err(error) => Err(ApiError::unavailable(error.to_string())),
                }
            }
            404 => {
                self.log(self.store.keep_absent(key).await);
                Err(ApiError::not_found(&resource.group, &resource.name, key.name()))
            }
            401 | 403 => {
                self.log(self.store.forget(key).await);
                Err(ApiError::forbidden(read.attributes, &reason(&reply)))
            }
            code if is_passing(code) => self.remembered(selection, key, &reason(&reply)),
            code => {
                let code = StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_GATEWAY);
                Err(ApiError::new(code, "", reason(&reply)))
            }
        }
    }

    fn log(&self, outcome: Result<(), crate::store::WriteError>) {
        if let Err(error) = outcome {
            warn!(%error, "cannot keep an answer of the cloud");
        }
    }

    /// The last answer, or else the copy of a selection that was once complete.
    fn remembered(
        &self,
        selection: &Selection,
        key: &ObjectKey,
        why: &str,
    ) -> Result<Arc<dyn ServedStore>, ApiError> {
        let unreadable = |error: String| ApiError::unavailable(error).retry_after(RETRY_AFTER_SECONDS);
        if self.store.is_kept(key).map_err(|error| unreadable(error.to_string()))? {
            return Ok(Arc::new(self.store.single_objects()));
        }
        let copy = self.subscriptions.kept(selection);
        match copy.map_err(|error| unreadable(error.to_string()))? {
            Some(subscribed) => Ok(Arc::new(subscribed)),
            None if self.store.is_unreadable(key).unwrap_or(false) => Err(unreadable(why_unreadable(key))),
            None => Err(unreadable(format!("{key} was never synced to this node, and {why}"))),
        }
    }
}

/// The message of the cloud's Status.
fn reason(reply: &ApiReply) -> String {
    pass::message(&reply.body).unwrap_or_else(|| format!("the cloud answered with code {}", reply.code))
}
