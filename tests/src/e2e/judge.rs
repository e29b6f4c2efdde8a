//! Compares the outcomes of a run with the lists.

use std::collections::{BTreeMap, BTreeSet};

use super::lists::{Expected, Lists};
use super::suite::Outcome;
use super::target::ServerUnderTest;

/// Longest part of a failure message that a complaint repeats, in characters; the report has the rest.
const MESSAGE_MAX: usize = 300;

/// The result of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SuiteSummary {
    /// Tests that passed.
    pub passed: usize,
    /// Tests that must pass and did.
    pub passed_as_listed: usize,
    /// Tests that are known not to pass yet and did not.
    pub not_yet: usize,
    /// Tests that are not in any list.
    pub unlisted: usize,
    /// Contradictions to the lists, one line each. The run is good if there are none.
    pub complaints: Vec<String>,
}

/// Compares the outcomes of the selected tests with the lists.
#[must_use]
pub fn judge(
    target: ServerUnderTest,
    selected: &BTreeSet<String>,
    outcomes: &BTreeMap<String, Outcome>,
    lists: &Lists,
) -> SuiteSummary {
    let mut summary = SuiteSummary::default();
    for name in selected {
        let outcome = outcomes.get(name);
        let passed = outcome == Some(&Outcome::Passed);
        summary.passed += usize::from(passed);
        let expected = lists.expected(name);
        match expected {
            Expected::Pass => summary.passed_as_listed += usize::from(passed),
            Expected::NotYet(_) => summary.not_yet += usize::from(!passed),
            Expected::Unlisted => summary.unlisted += 1,
            Expected::NeedsContainers => {}
        }
        let became = describe(outcome);
        let complaint = match (target, expected, passed) {
            (_, Expected::Unlisted, _) => format!("in no list: {name}: {became}"),
            (_, Expected::Pass, false) => format!("must pass: {name}: {became}"),
            (ServerUnderTest::Embedded, Expected::NotYet(_), true) => {
                format!("passes now, move it to pass.txt: {name}")
            }
            (ServerUnderTest::Real, Expected::NotYet(_), false) => {
                format!("not even on the real server, move it to needs-containers.txt: {name}: {became}")
            }
            (_, Expected::NeedsContainers, true) => format!("needs no containers: {name}"),
            _ => continue,
        };
        summary.complaints.push(complaint);
    }
    let is_run = |name: &String| matches!(outcomes.get(name), Some(Outcome::Passed | Outcome::Failed(_)));
    if !selected.iter().any(is_run) {
        summary.complaints.push("not one of the selected tests was run".to_owned());
    }
    summary
}

fn describe(outcome: Option<&Outcome>) -> String {
    let (what, message) = match outcome {
        None => return "not run".to_owned(),
        Some(Outcome::Passed) => return "passed".to_owned(),
        Some(Outcome::Skipped(message)) => ("skipped", message),
        Some(Outcome::Failed(message)) => ("failed", message),
    };
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{what}: {}", line.chars().take(MESSAGE_MAX).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists() -> Lists {
        Lists::parse("good\nbroken\nleft out\n", "late | no CEL\nearly | no CEL\n", "").unwrap()
    }

    fn outcomes() -> BTreeMap<String, Outcome> {
        let failed = || Outcome::Failed("failed: expected\n  400".to_owned());
        [
            ("good", Outcome::Passed),
            ("broken", failed()),
            ("late", failed()),
            ("early", Outcome::Passed),
            ("new", Outcome::Skipped("two nodes".to_owned())),
        ]
        .map(|(name, outcome)| (name.to_owned(), outcome))
        .into()
    }

    fn selected() -> BTreeSet<String> {
        ["good", "broken", "left out", "late", "early", "new"].map(str::to_owned).into()
    }

    #[test]
    fn outcomes_that_contradict_the_lists_are_named() {
        let summary = judge(ServerUnderTest::Embedded, &selected(), &outcomes(), &lists());
        let complaints = [
            "must pass: broken: failed: failed: expected 400",
            "passes now, move it to pass.txt: early",
            "must pass: left out: not run",
            "in no list: new: skipped: two nodes",
        ];
        let counts = (summary.passed, summary.passed_as_listed, summary.not_yet, summary.unlisted);
        assert_eq!((counts, summary.complaints), ((2, 1, 1, 1), complaints.map(str::to_owned).to_vec()));
    }

    #[test]
    fn run_without_tests_is_a_failure() {
        let selected = ["late", "early"].map(str::to_owned).into();
        let skipped = Outcome::Skipped("no such cluster".to_owned());
        for outcomes in [BTreeMap::new(), [("late".to_owned(), skipped)].into()] {
            let summary = judge(ServerUnderTest::Embedded, &selected, &outcomes, &lists());
            assert_eq!(summary.complaints, ["not one of the selected tests was run"]);
        }
    }

    #[test]
    fn on_the_real_server_everything_listed_passes() {
        let summary = judge(ServerUnderTest::Real, &selected(), &outcomes(), &lists());
        let of = |name: &str| summary.complaints.iter().filter(|line| line.contains(name)).count();
        assert_eq!(["good", "broken", "late", "early"].map(of), [0, 1, 1, 0], "{:?}", summary.complaints);
    }
}
