//! One request, and the compared parts of its answer.

use serde_json::{Value, json};

use crate::verdict::Verdict;

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Its name in the list of differences.
    pub(crate) label: String,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) accept: String,
    pub(crate) content_type: String,
    pub(crate) body: String,
    /// Name and version of the client.
    pub(crate) agent: String,
}

impl Line {
    /// Method, path, content type and body.
    pub(crate) fn new((method, path, content_type, body): &(&str, &str, &str, &str)) -> Self {
        Self {
            label: format!("{method} {path} {body}").trim_end().to_owned(),
            method: (*method).to_owned(),
            path: (*path).to_owned(),
            accept: String::new(),
            content_type: (*content_type).to_owned(),
            body: (*body).to_owned(),
            agent: "conformance/1".to_owned(),
        }
    }

    /// A read.
    pub(crate) fn get(path: &str) -> Self {
        Self::new(&("GET", path, "", ""))
    }

    /// The same with another `Accept` header.
    pub(crate) fn accepting(self, accept: &str) -> Self {
        let label = format!("{} {} as {accept}", self.method, self.path);
        Self { label, accept: accept.to_owned(), ..self }
    }

    /// The same with another `User-Agent`.
    pub(crate) fn asked_by(self, agent: &str) -> Self {
        let label = format!("{} from {agent}", self.label);
        Self { label, agent: agent.to_owned(), ..self }
    }

    /// The same with a shorter label.
    pub(crate) fn named(self, label: String) -> Self {
        Self { label, ..self }
    }
}

/// The compared parts of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) warnings: Vec<String>,
    /// The form of the body: media type, caching, indentation, final newline.
    pub(crate) written: String,
    /// For a watch, the list of its events.
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn verdict(&self) -> Verdict {
        Verdict::of(self.code, &self.body)
    }
}

/// Fields whose values are specific to each server.
const OWN: [&str; 5] =
    ["uid", "resourceVersion", "serverAddress", "controller-uid", "batch.kubernetes.io/controller-uid"];

/// Prefix of the fixtures' own times; all other times are replaced.
const FIXED_TIME: &str = "2026-01-01T";

/// Replaces values that cannot be equal: UIDs, revisions, times, continue tokens.
pub(crate) fn normalise(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if members.contains_key("signerName") {
                // The real administrator has a UID from the token file.
                members.remove("uid");
            }
            if members.get("kind").is_some_and(|kind| kind == "APIResourceList")
                && let Some(Value::Array(resources)) = members.get_mut("resources")
            {
                // The real server iterates over its definitions in random order.
                resources.sort_by_cached_key(|resource| resource["name"].to_string());
            }
            if let Some(Value::Array(causes)) = members.get_mut("causes")
                && causes.iter().all(|cause| cause["reason"] == "FieldManagerConflict")
            {
                // The real server iterates over its managers in random order.
                causes.sort_by_cached_key(ToString::to_string);
            }
            if members.get("kind").is_some_and(|kind| kind == "CustomResourceDefinition")
                && let Some(Value::Object(metadata)) = members.get_mut("metadata")
            {
                // They depend on which controllers have written already.
                metadata.remove("managedFields");
            }
            if let Some(Value::Array(entries)) = members.get_mut("managedFields") {
                // They are ordered by their seconds.
                entries.sort_by_cached_key(|entry| {
                    let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
                    (text("operation"), text("manager"), text("subresource"), entry["fieldsV1"].to_string())
                });
            }
            for (name, member) in members.iter_mut() {
                let token = name == "continue" && member.as_str().is_some_and(|token| !token.is_empty());
                if token || (OWN.contains(&name.as_str()) && !member.is_null()) {
                    *member = json!("*");
                } else if let (true, Value::Array(cells)) = (name == "cells", &mut *member) {
                    cells.iter_mut().filter(|cell| is_young(cell)).for_each(|cell| *cell = json!("*"));
                } else if let (true, Some(text)) = (name == "message", member.as_str()) {
                    *member = message(text).into();
                } else {
                    normalise(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalise),
        Value::String(text) if text.parse::<jiff::Timestamp>().is_ok() && !text.starts_with(FIXED_TIME) => {
            "*".clone_into(text);
        }
        _ => {}
    }
}

/// Whether a table cell is the age of an object that these tests have just created.
fn is_young(cell: &Value) -> bool {
    let seconds = cell.as_str().and_then(|text| text.strip_suffix('s'));
    seconds.and_then(|seconds| seconds.parse::<u8>().ok()).is_some_and(|seconds| seconds < 120)
}

/// Normalizes a message: messages repeat whole objects and contain revisions.
fn message(text: &str) -> String {
    const SHOWN: &str = "Invalid value: ";
    // Our server writes no protobuf.
    let text = text.replace(", application/vnd.kubernetes.protobuf;stream=watch", "");
    let text = text.replace(", application/vnd.kubernetes.protobuf", "");
    let text = &text[..text.find("in record (").unwrap_or(text.len())];
    let Some(at) = text.find(SHOWN).map(|at| at + SHOWN.len()) else { return text.to_owned() };
    let mut quoted = serde_json::Deserializer::from_str(&text[at..]).into_iter::<String>();
    let (Some(Ok(shown)), end) = (quoted.next(), quoted.byte_offset()) else { return text.to_owned() };
    let Ok(mut object @ Value::Object(_)) = serde_json::from_str(&shown) else { return text.to_owned() };
    normalise(&mut object);
    format!("{}{object}{}", &text[..at], &text[at + end..])
}
