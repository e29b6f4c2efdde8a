//! The Kubernetes binaries of the tests, built from their published Go modules (`tests/components`).

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::gobuild::{self, KUBERNETES_VERSION};
use crate::run;

pub(crate) mod node;
pub(crate) mod runtime;

/// Variable of the envtest convention: a folder that already has the binaries.
pub(crate) const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";

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

/// Whether the binaries are available or can be built on this machine.
pub(crate) fn available() -> bool {
    env::var_os(ASSETS_VARIABLE).is_some() || Command::new("go").arg("version").output().is_ok()
}

/// The folder with all binaries: the one that the variable names, the cached one, or a new build.
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
    let folder = gobuild::cache_folder("components")?.join(gobuild::key(&modules)?);
    if !BINARIES.iter().all(|binary| folder.join(binary.name).is_file()) {
        gobuild::into_folder(&folder, |half_made| build(&modules, half_made))?;
    }
    Ok(folder)
}

fn build(modules: &Path, folder: &Path) -> Result<()> {
    eprintln!("building etcd and Kubernetes {KUBERNETES_VERSION}, about 5 minutes on two cores, once");
    for (number, binary) in BINARIES.iter().enumerate() {
        eprintln!("[{}/{}] {}", number + 1, BINARIES.len(), binary.name);
        let mut command = gobuild::go(modules);
        command.args(["build", "-trimpath", "-ldflags", &gobuild::link_flags(), "-o"]);
        run::check(command.arg(folder).arg(binary.import_path))?;
        if binary.built_as != binary.name {
            fs::rename(folder.join(binary.built_as), folder.join(binary.name))?;
        }
    }
    Ok(())
}
