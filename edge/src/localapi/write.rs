//! Writes of local clients. They are forwarded to the cloud, as this node or with the caller's own token. If the reply
//! contains an object that this node holds, it is stored before the client is answered
//! (docs/edge-node.md#what-the-local-api-answers). Objects that only this node writes are accepted without a cloud
//! connection too.

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::StatusCode;
use tombolo_apicore::backend::{WriteBackend, WriteReply, WriteRequest, WriteVerb};
use tombolo_apicore::status::ApiError;
use tombolo_proto::frame::{ApiReply, ApiRequest};
use tombolo_proto::object::ObjectKey;
use tracing::warn;

use super::callers::{caller, caller_token};
use super::offline_writes::{self, OwnWrites};
use super::revision::Based;
use super::{Writer, pass};
use crate::hub::CallError;
use crate::store::splice::facts;
use crate::store::trust;
use crate::store::{Learned, ReportKind, Store, is_pushed};

/// Time for the cloud's answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Forwards writes to the cloud.
pub(super) struct CloudWrites {
    store: Store,
    writer: Writer,
    own: OwnWrites,
}

/// Why the cloud has not executed a write.
enum Unexecuted {
    /// It was refused.
    Refused(ApiError),
    /// The cloud has not answered.
    Unanswered(CallError),
}

impl From<ApiError> for Unexecuted {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

impl CloudWrites {
    pub(super) fn new(store: Store, writer: Writer) -> Self {
        let own = OwnWrites::new(store.clone());
        Self { store, writer, own }
    }

    async fn execute_any(&self, request: WriteRequest) -> Result<WriteReply, ApiError> {
        let Some(kind) = offline_writes::kind(&self.writer.node, &request) else {
            return match self.pass(&request, false).await {
                Ok(reply) => Ok(reply),
                Err(Unexecuted::Refused(error)) => Err(error),
                Err(Unexecuted::Unanswered(error)) => Err(self.unanswered(&request, &error)),
            };
        };
        self.execute_own(request, kind).await
    }

    /// A write that this node executes itself when the cloud cannot be reached.
    async fn execute_own(&self, request: WriteRequest, kind: ReportKind) -> Result<WriteReply, ApiError> {
        let speaks_for_node = kind == ReportKind::Lease || request.attributes.resource == "nodes";
        if speaks_for_node {
            self.writer.kubelet.wrote();
        }
        if self.own.is_behind(&request, kind)? {
            return self.own.accept(request, Some(kind)).await;
        }
        if let Some(micros) = self.own.renewal(&request, kind) {
            match self.writer.hub.own().lease_renewed(micros, TIMEOUT).await {
                Ok(200) => return self.own.accept(request, None).await,
                Err(_) => return self.own.accept(request, Some(kind)).await,
                // Any other code is handled by sending the whole request.
                Ok(_) => {}
            }
        }
        match self.pass(&request, kind.keeps_answer()).await {
            Ok(reply) => Ok(reply),
            Err(Unexecuted::Refused(error)) => Err(error),
            Err(Unexecuted::Unanswered(CallError::Offline | CallError::Lost | CallError::TimedOut)) => {
                self.own.accept(request, Some(kind)).await
            }
            Err(Unexecuted::Unanswered(error)) => Err(pass::unanswered(&error)),
        }
    }

    /// The error for a client whose write the cloud has not answered.
    fn unanswered(&self, request: &WriteRequest, error: &CallError) -> ApiError {
        // A kubelet that restarts registers its node again, and continues if the Node already exists.
        let registers = request.verb == WriteVerb::Create
            && request.attributes.resource == "nodes"
            && request.attributes.group.is_empty();
        let resource = &request.kind.resource;
        let named = || Some(facts(&request.body).ok()?.name);
        let present = |name: &String| {
            let key = ObjectKey::new(request.kind.storage.clone(), "", name);
            self.store.visible(&key).ok().flatten().is_some()
        };
        match named().filter(|name| registers && present(name)) {
            Some(name) => ApiError::already_exists(&resource.group, &resource.name, &name),
            None => pass::unanswered(error),
        }
    }

    async fn pass(&self, request: &WriteRequest, keep: bool) -> Result<WriteReply, Unexecuted> {
        let key = key(request);
        let body = self.for_the_cloud(request, key.as_ref())?;
        let query = request.path_and_query.split_once('?').map_or("", |(_, query)| query);
        let path_and_query = pass::path_and_query(&request.attributes.path, query);
        let call = ApiRequest {
            content_type: request.content_type.clone(),
            accept: "application/json".to_owned(),
            body,
            ..ApiRequest::new(method(request.verb), path_and_query)
        };
        let token = caller_token(&request.attributes, request.authorization.as_deref()).map(str::to_owned);
        let reply = self.writer.hub.api(&caller(&request.attributes.identity), call, TIMEOUT, token).await;
        let mut reply = reply.map_err(Unexecuted::Unanswered)?;
        if reply.code / 100 == 2 && brings_object(request) {
            self.take_over(request, &mut reply, keep).await;
        }
        Ok(answer(reply)?)
    }

    /// The body with the cloud's resource version in place of the local one
    /// (docs/edge-node.md#what-the-local-api-answers).
    fn for_the_cloud(&self, request: &WriteRequest, key: Option<&ObjectKey>) -> Result<Bytes, ApiError> {
        let body = match key {
            Some(key) if trust::is_root_ca(key) => trust::plain(&request.body),
            _ => request.body.clone(),
        };
        let based = Based::read(&body);
        let (Some(based), Some(key)) = (based, key) else { return Ok(body) };
        let held = self.store.revisions(key).map_err(|error| ApiError::unavailable(error.to_string()))?;
        // Without a held object the client's version comes from the cloud.
        let Some((local, cloud)) = held else { return Ok(body) };
        // The cloud's version of objects kept across an epoch change is unknown, and zero would match any version.
        let unknown = cloud.0 == 0 && is_pushed(key.resource());
        if unknown || based.revision != local.to_string() {
            let resource = &request.kind.resource;
            return Err(ApiError::modified(&resource.group, &resource.name, key.name()));
        }
        Ok(based.on(&cloud.0.to_string()))
    }

    /// Stores the object of a reply, and replaces the reply's body with the object as local clients see it.
    async fn take_over(&self, request: &WriteRequest, reply: &mut ApiReply, keep: bool) {
        let Ok(facts) = facts(&reply.body) else { return };
        let key = ObjectKey::new(request.kind.storage.clone(), &facts.namespace, &facts.name);
        match self.store.learn(Learned { key, body: reply.body.clone(), keep }).await {
            Ok(Some(local)) => reply.body = local,
            Ok(None) => {}
            // The write succeeded, and the cloud delivers the object as well.
            Err(error) => warn!(%error, "cannot store the result of a write"),
        }
    }
}

impl WriteBackend for CloudWrites {
    fn execute(&self, request: WriteRequest) -> BoxFuture<'_, Result<WriteReply, ApiError>> {
        Box::pin(self.execute_any(request))
    }

    fn decides_creation(&self) -> bool {
        true
    }
}

/// The key of the object that a write names.
fn key(request: &WriteRequest) -> Option<ObjectKey> {
    let about = &request.attributes;
    (!about.name.is_empty())
        .then(|| ObjectKey::new(request.kind.storage.clone(), &about.namespace, &about.name))
}

/// Whether the reply contains the object's new version.
fn brings_object(request: &WriteRequest) -> bool {
    let changes = matches!(request.verb, WriteVerb::Create | WriteVerb::Update | WriteVerb::Patch(_));
    let whole = matches!(request.attributes.subresource.as_str(), "" | "status");
    let stored = request.kind.storage == request.kind.resource;
    changes && whole && stored && !request.options.dry_run
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
