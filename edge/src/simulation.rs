//! An agent without sockets, certificates and files, for programs that simulate the whole system: its store, session,
//! reports, local API and view of the wrapper are the product's own.
//!
//! Not here are joining and renewal of the certificate, the DNS server and the hosts file, and the discovery of the
//! node's address.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use futures::future::BoxFuture;
use prometheus_client::registry::Registry;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tombolo_apicore::api::ApiServer;
use tombolo_apicore::store::Store as ServedStore;
use tombolo_grid::OwnPods;
use tombolo_link::{DocumentLink, Link, LinkError};
use tombolo_proto::ids::SubscriptionId;
use tombolo_proto::object::InventoryEntry;
use tombolo_runtime::{Drain, TaskError, Tasks};

use crate::config::Config;
use crate::hub::{
    Client, ClientParts, Connection, Dial, HubHandle, KindsPublisher, SessionFailure, SharedHub,
};
use crate::identity::{Identity, WallClock};
use crate::kubelet::Kubelet;
use crate::localapi::{LocalApiParts, Writer, cloud_writes, spawn_until, without_listeners};
use crate::metrics::Metrics;
use crate::own_pods;
use crate::status::StatusHandle;
use crate::store::{Medium, OpenError, ReadError, Sealer, Store};
use crate::subscriptions::Subscriptions;
use crate::upstream::Upstream;
use crate::wrapper::{Kubernetes, Projection, WrapperMetrics, WrapperParts};

/// Bearer token of the operator at the local API.
pub const OPERATOR_TOKEN: &str = "operator";

/// Key with which Secrets are encrypted in the store.
const STORE_KEY: [u8; 32] = [7; 32];

/// A connection to a simulated cloud.
#[derive(Debug)]
pub enum CloudLink {
    /// Of dialect `tombolo`.
    Tombolo(Box<Link>),
    /// Of dialect `kubeedge`.
    KubeEdge(Box<DocumentLink>),
}

/// Opens connections to the simulated cloud; `None` when none can be reached now.
pub type Connect = Box<dyn FnMut() -> BoxFuture<'static, Option<CloudLink>> + Send>;

struct SimulatedDialer(Connect);

impl Dial for SimulatedDialer {
    fn dial<'a>(&'a mut self, _: &'a Identity) -> BoxFuture<'a, Result<Connection, SessionFailure>> {
        let connecting = (self.0)();
        Box::pin(async move {
            match connecting.await {
                Some(CloudLink::Tombolo(link)) => Ok(Connection::Tombolo(link)),
                Some(CloudLink::KubeEdge(link)) => Ok(Connection::KubeEdge(link)),
                None => Err(LinkError::Cut.into()),
            }
        })
    }
}

/// Opens the store on a simulated disk.
///
/// # Errors
/// [`OpenError`] as for a folder; there is only one attempt.
pub fn open_store(medium: Box<dyn Medium>) -> Result<Store, OpenError> {
    Ok(Store::open_simulated(medium, Sealer::new(&STORE_KEY))?.store)
}

/// What the store holds of the objects that the node needs by itself.
///
/// # Errors
/// [`ReadError`] when the disk cannot be read.
pub fn pushed_set(store: &Store) -> Result<Vec<InventoryEntry>, ReadError> {
    store.inventory(SubscriptionId::NODE)
}

/// A running agent. Its tasks belong to the caller's [`TaskHost`](tombolo_runtime::TaskHost), and end with it.
pub struct SimulatedEdge {
    /// The local API.
    pub api: ApiServer,
    /// What the wrapper serves.
    pub wrapper: Arc<dyn ServedStore>,
    /// The store.
    pub store: Store,
    /// State of the agent.
    pub status: StatusHandle,
    tasks: Tasks,
    /// What never changes in a simulation, for as long as the agent runs.
    _constants: (watch::Sender<Arc<Identity>>, watch::Sender<Option<IpAddr>>),
}

/// The parts of an agent that its other parts need.
struct AgentParts {
    tasks: Tasks,
    stop: CancellationToken,
    config: Config,
    store: Store,
    subscriptions: Subscriptions,
    writer: Writer,
    hub: HubHandle,
    address: watch::Receiver<Option<IpAddr>>,
    metrics: Arc<Metrics>,
}

impl SimulatedEdge {
    /// Starts an agent with an open store. `seed` is that of its random numbers.
    ///
    /// # Errors
    /// A sentence when the store cannot be read.
    pub async fn start(config: Config, store: Store, connect: Connect, seed: u64) -> Result<Self, String> {
        let subscriptions = Subscriptions::load(store.clone()).await.map_err(|error| error.to_string())?;
        let (hub, commands, state) = HubHandle::new();
        let (own_address, address) = watch::channel(config.node.address);
        let (own_identity, identity) = watch::channel(Arc::new(Identity::none()));
        let (mut rng, mut registry) = (StdRng::seed_from_u64(seed), Registry::default());
        let parts = AgentParts {
            writer: Writer {
                node: config.node_name.clone(),
                hub: SharedHub::new(hub.clone()),
                kubelet: Kubelet::default(),
            },
            metrics: Metrics::register(&mut registry),
            tasks: Tasks::new(),
            stop: CancellationToken::new(),
            config,
            store,
            subscriptions,
            hub,
            address,
        };
        let wrapper = parts.wrapper(&mut registry);
        let (publisher, kinds) = KindsPublisher::new();
        let api = parts.local_api(publisher);
        let client = Client::new(ClientParts {
            node: parts.config.node_name.clone(),
            store: parts.store.clone(),
            registry: parts.subscriptions.registry(),
            dialer: Box::new(SimulatedDialer(connect)),
            identity,
            commands,
            state,
            metrics: Arc::clone(&parts.metrics),
            kinds,
            backoff: parts.config.cloud.back_off.into(),
            rng: StdRng::seed_from_u64(rng.random()),
            instance: rng.random_range(1..=u64::MAX),
        });
        parts.tasks.spawn("hub", client.run(Drain::never()));
        let AgentParts { tasks, stop, config, store, writer, hub, address, metrics, .. } = parts;
        let status = StatusHandle::new(config.node_name.clone(), store.clone(), hub.clone());
        let upstream = Upstream {
            node: config.node_name,
            settings: config.node,
            simulate_pods: config.simulate_pods,
            address,
            store: store.clone(),
            hub,
            kubelet: writer.kubelet,
            metrics,
            seed: rng.random(),
            node_gone: Notify::new(),
        };
        upstream.spawn(&tasks, &stop);
        Ok(Self { api, wrapper, store, status, tasks, _constants: (own_identity, own_address) })
    }
}

impl AgentParts {
    /// What the wrapper serves.
    fn wrapper(&self, registry: &mut Registry) -> Arc<dyn ServedStore> {
        let Self { tasks, stop, store, .. } = self;
        let (pods_sender, pods) = watch::channel(Arc::new(OwnPods::new(self.config.node_name.as_str())));
        spawn_until(tasks, "own pods", stop, own_pods::publish(Arc::new(store.clone()), pods_sender));
        let parts = WrapperParts {
            node: self.config.node_name.as_str().to_owned(),
            source: Arc::new(self.subscriptions.whole()),
            writes: cloud_writes(store, &self.writer),
            kubernetes: Kubernetes::AsItIs,
            address: self.address.clone(),
            pods,
            started: SystemTime::now(),
        };
        let metrics = WrapperMetrics::register(registry);
        Projection::spawn(tasks, parts, self.config.wrapper.watch_queue, metrics, stop).store()
    }

    fn local_api(&self, kinds: KindsPublisher) -> ApiServer {
        let parts = LocalApiParts {
            store: self.store.clone(),
            subscriptions: self.subscriptions.clone(),
            writer: self.writer.clone(),
            clock: WallClock::system(),
            address: self.address.clone(),
            kinds,
        };
        spawn_until(&self.tasks, "subscriptions", &self.stop, self.subscriptions.clone().keep());
        without_listeners(&self.tasks, parts, OPERATOR_TOKEN, &self.stop)
    }
}

impl SimulatedEdge {
    /// Completes when the agent of a real node would end: its store has failed, or (with an error) an essential task.
    pub async fn ended(&self) -> Result<String, TaskError> {
        tokio::select! {
            biased;
            why = self.store.failed() => Ok(why),
            error = self.tasks.failed() => Err(error),
        }
    }
}

impl std::fmt::Debug for SimulatedEdge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedEdge").field("status", &self.status.look()).finish_non_exhaustive()
    }
}
