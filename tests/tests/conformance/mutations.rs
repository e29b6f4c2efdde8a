//! Full objects of every kind with one change at a time. Whether they are rejected, and because of which fields, must
//! be as on kube-apiserver. Messages are not compared here.
//!
//! Differences are listed in `mutations/known`, in one file per API group. A difference that is not listed fails, and
//! so does a listed one that no longer occurs. With `TOMBOLO_MUTATIONS=prune` the test removes the latter from the
//! files. With `TOMBOLO_MUTATIONS=show` it prints both answers for all differences. `TOMBOLO_MUTATIONS_OF=pod,svclb`
//! limits it to the manifests of these names.

mod change;
mod known;

use std::fmt::Write;

use futures::StreamExt;
use serde_json::Value;
use tombolo_testkit::cluster_or_skip;

use crate::line::Line;
use crate::lines::JSON;
use crate::target::Target;
use crate::verdict::Verdict;
use change::{Change, changes};
use known::Known;

const MANIFESTS: &str = include_str!("mutations/manifests.jsonl");

/// Concurrent requests.
const AT_ONCE: usize = 8;

/// Variable with the mode of the test, besides comparing.
const MODE: &str = "TOMBOLO_MUTATIONS";

/// Variable with the names of the manifests to which the test is limited.
const ONLY: &str = "TOMBOLO_MUTATIONS_OF";

/// A full object of one kind.
struct Manifest {
    /// Path of the collection.
    path: String,
    name: String,
    object: Value,
}

impl Manifest {
    fn parse(line: &str) -> Self {
        let mut manifest: Value = serde_json::from_str(line).expect("a line of manifests.jsonl is JSON");
        let path = manifest["path"].as_str().unwrap().to_owned();
        let object = manifest["object"].take();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        Self { path, name, object }
    }

    /// Name of the API group.
    fn group(&self) -> &str {
        let mut parts = self.path.split('/').skip(1);
        if parts.next() == Some("api") { "core" } else { parts.next().unwrap() }
    }

    fn line(&self, object: &Value) -> Line {
        let path = format!("{}?dryRun=All&fieldValidation=Strict", self.path);
        Line::new(&("POST", &path, JSON, &object.to_string()))
    }
}

/// A change on which the servers disagree.
struct Disagreement {
    /// Name of the API group.
    group: String,
    manifest: String,
    change: Change,
    real: (Verdict, String),
    ours: (Verdict, String),
}

/// A verdict and its text; `None` when there is no answer.
async fn judge(target: &Target, line: &Line) -> Option<(Verdict, String)> {
    let answer = target.try_raw(line).await.ok()?;
    let message = answer.body["message"].as_str().unwrap_or_default().to_owned();
    Some((answer.verdict(), message))
}

/// All changes of a manifest on which the servers disagree.
async fn disagreements(real: &Target, embedded: &Target, manifest: &Manifest) -> Vec<Disagreement> {
    let asked = changes(&manifest.object).into_iter().map(|(change, object)| async move {
        let line = manifest.line(&object);
        let (real, ours) = tokio::join!(judge(real, &line), judge(embedded, &line));
        // A panic of kube-apiserver, like that for an Indexed Job without completions, cannot be compared.
        let (real, ours) = (real?, ours.unwrap_or_default());
        let (group, name) = (manifest.group().to_owned(), manifest.name.clone());
        (real.0 != ours.0).then_some(Disagreement { group, manifest: name, change, real, ours })
    });
    futures::stream::iter(asked).buffered(AT_ONCE).filter_map(|one| async { one }).collect().await
}

fn manifests() -> Vec<Manifest> {
    let only = std::env::var(ONLY).unwrap_or_default();
    let wanted: Vec<&str> = only.split(',').filter(|name| !name.is_empty()).collect();
    let all = MANIFESTS.lines().map(Manifest::parse);
    all.filter(|manifest| wanted.is_empty() || wanted.contains(&manifest.name.as_str())).collect()
}

fn shown(one: &Disagreement) -> String {
    let mut text = format!("{} {} {}", one.group, one.manifest, one.change);
    for (whose, (verdict, message)) in [("real", &one.real), ("ours", &one.ours)] {
        let _ = write!(text, "\n  {whose} {verdict} {message}");
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validation_of_changed_objects_matches_kube_apiserver() {
    cluster_or_skip!("mutations beside kube-apiserver");
    crate::install_provider();
    let (real, embedded) = tokio::join!(Target::real(), Target::embedded());
    let (real, embedded) = (real.unwrap(), embedded.unwrap());
    tokio::join!(crate::default_account(&real), crate::default_account(&embedded));
    let manifests = manifests();
    let mut known = Known::read(manifests.iter().map(|manifest| (manifest.group(), manifest.name.as_str())));
    let mode = std::env::var(MODE).unwrap_or_default();
    let mut wrong = Vec::new();
    for manifest in &manifests {
        for one in disagreements(&real, &embedded, manifest).await {
            let listed = known.covers(&one.group, &one.manifest, &one.change);
            if mode == "show" {
                println!("{}", shown(&one));
            } else if !listed {
                wrong.push(shown(&one));
            }
        }
    }
    if mode == "prune" {
        known.prune();
    } else {
        wrong.extend(known.gone().map(|line| format!("no longer differs, prune the list: {line}")));
    }
    assert!(wrong.is_empty(), "{} judged otherwise:\n{}", wrong.len(), wrong.join("\n"));
}
