//! What a transcript says, in the ways in which a run asks for it. Made once.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::frame::{Ask, Frame, Key};
use crate::transcript::{Event, Line, Transcript, Verb};
use crate::value::{Version, version};

/// A frame of the recorded cloud that has shown an object.
pub(super) struct Carrier {
    pub(super) line: usize,
    /// It answers a request.
    pub(super) is_answer: bool,
    pub(super) version: Version,
}

/// Time in which our own cloud has certainly answered what it answers at all: as long before its end, a connection may have had
/// an answer under way.
const ANSWERED_WITHIN_US: u64 = 1_000_000;

/// Lines are named by their index.
#[derive(Default)]
pub(super) struct Index<'t> {
    /// Requests by their id.
    pub(super) requests: HashMap<&'t str, usize>,
    /// Answers by the id of their request.
    pub(super) answers: HashMap<&'t str, usize>,
    /// Frames that came a second time, and further answers to one request, with the line of the first.
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
    /// Versions that were delivered, and those that answers showed.
    pub(super) pushed: HashSet<Version>,
    pub(super) answered: HashSet<Version>,
    /// Versions that answers to the edge's own writes have shown, by name: the line of the first such write. A write that
    /// changes nothing shows what was there before it.
    pub(super) written: HashMap<(Key, String), usize>,
    /// Objects that writes of the edge have created, by uid: the line of the write, and the
    /// version that its answer shows.
    pub(super) born: HashMap<String, (usize, u64)>,
    /// Objects that went, by a line of the API or because the edge had them deleted.
    pub(super) deleted: HashSet<Key>,
    /// Objects that a line of the API shows.
    pub(super) in_api: HashSet<Key>,
    /// An older edge reports its node: the cloud brings old heartbeats to the present time
    /// (docs/reference/kubeedge.md#older-edges).
    pub(super) has_node_reports: bool,
    /// The last request of each queue that was answered, on each connection. A stock cloud answers beside deliveries, and
    /// from several queues at once: nothing else says that an earlier answer has gone.
    taken: HashMap<(Option<u64>, [&'t str; 3]), usize>,
    /// The last answer on each connection, and when the connection ends.
    last_answer: HashMap<Option<u64>, usize>,
    ends: HashMap<Option<u64>, u64>,
    /// Whether the cloud has a dynamic controller: one that is off, as it is unless the settings say so, answers nothing.
    pub(super) has_dynamic: bool,
}

impl<'t> Index<'t> {
    pub(super) fn new(transcript: &'t Transcript) -> Self {
        let mut index = Self::default();
        let mut ids: HashMap<&str, usize> = HashMap::new();
        for (number, line) in transcript.lines.iter().enumerate() {
            index.ends.insert(line.conn, line.at_us);
            match &line.event {
                Event::Up(frame) => index.take_up(number, frame),
                Event::Down(frame) => {
                    let first = *ids.entry(frame.id()).or_insert(number);
                    if first != number {
                        index.once_more.insert(number, first);
                    }
                    index.take_answer(transcript, line, number, frame);
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

    fn take_answer(&mut self, transcript: &'t Transcript, line: &Line, number: usize, frame: &Frame) {
        if frame.is_push() {
            return;
        }
        self.last_answer.insert(line.conn, number);
        let Some(asked) = self.requests.get(frame.parent()).copied() else { return };
        if let Some(Event::Up(request)) = transcript.lines.get(asked).map(|line| &line.event) {
            let last = self.taken.entry((line.conn, request.queue())).or_insert(asked);
            *last = asked.max(*last);
        }
    }

    /// Whether the answer to the request of this line may have been lost with the end of its connection. Our own cloud answers
    /// in any order.
    pub(super) fn may_be_cut_off(&self, line: &Line, asked: usize, request: &Frame) -> bool {
        if request.is_tombolo() {
            let ends = self.ends.get(&line.conn).copied().unwrap_or_default();
            let none_after = self.last_answer.get(&line.conn).is_none_or(|last| *last <= asked);
            return none_after || ends.saturating_sub(line.at_us) <= ANSWERED_WITHIN_US;
        }
        self.taken.get(&(line.conn, request.queue())).is_none_or(|last| *last < asked)
    }

    /// The versions that the answer to a write tells of.
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

    /// The newest version of an object that a frame before this line has shown.
    pub(super) fn shown_before(&self, line: usize, uid: &str) -> Option<&Value> {
        let carriers = self.carriers.get(uid)?.iter().rev();
        carriers
            .into_iter()
            .find(|carrier| carrier.line < line)
            .and_then(|carrier| self.versions.get(&carrier.version))
    }

    /// Whether an answer has shown this very version.
    pub(super) fn is_answered(&self, version: &Version) -> bool {
        let carriers = self.carriers.get(&version.0);
        carriers.is_some_and(|all| all.iter().any(|carrier| carrier.is_answer && carrier.version == *version))
    }
}
