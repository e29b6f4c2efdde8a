//! The kubelet and what it runs containers with, for the whole-node tests. The kubelet is built from its Go module, apart from
//! the control plane's binaries, which are then not built again; the container runtime comes from the system's packages.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::gobuild;
use crate::run;

/// Tells the tests where the kubelet is; one that it names already is not built.
const VARIABLE: &str = "TOMBOLO_KUBELET";

/// Go module of the kubelet.
const MODULE: &str = "tests/components/kubelet";

/// Debian's names of containerd, runc, a static busybox for images, the CNI plugins and what these call.
const PACKAGES: [&str; 6] =
    ["containerd", "runc", "busybox-static", "containernetworking-plugins", "iproute2", "iptables"];

/// Programs of these packages, one of each.
const PROGRAMS: [&str; 5] = ["containerd", "runc", "busybox", "ip", "iptables"];

/// Tells a command where the kubelet is; it is built first when it is not there.
pub(crate) fn name_to(command: &mut Command) -> Result<()> {
    command.env(VARIABLE, ensure()?);
    Ok(())
}

/// Path of the kubelet.
pub(crate) fn ensure() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE).map(PathBuf::from) {
        return Ok(named);
    }
    let modules = run::root().join(MODULE);
    let folder = gobuild::cache_folder("kubelet")?.join(gobuild::key(&modules)?);
    let path = folder.join("kubelet");
    if !path.is_file() {
        eprintln!("building kubelet {}, a minute or two on two cores, once", gobuild::KUBERNETES_VERSION);
        gobuild::into_folder(&folder, |half_made| {
            let mut command = gobuild::go(&modules);
            command.args(["build", "-trimpath", "-ldflags", &gobuild::link_flags(), "-o"]);
            run::check(command.arg(half_made.join("kubelet")).arg("k8s.io/kubernetes/cmd/kubelet"))
        })?;
    }
    Ok(path)
}

/// Installs the container runtime where it is missing and packages can be installed.
pub(crate) fn install_runtime() -> Result<()> {
    if PROGRAMS.iter().all(|program| is_here(program)) {
        return Ok(());
    }
    if !is_here("apt-get") {
        bail!("the whole-node tests need {PACKAGES:?}, and there is no apt-get here to install them");
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
