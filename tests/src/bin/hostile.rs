//! `cargo xtask hostile`: measures what one hostile node or stranger can do to a hub with honest nodes.
//!
//! cloudcore runs in a process of its own, honest nodes renew their leases from a second process, and this process
//! attacks. Each attack lasts some seconds, on loopback, with a bounded number of connections and frames. Memory is
//! read from cloudcore's own `/proc` entry; the part of it that the embedded server has stored is read from its
//! metrics. The exit code is 1 when a bound is missed, and when an attack did not take place: each attack states what
//! must have happened at least.

#[path = "../hostile/attacks.rs"]
mod attacks;
#[path = "../hostile/embedded.rs"]
mod embedded;
#[path = "../hostile/honest.rs"]
mod honest;
#[path = "../hostile/kubeedge.rs"]
mod kubeedge;
#[path = "../hostile/memory.rs"]
mod memory;
#[path = "../hostile/peer.rs"]
mod peer;
#[path = "../hostile/pods.rs"]
mod pods;
#[path = "../hostile/ports.rs"]
mod ports;
#[path = "../hostile/strangers.rs"]
mod strangers;
#[path = "../hostile/table.rs"]
mod table;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use tombolo_tests::world::{Api, Transport, World};

use attacks::Attack;
use honest::Fleet;
use memory::Watch;
use peer::{Hub, Took};
use table::Row;

/// What to run. `cargo xtask hostile` builds the programs and starts this one.
#[derive(Parser)]
struct HostileOptions {
    /// Honest nodes that renew their leases.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2000))]
    nodes: u32,

    /// Duration of each attack in seconds.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=120))]
    seconds: u64,

    /// The API server: both, one after the other, or one. The embedded server's memory is counted with cloudcore's.
    #[arg(long, value_enum, default_value_t = Server::Both)]
    server: Server,

    /// Run only the attacks whose name contains this text.
    #[arg(long, default_value = "")]
    only: String,

    #[command(subcommand)]
    role: Option<Role>,
}

/// The API servers that the hub runs on.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Server {
    Both,
    KubeApiserver,
    Embedded,
}

impl Server {
    fn apis(self) -> Vec<(&'static str, Api)> {
        let all = [("kube-apiserver", Api::Real), ("the embedded server", Api::Embedded)];
        let wanted = |api: Api| match self {
            Self::Both => true,
            Self::KubeApiserver => api == Api::Real,
            Self::Embedded => api == Api::Embedded,
        };
        all.into_iter().filter(|(_, api)| wanted(*api)).collect()
    }
}

impl HostileOptions {
    /// The attacks on this API server. Attacks on kube-apiserver itself are left out, because it is not part of the
    /// product.
    fn attacks(&self, api: Api) -> Vec<Attack> {
        let own = if api == Api::Embedded { &embedded::ALL[..] } else { &[] };
        let all =
            attacks::ALL.iter().chain(&strangers::ALL).chain(&pods::ALL).chain(&kubeedge::ALL).chain(own);
        all.filter(|(name, _)| name.contains(&self.only)).copied().collect()
    }
}

#[derive(Subcommand)]
enum Role {
    /// The honest nodes.
    #[command(hide = true)]
    Honest(honest::HonestOptions),
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = HostileOptions::parse();
    let outcome = match options.role {
        Some(Role::Honest(honest)) => honest::run(honest).await.map(|()| true),
        None => attack(&options).await,
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("hostile: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn attack(options: &HostileOptions) -> Result<bool> {
    let mut plan: Vec<_> = options.server.apis().into_iter().map(|on| (on, options.attacks(on.1))).collect();
    plan.retain(|(_, attacks)| !attacks.is_empty());
    ensure!(!plan.is_empty(), "no attack has {:?} in its name", options.only);
    let mut kept = true;
    for ((name, api), attacks) in plan {
        eprintln!("hostile: on {name}");
        let rows = attack_on(options, api, attacks).await.with_context(|| format!("on {name}"))?;
        println!("{}", tombolo_cli::process::machine());
        kept &= table::print(name, options.nodes, &rows);
    }
    Ok(kept)
}

async fn attack_on(options: &HostileOptions, api: Api, attacks: Vec<Attack>) -> Result<Vec<Row>> {
    let world = World::start(api, Transport::WebSocket).await?;
    let hub = Hub::prepare(&world, options.nodes).await?;
    let fleet = Fleet::start(&hub, options.nodes).await?;
    let limit = Duration::from_secs(options.seconds);
    // Objects that are created once, for any first caller, are not part of an attack.
    attacks::warm_up(&hub).await.context("warming up")?;
    let nobody = async { Ok(Took::place(String::new())) };
    let mut rows = vec![measure(&hub, &fleet, "nobody attacks", limit, nobody).await?];
    for (name, begin) in attacks {
        eprintln!("hostile: {name}");
        rows.push(measure(&hub, &fleet, name, limit, begin(&hub, limit)).await?);
    }
    Ok(rows)
}

/// Runs an attack and observes the hub and its honest nodes while it lasts. If the attack ends early, observes long
/// enough to see each node renew its lease.
async fn measure(
    hub: &Hub,
    fleet: &Fleet,
    name: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<Took>>,
) -> Result<Row> {
    let memory = Watch::begin(hub).await?;
    fleet.forget();
    let begin = Instant::now();
    // The attack bounds itself by `limit`; this timeout is for an attack that hangs.
    let work = async {
        match tokio::time::timeout(limit * 3 + Duration::from_secs(30), work).await {
            Ok(Ok(took)) => took,
            Ok(Err(error)) => Took::none(format!("{error:#}")),
            Err(_) => Took::none("it hung".to_owned()),
        }
    };
    // In the middle of the attack, one newcomer arrives at each port.
    let newcomers = async {
        tokio::time::sleep(limit / 2).await;
        hub.newcomers().await
    };
    let long_enough = tokio::time::sleep(limit.max(honest::INTERVAL + Duration::from_secs(1)));
    let (took, newcomers) = tokio::select! {
        (took, newcomers, ()) = async { tokio::join!(work, newcomers, long_enough) } => (took, newcomers),
        error = memory.run() => return Err(error),
    };
    eprintln!("hostile: {name}: {:.1} s; {}", begin.elapsed().as_secs_f32(), took.text);
    Ok(Row { name, growth: memory.end().await?, lease: fleet.percentile(99), newcomers, took })
}
