//! What a run of `cargo test` prints, and the tests of it that are worth a second run.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// More failures than this are no accident of a busy machine: nothing is repeated.
const REPEATED_MAX: usize = 5;

/// One run of `cargo test`.
#[derive(Default)]
pub(super) struct Report {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
    /// Test programs that began, less those that came to their summary.
    unfinished: i64,
    success: bool,
}

impl Report {
    /// Runs the command; what it prints goes on to the terminal.
    ///
    /// # Errors
    /// The command cannot be started, or what it prints cannot be read.
    pub(super) fn of(command: &mut Command) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn().context("cargo test does not start")?;
        let output = child.stdout.take().context("cargo test has no output")?;
        let mut report = Self::default();
        for line in BufReader::new(output).split(b'\n') {
            let line = line.context("what cargo test prints cannot be read")?;
            let line = String::from_utf8_lossy(&line);
            writeln!(std::io::stdout(), "{line}")?;
            report.take(&line);
        }
        report.success = child.wait().context("cargo test cannot be waited for")?.success();
        Ok(report)
    }

    /// A line as libtest prints it.
    fn take(&mut self, line: &str) {
        let named = |outcome| line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(outcome));
        if let Some(name) = named(" ... ok") {
            self.passed.insert(name.to_owned());
        } else if let Some(name) = named(" ... FAILED") {
            self.failed.insert(name.to_owned());
        } else if line.starts_with("running ") && (line.ends_with(" test") || line.ends_with(" tests")) {
            self.unfinished += 1;
        } else if line.starts_with("test result: ") {
            self.unfinished -= 1;
        }
    }

    pub(super) fn success(&self) -> bool {
        self.success
    }

    /// The tests that failed, when a second run can tell more: they are few, and no program ended in the middle of its tests.
    pub(super) fn worth_repeating(&self) -> Option<&BTreeSet<String>> {
        let few = (1..=REPEATED_MAX).contains(&self.failed.len());
        (!self.success && few && self.unfinished == 0).then_some(&self.failed)
    }

    /// Whether each of these tests ran and passed.
    pub(super) fn has_passed(&self, names: &BTreeSet<String>) -> bool {
        self.success && self.failed.is_empty() && names.is_subset(&self.passed)
    }
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
    fn a_second_run_counts_only_for_tests_that_ran_in_it() {
        let second = report(true, "running 1 test\ntest c ... ok\ntest result: ok. 1 passed; 0 failed\n");
        assert!(second.has_passed(&names(&["c"])));
        assert!(!second.has_passed(&names(&["c", "src/lib.rs - d (line 3)"])));
        assert!(!report(false, "test c ... ok").has_passed(&names(&["c"])));
    }
}
