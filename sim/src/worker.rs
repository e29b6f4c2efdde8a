//! Runs one plan in a process of its own, on a simulated machine.
//!
//! The parent writes the plan to the standard input of the process and reads the report from its standard output. A run
//! that never ends or kills its process is a failure like any other.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, ExitStatus, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::{self, Machine};
use crate::oracle::Violation;
use crate::plan::{RunFailure, SimPlan};
use crate::run::{RunOptions, run};

/// The real time that a run may take.
pub const RUN_TIME_MAX: Duration = Duration::from_secs(300);

/// Rule of a run whose process ended without a report.
const DIED: &str = "died";

/// Rule of a run that took longer than [`RUN_TIME_MAX`].
const HANGS: &str = "hangs";

/// Characters of a process's last words that are shown.
const LAST_WORDS_MAX: usize = 4_000;

/// What the process is asked.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunRequest {
    /// The plan.
    pub plan: SimPlan,
    /// The lines of the trace are wanted too.
    pub with_trace: bool,
}

/// What a run found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunReport {
    /// Broken rules, in the order of time.
    pub violations: Vec<RunFailure>,
    /// Everything that was observed, a line each, if it was asked for.
    pub trace: Vec<String>,
    /// Number of observations.
    pub observations: u64,
}

impl RunReport {
    /// The violation of this rule, or the first one.
    #[must_use]
    pub fn failure(&self, rule: Option<&str>) -> Option<&RunFailure> {
        let same = self.violations.iter().find(|failure| Some(&*failure.rule) == rule);
        same.or(self.violations.first())
    }

    fn without_report(rule: &str, message: String) -> Self {
        let violations = vec![RunFailure { rule: rule.to_owned(), message }];
        Self { violations, ..Self::default() }
    }
}

/// Runs a plan in a new process of this program, which answers with [`answer`].
///
/// # Errors
/// The program cannot be started.
pub fn run_apart(program: &Path, arguments: &[&str], request: &RunRequest) -> io::Result<RunReport> {
    let mut command = machine::command(program, request.plan.seed);
    // Who reads a trace reads the log too.
    let log = if request.with_trace { Stdio::inherit() } else { Stdio::piped() };
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn()?;
    let asked = serde_json::to_vec(request)?;
    if let Some(mut input) = child.stdin.take() {
        // A process that has died is noticed below.
        let _ = input.write_all(&asked);
    }
    Ok(match finish(child)? {
        Some(output) => read_report(&output),
        None => RunReport::without_report(HANGS, format!("no end after {} s", RUN_TIME_MAX.as_secs())),
    })
}

/// The output of a process; `None` if it took too long and was killed.
fn finish(mut child: Child) -> io::Result<Option<Output>> {
    let (ended, end) = mpsc::channel();
    let drain = |stream: Option<Box<dyn Read + Send>>, ended: mpsc::Sender<()>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            // What can be read is kept; the status says more about the rest.
            let _ = stream.map(|mut stream| stream.read_to_end(&mut bytes));
            let _ = ended.send(());
            bytes
        })
    };
    let stdout = drain(child.stdout.take().map(|stream| Box::new(stream) as _), ended.clone());
    let stderr = drain(child.stderr.take().map(|stream| Box::new(stream) as _), ended);
    let in_time = end.recv_timeout(RUN_TIME_MAX).is_ok();
    if !in_time {
        child.kill()?;
    }
    let status = child.wait()?;
    let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().unwrap_or_default());
    Ok(in_time.then_some(Output { status, stdout, stderr }))
}

fn read_report(output: &Output) -> RunReport {
    let words = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return RunReport::without_report(DIED, last_words(output.status, &words));
    }
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        RunReport::without_report(DIED, format!("no report: {error}; {}", last_words(output.status, &words)))
    })
}

fn last_words(status: ExitStatus, words: &str) -> String {
    let from = words.char_indices().rev().nth(LAST_WORDS_MAX).map_or(0, |(at, _)| at);
    format!("{status}: {}", words[from..].trim())
}

/// The other end of [`run_apart`]: reads the request, runs the plan, writes the report.
///
/// # Errors
/// This process is on the real machine, the input is no request, or the output cannot be written.
pub fn answer() -> io::Result<()> {
    let machine = Machine::attach().map_err(io::Error::other)?;
    let RunRequest { plan, with_trace } = serde_json::from_reader(io::stdin().lock())?;
    let outcome = run(&plan, &RunOptions { with_trace, machine: Some(Arc::new(machine)) });
    let failure = |one: &Violation| RunFailure { rule: one.rule.to_owned(), message: one.to_string() };
    let report = RunReport {
        violations: outcome.violations.iter().map(failure).collect(),
        trace: outcome.trace,
        observations: outcome.observations,
    };
    let mut output = io::stdout().lock();
    serde_json::to_writer(&mut output, &report)?;
    output.flush()
}
