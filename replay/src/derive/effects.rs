//! What a write of the edge has made, apart from what others had made before it.
//!
//! Who records the API may miss a version: a line then shows what somebody else has changed together with what the edge
//! wrote. A report of status changes the status alone; the rest was there before.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::version;
use crate::frame::{Frame, Key};
use crate::transcript::{Event, Line, Transcript, Verb};
use crate::value::{same_but_status, strip};

/// The transcript with such a line before each report that needs one.
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
        let asked = reported.get(&(key.clone(), revision)).filter(|asked| **asked < index);
        if let (Some(asked), Some(known)) = (asked, known.get(&key))
            && version(known).0 == version(object).0
            && !same_but_status(known, object)
        {
            let mut earlier = object.clone();
            earlier["status"] = known.get("status").cloned().unwrap_or_else(|| json!({}));
            strip(&mut earlier, &["resourceVersion"]);
            before.entry(*asked).or_default().push(earlier);
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

/// Versions that reports of status have made, by name, with the line of the report.
fn reported(transcript: &Transcript) -> HashMap<(Key, String), usize> {
    let mut requests: HashMap<&str, usize> = HashMap::new();
    let mut made = HashMap::new();
    for (index, line) in transcript.lines.iter().enumerate() {
        match &line.event {
            Event::Up(frame) if is_report(frame) => {
                requests.insert(frame.id(), index);
            }
            Event::Down(frame) => {
                let Some(asked) = requests.get(frame.parent()) else { continue };
                for object in frame.objects() {
                    made.entry((Key::of_object(&object), version(&object).1)).or_insert(*asked);
                }
            }
            _ => {}
        }
    }
    made
}

/// Whether a message changes nothing but status. Older reports of nodes set annotations too.
fn is_report(frame: &Frame) -> bool {
    let word = frame.resource().split('/').nth(1).unwrap_or_default();
    let call = frame.is_tombolo() && frame.group() == "api" && frame.operation() == "PATCH";
    matches!(word, "nodepatch" | "podpatch")
        || call && frame.resource().split('?').next().is_some_and(|path| path.ends_with("/status"))
}
