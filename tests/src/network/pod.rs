//! The environment of a program in a pod: the files that its kubelet mounts, and the network.

use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

use super::Namespace;

/// Mounts a resolver's file and, if there is one, the folder of an account, in a mount namespace that ends with the
/// program that runs in it.
const SCRIPT: &str = "
mount --bind \"$1\" /etc/resolv.conf || exit
if [ -n \"$2\" ]; then
    mount -t tmpfs tmpfs /var/run || exit
    mkdir -p /var/run/secrets/kubernetes.io/serviceaccount || exit
    cp \"$2\"/* /var/run/secrets/kubernetes.io/serviceaccount || exit
fi
shift 2
exec \"$@\"";

/// The environment of a program.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    /// The network; none: the network of the test.
    pub network: Option<&'a Namespace>,
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// The DNS server that the kubelet was told of (`clusterDNS`), on port 53.
    pub nameserver: IpAddr,
    /// A folder with `token`, `ca.crt` and `namespace`, as the kubelet mounts it; none: the pod has no account.
    pub account: Option<&'a Path>,
}

impl Program<'_> {
    /// Runs a program to its end, with these variables and those of the test that say where programs are.
    ///
    /// # Errors
    /// When it cannot be started: util-linux is missing, or root.
    pub fn run(&self, words: &[&str], variables: &[(&str, &str)]) -> Result<Output> {
        let folder = tempfile::tempdir()?;
        let resolver = folder.path().join("resolv.conf");
        let namespace = self.namespace;
        // The search path that the kubelet writes (`dnsPolicy: ClusterFirst`).
        let search = format!("search {namespace}.svc.cluster.local svc.cluster.local cluster.local");
        std::fs::write(&resolver, format!("nameserver {}\n{search}\noptions ndots:5\n", self.nameserver))?;
        let mut command = match self.network {
            Some(network) => network.command("unshare"),
            None => Command::new("unshare"),
        };
        command.args(["--mount", "sh", "-c", SCRIPT, "sh"]).arg(&resolver);
        command.arg(self.account.unwrap_or(Path::new(""))).args(words);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.envs(variables.iter().copied()).output().context("unshare of util-linux")
    }

    /// The IPv4 addresses that the C library finds for a name, sorted; empty if there are none.
    ///
    /// # Errors
    /// See [`Self::run`]; or the program's standard error.
    pub fn resolve(&self, name: &str) -> Result<Vec<String>> {
        let output = self.run(&["getent", "ahostsv4", name], &[])?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(stderr.is_empty(), "{stderr}");
        let text = String::from_utf8_lossy(&output.stdout);
        let addresses = text.lines().filter_map(|line| line.split_whitespace().next());
        let mut addresses: Vec<String> = addresses.map(str::to_owned).collect();
        addresses.sort();
        addresses.dedup();
        Ok(addresses)
    }
}
