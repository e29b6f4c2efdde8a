//! Informers of client-go, in a process of `tests/clients`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::writes::RESOURCES;
use crate::{Held, Revisions, SELECTORS};

pub(crate) struct GoClients {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

#[derive(Deserialize)]
struct Shown {
    client: String,
    resource: String,
    selector: String,
    synced: bool,
    objects: Revisions,
}

impl GoClients {
    /// Starts so many informers. `streaming`: the watch begins with the list (`WatchListClient` of client-go).
    pub(crate) fn start(program: &Path, kubeconfig: PathBuf, count: usize, streaming: bool) -> Result<Self> {
        let mut process = Command::new(program)
            .env("KUBE_FEATURE_WatchListClient", streaming.to_string())
            .arg("-kubeconfig")
            .arg(kubeconfig)
            .args(["-count", &count.to_string(), "-resources", &RESOURCES.join(",")])
            .args(["-selectors", &SELECTORS.join(";")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let questions = process.stdin.take().context("piped")?;
        let answers = BufReader::new(process.stdout.take().context("piped")?);
        Ok(Self { process, questions, answers })
    }

    /// What every informer holds.
    pub(crate) fn held(&mut self) -> Result<Vec<Held>> {
        self.questions.write_all(b"\n")?;
        let mut line = String::new();
        ensure!(self.answers.read_line(&mut line)? > 0, "the informers have ended");
        let shown: Vec<Shown> = serde_json::from_str(&line)?;
        let held = shown.into_iter().map(|one| {
            ensure!(one.synced, "{} of {} is not synced", one.client, one.resource);
            let known = |names: &[&'static str], text: &str| names.iter().copied().find(|name| *name == text);
            Ok(Held {
                watcher: format!("client-go {}", one.client),
                resource: known(&RESOURCES, &one.resource).context("a resource that nobody asked for")?,
                selector: known(&SELECTORS, &one.selector).context("a selector that nobody gave")?,
                objects: one.objects,
            })
        });
        held.collect()
    }
}

impl Drop for GoClients {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
