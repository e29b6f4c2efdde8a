//! The embedded Kubernetes API server of `tombolo apiserver` and `tombolo up`: one process, one data directory, no
//! cluster. It is for development and tests; in production, use a real cluster (docs/operations.md#without-a-cluster).
//!
//! Objects live in memory and in a journal. This crate has authentication, authorization, admission and the controllers
//! that every cluster has; the list, watch and write logic is in [`tombolo_apicore`].

mod admission;
mod audit;
mod authn;
mod authz;
mod bootstrap;
mod controllers;
mod datadir;
mod endpoints;
mod error;
mod flows;
mod health;
mod indexed;
mod journal;
mod kubeconfig;
mod metrics;
mod nodes;
mod objects;
mod openid;
mod options;
mod pki;
mod quota;
mod selector;
mod server;
mod serving;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tombolo_apicore::api::ApiServer;
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::memory::{MemoryStore, Rules, WriterShares};
use tombolo_apicore::server::{Serving, serve};
use tombolo_runtime::{Drain, Tasks};

pub use self::datadir::{UP_FILE, is_data_dir};
pub use self::error::EmbeddedError;
pub use self::options::{LISTEN, Options, SERVICE_CIDR, STORE_MEBIBYTES};
pub use tombolo_apicore::version;

use self::admission::addresses::{Reservations, ServiceClaims, ServiceRange};
use self::authz::Authorization;
use self::controllers::ownership::Ownership;
use self::datadir::DataDir;
use self::health::Started;
use self::indexed::{IndexedJournal, Indexes};
use self::journal::{OpenStorage, RedbJournal};
use self::objects::{Objects, core};
use self::options::NODE_SHARE;
use self::pki::Pki;
use self::serving::Renewal;

/// Time for current requests to end when the server stops.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// How long to try the port of the last run. kubeconfigs name that port, and the previous process may still be
/// stopping.
const KEPT_PORT_WITHIN: Duration = Duration::from_secs(1);

/// Events may use at most `1/EVENTS_SHARE` of the store.
const EVENTS_SHARE: u64 = 4;

/// `1/OTHERS_SHARE` of the store is reserved for writers other than nodes.
const OTHERS_SHARE: u64 = 10;

/// Wait between two tries.
const KEPT_PORT_RETRY: Duration = Duration::from_millis(20);

/// Starts embedded API servers.
#[derive(Debug)]
pub struct Embedded;

impl Embedded {
    /// Opens the data directory, reads the objects, binds the listener and writes the kubeconfig. Requests are
    /// answered once [`Bound::run`] is polled.
    ///
    /// # Errors
    /// [`EmbeddedError`]: the directory is in use, damaged or of another version, or the port is taken.
    pub async fn start(options: Options) -> Result<Bound, EmbeddedError> {
        Self::start_on(options, Box::new(journal::file_storage)).await
    }

    /// Like [`Self::start`], on another storage: tests use failing disks.
    async fn start_on(options: Options, storage: Box<OpenStorage>) -> Result<Bound, EmbeddedError> {
        let range = ServiceRange::parse(&options.service_cidr)?;
        let data_dir = DataDir::open(&options.data_dir)?;
        let pki = Arc::new(Pki::open(&options.data_dir, IpAddr::V4(range.kubernetes()), SystemTime::now())?);
        let indexes = Indexes {
            authorization: Authorization::new(bootstrap::node_rules()),
            ownership: Ownership::default(),
            reservations: Reservations::default(),
            webhooks: admission::webhooks::Index::default(),
            policies: admission::policies::Policies::default(),
            flows: flows::Flows::default(),
        };
        let (store, journal) = open_store(&data_dir, storage, &indexes, options.store_len_max)?;
        let disk = Disk { journal, data_dir };
        let data_dir = &disk.data_dir;
        let objects = Objects::new(store);
        let facts = bootstrap::ServerFacts {
            service_cidr: &options.service_cidr,
            ca_certificate: pki.ca_certificate(),
        };
        bootstrap::ensure(&objects, &facts).await?;
        let listener = listen(&options, data_dir).await?;
        let address =
            listener.local_addr().map_err(|source| EmbeddedError::Listen { addr: options.listen, source })?;
        data_dir.keep_port(address.port())?;
        let host = match address.ip() {
            IpAddr::V4(v4) if !v4.is_unspecified() => v4,
            _ => Ipv4Addr::LOCALHOST,
        };
        bootstrap::ensure_service(&objects, range.kubernetes(), host, address.port()).await?;
        let kubeconfig =
            kubeconfig::write(&options.data_dir, SocketAddr::from((host, address.port())), &pki)?;
        let stop = CancellationToken::new();
        let parts = server::ServerParts {
            objects,
            range,
            pki: Arc::clone(&pki),
            indexes,
            options: &options,
            stop: stop.clone(),
        };
        let server::Built { api, context, tls, started } = server::build(parts)?;
        let shown = SocketAddr::from((host, address.port()));
        let renewal = Renewal::new(Arc::clone(&pki), tls, options.data_dir.clone(), shown);
        Ok(Bound { address, kubeconfig, pki, listener, api, context, renewal, started, stop, _disk: disk })
    }
}

/// The store with the objects of earlier runs.
fn open_store(
    data_dir: &DataDir,
    storage: Box<OpenStorage>,
    indexes: &Indexes,
    len_max: u64,
) -> Result<(MemoryStore, RedbJournal), EmbeddedError> {
    let (journal, restored) = RedbJournal::open(&data_dir.join("objects.redb"), storage)?;
    for object in &restored.objects {
        indexes.apply(object, false);
    }
    let indexed = Box::new(IndexedJournal { journal: journal.clone(), indexes: indexes.clone() });
    let newest = restored.revision.max(MemoryStore::START);
    // Every user who may write objects may write events, and events expire anyway.
    let shares = HashMap::from([(core("events"), len_max / EVENTS_SHARE)]);
    let writers = WriterShares {
        prefix: "system:node:",
        share: len_max / NODE_SHARE,
        all: len_max.saturating_sub(len_max / OTHERS_SHARE),
    };
    let mut rules = Rules { len_max, shares, writers: Some(writers), ..Rules::default() };
    rules.claims = Some(Arc::new(ServiceClaims));
    let limits = LogLimits::default();
    Ok((MemoryStore::restore(newest, restored.objects, Some(indexed), limits, rules), journal))
}

/// Resources that only one server may hold. The journal is closed before the lock of the directory is released: a
/// request or controller that is still stopping must not write into the next server's file.
struct Disk {
    journal: RedbJournal,
    data_dir: DataDir,
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.journal.close();
    }
}

async fn listen(options: &Options, data_dir: &DataDir) -> Result<TcpListener, EmbeddedError> {
    let bind = async |addr: SocketAddr| {
        TcpListener::bind(addr).await.map_err(|source| EmbeddedError::Listen { addr, source })
    };
    if let (0, Some(kept)) = (options.listen.port(), data_dir.port()) {
        let addr = SocketAddr::new(options.listen.ip(), kept);
        let until = Instant::now() + KEPT_PORT_WITHIN;
        loop {
            match bind(addr).await {
                Ok(listener) => return Ok(listener),
                Err(_) if Instant::now() < until => tokio::time::sleep(KEPT_PORT_RETRY).await,
                Err(error) => {
                    tracing::warn!(%error, "the port of the last run is in use; using another one");
                    break;
                }
            }
        }
    }
    bind(options.listen).await
}

/// An embedded API server that listens and is ready to run.
pub struct Bound {
    address: SocketAddr,
    kubeconfig: PathBuf,
    pki: Arc<Pki>,
    listener: TcpListener,
    api: ApiServer,
    context: Arc<controllers::Context>,
    renewal: Renewal,
    started: Started,
    stop: CancellationToken,
    _disk: Disk,
}

impl Bound {
    /// The address on which it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The administrator's kubeconfig, mode 0600.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The folder with the authority's certificate (`ca.crt`) and the service-account keys (`sa.key`, `sa.pub`), for
    /// control-plane components that run beside this server.
    #[must_use]
    pub fn pki_folder(&self) -> &Path {
        self.pki.folder()
    }

    /// Serves until the drain starts, then lets current requests end.
    ///
    /// # Errors
    /// [`EmbeddedError::Task`] when a part of the server failed.
    pub async fn run(self, drain: Drain) -> Result<(), EmbeddedError> {
        let tasks = Tasks::new();
        controllers::start(&self.context, &tasks);
        self.started.set();
        let tls = self.renewal.serving.config()?;
        tasks.spawn("embedded.certificates", self.renewal.run());
        let serving = Serving { tls: Some(tls), stop: self.stop.clone(), grace: STOP_GRACE };
        let server = serve(self.listener, self.api, serving);
        tokio::pin!(server);
        let result = tokio::select! {
            ended = &mut server => ended.map_err(EmbeddedError::Serve),
            failure = tasks.failed() => Err(EmbeddedError::Task(failure)),
            () = drain.started() => {
                self.stop.cancel();
                tokio::select! {
                    ended = &mut server => ended.map_err(EmbeddedError::Serve),
                    () = drain.aborted() => Ok(()),
                }
            }
        };
        tasks.abort();
        result
    }
}

impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bound")
            .field("address", &self.address)
            .field("kubeconfig", &self.kubeconfig)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
