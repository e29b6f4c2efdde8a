//! The programs that run on a node beside the agent: kubelet, kube-proxy and CoreDNS. Each has a Go module and a cache
//! folder of its own, so that a change of one does not rebuild the others or the control plane's binaries.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::gobuild;
use crate::run;

struct Program {
    name: &'static str,
    /// Folder of its Go module under `tests/components`.
    module: &'static str,
    import_path: &'static str,
    /// Variable that tells the tests the program's path. If it is already set, the program is not built.
    variable: &'static str,
    /// Duration of a build on two cores, as it is printed.
    takes: &'static str,
}

const PROGRAMS: [Program; 3] = [
    Program {
        name: "kubelet",
        module: "tests/components/kubelet",
        import_path: "k8s.io/kubernetes/cmd/kubelet",
        variable: "TOMBOLO_KUBELET",
        takes: "a minute or two",
    },
    Program {
        name: "kube-proxy",
        module: "tests/components/kube-proxy",
        import_path: "k8s.io/kubernetes/cmd/kube-proxy",
        variable: "TOMBOLO_KUBE_PROXY",
        takes: "a minute or two",
    },
    Program {
        name: "coredns",
        module: "tests/components/coredns",
        import_path: "github.com/coredns/coredns",
        variable: "TOMBOLO_COREDNS",
        takes: "two to four minutes",
    },
];

/// Sets the variables of the programs for a command. Builds missing programs first.
pub(crate) fn name_to(command: &mut Command) -> Result<()> {
    for program in &PROGRAMS {
        command.env(program.variable, ensure(program)?);
    }
    Ok(())
}

/// Paths of the programs. Builds missing programs first.
pub(crate) fn ensure_all() -> Result<Vec<PathBuf>> {
    PROGRAMS.iter().map(ensure).collect()
}

fn ensure(program: &Program) -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(program.variable).map(PathBuf::from) {
        return Ok(named);
    }
    let modules = run::root().join(program.module);
    let folder = gobuild::cache_folder(program.name)?.join(gobuild::key(&modules)?);
    let path = folder.join(program.name);
    if !path.is_file() {
        eprintln!("building {}, {} on two cores, once", program.name, program.takes);
        gobuild::into_folder(&folder, |half_made| {
            let mut command = gobuild::go(&modules);
            command.args(["build", "-trimpath", "-ldflags", &gobuild::link_flags(), "-o"]);
            run::check(command.arg(half_made.join(program.name)).arg(program.import_path))
        })?;
    }
    Ok(path)
}
