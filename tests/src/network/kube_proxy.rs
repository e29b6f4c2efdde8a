//! Stock kube-proxy on the wrapper of a node.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;
use tombolo_testkit::{Child, kube_proxy};

use super::Namespace;

/// Starts it inside a namespace, with the wrapper at an address of its loopback interface.
///
/// # Errors
/// When there is no kube-proxy or it cannot be started.
pub fn start_kube_proxy(
    namespace: &Namespace,
    folder: &Path,
    node: &str,
    wrapper: SocketAddr,
) -> Result<Child> {
    let kubeconfig = folder.join("kube-proxy.kubeconfig");
    let access = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "wrapper",
        "clusters": [{"name": "wrapper", "cluster": {"server": format!("http://{wrapper}")}}],
        "contexts": [{"name": "wrapper", "context": {"cluster": "wrapper", "user": ""}}],
    });
    std::fs::write(&kubeconfig, access.to_string())?;
    let config = folder.join("kube-proxy.yaml");
    let settings = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig},
        "mode": "iptables", "hostnameOverride": node, "clusterCIDR": "10.0.0.0/8",
        "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "5s"},
        // Limits of the kernel that are not those of a namespace.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": "127.0.0.1:10256", "metricsBindAddress": "127.0.0.1:10249",
    });
    std::fs::write(&config, settings.to_string())?;
    let program = kube_proxy().context("kube-proxy is built by `cargo xtask test`")?;
    Child::spawn("kube-proxy", folder, namespace.command(program).arg("--config").arg(config))
}
