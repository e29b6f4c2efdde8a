//! The Kubernetes binaries of the tests, built from their published Go modules (`tests/components`).

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::run;

/// Variable of the envtest convention: a folder that already has the binaries.
pub(crate) const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// Version that the binaries report: kubectl and kube-controller-manager compare it with the server's.
const KUBERNETES_VERSION: &str = "v1.36.3";

struct Binary {
    name: &'static str,
    import_path: &'static str,
    /// Name that `go build` gives the file: the last path element that is not a version.
    built_as: &'static str,
}

const BINARIES: [Binary; 5] = [
    Binary { name: "etcd", import_path: "go.etcd.io/etcd/server/v3", built_as: "server" },
    Binary {
        name: "kube-apiserver",
        import_path: "k8s.io/kubernetes/cmd/kube-apiserver",
        built_as: "kube-apiserver",
    },
    Binary { name: "kubectl", import_path: "k8s.io/kubernetes/cmd/kubectl", built_as: "kubectl" },
    Binary {
        name: "kube-controller-manager",
        import_path: "k8s.io/kubernetes/cmd/kube-controller-manager",
        built_as: "kube-controller-manager",
    },
    Binary {
        name: "kube-scheduler",
        import_path: "k8s.io/kubernetes/cmd/kube-scheduler",
        built_as: "kube-scheduler",
    },
];

/// Whether the binaries can be had on this machine.
pub(crate) fn available() -> bool {
    env::var_os(ASSETS_VARIABLE).is_some() || Command::new("go").arg("version").output().is_ok()
}

/// The folder with all binaries: the one that is named, the cached one, or a new build.
pub(crate) fn ensure() -> Result<PathBuf> {
    if let Some(folder) = env::var_os(ASSETS_VARIABLE).map(PathBuf::from) {
        let missing = BINARIES.iter().find(|binary| !folder.join(binary.name).is_file());
        return match missing {
            None => Ok(folder),
            Some(binary) => bail!(
                "{ASSETS_VARIABLE} is {}, which has no {}: unset it to have the components built",
                folder.display(),
                binary.name
            ),
        };
    }
    let modules = run::root().join("tests/components");
    let folder = cache_folder()?.join(key(&modules)?);
    if !BINARIES.iter().all(|binary| folder.join(binary.name).is_file()) {
        build(&modules, &folder)?;
    }
    Ok(folder)
}

fn build(modules: &Path, folder: &Path) -> Result<()> {
    let started = Instant::now();
    let half_made = folder.with_extension("partial");
    fs::create_dir_all(&half_made).with_context(|| format!("create {}", half_made.display()))?;
    eprintln!("building etcd and Kubernetes {KUBERNETES_VERSION}, about 5 minutes on two cores, once");
    for (number, binary) in BINARIES.iter().enumerate() {
        eprintln!("[{}/{}] {}", number + 1, BINARIES.len(), binary.name);
        let mut command = Command::new("go");
        command.current_dir(modules).env("CGO_ENABLED", "0");
        command.args(["build", "-trimpath", "-ldflags", &link_flags(), "-o"]);
        run::check(command.arg(&half_made).arg(binary.import_path))?;
        if binary.built_as != binary.name {
            fs::rename(half_made.join(binary.built_as), half_made.join(binary.name))?;
        }
    }
    // Renamed when complete: a build that was cut short is never taken for a whole one.
    fs::rename(&half_made, folder).with_context(|| format!("name the result {}", folder.display()))?;
    eprintln!("built in {} s, kept in {}", started.elapsed().as_secs(), folder.display());
    Ok(())
}

fn link_flags() -> String {
    let mut parts = KUBERNETES_VERSION.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let base = "k8s.io/component-base/version";
    [
        "-s -w".to_owned(),
        format!("-X {base}.gitVersion={KUBERNETES_VERSION}"),
        format!("-X {base}.gitMajor={major}"),
        format!("-X {base}.gitMinor={minor}"),
        format!("-X {base}.gitCommit=unknown"),
        format!("-X {base}.buildDate=1970-01-01T00:00:00Z"),
        format!("-X k8s.io/client-go/pkg/version.gitVersion={KUBERNETES_VERSION}"),
    ]
    .join(" ")
}

fn cache_folder() -> Result<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set: there is no folder to keep the components in")?;
    let folder = base.join("tombolo/components");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

fn key(modules: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    for file in ["go.mod", "go.sum"] {
        let path = modules.join(file);
        hash.update(fs::read(&path).with_context(|| format!("read {}", path.display()))?);
    }
    hash.update(link_flags());
    Ok(hex::encode(hash.finalize())[..16].to_owned())
}
