//! Builds and runs one agent. All listeners are bound before any task starts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus_client::registry::Registry;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tombolo_grid::{Hosts, OwnPods};
use tombolo_proto::ids::NodeId;
use tombolo_runtime::admin::{self, AdminState};
use tombolo_runtime::listen::ListenError;
use tombolo_runtime::{Drain, Readiness, TaskError, Tasks, blocking};
use tracing::warn;

use crate::address::NodeAddress;
use crate::config::{Config, ConfigError};
use crate::dns::{Dns, DnsMetrics, DnsParts, Machine};
use crate::hosts::{self, HostsParts};
use crate::hub::{
    Client, ClientParts, Dial, HubHandle, KindsPublisher, KnownKinds, NetworkDialer, SharedHub,
};
use crate::identity::{CloudRenewal, Identity, IdentityError, WallClock, rotate};
use crate::kubelet::Kubelet;
use crate::localapi::{LocalApi, LocalApiError, LocalApiParts, Writer, cloud_writes, spawn_until};
use crate::metrics::Metrics;
use crate::own_pods;
use crate::status::StatusHandle;
use crate::store::{OpenError, Store};
use crate::subscriptions::{SelectionRegistry, Subscriptions};
use crate::upstream::Upstream;
use crate::wrapper::{Kubernetes, Projection, Wrapper, WrapperError, WrapperMetrics, WrapperParts};

/// Time for tasks to end when the agent stops.
const GRACE: Duration = Duration::from_secs(5);

/// How often sizes of the store are measured for metrics.
const MEASURE_INTERVAL: Duration = Duration::from_secs(5);

/// Why the agent cannot start or go on.
#[derive(Debug, Error)]
pub enum AppError {
    /// A setting cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The node has no usable identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The store has failed and no longer works.
    #[error(
        "the store has failed: {0}; edgecore stops and salvages what can be read from the store at its next start"
    )]
    StoreFailed(String),
    /// An address cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The local API cannot be served.
    #[error(transparent)]
    LocalApi(#[from] LocalApiError),
    /// The wrapper cannot be served.
    #[error(transparent)]
    Wrapper(#[from] WrapperError),
    /// A task has failed.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The operating system reports an error.
    #[error("{0}")]
    System(String),
}

/// Builds agents.
#[derive(Debug, Clone, Copy)]
pub struct App;

/// An agent that is ready to run: store open, listeners bound, kubeconfig written.
pub struct Bound {
    config: Config,
    line: CloudConnection,
    store: Store,
    subscriptions: Subscriptions,
    local: LocalApi,
    network: Network,
    admin: Option<admin::AdminListener>,
    hub: HubHandle,
    address: NodeAddress,
    clock: WallClock,
}

/// The parts of the connection to the cloud.
struct CloudConnection {
    identity: Identity,
    dialer: Box<dyn Dial>,
    client: ClientEnds,
}

struct ClientEnds {
    commands: tokio::sync::mpsc::Receiver<crate::hub::Command>,
    state: watch::Sender<crate::hub::HubState>,
}

impl App {
    /// Opens the store, binds the listeners, writes the kubeconfig. Nothing is sent yet.
    ///
    /// # Errors
    /// [`AppError`] names the problem and how to solve it.
    pub async fn build(config: Config) -> Result<Bound, AppError> {
        let dialer = Box::new(NetworkDialer::new(&config.cloud, config.dialect, config.node_name.clone())?);
        Self::with_dialer(config, dialer).await
    }

    async fn with_dialer(config: Config, dialer: Box<dyn Dial>) -> Result<Bound, AppError> {
        config.validate()?;
        let identity = Identity::load(&config.data_dir, &config.node_name)?;
        let folder = config.data_dir.clone();
        let opened = blocking::run(move || Store::open_patiently(&folder)).await;
        let opened = opened.map_err(|error| AppError::System(error.to_string()))??;
        let subscriptions = Subscriptions::load(opened.store.clone()).await;
        let subscriptions = subscriptions.map_err(|error| AppError::System(error.to_string()))?;
        let local = LocalApi::bind(&config).await?;
        let wrapper = Wrapper::bind(&config.wrapper).await?;
        let dns = Dns::bind(&config.dns).await?;
        let admin = config.admin.map(|address| admin::bind("admin", address)).transpose()?;
        let (hub, commands, state) = HubHandle::new();
        let client = ClientEnds { commands, state };
        let store = opened.store;
        let clock = WallClock::system();
        let line = CloudConnection { identity, dialer, client };
        let network = Network { wrapper, dns, queue: config.wrapper.watch_queue };
        let address = NodeAddress::find(&config).await;
        Ok(Bound { config, line, store, subscriptions, local, network, admin, hub, address, clock })
    }
}

impl Bound {
    /// Name of the node.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.config.node_name
    }

    /// Warnings about settings that cannot take effect.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.config.warnings()
    }

    /// Address of the local API over HTTPS.
    #[must_use]
    pub fn local_api_addr(&self) -> SocketAddr {
        self.local.https_addr(&self.config)
    }

    /// Replaces the system clock when checking tokens. For tests of long periods.
    #[must_use]
    pub fn with_clock(self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self { clock: WallClock::new(now), ..self }
    }

    /// Address of the wrapper, when it is on.
    #[must_use]
    pub fn wrapper_addr(&self) -> Option<SocketAddr> {
        self.network.wrapper.as_ref().map(Wrapper::local_addr)
    }

    /// The kubeconfig of the local API, as written to the data folder.
    ///
    /// # Errors
    /// [`AppError::System`] when the file cannot be read.
    pub fn kubeconfig(&self) -> Result<String, AppError> {
        let path = self.config.data_dir.join(crate::localapi::KUBECONFIG_FILE);
        std::fs::read_to_string(&path)
            .map_err(|error| AppError::System(format!("{}: {error}", path.display())))
    }

    /// A handle to read the agent's status from outside.
    #[must_use]
    pub fn status(&self) -> StatusHandle {
        StatusHandle::new(self.config.node_name.clone(), self.store.clone(), self.hub.clone())
    }

    /// Runs the agent until the drain starts.
    ///
    /// # Errors
    /// [`AppError`] when a task fails; all other tasks are then stopped.
    pub async fn run(self, drain: Drain) -> Result<(), AppError> {
        let tasks = Tasks::new();
        let stop = CancellationToken::new();
        let store = self.store.clone();
        if let Err(error) = store.trust_locally(self.local_ca()).await {
            warn!(%error, "cannot add the local API's CA to the CA bundles of pods");
        }
        let _admin = self.spawn(&tasks, &stop, &drain)?;
        let failed = tokio::select! {
            // Checked first: other failures at this point are consequences of this one.
            biased;
            why = store.failed() => Some(AppError::StoreFailed(why)),
            () = drain.started() => None,
            error = tasks.failed() => Some(AppError::Task(error)),
        };
        stop.cancel();
        let ended = tasks.shutdown(GRACE).await;
        store.close().await;
        match failed {
            Some(error) => Err(error),
            None => ended.map_err(AppError::Task),
        }
    }

    /// The CA of the local API, if pods can reach it under the name of the cluster's API.
    fn local_ca(&self) -> Option<String> {
        let reached = !self.local.https_addr(&self.config).ip().is_loopback();
        (reached || self.local.pods_addr().is_some()).then(|| self.local.ca_pem().to_owned())
    }

    fn spawn(
        self,
        tasks: &Tasks,
        stop: &CancellationToken,
        drain: &Drain,
    ) -> Result<Option<admin::AdminHandle>, AppError> {
        let Self { config, line, store, subscriptions, local, network, admin, hub, address, clock } = self;
        let mut rng = StdRng::from_os_rng();
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let readiness = Readiness::new();
        let synced = readiness.wait_for("first synchronisation with the cloud");
        let shared = SharedHub::new(hub.clone());
        let writer = Writer { node: config.node_name.clone(), hub: shared, kubelet: Kubelet::default() };
        let addresses = address.subscribe();
        let listener = local.pods_addr().unwrap_or_else(|| local.https_addr(&config));
        let kubernetes = kubernetes(&config, listener);
        let (pods_sender, pods) = watch::channel(Arc::new(OwnPods::new(config.node_name.as_str())));
        spawn_until(tasks, "own pods", stop, own_pods::publish(Arc::new(store.clone()), pods_sender));
        let parts = WrapperParts {
            node: seen_from(&config).to_owned(),
            source: Arc::new(subscriptions.whole()),
            writes: cloud_writes(&store, &writer),
            kubernetes,
            address: addresses.clone(),
            pods,
            started: SystemTime::now(),
        };
        let names = spawn_names(tasks, &config, &parts, network.dns.is_some(), stop);
        let machine = Machine {
            node: config.node_name.as_str().to_owned(),
            address: addresses.clone(),
            pods: parts.pods.clone(),
        };
        network.spawn(tasks, parts, (names, machine), &mut registry, stop);
        let (publisher, kinds) = KindsPublisher::new();
        let parts = LocalApiParts {
            store: store.clone(),
            subscriptions: subscriptions.clone(),
            writer: writer.clone(),
            clock,
            address: addresses.clone(),
            kinds: publisher,
        };
        local.spawn(tasks, parts, stop)?;
        spawn_until(tasks, "subscriptions", stop, subscriptions.clone().keep());
        let sources = (&store, subscriptions.registry(), kinds);
        line.spawn(tasks, &config, sources, &metrics, &mut rng, (stop, drain));
        spawn_until(tasks, "address", stop, address.keep(hub.state()));
        spawn_until(tasks, "measure", stop, measure(store.clone(), Arc::clone(&metrics), synced));
        let upstream = Upstream {
            node: config.node_name,
            settings: config.node,
            simulate_pods: config.simulate_pods,
            address: addresses,
            store,
            hub,
            kubelet: writer.kubelet,
            metrics,
            seed: rng.random(),
            node_gone: Notify::new(),
        };
        upstream.spawn(tasks, stop);
        let state = AdminState { registry: Arc::new(registry), readiness, drain: drain.clone() };
        admin.map(|bound| bound.start(state).map_err(|error| AppError::System(error.to_string()))).transpose()
    }
}

impl CloudConnection {
    fn spawn(
        self,
        tasks: &Tasks,
        config: &Config,
        (store, registry, kinds): (&Store, Arc<SelectionRegistry>, KnownKinds),
        metrics: &Arc<Metrics>,
        rng: &mut StdRng,
        (stop, drain): (&CancellationToken, &Drain),
    ) {
        let (current, observer) = watch::channel(Arc::new(self.identity));
        let renewal = CloudRenewal {
            node: config.node_name.clone(),
            endpoint: config.cloud.join.clone(),
            data_dir: config.data_dir.clone(),
        };
        spawn_until(tasks, "rotation", stop, rotate(renewal, current, rng.random()));
        let owner = Client::new(ClientParts {
            node: config.node_name.clone(),
            store: store.clone(),
            registry,
            dialer: self.dialer,
            identity: observer,
            commands: self.client.commands,
            state: self.client.state,
            metrics: Arc::clone(metrics),
            kinds,
            backoff: config.cloud.back_off.into(),
            rng: StdRng::seed_from_u64(rng.random()),
            // 0 means "not given".
            instance: rng.random_range(1..=u64::MAX),
        });
        tasks.spawn("hub", owner.run(drain.clone()));
    }
}

/// The servers of the wrapper's view: the wrapper itself over HTTP, and the DNS server.
struct Network {
    wrapper: Option<Wrapper>,
    dns: Option<Dns>,
    /// Maximum number of changes queued for one watcher.
    queue: usize,
}

impl Network {
    fn spawn(
        self,
        tasks: &Tasks,
        parts: WrapperParts,
        (names, machine): (watch::Receiver<Option<Arc<Hosts>>>, Machine),
        registry: &mut Registry,
        stop: &CancellationToken,
    ) {
        if self.wrapper.is_none() && self.dns.is_none() {
            return;
        }
        let metrics = WrapperMetrics::register(registry);
        let projection = Projection::spawn(tasks, parts, self.queue, metrics, stop);
        if let Some(wrapper) = self.wrapper {
            wrapper.spawn(tasks, &projection, stop);
        }
        if let Some(dns) = self.dns {
            let parts = DnsParts { source: projection.store(), names, machine };
            dns.spawn(tasks, parts, DnsMetrics::register(registry), stop);
        }
    }
}

/// Where the wrapper points the Service `default/kubernetes`: with `localRewrite` at `listener` (the local API for
/// pods if it is on, else the local API itself).
fn kubernetes(config: &Config, listener: SocketAddr) -> Kubernetes {
    if config.wrapper.local_rewrite { Kubernetes::Local(listener) } else { Kubernetes::AsItIs }
}

/// Name of the Node object whose units determine what this node sees and its uniform names.
fn seen_from(config: &Config) -> &str {
    config.wrapper.node_name.as_ref().unwrap_or(&config.node_name).as_str()
}

/// Computes uniform names if the hosts file or the DNS server needs them. They have the same source as the wrapper's
/// view.
fn spawn_names(
    tasks: &Tasks,
    config: &Config,
    wrapper: &WrapperParts,
    asked_here: bool,
    stop: &CancellationToken,
) -> watch::Receiver<Option<Arc<Hosts>>> {
    let (names, published) = watch::channel(None);
    if asked_here || config.dns.hosts_path.is_some() {
        let parts = HostsParts {
            path: config.dns.hosts_path.clone(),
            names,
            node: wrapper.node.clone(),
            domain: config.dns.cluster_domain.clone(),
            period: config.dns.full_sync(),
            source: Arc::clone(&wrapper.source),
            pods: wrapper.pods.clone(),
        };
        spawn_until(tasks, "uniform names", stop, hosts::publish(parts));
    }
    published
}

/// Updates metrics from the store, and marks the agent ready once the store was complete.
async fn measure(store: Store, metrics: Arc<Metrics>, synced: tombolo_runtime::ReadyGuard) {
    let mut synced = Some(synced);
    let mut commits = store.commits();
    loop {
        commits.borrow_and_update();
        if synced.is_some() && store.standing().is_ok_and(|standing| standing.synced) {
            synced = None;
        }
        // This scans every row, so it must not block other tasks.
        let counted = store.clone();
        if let Ok(Ok(counts)) = blocking::run(move || counted.counts()).await {
            let gauge = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            metrics.objects.set(gauge(counts.visible));
            metrics.pods_hidden.set(gauge(counts.hidden));
            metrics.reports_waiting.set(gauge(counts.reports));
        }
        if synced.is_none() {
            tokio::time::sleep(MEASURE_INTERVAL).await;
        }
        if commits.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
