//! `tombolo`: the whole system on one machine, and tools for operators.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tombolo_cli::{apiserver, component, doctor, operate, replay, swarm, token, up};
use tombolo_runtime::telemetry;

#[derive(Parser)]
#[command(name = "tombolo", version, about = "A cloud/edge message hub for Kubernetes")]
struct CommandLine {
    /// Log filter for standard error, for example `info` or `tombolo_cloud=debug`.
    // The Kubernetes client logs every 5xx as an error, including those that are expected and retried.
    #[arg(long, global = true, default_value = "warn,kube_client::client::builder=off", env = "TOMBOLO_LOG")]
    log: String,

    #[command(subcommand)]
    command: TomboloCommand,
}

#[derive(Subcommand)]
enum TomboloCommand {
    /// Run an API server, cloudcore and edge agents on this machine.
    Up(up::UpOptions),
    /// Run the Kubernetes API server alone, for a cloudcore without a cluster.
    Apiserver(apiserver::ApiServerOptions),
    /// Create, list and delete join tokens; without a subcommand, print KubeEdge's shared token.
    Token(token::TokenOptions),
    /// Revoke the certificates of edge nodes.
    Revoke(token::RevokeOptions),
    /// List the edge nodes of a cluster.
    Nodes(operate::ClusterOptions),
    /// Diagnose a cluster or an edge node: one line per check.
    Doctor(doctor::DoctorOptions),
    /// Load a hub with hollow edge nodes and measure it.
    Swarm(swarm::SwarmOptions),
    /// Replay recorded traffic and report the first difference.
    Replay(replay::ReplayOptions),
    /// Run a program that is killed when the given parent process ends.
    #[command(hide = true)]
    Component(component::ComponentOptions),
}

fn main() -> ExitCode {
    let arguments = CommandLine::parse();
    if let Err(error) = telemetry::init(telemetry::Format::Text, &arguments.log) {
        eprintln!("error: --log: {error}");
        return ExitCode::from(64);
    }
    tombolo_runtime::raise_open_files();
    if let Err(error) = tombolo_proto::set_hash_secret(rand::random()) {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start the async runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(async {
        match arguments.command {
            TomboloCommand::Up(options) => up::run(&options).await,
            TomboloCommand::Apiserver(options) => apiserver::run(&options).await,
            TomboloCommand::Token(options) => token::token(&options).await,
            TomboloCommand::Revoke(options) => token::revoke(&options).await,
            TomboloCommand::Nodes(options) => operate::nodes(&options).await,
            TomboloCommand::Doctor(options) => doctor::run(&options).await,
            TomboloCommand::Swarm(options) => swarm::run(&options).await,
            TomboloCommand::Replay(options) => return replay(&options).await,
            TomboloCommand::Component(options) => component::run(&options),
        }
        .map(|()| ExitCode::SUCCESS)
        .map_err(|error| (error, ExitCode::FAILURE))
    });
    outcome.unwrap_or_else(|(error, code)| {
        eprintln!("error: {}", tombolo_runtime::sentence(error.as_ref()));
        code
    })
}

/// A difference exits with 1, as in `diff`; a transcript that cannot be played with 2.
async fn replay(options: &replay::ReplayOptions) -> Result<ExitCode, (anyhow::Error, ExitCode)> {
    match replay::run(options).await {
        Ok(replay::Verdict::Same) => Ok(ExitCode::SUCCESS),
        Ok(replay::Verdict::Different) => Ok(ExitCode::FAILURE),
        Err(error) => Err((error, ExitCode::from(2))),
    }
}
