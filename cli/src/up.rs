//! `tombolo up`: API server, cloudcore and edge agents in one process, with real TLS between them.

mod controllers;
mod grids;
mod parts;
mod ports;
mod system;
mod table;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use clap::Args;
use tombolo_runtime::signals::Signals;
use tombolo_runtime::{Drain, Trigger, drain};

use crate::manifest::{self, Document};
use crate::transport::TransportOption;
use controllers::Binaries;
use parts::RunningParts;
use system::System;
use table::Table;

/// Maximum number of agents in one process; for more use `tombolo swarm`.
const EDGES_MAX: usize = 200;

/// Refresh interval of the table and the comparison.
const REFRESH: Duration = Duration::from_millis(250);

/// How long shutdown waits for sessions, writes and stores.
const DRAIN_GRACE: Duration = Duration::from_secs(10);

/// Options of `tombolo up`.
#[derive(Debug, Clone, Args)]
pub struct UpOptions {
    /// Number of edge agents, named edge-1, edge-2 and so on. 0 with --config.
    #[arg(long, default_value_t = 1)]
    pub edges: usize,

    /// Manifest to apply once everything runs; repeat the flag for several.
    #[arg(long, value_name = "FILE")]
    pub apply: Vec<PathBuf>,

    /// Transport that the agents use.
    #[arg(long, value_enum, default_value_t = TransportOption::Quic)]
    pub transport: TransportOption,

    /// Settings file of cloudcore, in its own form or as KubeEdge's cloudcore.yaml, so that agents on other
    /// machines can connect. Requires --edges 0: the cloud side of a site without a cluster.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Folder for all persistent data; dataDir in the settings of cloudcore is ignored.
    #[arg(long, default_value = ".tombolo", value_name = "FOLDER")]
    pub data_dir: PathBuf,

    /// Use this cluster instead of the embedded API server.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Run kube-controller-manager and kube-scheduler beside the embedded API server. The binaries are searched in
    /// KUBEBUILDER_ASSETS, in PATH and in the output of `cargo xtask components`.
    #[arg(long, conflicts_with = "kubeconfig")]
    pub controllers: bool,

    /// Exit with code 0 as soon as every edge lists exactly what it should hold. With --controllers and
    /// --simulate-pods, also wait until every grid is ready and each edge routes to the pods of its unit.
    #[arg(long)]
    pub until_synced: bool,

    /// With --until-synced: seconds to wait before giving up.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub timeout: u64,

    /// Let the agents report pod phases as if the pods ran, without running containers.
    #[arg(long)]
    pub simulate_pods: bool,
}

/// Runs the system until Ctrl-C, or until it is synced.
///
/// # Errors
/// When a manifest is invalid, a part does not start or fails, or the edges are not synced in time.
pub async fn run(options: &UpOptions) -> Result<()> {
    ensure!(options.edges <= EDGES_MAX, "--edges must be between 0 and {EDGES_MAX}");
    ensure!(
        options.config.is_none() || options.edges == 0,
        "--config is for a cloudcore whose agents run on other machines: add --edges 0"
    );
    let mut documents = Vec::new();
    for file in &options.apply {
        documents.extend(manifest::read(file)?);
    }
    let binaries = options.controllers.then(Binaries::find).transpose()?;
    let (trigger, drain) = drain::channel(DRAIN_GRACE);
    let signals = Signals::register()?;
    tokio::select! {
        outcome = serve(options, binaries.as_ref(), &documents, &trigger, &drain) => outcome,
        () = signals.drive(trigger.clone()) => bail!("stopped by a second signal"),
    }
}

async fn serve(
    options: &UpOptions,
    binaries: Option<&Binaries>,
    documents: &[Document],
    trigger: &Trigger,
    drain: &Drain,
) -> Result<()> {
    let mut parts = RunningParts::new();
    let started = tokio::select! {
        system = System::start(options, binaries, drain, &mut parts) => system,
        () = drain.started() => Err(anyhow!("stopped during startup")),
    };
    let outcome = match started {
        Ok(system) => {
            println!("kubeconfig: {}", system.kubeconfig().display());
            println!("to diagnose problems, run: {}", system.doctor());
            tokio::select! {
                outcome = attend(options, documents, &system) => outcome,
                error = parts.failed() => Err(error.into()),
                () = drain.started() => Ok(()),
            }
        }
        Err(error) => Err(error),
    };
    if !drain.is_started() {
        trigger.start();
    }
    parts.stop(trigger).await;
    outcome
}

/// Applies the manifests, then updates the table until the end.
async fn attend(options: &UpOptions, documents: &[Document], system: &System) -> Result<()> {
    for document in documents {
        document.apply(system.client()).await?;
        println!("applied {}", document.title());
    }
    let started = Instant::now();
    let mut table = Table::default();
    loop {
        let comparison = system.compare().await;
        let grids = system.grids().await;
        let sections = std::iter::once(table::nodes(system.rows(&comparison))).chain(grids.sections);
        table.show(sections.collect())?;
        let of_grids = if options.controllers && options.simulate_pods { grids.difference } else { None };
        let difference = comparison.into_iter().find_map(|edge| edge.difference).or(of_grids);
        if options.until_synced {
            match difference {
                None => {
                    println!("all edges are in sync after {:.1} s", started.elapsed().as_secs_f64());
                    return Ok(());
                }
                Some(text) if started.elapsed() >= Duration::from_secs(options.timeout) => {
                    bail!("not synced after {} s: {text}", options.timeout);
                }
                Some(_) => {}
            }
        }
        tokio::time::sleep(REFRESH).await;
    }
}
