//! Honest nodes in a process of their own, and the durations of their lease renewals.

use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use clap::Args;
use parking_lot::Mutex;
use tokio::time::Instant;
use tombolo_link::LinkEvent;
use tombolo_link::client::{Choice, Target, connect};
use tombolo_proto::frame::Frame;
use tombolo_proto::{Lane, NodeId};

use super::peer::{Hub, greet, identity};

/// Time between two renewals of a node.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

/// A renewal without an answer counts as having taken this long.
const GIVEN_UP: Duration = Duration::from_secs(10);

#[derive(Args, Clone)]
pub(crate) struct HonestOptions {
    #[arg(long)]
    nodes: u32,
    #[arg(long)]
    websocket: u16,
    #[arg(long)]
    join: u16,
    #[arg(long, env = "TOMBOLO_HOSTILE_TOKEN")]
    token: String,
}

/// Name of an honest node.
pub(crate) fn name(number: u32) -> String {
    format!("honest-{number}")
}

/// Renews leases until standard input ends, and prints the duration of each renewal in milliseconds.
pub(crate) async fn run(options: HonestOptions) -> Result<()> {
    for number in 0..options.nodes {
        let node = NodeId::parse(&name(number))?;
        let identity = identity(&format!("127.0.0.1:{}", options.join), &node, &options.token).await?;
        let target = Target {
            host: "127.0.0.1".to_owned(),
            websocket_port: options.websocket,
            quic_port: 1,
            choice: Choice::WebSocket,
        };
        let share = INTERVAL.mul_f64(f64::from(number) / f64::from(options.nodes));
        tokio::spawn(async move {
            tokio::time::sleep(share).await;
            loop {
                let outcome = async { renew(&node, target.clone(), identity.client_tls()?).await };
                // A node that was disconnected connects again.
                let error: Result<()> = outcome.await;
                eprintln!("honest: {node}: {:?}", error.err());
                println!("{}", GIVEN_UP.as_millis());
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
    }
    println!("ready");
    tokio::task::spawn_blocking(|| std::io::stdin().lock().lines().count()).await?;
    Ok(())
}

async fn renew(node: &NodeId, target: Target, tls: tombolo_link::tls::ClientTls) -> Result<()> {
    let mut link = connect(target, tls).await?;
    greet(&mut link, node)?;
    let mut timer = tokio::time::interval(INTERVAL);
    let mut asked: Option<Instant> = None;
    loop {
        tokio::select! {
            _ = timer.tick() => {
                if asked.is_some() {
                    println!("{}", GIVEN_UP.as_millis());
                }
                let micros = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
                let renew_time_micros = i64::try_from(micros)?;
                link.send(Lane::Control, Frame::LeaseRenew { renew_time_micros })?;
                asked = Some(Instant::now());
            }
            event = link.next() => match event {
                LinkEvent::Frame(_, Frame::LeaseRenewed { code, .. }) => {
                    let took = asked.take().map_or(Duration::ZERO, |asked| asked.elapsed());
                    let took = if code == 200 { took } else { GIVEN_UP };
                    println!("{}", took.as_millis());
                }
                LinkEvent::Frame(_, Frame::Ping { id }) => link.send(Lane::Control, Frame::Pong { id })?,
                LinkEvent::Frame(lane, Frame::Deliver(deliver)) => {
                    link.send(Lane::Control, Frame::Ack { lanes: vec![(lane, deliver.seq)] })?;
                }
                LinkEvent::Frame(_, Frame::Goodbye(goodbye)) => anyhow::bail!("{}", goodbye.message),
                LinkEvent::Frame(..) | LinkEvent::Writable => {}
                LinkEvent::Closed(error) => return Err(error.into()),
            }
        }
    }
}

/// The process of the honest nodes. It is killed when this is dropped.
pub(crate) struct Fleet {
    _process: Process,
    nodes: u32,
    times: Arc<Mutex<Vec<u64>>>,
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already, or ends now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Fleet {
    /// Starts the nodes, and waits until they renew their leases.
    pub(crate) async fn start(hub: &Hub, nodes: u32) -> Result<Self> {
        let [websocket, _, join] = hub.ports;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["honest", "--nodes", &nodes.to_string(), "--websocket", &websocket.to_string()]);
        command.args(["--join", &join.to_string()]).env("TOMBOLO_HOSTILE_TOKEN", &hub.token);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("no output")?;
        let times: Arc<Mutex<Vec<u64>>> = Arc::default();
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let collected = Arc::clone(&times);
        std::thread::spawn(move || {
            let mut ready = Some(ready);
            for line in std::io::BufReader::new(output).lines().map_while(Result::ok) {
                match line.parse() {
                    Ok(millis) => collected.lock().push(millis),
                    Err(_) => drop(ready.take().map(|ready| ready.send(()))),
                }
            }
        });
        let fleet = Self { _process: Process(child), nodes, times };
        tokio::time::timeout(Duration::from_secs(300), is_ready).await.context("the honest nodes")??;
        tokio::time::sleep(INTERVAL * 2).await;
        Ok(fleet)
    }

    pub(crate) fn forget(&self) {
        self.times.lock().clear();
    }

    /// A percentile of the renewal times. None when fewer than nine of ten nodes renewed: a node that cannot connect
    /// renews nothing, and must not go unnoticed.
    pub(crate) fn percentile(&self, percent: usize) -> Option<Duration> {
        let mut times = self.times.lock().clone();
        if times.len() * 10 < usize::try_from(self.nodes).ok()? * 9 {
            return None;
        }
        times.sort_unstable();
        let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(index).map(|millis| Duration::from_millis(*millis))
    }
}
