//! The options that select a cluster, and `tombolo nodes`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use kube::Client;
use tombolo_cloud::kube::without_proxy_of_environment;

use crate::cluster;

/// Options that select a cluster.
#[derive(Debug, Clone, Args)]
pub struct ClusterOptions {
    /// Kubeconfig of the cluster; by default the one in KUBECONFIG, or the service account of the pod.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Namespace of cloudcore's own objects.
    #[arg(long, default_value = cluster::NAMESPACE)]
    pub namespace: String,
}

impl ClusterOptions {
    /// Client configuration for the cluster.
    pub(crate) async fn config(&self) -> Result<kube::Config> {
        let mut config = match &self.kubeconfig {
            None => {
                let config = kube::Config::infer().await;
                without_proxy_of_environment(
                    config.context("no cluster configured: pass --kubeconfig or set KUBECONFIG")?,
                )
            }
            Some(path) => cluster::config(path).await?,
        };
        // The user repeats a request that was refused or not answered, because it may have taken effect.
        config.default_retry = false;
        Ok(config)
    }

    pub(crate) async fn client(&self) -> Result<Client> {
        Ok(Client::try_from(self.config().await?)?)
    }
}

/// Lists the edge nodes with the age of their leases.
///
/// # Errors
/// When the cluster does not answer.
pub async fn nodes(options: &ClusterOptions) -> Result<()> {
    let nodes = cluster::edge_nodes(options.client().await?).await?;
    println!("{:<40} {:<10} LAST HEARTBEAT", "NODE", "READY");
    for cluster::EdgeNode { name, ready, heard, problem } in nodes {
        let problem = problem.map(|problem| format!(" ({problem})")).unwrap_or_default();
        println!("{name:<40} {ready:<10} {heard}{problem}");
    }
    Ok(())
}
