//! `cargo xtask e2e`: the official end-to-end suite of Kubernetes against the real and the embedded API server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::{components, gobuild, run};

/// The packages of the suite and of its runner, with the names of the built files.
const SUITE: (&str, &str) = ("k8s.io/kubernetes/test/e2e", "e2e.test");
const RUNNER: (&str, &str) = ("github.com/onsi/ginkgo/v2/ginkgo", "ginkgo");

#[derive(Args)]
pub(crate) struct E2eOptions {
    #[command(subcommand)]
    step: E2eCommand,
}

#[derive(Subcommand)]
enum E2eCommand {
    /// Build the suite and its runner into the user's cache folder, once.
    Build,
    /// Print the names of the tests, each with its list.
    #[command(disable_help_flag = true)]
    List(Passed),
    /// Run tests against a server and compare the outcomes with the lists.
    #[command(disable_help_flag = true)]
    Run(Passed),
}

/// Arguments for the program `e2e` of the tests; `--help` lists them.
#[derive(Args)]
struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(options: &E2eOptions) -> Result<()> {
    match &options.step {
        E2eCommand::Build => {
            println!("{}", ensure()?.display());
            Ok(())
        }
        E2eCommand::List(passed) => program("list", passed),
        E2eCommand::Run(passed) => program("run", passed),
    }
}

fn program(step: &str, passed: &Passed) -> Result<()> {
    let (suite, assets) = (ensure()?, components::ensure()?);
    run::check(run::cargo().args(["build", "--locked", "--workspace", "--bins"]))?;
    let mut command = Command::new(run::program("debug", "e2e")?);
    command.current_dir(run::root()).env(components::ASSETS_VARIABLE, assets);
    run::check(command.arg("--suite").arg(suite).arg(step).args(&passed.arguments))
}

/// The folder with the suite and its runner: the cached folder or a new build.
fn ensure() -> Result<PathBuf> {
    let modules = run::root().join("tests/e2e");
    let folder = gobuild::cache_folder("e2e")?.join(gobuild::key(&modules)?);
    if ![SUITE, RUNNER].iter().all(|(_, file)| folder.join(file).is_file()) {
        eprintln!("building the end-to-end suite of Kubernetes, about 5 minutes on two cores, once");
        gobuild::into_folder(&folder, |half_made| build(&modules, half_made))?;
    }
    Ok(folder)
}

fn build(modules: &Path, folder: &Path) -> Result<()> {
    let (package, file) = SUITE;
    let mut suite = gobuild::go(modules);
    suite.args(["test", "-c", "-vet=off", "-trimpath", "-ldflags", &gobuild::link_flags(), "-o"]);
    run::check(suite.arg(folder.join(file)).arg(package))?;
    let (package, file) = RUNNER;
    let mut runner = gobuild::go(modules);
    run::check(runner.args(["build", "-trimpath", "-o"]).arg(folder.join(file)).arg(package))
}
