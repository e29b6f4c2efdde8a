//! All hollow nodes of a swarm, and their reports.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tombolo_edge::identity::{EnrollOptions, enroll};
use tombolo_link::client::{Choice, Connector, QuicSocket, Target};
use tombolo_proto::{Message, NodeId, StoreId};

use super::SwarmOptions;
use super::cluster::node_name;
use super::figures::Sample;
use super::node::{Command, HollowNode, HollowNodeReport, Tallies, Way};
use super::tally::Tally;
use super::traffic::{Counts, Traffic};
use crate::transport::{DialectOption, TransportOption};

/// Concurrent certificate requests.
const ENROLL_CONCURRENCY: usize = 16;

/// Nodes that dial at the same time. Real agents reconnect after individual waits; thousands of first packets in the
/// same millisecond would only measure the kernel's buffer for one UDP socket.
const DIALS_AT_ONCE: usize = 64;

/// Maximum number of reports in the queue; a node waits while it is full.
const REPORTS_MAX: usize = 65_536;

/// Every hollow node.
pub(super) struct Fleet {
    idle: Vec<HollowNode>,
    running: JoinSet<()>,
    commands: Vec<mpsc::Sender<Command>>,
    reports: mpsc::Receiver<HollowNodeReport>,
    caught_up: usize,
    tallies: Arc<Tallies>,
    traffic: Arc<Traffic>,
}

/// Answers to the requests of all nodes.
pub(super) struct Answers {
    /// Time of each answer.
    pub(super) times: Sample,
    /// Number of answers that were refusals or did not arrive in time.
    pub(super) bad: usize,
}

impl Fleet {
    /// Gets a certificate for every node.
    pub(super) async fn enroll(options: &SwarmOptions, token: &str) -> Result<Self> {
        eprintln!("swarm: requesting {} certificates", options.nodes);
        let (sender, reports) = mpsc::channel(REPORTS_MAX);
        let socket = QuicSocket::bind().context("cannot open a UDP socket for the swarm")?;
        let (tallies, traffic) = <(Arc<Tallies>, Arc<Traffic>)>::default();
        let dials = Arc::new(Semaphore::new(DIALS_AT_ONCE));
        let make = |number: usize| {
            let (reports, tallies, dials) = (sender.clone(), Arc::clone(&tallies), Arc::clone(&dials));
            let to = FleetContext { reports, tallies, dials };
            let socket = socket.clone();
            async move { hollow_node(options, token, number, to, socket).await }
        };
        let made: Vec<(HollowNode, mpsc::Sender<Command>)> =
            stream::iter(0..options.nodes).map(make).buffered(ENROLL_CONCURRENCY).try_collect().await?;
        let (mut idle, commands): (Vec<_>, _) = made.into_iter().unzip();
        if let Some(first) = idle.first_mut() {
            first.watch(Arc::clone(&traffic));
        }
        Ok(Self { idle, running: JoinSet::new(), commands, reports, caught_up: 0, tallies, traffic })
    }

    /// Starts this many of the nodes that do not run yet.
    pub(super) fn start(&mut self, nodes: usize) {
        for node in self.idle.drain(..nodes.min(self.idle.len())) {
            self.running.spawn(node.run());
        }
    }

    /// Waits until this many nodes were welcomed; returns their times to connect.
    pub(super) async fn welcomed(&mut self, nodes: usize, deadline: Duration) -> Result<Sample> {
        let mut times = Vec::with_capacity(nodes);
        let end = Instant::now() + deadline;
        while times.len() < nodes {
            if let HollowNodeReport::Welcomed { took } =
                self.next(end, || format!("{} of {nodes} nodes welcomed", times.len())).await?
            {
                times.push(took);
            }
        }
        Ok(times.into_iter().collect())
    }

    /// Waits until this many nodes hold everything they should.
    pub(super) async fn caught_up(&mut self, nodes: usize, deadline: Duration) -> Result<()> {
        let end = Instant::now() + deadline;
        while self.caught_up < nodes {
            let so_far = self.caught_up;
            self.next(end, || format!("{so_far} of {nodes} nodes caught up")).await?;
        }
        self.caught_up = 0;
        Ok(())
    }

    /// Waits until every node has its ConfigMap.
    pub(super) async fn delivered(&mut self, nodes: usize, deadline: Duration) -> Result<()> {
        self.fan_out(Instant::now(), nodes, deadline).await.map(drop)
    }

    /// Waits until the ConfigMap has arrived this many times; returns the times since it was written.
    pub(super) async fn fan_out(
        &mut self,
        written: Instant,
        nodes: usize,
        deadline: Duration,
    ) -> Result<Sample> {
        let tallies = Arc::clone(&self.tallies);
        let arrivals = self.gather(&tallies.arrivals, nodes, deadline, "nodes have the object").await?;
        // The watch may be faster than the answer to the write: then the first arrival counts as the start.
        let start = arrivals.iter().copied().min().map_or(written, |first| first.min(written));
        Ok(arrivals.into_iter().map(|at| at.duration_since(start)).collect())
    }

    /// Waits until a tally has this many values, or a node has lost its connection.
    async fn gather<T>(
        &mut self,
        tally: &Tally<T>,
        wanted: usize,
        deadline: Duration,
        what: &str,
    ) -> Result<Vec<T>> {
        let end = Instant::now() + deadline;
        loop {
            tokio::select! {
                () = tally.reach(wanted) => return Ok(tally.take()),
                report = self.next(end, || format!("{} of {wanted} {what}", tally.len())) => drop(report?),
            }
        }
    }

    /// Makes every node send `count` requests.
    pub(super) async fn ask(
        &mut self,
        question: Arc<Message>,
        count: usize,
        deadline: Duration,
    ) -> Result<Answers> {
        for commands in &self.commands {
            commands.send(Command::Ask(Arc::clone(&question), count)).await.context("a node has stopped")?;
        }
        let (tallies, wanted) = (Arc::clone(&self.tallies), self.commands.len() * count);
        let answers = self.gather(&tallies.answers, wanted, deadline, "queries answered").await?;
        let bad = answers.iter().filter(|answer| !answer.good).count();
        Ok(Answers { times: answers.into_iter().map(|answer| answer.took).collect(), bad })
    }

    /// Makes every node close its connection and connect again.
    pub(super) async fn reconnect(&mut self, question: &Arc<Message>) {
        self.caught_up = 0;
        for commands in &self.commands {
            // A node that ended has reported the reason; the next wait finds that report.
            let _ = commands.send(Command::Reconnect(Arc::clone(question))).await;
        }
    }

    /// Waits until every node is caught up after a reconnect; returns how many objects were sent again.
    pub(super) async fn caught_up_again(&mut self, nodes: usize, deadline: Duration) -> Result<usize> {
        self.caught_up(nodes, deadline).await?;
        Ok(self.tallies.arrivals.take().len())
    }

    /// Number of deliveries, of any object, that all nodes stored so far.
    pub(super) fn deliveries(&self) -> usize {
        self.tallies.deliveries.load(Ordering::Relaxed)
    }

    /// Traffic of the first node from its connect until it was caught up.
    pub(super) fn traffic(&self) -> Counts {
        self.traffic.counts()
    }

    async fn next(&mut self, end: Instant, progress: impl Fn() -> String) -> Result<HollowNodeReport> {
        let wait = tokio::time::timeout_at(end.into(), self.reports.recv()).await;
        let report = wait.with_context(|| format!("phase timed out: {}", progress()))?;
        let report = report.context("all nodes have stopped")?;
        match &report {
            HollowNodeReport::Lost { node, reason } => bail!("{node} lost its connection: {reason}"),
            HollowNodeReport::CaughtUp => self.caught_up += 1,
            HollowNodeReport::Welcomed { .. } => {}
        }
        Ok(report)
    }
}

/// State that the nodes share: the report channels, and the permits to dial.
struct FleetContext {
    reports: mpsc::Sender<HollowNodeReport>,
    tallies: Arc<Tallies>,
    dials: Arc<Semaphore>,
}

async fn hollow_node(
    options: &SwarmOptions,
    token: &str,
    number: usize,
    to: FleetContext,
    socket: QuicSocket,
) -> Result<(HollowNode, mpsc::Sender<Command>)> {
    let node = NodeId::parse(&node_name(number))?;
    let join = format!("{}:{}", options.cloud, options.join_port);
    let options_of_node = EnrollOptions { endpoint: join, node: node.clone(), token: token.to_owned() };
    let identity = enroll(&options_of_node).await?;
    let choice = match options.transport {
        TransportOption::Quic => Choice::Quic,
        TransportOption::Websocket => Choice::WebSocket,
    };
    let target = Target {
        host: options.cloud.clone(),
        websocket_port: options.websocket_port,
        quic_port: options.quic_port,
        choice,
    };
    let tls = identity.client_tls()?;
    let way = match options.dialect {
        DialectOption::Tombolo => Way::Tombolo(Box::new(Connector::new(target, tls).with_socket(socket))),
        DialectOption::Kubeedge => Way::KubeEdge(Box::new(target), tls),
    };
    let (sender, commands) = mpsc::channel(4);
    let store = StoreId(rand::random());
    Ok((HollowNode::new(node, store, way, to.dials, commands, to.reports, to.tallies), sender))
}
