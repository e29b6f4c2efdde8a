//! The C library's resolver with the file of a pod.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;

use anyhow::{Context, Result};

/// Two addresses of this machine, port 53, that no other test of this machine has; none where that port is not to be had.
pub(crate) fn addresses() -> Option<[SocketAddr; 2]> {
    let process = std::process::id().to_be_bytes();
    let address = |last: u8| SocketAddr::new(Ipv4Addr::new(127, process[2], process[3], last).into(), 53);
    let both = [address(53), address(54)];
    both.iter().all(|address| std::net::UdpSocket::bind(address).is_ok()).then_some(both)
}

/// The first IPv4 address that a program in a pod of the namespace `shop` finds; empty when there is none.
pub(crate) fn resolve(server: IpAddr, name: &str) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("resolv.conf");
    let search = "search shop.svc.cluster.local svc.cluster.local cluster.local";
    std::fs::write(&file, format!("nameserver {server}\n{search}\noptions ndots:5\n"))?;
    let script = "mount --bind \"$1\" /etc/resolv.conf && exec getent ahostsv4 \"$2\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(&file)
        .arg(name)
        .output()
        .context("unshare of util-linux")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(stderr.is_empty(), "{stderr}");
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}
