//! What a transcript must agree with in itself.
//!
//! Frames that the run's cloud rightly does not repeat are compared with nothing else. What they say must still be what
//! other frames say of the same version, and a delivery must have the form that every edge expects.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::frame::{Ask, Frame};
use crate::transcript::{Event, Transcript};
use crate::value::same_content;

/// A line that contradicts others, and how.
pub(crate) struct Fault {
    pub(crate) index: usize,
    pub(crate) problem: String,
}

/// The first contradiction of a transcript.
pub(crate) fn check(transcript: &Transcript) -> Option<Fault> {
    let frames = || transcript.lines.iter().enumerate();
    let said: HashSet<&str> = frames().filter_map(|(_, line)| down(&line.event)).map(Frame::id).collect();
    let mut versions: HashMap<(String, String), Value> = HashMap::new();
    for (index, line) in frames() {
        let fault = |problem: String| Some(Fault { index, problem });
        let objects = match &line.event {
            Event::Up(frame) if frame.ask() == Ask::Ack && !said.contains(frame.parent()) => {
                return fault(format!("the edge answers {:?}, which the cloud never sent", frame.parent()));
            }
            Event::Up(_) => continue,
            Event::Down(frame) => {
                if let Some(problem) = delivery_fault(frame) {
                    return fault(problem);
                }
                frame.objects()
            }
            Event::Api(_, object) => vec![object.clone()],
        };
        for object in objects {
            let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
            let version = (text("uid"), text("resourceVersion"));
            if version.1.is_empty() {
                continue;
            }
            let known = versions.entry(version.clone()).or_insert_with(|| object.clone());
            if !same_content(known, &object) {
                let (uid, revision) = version;
                return fault(format!(
                    "version {revision} of {uid} has another content elsewhere in the transcript"
                ));
            }
        }
    }
    None
}

fn down(event: &Event) -> Option<&Frame> {
    match event {
        Event::Down(frame) => Some(frame),
        _ => None,
    }
}

/// What is wrong with the form of a delivery (reference 1.6, 6.4 and 9.4).
fn delivery_fault(frame: &Frame) -> Option<String> {
    if !frame.is_push() {
        return None;
    }
    const SOURCES: [&str; 4] =
        ["edgecontroller", "dynamiccontroller", "devicecontroller", "policycontroller"];
    if !SOURCES.contains(&frame.source()) || !matches!(frame.group(), "resource" | "func" | "twin") {
        return Some(format!(
            "no edge takes a delivery of {:?} in group {:?}",
            frame.source(),
            frame.group()
        ));
    }
    let object = frame.objects().into_iter().next()?;
    let key = frame.key()?;
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    if text("name") != key.name || text("namespace") != key.namespace {
        return Some(format!("the path {:?} names another object than the content", frame.resource()));
    }
    let revision = text("resourceVersion");
    if frame.resource_version() != revision && frame.operation() != "delete" {
        return Some(format!(
            "the header has version {:?}, the object {revision:?}",
            frame.resource_version()
        ));
    }
    None
}
