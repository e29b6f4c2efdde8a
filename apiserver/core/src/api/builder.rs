//! Assembles a server.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio_util::sync::CancellationToken;

use crate::api::{ApiServer, info::ServerInfo};
use crate::auth::{
    AllowAll, Always, Attributes, Audit, Authenticator, Authorizer, Classifier, Identity, Impersonator,
    Observer,
};
use crate::backend::{Endpoint, WriteBackend, WriteReply, WriteRequest};
use crate::body::Body;
use crate::connection_slots::CONNECTIONS_MAX;
use crate::registry::Registry;
use crate::request_limits::{Activity, RequestLimits, WATCHES_MAX};
use crate::senders::Senders;
use crate::sources::{Single, Sources};
use crate::status::ApiError;
use crate::store::Store;

/// Serves paths that are not resources, instead of the server's own answer.
pub trait Route: Send + Sync + 'static {
    /// Answers a request whose sender is authenticated and authorized.
    fn call<'a>(
        &'a self,
        request: Request<Bytes>,
        attributes: &'a Attributes,
    ) -> BoxFuture<'a, Result<Response<Body>, ApiError>>;
}

/// One health check.
pub trait Check: Send + Sync + 'static {
    /// Name as `/readyz?verbose` shows it.
    fn name(&self) -> &str;

    /// Whether the check passes now.
    ///
    /// # Errors
    /// What is wrong; shown to clients that may read health.
    fn check(&self) -> Result<(), String>;

    /// Whether the process must be restarted when the check fails: `/livez` then includes it.
    fn is_vital(&self) -> bool {
        false
    }
}

/// What an API server consists of. It has many fields because each hook, limit and addition can be set by itself.
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) sources: Arc<dyn Sources>,
    pub(crate) registry: Registry,
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) authorizer: Arc<dyn Authorizer>,
    pub(crate) impersonator: Option<Arc<dyn Impersonator>>,
    pub(crate) classifier: Option<Arc<dyn Classifier>>,
    pub(crate) audit: Option<Arc<dyn Audit>>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) writes: Arc<dyn WriteBackend>,
    /// By group, resource and subresource.
    pub(crate) endpoints: HashMap<(String, String, String), Arc<dyn Endpoint>>,
    /// By path prefix; the first match answers.
    pub(crate) routes: Vec<(String, Arc<dyn Route>)>,
    pub(crate) checks: Vec<Arc<dyn Check>>,
    pub(crate) info: ServerInfo,
    pub(crate) rng: Mutex<StdRng>,
    pub(crate) stop: CancellationToken,
    pub(crate) limits: Arc<RequestLimits>,
    pub(crate) connections_max: usize,
}

/// Collects the parts of an [`ApiServer`]. By default it is a read-only server that admits everyone.
#[must_use]
pub struct Builder {
    parts: Parts,
}

impl Builder {
    pub(super) fn new(store: Arc<dyn Store>, registry: Registry) -> Self {
        let parts = Parts {
            sources: Arc::new(Single(Arc::clone(&store))),
            store,
            registry,
            authenticator: Arc::new(Always(Identity::anonymous())),
            authorizer: Arc::new(AllowAll),
            impersonator: None,
            classifier: None,
            audit: None,
            observer: None,
            writes: Arc::new(ReadOnly),
            endpoints: HashMap::new(),
            routes: Vec::new(),
            checks: Vec::new(),
            info: ServerInfo::default(),
            rng: Mutex::new(StdRng::from_os_rng()),
            stop: CancellationToken::new(),
            limits: Arc::new(RequestLimits::new(WATCHES_MAX)),
            connections_max: CONNECTIONS_MAX,
        };
        Self { parts }
    }

    /// Authenticates requests. Default: everyone is anonymous.
    pub fn authenticator(mut self, hook: Arc<dyn Authenticator>) -> Self {
        self.parts.authenticator = hook;
        self
    }

    /// Authorizes requests. Default: everything is allowed.
    pub fn authorizer(mut self, hook: Arc<dyn Authorizer>) -> Self {
        self.parts.authorizer = hook;
        self
    }

    /// Lets callers impersonate other users. Default: 403.
    pub fn impersonator(mut self, hook: Arc<dyn Impersonator>) -> Self {
        self.parts.impersonator = Some(hook);
        self
    }

    /// Assigns requests to flows. Default: answers name no flow.
    pub fn classifier(mut self, hook: Arc<dyn Classifier>) -> Self {
        self.parts.classifier = Some(hook);
        self
    }

    /// Receives a record of every answered request.
    pub fn audit(mut self, hook: Arc<dyn Audit>) -> Self {
        self.parts.audit = Some(hook);
        self
    }

    /// Counts answered requests.
    pub fn observer(mut self, hook: Arc<dyn Observer>) -> Self {
        self.parts.observer = Some(hook);
        self
    }

    /// Chooses the store of each read. Default: the one store.
    pub fn sources(mut self, hook: Arc<dyn Sources>) -> Self {
        self.parts.sources = hook;
        self
    }

    /// Executes writes. Default: 405.
    pub fn writes(mut self, backend: Arc<dyn WriteBackend>) -> Self {
        self.parts.writes = backend;
        self
    }

    /// Serves creations of a resource (or of one of its subresources) that is not stored. `subresource` is empty for
    /// the resource itself. The kind table must know it, for discovery.
    pub fn endpoint(
        mut self,
        group: &str,
        resource: &str,
        subresource: &str,
        endpoint: Arc<dyn Endpoint>,
    ) -> Self {
        let key = (group.to_owned(), resource.to_owned(), subresource.to_owned());
        self.parts.endpoints.insert(key, endpoint);
        self
    }

    /// Serves all paths that start with `prefix` and are not resources.
    pub fn route(mut self, prefix: &str, route: Arc<dyn Route>) -> Self {
        self.parts.routes.push((prefix.to_owned(), route));
        self
    }

    /// Adds a condition to `/readyz` and `/healthz`, and to `/livez` if it is vital.
    pub fn check(mut self, check: Arc<dyn Check>) -> Self {
        self.parts.checks.push(check);
        self
    }

    /// What `/version` says.
    pub fn info(mut self, info: ServerInfo) -> Self {
        self.parts.info = info;
        self
    }

    /// The source of randomness, used for watch timeouts. Default: seeded by the operating system.
    pub fn rng(mut self, rng: StdRng) -> Self {
        self.parts.rng = Mutex::new(rng);
        self
    }

    /// Maximum number of concurrent watches. Default: [`WATCHES_MAX`].
    pub fn watches_max(mut self, max: usize) -> Self {
        self.limits().watches_max = max;
        self
    }

    /// Maximum number of bytes of answers in transit to clients. Default: [`crate::api::ANSWERS_LEN_MAX`].
    pub fn answers_len_max(mut self, max: usize) -> Self {
        self.limits().answers_len_max = max;
        self
    }

    /// Maximum number of bytes of request bodies being received; it should hold several of the largest ones. Default:
    /// [`crate::api::BODIES_LEN_MAX`].
    pub fn bodies_len_max(mut self, max: usize) -> Self {
        self.limits().bodies_len_max = max;
        self
    }

    /// Maximum number of connections of a listener of this server; further ones wait in the listen queue of the
    /// operating system. It should exceed the maximum number of watches, otherwise that limit never applies. Default:
    /// [`CONNECTIONS_MAX`].
    pub fn connections_max(mut self, max: usize) -> Self {
        self.parts.connections_max = max;
        self
    }

    /// Divides the limits among senders: none can use up all requests, watches, connections and bytes
    /// ([`crate::senders`]), and unauthenticated connections make room for others. For servers that many clients can
    /// reach. Default: first come, first served.
    pub fn shared_out(mut self) -> Self {
        self.limits().senders = Some(Senders::default());
        self
    }

    /// Like [`Self::shared_out`], for a server on a node: every address is a sender of its own there, since each pod
    /// has one, and `owner`, the user of the node's own components, is not limited.
    pub fn shared_out_among_pods(mut self, owner: &str) -> Self {
        self.limits().senders = Some(Senders::on_node_of(owner));
        self
    }

    /// The current activity of the server, for metrics. No limit can be set after this call.
    pub fn activity(&self) -> impl Fn() -> Activity + Send + Sync + 'static {
        let limits = Arc::clone(&self.parts.limits);
        move || limits.activity()
    }

    /// When the token is cancelled, watches end cleanly and `/readyz` fails.
    pub fn stop(mut self, stop: CancellationToken) -> Self {
        self.parts.stop = stop;
        self
    }

    fn limits(&mut self) -> &mut RequestLimits {
        Arc::get_mut(&mut self.parts.limits).expect("no request is served before the server is built")
    }

    /// The finished server.
    #[must_use]
    pub fn build(self) -> ApiServer {
        ApiServer::new(self.parts)
    }
}

/// Refuses every write.
struct ReadOnly;

impl WriteBackend for ReadOnly {
    fn execute(&self, _: WriteRequest) -> BoxFuture<'_, Result<WriteReply, ApiError>> {
        Box::pin(std::future::ready(Err(ApiError::method_not_allowed())))
    }
}
