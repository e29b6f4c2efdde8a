//! Builds the API server from its parts.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::HeaderMap;
use tokio_util::sync::CancellationToken;
use tombolo_apicore::admission::Admission;
use tombolo_apicore::api::ApiServer;
use tombolo_apicore::api::builder::Builder;
use tombolo_apicore::auth::{Attributes, Identity, Impersonator};
use tombolo_apicore::backend::WriteBackend;
use tombolo_apicore::registry::Registry;
use tombolo_apicore::status::ApiError;
use tombolo_apicore::write::LocalWrites;
use tombolo_catalog::kinds_with;
use tombolo_cel::{Authorize, CelRules};

use super::admission::Plugins;
use super::admission::addresses::{Addresses, ServiceRange};
use super::admission::policies::Enforcement;
use super::admission::webhooks::Webhooks;
use super::audit::AuditLog;
use super::authn::certificates::Certificates;
use super::authn::tokens::TokenKey;
use super::authn::{Authentication, impersonation};
use super::authz::Authorization;
use super::authz::review::{Review, Reviews};
use super::controllers::deletion::Deletions;
use super::controllers::external::ExternalControllers;
use super::controllers::{Context, definitions};
use super::endpoints::Judged;
use super::endpoints::binding::Bindings;
use super::endpoints::eviction::Evictions;
use super::endpoints::token::Tokens;
use super::error::EmbeddedError;
use super::health::{self, Started};
use super::indexed::Indexes;
use super::metrics::RequestMetrics;
use super::objects::Objects;
use super::openid::{self, Discovery};
use super::options::Options;
use super::pki::Pki;
use super::serving::Serving;

/// OpenAPI descriptions of the built-in types, recorded by `cargo xtask facts`. The edge does not contain them.
const DESCRIPTIONS: &[u8] = include_bytes!("../data/descriptions.gz");

/// The parts of the server.
pub(super) struct ServerParts<'a> {
    pub(super) objects: Objects,
    pub(super) range: ServiceRange,
    pub(super) pki: Arc<Pki>,
    pub(super) indexes: Indexes,
    pub(super) options: &'a Options,
    pub(super) stop: CancellationToken,
}

/// The finished server.
pub(super) struct Built {
    pub(super) api: ApiServer,
    pub(super) context: Arc<Context>,
    pub(super) tls: Arc<Serving>,
    /// Must be set when the controllers run.
    pub(super) started: Started,
}

/// Builds the server.
///
/// # Errors
/// [`EmbeddedError`] when a key cannot be used or the audit log cannot be opened.
pub(super) fn build(parts: ServerParts<'_>) -> Result<Built, EmbeddedError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let ServerParts { objects, range, pki, indexes, options, stop } = parts;
    let authorization = indexes.authorization;
    let registry = Registry::new(kinds_with(Arc::new(CelRules)).described_by(DESCRIPTIONS));
    definitions::publish_stored(objects.list(&definitions::resource(), None), objects.store(), &registry);
    let addresses = Addresses::new(objects.clone(), range, indexes.reservations);
    let rights: Arc<dyn Authorize> = Arc::new(authorization.clone());
    let policies = Enforcement::new(indexes.policies, objects.clone(), registry.clone(), Arc::clone(&rights));
    let webhooks = Webhooks::new(indexes.webhooks, objects.clone(), registry.clone(), rights);
    let external = Arc::new(ExternalControllers::new(&objects, options.external_controllers));
    let plugins = Arc::new(Plugins {
        objects: objects.clone(),
        addresses,
        authorization: authorization.clone(),
        policies,
        webhooks,
        external: Arc::clone(&external),
    });
    let writes = LocalWrites::new(Arc::new(objects.store().clone()))
        .admission(Arc::clone(&plugins) as Arc<dyn Admission>);
    let writes: Arc<dyn WriteBackend> = Arc::new(writes);
    let deletions = Arc::new(Deletions::new(Arc::clone(&writes), registry.clone()));
    let tokens = Arc::new(TokenKey::from_pem(&pki.token_key)?);
    let certificates = Certificates::new(pki.ca_der(), Arc::clone(&provider))?;
    let authentication = Authentication::new(
        certificates,
        Arc::clone(&tokens),
        objects.clone(),
        options.admin_token.as_deref(),
    );
    let authentication = Arc::new(authentication);
    let mut builder = ApiServer::builder(Arc::new(objects.store().clone()), registry.clone())
        .authenticator(Arc::clone(&authentication) as _)
        .authorizer(Arc::new(authorization.clone()))
        .impersonator(Arc::new(Impersonation(authorization.clone())))
        .shared_out()
        .classifier(Arc::new(indexes.flows.clone()))
        .writes(writes)
        .stop(stop);
    let started = Started::default();
    let checks = health::checks(&objects, &started);
    builder = checks.iter().fold(builder, |builder, check| builder.check(Arc::clone(check)));
    builder = Arc::new(RequestMetrics::new(registry.clone(), objects.clone(), indexes.flows.clone(), checks))
        .add(builder);
    if let Some(path) = &options.audit_log {
        builder = builder.audit(Arc::new(AuditLog::open(path)?));
    }
    builder = with_reviews(builder, &authorization, &authentication);
    let bindings = Judged::new(Bindings(objects.clone()), &plugins, &registry);
    let evictions = Evictions { objects: objects.clone(), deletions: Arc::clone(&deletions) };
    let issue = Tokens { objects: objects.clone(), key: Arc::clone(&tokens) };
    let discovery = Arc::new(Discovery(tokens));
    let api = builder
        .endpoint("", "pods", "binding", Arc::clone(&bindings) as _)
        .endpoint("", "bindings", "", bindings)
        .endpoint("", "pods", "eviction", Judged::new(evictions, &plugins, &registry))
        .endpoint("", "serviceaccounts", "token", Judged::new(issue, &plugins, &registry))
        .route(openid::CONFIGURATION, Arc::clone(&discovery) as _)
        .route(openid::KEYS, discovery)
        .build();
    let tls = Serving::new(&pki, &provider)?;
    let ownership = indexes.ownership;
    let flows = indexes.flows;
    let context = Context { objects, deletions, registry, ownership, authorization, flows, pki, external };
    Ok(Built { api, context: Arc::new(context), tls, started })
}

/// Adds the review kinds for identities and rights.
fn with_reviews(
    mut builder: Builder,
    authorization: &Authorization,
    authentication: &Arc<Authentication>,
) -> Builder {
    for (group, resource, review) in REVIEWS {
        let (authorization, authentication) = (authorization.clone(), Arc::clone(authentication));
        let reviews = Reviews { review, authorization, authentication };
        builder = builder.endpoint(group, resource, "", Arc::new(reviews));
    }
    builder
}

const AUTHORIZATION: &str = "authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";

const REVIEWS: [(&str, &str, Review); 6] = [
    (AUTHORIZATION, "subjectaccessreviews", Review::Subject),
    (AUTHORIZATION, "localsubjectaccessreviews", Review::Subject),
    (AUTHORIZATION, "selfsubjectaccessreviews", Review::SelfSubject),
    (AUTHORIZATION, "selfsubjectrulesreviews", Review::Rules),
    (AUTHENTICATION, "selfsubjectreviews", Review::Whoami),
    (AUTHENTICATION, "tokenreviews", Review::Token),
];

/// Lets callers impersonate other users, as the rules allow.
struct Impersonation(Authorization);

impl Impersonator for Impersonation {
    fn impersonate<'a>(
        &'a self,
        caller: &'a Identity,
        headers: &'a HeaderMap,
        attributes: &'a Attributes,
    ) -> BoxFuture<'a, Result<Identity, ApiError>> {
        Box::pin(async move {
            let Some(wanted) = impersonation::wanted(headers)? else { return Ok(caller.clone()) };
            impersonation::impersonate(&self.0, caller, &wanted, attributes).await
        })
    }
}
