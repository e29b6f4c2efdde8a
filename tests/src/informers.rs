//! Informers of client-go, in a process of `tests/clients` that reports what they hold until it is dropped.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The process.
#[derive(Debug)]
pub struct Informers {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// What the informers follow.
#[derive(Debug, Clone, Copy)]
pub struct Followed<'a> {
    /// Number of informers; they cycle through resources and selectors.
    pub count: usize,
    /// `GROUP/VERSION/PLURAL` of each resource.
    pub resources: &'a [&'a str],
    /// Label selectors; if empty, everything is selected.
    pub selectors: &'a [&'a str],
    /// Whether the watch begins with the list (`WatchListClient` of client-go).
    pub streaming: bool,
}

/// The contents of one informer.
#[derive(Debug, Deserialize)]
pub struct Shown {
    /// Its name.
    pub client: String,
    /// The resource that it follows.
    pub resource: String,
    /// The selector with which it follows.
    #[serde(default)]
    pub selector: String,
    synced: bool,
    /// Revision of each object by `namespace/name`.
    pub objects: BTreeMap<String, String>,
}

impl Informers {
    /// Starts the program with a kubeconfig.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(program: &Path, kubeconfig: &Path, followed: Followed<'_>) -> Result<Self> {
        let Followed { count, resources, selectors, streaming } = followed;
        let mut command = Command::new(program);
        command.env("KUBE_FEATURE_WatchListClient", streaming.to_string()).arg("-kubeconfig").arg(kubeconfig);
        command.args(["-count", &count.to_string(), "-resources", &resources.join(",")]);
        if !selectors.is_empty() {
            command.args(["-selectors", &selectors.join(";")]);
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let questions = process.stdin.take().context("piped")?;
        let answers = BufReader::new(process.stdout.take().context("piped")?);
        Ok(Self { process, questions, answers })
    }

    /// Returns what every informer holds.
    ///
    /// # Errors
    /// When the process has ended, or an informer is not synced yet.
    pub fn held(&mut self) -> Result<Vec<Shown>> {
        self.questions.write_all(b"\n")?;
        let mut line = String::new();
        ensure!(self.answers.read_line(&mut line)? > 0, "the process of the informers has ended");
        let shown: Vec<Shown> = serde_json::from_str(&line)?;
        for one in &shown {
            ensure!(one.synced, "{} of {} is not synced", one.client, one.resource);
        }
        Ok(shown)
    }
}

impl Drop for Informers {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
