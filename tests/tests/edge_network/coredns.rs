//! Stock CoreDNS with the Corefile of `deploy/edge`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Child, coredns};
use tombolo_tests::source;

use crate::cluster::Cluster;

/// A running CoreDNS; its process ends when it is dropped.
pub(crate) struct CoreDns {
    process: Child,
}

impl CoreDns {
    /// Starts it beside the agent of a cluster, with other addresses than those that are shipped; `cached`: it keeps what
    /// other servers have answered.
    pub(crate) fn start(
        cluster: &Cluster,
        folder: &Path,
        address: SocketAddr,
        upstream: SocketAddr,
        cached: bool,
    ) -> Result<Self> {
        let shipped = std::fs::read_to_string(source::root().join("deploy/edge/Corefile"))?;
        let mut text = shipped;
        for (from, to) in [
            (".:53 {", format!(".:{} {{", address.port())),
            ("bind 169.254.20.10", format!("bind {}", address.ip())),
            ("hosts /data/edge/hosts", format!("hosts {}", cluster.hosts.display())),
            ("endpoint http://127.0.0.1:51006", format!("endpoint http://{}", cluster.wrapper)),
            ("forward . /etc/resolv.conf", format!("forward . {upstream}")),
        ] {
            ensure!(text.matches(from).count() == 1, "the Corefile has not one {from:?}");
            text = text.replace(from, &to);
        }
        if !cached {
            let (before, rest) = text.split_once("    cache 30 {").context("the Corefile keeps answers")?;
            let (_, after) = rest.split_once("    }\n").context("the block ends")?;
            text = format!("{before}{after}");
        }
        let path = folder.join("Corefile");
        std::fs::write(&path, text)?;
        let program = coredns().context("CoreDNS is built by `cargo xtask test`")?;
        let process = Child::spawn("coredns", folder, Command::new(program).arg("-conf").arg(path))?;
        Ok(Self { process })
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        self.process.log_tail(30)
    }
}
