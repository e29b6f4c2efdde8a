//! Derives the changes of the Kubernetes API: recorded ones as they are, and for other objects those that the cloud's
//! frames imply.
//!
//! An object in a reply exists, at that version, from just before the request that the reply answers. An object in a
//! push exists from just before that push; deletions likewise. Answers to writes are expectations and never inputs: the
//! version that a write created is not created again, and its push is an effect of the write. If such a push also shows
//! something that the write cannot have changed (a status patch changes neither the deletion time nor conditions that
//! it does not name), that part was there before the write. Refusals and complete lists show which objects were
//! missing, or existed already. An incarnation that is seen again after its deletion was delivered was never deleted:
//! the node did not need it for a while.

mod effects;
mod order;
mod refusals;
mod types;

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use tombolo_proto::message::ResourceType;
use tombolo_proto::session::kubeedge::Kinds;

use crate::frame::{Ask, Frame, Key};
use crate::transcript::{Event, Line, Transcript, Verb};
use crate::value::{same_content, strip};

/// A fact about the API that a frame proves.
struct Fact {
    /// Index of the line before which it holds.
    before: usize,
    what: FactKind,
}

enum FactKind {
    /// The object exists in this state.
    Exists(Value),
    /// A write created this version. Beside it, the previous state, if the object existed before.
    Made(Value, Option<Value>),
    /// A report created this version, which was pushed as well. Beside it, the content of the report.
    Reported(Value, Value),
    /// A write deleted the object, or requested its deletion.
    Unmade(Key),
    /// No object has this key. With a uid: this incarnation does not exist.
    Absent(Key, Option<String>),
    /// A list contains these objects, and no others of the kind and the namespace.
    Listed(refusals::Listed),
    /// A write was refused because of the state of the object.
    Refused(refusals::RefusedWrite),
}

impl FactKind {
    /// The object that this shows, in its state before a write of the edge.
    fn object(&self) -> Option<Value> {
        match self {
            Self::Exists(object) | Self::Made(_, Some(object)) => Some(object.clone()),
            Self::Reported(object, _) => {
                let mut object = object.clone();
                strip(&mut object, &["resourceVersion"]);
                Some(object)
            }
            _ => None,
        }
    }
}

/// The transcript with API lines: its own, in the order that the frames prove, and derived ones for objects that have
/// none.
#[must_use]
pub fn with_api_lines(transcript: &Transcript) -> Transcript {
    let transcript = &effects::split(&order::ordered(&types::completed(transcript)));
    let recorded: HashSet<Key> = transcript.lines.iter().filter_map(told_by_api).collect();
    let mut changes: HashMap<usize, Vec<(Verb, Value)>> = HashMap::new();
    let mut known = ObservedApiState::default();
    let facts = refusals::with_evidence(facts(transcript));
    for (position, fact) in facts.iter().enumerate() {
        if let FactKind::Exists(object) | FactKind::Made(object, _) | FactKind::Reported(object, _) =
            &fact.what
        {
            known.last_seen.insert(version(object).0, position);
        }
    }
    for (position, fact) in facts.into_iter().enumerate() {
        known.take(position, fact, &mut changes);
    }
    let changes = &mut with_nodes_gone_before_they_return(transcript, changes);
    let mut lines = Vec::with_capacity(transcript.lines.len() + changes.len());
    for (index, line) in transcript.lines.iter().enumerate() {
        let derived = changes.remove(&index).unwrap_or_default();
        for (verb, object) in
            derived.into_iter().filter(|(_, object)| !recorded.contains(&Key::of_object(object)))
        {
            lines.push(Line { number: 0, at_us: line.at_us, conn: None, event: Event::Api(verb, object) });
        }
        lines.push(line.clone());
    }
    Transcript { lines, ..transcript.clone() }
}

/// A Node that is created again was deleted before. The deletion is placed while the node was away, as far as the
/// frames show it, and not in the middle of the connection on which it returns.
fn with_nodes_gone_before_they_return(
    transcript: &Transcript,
    changes: HashMap<usize, Vec<(Verb, Value)>>,
) -> HashMap<usize, Vec<(Verb, Value)>> {
    let mut moved: HashMap<usize, Vec<(Verb, Value)>> = HashMap::new();
    let mut later = Vec::new();
    for (index, list) in changes {
        for (verb, object) in list {
            let gone = verb == Verb::Delete && object["kind"] == "Node";
            match gone.then(|| start_of_return(transcript, index, &object)).flatten() {
                Some(start) => moved.entry(start).or_default().push((verb, object)),
                None => later.push((index, verb, object)),
            }
        }
    }
    for (index, verb, object) in later {
        moved.entry(index).or_default().push((verb, object));
    }
    moved
}

/// Start of a line's connection, if nothing on it has shown this object before.
fn start_of_return(transcript: &Transcript, index: usize, object: &Value) -> Option<usize> {
    let conn = transcript.lines.get(index)?.conn?;
    let start = transcript.lines.iter().position(|line| line.conn == Some(conn))?;
    let uid = version(object).0;
    let shows = |line: &Line| match &line.event {
        Event::Down(frame) => frame.objects().iter().any(|shown| version(shown).0 == uid),
        _ => false,
    };
    (!transcript.lines[start..index].iter().any(shows)).then_some(start)
}

fn told_by_api(line: &Line) -> Option<Key> {
    match &line.event {
        Event::Api(_, object) => Some(Key::of_object(object)),
        _ => None,
    }
}

/// The proven facts, in the order of the lines before which they hold.
fn facts(transcript: &Transcript) -> Vec<Fact> {
    let mut requests: HashMap<&str, (usize, &Frame)> = HashMap::new();
    let mut facts: Vec<Fact> = Vec::new();
    let kinds = crate::kinds::of(transcript);
    let pushed: HashSet<(String, String)> = transcript.lines.iter().filter_map(pushed_version).collect();
    for (index, line) in transcript.lines.iter().enumerate() {
        match &line.event {
            Event::Up(frame) => {
                requests.insert(frame.id(), (index, frame));
            }
            Event::Down(frame) if frame.is_push() => facts.extend(of_push(index, frame, &kinds)),
            Event::Down(frame) => {
                if let Some((asked, request)) = requests.get(frame.parent()) {
                    facts.extend(of_reply(*asked, request, frame, &pushed));
                }
            }
            Event::Api(..) => {}
        }
    }
    facts.sort_by_key(|fact| fact.before);
    facts
}

fn pushed_version(line: &Line) -> Option<(String, String)> {
    match &line.event {
        Event::Down(frame) if frame.is_push() => frame.objects().first().map(version),
        _ => None,
    }
}

fn of_push(index: usize, frame: &Frame, kinds: &Kinds) -> Vec<Fact> {
    let object = frame.objects().into_iter().next().map(|object| with_kind(object, frame, kinds));
    let what = match (frame.operation(), object) {
        ("absent", _) => frame.key().map(|key| FactKind::Absent(key, None)),
        ("delete", object) => {
            let uid = object.map(|object| version(&object).0);
            frame.key().map(|key| FactKind::Absent(key, uid))
        }
        (_, object) => object.map(FactKind::Exists),
    };
    what.map(|what| Fact { before: index, what }).into_iter().collect()
}

fn of_reply(asked: usize, request: &Frame, reply: &Frame, pushed: &HashSet<(String, String)>) -> Vec<Fact> {
    let objects = || reply.objects().into_iter();
    let refused = (request.ask() == Ask::Write).then(|| refusals::of(request, reply)).flatten();
    let what: Vec<FactKind> = match request.ask() {
        _ if refused.is_some() => refused.into_iter().collect(),
        Ask::Read if reply.says_not_found() => {
            request.key().map(|key| FactKind::Absent(key, None)).into_iter().collect()
        }
        Ask::Read => objects().map(FactKind::Exists).chain(refusals::listed(request, reply)).collect(),
        Ask::Write if request.operation() == "delete" => {
            let done = reply.content().as_str() == Some("OK");
            request.key().filter(|_| done).map(FactKind::Unmade).into_iter().collect()
        }
        Ask::Write if request.application("Verb") == "delete" => {
            request.key().filter(|_| reply.status().is_none()).map(FactKind::Unmade).into_iter().collect()
        }
        Ask::Write if request.operation() == "DELETE" => of_deletion(request, reply),
        Ask::Write => {
            let made = objects().filter(|object| object["kind"] != "TokenRequest");
            let report = effects::report(request);
            made.map(|object| match &report {
                Some(report) if pushed.contains(&version(&object)) => {
                    FactKind::Reported(object, report.clone())
                }
                _ => {
                    let before = (!request.creates()).then(|| effects::origin(request, &object));
                    FactKind::Made(object, before)
                }
            })
            .collect()
        }
        _ => Vec::new(),
    };
    what.into_iter().map(|what| Fact { before: asked, what }).collect()
}

/// A deletion through the API. If the object lingers, the answer shows it with its deletion time set.
fn of_deletion(request: &Frame, reply: &Frame) -> Vec<FactKind> {
    let lingers = |object: &Value| {
        let metadata = &object["metadata"];
        let kept = metadata["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        metadata["deletionTimestamp"].is_string() && (kept || metadata["deletionGracePeriodSeconds"] != 0)
    };
    let done = reply.content()["code"].as_u64().is_some_and(|code| code < 300);
    match reply.objects().into_iter().next() {
        Some(object) if lingers(&object) => vec![FactKind::Made(object, None)],
        _ => request.key().filter(|_| done).map(FactKind::Unmade).into_iter().collect(),
    }
}

/// An object that a typed encoder wrote, with its kind added. If the kind is unknown, it is the resource word of the
/// path.
fn with_kind(mut object: Value, frame: &Frame, kinds: &Kinds) -> Value {
    if object["kind"].is_null()
        && let Some(key) = frame.key()
    {
        match kinds.named(&ResourceType::parse(&key.kind)) {
            Some((kind, version)) => {
                object["kind"] = kind.into();
                object["apiVersion"] = version.into();
            }
            None => object["kind"] = key.kind.into(),
        }
    }
    object
}

/// Uid and version of an object.
fn version(object: &Value) -> (String, String) {
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    (text("/metadata/uid"), text("/metadata/resourceVersion"))
}

/// The state of the API as far as the transcript shows it.
#[derive(Default)]
struct ObservedApiState {
    objects: HashMap<Key, Value>,
    /// Uids of incarnations that a write deleted.
    ended: HashSet<String>,
    /// Position of the last fact about an incarnation.
    last_seen: HashMap<String, usize>,
}

impl ObservedApiState {
    fn take(&mut self, position: usize, fact: Fact, changes: &mut HashMap<usize, Vec<(Verb, Value)>>) {
        let shown = match fact.what {
            FactKind::Exists(object) => self.exists(object),
            FactKind::Made(object, before) => self.written(object, before),
            FactKind::Reported(object, report) => self.reported(object, &report),
            FactKind::Unmade(key) => {
                // A pod on a node is deleted when its kubelet confirms it; every other object at once.
                let gone = self.objects.remove(&key);
                self.ended.extend(gone.map(|object| version(&object).0));
                Vec::new()
            }
            FactKind::Absent(key, uid) => self.absent(position, &key, uid),
            FactKind::Listed(listed) => self.listed(position, &listed),
            FactKind::Refused(refused) => self.refused(refused),
        };
        if !shown.is_empty() {
            changes.entry(fact.before).or_default().extend(shown);
        }
    }

    fn exists(&mut self, object: Value) -> Vec<(Verb, Value)> {
        let (uid, revision) = version(&object);
        let key = Key::of_object(&object);
        if self.ended.contains(&uid) {
            return Vec::new();
        }
        let change = match self.objects.get(&key).map(|known| (version(known), known)) {
            None => vec![(Verb::Create, object.clone())],
            Some(((same, _), known)) if same != uid => {
                vec![(Verb::Delete, known.clone()), (Verb::Create, object.clone())]
            }
            // An older version than the newest one seen changes nothing: caches lag.
            Some(((_, newest), _)) if !is_newer(&revision, &newest) => return Vec::new(),
            Some(_) => vec![(Verb::Update, object.clone())],
        };
        self.objects.insert(key, object);
        change
    }

    fn written(&mut self, object: Value, before: Option<Value>) -> Vec<(Verb, Value)> {
        let known = self.objects.get(&Key::of_object(&object));
        let change = match (known, before) {
            // The object already existed when the recording began.
            (None, Some(before)) => vec![(Verb::Create, before)],
            // Another incarnation was created: the former one must have been deleted.
            (Some(known), None) if version(known).0 != version(&object).0 => {
                vec![(Verb::Delete, known.clone())]
            }
            _ => Vec::new(),
        };
        self.made(object);
        change
    }

    fn reported(&mut self, object: Value, report: &Value) -> Vec<(Verb, Value)> {
        let mut change = Vec::new();
        match self.objects.get(&Key::of_object(&object)) {
            None => {
                let mut before = object.clone();
                strip(&mut before, &["resourceVersion"]);
                change.push((Verb::Create, before));
            }
            Some(known)
                if version(known).0 == version(&object).0
                    && is_newer(&version(&object).1, &version(known).1) =>
            {
                let before = effects::before(known, &object, report);
                if !same_content(known, &before) {
                    change.push((Verb::Update, before));
                }
            }
            Some(_) => {}
        }
        self.made(object);
        change
    }

    fn absent(&mut self, position: usize, key: &Key, uid: Option<String>) -> Vec<(Verb, Value)> {
        let gone = self.objects.get(key).filter(|known| uid.is_none_or(|uid| uid == version(known).0));
        let gone = gone
            .filter(|known| self.last_seen.get(&version(known).0).is_none_or(|last| *last <= position))
            .cloned();
        if gone.is_some() {
            self.objects.remove(key);
        }
        gone.map(|known| (Verb::Delete, known)).into_iter().collect()
    }
}

impl ObservedApiState {
    /// Records that a write of the edge created this, unless a newer version was seen.
    fn made(&mut self, object: Value) {
        let key = Key::of_object(&object);
        let known = self.objects.get(&key).map(version);
        let (uid, revision) = version(&object);
        if known.is_none_or(|(same, newest)| same != uid || is_newer(&revision, &newest)) {
            self.objects.insert(key, object);
        }
    }
}

/// Compares numeric versions as numbers (as Kubernetes does from 1.35 on).
fn is_newer(revision: &str, newest: &str) -> bool {
    match (revision.parse::<u64>(), newest.parse::<u64>()) {
        (Ok(revision), Ok(newest)) => revision > newest,
        _ => revision != newest,
    }
}
