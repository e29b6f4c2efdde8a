//! Checks that a transcript does not contradict itself.
//!
//! Frames that the run's cloud rightly does not repeat are compared with nothing else. Their content must still agree
//! with other frames of the same version, and a delivery must have the form that every edge expects.

use core::net::IpAddr;
use std::collections::{HashMap, HashSet};

use serde_json::Value;
use tombolo_proto::message::ResourceType;
use tombolo_proto::session::kubeedge::resource_of;

use crate::frame::{Ask, Frame};
use crate::tombolo::wire;
use crate::transcript::{Event, Transcript, Verb};
use crate::value::agree;

/// A line that contradicts others, and how.
pub(crate) struct Fault {
    pub(crate) index: usize,
    pub(crate) problem: String,
}

/// The first contradiction of a transcript.
pub(crate) fn check(transcript: &Transcript) -> Option<Fault> {
    let frames = || transcript.lines.iter().enumerate();
    let said: HashSet<&str> = frames().filter_map(|(_, line)| down(&line.event)).map(Frame::id).collect();
    let mut objects = ObservedObjects::default();
    let mut positions = Positions::default();
    for (index, line) in frames() {
        let problem = match &line.event {
            Event::Up(frame) if frame.ask() == Ask::Ack => {
                let unsaid = answered(frame).into_iter().find(|id| !said.contains(&**id));
                unsaid.map(|id| format!("the edge answers {id:?}, which the cloud never sent"))
            }
            Event::Up(frame) => objects.refer(frame.content()),
            Event::Down(frame) => delivery_fault(frame)
                .or_else(|| positions.take(frame))
                .or_else(|| frame.objects().iter().find_map(|object| objects.take(object))),
            // A deletion may carry only the object's identity.
            Event::Api(Verb::Delete, _) => None,
            Event::Api(_, object) => objects.take(object),
        };
        if let Some(problem) = problem {
            return Some(Fault { index, problem });
        }
    }
    None
}

/// The messages that an acknowledgement or another answer of the edge answers.
fn answered(frame: &Frame) -> Vec<String> {
    if !frame.is_frame("session", "ack") {
        return vec![frame.parent().to_owned()];
    }
    let conn = frame.id().split('/').next().unwrap_or_default();
    let lanes = frame.content().as_object().into_iter().flatten();
    lanes.map(|(lane, seq)| format!("{conn}/{lane}/{seq}")).collect()
}

/// A short text of an object: uid, version, kind and the like.
fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// What the transcript showed of objects so far.
#[derive(Default)]
struct ObservedObjects {
    versions: HashMap<(String, String), Value>,
    /// Kind, API version and creation time by uid.
    births: HashMap<String, [String; 3]>,
    /// Uids by kind and version: a version belongs to one object.
    owners: HashMap<(String, String), String>,
}

impl ObservedObjects {
    /// Takes an object of a frame or an API line. Returns how it contradicts what was shown before.
    fn take(&mut self, object: &Value) -> Option<String> {
        let (uid, revision) = (text(object, "/metadata/uid"), text(object, "/metadata/resourceVersion"));
        if uid.is_empty() || revision.is_empty() {
            return None;
        }
        let birth = ["/kind", "/apiVersion", "/metadata/creationTimestamp"]
            .map(|pointer| text(object, pointer).to_owned());
        let known = self.births.entry(uid.to_owned()).or_insert_with(|| birth.clone());
        for (known, said) in known.iter_mut().zip(&birth) {
            // A deletion may carry less.
            if known.is_empty() {
                known.clone_from(said);
            }
            if known != said && !said.is_empty() {
                return Some(format!("{uid} has {known:?} elsewhere in the transcript, here {said:?}"));
            }
        }
        let owner =
            self.owners.entry((birth[0].clone(), revision.to_owned())).or_insert_with(|| uid.to_owned());
        if owner != uid {
            return Some(format!("version {revision} belongs to {owner} elsewhere in the transcript"));
        }
        let known =
            self.versions.entry((uid.to_owned(), revision.to_owned())).or_insert_with(|| object.clone());
        let differs = !agree(known, object) && !is_turned(known, object) && !is_turned(object, known);
        differs
            .then(|| format!("version {revision} of {uid} has different content elsewhere in the transcript"))
    }

    /// Checks what the edge writes: if it refers to a version of a known object, the edge must have received that
    /// version.
    fn refer(&self, content: &Value) -> Option<String> {
        let (uid, revision) = (text(content, "/metadata/uid"), text(content, "/metadata/resourceVersion"));
        let given = self.versions.contains_key(&(uid.to_owned(), revision.to_owned()));
        let unheard = !revision.is_empty() && self.births.contains_key(uid) && !given;
        unheard.then(|| format!("the edge updates version {revision} of {uid}, which it never received"))
    }
}

/// Whether one slice is the other one with the address of the node's own MetaServer. A cloud shows slices in both forms
/// (docs/reference/kubeedge.md#applications-in-the-cloud).
fn is_turned(one: &Value, other: &Value) -> bool {
    let first = |slice: &Value| {
        let address = slice.pointer("/endpoints/0/addresses/0").and_then(Value::as_str);
        address.and_then(|address| address.parse::<IpAddr>().ok())
    };
    match (first(one), first(other)) {
        (Some(one), Some(other)) => one.is_loopback() && !other.is_loopback(),
        _ => false,
    }
}

/// Positions of deliveries of dialect `tombolo`, by connection and lane, to find gaps. Also what each version of an
/// object depends on.
#[derive(Default)]
struct Positions(HashMap<String, u64>, HashMap<(String, String), Value>);

impl Positions {
    fn take(&mut self, frame: &Frame) -> Option<String> {
        if !frame.is_tombolo() || !frame.is_push() {
            return None;
        }
        if frame.operation() == "update" {
            let beside = &frame.as_json()["deliver"];
            let version = (text(beside, "/uid").to_owned(), frame.resource_version().to_owned());
            let needed = beside["dependencies"].clone();
            if *self.1.entry(version).or_insert_with(|| needed.clone()) != needed {
                return Some(
                    "the same version has different dependencies elsewhere in the transcript".to_owned(),
                );
            }
        }
        let (lane, position) = frame.id().rsplit_once('/')?;
        let position: u64 = position.parse().ok()?;
        let last = self.0.insert(lane.to_owned(), position).unwrap_or_default();
        (position > last + 1)
            .then(|| format!("a delivery is missing: {lane}/{position} follows {lane}/{last}"))
    }
}

fn down(event: &Event) -> Option<&Frame> {
    match event {
        Event::Down(frame) => Some(frame),
        _ => None,
    }
}

/// What is wrong with the form of a delivery or an answer (docs/reference/kubeedge.md#deliveries).
fn delivery_fault(frame: &Frame) -> Option<String> {
    const SOURCES: [&str; 4] =
        ["edgecontroller", "dynamiccontroller", "devicecontroller", "policycontroller"];
    if frame.is_tombolo()
        && let Err(error) = wire(frame)
    {
        return Some(format!("this is not a frame: {error}"));
    }
    let objects = frame.objects();
    let revision = frame.resource_version();
    if let [object] = &objects[..]
        && !revision.is_empty()
        && object["metadata"]["resourceVersion"] != revision
    {
        return Some(format!("the header has version {revision:?}, but the object has a different one"));
    }
    if !frame.is_push() {
        return None;
    }
    if frame.is_tombolo() {
        if resource_fault(frame) {
            return Some("the delivery and its content name different resources".to_owned());
        }
        let uid = &frame.as_json()["deliver"]["uid"];
        let other = objects.iter().any(|object| object["metadata"]["uid"] != *uid);
        return if other {
            Some("the delivery and its content name different incarnations".to_owned())
        } else {
            identity_fault(frame)
        };
    }
    if !SOURCES.contains(&frame.source()) || !matches!(frame.group(), "resource" | "func" | "twin") {
        return Some(format!(
            "no edge accepts a delivery of {:?} in group {:?}",
            frame.source(),
            frame.group()
        ));
    }
    if revision.is_empty() && !objects.is_empty() && frame.operation() != "delete" {
        return Some("no cloud sends a delivery without a version".to_owned());
    }
    identity_fault(frame)
}

/// Whether the resource of a delivery does not match the kind in its path.
fn resource_fault(frame: &Frame) -> bool {
    let Some(key) = frame.key() else { return true };
    let known = resource_of(&ResourceType::parse(&key.kind));
    known.is_some_and(|known| frame.as_json()["deliver"]["resource"] != known.to_string())
}

/// Whether the path of a delivery names the object in its content, as far as the content identifies it.
fn identity_fault(frame: &Frame) -> Option<String> {
    let (object, key) = (frame.content(), frame.key()?);
    object.get("metadata")?;
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().map(str::to_ascii_lowercase);
    if text("name") != key.name
        || text("namespace") != key.namespace
        || kind.is_some_and(|kind| kind != key.kind)
    {
        return Some(format!("the path {:?} and the content name different objects", frame.resource()));
    }
    None
}
