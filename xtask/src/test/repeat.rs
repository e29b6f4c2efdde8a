//! Reads the output of `cargo test`: whether any test ran, and which tests are worth a second run.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::WITHOUT_CLUSTER_VARIABLE;
use crate::run;

/// More failures than this are not an accident of a busy machine: nothing is repeated.
const REPEATED_MAX: usize = 5;

/// One run of `cargo test`.
#[derive(Default)]
pub(crate) struct Report {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
    /// Test programs that started, minus those that printed their summary.
    unfinished: i64,
    /// Tests that finished, according to the summaries of the test programs.
    ran: u64,
    success: bool,
}

/// Runs `cargo test` with a filter. A filter that matches no test is a failure, although `cargo test` itself succeeds
/// then. A test that cannot run fails too, whatever the environment allows: a skipped test would count as passed.
///
/// # Errors
/// A test fails, none runs, or the command cannot be started.
pub(crate) fn run_some(command: &mut Command) -> Result<()> {
    run_allowing_skips(command.env_remove(WITHOUT_CLUSTER_VARIABLE))
}

/// The same where the environment of the command says whether a test may be skipped.
///
/// # Errors
/// See [`run_some`].
pub(crate) fn run_allowing_skips(command: &mut Command) -> Result<()> {
    let line = run::describe(command);
    eprintln!("$ {line}");
    Report::of(command)?.verdict(&line)
}

impl Report {
    /// Runs the command and passes its output on to the terminal.
    ///
    /// # Errors
    /// The command cannot be started, or its output cannot be read.
    pub(super) fn of(command: &mut Command) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn().context("cargo test does not start")?;
        let output = child.stdout.take().context("cargo test has no output")?;
        let mut report = Self::default();
        for line in BufReader::new(output).split(b'\n') {
            let line = line.context("cannot read the output of cargo test")?;
            let line = String::from_utf8_lossy(&line);
            writeln!(std::io::stdout(), "{line}")?;
            report.take(&line);
        }
        report.success = child.wait().context("cannot wait for cargo test")?.success();
        Ok(report)
    }

    /// The report of several programs, none of which has failed yet.
    pub(super) fn passing() -> Self {
        Self { success: true, ..Self::default() }
    }

    /// Adds whether one more program has passed.
    pub(super) fn and(&mut self, success: bool) {
        self.success &= success;
    }

    /// Adds the results of another run.
    pub(super) fn add(&mut self, other: Self) {
        self.passed.extend(other.passed);
        self.failed.extend(other.failed);
        self.unfinished += other.unfinished;
        self.ran += other.ran;
        self.success &= other.success;
    }

    /// Reads a line of libtest's output.
    pub(super) fn take(&mut self, line: &str) {
        // The duration of the test.
        let line = line.split_once(" <").filter(|_| line.ends_with("s>")).map_or(line, |(line, _)| line);
        let named = |outcome| line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(outcome));
        if let Some(name) = named(" ... ok") {
            self.passed.insert(name.to_owned());
        } else if let Some(name) = named(" ... FAILED") {
            self.failed.insert(name.to_owned());
        } else if line.starts_with("running ") && (line.ends_with(" test") || line.ends_with(" tests")) {
            self.unfinished += 1;
        } else if let Some(summary) = line.strip_prefix("test result: ") {
            self.unfinished -= 1;
            self.ran += count(summary, " passed") + count(summary, " failed");
        }
    }

    pub(super) fn success(&self) -> bool {
        self.success
    }

    /// Whether no test ran except skipped ones, which count as passed.
    pub(super) fn is_empty(&self, skipped: u64) -> bool {
        self.ran <= skipped
    }

    /// Fails unless tests ran and all of them passed.
    fn verdict(&self, line: &str) -> Result<()> {
        if !self.success {
            bail!("`{line}` failed: see above");
        }
        if self.is_empty(0) {
            bail!("`{line}` ran no test: no test has this name, or it was renamed");
        }
        Ok(())
    }

    /// The failed tests, if a second run can tell more: they are few, and no program ended in the middle of its tests.
    pub(super) fn worth_repeating(&self) -> Option<&BTreeSet<String>> {
        let few = (1..=REPEATED_MAX).contains(&self.failed.len());
        (!self.success && few && self.unfinished == 0).then_some(&self.failed)
    }

    /// Whether all these tests ran and passed.
    pub(super) fn has_passed(&self, tests: &BTreeSet<String>) -> bool {
        self.success && tests.is_subset(&self.passed) && tests.is_disjoint(&self.failed)
    }

    /// What this run says about tests that failed in the run before.
    pub(super) fn as_repetition(&self, failed: &BTreeSet<String>) -> String {
        let of = |outcome: &str, names: Vec<&str>| match names.len() {
            0 => String::new(),
            _ => format!("\n  {outcome}: {}", names.join(", ")),
        };
        let both = |name: &&String| self.failed.contains(*name);
        let once = |name: &&String| self.passed.contains(*name) && !both(name);
        let neither = |name: &&String| !self.passed.contains(*name) && !both(name);
        let select =
            |which: &dyn Fn(&&String) -> bool| failed.iter().filter(which).map(String::as_str).collect();
        format!(
            "some tests failed: see above{}{}{}",
            of("failed twice", select(&both)),
            of("failed at first and passed when repeated", select(&once)),
            of("failed at first and did not run when repeated", select(&neither)),
        )
    }
}

/// The number before a word of a summary: `ok. 3 passed; 0 failed; ...`.
fn count(summary: &str, word: &str) -> u64 {
    let before = summary.split(word).next().filter(|before| before.len() < summary.len());
    before.and_then(|before| before.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(success: bool, output: &str) -> Report {
        let mut report = Report { success, ..Report::default() };
        output.lines().for_each(|line| report.take(line));
        report
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn failures_are_repeated_when_they_are_few_and_every_program_came_to_its_end() {
        let output =
            "running 2 tests\ntest a::b ... ok\ntest c ... FAILED\ntest result: FAILED. 1 passed; 1 failed\n";
        assert_eq!(report(false, output).worth_repeating(), Some(&names(&["c"])));
        assert_eq!(report(true, output).worth_repeating(), None);
        let aborted = format!("{output}running 1 test\n");
        assert_eq!(report(false, &aborted).worth_repeating(), None, "a program has no summary");
        assert_eq!(report(false, "").worth_repeating(), None, "nothing was built");
        let many: String = (0..=REPEATED_MAX).map(|number| format!("test t{number} ... FAILED\n")).collect();
        assert_eq!(report(false, &many).worth_repeating(), None);
    }

    #[test]
    fn repetition_distinguishes_flaky_tests() {
        let second = report(false, "test a ... FAILED\ntest c ... ok\ntest e ... ok\ntest e ... FAILED\n");
        let said = second.as_repetition(&names(&["a", "c", "d", "e"]));
        let lines: Vec<&str> = said.lines().collect();
        let wanted = [
            "some tests failed: see above",
            "  failed twice: a, e",
            "  failed at first and passed when repeated: c",
            "  failed at first and did not run when repeated: d",
        ];
        assert_eq!(lines, wanted, "a name that several programs have failed if it failed in one");
    }

    #[test]
    fn filter_without_matching_tests_is_a_failure() {
        let none = "running 0 tests\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 12 filtered out; finished in 0.00s\n";
        let one = "running 1 test\ntest a ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.00s\n";
        let ignored = "running 1 test\ntest a ... ignored\ntest result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        let verdict = |success, output: &str| {
            report(success, output).verdict("cargo test x").map_err(|error| error.to_string())
        };
        let nothing = Err("`cargo test x` ran no test: no test has this name, or it was renamed".to_owned());
        for output in ["", none, ignored, &none.repeat(5)] {
            assert_eq!(verdict(true, output), nothing, "{output}");
        }
        assert_eq!(verdict(true, &format!("{none}{one}{none}")), Ok(()));
        assert_eq!(verdict(false, one), Err("`cargo test x` failed: see above".to_owned()));
        assert!(report(true, one).is_empty(1) && !report(true, &one.repeat(2)).is_empty(1));
        // A test's own output can appear before its outcome.
        let noisy = one.replace("test a ... ok", "test a ... something printed\nok");
        assert_eq!(verdict(true, &noisy), Ok(()));
    }
}
