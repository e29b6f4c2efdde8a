//! Separates what a write of the edge changed from what others had changed before it.
//!
//! A recorder of the API may miss a version: a line then shows another client's change together with what the edge
//! wrote. A status report changes only the status; the rest was there before.

use std::collections::HashMap;

use serde_json::Value;

use super::version;
use crate::frame::{Frame, Key};
use crate::transcript::{Event, Line, Transcript, Verb};
use crate::value::{same_content, strip};

/// The transcript with a line for such a change before each report that needs one.
pub(super) fn split(transcript: &Transcript) -> Transcript {
    let reported = reported(transcript);
    let mut known: HashMap<Key, Value> = HashMap::new();
    let mut before: HashMap<usize, Vec<Value>> = HashMap::new();
    for (index, line) in transcript.lines.iter().enumerate() {
        let Event::Api(verb, object) = &line.event else { continue };
        let key = Key::of_object(object);
        if *verb == Verb::Delete {
            known.remove(&key);
            continue;
        }
        let revision = version(object).1;
        let asked = reported.get(&(key.clone(), revision)).filter(|(asked, _)| *asked < index);
        if let (Some((asked, report)), Some(known)) = (asked, known.get(&key))
            && version(known).0 == version(object).0
        {
            let earlier = self::before(known, object, report);
            if !same_content(known, &earlier) {
                before.entry(*asked).or_default().push(earlier);
            }
        }
        known.insert(key, object.clone());
    }
    let mut lines = Vec::with_capacity(transcript.lines.len() + before.len());
    for (index, line) in transcript.lines.iter().enumerate() {
        for object in before.remove(&index).unwrap_or_default() {
            let event = Event::Api(Verb::Update, object);
            lines.push(Line { number: 0, at_us: line.at_us, conn: None, event });
        }
        lines.push(line.clone());
    }
    Transcript { lines, ..transcript.clone() }
}

/// Versions that status reports created, by name, with the line and the content of the report.
fn reported(transcript: &Transcript) -> HashMap<(Key, String), (usize, Value)> {
    let mut requests: HashMap<&str, (usize, Value)> = HashMap::new();
    let mut made = HashMap::new();
    for (index, line) in transcript.lines.iter().enumerate() {
        match &line.event {
            Event::Up(frame) => {
                if let Some(report) = report(frame) {
                    requests.insert(frame.id(), (index, report));
                }
            }
            Event::Down(frame) => {
                let Some(asked) = requests.get(frame.parent()) else { continue };
                for object in frame.objects() {
                    made.entry((Key::of_object(&object), version(&object).1)).or_insert(asked.clone());
                }
            }
            Event::Api(..) => {}
        }
    }
    made
}

/// The patch of a message that changes only the status; `None` for any other message. Older reports of nodes set
/// annotations too.
pub(super) fn report(frame: &Frame) -> Option<Value> {
    let word = frame.resource().split('/').nth(1).unwrap_or_default();
    if matches!(word, "nodepatch" | "podpatch") {
        return Some(match frame.content() {
            Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
            content => content.clone(),
        });
    }
    let path = frame.resource().split('?').next().unwrap_or_default();
    let call = frame.is_tombolo() && frame.group() == "api" && frame.operation() == "PATCH";
    (call && path.ends_with("/status")).then(|| frame.content()["body"].clone())
}

/// The state before a write, if nothing shows it: the result of the write, at the version that the write names.
pub(super) fn origin(request: &Frame, made: &Value) -> Value {
    let mut origin = made.clone();
    let named = request.content().pointer("/metadata/resourceVersion").filter(|version| version.is_string());
    match named {
        Some(version) => origin["metadata"]["resourceVersion"] = version.clone(),
        None => strip(&mut origin, &["resourceVersion"]),
    }
    // A renewal changes only this: if it stayed, the write would change nothing.
    if origin["kind"] == "Lease"
        && let Some(spec) = origin["spec"].as_object_mut()
    {
        spec.remove("renewTime");
    }
    origin
}

/// The object before a report turned it into `made`: the status members that the report names have their known values.
pub(super) fn before(known: &Value, made: &Value, report: &Value) -> Value {
    let mut before = made.clone();
    before["status"] = unreported(&known["status"], &made["status"], &report["status"]);
    strip(&mut before, &["resourceVersion"]);
    before
}

fn unreported(known: &Value, made: &Value, report: &Value) -> Value {
    match (made, report) {
        (_, Value::Null) => made.clone(),
        (Value::Object(made), Value::Object(report)) => {
            let names = made.keys().chain(report.keys().filter(|name| !name.starts_with('$')));
            let value = |name: &String| match report.get(name) {
                None => made.get(name).cloned().unwrap_or_default(),
                // A member that the report removes.
                Some(Value::Null) => known[name].clone(),
                Some(report) => unreported(&known[name], made.get(name).unwrap_or(&Value::Null), report),
            };
            let members = names.map(|name| (name.clone(), value(name))).filter(|(_, value)| !value.is_null());
            Value::Object(members.collect())
        }
        (Value::Array(made), Value::Array(report))
            if made.iter().chain(report).all(|item| item["type"].is_string()) =>
        {
            let named = |list: &Value, item: &Value| {
                let same = |other: &&Value| other["type"] == item["type"];
                list.as_array().into_iter().flatten().find(same).cloned()
            };
            let report = Value::Array(report.clone());
            let before = |item: &Value| match (named(&report, item), named(known, item)) {
                (None, _) => Some(item.clone()),
                (Some(report), Some(known)) => Some(unreported(&known, item, &report)),
                (Some(_), None) => None,
            };
            Value::Array(made.iter().filter_map(before).collect())
        }
        _ => known.clone(),
    }
}
