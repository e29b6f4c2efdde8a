//! The command line of `cloudcore`.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tombolo_runtime::signals::Signals;
use tombolo_runtime::telemetry::{self, Format};
use tombolo_runtime::{Drain, DrainOutcome, Trigger, drain};

use crate::config::{default_config, min_config};
use crate::kube::without_proxy_of_environment;
use crate::objectsync::{self, Exported};
use crate::{App, Config, Kube};

/// The cloud side of Tombolo.
#[derive(Debug, Parser)]
#[command(name = "cloudcore", version)]
pub struct Arguments {
    /// Configuration file (YAML): Tombolo's own format or KubeEdge's cloudcore.yaml. Without one, the defaults apply.
    #[arg(long)]
    config: Option<PathBuf>,

    /// Print every setting with its default value and exit.
    #[arg(long = "defaultconfig", conflicts_with_all = ["config", "min_config"])]
    default_config: bool,

    /// Print the settings that most installations set and exit.
    #[arg(long = "minconfig", conflicts_with = "config")]
    min_config: bool,

    /// Write the delivery ledgers of KubeEdge edges as ObjectSync objects for a return to KubeEdge cloudcore, and exit.
    #[arg(long)]
    export_objectsync: bool,

    /// Kubeconfig of the cluster; overrides the configuration file.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,

    /// Folder for the data of this cloudcore; overrides the configuration file.
    #[arg(long)]
    data_dir: Option<PathBuf>,

    /// Record the messages between nodes and this cloudcore into this folder, with secrets and tokens redacted: one
    /// transcript for each node, which `tombolo replay` plays.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,

    /// Log filter, such as `info` or `tombolo_cloud=debug`.
    #[arg(long, default_value = "info")]
    log: String,

    /// Format of log lines: text or json.
    #[arg(long, default_value = "text")]
    log_format: Format,
}

/// Runs until a signal arrives.
///
/// # Errors
/// The error that kept cloudcore from starting, or that stopped it.
pub fn run(arguments: Arguments) -> Result<()> {
    if arguments.default_config || arguments.min_config {
        let text = match arguments.min_config {
            true => min_config().to_owned(),
            false => default_config().context("cannot write the defaults")?,
        };
        return std::io::stdout().write_all(text.as_bytes()).context("cannot print the configuration");
    }
    let _filter = telemetry::init(arguments.log_format, &arguments.log)?;
    tombolo_runtime::raise_open_files();
    tombolo_proto::set_hash_secret(rand::random())?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start tokio")?;
    runtime.block_on(serve(arguments))
}

async fn serve(arguments: Arguments) -> Result<()> {
    let signals = Signals::register().context("cannot register for signals")?;
    let mut config = match &arguments.config {
        Some(path) => Config::load(path)?,
        None => Config::default(),
    };
    if arguments.kubeconfig.is_some() {
        config.kubeconfig = arguments.kubeconfig;
    }
    if let Some(data_dir) = arguments.data_dir {
        config.data_dir = data_dir;
    }
    config.record = arguments.record;
    for setting in &config.ignored {
        tracing::info!(key = setting.key, reason = setting.reason, "setting ignored");
    }
    if !config.missing.is_empty() {
        let modules: Vec<String> = config.missing.iter().map(ToString::to_string).collect();
        let modules = modules.join("; ");
        tracing::warn!(%modules, "the file enables modules of KubeEdge that do not exist here: see docs/migrating-from-kubeedge.md");
    }
    if arguments.export_objectsync {
        return export_objectsync(&config).await;
    }
    let (trigger, drain) = drain::channel(config.drain_grace);
    tokio::select! {
        result = until_drained(config, &trigger, drain) => result,
        () = signals.drive(trigger.clone()) => bail!("stopped by a second signal"),
    }
}

/// Runs the hub for the configured cluster.
async fn until_drained(config: Config, trigger: &Trigger, drain: Drain) -> Result<()> {
    let cluster = cluster(config.kubeconfig.as_deref(), config.api_server.as_deref()).await?;
    let kube = Kube::following(cluster, config.kubeconfig.as_deref())?;
    let result = run_hub(config, kube, drain.clone()).await;
    // It may have ended without a signal. Starting the drain twice would abort.
    if !drain.is_started() {
        trigger.start();
    }
    if trigger.finished().await == DrainOutcome::DeadlinePassed {
        tracing::warn!("stopped before everything was finished");
    }
    result
}

/// For a return to KubeEdge: writes this cloudcore's ledgers in KubeEdge cloudcore's form.
async fn export_objectsync(config: &Config) -> Result<()> {
    let cluster = cluster(config.kubeconfig.as_deref(), config.api_server.as_deref()).await?;
    let Exported { nodes, objects, skipped, refused, refusals } =
        objectsync::export(&Kube::from_config(cluster)?, &config.namespace).await?;
    let text = format!("{objects} objects of {nodes} nodes written, {skipped} left out, {refused} refused\n");
    std::io::stdout().write_all(text.as_bytes()).context("cannot print what was written")?;
    if refused > 0 {
        let more = refused.saturating_sub(refusals.len());
        let more = if more > 0 { format!("\nand {more} more") } else { String::new() };
        bail!(
            "incomplete: {refused} objects could not be recorded, and KubeEdge cloudcore will not delete them on \
             their nodes\n{}{more}",
            refusals.join("\n")
        );
    }
    Ok(())
}

/// A signal ends it even while it waits for its API server.
async fn run_hub(config: Config, kube: Kube, drain: Drain) -> Result<()> {
    match drain.until_started(App::build(config, kube)).await {
        Some(bound) => Ok(bound?.run(drain.clone()).await?),
        None => Ok(()),
    }
}

/// The cluster of the kubeconfig, or of this pod. `api_server` replaces its address.
async fn cluster(kubeconfig: Option<&Path>, api_server: Option<&str>) -> Result<kube::Config> {
    // Installing the same provider a second time is refused, which is fine.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let address = api_server.map(str::parse::<http::Uri>).transpose();
    let address = address
        .with_context(|| format!("{:?} is not an API server address", api_server.unwrap_or_default()))?;
    let mut config = match (kubeconfig, &address) {
        (Some(path), _) => {
            let unusable = || format!("cannot use kubeconfig {}", path.display());
            let parsed = Kubeconfig::read_from(path).with_context(unusable)?;
            let options = KubeConfigOptions::default();
            kube::Config::from_custom_kubeconfig(parsed, &options).await.with_context(unusable)?
        }
        (None, Some(address)) => kube::Config::new(address.clone()),
        (None, None) => kube::Config::infer()
            .await
            .context("no cluster: give --kubeconfig; `tombolo apiserver` and `tombolo up` run without one")?,
    };
    if let Some(address) = address {
        config.cluster_url = address;
    }
    Ok(without_proxy_of_environment(config))
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// The API server is unreachable, possibly for ever.
    #[tokio::test(start_paused = true)]
    async fn a_signal_ends_a_cloudcore_that_waits_for_its_api_server() {
        let away = tower::service_fn(|_: Request<Body>| async {
            Err::<Response<Body>, tower::BoxError>("there is no API server".into())
        });
        let folder = tempfile::TempDir::new().expect("a folder");
        let (trigger, drain) = drain::channel(std::time::Duration::from_secs(1));
        let kube = Kube::from(::kube::Client::new(away, "default"));
        let mut running = Box::pin(run_hub(Config::local(folder.path()), kube, drain));
        let waits = tokio::time::timeout(std::time::Duration::from_secs(600), &mut running).await;
        assert!(waits.is_err(), "{waits:?}");
        trigger.start();
        running.await.expect("it stops on request");
    }
}
