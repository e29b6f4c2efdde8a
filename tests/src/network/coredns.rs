//! Stock CoreDNS with the Corefile of `deploy/edge`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Child, coredns};

use super::Namespace;
use crate::source;

/// The parts of the shipped file that differ on this machine.
#[derive(Debug, Clone, Copy)]
pub struct CoreDnsOptions<'a> {
    /// The file of uniform names.
    pub hosts: &'a Path,
    /// The wrapper of the node.
    pub wrapper: SocketAddr,
    /// The address on which it listens.
    pub address: SocketAddr,
    /// The DNS server for names outside the cluster.
    pub upstream: SocketAddr,
    /// Whether it caches the answers of other servers.
    pub cached: bool,
    /// The network that it runs in; none: the network of the test.
    pub namespace: Option<&'a Namespace>,
}

/// A running CoreDNS; its process ends when it is dropped.
#[derive(Debug)]
pub struct CoreDns {
    process: Child,
}

impl CoreDns {
    /// Starts CoreDNS with its files in a folder.
    ///
    /// # Errors
    /// When the shipped file has changed, CoreDNS is missing, or it cannot be started.
    pub fn start(options: &CoreDnsOptions<'_>, folder: &Path) -> Result<Self> {
        let mut text = std::fs::read_to_string(source::root().join("deploy/edge/Corefile"))?;
        let CoreDnsOptions { hosts, wrapper, address, upstream, cached, namespace } = options;
        for (from, to) in [
            (".:53 {", format!(".:{} {{", address.port())),
            ("bind 169.254.20.10", format!("bind {}", address.ip())),
            ("hosts /data/edge/hosts", format!("hosts {}", hosts.display())),
            ("endpoint http://127.0.0.1:51006", format!("endpoint http://{wrapper}")),
            ("forward . /etc/resolv.conf", format!("forward . {upstream}")),
        ] {
            ensure!(text.matches(from).count() == 1, "the Corefile must contain {from:?} exactly once");
            text = text.replace(from, &to);
        }
        if !cached {
            let (before, rest) =
                text.split_once("    cache 30 {").context("the Corefile has no cache block")?;
            let (_, after) = rest.split_once("    }\n").context("the cache block has no end")?;
            text = format!("{before}{after}");
        }
        let path = folder.join("Corefile");
        std::fs::write(&path, text)?;
        let program =
            coredns().context("no CoreDNS: run the tests with `cargo xtask test`, which builds it")?;
        let mut command = match namespace {
            Some(namespace) => namespace.command(program),
            None => Command::new(program),
        };
        let process = Child::spawn("coredns", folder, command.arg("-conf").arg(path))?;
        Ok(Self { process })
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log_tail(30)
    }
}
