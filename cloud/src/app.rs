//! One cloudcore process: it binds all listeners first, then runs until the drain.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus_client::registry::Registry as MetricsRegistry;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tombolo_link::server::{Incoming, Limits, Listen, ServerConfig};
use tombolo_link::{BindError, Clock, server};
use tombolo_proto::Epoch;
use tombolo_proto::frame::GoodbyeReason;
use tombolo_runtime::admin::{AdminHandle, AdminState};
use tombolo_runtime::connection_limiter::ConnectionLimiter;
use tombolo_runtime::listen::{self, ListenError};
use tombolo_runtime::{
    Backoff, BackoffConfig, Budget, Drain, Readiness, ReadyGuard, TaskError, Tasks, admin,
};

use crate::bootstrap::identities::{self, Identities};
use crate::bootstrap::{self, Bootstrap, BootstrapError, NewToken, TokenStoreError};
use crate::config::{Config, WatchEvents};
use crate::edgecontroller::{DownstreamController, INPUTS_MAX, Index, Input, NodeObjectCache, Upstream};
use crate::epoch::{Attestations, CHECK_INTERVAL, ClaimOutcome, EpochError, EpochKeeper};
use crate::grids;
use crate::hub::{ClusterLedgers, Hub, Ledgers, Registry, Subscriptions};
use crate::hub_admission::{Gate, sweep};
use crate::kube::Kube;
use crate::metrics::{Label, Metrics};
use crate::objectsync::{self, ObjectSyncError};
use crate::record::Recorder;
use crate::startup_retry::Patience;
use crate::status::StatusHandle;
use crate::watches;

/// Why cloudcore does not start, or why it stops.
#[derive(Debug, Error)]
pub enum AppError {
    /// Failure of the CA, a join token or the server certificate.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The cluster's epoch cannot be established.
    #[error("cannot establish the epoch: {0}")]
    Epoch(#[from] EpochError),
    /// The records of KubeEdge cloudcore cannot be imported.
    #[error("cannot import KubeEdge cloudcore's records: {0}")]
    ObjectSync(#[from] ObjectSyncError),
    /// A hub listener cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The join or admin listener cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The thread of the admin endpoints cannot be started.
    #[error("cannot start the admin endpoints: {0}")]
    Admin(std::io::Error),
    /// The folder for recordings cannot be used.
    #[error("cannot record into {}: {source}", folder.display())]
    Record {
        /// The folder.
        folder: PathBuf,
        /// The error from the operating system.
        source: std::io::Error,
    },
    /// An essential task failed.
    #[error(transparent)]
    Task(#[from] TaskError),
}

/// Builds a cloudcore.
#[derive(Debug)]
pub struct App;

impl App {
    /// Prepares CA and epoch in the cluster, as soon as its API server answers, and binds every listener. Accepts no
    /// connection yet.
    ///
    /// # Errors
    /// [`AppError`], which says what to change.
    pub async fn build(config: Config, kube: impl Into<Kube>) -> Result<Bound, AppError> {
        let kube = kube.into();
        let mut options = bootstrap::Options::new(advertised(&config));
        options.namespace.clone_from(&config.namespace);
        options.shared_token = config.shared_token;
        options.token_refresh = config.token_refresh;
        options.files.clone_from(&config.certificates);
        options.node_life = config.edge_certificate_life;
        options.connection_limits = config.budgets.connection_limits;
        let mut patience = Patience::default();
        let prepared = || Bootstrap::prepare(kube.client().clone(), options.clone());
        let bootstrap = patience.wait_for(prepared).await?;
        let established = || EpochKeeper::establish(kube.clone(), &config.namespace, &config.data_dir);
        let epoch = patience.wait_for(established).await?;
        let ledgers = ClusterLedgers::new(kube.clone(), &config.namespace);
        let of = epoch.epoch();
        patience.wait_for(|| objectsync::import(&kube, &ledgers, &config.namespace, &of)).await?;
        let listener = |address: Option<SocketAddr>, key: &str| {
            address.map(|address| Listen { address, setting: format!("listen.{key}") })
        };
        let server = ServerConfig {
            websocket: listener(config.listen.websocket, "websocket"),
            quic: listener(config.listen.quic, "quic"),
            kubeedge: true,
            limits: Limits { connection_limits: config.budgets.connection_limits, ..Limits::default() },
        };
        let server = server::bind(&server, bootstrap.server_tls()).await?;
        let join = listen::tcp("listen.join", config.listen.join).await?;
        let join_addr = join.local_addr().unwrap_or(config.listen.join);
        let admin = config.listen.admin.map(|address| admin::bind("listen.admin", address)).transpose()?;
        let tasks = Tasks::new();
        let recorder = config.record.as_deref().map(|folder| record(folder, &tasks)).transpose()?;
        let attestations = Attestations::new(bootstrap.attester()?, epoch.epoch().cluster, epoch.progress());
        let upstream = |upstream: Upstream| upstream.with_identities(bootstrap.identities());
        let (hub, inputs, mut registry) =
            hub(&config, &kube, upstream, (epoch.epoch(), attestations), &tasks, recorder);
        let grids = grids::Metrics::register(&mut registry);
        let readiness = Readiness::new();
        let guards = Guards::new(&readiness);
        let sockets = Sockets { server, join, join_addr, admin };
        let watched = Watched { registry, grids, readiness, guards };
        Ok(Bound { config, kube, bootstrap, epoch, sockets, tasks, hub, inputs, watched })
    }
}

/// A cloudcore whose listeners are bound.
pub struct Bound {
    config: Config,
    kube: Kube,
    bootstrap: Bootstrap,
    epoch: EpochKeeper,
    sockets: Sockets,
    tasks: Tasks,
    hub: Arc<Hub>,
    inputs: mpsc::Receiver<Input>,
    watched: Watched,
}

struct Sockets {
    server: server::BoundListeners,
    join: TcpListener,
    join_addr: SocketAddr,
    admin: Option<admin::AdminListener>,
}

/// State that operators can observe.
struct Watched {
    registry: MetricsRegistry,
    grids: grids::Metrics,
    readiness: Readiness,
    guards: Guards,
}

/// Conditions that keep the process unready.
pub(crate) struct Guards {
    lists: ReadyGuard,
    permission: ReadyGuard,
}

impl Guards {
    pub(crate) fn new(readiness: &Readiness) -> Self {
        Self {
            lists: readiness.wait_for("first lists of nodes, pods, configmaps and secrets"),
            permission: readiness.wait_for("permission to impersonate nodes"),
        }
    }
}

fn record(folder: &Path, tasks: &Tasks) -> Result<Arc<Recorder>, AppError> {
    let recorder = Recorder::start(folder, tasks);
    recorder.map_err(|source| AppError::Record { folder: folder.to_owned(), source })
}

pub(crate) fn hub(
    config: &Config,
    kube: &Kube,
    upstream: impl FnOnce(Upstream) -> Upstream,
    (epoch, attestations): (Epoch, Attestations),
    tasks: &Tasks,
    recorder: Option<Arc<Recorder>>,
) -> (Arc<Hub>, mpsc::Receiver<Input>, MetricsRegistry) {
    let mut registry = MetricsRegistry::default();
    let metrics = Metrics::register(&mut registry);
    kube.register(registry.sub_registry_with_prefix("tombolo_cloud"));
    let (sender, inputs) = mpsc::channel(INPUTS_MAX);
    let down = Arc::new(NodeObjectCache::default());
    let session_bytes = Budget::new(config.budgets.session_bytes);
    let hub = Hub {
        registry: Arc::new(Registry::new(config.node_limit).with_memory(&session_bytes)),
        upstream: upstream(Upstream::new(kube.clone(), Arc::clone(&down)).with_settings(&config.upstream)),
        ledgers: Ledgers::new(
            Arc::new(ClusterLedgers::new(kube.clone(), &config.namespace)),
            &uuid::Uuid::new_v4().to_string(),
        ),
        subscriptions: Subscriptions::new(kube.clone(), tasks.clone(), metrics.clone())
            .with_memory(config.budgets.watch_bytes),
        session_bytes,
        down,
        inputs: sender,
        metrics,
        kubeedge: config.kubeedge,
        epoch: ArcSwap::from_pointee(epoch),
        attestations,
        clock: Clock::start(),
        tasks: tasks.clone(),
        recorder,
    };
    (Arc::new(hub), inputs, registry)
}

impl Bound {
    /// Address of the WebSocket listener.
    #[must_use]
    pub fn websocket_addr(&self) -> Option<SocketAddr> {
        self.sockets.server.websocket_addr()
    }

    /// Address of the QUIC listener.
    #[must_use]
    pub fn quic_addr(&self) -> Option<SocketAddr> {
        self.sockets.server.quic_addr()
    }

    /// Address of the join endpoints.
    #[must_use]
    pub fn join_addr(&self) -> SocketAddr {
        self.sockets.join_addr
    }

    /// Address of the admin endpoints.
    #[must_use]
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.sockets.admin.as_ref().map(admin::AdminListener::local_addr)
    }

    /// Makes a join token.
    ///
    /// # Errors
    /// [`TokenStoreError`] when it cannot be stored.
    pub async fn create_token(&self, token: &NewToken) -> Result<String, TokenStoreError> {
        self.bootstrap.create_token(token).await
    }

    /// The hub, for connections that do not arrive through the listeners.
    #[must_use]
    pub fn hub(&self) -> Arc<Hub> {
        Arc::clone(&self.hub)
    }

    /// A handle for inspecting the running cloudcore.
    #[must_use]
    pub fn status(&self) -> StatusHandle {
        StatusHandle::new(Arc::clone(&self.hub), self.watched.readiness.clone())
    }

    /// Runs until the drain starts, then sends a goodbye to every node and waits until their sessions have ended.
    ///
    /// # Errors
    /// [`AppError::Task`] when an essential task failed.
    pub async fn run(self, drain: Drain) -> Result<(), AppError> {
        let _draining = drain.block();
        let Self { config, kube, bootstrap, epoch, sockets, tasks, hub, inputs, watched } = self;
        let Watched { registry, grids, readiness, guards } = watched;
        let Sockets { server, join, admin, .. } = sockets;
        let state = AdminState { registry: Arc::new(registry), readiness, drain: drain.clone() };
        let admin = admin.map(|admin| admin.start(state)).transpose().map_err(AppError::Admin)?;
        control_edges(&hub, inputs, &kube, &config, guards);
        follow_cluster(&hub, epoch, &kube, &config, &drain);
        let released = control_grids(&tasks, &kube, &config, grids, &drain);
        let identities = bootstrap.identities();
        watch_identities(&tasks, &identities, &kube, &config, &hub);
        tasks.spawn("certificate authority", bootstrap.authority_stays());
        tasks.spawn("join endpoints", bootstrap.serve(join, drain.clone()));
        let incoming = server.start(&tasks, &drain);
        let others = admin.iter().map(AdminHandle::limiter).chain([bootstrap.limiter()]).collect();
        let connections = ConnectionCounts { hub: incoming.stats(), others };
        tasks.spawn("strangers", connections.count(hub.metrics.clone()));
        tasks.spawn("accept", accept(incoming, Arc::clone(&hub), Gate::new(identities)));
        let failure = tokio::select! {
            () = drain.started() => None,
            failure = tasks.failed() => Some(failure),
        };
        hub.end_all(GoodbyeReason::Draining, "this hub is stopping", config.drain_spread);
        let grace = tokio::time::sleep(config.drain_grace);
        tokio::select! {
            _ = async { tokio::join!(all_gone(&hub), released) } => {}
            () = grace => {}
            () = drain.aborted() => {}
        }
        if let Some(recorder) = &hub.recorder {
            recorder.finish().await;
        }
        end_tasks(&tasks, &bootstrap, &drain).await;
        failure.map_or(Ok(()), |failure| Err(failure.into()))
    }
}

/// Starts what decides which objects nodes get, and in whose name their requests are made.
pub(crate) fn control_edges(
    hub: &Arc<Hub>,
    inputs: mpsc::Receiver<Input>,
    kube: &Kube,
    config: &Config,
    guards: Guards,
) {
    if config.upstream.enabled {
        let index = Index::new(Arc::clone(&hub.down)).with_memory(config.budgets.index_bytes);
        let outlet = Arc::clone(&hub.registry);
        hub.tasks.spawn(
            "edgecontroller",
            DownstreamController::new(index, kube.clone(), outlet, guards.lists).run(inputs),
        );
    } else {
        tracing::warn!(
            "the edge controller is disabled: no objects are sent to edges, and their reports are refused"
        );
        drop(guards.lists);
        hub.tasks.spawn("session inputs", discard(inputs));
    }
    hub.tasks.spawn("impersonation probe", probe(kube.clone(), guards.permission));
}

/// Starts the watches of the cluster and of its history, and the housekeeping.
pub(crate) fn follow_cluster(
    hub: &Arc<Hub>,
    epoch: EpochKeeper,
    kube: &Kube,
    config: &Config,
    drain: &Drain,
) {
    let events = config.upstream.enabled.then_some(config.watch_events);
    hub.tasks.spawn("epoch", keep_epoch(kube.clone(), epoch, Arc::clone(hub), events, drain.clone()));
    hub.tasks.spawn("housekeeping", keep_house(Arc::clone(hub)));
}

/// Starts the grid controllers. The returned future completes when another cloudcore may run them.
pub(crate) fn control_grids(
    tasks: &Tasks,
    kube: &Kube,
    config: &Config,
    metrics: grids::Metrics,
    drain: &Drain,
) -> impl Future<Output = ()> + use<> {
    let (done, released) = oneshot::channel::<()>();
    if config.grids.enabled {
        let lease = (config.namespace.clone(), identity());
        let work = grids::run(kube.client().clone(), config.grids, lease, metrics, drain.clone());
        tasks.spawn("grid controllers", async move {
            work.await;
            drop(done);
        });
    }
    async move {
        // Completes when the sender is dropped.
        let _ = released.await;
    }
}

/// A unique name for this process that operators recognize.
fn identity() -> String {
    let host = std::env::var("HOSTNAME").ok().filter(|host| !host.is_empty());
    format!("{}_{}", host.as_deref().unwrap_or("cloudcore"), uuid::Uuid::new_v4())
}

/// Admits each connection in a task of its own, because the decision may have to wait for the API.
async fn accept(mut incoming: Incoming, hub: Arc<Hub>, gate: Gate) {
    while let Some(arrival) = incoming.next().await {
        hub.tasks.spawn_isolated("arrival", gate.clone().admit(arrival, Arc::clone(&hub)));
    }
}

/// Follows which certificates are valid, and ends sessions that use any other.
fn watch_identities(
    tasks: &Tasks,
    identities: &Arc<Identities>,
    kube: &Kube,
    config: &Config,
    hub: &Arc<Hub>,
) {
    let following = identities::follow(Arc::clone(identities), kube.clone(), config.namespace.clone());
    tasks.spawn("certificates in force", following);
    tasks.spawn("outcomes of registrations", identities::keep_settled(Arc::clone(identities)));
    tasks.spawn("certificates of deleted Nodes", identities::keep_ended(Arc::clone(identities)));
    let sweep = sweep(Arc::clone(identities), Arc::clone(&hub.registry), hub.metrics.clone());
    tasks.spawn("sessions' certificates", sweep);
}

/// Discards session inputs while the edge controller is off, so that sessions never block on a full channel.
async fn discard(mut inputs: mpsc::Receiver<Input>) {
    while inputs.recv().await.is_some() {}
}

/// Finds out how nodes can be impersonated. Until then no request of a node can run.
async fn probe(kube: Kube, permission: ReadyGuard) {
    let mut backoff = Backoff::new(BackoffConfig::default());
    while let Err(error) = kube.probe_impersonation().await {
        tracing::warn!(%error, "cannot impersonate nodes yet; trying again");
        let delay = backoff.next_delay(&mut rand::rng());
        tokio::time::sleep(delay).await;
    }
    drop(permission);
    match kube.probe_protections().await {
        Ok(protections) => {
            if let Some(problem) = protections.problem() {
                tracing::warn!(problem, "the API server does not isolate nodes");
            }
        }
        Err(error) => tracing::warn!(%error, "cannot tell whether the API server isolates nodes"),
    }
}

/// Checks the epoch and runs the watches. Restarts the watches when the cloud's history went back, because revisions
/// from before and after cannot be compared.
async fn keep_epoch(
    kube: Kube,
    mut keeper: EpochKeeper,
    hub: Arc<Hub>,
    events: Option<WatchEvents>,
    drain: Drain,
) {
    let start = || match events {
        Some(events) => watches::start(&kube, &hub, events),
        None => watches::Watches::default(),
    };
    let mut running = start();
    while drain.until_started(look_due(&hub.attestations)).await.is_some() {
        let asked = hub.attestations.take();
        match keeper.check(&hub.down, asked.claim).await {
            Ok(false) => {
                hub.attestations.publish(keeper.progress());
                asked.answer(ClaimOutcome::Holds);
            }
            Ok(true) => {
                hub.metrics.epochs.inc();
                running.stop().await;
                begin_epoch(&hub, &keeper).await;
                asked.answer(ClaimOutcome::Restored);
                running = start();
            }
            Err(error) => {
                tracing::warn!(%error, "cannot check the epoch; trying again");
                hub.attestations.put_back(asked);
            }
        }
    }
}

/// Completes after [`CHECK_INTERVAL`], or at once when an edge attests more than this replica has read.
async fn look_due(attestations: &Attestations) {
    tokio::select! {
        () = tokio::time::sleep(CHECK_INTERVAL) => {}
        () = attestations.wanted() => {}
    }
}

/// Order matters: the old history leaves memory before the new epoch is announced, and sessions of the old epoch end
/// after that. A node therefore never receives objects of one history under the epoch of the other.
async fn begin_epoch(hub: &Hub, keeper: &EpochKeeper) {
    let (done, reset) = oneshot::channel();
    // The controller ends only with the process; then neither the reset nor its answer matters.
    if hub.inputs.send(Input::Reset(done)).await.is_ok() {
        let _ = reset.await;
    }
    hub.epoch.store(Arc::new(keeper.epoch()));
    hub.subscriptions.close_all();
    hub.end_all(GoodbyeReason::Other, "the cluster was restored to an earlier state", RESTORE_SPREAD);
    // Last: otherwise a session of the old epoch could be admitted because its edge's attestation is already known.
    hub.attestations.publish(keeper.progress());
}

/// Period over which nodes reconnect after a restore.
const RESTORE_SPREAD: Duration = Duration::from_secs(2);

/// Counts unauthenticated connections at the listeners.
struct ConnectionCounts {
    hub: Arc<server::ServerStats>,
    /// The join endpoints, and the admin endpoints if enabled.
    others: Vec<ConnectionLimiter>,
}

/// Interval between two updates of these metrics.
const CONNECTIONS_INTERVAL: Duration = Duration::from_secs(1);

impl ConnectionCounts {
    /// Exports how many unauthenticated connections are open and how many were refused. Never returns.
    async fn count(self, metrics: Metrics) {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let refused = |kind| metrics.strangers_refused.get_or_create(&Label { kind }).clone();
        let counters = [refused("silent"), refused("crowded"), refused("timed_out"), refused("failed")];
        loop {
            let now: usize = self.others.iter().map(|limiter| limiter.waiting() + limiter.working()).sum();
            metrics.strangers.set(gauge(self.hub.strangers() + now));
            let (evicted, crowded) = (
                self.others.iter().map(ConnectionLimiter::evicted),
                self.others.iter().map(ConnectionLimiter::refused),
            );
            let counts = [
                self.hub.silent() + evicted.sum::<u64>(),
                self.hub.crowded() + crowded.sum::<u64>(),
                self.hub.timed_out(),
                self.hub.failed(),
            ];
            for (counter, count) in counters.iter().zip(counts) {
                counter.inc_by(count.saturating_sub(counter.get()));
            }
            tokio::time::sleep(CONNECTIONS_INTERVAL).await;
        }
    }
}

/// Interval between two rounds of housekeeping.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(10);

/// Updates gauges and closes what is no longer used. Never returns.
pub(crate) async fn keep_house(hub: Arc<Hub>) {
    let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    loop {
        hub.subscriptions.sweep();
        hub.registry.sweep();
        let (nodes, objects, pods) = hub.down.sizes();
        hub.metrics.nodes.set(gauge(nodes));
        hub.metrics.objects.set(gauge(objects));
        let tally = hub.down.tally();
        hub.metrics.unreadable.set(gauge(tally.unreadable));
        hub.metrics.withheld.set(gauge(tally.withheld));
        hub.metrics.unserved_pods.set(gauge(tally.unserved));
        hub.metrics.pod_bytes.set(gauge(tally.pod_bytes));
        hub.metrics.index_bytes.set(gauge(hub.down.index_bytes()));
        let unheeded = &hub.metrics.unheeded_pods;
        unheeded.inc_by(hub.down.unheeded().saturating_sub(unheeded.get()));
        hub.metrics.pods.set(gauge(pods));
        hub.metrics.session_bytes.set(gauge(hub.session_bytes.used()));
        let (all, requests) = hub.registry.highest();
        for (kind, bytes) in [("all", all), ("requests", requests)] {
            hub.metrics.node_bytes_highest.get_or_create(&Label { kind }).set(gauge(bytes));
        }
        tokio::time::sleep(HOUSEKEEPING_INTERVAL).await;
    }
}

/// Aborts all tasks, after the bootstrap has finished work that must not be left half done.
pub(crate) async fn end_tasks(tasks: &Tasks, bootstrap: &Bootstrap, drain: &Drain) {
    tokio::select! {
        () = bootstrap.finish() => {}
        () = drain.aborted() => {}
    }
    tasks.abort();
}

async fn all_gone(hub: &Hub) {
    while !hub.registry.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The names in the server certificate: the configured ones, or this machine's own.
fn advertised(config: &Config) -> Vec<String> {
    if !config.advertise.is_empty() {
        return config.advertise.clone();
    }
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    names.extend(outward_address().map(|address| address.ip().to_string()));
    names
}

/// The local address of outbound connections. Nothing is sent: connecting a UDP socket only selects a route.
fn outward_address() -> Option<SocketAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    socket.local_addr().ok()
}

#[cfg(test)]
mod tests;
