//! `cargo xtask hostile`: what one hostile node or stranger can do to a hub with honest nodes.
//!
//! cloudcore runs in a process of its own, honest nodes renew their leases from a second one, and this one attacks: each
//! attack for some seconds, on loopback, with a bounded number of connections and frames. Memory is read from cloudcore's
//! own `/proc` entry. The exit code is 1 when a bound is missed.

#[path = "../hostile/attacks.rs"]
mod attacks;
#[path = "../hostile/honest.rs"]
mod honest;
#[path = "../hostile/peer.rs"]
mod peer;
#[path = "../hostile/strangers.rs"]
mod strangers;
#[path = "../hostile/table.rs"]
mod table;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use tombolo_tests::world::{Api, Transport, World};

use honest::Fleet;
use peer::Hub;
use table::Row;

/// What to run; `cargo xtask hostile` builds the programs and says it.
#[derive(Parser)]
struct Options {
    /// Honest nodes that renew their leases.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2000))]
    nodes: u32,

    /// Seconds of each attack.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=120))]
    seconds: u64,

    /// On the embedded API server, whose memory is then counted as well.
    #[arg(long)]
    embedded: bool,

    /// Run the attacks alone whose name contains this.
    #[arg(long, default_value = "")]
    only: String,

    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// The honest nodes.
    #[command(hide = true)]
    Honest(honest::Options),
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
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

async fn attack(options: &Options) -> Result<bool> {
    let api = if options.embedded { Api::Embedded } else { Api::Real };
    let world = World::start(api, Transport::WebSocket).await?;
    let hub = Hub::prepare(&world, options.nodes).await?;
    let fleet = Fleet::start(&hub, options.nodes).await?;
    let limit = Duration::from_secs(options.seconds);
    // What is made once, whoever asks first, is nobody's attack.
    attacks::warm_up(&hub).await.context("warming up")?;
    let mut rows = vec![
        measure(&hub, &fleet, "nobody attacks", limit, async {
            tokio::time::sleep(limit).await;
            Ok(String::new())
        })
        .await?,
    ];
    for (name, work) in attacks::all(&hub, limit).into_iter().chain(strangers::all(&hub, limit)) {
        if name.contains(&options.only) {
            eprintln!("hostile: {name}");
            rows.push(measure(&hub, &fleet, name, limit, work).await?);
        }
    }
    println!("{}", tombolo_cli::process::machine());
    Ok(table::print(options.nodes, &rows))
}

async fn measure(
    hub: &Hub,
    fleet: &Fleet,
    name: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<String>>,
) -> Result<Row> {
    let before = hub.resident()?;
    fleet.forget();
    let (begin, mut highest, mut newcomer) = (Instant::now(), before, Duration::ZERO);
    // The attack bounds itself by `limit`; this is for one that hangs.
    let work = tokio::time::timeout(limit * 3 + Duration::from_secs(30), work);
    tokio::pin!(work);
    let refused = loop {
        tokio::select! {
            outcome = &mut work => break match outcome {
                Ok(Ok(text)) => text,
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "the attack hung".to_owned(),
            },
            () = tokio::time::sleep(Duration::from_millis(100)) => {
                highest = highest.max(hub.resident()?);
                // A node that comes meanwhile, once in the middle.
                if newcomer.is_zero() && begin.elapsed() > limit / 2 {
                    newcomer = hub.newcomer().await;
                }
            }
        }
    };
    highest = highest.max(hub.resident()?);
    let lease = fleet.percentile(99);
    Ok(Row { name, growth: highest.saturating_sub(before), lease, newcomer, refused })
}
