//! Finds the position of API lines among the frames.
//!
//! A recorder may see the API through its own watch, which is a little behind or ahead of the cloud's. Frames show what
//! the cloud knew: a version in an answer existed before the request, a version in a delivery existed before the
//! delivery, and the result of a write came after the write. Lines that contradict this are moved; all others stay.

use std::collections::HashMap;

use super::{is_newer, version};
use crate::frame::{Ask, Frame, Key};
use crate::transcript::{Event, Line, Transcript, Verb};

/// Before a line, at it, or after it.
type LinePosition = (usize, i8);

/// The transcript with its API lines in the order that the frames prove.
pub(super) fn ordered(transcript: &Transcript) -> Transcript {
    let mut positions = LinePositions::new(transcript);
    let mut requests: HashMap<&str, (usize, &Frame)> = HashMap::new();
    for (index, line) in transcript.lines.iter().enumerate() {
        match &line.event {
            Event::Up(frame) => {
                requests.insert(frame.id(), (index, frame));
            }
            Event::Down(frame) if frame.is_push() => positions.shown(frame, index),
            Event::Down(frame) => {
                if let Some((asked, request)) = requests.get(frame.parent()) {
                    match request.ask() {
                        Ask::Read => positions.read(*asked, index, request, frame),
                        Ask::Write => positions.written(*asked, index, request, frame),
                        _ => {}
                    }
                }
            }
            Event::Api(..) => {}
        }
    }
    let mut order: Vec<usize> = (0..transcript.lines.len()).collect();
    order.sort_by_key(|index| (positions.of[*index], *index));
    let lines: Vec<Line> = order.into_iter().map(|index| transcript.lines[index].clone()).collect();
    Transcript { lines, ..transcript.clone() }
}

/// One API line.
struct ApiLine {
    index: usize,
    verb: Verb,
    revision: String,
}

struct LinePositions {
    of: Vec<LinePosition>,
    by_uid: HashMap<String, Vec<ApiLine>>,
    /// Creations and deletions by name.
    by_key: HashMap<Key, Vec<(usize, Verb)>>,
}

impl LinePositions {
    fn new(transcript: &Transcript) -> Self {
        let of = (0..transcript.lines.len()).map(|index| (index, 0)).collect();
        let mut positions = Self { of, by_uid: HashMap::new(), by_key: HashMap::new() };
        // Versions count for the whole cluster: the lines so far, with the newest version up to each.
        let mut newest: Vec<(usize, u64)> = Vec::new();
        for (index, line) in transcript.lines.iter().enumerate() {
            let Event::Api(verb, object) = &line.event else { continue };
            let (uid, revision) = version(object);
            if let Ok(number) = revision.parse::<u64>() {
                let later = newest.partition_point(|(_, seen)| *seen <= number);
                // An object that is older than one shown earlier was there before that one.
                if let (Verb::Create, Some((line, _))) = (verb, newest.get(later)) {
                    positions.before(index, *line);
                }
                let highest = newest.last().map_or(number, |(_, seen)| number.max(*seen));
                newest.push((index, highest));
            }
            positions.by_uid.entry(uid).or_default().push(ApiLine { index, verb: *verb, revision });
            if *verb != Verb::Update {
                positions.by_key.entry(Key::of_object(object)).or_default().push((index, *verb));
            }
        }
        positions
    }

    fn before(&mut self, line: usize, at: usize) {
        self.of[line] = self.of[line].min((at, -1));
    }

    /// A delivery shows what existed before it.
    fn shown(&mut self, frame: &Frame, at: usize) {
        for object in frame.objects() {
            let (uid, shown) = version(&object);
            let ends = frame.operation() == "delete";
            let lines = self.late(&uid, at, |line| {
                (line.verb == Verb::Delete) == ends && (ends || !is_newer(&line.revision, &shown))
            });
            lines.into_iter().for_each(|line| self.before(line, at));
        }
    }

    /// An answer shows what existed before the request, or that nothing did.
    fn read(&mut self, asked: usize, answered: usize, request: &Frame, reply: &Frame) {
        for object in reply.objects() {
            let (uid, shown) = version(&object);
            let lines =
                self.late(&uid, asked, |line| line.verb != Verb::Delete && !is_newer(&line.revision, &shown));
            lines.into_iter().for_each(|line| self.before(line, asked));
        }
        if !reply.says_not_found() {
            return;
        }
        let Some(named) = request.key().and_then(|key| self.by_key.get(&key)) else { return };
        let next = named.iter().find(|(line, _)| *line > asked).copied();
        match next {
            Some((line, Verb::Delete)) => self.before(line, asked),
            Some((line, _)) if line < answered => self.of[line] = (answered, 1),
            _ => {}
        }
    }

    /// The result of a write came after it, its previous state before it. Nothing existed before a creation, which may
    /// take several steps. A deletion stays where it is, because a run waits for the answer before it.
    fn written(&mut self, asked: usize, answered: usize, request: &Frame, reply: &Frame) {
        let creates = request.creates();
        for object in reply.objects() {
            let (uid, made) = version(&object);
            let Some(lines) = self.by_uid.get(&uid) else { continue };
            let between: Vec<(usize, bool)> = lines
                .iter()
                .filter(|line| line.index > asked && line.index < answered && line.verb != Verb::Delete)
                .map(|line| (line.index, creates || line.revision == made || is_newer(&line.revision, &made)))
                .collect();
            for (line, after) in between {
                if after {
                    self.of[line] = (answered, 1);
                } else {
                    self.before(line, asked);
                }
            }
        }
    }

    /// Lines of an object that come after this line.
    fn late(&self, uid: &str, at: usize, wanted: impl Fn(&ApiLine) -> bool) -> Vec<usize> {
        let lines = self.by_uid.get(uid).into_iter().flatten();
        lines.filter(|line| line.index > at && wanted(line)).map(|line| line.index).collect()
    }
}
