//! Stock kube-proxy on the wrapper of a node, with the settings that `edgecore kubelet-config` prints.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tombolo_testkit::{Child, kube_proxy};

use super::Namespace;
use crate::world::World;

/// The settings that are special for tests. Test machines need not have the nftables programs, and kernel limits do not
/// belong to a namespace.
fn own() -> Value {
    json!({
        "mode": "iptables",
        "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "5s"},
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    })
}

/// Starts kube-proxy inside a namespace. `wrapper` is the address of the wrapper there, if it differs from the address
/// in the agent's settings.
///
/// # Errors
/// When kube-proxy is missing, its settings are not printed, or it cannot be started.
pub fn start_kube_proxy(
    world: &World,
    node: &str,
    namespace: &Namespace,
    folder: &Path,
    wrapper: Option<SocketAddr>,
) -> Result<Child> {
    let mut access = printed(world, node, folder, "kube-proxy-kubeconfig")?;
    if let Some(wrapper) = wrapper {
        access["clusters"][0]["cluster"]["server"] = format!("http://{wrapper}").into();
    }
    std::fs::write(folder.join("kube-proxy.kubeconfig"), access.to_string())?;
    let mut settings = printed(world, node, folder, "kube-proxy")?;
    ensure!(settings["hostnameOverride"] == node, "{settings}");
    for (member, value) in own().as_object().into_iter().flatten() {
        settings[member] = value.clone();
    }
    let config = folder.join("kube-proxy.yaml");
    std::fs::write(&config, settings.to_string())?;
    let program =
        kube_proxy().context("no kube-proxy: run the tests with `cargo xtask test`, which builds it")?;
    Child::spawn("kube-proxy", folder, namespace.command(program).arg("--config").arg(config))
}

fn printed(world: &World, node: &str, folder: &Path, document: &str) -> Result<Value> {
    let folder = folder.display().to_string();
    let arguments = ["kubelet-config", "--of", document, "--folder", &folder, "--cluster-cidr", "10.0.0.0/8"];
    let output = world.edge_command(node, &arguments)?;
    ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_saphyr::from_str(&String::from_utf8(output.stdout)?)?)
}
