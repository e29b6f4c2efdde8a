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
mod seed;

use repeat::Report;
pub(crate) use repeat::{run_allowing_skips, run_some};
pub(crate) use seed::Seed;

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

    /// Test only this package. Can be repeated; must come before other arguments for `cargo test`.
    #[arg(short, long = "package", value_name = "NAME")]
    packages: Vec<String>,

    /// Further arguments for `cargo test`, for example `--lib` or a part of the names of tests.
    #[arg(allow_hyphen_values = true)]
    cargo_arguments: Vec<String>,

    /// Arguments for the test programs, for example `--exact NAME`.
    #[arg(last = true)]
    program_arguments: Vec<String>,
}

pub(crate) fn run(options: &TestOptions) -> Result<()> {
    let started = Instant::now();
    options.check()?;
    prepare(options)?;
    let skip_log = std::env::temp_dir().join(format!("tombolo-skipped-{}", std::process::id()));
    let seed = Seed::of_this_run()?;
    let command = || cargo_test(options, seed, &skip_log);
    let first = build(options, command)?;
    let outcome = run_tests(options, first, command, &skip_log);
    if outcome.is_err() {
        eprintln!("random tests of this run began with {seed}");
    }
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
    /// Rejects a package among the arguments that are passed on: what its tests need would not be prepared.
    fn check(&self) -> Result<()> {
        match self
            .for_cargo()
            .find(|argument| argument.starts_with("-p") || argument.starts_with("--package"))
        {
            Some(argument) => bail!("{argument}: write -p NAME, before other arguments for `cargo test`"),
            None => Ok(()),
        }
    }

    /// The arguments for `cargo test` itself. After the first of them, clap passes a `--` on as it is.
    fn for_cargo(&self) -> impl Iterator<Item = &str> {
        self.cargo_arguments.iter().map(String::as_str).take_while(|argument| *argument != "--")
    }

    /// Whether nothing limits which tests run, and how.
    fn is_everything(&self) -> bool {
        self.packages.is_empty() && self.cargo_arguments.is_empty() && self.program_arguments.is_empty()
    }

    /// Whether the tests of a selected package have a need. Without a selection, all packages are.
    fn needs(&self, has: impl Fn(&str) -> bool) -> bool {
        self.packages.is_empty() || self.packages.iter().any(|package| has(package))
    }

    /// Whether the tests need the programs of Kubernetes.
    fn needs_kubernetes(&self) -> bool {
        !self.without_cluster && self.needs(|package| !WITHOUT_KUBERNETES.contains(&package))
    }

    /// Whether tests run, and are not just listed or built.
    fn runs_tests(&self) -> bool {
        let mut arguments = self.cargo_arguments.iter().chain(&self.program_arguments);
        !arguments.any(|argument| matches!(argument.as_str(), "--no-run" | "--list" | "--help" | "-h"))
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

/// Builds the programs of Kubernetes and those of this workspace, and returns the command that `command` makes. The Go
/// toolchain waits for downloads and links one program at a time, so both toolchains together finish sooner.
fn build(options: &TestOptions, command: impl Fn() -> Result<Command>) -> Result<Command> {
    std::thread::scope(|scope| {
        let workspace = scope.spawn(|| {
            if options.needs(|package| package == WHOLE_SYSTEM) {
                build_programs()?;
            }
            if options.is_everything() { pool::build(&mut tests_of(&[])).map(drop) } else { Ok(()) }
        });
        let command = command();
        workspace.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        command
    })
}

/// Runs every test once, then repeats the failed tests alone, with the same seed. Whole-system tests start dozens of
/// programs on two cores, so a missed deadline there says nothing about the product. Both outcomes are printed.
fn run_tests(
    options: &TestOptions,
    mut command: Command,
    again: impl Fn() -> Result<Command>,
    skip_log: &Path,
) -> Result<()> {
    let first = if options.is_everything() {
        everything(&mut command)?
    } else {
        command.args(&options.cargo_arguments);
        if !options.program_arguments.is_empty() {
            command.arg("--").args(&options.program_arguments);
        }
        Report::of(&mut command)?
    };
    if first.success() {
        let skipped = u64::try_from(lines(skip_log).len())?;
        if first.is_empty(skipped) && options.runs_tests() {
            bail!(
                "no test ran, and {skipped} were skipped: no test matches the filter, or none can run on this machine"
            );
        }
        return Ok(());
    }
    let Some(failed) = first.worth_repeating() else { bail!("tests failed: see above") };
    eprintln!("{} tests failed; running them once more", failed.len());
    let second = Report::of(again()?.args(options.for_cargo()).args(["--", "--exact"]).args(failed))?;
    let outcome = second.as_repetition(failed);
    if !second.has_passed(failed) {
        bail!("{outcome}");
    }
    eprintln!("{outcome}");
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

/// `cargo test` for these packages, or for the whole workspace without any.
fn tests_of(packages: &[String]) -> Command {
    let mut command = run::cargo();
    command.args(["test", "--locked", "--no-fail-fast"]);
    if packages.is_empty() {
        command.args(["--workspace", "--features", FEATURES]);
    }
    command.args(packages.iter().flat_map(|package| ["-p", package]));
    command
}

/// `cargo test` with the environment that the tests need. Builds missing programs of Kubernetes first.
fn cargo_test(options: &TestOptions, seed: Seed, skip_log: &Path) -> Result<Command> {
    let mut command = tests_of(&options.packages);
    seed.give_to(command.env("TOMBOLO_SKIP_LOG", skip_log));
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
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: TestOptions,
    }

    fn options(line: &str) -> TestOptions {
        let words = ["test"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")).options
    }

    #[test]
    fn building_or_listing_tests_may_run_none() {
        for runs in ["", "session", "-p tombolo-proto -- session", "--lib -- --exact a"] {
            assert!(options(runs).runs_tests(), "{runs}");
        }
        for runs_none in ["--no-run", "-p tombolo-proto -- --list", "--lib -- --list"] {
            assert!(!options(runs_none).runs_tests(), "{runs_none}");
        }
    }

    #[test]
    fn package_is_tested_with_the_programs_that_its_tests_need() {
        let needs = |line: &str| {
            let options = options(line);
            options.check().unwrap();
            (options.needs(|package| package == WHOLE_SYSTEM), options.needs_kubernetes())
        };
        for everything in
            ["", "--no-run", "-p tombolo-tests", "-p tombolo-proto --package tombolo-tests", "-- -p"]
        {
            assert_eq!(needs(everything), (true, true), "{everything}");
        }
        for with_kubectl in ["--package=tombolo-edge", "-p tombolo-apicore"] {
            assert_eq!(needs(with_kubectl), (false, true), "{with_kubectl}");
        }
        for alone in ["-p tombolo-proto", "-p tombolo-proto -- session", "--package tombolo-grid --lib"] {
            assert_eq!(needs(alone), (false, false), "{alone}");
        }
    }

    #[test]
    fn arguments_reach_cargo_and_the_test_programs() {
        let own = options("-p a --without-cluster --test replay x -- --exact y");
        assert!(own.without_cluster && own.packages == ["a"]);
        assert_eq!(own.cargo_arguments, ["--test", "replay", "x", "--", "--exact", "y"]);
        assert_eq!(own.for_cargo().collect::<Vec<_>>(), ["--test", "replay", "x"]);
        let filtered = options("-p a -- --exact y");
        assert!(filtered.cargo_arguments.is_empty() && filtered.program_arguments == ["--exact", "y"]);
        assert!(options("--without-cluster").is_everything());
        for limited in ["-p a", "session", "-- session"] {
            assert!(!options(limited).is_everything(), "{limited}");
        }
    }

    #[test]
    fn a_package_after_other_arguments_is_rejected() {
        for line in ["--lib -p tombolo-tests", "session --package=tombolo-tests", "-ptombolo-tests"] {
            let said = options(line).check().unwrap_err().to_string();
            assert!(said.contains("before other arguments"), "{line}: {said}");
        }
        for line in ["-p tombolo-tests --lib", "--lib -- -p", "-- -p"] {
            assert!(options(line).check().is_ok(), "{line}");
        }
    }
}
