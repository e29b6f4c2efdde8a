//! The container runtime of the whole-node tests, from the system's packages.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::run;

/// Debian packages: containerd, runc, a static busybox for images, the CNI plugins and the programs that these call.
const PACKAGES: [&str; 6] =
    ["containerd", "runc", "busybox-static", "containernetworking-plugins", "iproute2", "iptables"];

/// Programs of these packages, one of each except the CNI plugins.
const PROGRAMS: [&str; 5] = ["containerd", "runc", "busybox", "ip", "iptables"];

/// Paths of a CNI plugin in the usual distributions. The plugins are not on the PATH.
const PLUGINS: [&str; 2] = ["/usr/lib/cni/bridge", "/opt/cni/bin/bridge"];

/// Installs the container runtime if it is missing and packages can be installed.
pub(crate) fn install() -> Result<()> {
    let has_plugins = PLUGINS.iter().any(|plugin| Path::new(plugin).is_file());
    if has_plugins && PROGRAMS.iter().all(|program| is_here(program)) {
        return Ok(());
    }
    if !is_here("apt-get") {
        bail!("the whole-node tests need {PACKAGES:?}, and apt-get is not available to install them");
    }
    run::check(Command::new("apt-get").args(["update", "-qq"]))?;
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args([
        "install",
        "-qq",
        "-y",
        "--no-install-recommends",
    ]);
    run::check(command.args(PACKAGES))
}

fn is_here(program: &str) -> bool {
    Command::new("which").arg(program).output().is_ok_and(|found| found.status.success())
}
