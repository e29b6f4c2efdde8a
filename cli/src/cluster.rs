//! Reaching a cluster, its join token and its edge nodes: what several commands do.

use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};

/// Namespace of cloudcore's own objects unless it is told otherwise.
pub(crate) const NAMESPACE: &str = "kubeedge";

/// Name of the Secret with KubeEdge's shared join token (docs/reference/kubeedge.md#certificates-and-keys).
const TOKEN_SECRET: &str = "tokensecret";

/// Label of edge nodes (KubeEdge's).
const EDGE_LABEL: &str = "node-role.kubernetes.io/edge";

/// Namespace of node leases (Kubernetes convention).
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// How to reach the cluster of a kubeconfig file.
pub(crate) async fn config(kubeconfig: &Path) -> Result<kube::Config> {
    let parsed =
        Kubeconfig::read_from(kubeconfig).with_context(|| format!("cannot use {}", kubeconfig.display()))?;
    Ok(kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?)
}

/// KubeEdge's shared join token, where cloudcore keeps one.
pub(crate) async fn shared_token(client: Client, namespace: &str) -> Result<Option<String>> {
    let secrets: Api<Secret> = Api::namespaced(client, namespace);
    let Some(secret) = secrets.get_opt(TOKEN_SECRET).await.context("cannot read the join token")? else {
        return Ok(None);
    };
    let data = secret.data.and_then(|mut data| data.remove("tokendata"));
    let token = data.with_context(|| format!("{namespace}/{TOKEN_SECRET} has no tokendata"))?;
    String::from_utf8(token.0).map(Some).context("the token is not text")
}

/// An edge node as operators look at it.
pub(crate) struct EdgeNode {
    /// Its name.
    pub(crate) name: String,
    /// Status of its condition `Ready`: `True`, `False` or `Unknown`.
    pub(crate) ready: String,
    /// When its lease was renewed last; `never` without a lease.
    pub(crate) heard: String,
}

/// The edge nodes of a cluster.
pub(crate) async fn edge_nodes(client: Client) -> Result<Vec<EdgeNode>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let leases: Api<Lease> = Api::namespaced(client, LEASE_NAMESPACE);
    let renewed = leases.list(&ListParams::default()).await.context("cannot list leases")?;
    let listed = nodes.list(&ListParams::default().labels(EDGE_LABEL)).await.context("cannot list nodes")?;
    let node = |node: Node| {
        let name = node.metadata.name.unwrap_or_default();
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
        let lease = renewed.items.iter().find(|lease| lease.metadata.name.as_deref() == Some(&name));
        let time = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref());
        EdgeNode {
            ready: ready.map_or_else(|| "Unknown".to_owned(), |condition| condition.status),
            heard: time.map_or_else(|| "never".to_owned(), |time| time.0.to_string()),
            name,
        }
    };
    Ok(listed.into_iter().map(node).collect())
}
