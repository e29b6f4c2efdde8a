//! Authentication and authorization hooks, implemented by the owner of a server.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::BoxFuture;
use http::HeaderValue;
use rustls::pki_types::CertificateDer;
use thiserror::Error;

pub use crate::attributes::Attributes;
pub use crate::identity::{ANONYMOUS, AUTHENTICATED_GROUP, Identity, UNAUTHENTICATED_GROUP};
use crate::status::ApiError;

/// The other end of a connection.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    /// Its address, when the transport has one.
    pub remote: Option<SocketAddr>,
    /// The client certificates that TLS verified, leaf first; empty without any.
    pub certificates: Vec<CertificateDer<'static>>,
    /// Whether the connection is encrypted.
    pub encrypted: bool,
}

/// Why a request could not be authenticated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadCredentials {
    /// The credentials are not valid. Becomes 401.
    #[error("{reason}")]
    Wrong {
        /// What is wrong with them. It is logged; clients see only `Unauthorized`.
        reason: String,
    },
    /// The credentials cannot be checked now. Becomes 503 with Retry-After.
    #[error("{reason}")]
    Undecided {
        /// What is missing, for the client.
        reason: String,
    },
    /// The request was meant for another server, or for one that must not be asked without credentials. Becomes 421.
    #[error("{reason}")]
    Misdirected {
        /// Why.
        reason: String,
    },
}

/// Authenticates requests.
pub trait Authenticator: Send + Sync + 'static {
    /// The identity behind a request. A request without credentials is [`Identity::anonymous`] where anonymous requests
    /// are allowed.
    ///
    /// # Errors
    /// [`BadCredentials`] for invalid credentials, or for missing ones where some are required.
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
        peer: &'a Peer,
    ) -> BoxFuture<'a, Result<Identity, BadCredentials>>;
}

/// Answer of an [`Authorizer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Allowed.
    Allow,
    /// Refused, whatever other authorizers say.
    Deny(String),
    /// No opinion; the request is refused when no authorizer allows it. The text may give a reason.
    NoOpinion(String),
    /// The object of the request is not known yet. Becomes 503.
    Undecided(String),
}

impl Decision {
    /// Turns the decision into a result.
    ///
    /// # Errors
    /// The answer to a request that is not allowed.
    pub fn permit(self, attributes: &Attributes) -> Result<(), ApiError> {
        match self {
            Self::Allow => Ok(()),
            Self::Deny(why) | Self::NoOpinion(why) => Err(ApiError::forbidden(attributes, &why)),
            Self::Undecided(why) => Err(ApiError::unavailable(why)),
        }
    }
}

/// Decides whether a request is allowed.
pub trait Authorizer: Send + Sync + 'static {
    /// Decides.
    fn authorize<'a>(&'a self, attributes: &'a Attributes) -> BoxFuture<'a, Decision>;
}

/// Treats every request as one fixed user. For servers that only their owner can reach, and for tests.
#[derive(Debug, Clone)]
pub struct Always(pub Identity);

impl Authenticator for Always {
    fn authenticate<'a>(
        &'a self,
        _: &'a http::request::Parts,
        _: &'a Peer,
    ) -> BoxFuture<'a, Result<Identity, BadCredentials>> {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }
}

/// Allows every request. For servers that only their owner can reach, and for tests.
#[derive(Debug, Clone, Copy)]
pub struct AllowAll;

impl Authorizer for AllowAll {
    fn authorize<'a>(&'a self, _: &'a Attributes) -> BoxFuture<'a, Decision> {
        Box::pin(std::future::ready(Decision::Allow))
    }
}

/// Lets a caller act as another user (Kubernetes `Impersonate-*` headers). Called after the [`Authenticator`] and
/// before the [`Authorizer`], for requests that carry such headers.
pub trait Impersonator: Send + Sync + 'static {
    /// The identity to continue with. `attributes` describe the request, with the caller as its identity.
    ///
    /// # Errors
    /// The answer for a caller that may not impersonate that user.
    fn impersonate<'a>(
        &'a self,
        caller: &'a Identity,
        headers: &'a http::HeaderMap,
        attributes: &'a Attributes,
    ) -> BoxFuture<'a, Result<Identity, ApiError>>;
}

/// The flow that a request belongs to, by Kubernetes' API priority and fairness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classification {
    /// UID of the FlowSchema that the request matches.
    pub flow_schema: HeaderValue,
    /// UID of the PriorityLevelConfiguration that the FlowSchema names.
    pub priority_level: HeaderValue,
}

/// Assigns requests to flows. Called after the [`Impersonator`] and before the [`Authorizer`], which may still refuse
/// the request.
pub trait Classifier: Send + Sync + 'static {
    /// The flow of a request, which the answer names. None for a request without one.
    fn classify(&self, attributes: &Attributes) -> Option<Classification>;
}

/// One answered request, for an audit log.
#[derive(Debug)]
pub struct AuditRecord<'a> {
    /// Who requested what; the identity is the impersonated one, if any.
    pub attributes: &'a Attributes,
    /// The caller behind an impersonation.
    pub impersonator: Option<&'a Identity>,
    /// Code of the answer. A watch is recorded when it starts.
    pub code: u16,
}

/// Receives every answered request for an audit log.
pub trait Audit: Send + Sync + 'static {
    /// Records a request. Must not block.
    fn record(&self, record: &AuditRecord<'_>);
}

/// One answered request, for metrics.
#[derive(Debug)]
pub struct Observation<'a> {
    /// Who requested what. The named objects need not exist.
    pub attributes: &'a Attributes,
    /// Code of the answer. A watch is observed when it starts.
    pub code: u16,
    /// Time from the head of the request to the head of the answer.
    pub duration: Duration,
}

/// Counts answered requests.
pub trait Observer: Send + Sync + 'static {
    /// Records a request. Must not block.
    fn observe(&self, observation: &Observation<'_>);
}
