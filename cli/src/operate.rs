//! `tombolo token` and `tombolo nodes`: looking at a cluster.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};

use crate::cluster;

/// Label of edge nodes (KubeEdge's).
const EDGE_LABEL: &str = "node-role.kubernetes.io/edge";
/// Namespace of node leases (Kubernetes convention).
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Which cluster.
#[derive(Debug, Clone, Args)]
pub struct ClusterOptions {
    /// Kubeconfig of the cluster; without it what KUBECONFIG names, or the service account of the pod.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Namespace of cloudcore's own objects.
    #[arg(long, default_value = cluster::NAMESPACE)]
    namespace: String,
}

impl ClusterOptions {
    async fn client(&self) -> Result<Client> {
        let config = match &self.kubeconfig {
            None => kube::Config::infer().await.context("no cluster: give --kubeconfig or set KUBECONFIG")?,
            Some(path) => cluster::config(path).await?,
        };
        Ok(Client::try_from(config)?)
    }
}

/// Prints the present join token.
///
/// # Errors
/// When the cluster does not answer or cloudcore has never run on it.
pub async fn token(options: &ClusterOptions) -> Result<()> {
    println!("{}", cluster::join_token(options.client().await?, &options.namespace).await?);
    Ok(())
}

/// Lists the edge nodes with the age of their leases.
///
/// # Errors
/// When the cluster does not answer.
pub async fn nodes(options: &ClusterOptions) -> Result<()> {
    let client = options.client().await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let leases: Api<Lease> = Api::namespaced(client, LEASE_NAMESPACE);
    let renewed = leases.list(&ListParams::default()).await.context("cannot list leases")?;
    let listed = nodes.list(&ListParams::default().labels(EDGE_LABEL)).await.context("cannot list nodes")?;
    println!("{:<40} {:<10} LAST HEARD", "NODE", "READY");
    for node in listed {
        let name = node.metadata.name.unwrap_or_default();
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
        let ready = ready.map_or_else(|| "Unknown".to_owned(), |condition| condition.status);
        let lease = renewed.items.iter().find(|lease| lease.metadata.name.as_deref() == Some(&name));
        let time = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref());
        let heard = time.map_or_else(|| "never".to_owned(), |time| time.0.to_string());
        println!("{name:<40} {ready:<10} {heard}");
    }
    Ok(())
}
