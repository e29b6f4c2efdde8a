//! Runs the whole system in simulations: `cargo xtask simulate`.

use std::fs;
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use tombolo_sim::campaign::{PlanRunner, Seeds, print_report};
use tombolo_sim::plan::{PlanSize, SimPlan};
use tombolo_sim::worker;
use tracing_subscriber::filter::LevelFilter;

/// Where plans that failed are written.
const FOLDER: &str = "target/simulate";

/// Flag of the process that runs one plan.
const WORKER: &str = "--worker";

/// Run random plans of operations and faults against replicas, agents and a model of the Kubernetes API, in virtual time
/// on one thread. A plan that breaks a rule is made smaller, printed with everything that happens in it, and written
/// into target/simulate. To keep it for the tests, move it to sim/kept.
#[derive(Parser)]
#[command(name = "cargo xtask simulate")]
struct Options {
    /// Number of seeds; 200 if neither this nor a seed is given.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,

    /// The first seed; random if not given.
    #[arg(long)]
    seed: Option<u64>,

    /// Size of all plans. Without it, each seed has its own: mostly small, sometimes full.
    #[arg(long)]
    size: Option<SizeName>,

    /// Print everything that happens, instead of making failing plans smaller. With `RUST_LOG=debug`, print the log
    /// of all programs as well.
    #[arg(long)]
    trace: bool,

    /// Run this plan instead of generated ones.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "seed", "size"])]
    replay: Option<PathBuf>,

    /// Plans that run at the same time; one for each processor if not given.
    #[arg(long)]
    jobs: Option<NonZero<usize>>,

    #[arg(long, hide = true)]
    worker: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum SizeName {
    /// One replica and one node.
    Tiny,
    /// Two replicas and three nodes.
    Small,
    /// Three replicas and eight nodes.
    Medium,
    /// Three replicas and twenty nodes.
    Full,
}

impl SizeName {
    fn size(self) -> PlanSize {
        match self {
            Self::Tiny => PlanSize::tiny(),
            Self::Small => PlanSize::small(),
            Self::Medium => PlanSize::medium(),
            Self::Full => PlanSize::full(),
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.worker {
        // Lines have the time of the host that writes them.
        let level = std::env::var("RUST_LOG").ok().and_then(|level| level.parse().ok());
        let level = level.unwrap_or(LevelFilter::OFF);
        tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr).with_ansi(false).init();
        return match worker::answer() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error.to_string()),
        };
    }
    match simulate(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => fail("rules were broken"),
        Err(error) => fail(&error.to_string()),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::FAILURE
}

/// Returns whether no rule was broken.
fn simulate(options: &Options) -> io::Result<bool> {
    let runner = PlanRunner { program: std::env::current_exe()?, arguments: vec![WORKER] };
    if let Some(file) = &options.replay {
        return replay(file, &runner);
    }
    let jobs = options.jobs.map_or_else(std::thread::available_parallelism, Ok)?;
    let seeds = Seeds {
        first: options.seed.unwrap_or_else(|| rand::random_range(0..1_000_000_000)),
        count: options.seeds.unwrap_or(if options.seed.is_some() { 1 } else { 200 }),
        size: options.size.map(SizeName::size),
        jobs,
    };
    if options.trace {
        return traced(&seeds, &runner);
    }
    eprintln!("{} plans from seed {} on", seeds.count, seeds.first);
    let failures = seeds.run(&runner);
    for file in seeds.explain(&failures, &runner, Path::new(FOLDER))? {
        eprintln!("cargo xtask simulate --replay {}", file.display());
    }
    let failed: Vec<String> =
        failures.iter().map(|(seed, failure)| format!("{seed} ({})", failure.rule)).collect();
    if !failed.is_empty() {
        eprintln!("failed seeds: {}", failed.join(", "));
    }
    Ok(failed.is_empty())
}

fn replay(file: &Path, runner: &PlanRunner) -> io::Result<bool> {
    let plan = SimPlan::from_json(&fs::read_to_string(file)?)?;
    let report = runner.run(&plan, true)?;
    print_report(&report);
    Ok(report.violations.is_empty())
}

fn traced(seeds: &Seeds, runner: &PlanRunner) -> io::Result<bool> {
    let mut whole = true;
    for seed in (0..seeds.count).map(|index| seeds.first.wrapping_add(index)) {
        let report = runner.run(&seeds.plan(seed), true)?;
        println!("seed {seed}:");
        print_report(&report);
        whole &= report.violations.is_empty();
    }
    Ok(whole)
}
