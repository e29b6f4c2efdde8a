//! The suite's binary and its runner: names, a run, the outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Longest value of one `--focus`: the kernel accepts arguments of up to 128 KiB.
const FOCUS_LENGTH_MAX: usize = 60 * 1024;

/// A built suite, as `cargo xtask e2e build` makes it.
#[derive(Debug)]
pub struct Suite {
    folder: PathBuf,
}

/// The outcome of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It does not apply to this cluster; its message.
    Skipped(String),
    /// It failed; its message.
    Failed(String),
}

/// The settings of a run.
#[derive(Debug)]
pub struct Run<'a> {
    /// The administrator's kubeconfig.
    pub kubeconfig: &'a Path,
    /// The kubectl that tests call.
    pub kubectl: &'a Path,
    /// Number of concurrent tests.
    pub procs: u32,
    /// Folder for the report and the output.
    pub output: &'a Path,
}

impl Suite {
    /// The suite in a folder.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn binary(&self) -> PathBuf {
        self.folder.join("e2e.test")
    }

    /// The names of all tests.
    ///
    /// # Errors
    /// When the suite does not start.
    pub fn names(&self) -> Result<BTreeSet<String>> {
        let output = Command::new(self.binary()).arg("--list-tests").output().context("start the suite")?;
        ensure!(output.status.success(), "the suite does not list its tests: {}", output.status);
        // Lines look like `    PATH/file.go:123: NAME`.
        let text = String::from_utf8(output.stdout).context("the names of the tests are not UTF-8")?;
        let names: BTreeSet<String> = text
            .lines()
            .filter_map(|line| line.split_once(".go:")?.1.split_once(": "))
            .map(|(_, name)| name.trim().to_owned())
            .collect();
        ensure!(!names.is_empty(), "the suite lists no tests");
        Ok(names)
    }

    /// Runs only these tests. A failed test is an outcome, not an error.
    ///
    /// # Errors
    /// When the runner does not start, or when the setup before the tests fails: the cluster is not usable then.
    pub fn run(&self, names: &BTreeSet<String>, run: &Run<'_>) -> Result<BTreeMap<String, Outcome>> {
        fs::create_dir_all(run.output).with_context(|| format!("create {}", run.output.display()))?;
        let report = run.output.join("report.json");
        // Removed so that an earlier run's report is not mistaken for this one's.
        let _ = fs::remove_file(&report);
        let mut command = Command::new(self.folder.join("ginkgo"));
        command.current_dir(run.output).arg(format!("--procs={}", run.procs));
        command.args(["--timeout=4h", "--no-color", "--silence-skips", "--json-report=report.json"]);
        command.arg(format!("--output-dir={}", run.output.display()));
        command.args(focuses(names)).arg(self.binary()).arg("--");
        command.args([
            "--provider=skeleton",
            "--num-nodes=1",
            "--dump-logs-on-failure=false",
            "--disable-log-dump",
        ]);
        command.arg(format!("--kubeconfig={}", run.kubeconfig.display()));
        command.arg(format!("--kubectl-path={}", run.kubectl.display()));
        command.arg(format!("--report-dir={}", run.output.display()));
        let status = command.status().context("start ginkgo")?;
        let text =
            fs::read(&report).with_context(|| format!("the runner ended with {status} and no report"))?;
        outcomes(&text)
    }
}

/// Arguments that select exactly these tests.
fn focuses(names: &BTreeSet<String>) -> Vec<String> {
    let mut focuses: Vec<String> = Vec::new();
    for name in names {
        let escaped = regex::escape(name);
        match focuses.last_mut().filter(|last| last.len() + escaped.len() < FOCUS_LENGTH_MAX) {
            Some(last) => {
                last.push('|');
                last.push_str(&escaped);
            }
            None => focuses.push(format!("--focus={escaped}")),
        }
    }
    focuses
}

/// The part of the runner's report that describes a suite.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SuiteReport {
    spec_reports: Option<Vec<SpecReport>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SpecReport {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    failure: Option<SpecFailure>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SpecFailure {
    message: Option<String>,
}

fn outcomes(report: &[u8]) -> Result<BTreeMap<String, Outcome>> {
    let reports: Vec<SuiteReport> =
        serde_json::from_slice(report).context("the runner's report cannot be read")?;
    let mut outcomes = BTreeMap::new();
    for spec in reports.into_iter().flat_map(|report| report.spec_reports.unwrap_or_default()) {
        let message = spec.failure.and_then(|failure| failure.message).unwrap_or_default();
        if spec.leaf_node_type != "It" {
            // Steps after the tests do not change the tests' outcomes.
            let usable = !spec.leaf_node_type.ends_with("BeforeSuite") || spec.state == "passed";
            ensure!(usable, "{} of the suite: {}: {message}", spec.leaf_node_type, spec.state);
            continue;
        }
        let outcome = match spec.state.as_str() {
            "passed" => Outcome::Passed,
            // Tests that were not selected are reported as skipped too, without a message.
            "skipped" | "pending" if message.is_empty() => continue,
            "skipped" => Outcome::Skipped(message),
            state => Outcome::Failed(format!("{state}: {message}")),
        };
        let mut words = spec.container_hierarchy_texts.unwrap_or_default();
        words.push(spec.leaf_node_text);
        outcomes.insert(words.join(" "), outcome);
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_gives_the_outcomes_of_the_selected_tests() {
        let report = br#"[{"SpecReports": [
            {"LeafNodeType": "BeforeSuite", "LeafNodeText": "", "State": "passed"},
            {"ContainerHierarchyTexts": ["[a]", "b"], "LeafNodeType": "It", "LeafNodeText": "c", "State": "passed"},
            {"ContainerHierarchyTexts": ["[a]"], "LeafNodeType": "It", "LeafNodeText": "d", "State": "skipped"},
            {"ContainerHierarchyTexts": ["[a]"], "LeafNodeType": "It", "LeafNodeText": "e", "State": "skipped",
             "Failure": {"Message": "two nodes"}},
            {"ContainerHierarchyTexts": null, "LeafNodeType": "It", "LeafNodeText": "f", "State": "timedout",
             "Failure": {"Message": "late"}}]}]"#;
        let expected = [
            ("[a] b c", Outcome::Passed),
            ("[a] e", Outcome::Skipped("two nodes".to_owned())),
            ("f", Outcome::Failed("timedout: late".to_owned())),
        ];
        assert_eq!(outcomes(report).unwrap(), expected.map(|(name, own)| (name.to_owned(), own)).into());
    }

    #[test]
    fn suite_that_could_not_start_is_an_error() {
        let report = br#"[{"SpecReports": [{"LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "",
            "State": "failed", "Failure": {"Message": "no node"}}]}]"#;
        let error = outcomes(report).unwrap_err().to_string();
        assert!(error.contains("SynchronizedBeforeSuite") && error.contains("no node"), "{error}");
    }

    #[test]
    fn many_names_are_split_over_arguments_within_the_kernels_limit() {
        let names: BTreeSet<String> = (0..2000).map(|number| format!("[a] (b) {number:0100}")).collect();
        let arguments = focuses(&names);
        assert!(arguments.len() > 1 && arguments.iter().all(|one| one.len() < 128 * 1024));
        let alternatives = arguments.iter().map(|one| one.split('|').count()).sum::<usize>();
        assert_eq!(alternatives, names.len());
        assert!(arguments[0].starts_with(r"--focus=\[a\] \(b\) 0"), "{}", &arguments[0][..40]);
    }
}
