//! Moves changes of the API before the answers that show them.
//!
//! A recorder sees the API through its own watch. An answer may come from a read that was faster than the watch. A run
//! that made the change only at its line would then answer "not found".

use std::collections::HashMap;

use serde_json::Value;

use super::{Event, Line, Transcript, Verb};
use crate::frame::{Ask, Frame};

impl Transcript {
    /// The same lines, with every change that an answer shows placed before the request. Changes of one object keep
    /// their order, and no change moves to a later position.
    #[must_use]
    pub fn with_changes_before_answers(&self) -> Self {
        let mut ordered = self.clone();
        let mut index = 0;
        while index < ordered.lines.len() {
            if let Some(question) = question(&ordered.lines, index) {
                index += hoist(&mut ordered.lines, question, index);
            }
            index += 1;
        }
        ordered
    }
}

/// The line of the read that a line answers; `None` if it does not answer a pure read.
fn question(lines: &[Line], answer: usize) -> Option<usize> {
    let Event::Down(frame) = &lines[answer].event else { return None };
    let parent = frame.parent();
    let asks = |line: &Line| {
        let same = line.conn == lines[answer].conn;
        matches!(&line.event, Event::Up(asked) if same && asked.id() == parent && asked.ask() == Ask::Read)
    };
    (!parent.is_empty()).then(|| lines[..answer].iter().rposition(asks))?
}

/// Moves the changes that an answer shows before its request. Returns by how many lines the answer moved.
fn hoist(lines: &mut Vec<Line>, question: usize, answer: usize) -> usize {
    let Event::Down(frame) = &lines[answer].event else { return 0 };
    let shown = shown(frame);
    let mut moved = Vec::new();
    for (uid, version) in shown {
        let of_object = |line: &Line| match &line.event {
            // The last state of a deleted object has a version that was shown before.
            Event::Api(Verb::Create | Verb::Update, object) => {
                identity(object).filter(|(own, _)| *own == uid).map(|(_, version)| version)
            }
            _ => None,
        };
        let last =
            (question + 1..lines.len()).find(|index| of_object(&lines[*index]).as_ref() == Some(&version));
        let Some(last) = last else { continue };
        moved.extend((question + 1..=last).filter(|index| of_object(&lines[*index]).is_some()));
    }
    moved.sort_unstable();
    moved.dedup();
    for (count, from) in moved.iter().enumerate() {
        let line = lines.remove(*from);
        lines.insert(question + count, line);
    }
    moved.iter().filter(|from| **from > answer).count()
}

/// Uids and versions of the objects in an answer.
fn shown(answer: &Frame) -> HashMap<String, String> {
    answer.objects().iter().filter_map(identity).collect()
}

fn identity(object: &Value) -> Option<(String, String)> {
    let text = |name: &str| object["metadata"][name].as_str().map(str::to_owned);
    Some((text("uid")?, text("resourceVersion")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[&str]) -> String {
        let head = r#"{"dialect":"kubeedge","node":"n"}"#;
        std::iter::once(head).chain(lines.iter().copied()).collect::<Vec<_>>().join("\n") + "\n"
    }

    #[test]
    fn change_shown_by_an_answer_precedes_its_request() {
        let ask = r#"{"at_us":1,"conn":1,"dir":"up","frame":{"header":{"msg_id":"q","timestamp":1},"route":{"source":"edged","group":"meta","operation":"query","resource":"d/configmap/c"},"content":""}}"#;
        let answer = r#"{"at_us":2,"conn":1,"dir":"down","frame":{"header":{"msg_id":"a","parent_msg_id":"q","timestamp":1},"route":{"source":"edgecontroller","group":"resource","operation":"response","resource":"d/configmap/c"},"content":{"metadata":{"name":"c","namespace":"d","uid":"u","resourceVersion":"7"}}}}"#;
        let change = |verb: &str, uid: &str, version: u64| {
            format!(
                r#"{{"at_us":3,"dir":"api","verb":"{verb}","object":{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"c","namespace":"d","uid":"{uid}","resourceVersion":"{version}"}}}}}}"#
            )
        };
        let (first, second) = (change("create", "u", 6), change("update", "u", 7));
        let (later, other) = (change("update", "u", 8), change("create", "v", 5));
        let transcript = Transcript::parse(&text(&[ask, answer, &other, &first, &second, &later])).unwrap();
        let numbers = |transcript: &Transcript| -> Vec<usize> {
            transcript.lines.iter().map(|line| line.number).collect()
        };
        assert_eq!(numbers(&transcript), [2, 3, 4, 5, 6, 7]);
        assert_eq!(numbers(&transcript.with_changes_before_answers()), [5, 6, 2, 3, 4, 7]);
        let gone = change("delete", "u", 7);
        let deleted = Transcript::parse(&text(&[&first, &second, ask, answer, &gone])).unwrap();
        assert_eq!(deleted.with_changes_before_answers(), deleted);
        let between = Transcript::parse(&text(&[&first, ask, &second, answer])).unwrap();
        assert_eq!(numbers(&between.with_changes_before_answers()), [2, 4, 3, 5]);
        let unshown = Transcript::parse(&text(&[ask, answer, &later])).unwrap();
        assert_eq!(unshown.with_changes_before_answers(), unshown);
    }
}
