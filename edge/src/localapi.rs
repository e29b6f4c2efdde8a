//! The local Kubernetes API: serves the objects of the store to programs on this machine.
//!
//! HTTPS serves clients with the kubeconfig's credentials, and pods with the tokens of their service accounts. Plain
//! HTTP, if it is on, serves anonymous readers everything but Secrets (docs/architecture.md#ports). Writes are passed
//! on to the cloud, as this node or as the account. Without a connection they are refused with an error that clients
//! retry.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tombolo_apicore::api::ApiServer;
use tombolo_apicore::api::builder::Builder;
use tombolo_apicore::backend::WriteBackend;
use tombolo_apicore::kinds::Kinds;
use tombolo_apicore::registry::Registry;
use tombolo_apicore::server::{Serving, serve};
use tombolo_apicore::sources::Sources;
use tombolo_proto::ids::NodeId;
use tombolo_runtime::Tasks;
use tombolo_runtime::listen::{ListenError, tcp};

use crate::config::Config;
use crate::hub::{KindsPublisher, SharedHub};
use crate::identity::{IdentityError, WallClock};
use crate::kubelet::Kubelet;
use crate::store::Store;
use crate::subscriptions::Subscriptions;

pub(crate) use access::Anonymous;
use access::TokenAuthenticator;
use account_reads::AccountReads;
use bearer_tokens::BearerTokens;
use credentials::SubjectAltNames;
use decisions::Decisions;
use definitions::Definitions;
use discovery::Discovery;
use documents::Documents;
use informed::Informed;
use keys::Keys;
use reads::Reads;
use reviews::Reviews;
use rights::Rights;
use serving::ServingCertificate;
use token_requests::TokenRequests;

mod access;
mod account_reads;
mod bearer_tokens;
mod callers;
mod copies;
mod credentials;
mod decisions;
mod definitions;
mod discovery;
mod documents;
mod groups;
mod index;
mod informed;
mod keys;
mod offline_writes;
mod openapi;
mod pace;
mod pass;
mod reads;
mod reviews;
mod revision;
mod rights;
mod serving;
mod single_answers;
mod single_reads;
#[cfg(test)]
mod tests;
mod token_requests;
mod write;

pub(crate) use credentials::{KUBECONFIG_FILE, LocalCredentials, on_this_machine};

/// Seconds after which a client should retry while the cloud is unreachable. Short, because client-go tries ten times
/// before it returns an error, and a kubelet starts static pods only after that.
const RETRY_AFTER_SECONDS: u32 = 1;

/// Maximum number of concurrent watches per listener; a further one is answered with 429. A kubelet has one for each
/// ConfigMap and Secret of its pods, over few connections. An idle watch takes about 10 KB, or 30 KB with its own
/// connection.
pub(crate) const WATCHES_MAX: usize = 2048;

/// Maximum number of concurrent connections per listener; further ones wait to be accepted.
pub(crate) const CONNECTIONS_MAX: usize = WATCHES_MAX + 512;

/// Maximum bytes of answers in transit per listener, since every list is a copy of its own. A larger answer is sent
/// alone; further ones are refused with 429.
pub(crate) const ANSWERS_LEN_MAX: usize = 64 * 1024 * 1024;

/// Maximum bytes of request bodies that a listener receives at the same time: ten of the largest.
pub(crate) const BODIES_LEN_MAX: usize = 32 * 1024 * 1024;

/// Time for current requests to finish when the agent stops.
const GRACE: Duration = Duration::from_secs(2);

/// The local API with its listeners bound.
pub(crate) struct LocalApi {
    https: TcpListener,
    pods: Option<TcpListener>,
    http: Option<TcpListener>,
    credentials: LocalCredentials,
    /// Cluster domain.
    domain: String,
}

/// Why the local API cannot be served.
#[derive(Debug, Error)]
pub enum LocalApiError {
    /// An address cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The credentials cannot be saved.
    #[error(transparent)]
    Credentials(#[from] IdentityError),
    /// A file of the credentials is damaged.
    #[error(
        "{}: {problem}; remove the file, then distribute the new kubeconfig to the users of the local API",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The serving certificate cannot be made.
    #[error("the local API's certificate cannot be used: {0}")]
    Certificate(String),
}

/// The inputs of the local API.
pub(crate) struct LocalApiParts {
    /// The objects that are served.
    pub(crate) store: Store,
    /// Selections that are followed in addition to the pushed set.
    pub(crate) subscriptions: Subscriptions,
    /// Sends writes to the cloud.
    pub(crate) writer: Writer,
    /// Clock for checking tokens.
    pub(crate) clock: WallClock,
    /// Address at which pods reach the node.
    pub(crate) address: watch::Receiver<Option<IpAddr>>,
    /// Receives the kinds of the cluster from discovery.
    pub(crate) kinds: KindsPublisher,
}

impl LocalApi {
    /// Binds the listeners and writes the kubeconfig.
    pub(crate) async fn bind(config: &Config) -> Result<Self, LocalApiError> {
        let https = tcp("localApi.https", config.local_api.https).await?;
        let pods = optional("localApi.pods", config.local_api.pods).await?;
        let http = optional("localApi.http", config.local_api.http).await?;
        let credentials = LocalCredentials::load(&config.data_dir)?;
        let domain = config.dns.cluster_domain.clone();
        let local = Self { https, pods, http, credentials, domain };
        local.credentials.write_kubeconfig(&config.data_dir, &config.node_name, local.https_addr(config))?;
        Ok(local)
    }

    /// Address of the HTTPS listener.
    pub(crate) fn https_addr(&self, config: &Config) -> SocketAddr {
        self.https.local_addr().unwrap_or(config.local_api.https)
    }

    /// Address of the listener for pods, when there is one.
    pub(crate) fn pods_addr(&self) -> Option<SocketAddr> {
        self.pods.as_ref()?.local_addr().ok()
    }

    /// Address of the plain listener, when there is one.
    #[cfg(test)]
    pub(crate) fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref()?.local_addr().ok()
    }

    /// The CA certificate of the local API, in PEM.
    pub(crate) fn ca_pem(&self) -> &str {
        self.credentials.ca_pem()
    }

    /// Serves until `stop` is cancelled.
    pub(crate) fn spawn(
        self,
        tasks: &Tasks,
        parts: LocalApiParts,
        stop: &CancellationToken,
    ) -> Result<(), LocalApiError> {
        let services = parts.subscriptions.whole();
        let listeners = [Some(&self.https), self.pods.as_ref()].into_iter().flatten();
        let bound = listeners.filter_map(|listener| Some(listener.local_addr().ok()?.ip()));
        let names = SubjectAltNames::new(&self.domain, bound);
        let operator = self.credentials.token().to_owned();
        let certificate = ServingCertificate::new(self.credentials, names, parts.address.clone(), &services)?;
        let tls = certificate.config()?;
        let served = Served::spawn(tasks, parts, stop);
        spawn_until(tasks, "local-certificate", stop, certificate.follow(Arc::new(services)));
        let serving = |tls| Serving { tls, stop: stop.clone(), grace: GRACE };
        let api = served.with_tokens(Some(&operator));
        tasks.spawn("local-api", serve(self.https, api, serving(Some(Arc::clone(&tls)))));
        if let Some(listener) = self.pods {
            let api = served.with_tokens(None);
            tasks.spawn("local-pods", serve(listener, api, serving(Some(tls))));
        }
        if let Some(listener) = self.http {
            tasks.spawn("local-http", serve(listener, served.anonymous(), serving(None)));
        }
        Ok(())
    }
}

/// The local API without listeners, for a simulation: callers hand in requests, with the operator's token or that of a
/// service account.
#[cfg(feature = "simulation")]
pub(crate) fn without_listeners(
    tasks: &Tasks,
    parts: LocalApiParts,
    operator: &str,
    stop: &CancellationToken,
) -> ApiServer {
    Served::spawn(tasks, parts, stop).with_tokens(Some(operator))
}

/// The API behind all listeners.
struct Served {
    store: Store,
    registry: Registry,
    reads: Arc<Reads>,
    writes: Arc<dyn WriteBackend>,
    token_requests: Arc<TokenRequests>,
    bearer_tokens: Arc<BearerTokens>,
    decisions: Arc<Decisions>,
    discovery: Arc<Discovery>,
    definitions: Arc<Definitions>,
    stop: CancellationToken,
}

impl Served {
    /// Starts what the API needs to answer.
    fn spawn(tasks: &Tasks, parts: LocalApiParts, stop: &CancellationToken) -> Self {
        let (store, hub, clock) = (parts.store.clone(), parts.writer.hub.clone(), parts.clock.clone());
        let documents = Documents { store, hub, clock };
        let keys = Keys::load(documents.clone());
        let served = Self::new(parts, documents, Arc::clone(&keys), stop);
        spawn_until(tasks, "issuer-keys", stop, keys.keep());
        spawn_until(tasks, "discovery", stop, Arc::clone(&served.discovery).keep());
        tasks.spawn("decisions", Arc::clone(&served.decisions).write(stop.clone()));
        served
    }

    fn new(parts: LocalApiParts, documents: Documents, keys: Arc<Keys>, stop: &CancellationToken) -> Self {
        let LocalApiParts { store, subscriptions, writer, clock, kinds, .. } = parts;
        let (node, hub) = (writer.node.clone(), writer.hub.clone());
        let decisions = Decisions::new(store.clone());
        let rights = Arc::new(Rights::new(Arc::clone(&decisions), hub.clone(), clock.clone()));
        let (own, asked) = (store.clone(), hub.clone());
        let followed = subscriptions.clone();
        let reads = AccountReads { store: own, subscriptions, hub: asked, rights };
        let requests = TokenRequests { store: store.clone(), hub: hub.clone(), clock: clock.clone() };
        let writes = cloud_writes(&store, &writer);
        let registry = Registry::new(Kinds::builtin());
        let discovery = Discovery::load(documents, registry.clone(), kinds);
        let definitions = Arc::new(Definitions::new(followed, Arc::clone(&discovery)));
        let bearer = BearerTokens::new(node.clone(), store.clone(), hub, clock, keys);
        Self {
            registry,
            discovery,
            definitions,
            reads: Arc::new(Reads::new(node, reads)),
            writes,
            token_requests: Arc::new(requests),
            bearer_tokens: Arc::new(bearer),
            decisions,
            stop: stop.clone(),
            store,
        }
    }

    fn builder(&self) -> Builder {
        ApiServer::builder(Arc::new(self.store.clone()), self.registry.clone())
            .authorizer(Arc::new(Informed {
                inner: access::LocalAuthorizer,
                discovery: Arc::clone(&self.discovery),
                definitions: Arc::clone(&self.definitions),
            }))
            .sources(Arc::clone(&self.reads) as Arc<dyn Sources>)
            .watches_max(WATCHES_MAX)
            .connections_max(CONNECTIONS_MAX)
            .answers_len_max(ANSWERS_LEN_MAX)
            .bodies_len_max(BODIES_LEN_MAX)
            .stop(self.stop.clone())
    }

    /// For callers with tokens: those of service accounts, and the operator's token of the kubeconfig if given.
    fn with_tokens(&self, operator: Option<&str>) -> ApiServer {
        let authenticator = TokenAuthenticator::new(operator, Arc::clone(&self.bearer_tokens));
        let api = self.builder().shared_out_among_pods(callers::OPERATOR);
        let api = api.authenticator(Arc::new(authenticator)).writes(Arc::clone(&self.writes));
        let api = api.endpoint("", "serviceaccounts", "token", Arc::clone(&self.token_requests) as _);
        let (tokens, decisions) = (Arc::clone(&self.bearer_tokens), Arc::clone(&self.decisions));
        let reviews = Arc::new(Reviews { tokens, decisions });
        let review = |api: Builder, (group, resource): &(&str, &str)| {
            api.endpoint(group, resource, "", Arc::clone(&reviews) as _)
        };
        reviews::REVIEWS.iter().fold(api, review).build()
    }

    fn anonymous(&self) -> ApiServer {
        self.builder().authenticator(Arc::new(Anonymous)).build()
    }
}

/// Runs a task until the agent stops.
pub(crate) fn spawn_until(
    tasks: &Tasks,
    name: &'static str,
    stop: &CancellationToken,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let stop = stop.clone();
    tasks.spawn(name, async move {
        stop.run_until_cancelled(task).await;
    });
}

async fn optional(
    setting: &'static str,
    address: Option<SocketAddr>,
) -> Result<Option<TcpListener>, LocalApiError> {
    Ok(match address {
        Some(address) => Some(tcp(setting, address).await?),
        None => None,
    })
}

/// Passes writes of local clients on to the cloud, as this node or as the caller.
pub(crate) fn cloud_writes(store: &Store, writer: &Writer) -> Arc<dyn WriteBackend> {
    Arc::new(write::CloudWrites::new(store.clone(), writer.clone()))
}

/// Parts that writes of local clients need: the connection, and the detector of kubelets.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    pub(crate) node: NodeId,
    pub(crate) hub: SharedHub,
    pub(crate) kubelet: Kubelet,
}

#[expect(clippy::needless_pass_by_value, reason = "made for map_err")]
fn certificate(error: impl ToString) -> LocalApiError {
    LocalApiError::Certificate(error.to_string())
}
