//! `cargo xtask test`: every test of the workspace.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;

use crate::{components, goclients, run};

mod pool;
mod repeat;

use repeat::Report;
pub(crate) use repeat::run_some;

/// Variable that lets tests that need a cluster skip themselves.
const WITHOUT_CLUSTER_VARIABLE: &str = "TOMBOLO_WITHOUT_CLUSTER";

/// Features that no program enables by default but that are tested.
pub(crate) const FEATURES: &str = "tombolo-edge/profile";

/// The package whose tests start the programs of this workspace.
const WHOLE_SYSTEM: &str = "tombolo-tests";

/// Packages whose tests need no program of Kubernetes.
const WITHOUT_KUBERNETES: [&str; 9] = [
    "tombolo",
    "tombolo-catalog",
    "tombolo-cel",
    "tombolo-grid",
    "tombolo-link",
    "tombolo-proto",
    "tombolo-replay",
    "tombolo-runtime",
    "xtask",
];

#[derive(Args)]
pub(crate) struct TestOptions {
    /// Leave out the tests that need etcd and kube-apiserver; they are reported as skipped.
    #[arg(long)]
    without_cluster: bool,

    /// Install containerd and what it needs from the system's packages when it is missing (as root).
    #[arg(long)]
    install: bool,

    /// Arguments for `cargo test`, for example `-p tombolo-proto` or `-- session`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    cargo_arguments: Vec<String>,
}

pub(crate) fn run(options: &TestOptions) -> Result<()> {
    let started = Instant::now();
    prepare(options)?;
    let skip_log = std::env::temp_dir().join(format!("tombolo-skipped-{}", std::process::id()));
    let command = cargo_test(options, &skip_log)?;
    if options.needs(|package| package == WHOLE_SYSTEM) {
        build_programs()?;
    }
    let outcome = run_tests(options, command, &skip_log);
    let skipped = take_lines(&skip_log);
    eprintln!("tests ran {} s; skipped: {}", started.elapsed().as_secs(), skipped.len());
    for test in &skipped {
        eprintln!("  skipped {test}");
    }
    outcome?;
    if !options.without_cluster && !skipped.is_empty() {
        bail!("{} tests were skipped: see above what each of them needs", skipped.len());
    }
    Ok(())
}

impl TestOptions {
    /// Whether the tests of a selected package have a need. Without a selection, all packages are.
    fn needs(&self, has: impl Fn(&str) -> bool) -> bool {
        let packages = packages(&self.cargo_arguments);
        packages.is_empty() || packages.into_iter().any(has)
    }

    /// Whether the tests need the programs of Kubernetes.
    fn needs_kubernetes(&self) -> bool {
        !self.without_cluster && self.needs(|package| !WITHOUT_KUBERNETES.contains(&package))
    }
}

/// Reports missing prerequisites immediately, or installs them.
fn prepare(options: &TestOptions) -> Result<()> {
    if !options.needs_kubernetes() {
        return Ok(());
    }
    if !components::available() {
        bail!(
            "neither Go nor {} is available, so tests against kube-apiserver and kubectl cannot run: install \
             Go 1.26, or leave them out with --without-cluster",
            components::ASSETS_VARIABLE
        );
    }
    if options.install {
        components::runtime::install()?;
    }
    Ok(())
}

/// Runs every test once, then repeats the failed tests alone. Whole-system tests start dozens of programs on two cores,
/// so a missed deadline there says nothing about the product. Both outcomes are printed.
fn run_tests(options: &TestOptions, mut command: Command, skip_log: &Path) -> Result<()> {
    let first = match options.cargo_arguments.as_slice() {
        [] => everything(&mut command)?,
        arguments => Report::of(command.args(arguments))?,
    };
    if first.success() {
        let skipped = u64::try_from(lines(skip_log).len())?;
        if first.is_empty(skipped) && runs_tests(&options.cargo_arguments) {
            bail!(
                "no test ran, and {skipped} were skipped: no test matches the filter, or none can run on this machine"
            );
        }
        return Ok(());
    }
    let Some(failed) = first.worth_repeating() else { bail!("tests failed: see above") };
    eprintln!("{} tests failed; running them once more", failed.len());
    let mut command = cargo_test(options, skip_log)?;
    let own = options.cargo_arguments.iter().take_while(|argument| *argument != "--");
    let second = Report::of(command.args(own).args(["--", "--exact"]).args(failed))?;
    if !second.has_passed(failed) {
        bail!("tests failed twice: see above");
    }
    for name in failed {
        eprintln!("  failed at first and passed when repeated: {name}");
    }
    Ok(())
}

/// Builds the programs of a `cargo test` command and runs those that are wanted and need no cluster. A program is named
/// by its package, kind and target.
///
/// # Errors
/// One of them cannot be built, or a test fails.
pub(crate) fn run_programs(
    command: &mut Command,
    wanted: impl Fn(&str) -> bool,
    environment: impl Fn(&mut Command),
) -> Result<()> {
    let mut programs = pool::build(command)?;
    programs.retain(|program| wanted(program.name()));
    let mut common = Command::new("cargo");
    common.env(WITHOUT_CLUSTER_VARIABLE, "1").env_remove(components::ASSETS_VARIABLE);
    environment(&mut common);
    if !pool::run(programs, &common)?.success() {
        bail!("tests failed: see above");
    }
    Ok(())
}

/// Runs all tests: the programs in parallel, then the documentation's examples.
fn everything(command: &mut Command) -> Result<Report> {
    let programs = pool::build(command)?;
    let mut report = pool::run(programs, command)?;
    report.add(Report::of(run::cargo().args([
        "test",
        "--locked",
        "--workspace",
        "--features",
        FEATURES,
        "--doc",
    ]))?);
    Ok(report)
}

/// `cargo test` with the environment that the tests need. Builds missing programs first.
fn cargo_test(options: &TestOptions, skip_log: &Path) -> Result<Command> {
    let mut command = run::cargo();
    command.args(["test", "--locked", "--no-fail-fast"]).env("TOMBOLO_SKIP_LOG", skip_log);
    if packages(&options.cargo_arguments).is_empty() {
        command.args(["--workspace", "--features", FEATURES]);
    }
    if options.without_cluster {
        command.env(WITHOUT_CLUSTER_VARIABLE, "1").env_remove(components::ASSETS_VARIABLE);
    } else if options.needs_kubernetes() {
        command.env(components::ASSETS_VARIABLE, components::ensure()?);
        command.env(goclients::VARIABLE, goclients::ensure()?);
        components::node::name_to(&mut command)?;
    }
    Ok(command)
}

/// Builds the programs that the whole-system tests start. `cargo test` builds a program only for the integration tests
/// of its own package, so tests of another package would find no program, or an old one.
pub(crate) fn build_programs() -> Result<()> {
    run::check(run::cargo().args(["build", "--locked", "--workspace", "--bins", "--features", FEATURES]))
}

/// Whether these arguments run tests, and do not just list them or build their programs.
fn runs_tests(arguments: &[String]) -> bool {
    !arguments.iter().any(|argument| matches!(argument.as_str(), "--no-run" | "--list" | "--help" | "-h"))
}

/// The packages that these arguments of `cargo test` select.
fn packages(arguments: &[String]) -> Vec<&str> {
    let mut flags = arguments.iter().map(String::as_str).take_while(|argument| *argument != "--");
    let mut packages = Vec::new();
    while let Some(flag) = flags.next() {
        let attached = ["--package=", "-p=", "-p"].iter().find_map(|name| flag.strip_prefix(name));
        match attached.filter(|name| !name.is_empty()) {
            _ if flag == "--package" || flag == "-p" => packages.extend(flags.next()),
            Some(name) => packages.push(name),
            None => {}
        }
    }
    packages
}

/// The skipped tests so far, one per line; empty if the file does not exist.
fn lines(log: &Path) -> Vec<String> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let mut names: Vec<String> = text.lines().map(str::to_owned).collect();
    names.sort();
    names
}

fn take_lines(log: &Path) -> Vec<String> {
    let names = lines(log);
    // This is only a temporary file of this run; nothing depends on its removal.
    let _ = fs::remove_file(log);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_builds_or_lists_tests_may_run_none() {
        let runs = |arguments: &[&str]| {
            runs_tests(&arguments.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>())
        };
        assert!(runs(&[]) && runs(&["-p", "tombolo-proto", "--", "session"]));
        assert!(!runs(&["--no-run"]) && !runs(&["-p", "tombolo-proto", "--", "--list"]));
    }

    #[test]
    fn a_package_is_tested_with_what_its_tests_need() {
        let options = |line: &str| TestOptions {
            without_cluster: false,
            install: false,
            cargo_arguments: line.split_whitespace().map(str::to_owned).collect(),
        };
        let needs = |line: &str| {
            let options = options(line);
            (options.needs(|package| package == WHOLE_SYSTEM), options.needs_kubernetes())
        };
        for everything in
            ["", "--no-run", "-p tombolo-tests", "-p=tombolo-proto --package tombolo-tests", "-- -p"]
        {
            assert_eq!(needs(everything), (true, true), "{everything}");
        }
        for with_kubectl in ["--package=tombolo-edge", "-p tombolo-apicore"] {
            assert_eq!(needs(with_kubectl), (false, true), "{with_kubectl}");
        }
        for alone in ["-p tombolo-proto", "-ptombolo-proto -- session", "--package tombolo-grid --lib"] {
            assert_eq!(needs(alone), (false, false), "{alone}");
        }
    }
}
