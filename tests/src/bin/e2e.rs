//! Runs the official end-to-end suite of Kubernetes and compares the outcomes with the lists: `cargo xtask e2e`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser, Subcommand};
use regex::Regex;
use tombolo_tests::e2e::judge::judge;
use tombolo_tests::e2e::lists::{Expected, Lists};
use tombolo_tests::e2e::suite::{Run, Suite};
use tombolo_tests::e2e::target::{Cluster, ServerUnderTest};

/// Runs or lists the tests of the suite. `cargo xtask e2e` builds the suite and passes its folder.
#[derive(Parser)]
#[command(name = "cargo xtask e2e")]
struct SuiteOptions {
    /// Folder with the suite and its runner.
    #[arg(long, value_name = "FOLDER")]
    suite: PathBuf,

    #[command(subcommand)]
    step: SuiteCommand,
}

#[derive(Subcommand)]
enum SuiteCommand {
    /// Print the names of the tests, each with its list.
    List(TestSelection),
    /// Run tests against a server, and fail when an outcome contradicts the lists.
    Run {
        /// The server: etcd and kube-apiserver, or the embedded API server with cloudcore beside it.
        #[arg(long, value_enum)]
        target: ServerUnderTest,

        #[command(flatten)]
        selection: TestSelection,

        /// Number of concurrent tests.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
        procs: u32,

        /// Folder for the report and the output of every test.
        #[arg(long, value_name = "FOLDER", default_value = "target/e2e")]
        output: PathBuf,
    },
}

/// Which tests.
#[derive(Args)]
struct TestSelection {
    /// Only tests whose name matches this expression; all tests if not given.
    #[arg(long, value_name = "REGEX")]
    focus: Option<Regex>,

    /// Leave out tests whose name matches this expression.
    #[arg(long, value_name = "REGEX")]
    skip: Option<Regex>,
}

impl TestSelection {
    fn has(&self, name: &str) -> bool {
        let matches = |own: &Option<Regex>| own.as_ref().map(|own| own.is_match(name));
        matches(&self.focus).unwrap_or(true) && !matches(&self.skip).unwrap_or(false)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = SuiteOptions::parse();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/lists");
    let lists = Lists::read(&folder)?;
    let suite = Suite::new(options.suite);
    let names = suite.names()?;
    let unknown = lists.unknown(&names);
    ensure!(
        unknown.is_empty(),
        "the suite does not have these tests; remove them from the lists: {unknown:#?}"
    );
    match options.step {
        SuiteCommand::List(selection) => list(&names, &lists, &selection),
        SuiteCommand::Run { target, selection, procs, output } => {
            let wanted =
                |name: &&String| selection.has(name) && lists.expected(name) != Expected::NeedsContainers;
            let selected: BTreeSet<String> = names.iter().filter(wanted).cloned().collect();
            ensure!(!selected.is_empty(), "no test is selected that can run without containers");
            let output = std::path::absolute(output)?;
            run(&suite, &lists, target, &selected, procs, &output).await
        }
    }
}

fn list(names: &BTreeSet<String>, lists: &Lists, selection: &TestSelection) -> Result<()> {
    let selected: Vec<&String> = names.iter().filter(|name| selection.has(name)).collect();
    ensure!(!selected.is_empty(), "no test of the suite matches the selection");
    for name in selected {
        match lists.expected(name) {
            Expected::Pass => println!("pass              {name}"),
            Expected::NotYet(reason) => println!("not yet           {name} | {reason}"),
            Expected::NeedsContainers => println!("needs containers  {name}"),
            Expected::Unlisted => println!("in no list        {name}"),
        }
    }
    Ok(())
}

async fn run(
    suite: &Suite,
    lists: &Lists,
    target: ServerUnderTest,
    selected: &BTreeSet<String>,
    procs: u32,
    output: &Path,
) -> Result<()> {
    let started = Instant::now();
    let cluster = Cluster::start(target).await.context("start the cluster")?;
    let kubectl = cluster.binaries.binary("kubectl");
    let run = Run { kubeconfig: &cluster.kubeconfig, kubectl: &kubectl, procs, output };
    // This runtime keeps the node alive, so the suite must not block one of its threads.
    let outcomes = tokio::task::block_in_place(|| suite.run(selected, &run))?;
    let summary = judge(target, selected, &outcomes, lists);
    for complaint in &summary.complaints {
        println!("{complaint}");
    }
    println!(
        "{target:?}: {} tests in {} s: {} passed, {} of them in pass.txt; {} of not-yet.txt did not pass; {} are in no \
         list; report: {}",
        selected.len(),
        started.elapsed().as_secs(),
        summary.passed,
        summary.passed_as_listed,
        summary.not_yet,
        summary.unlisted,
        output.join("report.json").display()
    );
    match summary.complaints.len() {
        0 => Ok(()),
        count => bail!("{count} outcomes contradict the lists"),
    }
}
