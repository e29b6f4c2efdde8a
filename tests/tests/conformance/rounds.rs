//! One object of every built-in kind from its creation to its deletion: defaults, validation, field ownership, what
//! each path may write, and the events of a watch.

use serde_json::{Value, json};

use crate::line::{Answer, Line};
use crate::lines::{APPLY, JSON, MERGE, STRATEGIC};
use crate::target::Target;

const KINDS: &str = include_str!("kinds.jsonl");

/// Concurrent watches.
const AT_ONCE: usize = 16;

/// A small valid object of one kind, and the changes to it.
struct Round {
    /// Path of the collection.
    path: String,
    name: String,
    object: Value,
    /// A patch of the desired state.
    patch: Value,
    /// Null for kinds without a status subresource.
    status: Value,
}

impl Round {
    fn parse(line: &str) -> Self {
        let mut kind: Value = serde_json::from_str(line).expect("a line of kinds.jsonl is JSON");
        let text = |name: &str| kind[name].as_str().unwrap().to_owned();
        let (version, plural, name) = (text("version"), text("plural"), text("kind"));
        let root = if version.contains('/') { "/apis" } else { "/api" };
        let namespace = if kind["namespaced"] == true { "namespaces/default/" } else { "" };
        let path = format!("{root}/{version}/{namespace}{plural}");
        let mut object = kind["object"].take();
        if object["metadata"]["name"].is_null() {
            object["metadata"]["name"] = "round".into();
        }
        object["metadata"]["labels"]["round"] = "yes".into();
        object["apiVersion"] = version.into();
        object["kind"] = name.into();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        Self { path, name, object, patch: kind["patch"].take(), status: kind["status"].take() }
    }

    fn lines(&self) -> Vec<Line> {
        let line = |method: &str, path: String, content_type: &str, body: &Value| {
            let body = if body.is_null() { String::new() } else { body.to_string() };
            let label =
                format!("{method} {path} {}", content_type.split('/').next_back().unwrap_or_default());
            Line::new(&(method, &path, content_type, &body)).named(label.trim_end().to_owned())
        };
        let all = &self.path;
        let one = format!("{all}/{}", self.name);
        let get = |path: String| line("GET", path, "", &Value::Null);
        let marked = json!({"metadata": {"annotations": {"p": "q"}}, "status": self.status});
        let mut lines = vec![
            line("POST", format!("{all}?fieldManager=dry&dryRun=All"), JSON, &self.object),
            line("POST", format!("{all}?fieldManager=m"), JSON, &self.object),
            line("POST", format!("{all}?fieldManager=again"), JSON, &self.object),
            get(one.clone()),
            get(format!("{all}?labelSelector=round%3Dyes")),
            line("PATCH", format!("{one}?fieldManager=merge"), MERGE, &self.patch),
            line("PATCH", format!("{one}?fieldManager=strategic"), STRATEGIC, &marked),
            line("PUT", format!("{one}?fieldManager=put"), JSON, &self.object),
            line("PATCH", format!("{one}?fieldManager=apply"), APPLY, &self.applied()),
        ];
        if !self.status.is_null() {
            let marked = json!({
                "metadata": {"annotations": {"s": "t"}, "labels": {"s": "t"}},
                "spec": {"nothing": 1},
                "status": self.status,
            });
            lines.push(line("PATCH", format!("{one}/status?fieldManager=status"), MERGE, &marked));
            lines.push(get(format!("{one}/status")));
        }
        lines.push(line("DELETE", format!("{one}?dryRun=All"), "", &Value::Null));
        lines.push(line("DELETE", one.clone(), "", &Value::Null));
        lines.push(get(one));
        lines
    }

    /// The object that a second manager applies: a label.
    fn applied(&self) -> Value {
        json!({
            "apiVersion": self.object["apiVersion"],
            "kind": self.object["kind"],
            "metadata": {"name": self.name, "labels": {"applied": "yes"}},
        })
    }
}

fn rounds() -> Vec<Round> {
    KINDS.lines().map(Round::parse).collect()
}

/// Every request of every round.
pub(crate) fn lines() -> Vec<Line> {
    rounds().iter().flat_map(Round::lines).collect()
}

/// Names of the watches that [`watch`] opens.
pub(crate) fn watches() -> Vec<Line> {
    let path = |round: &Round| {
        Line::get(&format!(
            "{}?watch=1&timeoutSeconds=2&fieldSelector=metadata.name%3D{}",
            round.path, round.name
        ))
    };
    rounds().iter().map(path).collect()
}

/// The events of all rounds, from watches that begin at an earlier revision.
pub(crate) async fn watch(target: &Target, revision: &str) -> Vec<Answer> {
    let lines = watches().into_iter().map(|line| {
        let path = format!("{}&resourceVersion={revision}", line.path);
        Line { path, ..line }
    });
    target.ask_all(lines, AT_ONCE).await
}
