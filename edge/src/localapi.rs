//! The local Kubernetes API: what the store holds, for programs on this machine.
//!
//! HTTPS serves whoever has the credentials of the kubeconfig; plain HTTP, when it is on, serves anonymous readers
//! everything but Secrets (design 9.5). Writes go through to the cloud as this node; without a connection they are
//! refused in a way that clients try again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tombolo_apiserve::api::ApiServer;
use tombolo_apiserve::backend::WriteBackend;
use tombolo_apiserve::kinds::Kinds;
use tombolo_apiserve::registry::Registry;
use tombolo_apiserve::server::{Serving, serve};
use tombolo_apiserve::sources::Sources;
use tombolo_proto::ids::NodeId;
use tombolo_runtime::Tasks;
use tombolo_runtime::listen::{ListenError, tcp};

use crate::config::Config;
use crate::hub::HubHandle;
use crate::identity::IdentityError;
use crate::store::Store;
use crate::subscriptions::Subscriptions;

mod access;
mod credentials;
mod reads;
mod revision;
mod write;

pub(crate) use credentials::{KUBECONFIG_FILE, LocalCredentials};

/// Seconds after which a client should try again when the cloud is away.
const RETRY_AFTER_SECONDS: u32 = 5;

/// Time for requests under way when the agent stops.
const GRACE: Duration = Duration::from_secs(2);

/// The local API with its listeners bound.
pub(crate) struct LocalApi {
    https: TcpListener,
    http: Option<TcpListener>,
    credentials: LocalCredentials,
}

/// Why the local API cannot be served.
#[derive(Debug, Error)]
pub enum LocalApiError {
    /// An address cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The credentials cannot be kept.
    #[error(transparent)]
    Credentials(#[from] IdentityError),
    /// The serving certificate cannot be made.
    #[error("the local API's certificate cannot be used: {0}")]
    Certificate(String),
}

impl LocalApi {
    /// Binds the listeners and writes the kubeconfig.
    pub(crate) async fn bind(config: &Config) -> Result<Self, LocalApiError> {
        let https = tcp("localApi.https", config.local_api.https).await?;
        let http = match config.local_api.http {
            Some(address) => Some(tcp("localApi.http", address).await?),
            None => None,
        };
        let credentials = LocalCredentials::load(&config.data_dir)?;
        let local = Self { https, http, credentials };
        local.credentials.write_kubeconfig(&config.data_dir, &config.node_name, local.https_addr(config))?;
        Ok(local)
    }

    /// Address of the HTTPS listener.
    pub(crate) fn https_addr(&self, config: &Config) -> SocketAddr {
        self.https.local_addr().unwrap_or(config.local_api.https)
    }

    /// Address of the plain listener, when there is one.
    pub(crate) fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref()?.local_addr().ok()
    }

    /// Serves until `stop` is cancelled.
    pub(crate) fn spawn(
        self,
        tasks: &Tasks,
        node: NodeId,
        store: &Store,
        subscriptions: &Subscriptions,
        hub: HubHandle,
        stop: &CancellationToken,
    ) -> Result<(), LocalApiError> {
        let registry = Registry::new(Kinds::builtin());
        let reads = Arc::new(reads::Reads::new(node, store.clone(), subscriptions.clone()));
        let served: Arc<dyn tombolo_apiserve::store::Store> = Arc::new(store.clone());
        let address = self.https.local_addr().ok();
        let tls = self.credentials.server_config(address.map(|address| address.ip()))?;
        let api = ApiServer::builder(Arc::clone(&served), registry.clone())
            .authenticator(Arc::new(access::TokenAuthenticator::new(self.credentials.token())))
            .authorizer(Arc::new(access::LocalAuthorizer))
            .sources(Arc::clone(&reads) as Arc<dyn Sources>)
            .writes(cloud_writes(store, hub))
            .stop(stop.clone())
            .build();
        let serving = Serving { tls: Some(Arc::new(tls)), stop: stop.clone(), grace: GRACE };
        tasks.spawn("local-api", serve(self.https, api, serving));
        if let Some(listener) = self.http {
            let api = ApiServer::builder(served, registry)
                .sources(reads)
                .authenticator(Arc::new(access::Anonymous))
                .authorizer(Arc::new(access::LocalAuthorizer))
                .stop(stop.clone())
                .build();
            let serving = Serving { tls: None, stop: stop.clone(), grace: GRACE };
            tasks.spawn("local-http", serve(listener, api, serving));
        }
        Ok(())
    }
}

/// Writes of local clients: through to the cloud, as this node.
pub(crate) fn cloud_writes(store: &Store, hub: HubHandle) -> Arc<dyn WriteBackend> {
    Arc::new(write::ThroughTheCloud::new(store.clone(), hub))
}
