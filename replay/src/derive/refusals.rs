//! What refused writes and complete lists prove: which objects do not exist, and which exist although the edge assumes
//! otherwise.
//!
//! The edge of the run receives the same refusal if the state of the API is the same: an object that its write does not
//! find was deleted before; an object that it cannot create exists; an object that is not as it was read has changed or
//! is another incarnation. Its new state is taken from later frames, or, if none shows it, is the smallest change with
//! the same effect.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{Fact, FactKind, ObservedApiState, is_newer, version};
use crate::frame::{Frame, Key};
use crate::transcript::Verb;
use crate::value::strip;

/// Why a write was refused. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteRefusal {
    /// An object of this name existed.
    Exists,
    /// The object had another version.
    Changed,
    /// The object was another incarnation.
    Replaced,
}

/// A refused write.
#[derive(Debug)]
pub(super) struct RefusedWrite {
    key: Key,
    why: WriteRefusal,
    /// The object that the request would have created.
    asked: Value,
    /// The state that later frames show, before the edge wrote to it.
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

/// Endings of the API server's message that no object of the incarnation to be updated exists, and no other object of
/// that name either. The server would create the object if the update did not name a uid.
const NO_INCARNATION: [&str; 2] = ["UID in object meta:", "no existing object was found"];

/// What the refusal of a write proves; `None` if it proves nothing about the object of the write.
pub(super) fn of(request: &Frame, reply: &Frame) -> Option<FactKind> {
    let (status, key) = (reply.status()?, request.key()?);
    // The missing object may be the namespace, or another object that this one refers to.
    if status.pointer("/details/name").and_then(Value::as_str) != Some(&key.name) {
        return None;
    }
    let said = status["message"].as_str().unwrap_or_default();
    let why = match status["reason"].as_str()? {
        "NotFound" => return Some(FactKind::Absent(key, None)),
        "Conflict" if NO_INCARNATION.iter().any(|end| said.trim_end().ends_with(end)) => {
            return Some(FactKind::Absent(key, None));
        }
        "AlreadyExists" => WriteRefusal::Exists,
        "Conflict" if said.contains("Precondition failed: UID") => WriteRefusal::Replaced,
        // A patch cannot turn an object into another incarnation.
        "Invalid" if said.contains("metadata.uid: Invalid value") => WriteRefusal::Replaced,
        "Conflict" => WriteRefusal::Changed,
        _ => return None,
    };
    let mut asked =
        request.asked().filter(|asked| asked["metadata"]["name"] == *key.name).unwrap_or_default();
    strip(&mut asked, &["uid", "resourceVersion"]);
    Some(FactKind::Refused(RefusedWrite { key, why, asked, later: None }))
}

/// The answer to an application's list proves that no other objects exist. A list with a selector, or a part of a list,
/// proves nothing.
pub(super) fn listed(request: &Frame, reply: &Frame) -> Option<FactKind> {
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
    Some(FactKind::Listed(Listed { kind, namespace: namespace.to_owned(), keys }))
}

/// The facts, with the later state of each object for which a write was refused.
pub(super) fn with_evidence(mut facts: Vec<Fact>) -> Vec<Fact> {
    for position in 0..facts.len() {
        let (before, after) = facts.split_at_mut(position + 1);
        if let Some(Fact { what: FactKind::Refused(refused), .. }) = before.last_mut() {
            let shown = after.iter().filter_map(|fact| fact.what.object());
            refused.later = shown.into_iter().find(|object| Key::of_object(object) == refused.key);
        }
    }
    facts
}

impl ObservedApiState {
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

    pub(super) fn refused(&mut self, refused: RefusedWrite) -> Vec<(Verb, Value)> {
        let RefusedWrite { key, why, asked, later } = refused;
        let known = self.objects.get(&key).cloned();
        let later = later.filter(|later| {
            let ((uid, revision), known) = (version(later), known.as_ref().map(version));
            known.is_none_or(|(same, newest)| match why {
                WriteRefusal::Exists => false,
                WriteRefusal::Changed => uid == same && is_newer(&revision, &newest),
                WriteRefusal::Replaced => uid != same,
            })
        });
        match (later, known, why) {
            (Some(later), ..) => self.exists(later),
            (None, None, WriteRefusal::Exists) if asked["kind"].is_string() => vec![(Verb::Create, asked)],
            (None, None, _) | (None, Some(_), WriteRefusal::Exists) => Vec::new(),
            (None, Some(known), WriteRefusal::Changed) => vec![(Verb::Update, touched(known))],
            (None, Some(known), WriteRefusal::Replaced) => {
                self.ended.insert(version(&known).0);
                let mut other = known.clone();
                strip(&mut other, &["uid", "resourceVersion"]);
                vec![(Verb::Delete, known), (Verb::Create, other)]
            }
        }
    }
}

/// An object with an unknown change by another client.
fn touched(mut object: Value) -> Value {
    strip(&mut object, &["resourceVersion"]);
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    object["metadata"]["annotations"]["tombolo-replay/changed"] = "".into();
    object
}
