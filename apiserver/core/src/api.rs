//! The server as a function from request to response: authentication, authorization and dispatch.

pub mod builder;
mod deadline;
pub(crate) mod dispatch;
mod handler;
mod health;
pub mod info;
mod openapi;
mod plain;
mod streams;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::FutureExt;
use http::{Request, Response, StatusCode};
use hyper::body::Body as HttpBody;

use crate::accept::Accepted;
use crate::auth::{Attributes, AuditRecord, BadCredentials, Identity, Observation, Peer};
use crate::body::{self, Body};
use crate::connection_slots::ConnectionSlot;
use crate::query::Query;
use crate::query::path::Target;
use crate::senders::{Payer, Sender, is_known};
use crate::status::ApiError;

use crate::request_limits::{self, Authenticating, RequestLimits, Sending, Slot};
pub use crate::request_limits::{ANSWERS_LEN_MAX, Activity, BODIES_LEN_MAX, REQUESTS_MAX, WATCHES_MAX};

use builder::{Builder, Parts};

/// Response headers that name the flow schema and priority level of a request (`k8s.io/api/flowcontrol/v1`).
const FLOW_SCHEMA: &str = "x-kubernetes-pf-flowschema-uid";
const PRIORITY_LEVEL: &str = "x-kubernetes-pf-prioritylevel-uid";

/// A Kubernetes API server over a store. Cheap to clone: clones share everything.
#[derive(Clone)]
pub struct ApiServer {
    parts: Arc<Parts>,
}

/// A request that is authenticated and is being authorized.
pub(crate) struct Admitted {
    pub(crate) head: http::request::Parts,
    pub(crate) query: Query,
    pub(crate) attributes: Attributes,
    /// The sender whose share of the limits it uses.
    pub(crate) sender: Arc<Sender>,
}

impl ApiServer {
    /// Starts building a server that reads from `store`.
    pub fn builder(store: Arc<dyn crate::store::Store>, registry: crate::registry::Registry) -> Builder {
        Builder::new(store, registry)
    }

    pub(crate) fn new(parts: Parts) -> Self {
        Self { parts: Arc::new(parts) }
    }

    pub(crate) fn connections_max(&self) -> usize {
        self.parts.connections_max
    }

    /// Answers one request. A panic during processing becomes a 500 and is logged.
    pub async fn handle<B>(&self, request: Request<B>, peer: &Peer) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display + Send,
    {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let mut response = match AssertUnwindSafe(self.answer(request, peer)).catch_unwind().await {
            Ok(response) => response,
            Err(_) => {
                tracing::error!(path, "a request handler panicked; the client got a 500");
                let error = ApiError::internal("the request could not be handled; see the server's log");
                body::refusal(&error, &Accepted::default())
            }
        };
        body::finish(&mut response, &method);
        if body::weight(&response).is_some() && response.extensions().get::<Arc<Sending>>().is_none() {
            response.extensions_mut().insert(Sending::uncounted(&self.parts.limits));
        }
        response
    }

    async fn answer<B>(&self, request: Request<B>, peer: &Peer) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display + Send,
    {
        let (head, request_body) = request.into_parts();
        let query = Query::parse(&head.method, head.uri.path(), head.uri.query().unwrap_or_default());
        if query.target == Target::Incomplete {
            return plain::incomplete(&head.uri);
        }
        let refused = Accepted::of_refusal(&head.headers, &query.params);
        let time = match deadline::of(&query) {
            Ok(time) => time,
            Err(error) => return body::refusal(&error, &refused),
        };
        let Some(permit) = self.parts.limits.authenticate() else {
            return body::refusal(&too_many(), &refused);
        };
        let answering = self.answer_admitted(head, query, peer, request_body, permit);
        let Some(time) = time else { return answering.await };
        tokio::time::timeout(time, answering)
            .await
            .unwrap_or_else(|_| body::refusal(&deadline::passed(), &refused))
    }

    async fn answer_admitted<B>(
        &self,
        head: http::request::Parts,
        query: Query,
        peer: &Peer,
        request_body: B,
        permit: Authenticating,
    ) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display + Send,
    {
        let (mut attributes, impersonator) = match self.identify(&head, &query, peer).await {
            Ok(identified) => identified,
            Err(error) => return body::refusal(&error, &Accepted::of_refusal(&head.headers, &query.params)),
        };
        // A request with impersonation counts for the caller, not for the impersonated user.
        let Some(slot) =
            self.enter(&head, &query, peer, impersonator.as_ref().unwrap_or(&attributes.identity))
        else {
            return body::refusal(&too_many(), &Accepted::of_refusal(&head.headers, &query.params));
        };
        drop(permit);
        let sender = Arc::clone(slot.sender());
        // An administrator, such as a cloudcore beside this server, makes requests for many users: each of them queues
        // on its own.
        let payer = match impersonator.is_some() && sender.is_privileged() {
            true => {
                let limits = &self.parts.limits;
                limits.sender(&attributes.identity, limits.source(peer.remote.map(|address| address.ip())))
            }
            false => Arc::clone(&sender),
        };
        attributes.payer = Payer::from(payer);
        let wanted = self.parts.audit.is_some() || self.parts.observer.is_some();
        let noted = wanted.then(|| (attributes.clone(), Instant::now()));
        let classes = self.parts.classifier.as_ref().and_then(|hook| hook.classify(&attributes));
        let mut response =
            self.permitted(Admitted { head, query, attributes, sender }, request_body, slot).await;
        if let Some(classes) = classes {
            response.headers_mut().insert(FLOW_SCHEMA, classes.flow_schema);
            response.headers_mut().insert(PRIORITY_LEVEL, classes.priority_level);
        }
        if let Some((attributes, started)) = noted {
            let code = response.status().as_u16();
            self.record(&attributes, impersonator.as_ref(), code);
            if let Some(observer) = &self.parts.observer {
                observer.observe(&Observation { attributes: &attributes, code, duration: started.elapsed() });
            }
        }
        response
    }

    /// A slot for a request within the share of its sender. It also marks the connection as proven by that sender.
    fn enter(
        &self,
        head: &http::request::Parts,
        query: &Query,
        peer: &Peer,
        identity: &Identity,
    ) -> Option<Slot> {
        let limits = &self.parts.limits;
        let connection = head.extensions.get::<Arc<ConnectionSlot>>();
        let remote = || limits.source(peer.remote.map(|address| address.ip()));
        let sender = limits.sender(identity, connection.map_or_else(remote, |slot| slot.source()));
        if limits.is_shared() && is_known(identity) && connection.is_some_and(|slot| !slot.prove(&sender)) {
            return None;
        }
        limits.enter(query.verb == "watch", &sender)
    }

    async fn permitted<B>(&self, admitted: Admitted, request_body: B, slot: Slot) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display + Send,
    {
        let accepted = Accepted::of_refusal(&admitted.head.headers, &admitted.query.params);
        let deprecation = self.deprecation(&admitted.query.target);
        let (ends, mut slot) = (!deadline::is_long_running(&admitted.query), Some(slot));
        let decision = self.parts.authorizer.authorize(&admitted.attributes).await;
        let outcome = match decision.permit(&admitted.attributes) {
            Ok(()) => self.dispatch(admitted, request_body, &mut slot).await,
            Err(error) => Err(error),
        };
        let mut response = outcome.unwrap_or_else(|error| body::refusal(&error, &accepted));
        if let (true, Some(slot)) = (ends, slot) {
            response = request_limits::sending(slot, response, &accepted);
        }
        body::add_warnings(&mut response, deprecation.as_slice());
        response
    }

    /// The deprecation warning of every answer about a kind.
    fn deprecation(&self, target: &Target) -> Option<String> {
        let Target::Resource(path) = target else { return None };
        let catalog = self.parts.registry.catalog();
        catalog.find(path)?.rules().deprecated.as_deref().map(str::to_owned)
    }

    /// Authentication and impersonation: who requests what, and the caller behind an impersonation.
    async fn identify(
        &self,
        head: &http::request::Parts,
        query: &Query,
        peer: &Peer,
    ) -> Result<(Attributes, Option<Identity>), ApiError> {
        let caller = self.parts.authenticator.authenticate(head, peer).await.map_err(|error| {
            tracing::debug!(%error, path = query.path, "request refused: bad credentials");
            match error {
                BadCredentials::Wrong { .. } => ApiError::unauthorized(),
                BadCredentials::Undecided { reason } => ApiError::unavailable(reason),
                BadCredentials::Misdirected { reason } => {
                    ApiError::new(StatusCode::MISDIRECTED_REQUEST, "", reason)
                }
            }
        })?;
        let mut attributes = query.attributes(caller);
        if !head.headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
            return Ok((attributes, None));
        }
        let Some(hook) = &self.parts.impersonator else {
            return Err(ApiError::forbidden(&attributes, "impersonation is not served here"));
        };
        let identity = hook.impersonate(&attributes.identity, &head.headers, &attributes).await?;
        let caller = std::mem::replace(&mut attributes.identity, identity);
        Ok((attributes, Some(caller)))
    }

    fn record(&self, attributes: &Attributes, impersonator: Option<&Identity>, code: u16) {
        if let Some(audit) = &self.parts.audit {
            audit.record(&AuditRecord { attributes, impersonator, code });
        }
    }

    /// Numbers of requests in progress and of watches, for metrics.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        self.parts.limits.now()
    }

    pub(crate) fn counts(&self) -> &Arc<RequestLimits> {
        &self.parts.limits
    }
}

fn too_many() -> ApiError {
    ApiError::too_many_requests("Too many requests, please try again later.")
}
