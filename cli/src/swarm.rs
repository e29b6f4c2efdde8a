//! `tombolo swarm`: hollow edge nodes that load a hub, and measurements of the hub under that load.

mod cluster;
mod figures;
mod fleet;
mod node;
mod tally;
mod traffic;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::process::{Process, Reading};
use crate::transport::{DialectOption, TransportOption};
use cluster::Cluster;
use figures::{Figures, Sample};
use fleet::Fleet;
use traffic::Counts;

/// Size of the object for the memory test: close to the largest ConfigMap that Kubernetes stores.
const LARGE_OBJECT_LEN: usize = 1000 * 1024;

/// Size of the updated object as stored: an ordinary ConfigMap.
const OBJECT_LEN: usize = 1024;

/// Nodes that connect before the measurement, so that one-time costs are not attributed to nodes.
const WARM_UP: usize = 20;

/// Maximum duration of one phase.
const PHASE_DEADLINE: Duration = Duration::from_secs(300);

/// Options of `tombolo swarm`.
#[derive(Debug, Clone, Args)]
pub struct SwarmOptions {
    /// Number of hollow nodes.
    #[arg(long, default_value_t = 100)]
    pub nodes: usize,

    /// Host of the hub.
    #[arg(long, default_value = "127.0.0.1")]
    pub cloud: String,

    /// Port of the hub's WebSocket listener.
    #[arg(long, default_value_t = 10000)]
    pub websocket_port: u16,

    /// Port of the hub's QUIC listener.
    #[arg(long, default_value_t = 10001)]
    pub quic_port: u16,

    /// Port of the hub's join endpoints.
    #[arg(long, default_value_t = 10002)]
    pub join_port: u16,

    /// Transport that the nodes use.
    #[arg(long, value_enum, default_value_t = TransportOption::Websocket)]
    pub transport: TransportOption,

    /// Dialect that the nodes speak; `kubeedge` works over WebSocket only.
    #[arg(long, value_enum, default_value_t = DialectOption::Tombolo)]
    pub dialect: DialectOption,

    /// Kubeconfig of an administrator: the swarm creates Nodes, pods, a ConfigMap and a join token.
    #[arg(long)]
    pub kubeconfig: PathBuf,

    /// Process id of the hub, for its processor time and memory.
    #[arg(long)]
    pub pid: Option<u32>,

    /// Updates of the ConfigMap that every node needs.
    #[arg(long, default_value_t = 20)]
    pub updates: usize,

    /// Requests that every node sends, one after the other.
    #[arg(long, default_value_t = 20)]
    pub queries: usize,

    /// Print the figures as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the whole measurement and prints its figures.
///
/// # Errors
/// When the cluster or the hub refuses, or a phase does not end in time.
pub async fn run(options: &SwarmOptions) -> Result<()> {
    ensure!((1..=20_000).contains(&options.nodes), "--nodes must be between 1 and 20000");
    let speaks_quic = options.dialect == DialectOption::Tombolo;
    ensure!(
        speaks_quic || options.transport != TransportOption::Quic,
        "dialect kubeedge works over WebSocket only: omit --transport quic"
    );
    let meter = Meter::new(options.pid)?;
    let mut figures = Figures::default();
    let bare = meter.at_rest().await?;
    let cluster = Cluster::prepare(options).await?;
    let loaded = meter.at_rest().await?;
    figures.add_memory_each("memory per node's objects", bare, loaded, options.nodes);
    let fleet = Fleet::enroll(options, &cluster.join_token().await?).await?;
    let mut run = SwarmRun { options, meter, cluster, fleet, figures };
    run.warm_up().await.context("the first connections")?;
    let unconnected = run.meter.at_rest().await?;
    run.connect().await.context("connecting")?;
    run.memory_of_connections("memory per connected node, idle", unconnected).await?;
    run.updates().await.context("updates")?;
    run.queries().await.context("queries")?;
    run.memory_of_connections("memory per connected node, after work", unconnected).await?;
    run.large_object().await.context("a large object")?;
    run.memory_of_connections("memory per connected node, after a large object", unconnected).await?;
    run.reconnect().await.context("reconnecting")?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&run.figures)?);
    } else {
        print!("{}", run.figures.table());
    }
    run.cluster.clean_up().await
}

/// Readings of the process under test, if there is one.
#[derive(Debug, Clone, Copy)]
struct Meter(Option<Process>);

impl Meter {
    fn new(pid: Option<u32>) -> Result<Self> {
        Ok(Self(pid.map(Process::new).transpose()?))
    }

    fn read(self) -> Result<Option<Reading>> {
        self.0.map(Process::read).transpose()
    }

    /// A reading whose memory has settled.
    async fn at_rest(self) -> Result<Option<Reading>> {
        match self.0 {
            Some(process) => process.at_rest().await.map(Some),
            None => Ok(None),
        }
    }
}

struct SwarmRun<'a> {
    options: &'a SwarmOptions,
    meter: Meter,
    cluster: Cluster,
    fleet: Fleet,
    figures: Figures,
}

impl SwarmRun<'_> {
    fn progress(&self, text: &str) {
        eprintln!("swarm: {text}");
    }

    fn cpu_each(&mut self, name: &'static str, before: Option<Reading>, count: usize) -> Result<()> {
        if let (Some(before), Some(after)) = (before, self.meter.read()?) {
            self.figures.add_micros_each(name, after.cpu.saturating_sub(before.cpu), count);
        }
        Ok(())
    }

    /// Memory of the connections after the first [`WARM_UP`].
    async fn memory_of_connections(&mut self, name: &'static str, before: Option<Reading>) -> Result<()> {
        let after = self.meter.at_rest().await?;
        self.figures.add_memory_each(name, before, after, self.measured());
        Ok(())
    }

    /// Number of connections made before the measurement.
    fn warming(&self) -> usize {
        WARM_UP.min(self.options.nodes / 10)
    }

    /// Number of measured connections.
    fn measured(&self) -> usize {
        self.options.nodes - self.warming()
    }

    async fn warm_up(&mut self) -> Result<()> {
        let nodes = self.warming();
        self.fleet.start(nodes);
        self.fleet.welcomed(nodes, PHASE_DEADLINE).await?;
        self.fleet.caught_up(nodes, PHASE_DEADLINE).await?;
        self.fleet.delivered(nodes, PHASE_DEADLINE).await
    }

    async fn connect(&mut self) -> Result<()> {
        let nodes = self.measured();
        self.progress(&format!(
            "connecting {nodes} nodes over {} in dialect {}",
            self.options.transport, self.options.dialect
        ));
        let (before, started) = (self.meter.read()?, Instant::now());
        self.fleet.start(nodes);
        let welcomed = self.fleet.welcomed(nodes, PHASE_DEADLINE).await?;
        self.figures.add("connections a second", nodes as f64 / started.elapsed().as_secs_f64(), "1/s");
        self.figures.add_millis("time to connect, p99", welcomed.percentile(99));
        self.cpu_each("processor time to accept a node", before, nodes)?;
        self.fleet.caught_up(nodes, PHASE_DEADLINE).await?;
        self.fleet.delivered(nodes, PHASE_DEADLINE).await?;
        self.figures.add_millis("time until every node is settled", started.elapsed());
        Ok(())
    }

    async fn updates(&mut self) -> Result<()> {
        let (nodes, updates) = (self.options.nodes, self.options.updates);
        self.progress(&format!("{updates} updates of an object that every node needs"));
        let before = self.meter.read()?;
        let mut arrivals = Vec::new();
        for _ in 0..updates {
            let written = self.cluster.update(OBJECT_LEN).await?;
            arrivals.push(self.fleet.fan_out(written, nodes, PHASE_DEADLINE).await?);
        }
        self.cpu_each("processor time per delivered update, acknowledged", before, nodes * updates)?;
        let middle =
            |percent| arrivals.iter().map(|sample: &Sample| sample.percentile(percent)).collect::<Sample>();
        self.figures.add_millis("fan-out of one update, p50", middle(50).percentile(50));
        self.figures.add_millis("fan-out of one update, p99, median run", middle(99).percentile(50));
        self.figures.add_millis("fan-out of one update, p99, worst run", middle(99).percentile(100));
        self.figures.add_millis("fan-out of one update, max", middle(100).percentile(100));
        Ok(())
    }

    async fn queries(&mut self) -> Result<()> {
        let (nodes, queries) = (self.options.nodes, self.options.queries);
        self.progress(&format!("{queries} queries from each node"));
        let (before, started) = (self.meter.read()?, Instant::now());
        let answers = self.fleet.ask(self.cluster.question()?, queries, PHASE_DEADLINE).await?;
        let count = nodes * queries;
        if answers.bad > 0 {
            bail!("{} of {count} queries did not return the object", answers.bad);
        }
        self.figures.add("queries a second", count as f64 / started.elapsed().as_secs_f64(), "1/s");
        self.figures.add_millis("query, p99", answers.times.percentile(99));
        self.cpu_each("processor time per query", before, count)
    }

    async fn large_object(&mut self) -> Result<()> {
        self.progress("sending an object of 1 MB to every node, then a small one again");
        let before = self.meter.at_rest().await?;
        for length in [LARGE_OBJECT_LEN, OBJECT_LEN] {
            let written = self.cluster.update(length).await?;
            self.fleet.fan_out(written, self.options.nodes, PHASE_DEADLINE).await?;
        }
        let (after, nodes) = (self.meter.at_rest().await?, self.options.nodes);
        self.figures.add_memory_each("memory per node, grown by a large object", before, after, nodes);
        let deliveries = self.fleet.deliveries();
        self.figures.add("deliveries", deliveries as f64, "");
        Ok(())
    }

    async fn reconnect(&mut self) -> Result<()> {
        let nodes = self.options.nodes;
        self.progress("reconnecting every node without changes");
        let (before, started) = (self.meter.read()?, Instant::now());
        self.fleet.reconnect(&self.cluster.question()?).await;
        let resent = self.fleet.caught_up_again(nodes, PHASE_DEADLINE).await?;
        self.figures.add_millis("all nodes back and caught up", started.elapsed());
        self.figures.add("objects sent again", resent as f64, "");
        if self.options.dialect == DialectOption::Tombolo {
            let Counts { sent, received, round_trips, .. } = self.fleet.traffic();
            self.figures.add("reconnect with nothing changed, sent by the node", sent as f64, "B");
            self.figures.add("reconnect with nothing changed, received", received as f64, "B");
            self.figures.add("reconnect with nothing changed, round trips", round_trips as f64, "");
        }
        self.cpu_each("processor time per reconnect", before, nodes)
    }
}
