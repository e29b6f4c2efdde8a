//! `tombolo apiserver`: the Kubernetes API server alone, for a cloudcore on a machine without a cluster.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, value_parser};
use tombolo_apiserver::{self as embedded, Bound, Embedded, Options};
use tombolo_runtime::drain;
use tombolo_runtime::signals::Signals;

/// How long shutdown waits for requests in progress.
const DRAIN_GRACE: Duration = Duration::from_secs(10);

/// Allowed size of the object store, in MiB. A value outside this range is almost certainly a mistake.
const SIZES: std::ops::RangeInclusive<i64> = 16..=65_536;

/// Options of `tombolo apiserver`.
#[derive(Debug, Clone, Args)]
pub struct ApiServerOptions {
    /// Folder for the server's objects, its keys and the administrator's kubeconfig.
    #[arg(long, value_name = "FOLDER")]
    pub data_dir: PathBuf,

    /// Address to listen on. Port 0 reuses the port of the last start, or picks a free one.
    #[arg(long, default_value_t = embedded::LISTEN, value_name = "ADDRESS")]
    pub listen: SocketAddr,

    /// Cluster addresses of Services: an IPv4 range with a prefix of 16 to 29 bits.
    #[arg(long, default_value = embedded::SERVICE_CIDR, value_name = "CIDR")]
    pub service_cidr: String,

    /// Size of the object store in MiB, 16 to 65536. Events may use a quarter of it, one node a sixteenth.
    #[arg(long, default_value_t = embedded::STORE_MEBIBYTES, value_parser = value_parser!(u32).range(SIZES))]
    pub store_mebibytes: u32,

    /// File that receives one JSON line per request (`audit.k8s.io/v1`, level Metadata).
    #[arg(long, value_name = "FILE")]
    pub audit_log: Option<PathBuf>,

    /// Set this if a kube-controller-manager without leader election runs beside this server: the server's own
    /// controllers then stay off. One with leader election is detected by its Lease.
    #[arg(long)]
    pub external_controllers: bool,
}

/// Serves until a signal arrives.
///
/// # Errors
/// When the folder is in use, damaged or belongs to another program, the port is taken, or the server fails.
pub async fn run(options: &ApiServerOptions) -> Result<()> {
    let signals = Signals::register()?;
    let bound = Embedded::start(settings(options)).await?;
    announce(&bound);
    let (trigger, drain) = drain::channel(DRAIN_GRACE);
    tokio::select! {
        ended = bound.run(drain) => Ok(ended?),
        () = signals.drive(trigger) => bail!("stopped by a second signal"),
    }
}

fn settings(options: &ApiServerOptions) -> Options {
    let mut settings = Options::new(&options.data_dir);
    settings.listen = options.listen;
    settings.service_cidr.clone_from(&options.service_cidr);
    settings.store_len_max = u64::from(options.store_mebibytes) << 20;
    settings.audit_log.clone_from(&options.audit_log);
    settings.external_controllers = options.external_controllers;
    settings
}

fn announce(bound: &Bound) {
    println!("listening on https://{}", bound.addr());
    println!("kubeconfig: {}", bound.kubeconfig().display());
}
