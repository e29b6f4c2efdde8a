//! `tombolo doctor`: finds out why something does not work. Prints one line per check, with advice.
//!
//! Examines a cluster from outside, as edges and cloudcore see it, or the agent of this machine. It changes nothing
//! except what a test of the hub needs: one join token for the name `tombolo-doctor`, which is used up at once. The
//! certificate stays in memory.

mod api;
mod device;
mod duplicate_identity;
mod hub;
mod report;
mod rights;
mod secrets;
mod settings;

use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Result, ensure};
use clap::Args;

pub use report::{Finding, Level, Report};

use crate::operate::ClusterOptions;
use crate::transport::TransportOption;

/// Options of `tombolo doctor`.
#[derive(Debug, Clone, Args)]
pub struct DoctorOptions {
    /// The cluster to examine.
    #[command(flatten)]
    pub cluster: ClusterOptions,

    /// Host at which edges reach cloudcore; by default, the one in its certificate.
    #[arg(long, value_name = "HOST")]
    pub cloud: Option<String>,

    /// The hub's port for WebSocket.
    #[arg(long, default_value_t = tombolo_cloud::config::WEBSOCKET_PORT, value_name = "PORT")]
    pub websocket_port: u16,

    /// The hub's port for QUIC.
    #[arg(long, default_value_t = tombolo_cloud::config::QUIC_PORT, value_name = "PORT")]
    pub quic_port: u16,

    /// Port of the join endpoints.
    #[arg(long, default_value_t = tombolo_cloud::config::JOIN_PORT, value_name = "PORT")]
    pub join_port: u16,

    /// Check only this transport; needed if the other one is off and the settings of cloudcore cannot be read here.
    #[arg(long, value_enum)]
    pub transport: Option<TransportOption>,

    /// cloudcore's settings file, if the settings are not in ConfigMap tombolo-cloudcore of the cluster.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Examine the edge agent of this machine instead: path of its settings file or its data folder.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["kubeconfig", "cloud"])]
    pub edge: Option<PathBuf>,
}

/// Runs the checks, and prints each finding as it is made.
///
/// # Errors
/// When a check has failed.
pub async fn run(options: &DoctorOptions) -> Result<()> {
    let mut report = Report::new(|finding| println!("{finding}"));
    examine(options, SystemTime::now(), &mut report).await;
    let (failed, all) = (report.failures().count(), report.findings().len());
    ensure!(failed == 0, "{failed} of {all} checks failed");
    Ok(())
}

/// Runs the checks that the options select. `now` is this machine's clock.
pub async fn examine(options: &DoctorOptions, now: SystemTime, report: &mut Report) {
    match &options.edge {
        Some(path) => device::examine(path, now, report).await,
        None => cluster(options, now, report).await,
    }
}

/// The checks of a cluster; each depends on those before it.
async fn cluster(options: &DoctorOptions, now: SystemTime, report: &mut Report) {
    let Some(api) = api::reach(&options.cluster, now, report).await else { return };
    api::namespace(&api, report).await;
    let kept = secrets::examine(&api, now, report).await;
    rights::examine(&api, &kept, report).await;
    let listeners = settings::examine(options, &api, report).await;
    hub::examine(options, &api, &kept, listeners.as_ref(), report).await;
    api::nodes(&api, report).await;
    duplicate_identity::examine(&api, report).await;
}
