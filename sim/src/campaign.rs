//! Many seeds: runs the plan of each, and makes the plans that fail smaller.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::plan::{PlanSize, RunFailure, Shrunk, SimPlan, shrink};
use crate::worker::{RunReport, RunRequest, run_apart};

/// Runs that making one plan smaller may take.
const SHRINK_RUNS_MAX: u32 = 400;

/// Rules of which a failing plan is made smaller. What else fails is listed.
const SHRINK_MAX: usize = 3;

/// How often progress is told.
const PROGRESS: Duration = Duration::from_secs(10);

/// How plans are run.
#[derive(Debug, Clone)]
pub struct PlanRunner {
    /// The program of [`crate::worker::answer`].
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<&'static str>,
}

impl PlanRunner {
    /// Runs a plan.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn run(&self, plan: &SimPlan, with_trace: bool) -> io::Result<RunReport> {
        run_apart(&self.program, &self.arguments, &RunRequest { plan: plan.clone(), with_trace })
    }

    /// The failure of a plan, if possible of this rule.
    fn failure(&self, plan: &SimPlan, rule: Option<&str>) -> Option<RunFailure> {
        match self.run(plan, false) {
            Ok(report) => report.failure(rule).cloned(),
            Err(error) => Some(RunFailure { rule: "not started".to_owned(), message: error.to_string() }),
        }
    }

    /// Makes a plan smaller that has failed like this.
    #[must_use]
    pub fn shrink(&self, plan: SimPlan, failure: RunFailure) -> Shrunk {
        let rule = failure.rule.clone();
        shrink(plan, failure, SHRINK_RUNS_MAX, |plan| self.failure(plan, Some(&rule)))
    }
}

/// The seeds to run.
#[derive(Debug, Clone)]
pub struct Seeds {
    /// The first one.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// Size of all plans; `None`: that which belongs to each seed.
    pub size: Option<PlanSize>,
    /// How many plans run at the same time.
    pub jobs: NonZero<usize>,
}

impl Seeds {
    /// The plan of a seed.
    #[must_use]
    pub fn plan(&self, seed: u64) -> SimPlan {
        SimPlan::generate(seed, &self.size.clone().unwrap_or_else(|| PlanSize::of_seed(seed)))
    }

    /// Runs all seeds. Returns the failures by seed.
    #[must_use]
    pub fn run(&self, runner: &PlanRunner) -> BTreeMap<u64, RunFailure> {
        let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let failures = Mutex::new(BTreeMap::new());
        let (began, told) = (Instant::now(), Mutex::new(Instant::now()));
        thread::scope(|scope| {
            for _ in 0..self.jobs.get() {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::SeqCst);
                        if index >= self.count {
                            return;
                        }
                        let seed = self.first.wrapping_add(index);
                        if let Some(failure) = runner.failure(&self.plan(seed), None) {
                            eprintln!("seed {seed}: {}: {}", failure.rule, first_line(&failure.message));
                            failures.lock().insert(seed, failure);
                        }
                        let done = done.fetch_add(1, Ordering::SeqCst) + 1;
                        let mut told = told.lock();
                        if told.elapsed() >= PROGRESS || done == self.count {
                            *told = Instant::now();
                            let (failed, seconds) = (failures.lock().len(), began.elapsed().as_secs());
                            eprintln!("{done} of {} plans, {failed} failed, {seconds} s", self.count);
                        }
                    }
                });
            }
        });
        failures.into_inner()
    }

    /// Makes the first failing plan of each rule smaller, prints what happens in it, and writes it into a folder.
    /// Returns the files.
    ///
    /// # Errors
    /// A file cannot be written, or the program cannot be started.
    pub fn explain(
        &self,
        failures: &BTreeMap<u64, RunFailure>,
        runner: &PlanRunner,
        folder: &Path,
    ) -> io::Result<Vec<PathBuf>> {
        let mut of_rule: BTreeMap<&str, (u64, &RunFailure)> = BTreeMap::new();
        for (seed, failure) in failures {
            of_rule.entry(&failure.rule).or_insert((*seed, failure));
        }
        let mut files = Vec::new();
        for (seed, failure) in of_rule.into_values().take(SHRINK_MAX) {
            let shrunk = runner.shrink(self.plan(seed), failure.clone());
            let report = runner.run(&shrunk.plan, true)?;
            println!("\nseed {seed}, after {} runs:", shrunk.runs);
            print_report(&report);
            fs::create_dir_all(folder)?;
            let file = folder.join(format!("{}-{seed}.json", shrunk.failure.rule));
            fs::write(&file, shrunk.plan.to_json())?;
            println!("{}\nplan: {}", shrunk.plan.to_json(), file.display());
            files.push(file);
        }
        Ok(files)
    }
}

/// Prints the trace and what was wrong.
pub fn print_report(report: &RunReport) {
    for line in &report.trace {
        println!("{line}");
    }
    for failure in &report.violations {
        println!("VIOLATION  {}: {}", failure.rule, failure.message);
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
