//! Joining of nodes: the certificate authority, join tokens and the join port. Byte-compatible with KubeEdge
//! (docs/reference/kubeedge.md#joining), but without its security holes
//! (docs/reference/kubeedge.md#holes-of-the-join-port).
//!
//! - One CA per cluster, created by compare-and-swap in Secret `casecret`; two replicas can never create two.
//! - A node's certificate contains the node's name and nothing else, whatever the request asks for.
//! - A join token admits the nodes that it names, as often as it says, until it expires. It never takes over the name
//!   of an existing Node, unless it was created for that. KubeEdge's shared token is an option for KubeEdge edges.
//! - A node renews with its certificate, even an expired one within a grace period, as long as its Node object exists
//!   and the certificate is in force ([`identities`]).

mod authority;
mod csr;
mod error;
pub mod identities;
mod inspect;
mod issue;
mod join_tokens;
mod listener;
mod nodes;
mod peer;
mod pem;
mod responses;
mod routes;
mod secrets;
mod shared_token;
mod storage;
mod upkeep;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kube::Client;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tombolo_link::tls::ServerTls;
use tombolo_runtime::connection_limiter::{ConnectionLimiter, ConnectionLimits, Source};
use tombolo_runtime::{Drain, LineLimit, Tasks};

pub use error::BootstrapError;
pub use inspect::{CertificateFacts, Inspection, TokenFacts, inspect};
pub use join_tokens::{NewToken, StoredToken, TokenStoreError, create, delete, list};
pub use nodes::{ClusterNodes, NodeLookup, NodeLookupError, NodeState};
pub use pem::{CertificateFiles, PemPair};
pub use secrets::{ClusterSecrets, OWN_LABEL, SecretData, SecretError, SecretStore, StoredSecret};

use crate::attestation::Attester;
use authority::{Authority, KeyedCertificate, LEAF_LIFE};
use identities::Identities;
use join_tokens::KnownTokens;
use peer::Judge;
use upkeep::Token;

/// Namespace of the Secrets. It is KubeEdge's, so that a fleet keeps its CA after a migration.
pub const NAMESPACE: &str = "kubeedge";

/// Default for how long an expired node certificate can still be renewed.
pub const EXPIRED_GRACE: Duration = Duration::from_secs(30 * 86_400);

/// Default interval at which the join token changes. Each token is valid for twice as long.
const TOKEN_REFRESH: Duration = Duration::from_secs(12 * 3600);

/// Timeout for reading or writing one Secret or Node, so that a joining client gets the error while its connection
/// lives.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Time for work that must be completed before the process ends.
const FINISH_LIMIT: Duration = Duration::from_secs(5);

/// Settings of the join port and its CA.
#[derive(Debug, Clone)]
pub struct Options {
    /// Namespace of the Secrets.
    pub namespace: String,
    /// Host names and IP addresses by which edges reach the hub, without ports. The server certificate contains them.
    pub advertise: Vec<String>,
    /// Whether KubeEdge's shared token is accepted. Its holder can join under any free name.
    pub shared_token: bool,
    /// Interval at which the shared token changes. Each token is valid for twice as long.
    pub token_refresh: Duration,
    /// How long an expired node certificate can still be renewed.
    pub expired_grace: Duration,
    /// How long a node's certificate is valid.
    pub node_life: Duration,
    /// Certificates and keys that the operator keeps in files.
    pub files: CertificateFiles,
    /// Limits for connections to the join port, per source and in total.
    pub connection_limits: ConnectionLimits,
}

impl Options {
    /// Default settings for a hub with these addresses.
    #[must_use]
    pub fn new(advertise: Vec<String>) -> Self {
        Self {
            namespace: NAMESPACE.to_owned(),
            advertise,
            shared_token: false,
            token_refresh: TOKEN_REFRESH,
            expired_grace: EXPIRED_GRACE,
            node_life: LEAF_LIFE,
            files: CertificateFiles::default(),
            connection_limits: tombolo_link::server::CONNECTION_LIMITS,
        }
    }
}

/// Wall clock of certificates and tokens.
pub type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// The dependencies of the join port, replaceable for tests and for other stores than a cluster's.
#[derive(Clone)]
pub struct Parts {
    /// Store of the CA, the server certificate and the tokens.
    pub secrets: Arc<dyn SecretStore>,
    /// Lookup of Nodes.
    pub nodes: Arc<dyn NodeLookup>,
    /// The current time.
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

/// Log lines per minute that one source can cause at the join port, and that all sources together can cause.
const LINES_OF_ONE: u32 = 60;
const LINES_OF_ALL: u32 = 3_000;

/// Maximum number of remembered tokens in [`Inner::excused`]. There cannot be more tokens at a time.
const EXCUSED_MAX: usize = 1000;

/// What the requests at the join port share with the upkeep of tokens and certificates. It has many fields because
/// joins, renewals and the upkeep together need every key, store, setting and limit of the port.
struct Inner {
    /// Serialises the counting of token uses: concurrent writes would only conflict.
    spending: tokio::sync::Mutex<()>,
    known_tokens: KnownTokens,
    /// Hashes of the tokens whose client has hung up during a join.
    excused: Mutex<HashSet<[u8; 32]>>,
    /// Certificates that are being recorded.
    issues: Tasks,
    authority: Arc<Authority>,
    judge: Judge,
    secrets: Arc<dyn SecretStore>,
    identities: Arc<Identities>,
    clock: WallClock,
    addresses: Vec<String>,
    token_refresh: Duration,
    expired_grace: Duration,
    node_life: Duration,
    /// Set when the operator provides the hub's certificate.
    server_files: Option<PemPair>,
    /// Where the operator may provide the authority.
    authority_files: Option<PemPair>,
    /// Whether the shared token is enabled.
    shared_token: bool,
    server_tls: ServerTls,
    acceptor: TlsAcceptor,
    limiter: ConnectionLimiter,
    /// Limit for log lines about requests.
    lines: LineLimit<Source>,
    /// Initial state of the upkeep, taken by the first call of `serve`.
    start: Mutex<Option<(Option<Token>, KeyedCertificate)>>,
}

impl Inner {
    fn now(&self) -> SystemTime {
        (self.clock)()
    }

    /// Whether a client that has hung up during a join with this token is excused. It is for the first time with this
    /// token, as long as there is room to remember the token.
    fn excuse(&self, bearer: &str) -> bool {
        let mut excused = self.excused.lock();
        excused.len() < EXCUSED_MAX && excused.insert(Sha256::digest(bearer).into())
    }
}

impl std::fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bootstrap").field("authority", &self.inner.authority).finish_non_exhaustive()
    }
}

impl Bootstrap {
    /// Loads or creates the CA, the server certificate and the records of certificates in a cluster.
    ///
    /// # Errors
    /// [`BootstrapError`] when the Secrets cannot be read or written, or their content is invalid.
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
            let reason = "the list is empty, so no edge could verify the hub".to_owned();
            return Err(BootstrapError::Address { addresses: String::new(), reason });
        }
        let now = clock();
        let CertificateFiles { authority: authority_files, server: server_files } = options.files;
        let authority = Arc::new(storage::authority(&*secrets, authority_files.as_ref(), now).await?);
        let given = storage::given_server_certificate(&*secrets, server_files.as_ref(), &authority).await?;
        let server_files = server_files.filter(|_| given.is_some());
        let pair = match given {
            Some(given) => given,
            None => storage::server_certificate(&*secrets, &authority, &options.advertise, now).await?,
        };
        let server_tls = ServerTls::new(upkeep::identity(&pair, &authority)?, &[authority.certificate()])?;
        let mut token = None;
        if options.shared_token {
            let mut shared = upkeep::token(&*secrets, &authority, options.token_refresh, now).await?;
            // A client that waits until cloudcore is ready reads the stored token next. The edges need not wait for it.
            if let Err(error) = upkeep::store(&*secrets, &mut shared).await {
                tracing::warn!(%error, "cannot store the join token; trying again");
            }
            token = Some(shared);
        }
        let grace = options.expired_grace.as_secs();
        let identities = Identities::open(Arc::clone(&secrets), nodes, Arc::clone(&clock), grace).await?;
        Ok(Self {
            inner: Arc::new(Inner {
                judge: Judge::new(authority.certificate(), tombolo_link::tls::provider())?,
                acceptor: listener::tls(&server_tls)?,
                limiter: ConnectionLimiter::new(options.connection_limits),
                lines: LineLimit::new(LINES_OF_ONE, LINES_OF_ALL),
                shared_token: token.is_some(),
                identities: Arc::new(identities),
                spending: tokio::sync::Mutex::default(),
                known_tokens: KnownTokens::default(),
                excused: Mutex::default(),
                issues: Tasks::new(),
                start: Mutex::new(Some((token, pair))),
                addresses: options.advertise,
                token_refresh: options.token_refresh,
                expired_grace: options.expired_grace,
                node_life: options.node_life,
                server_files,
                authority_files,
                authority,
                secrets,
                clock,
                server_tls,
            }),
        })
    }

    /// The hub's certificate and the CA of nodes, for the hub's listeners. Renewed certificates reach the listeners
    /// automatically while [`Self::serve`] runs.
    #[must_use]
    pub fn server_tls(&self) -> &ServerTls {
        &self.inner.server_tls
    }

    /// The connection limits of the join port.
    #[must_use]
    pub fn limiter(&self) -> ConnectionLimiter {
        self.inner.limiter.clone()
    }

    /// The CA's certificate.
    #[must_use]
    pub fn authority(&self) -> CertificateDer<'static> {
        self.inner.authority.certificate()
    }

    /// Creates a join token.
    ///
    /// # Errors
    /// [`TokenStoreError`] when it cannot be stored.
    pub async fn create_token(&self, token: &NewToken) -> Result<String, TokenStoreError> {
        join_tokens::create(&*self.inner.secrets, &self.inner.authority.hash(), token, self.inner.now()).await
    }

    /// The attester of the cluster's history.
    pub(crate) fn attester(&self) -> Result<Attester, BootstrapError> {
        self.inner.authority.attester()
    }

    /// The records of certificates in force.
    pub(crate) fn identities(&self) -> Arc<Identities> {
        Arc::clone(&self.inner.identities)
    }

    /// Ends with an error when the authority that this process trusts has been replaced.
    pub(crate) fn authority_stays(&self) -> impl Future<Output = Result<(), BootstrapError>> + use<> {
        upkeep::authority_stays(Arc::clone(&self.inner))
    }

    /// Waits for work that must be completed: recording certificates, and recording the outcome of registrations.
    pub(crate) async fn finish(&self) {
        let issued = self.inner.issues.shutdown(FINISH_LIMIT);
        let identities = &self.inner.identities;
        let settled = async { futures::join!(identities.settle(), identities.end_all_deleted()).1 };
        let settled = tokio::time::timeout(FINISH_LIMIT, settled);
        let (issued, settled) = futures::join!(issued, settled);
        if let Err(error) = issued {
            tracing::warn!(%error, "shutdown interrupted some joins");
        }
        match settled {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(
                    "could not record that the certificates of some deleted Nodes are no longer in force: revoke them"
                );
            }
            Err(_) => tracing::warn!(
                "could not record the outcome of some registrations: a node that has no Node must join again"
            ),
        }
    }

    /// Serves the join port and renews the token and the server certificate until the drain ends. Spawn it once.
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
