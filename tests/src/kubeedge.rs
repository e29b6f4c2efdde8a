//! A hollow KubeEdge node: the wire behaviour of a KubeEdge edge, written only from docs/reference/kubeedge.md. It does
//! not use the product's message types, so that mistakes in those are found.
//!
//! Its modules are those of a KubeEdge edge: the hub moves frames, the meta manager owns the rows, `edged` is the
//! kubelet. Each message of the cloud is handled in a task of its own, so messages can overtake each other. Versions
//! are never compared, the queue behind the socket drops its oldest message, and a lost connection is only noticed at
//! the next write.

mod application;
mod bus;
mod client;
mod dial;
mod edged;
mod fifo;
mod hub;
mod meta;
mod oracle;
pub mod recorded;
mod store;
mod wire;

pub use application::{application, application_result};
pub use client::done;
pub use hub::Forgotten;
pub use store::{Delivery, Store};

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tombolo_testkit::{Seed, seed, wait_for};

use crate::world::{DEADLINE, World};
use bus::Bus;
use client::Client;
use dial::{Dial, EdgeIdentity};
use hub::Order;

/// The periods and delays of a node.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Time between keepalives. A lost connection costs two of these before the next dial
    /// (docs/reference/kubeedge.md#hub-loop).
    pub heartbeat: Duration,
    /// Time between renewals of the lease (docs/reference/kubeedge.md#periods).
    pub lease: Duration,
    /// How long the meta manager waits for the cloud (docs/reference/kubeedge.md#remote-calls).
    pub remote: Duration,
    /// Time to store the rows of one message: two durable writes on the only processing task
    /// (docs/reference/kubeedge.md#processing).
    pub row: Duration,
    /// Longest delay by which later messages can overtake a message, because each is handled in a task of its own
    /// (docs/reference/kubeedge.md#routing-at-the-edge).
    pub scatter: Duration,
}

impl Pace {
    /// The times of a KubeEdge edge.
    pub const KUBEEDGE: Self = Self {
        heartbeat: Duration::from_secs(15),
        lease: Duration::from_secs(10),
        remote: Duration::from_secs(60),
        row: Duration::from_millis(2),
        scatter: Duration::from_millis(5),
    };

    /// The waits of a KubeEdge edge shortened, but not the time of its work.
    pub const QUICK: Self = Self {
        heartbeat: Duration::from_millis(250),
        lease: Duration::from_secs(1),
        remote: Duration::from_secs(10),
        ..Self::KUBEEDGE
    };
}

/// A KubeEdge node. Its store outlives its process, as a database does.
pub struct KubeEdgeNode {
    /// Its name.
    pub name: String,
    /// Its periods and delays; a change applies from its next start.
    pub pace: Pace,
    dial: Dial,
    /// None when it dials something other than cloudcore.
    identity: Option<EdgeIdentity>,
    store: Arc<Mutex<Store>>,
    /// Delays are random; the seed is printed when a test fails.
    _seed: Seed,
    rng: StdRng,
    process: Option<Process>,
}

/// A running edgecore. All of it ends when it is dropped, as with SIGKILL.
struct Process {
    client: Client,
    orders: mpsc::Sender<Order>,
    _tasks: JoinSet<()>,
}

impl KubeEdgeNode {
    /// Gets a certificate. Does not connect yet.
    ///
    /// # Errors
    /// When cloudcore refuses the certificate.
    pub async fn join(world: &World, name: &str) -> Result<Self> {
        let identity = EdgeIdentity::join(world, name).await?;
        Ok(Self { identity: Some(identity.clone()), ..Self::over(name, identity.dial()) })
    }

    /// Another machine with the same identity and an empty store.
    ///
    /// # Panics
    /// When the node has no identity.
    #[must_use]
    pub fn twin(&self) -> Self {
        let identity = self.identity.clone().expect("an identity");
        Self { identity: Some(identity.clone()), ..Self::over(&self.name, identity.dial()) }
    }

    /// A node that connects with this dial function.
    fn over(name: &str, dial: Dial) -> Self {
        let (identity, store, seed) = (None, Arc::default(), seed());
        let rng = seed.rng_of(name);
        Self {
            name: name.to_owned(),
            pace: Pace::QUICK,
            dial,
            identity,
            store,
            _seed: seed,
            rng,
            process: None,
        }
    }

    /// Uses another port from the next dial on: of a second cloudcore, or of a balancer before several.
    pub fn move_to(&mut self, port: u16) {
        self.identity.iter().for_each(|identity| identity.set_port(port));
    }

    /// Starts the process without its kubelet; an earlier one is ended first. The test then plays the kubelet.
    ///
    /// # Errors
    /// When cloudcore refuses the certificate.
    pub async fn connect(&mut self) -> Result<()> {
        self.start(false).await
    }

    /// Starts the process with its kubelet, which registers the node and runs its pods.
    ///
    /// # Errors
    /// When cloudcore refuses.
    pub async fn boot(&mut self) -> Result<()> {
        self.start(true).await
    }

    async fn start(&mut self, with_kubelet: bool) -> Result<()> {
        self.process = None;
        let socket = (self.dial)().await?;
        let rng = StdRng::from_rng(&mut self.rng);
        self.process = Some(Process::start(self, rng, socket, with_kubelet));
        Ok(())
    }

    /// Ends the process at once.
    pub fn disconnect(&mut self) {
        self.process = None;
        self.store.lock().connected = false;
    }

    /// Cuts the connection of the process, which notices it at its next write.
    ///
    /// # Errors
    /// When no process is running.
    pub async fn cut(&self) -> Result<()> {
        self.order(Order::Cut).await
    }

    /// Opens a new connection without closing the old one, as after a change of the node's address: the old socket
    /// stays open and nobody answers on it.
    ///
    /// # Errors
    /// When cloudcore refuses.
    pub async fn connect_beside(&mut self) -> Result<Forgotten> {
        let socket = (self.dial)().await?;
        let (give, given) = tokio::sync::oneshot::channel();
        self.order(Order::Forget(Box::new(socket), give)).await?;
        given.await.context("the old connection had ended")
    }

    async fn order(&self, order: Order) -> Result<()> {
        let process = self.process.as_ref().context("not started")?;
        process.orders.send(order).await.ok().context("the hub's task has ended")
    }

    /// Requests an upgrade with this path and these headers, and closes the connection.
    ///
    /// # Errors
    /// The error of the library, including refusals.
    pub async fn upgrade(&self, path: &str, headers: &[(&'static str, &str)]) -> Result<()> {
        let identity = self.identity.as_ref().context("no cloudcore")?;
        identity.upgrade(path, headers).await.map(drop)
    }

    /// Gives access to the store.
    pub fn look<T>(&self, look: impl FnOnce(&mut Store) -> T) -> T {
        look(&mut self.store.lock())
    }

    /// Waits until the store satisfies a condition.
    ///
    /// # Panics
    /// When it does not in time.
    pub async fn until(&self, what: &str, condition: impl Fn(&Store) -> bool) {
        self.until_within(DEADLINE, what, condition).await;
    }

    /// The same with a time limit of its own.
    ///
    /// # Panics
    /// When it does not in time.
    pub async fn until_within(&self, limit: Duration, what: &str, condition: impl Fn(&Store) -> bool) {
        let what = format!("{}: {what}", self.name);
        wait_for(&what, limit, || async {
            let store = self.store.lock();
            if condition(&store) { Ok(()) } else { Err(format!("{:?}", store.describe())) }
        })
        .await;
    }

    /// Sends a message of the kubelet and returns the complete answer.
    ///
    /// # Errors
    /// When no answer arrives.
    pub async fn ask(&self, operation: &str, resource: &str, content: Value) -> Result<Value> {
        self.client()?.ask(operation, resource, content).await
    }

    /// The same for other modules of the edge, whose answers are neither stored nor acknowledged.
    ///
    /// # Errors
    /// When no answer arrives.
    pub async fn ask_as(
        &self,
        source: &str,
        group: &str,
        operation: &str,
        resource: &str,
        content: Value,
    ) -> Result<Value> {
        let message = wire::message(source, group, operation, resource, &content);
        self.client()?.bus.exchange(message).await
    }

    /// Sends a message that gets no answer.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn send_unanswered(&self, operation: &str, resource: &str, content: Value) -> Result<()> {
        let message = wire::message("edged", "meta", operation, resource, &content);
        self.client()?.bus.send_up(message).await
    }

    /// Sends a frame unchanged, whichever module of the edge it comes from.
    async fn say(&self, frame: Value) -> Result<()> {
        self.client()?.bus.send_up(frame).await
    }

    fn client(&self) -> Result<&Client> {
        Ok(&self.process.as_ref().context("not connected")?.client)
    }

    /// Does what the kubelet does at its start: Node, lease, status (docs/reference/kubeedge.md#start-of-a-node).
    /// Returns the Node.
    ///
    /// # Errors
    /// When one of the steps fails.
    pub async fn register(&self) -> Result<Value> {
        edged::register_once(self.client()?).await
    }

    /// Waits until the store holds exactly what the API server says that this node should hold. Fails if something
    /// happened that harms a KubeEdge edge.
    ///
    /// # Panics
    /// When it does not in time; the message contains the first difference.
    pub async fn converges(&self, world: &World) {
        oracle::converges(self, world).await;
    }
}

impl Process {
    fn start(node: &KubeEdgeNode, rng: StdRng, socket: dial::Socket, with_kubelet: bool) -> Self {
        node.store.lock().connected = true;
        let (bus, inboxes) = Bus::new(Arc::clone(&node.store), node.pace, rng);
        let client = Client::new(Arc::clone(&bus), node.name.clone());
        let (orders, ordered) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        tasks.spawn(hub::run(Arc::clone(&bus), socket, Arc::clone(&node.dial), inboxes.up, ordered));
        tasks.spawn(meta::run(bus, inboxes.meta));
        if with_kubelet {
            tasks.spawn(edged::run(client.clone(), inboxes.pods));
        }
        Self { client, orders, _tasks: tasks }
    }
}
