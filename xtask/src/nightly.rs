//! `cargo xtask nightly`: everything that takes longer than each change can wait for.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::test::{FEATURES, Seed};
use crate::{components, gobuild, run, test};

/// Cases of each property. Most properties have 256 in the tests.
const CASES: &str = "4096";

/// Random schedules of each test of sessions: 10,000 in the tests.
const SCHEDULES: &str = "200000";

/// Seconds for each body of a fuzz target.
const FUZZ_SECONDS: &str = "300";

#[derive(Args)]
pub(crate) struct NightlyOptions {
    /// Run only this step. Can be repeated.
    #[arg(long, value_name = "STEP", value_parser = names())]
    only: Vec<String>,
}

/// One row of the table.
struct NightlyStep {
    name: &'static str,
    work: Work,
}

enum Work {
    /// A recipe, as `cargo xtask` takes it.
    Recipe(&'static [&'static str]),
    /// Arguments and environment of `cargo test`.
    Tests(&'static [&'static str], &'static [(&'static str, &'static str)]),
    /// The comparison of the tables of facts, which needs programs that must be built from Go.
    Facts,
}

const fn recipe(name: &'static str, arguments: &'static [&'static str]) -> NightlyStep {
    NightlyStep { name, work: Work::Recipe(arguments) }
}

/// The steps in their order, the shorter ones first.
const STEPS: &[NightlyStep] = &[
    NightlyStep {
        name: "properties",
        work: Work::Tests(
            &["--workspace", "--features", FEATURES, "--lib"],
            &[("PROPTEST_CASES", CASES), ("TOMBOLO_WITHOUT_CLUSTER", "1")],
        ),
    },
    NightlyStep {
        name: "schedules",
        work: Work::Tests(
            &["-p", "tombolo-proto", "--test", "session", "--test", "kubeedge_sessions"],
            &[("PROPTEST_CASES", CASES), ("TOMBOLO_SCHEDULES", SCHEDULES)],
        ),
    },
    NightlyStep {
        name: "fuzz",
        work: Work::Tests(
            &["-p", "tombolo-proto", "-p", "tombolo-apicore", "--test", "fuzz_bounded"],
            &[("TOMBOLO_FUZZ_SECONDS", FUZZ_SECONDS)],
        ),
    },
    NightlyStep { name: "facts", work: Work::Facts },
    recipe("simulate", &["simulate", "--seeds", "5000"]),
    recipe("crash", &["crash"]),
    recipe("mutations", &["mutations"]),
    recipe("authz", &["authz"]),
    recipe("e2e", &["e2e", "run", "--target", "embedded"]),
];

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(STEPS.iter().map(|step| step.name))
}

/// How a step has ended.
#[derive(Debug, PartialEq, Eq)]
enum StepOutcome {
    Passed,
    /// Why it failed, on one line.
    Failed(String),
    /// What it needs and this machine does not have.
    Skipped(String),
}

/// Runs the steps one after the other, whatever becomes of those before, and prints the table.
///
/// # Errors
/// A step fails.
pub(crate) fn run(options: &NightlyOptions) -> Result<()> {
    let mut rows = Vec::new();
    for step in selected(options) {
        eprintln!("\n===== {}", step.name);
        let started = Instant::now();
        let outcome = step.work.run().unwrap_or_else(|error| StepOutcome::Failed(format!("{error:#}")));
        rows.push((step.name, outcome, started.elapsed()));
    }
    print!("\n{}", table(&rows));
    match rows.iter().filter(|(_, outcome, _)| matches!(outcome, StepOutcome::Failed(_))).count() {
        0 => Ok(()),
        failed => bail!("{failed} of {} steps failed", rows.len()),
    }
}

fn selected(options: &NightlyOptions) -> impl Iterator<Item = &'static NightlyStep> {
    let is_wanted = move |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    STEPS.iter().filter(move |step| is_wanted(step.name))
}

impl Work {
    fn run(&self) -> Result<StepOutcome> {
        match self {
            Self::Recipe(arguments) => {
                let own = std::env::current_exe().context("cannot find the path of this program")?;
                run::check(Command::new(own).current_dir(run::root()).args(*arguments))?;
            }
            Self::Tests(arguments, environment) => {
                let mut tests = run::cargo();
                tests.args(["test", "--locked"]).args(*arguments).envs(environment.iter().copied());
                run_random(&mut tests)?;
            }
            Self::Facts => return facts(),
        }
        Ok(StepOutcome::Passed)
    }
}

/// Runs random tests with a new seed, and prints the seed when they fail.
fn run_random(tests: &mut Command) -> Result<()> {
    let seed = Seed::of_this_run()?;
    seed.give_to(tests);
    test::run_allowing_skips(tests).with_context(|| format!("with {seed}"))
}

/// Compares the tables of facts with kube-apiserver and the Go modules.
fn facts() -> Result<StepOutcome> {
    if !components::available() {
        return Ok(StepOutcome::Skipped("neither Go nor a built kube-apiserver is available".to_owned()));
    }
    // Building the components downloads the modules.
    let assets = components::ensure()?;
    let sources = gobuild::module_cache().map(|cache| cache.join("k8s.io"));
    let Some(sources) = sources.filter(|sources| sources.is_dir()) else {
        return Ok(StepOutcome::Skipped("the Go modules of Kubernetes are not on this machine".to_owned()));
    };
    test::build_programs()?;
    let mut compare = run::cargo();
    compare.args(["test", "--locked", "--package", "tombolo-tests", "--test", "facts", "--", "--ignored"]);
    compare.env(components::ASSETS_VARIABLE, assets).env("TOMBOLO_GO_SOURCES", sources);
    test::run_some(&mut compare)?;
    Ok(StepOutcome::Passed)
}

/// A row for each step: name, result, time.
fn table(rows: &[(&str, StepOutcome, Duration)]) -> String {
    let width = rows.iter().map(|(name, ..)| name.len()).max().unwrap_or_default();
    let row = |(name, outcome, took): &(&str, StepOutcome, Duration)| {
        let result = match outcome {
            StepOutcome::Passed => "passed".to_owned(),
            StepOutcome::Failed(why) => format!("FAILED  {}", first_line(why)),
            StepOutcome::Skipped(why) => format!("skipped {why}"),
        };
        format!("{name:width$}  {}  {result}\n", clock(*took))
    };
    rows.iter().map(row).collect()
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Hours, minutes and seconds.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{:2}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use clap::{Parser, Subcommand};

    use super::*;

    #[test]
    fn the_table_has_a_row_for_each_step() {
        let rows = [
            ("crash", StepOutcome::Passed, Duration::from_secs(3_723)),
            (
                "properties",
                StepOutcome::Failed("a test failed\nsee above".to_owned()),
                Duration::from_secs(59),
            ),
            ("facts", StepOutcome::Skipped("no Go".to_owned()), Duration::ZERO),
        ];
        let wanted = "crash        1:02:03  passed\n\
                      properties   0:00:59  FAILED  a test failed\n\
                      facts        0:00:00  skipped no Go\n";
        assert_eq!(table(&rows), wanted);
    }

    #[test]
    fn single_steps_can_be_selected() {
        let options =
            |only: &[&str]| NightlyOptions { only: only.iter().map(|&name| name.to_owned()).collect() };
        let names = |only: &[&str]| selected(&options(only)).map(|step| step.name).collect::<Vec<_>>();
        assert_eq!(names(&["e2e", "crash"]), ["crash", "e2e"]);
        assert_eq!(names(&[]).len(), STEPS.len());
    }

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        _recipe: crate::Recipe,
    }

    #[test]
    fn every_recipe_of_the_table_exists() {
        for step in STEPS {
            if let Work::Recipe(arguments) = step.work {
                let words = ["xtask"].iter().chain(arguments);
                assert!(Line::try_parse_from(words).is_ok(), "{}", step.name);
            }
        }
        assert!(crate::Recipe::has_subcommand("nightly"));
    }

    #[test]
    fn every_test_of_the_table_exists() {
        for step in STEPS {
            let Work::Tests(arguments, _) = step.work else { continue };
            for pair in arguments.windows(2).filter(|pair| pair[0] == "--test") {
                assert!(run::has_test(pair[1]), "{}: there is no test {}", step.name, pair[1]);
            }
        }
        assert!(!run::has_test("kubeedge_session"));
    }
}
