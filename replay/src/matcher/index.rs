//! Index of a transcript for the lookups of a run. Built once.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::version;
use crate::frame::{Ask, Frame, Key};
use crate::transcript::{Event, Transcript, Verb};

/// Uid and version of an object.
pub(super) type Version = (String, String);

/// A frame of the recorded cloud that shows an object.
pub(super) struct Carrier {
    pub(super) line: usize,
    /// Whether the frame answers a request.
    pub(super) is_answer: bool,
    pub(super) version: Version,
}

/// The index, with one field for each kind of lookup. Lines are identified by their index.
#[derive(Default)]
pub(super) struct TranscriptIndex<'t> {
    /// Requests by id.
    pub(super) requests: HashMap<&'t str, usize>,
    /// Answers by the id of their request.
    pub(super) answers: HashMap<&'t str, usize>,
    /// Repeated frames, and further answers to one request, with the line of the first.
    pub(super) once_more: HashMap<usize, usize>,
    /// Queries by their resource.
    pub(super) queries: HashMap<&'t str, Vec<usize>>,
    /// Deliveries by their resource.
    pub(super) pushes: HashMap<String, Vec<usize>>,
    /// Frames that the edge has acknowledged.
    pub(super) acked: HashSet<&'t str>,
    /// Objects by uid and version.
    pub(super) versions: HashMap<Version, Value>,
    /// Versions by uid.
    pub(super) by_uid: HashMap<String, Vec<Version>>,
    /// Frames that showed an object, by its uid, in order.
    pub(super) carriers: HashMap<String, Vec<Carrier>>,
    /// Versions that were delivered; below, those that answers showed.
    pub(super) pushed: HashSet<Version>,
    pub(super) answered: HashSet<Version>,
    /// Versions that answers to the edge's own writes showed, by name, with the line of the first such write. A write
    /// that changes nothing shows the state before it.
    pub(super) written: HashMap<(Key, String), usize>,
    /// Objects that writes of the edge created, by uid: the line of the write, and the version that its answer shows.
    pub(super) born: HashMap<String, (usize, u64)>,
    /// Objects that were deleted, by an API line or at the request of the edge.
    pub(super) deleted: HashSet<Key>,
    /// Objects that an API line shows.
    pub(super) in_api: HashSet<Key>,
    /// Whether an older edge reports its node: the cloud then replaces old heartbeats by the current time
    /// (docs/reference/kubeedge.md#older-edges).
    pub(super) has_node_reports: bool,
    /// The last answer of the cloud on each connection. A KubeEdge cloud sends answers beside deliveries, so that a
    /// delivery does not imply that an earlier answer was sent (docs/reference/kubeedge.md#acknowledged-deliveries).
    pub(super) last_answer: HashMap<Option<u64>, usize>,
    /// Whether the cloud has a dynamic controller. It is off unless configured, and then answers nothing.
    pub(super) has_dynamic: bool,
}

impl<'t> TranscriptIndex<'t> {
    pub(super) fn new(transcript: &'t Transcript) -> Self {
        let mut index = Self::default();
        let mut ids: HashMap<&str, usize> = HashMap::new();
        for (number, line) in transcript.lines.iter().enumerate() {
            match &line.event {
                Event::Up(frame) => index.take_up(number, frame),
                Event::Down(frame) => {
                    let first = *ids.entry(frame.id()).or_insert(number);
                    if first != number {
                        index.once_more.insert(number, first);
                    }
                    if !frame.is_push() {
                        index.last_answer.insert(line.conn, number);
                    }
                    index.take_down(number, frame);
                    index.take_written(transcript, frame);
                }
                Event::Api(verb, object) => {
                    let key = Key::of_object(object);
                    let named = if *verb == Verb::Delete { &mut index.deleted } else { &mut index.in_api };
                    named.insert(key);
                    if *verb != Verb::Delete {
                        index.take_object(object);
                    }
                }
            }
        }
        index
    }

    fn take_up(&mut self, number: usize, frame: &'t Frame) {
        if frame.operation() == "delete"
            && let Some(key) = frame.key()
        {
            self.deleted.insert(key);
        }
        if frame.is_frame("api", "DELETE")
            && let Some(key) = frame.key()
        {
            self.deleted.insert(key);
        }
        self.has_node_reports |= frame.operation() == "update" && frame.resource().contains("/nodestatus/");
        if frame.ask() == Ask::Read {
            self.queries.entry(frame.resource()).or_default().push(number);
        }
        if frame.ask() == Ask::Ack {
            self.acked.insert(frame.parent());
        } else {
            self.requests.insert(frame.id(), number);
        }
    }

    fn take_down(&mut self, number: usize, frame: &'t Frame) {
        self.has_dynamic |= frame.source() == "dynamiccontroller";
        if !frame.parent().is_empty() {
            let first = *self.answers.entry(frame.parent()).or_insert(number);
            if first != number {
                self.once_more.insert(number, first);
            }
        }
        if frame.is_push() {
            self.pushes.entry(frame.usual_resource()).or_default().push(number);
        }
        for object in frame.objects() {
            let version = version(&object);
            let given = if frame.is_push() { &mut self.pushed } else { &mut self.answered };
            given.insert(version.clone());
            let is_answer = !frame.parent().is_empty();
            let carrier = Carrier { line: number, is_answer, version: version.clone() };
            self.carriers.entry(version.0).or_default().push(carrier);
            self.take_object(&object);
        }
    }

    /// Records the versions that the answer to a write shows.
    fn take_written(&mut self, transcript: &Transcript, reply: &Frame) {
        let Some(asked) = self.requests.get(reply.parent()).copied() else { return };
        let Some(Event::Up(request)) = transcript.lines.get(asked).map(|line| &line.event) else { return };
        if request.ask() != Ask::Write {
            return;
        }
        for object in reply.objects() {
            let (uid, revision) = version(&object);
            if let Ok(number) = revision.parse()
                && request.creates()
            {
                self.born.insert(uid, (asked, number));
            }
            self.written.entry((Key::of_object(&object), revision)).or_insert(asked);
        }
        if let Some(key) = request.key().filter(|_| !reply.resource_version().is_empty()) {
            self.written.entry((key, reply.resource_version().to_owned())).or_insert(asked);
        }
    }

    fn take_object(&mut self, object: &Value) {
        let version = version(object);
        if !self.versions.contains_key(&version) {
            self.by_uid.entry(version.0.clone()).or_default().push(version.clone());
            self.versions.insert(version, object.clone());
        }
    }

    /// The newest version of an object that a frame before this line shows.
    pub(super) fn shown_before(&self, line: usize, uid: &str) -> Option<&Value> {
        let carriers = self.carriers.get(uid)?.iter().rev();
        carriers
            .into_iter()
            .find(|carrier| carrier.line < line)
            .and_then(|carrier| self.versions.get(&carrier.version))
    }

    /// Whether an answer showed exactly this version.
    pub(super) fn is_answered(&self, version: &Version) -> bool {
        let carriers = self.carriers.get(&version.0);
        carriers.is_some_and(|all| all.iter().any(|carrier| carrier.is_answer && carrier.version == *version))
    }
}
