//! Finds the Kubernetes binaries.

use std::path::{Path, PathBuf};
use std::{env, fmt, fs};

/// Variable of the envtest convention: a folder with `etcd`, `kube-apiserver`, `kubectl` and other binaries.
const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// Set by `cargo xtask test`: the program of `tests/clients`.
const GO_CLIENTS_VARIABLE: &str = "TOMBOLO_GO_CLIENTS";

/// Set by `cargo xtask test`: stock kubelet.
const KUBELET_VARIABLE: &str = "TOMBOLO_KUBELET";

/// Set by `cargo xtask test`: stock kube-proxy.
const KUBE_PROXY_VARIABLE: &str = "TOMBOLO_KUBE_PROXY";

/// Set by `cargo xtask test`: stock CoreDNS.
const COREDNS_VARIABLE: &str = "TOMBOLO_COREDNS";

/// Set to `1` by `cargo xtask test --without-cluster`.
const WITHOUT_CLUSTER_VARIABLE: &str = "TOMBOLO_WITHOUT_CLUSTER";

/// A file to which skipped tests append their names.
const SKIP_LOG_VARIABLE: &str = "TOMBOLO_SKIP_LOG";

/// A folder of Kubernetes binaries.
#[derive(Debug, Clone)]
pub struct Components {
    folder: PathBuf,
}

/// The environment does not name a folder of binaries.
#[derive(Debug)]
pub struct MissingComponents;

impl fmt::Display for MissingComponents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{ASSETS_VARIABLE} does not name a folder with etcd and kube-apiserver: run the tests with \
             `cargo xtask test`, which builds them, or with `--without-cluster`"
        )
    }
}

impl std::error::Error for MissingComponents {}

/// The binaries that `KUBEBUILDER_ASSETS` names.
///
/// # Errors
/// [`MissingComponents`] when the variable is unset or the folder has no kube-apiserver.
pub fn components() -> Result<Components, MissingComponents> {
    let folder = env::var_os(ASSETS_VARIABLE).map(PathBuf::from).ok_or(MissingComponents)?;
    if !folder.join("kube-apiserver").is_file() || !folder.join("etcd").is_file() {
        return Err(MissingComponents);
    }
    Ok(Components { folder })
}

/// The program of `tests/clients` that `cargo xtask test` builds: informers of client-go.
#[must_use]
pub fn go_clients() -> Option<PathBuf> {
    env::var_os(GO_CLIENTS_VARIABLE).map(PathBuf::from)
}

/// Stock kubelet, as `cargo xtask components` builds it.
#[must_use]
pub fn kubelet() -> Option<PathBuf> {
    env::var_os(KUBELET_VARIABLE).map(PathBuf::from)
}

/// Stock kube-proxy, as `cargo xtask components` builds it.
#[must_use]
pub fn kube_proxy() -> Option<PathBuf> {
    env::var_os(KUBE_PROXY_VARIABLE).map(PathBuf::from)
}

/// Stock CoreDNS, as `cargo xtask components` builds it.
#[must_use]
pub fn coredns() -> Option<PathBuf> {
    env::var_os(COREDNS_VARIABLE).map(PathBuf::from)
}

/// Whether tests that need a cluster may be skipped.
#[must_use]
pub fn skips_allowed() -> bool {
    env::var(WITHOUT_CLUSTER_VARIABLE).is_ok_and(|value| value == "1")
}

/// Records that a test could not run without the Kubernetes binaries.
pub fn record_skip(test: &str) {
    record_skip_for(test, &MissingComponents.to_string());
}

/// Records that a test could not run, and why.
pub fn record_skip_for(test: &str, why: &str) {
    eprintln!("SKIPPED {test}: {why}");
    if let Some(log) = env::var_os(SKIP_LOG_VARIABLE) {
        let appended = fs::OpenOptions::new().create(true).append(true).open(log);
        if let Ok(mut file) = appended {
            // One short write: lines of concurrent tests do not mix.
            let _ = std::io::Write::write_all(&mut file, format!("{test}: {why}\n").as_bytes());
        }
    }
}

impl Components {
    /// Path of one binary.
    #[must_use]
    pub fn binary(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The folder itself.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}
