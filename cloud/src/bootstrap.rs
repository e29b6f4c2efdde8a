//! How nodes join: the certificate authority, join tokens and the join port, byte-compatible with KubeEdge
//! (reference section 4) and without its holes (reference 13.1, items 4, 29, 38 and 39; 13.2, item 23).
//!
//! - One CA per cluster, created by compare-and-swap in Secret `casecret`; two replicas can never make two.
//! - A node's certificate carries the node's name and nothing else, whatever the request wished for.
//! - A token lets any new node in until it expires. It never takes over the name of a node that is Ready.
//! - A node renews with its certificate, also with one that expired while it was away, within a grace period and
//!   as long as its Node object exists.

mod authority;
mod csr;
mod error;
mod files;
mod inspect;
mod listener;
mod nodes;
mod peer;
mod pem;
mod routes;
mod secrets;
mod storage;
mod token;
mod upkeep;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kube::Client;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tombolo_link::tls::ServerTls;
use tombolo_runtime::Drain;
use tombolo_runtime::door::{Door, DoorLimits};

pub use error::BootstrapError;
pub use inspect::{CertificateFacts, Inspection, TokenFacts, inspect};
pub use nodes::{ClusterNodes, NodeLookupError, NodeReadiness, NodeState};
pub use pem::{CertificateFiles, PemPair};
pub use secrets::{ClusterSecrets, SecretData, SecretError, SecretStore, StoredSecret};
pub use token::JoinTokens;

use authority::{Authority, KeyedCertificate, LEAF_LIFE};
use files::KeyFolder;
use peer::Judge;
use upkeep::Token;

/// Namespace of the Secrets: KubeEdge's, so that a fleet keeps its CA when it changes over.
pub const NAMESPACE: &str = "kubeedge";

/// How long an expired node certificate may still be renewed with, by default.
const EXPIRED_GRACE: Duration = Duration::from_secs(30 * 86_400);

/// How often the join token changes, by default; each is valid for twice as long.
const TOKEN_REFRESH: Duration = Duration::from_secs(12 * 3600);

/// Settings of the join part.
#[derive(Debug, Clone)]
pub struct Options {
    /// Namespace of the Secrets.
    pub namespace: String,
    /// Host names and IP addresses by which edges reach the hub, without ports: the server certificate names them.
    pub advertise: Vec<String>,
    /// How often the join token changes; each is valid for twice as long.
    pub token_refresh: Duration,
    /// How long an expired node certificate may still be renewed with.
    pub expired_grace: Duration,
    /// How long a node's certificate is valid.
    pub node_life: Duration,
    /// Certificates and keys that the operator keeps in files.
    pub files: CertificateFiles,
    /// Folder that also holds the CA, for a cloudcore with an embedded API server (design 9.15).
    pub pki_dir: Option<PathBuf>,
    /// Connections to the join port, of one source and of all.
    pub places: DoorLimits,
}

impl Options {
    /// Default settings for a hub with these addresses.
    #[must_use]
    pub fn new(advertise: Vec<String>) -> Self {
        Self {
            namespace: NAMESPACE.to_owned(),
            advertise,
            token_refresh: TOKEN_REFRESH,
            expired_grace: EXPIRED_GRACE,
            node_life: LEAF_LIFE,
            files: CertificateFiles::default(),
            pki_dir: None,
            places: tombolo_link::server::PLACES,
        }
    }
}

/// Wall clock of certificates and tokens.
pub type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// What the join part works with, for tests and for other stores than a cluster's.
#[derive(Clone)]
pub struct Parts {
    /// Where CA, server certificate and token are kept.
    pub secrets: Arc<dyn SecretStore>,
    /// Who is Ready.
    pub nodes: Arc<dyn NodeReadiness>,
    /// What time it is.
    pub clock: WallClock,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// CA, tokens and server certificate, ready to serve.
#[derive(Clone)]
pub struct Bootstrap {
    inner: Arc<Inner>,
}

struct Inner {
    authority: Arc<Authority>,
    judge: Judge,
    secrets: Arc<dyn SecretStore>,
    nodes: Arc<dyn NodeReadiness>,
    clock: WallClock,
    addresses: Vec<String>,
    token_refresh: Duration,
    expired_grace: Duration,
    node_life: Duration,
    /// Set when the hub's certificate is the operator's.
    server_files: Option<PemPair>,
    tokens: watch::Sender<String>,
    server_tls: ServerTls,
    acceptor: TlsAcceptor,
    door: Door,
    /// What the upkeep starts from; taken by the first call of `serve`.
    start: Mutex<Option<(Token, KeyedCertificate)>>,
}

impl Inner {
    fn now(&self) -> SystemTime {
        (self.clock)()
    }
}

impl std::fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bootstrap").field("authority", &self.inner.authority).finish_non_exhaustive()
    }
}

impl Bootstrap {
    /// Finds or makes the CA, the server certificate and the join token in a cluster.
    ///
    /// # Errors
    /// [`BootstrapError`] when the Secrets cannot be read or written, or what they hold is unusable.
    pub async fn prepare(client: Client, options: Options) -> Result<Self, BootstrapError> {
        let parts = Parts {
            secrets: Arc::new(ClusterSecrets::new(client.clone(), &options.namespace)),
            nodes: Arc::new(ClusterNodes::new(client)),
            clock: Arc::new(SystemTime::now),
        };
        Self::with_parts(parts, options).await
    }

    /// As [`Self::prepare`], with other stores and another clock.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub async fn with_parts(parts: Parts, options: Options) -> Result<Self, BootstrapError> {
        let Parts { secrets, nodes, clock } = parts;
        if options.advertise.is_empty() {
            let reason = "there is none, so that no edge could verify the hub".to_owned();
            return Err(BootstrapError::Address { addresses: String::new(), reason });
        }
        let now = clock();
        let folder = options.pki_dir.map(KeyFolder);
        let CertificateFiles { authority: authority_files, server: server_files } = options.files;
        let authority =
            Arc::new(storage::authority(&*secrets, authority_files.as_ref(), folder.as_ref(), now).await?);
        let given = storage::given_server_certificate(&*secrets, server_files.as_ref(), &authority).await?;
        let server_files = server_files.filter(|_| given.is_some());
        let pair = match given {
            Some(given) => given,
            None => storage::server_certificate(&*secrets, &authority, &options.advertise, now).await?,
        };
        let server_tls = ServerTls::new(upkeep::identity(&pair, &authority)?, &[authority.certificate()])?;
        let mut token = upkeep::token(&*secrets, &authority, options.token_refresh, now).await?;
        // Who waits for cloudcore to be ready reads the token next. Its edges do not wait for that.
        if let Err(error) = upkeep::store(&*secrets, &mut token).await {
            tracing::warn!(%error, "join token could not be stored; it will be tried again");
        }
        Ok(Self {
            inner: Arc::new(Inner {
                judge: Judge::new(authority.certificate(), tombolo_link::tls::provider())?,
                acceptor: listener::tls(&server_tls)?,
                door: Door::new(options.places),
                tokens: watch::Sender::new(token.text.clone()),
                start: Mutex::new(Some((token, pair))),
                addresses: options.advertise,
                token_refresh: options.token_refresh,
                expired_grace: options.expired_grace,
                node_life: options.node_life,
                server_files,
                authority,
                secrets,
                nodes,
                clock,
                server_tls,
            }),
        })
    }

    /// The hub's certificate and the CA of nodes, for the hub's listeners; renewals reach them by themselves while
    /// [`Self::serve`] runs.
    #[must_use]
    pub fn server_tls(&self) -> &ServerTls {
        &self.inner.server_tls
    }

    /// Who is at the join port.
    #[must_use]
    pub fn door(&self) -> Door {
        self.inner.door.clone()
    }

    /// The CA's certificate.
    #[must_use]
    pub fn authority(&self) -> CertificateDer<'static> {
        self.inner.authority.certificate()
    }

    /// The present join token and those that follow it.
    #[must_use]
    pub fn join_tokens(&self) -> JoinTokens {
        JoinTokens(self.inner.tokens.subscribe())
    }

    /// Serves the join port and keeps token and server certificate fresh until the drain ends. Spawn it once.
    pub fn serve(
        &self,
        listener: TcpListener,
        drain: Drain,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let inner = Arc::clone(&self.inner);
        let start = inner.start.lock().take();
        async move {
            let serving = listener::run(Arc::clone(&inner), listener, drain.clone());
            match start {
                Some((token, pair)) => {
                    let token = upkeep::keep_token(Arc::clone(&inner), token);
                    let certificate = upkeep::keep_certificate(inner, pair);
                    let upkeep = async { futures::join!(token, certificate).0 };
                    futures::join!(serving, upkeep::until_drained(&drain, upkeep));
                }
                None => serving.await,
            }
        }
    }
}

#[cfg(test)]
mod tests;
