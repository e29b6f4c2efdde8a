//! What is not there, and what is there although the edge thinks otherwise: refused writes and whole lists tell it.
//!
//! The edge of the run hears the same refusal if the same is the case: an object that its write does not find has gone before;
//! one that it cannot make is there; one that is not as it was read has changed, or is another incarnation. What it is then
//! is what later frames show of it; where none does, the least that has the same effect.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{Fact, Known, What, is_newer, version};
use crate::frame::{Frame, Key};
use crate::transcript::Verb;
use crate::value::strip;

/// Why a write was refused. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// There was an object of this name.
    Exists,
    /// It was another version.
    Changed,
    /// It was another incarnation.
    Replaced,
}

/// A refused write.
#[derive(Debug)]
pub(super) struct Refused {
    key: Key,
    why: Why,
    /// What the request would have made.
    asked: Value,
    /// What later frames show, as it was before the edge wrote to it.
    later: Option<Value>,
}

/// All objects of a kind, in a namespace or in all of them.
#[derive(Debug)]
pub(super) struct Listed {
    kind: String,
    /// Empty for all namespaces.
    namespace: String,
    keys: HashSet<Key>,
}

/// How an API server ends the sentence in which it says that there is none of the incarnation that is to be updated, and no
/// other either: it would make the object if the update did not name one.
const NO_INCARNATION: [&str; 2] = ["UID in object meta:", "no existing object was found"];

/// What the refusal of a write proves; none where it proves nothing of the object that the write is about.
pub(super) fn of(request: &Frame, reply: &Frame) -> Option<What> {
    let (status, key) = (reply.status()?, request.key()?);
    // The namespace, or what the object names, may be what is missing.
    if status.pointer("/details/name").and_then(Value::as_str) != Some(&key.name) {
        return None;
    }
    let said = status["message"].as_str().unwrap_or_default();
    let why = match status["reason"].as_str()? {
        "NotFound" => return Some(What::Absent(key, None)),
        "Conflict" if NO_INCARNATION.iter().any(|end| said.trim_end().ends_with(end)) => {
            return Some(What::Absent(key, None));
        }
        "AlreadyExists" => Why::Exists,
        "Conflict" if said.contains("Precondition failed: UID") => Why::Replaced,
        // A patch cannot make another incarnation of what is there.
        "Invalid" if said.contains("metadata.uid: Invalid value") => Why::Replaced,
        "Conflict" => Why::Changed,
        _ => return None,
    };
    let mut asked =
        request.asked().filter(|asked| asked["metadata"]["name"] == *key.name).unwrap_or_default();
    strip(&mut asked, &["uid", "resourceVersion"]);
    Some(What::Refused(Refused { key, why, asked, later: None }))
}

/// What the answer to an application's list proves: that there are no others. A selection or a part of a list proves nothing.
pub(super) fn listed(request: &Frame, reply: &Frame) -> Option<What> {
    if request.application("Verb") != "list" || reply.application("Status") != "Approved" {
        return None;
    }
    let options = request.option();
    let says = |name: &str| options[name].as_str().is_some_and(|text| !text.is_empty());
    let body = reply.application_body()?;
    let part = &body["metadata"]["continue"];
    if says("labelSelector") || says("fieldSelector") || part.as_str().is_some_and(|part| !part.is_empty()) {
        return None;
    }
    let kind = body["kind"].as_str()?.strip_suffix("List")?.to_ascii_lowercase();
    let record = request.application("Key");
    let namespace = record.split('/').nth(4).filter(|namespace| *namespace != "null").unwrap_or_default();
    let keys = reply.objects().iter().map(Key::of_object).collect();
    Some(What::Listed(Listed { kind, namespace: namespace.to_owned(), keys }))
}

/// The facts, with what comes later of objects for which a write was refused.
pub(super) fn with_evidence(mut facts: Vec<Fact>) -> Vec<Fact> {
    for position in 0..facts.len() {
        let (before, after) = facts.split_at_mut(position + 1);
        if let Some(Fact { what: What::Refused(refused), .. }) = before.last_mut() {
            let shown = after.iter().filter_map(|fact| fact.what.object());
            refused.later = shown.into_iter().find(|object| Key::of_object(object) == refused.key);
        }
    }
    facts
}

impl Known {
    pub(super) fn listed(&mut self, position: usize, listed: &Listed) -> Vec<(Verb, Value)> {
        let missing = |key: &&Key| {
            key.kind == listed.kind
                && (listed.namespace.is_empty() || key.namespace == listed.namespace)
                && !listed.keys.contains(key)
        };
        let mut missing: Vec<Key> = self.objects.keys().filter(missing).cloned().collect();
        missing.sort();
        missing.iter().flat_map(|key| self.absent(position, key, None)).collect()
    }

    pub(super) fn refused(&mut self, refused: Refused) -> Vec<(Verb, Value)> {
        let Refused { key, why, asked, later } = refused;
        let known = self.objects.get(&key).cloned();
        let later = later.filter(|later| {
            let ((uid, revision), known) = (version(later), known.as_ref().map(version));
            known.is_none_or(|(same, newest)| match why {
                Why::Exists => false,
                Why::Changed => uid == same && is_newer(&revision, &newest),
                Why::Replaced => uid != same,
            })
        });
        match (later, known, why) {
            (Some(later), ..) => self.exists(later),
            (None, None, Why::Exists) if asked["kind"].is_string() => vec![(Verb::Create, asked)],
            (None, None, _) | (None, Some(_), Why::Exists) => Vec::new(),
            (None, Some(known), Why::Changed) => vec![(Verb::Update, touched(known))],
            (None, Some(known), Why::Replaced) => {
                self.ended.insert(version(&known).0);
                let mut other = known.clone();
                strip(&mut other, &["uid", "resourceVersion"]);
                vec![(Verb::Delete, known), (Verb::Create, other)]
            }
        }
    }
}

/// An object that somebody has changed, nobody knows how.
fn touched(mut object: Value) -> Value {
    strip(&mut object, &["resourceVersion"]);
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    object["metadata"]["annotations"]["tombolo-replay/changed"] = "".into();
    object
}
