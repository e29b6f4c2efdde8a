//! Follows a run along a transcript: what was expected, what came, and where they differ.

mod deliveries;

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde_json::Value;

use crate::compare::{Additions, Comparison, additions, learn};
use crate::frame::{Ask, Frame};
use crate::identifiers::Identifiers;
use crate::rules::{Rule, Tally};
use crate::soundness;
use crate::transcript::{Event, Line, Transcript, Verb};

/// The first thing that is not as it was recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Line of the transcript; 0 where it has none.
    pub line: usize,
    /// What was recorded.
    pub recorded: Option<Value>,
    /// What came.
    pub live: Option<Value>,
    /// How they differ.
    pub problem: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |frame: &Option<Value>| frame.as_ref().map_or("nothing".to_owned(), Value::to_string);
        writeln!(f, "line {}: {}", self.line, self.problem)?;
        writeln!(f, "recorded: {}", shown(&self.recorded))?;
        write!(f, "came:     {}", shown(&self.live))
    }
}

impl std::error::Error for Difference {}

/// Whether an expected frame has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It has, or a rule says that it need not.
    Done,
    /// Not yet.
    Waiting,
}

/// What a run without differences has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Expected frames that came.
    pub matched: usize,
    /// Expected frames that a rule excused.
    pub excused: usize,
    /// Frames that came besides, each under a rule.
    pub besides: usize,
    /// Rules that were needed.
    pub rules: Tally,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Met,
    Excused(Rule),
}

struct Push {
    conn: u64,
    frame: Frame,
    used: bool,
}

/// Compares a run with a transcript that has its lines of the API. Everything that happens is told to it, in order.
pub struct Matcher<'t> {
    transcript: &'t Transcript,
    states: Vec<State>,
    /// Recorded requests by their recorded id.
    requests: HashMap<&'t str, usize>,
    /// Recorded answers by the recorded id of their request.
    answers: HashMap<&'t str, usize>,
    /// Recorded frames that the edge has acknowledged.
    acked: HashSet<&'t str>,
    /// Requests of the run, by their id.
    sent: HashMap<String, usize>,
    answered: HashSet<usize>,
    heard: HashSet<String>,
    pushes: Vec<Push>,
    /// Recorded objects by uid and version.
    versions: HashMap<(String, String), Value>,
    /// Live versions that lie between two recorded ones.
    between: HashSet<(String, String)>,
    /// Uids of objects that the run's cluster has of its own.
    own: HashSet<String>,
    additions: Additions,
    identifiers: Identifiers,
    rules: Tally,
    besides: usize,
}

impl<'t> Matcher<'t> {
    /// A run that has not begun. What answers to inserts show beyond the request is taken from `transcript` too.
    ///
    /// # Errors
    /// [`Difference`] when the transcript contradicts itself.
    pub fn new(transcript: &'t Transcript) -> Result<Self, Difference> {
        Self::with_origin(transcript, transcript)
    }

    /// As [`Self::new`], for a transcript that was altered: what the cluster added is taken from `origin`.
    ///
    /// # Errors
    /// [`Difference`] when the transcript contradicts itself.
    pub fn with_origin(transcript: &'t Transcript, origin: &Transcript) -> Result<Self, Difference> {
        if let Some(fault) = soundness::check(transcript) {
            let line = &transcript.lines[fault.index];
            return Err(at(line, None, fault.problem));
        }
        let mut matcher = Self {
            transcript,
            states: vec![State::Open; transcript.lines.len()],
            requests: HashMap::new(),
            answers: HashMap::new(),
            acked: HashSet::new(),
            sent: HashMap::new(),
            answered: HashSet::new(),
            heard: HashSet::new(),
            pushes: Vec::new(),
            versions: HashMap::new(),
            between: HashSet::new(),
            own: HashSet::new(),
            additions: all_additions(origin),
            identifiers: Identifiers::default(),
            rules: Tally::default(),
            besides: 0,
        };
        matcher.index();
        Ok(matcher)
    }

    fn index(&mut self) {
        for (index, line) in self.transcript.lines.iter().enumerate() {
            match &line.event {
                Event::Up(frame) if frame.ask() == Ask::Ack => {
                    self.acked.insert(frame.parent());
                }
                Event::Up(frame) => {
                    self.requests.insert(frame.id(), index);
                }
                Event::Down(frame) => {
                    if !frame.parent().is_empty() {
                        self.answers.entry(frame.parent()).or_insert(index);
                    }
                    for object in frame.objects() {
                        self.versions.entry(version(&object)).or_insert(object);
                    }
                }
                Event::Api(_, object) => {
                    self.versions.entry(version(object)).or_insert_with(|| object.clone());
                }
            }
        }
    }

    /// What the recorded cluster added to objects that the edge wrote: preconditions of an equal answer.
    pub fn preconditions(&self) -> impl Iterator<Item = String> + '_ {
        self.additions.iter().map(|(pointer, value)| format!("{pointer} = {value}"))
    }

    /// The request of a line as an edge of this run sends it, under a new id and time.
    #[must_use]
    pub fn request(&self, index: usize, id: &str, timestamp_millis: u64) -> Option<Value> {
        let Event::Up(frame) = &self.transcript.lines.get(index)?.event else { return None };
        let mut json = frame.as_json().clone();
        self.identifiers.translate_content(&mut json);
        json["header"]["msg_id"] = id.into();
        json["header"]["timestamp"] = timestamp_millis.into();
        Some(json)
    }

    /// The object of a line of the API as the API of this run knows it: uid and version are replaced where known.
    #[must_use]
    pub fn object(&self, index: usize) -> Option<Value> {
        let Event::Api(_, object) = &self.transcript.lines.get(index)?.event else { return None };
        let mut object = object.clone();
        self.identifiers.translate_content(&mut object);
        Some(object)
    }

    /// The request of a line was sent under this id.
    pub fn sent(&mut self, index: usize, id: &str) {
        self.sent.insert(id.to_owned(), index);
    }

    /// The change of a line was made: what the API holds now, and before that what it held on the way.
    pub fn applied(&mut self, index: usize, states: &[Value]) {
        let Some(Line { event: Event::Api(verb, recorded), .. }) = self.transcript.lines.get(index) else {
            return;
        };
        let Some((last, on_the_way)) = states.split_last() else { return };
        self.between.extend(on_the_way.iter().map(version));
        if self.own.contains(&version(last).0) {
            return;
        }
        if recorded["metadata"]["resourceVersion"].is_null() || *verb == Verb::Delete {
            self.between.insert(version(last));
        }
        learn(&mut self.identifiers, recorded, last);
    }

    /// The cluster of the run has this object of its own: a run may show it although the recording does not.
    pub fn own(&mut self, object: &Value) {
        self.own.insert(version(object).0);
    }

    /// The empty message of a stopped edge was sent.
    pub fn sent_empty(&mut self) {
        self.rules.count(Rule::EmptyMessage);
    }

    /// The cloud said something. Tells whether the recorded edge acknowledged it.
    ///
    /// # Errors
    /// [`Difference`] for an answer that is not the recorded one, and for what answers nothing.
    pub fn received(&mut self, conn: u64, frame: Frame) -> Result<bool, Difference> {
        if !frame.id().is_empty() && !self.heard.insert(frame.id().to_owned()) {
            return Ok(true);
        }
        if frame.is_push() {
            self.pushes.push(Push { conn, frame, used: false });
            return Ok(true);
        }
        let Some(asked) = self.sent.get(frame.parent()).copied() else {
            return Err(unexpected(&frame, "the cloud answers something that the edge has not asked"));
        };
        let line = &self.transcript.lines[asked];
        let Event::Up(request) = &line.event else { return Ok(false) };
        if !self.answered.insert(asked) {
            return Err(at(line, Some(&frame), "the request is answered a second time".to_owned()));
        }
        let Some(index) = self.answers.get(request.id()).copied() else {
            return self.unrecorded(asked, request, &frame);
        };
        let expected = &self.transcript.lines[index];
        let Event::Down(recorded) = &expected.event else { return Ok(false) };
        let mut comparison = Comparison::new(&self.identifiers, &self.additions, &self.own);
        match comparison.reply(recorded, &frame) {
            Ok(()) => comparison.commit(&mut self.identifiers, &mut self.rules),
            Err(mismatch) => {
                return Err(at(expected, Some(&frame), format!("the answer differs at {mismatch}")));
            }
        }
        self.states[index] = State::Met;
        Ok(self.acked.contains(recorded.id()))
    }

    /// An answer that the recording does not have.
    fn unrecorded(&mut self, asked: usize, request: &Frame, frame: &Frame) -> Result<bool, Difference> {
        let line = &self.transcript.lines[asked];
        if request.source() == "twin" {
            self.rules.count(Rule::TwinConfirmed);
            return Ok(false);
        }
        let later = self.transcript.lines[asked + 1..].iter();
        let mut downs =
            later.filter(|later| later.conn == line.conn && matches!(later.event, Event::Down(_)));
        if downs.next().is_none() {
            self.rules.count(Rule::RecordingEnds);
            return Ok(request.ask() != Ask::Write);
        }
        Err(at(line, Some(frame), "the request is answered; the recording has no answer".to_owned()))
    }

    /// Whether the expected frame of a line has come.
    ///
    /// # Errors
    /// [`Difference`] when another came in its place.
    pub fn settle(&mut self, index: usize) -> Result<Progress, Difference> {
        let line = &self.transcript.lines[index];
        let Event::Down(recorded) = &line.event else { return Ok(Progress::Done) };
        if self.states[index] != State::Open {
            return Ok(Progress::Done);
        }
        if self.is_repeat(index, recorded) {
            return Ok(self.excuse(index, Rule::Repeated));
        }
        if recorded.is_push() {
            return self.settle_push(index, recorded);
        }
        match self.requests.get(recorded.parent()) {
            Some(_) => Ok(Progress::Waiting),
            None => Err(at(
                line,
                None,
                "the recorded frame is neither a delivery nor an answer to a request".to_owned(),
            )),
        }
    }

    fn is_repeat(&self, index: usize, recorded: &Frame) -> bool {
        let same = |line: &Line| matches!(&line.event, Event::Down(frame) if frame.id() == recorded.id());
        self.transcript.lines[..index].iter().any(same)
    }

    fn excuse(&mut self, index: usize, rule: Rule) -> Progress {
        self.states[index] = State::Excused(rule);
        self.rules.count(rule);
        Progress::Done
    }

    /// What is missing when the frame of a line has not come in time.
    #[must_use]
    pub fn missing(&self, index: usize) -> Difference {
        at(&self.transcript.lines[index], None, "the recorded frame did not come".to_owned())
    }

    /// Ends the run: everything that was expected has come, and nothing else.
    ///
    /// # Errors
    /// [`Difference`] for the first frame that is missing or has no reason.
    pub fn finish(mut self) -> Result<Summary, Difference> {
        for index in 0..self.transcript.lines.len() {
            if self.settle(index)? == Progress::Waiting {
                return Err(self.missing(index));
            }
        }
        for candidate in 0..self.pushes.len() {
            if !self.pushes[candidate].used {
                self.explain(candidate)?;
            }
        }
        let count = |wanted: fn(&State) -> bool| self.states.iter().filter(|state| wanted(state)).count();
        Ok(Summary {
            matched: count(|state| *state == State::Met),
            excused: count(|state| matches!(state, State::Excused(_))),
            besides: self.besides,
            rules: self.rules,
        })
    }
}

/// Uid and version of an object.
fn version(object: &Value) -> (String, String) {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (text("uid"), text("resourceVersion"))
}

fn all_additions(transcript: &Transcript) -> Additions {
    let mut requests: HashMap<&str, &Frame> = HashMap::new();
    let mut all = Additions::new();
    for line in &transcript.lines {
        match &line.event {
            Event::Up(frame) if frame.operation() == "insert" => {
                requests.insert(frame.id(), frame);
            }
            Event::Down(frame) => {
                if let Some(request) = requests.get(frame.parent())
                    && let Some(object) = frame.objects().first()
                {
                    let mut added = additions(request.content(), object);
                    added.retain(|(pointer, _)| !matches!(pointer.as_str(), "/kind" | "/apiVersion"));
                    all.extend(added);
                }
            }
            _ => {}
        }
    }
    all.dedup();
    all
}

fn at(line: &Line, live: Option<&Frame>, problem: String) -> Difference {
    let recorded = match &line.event {
        Event::Up(frame) | Event::Down(frame) => frame.as_json().clone(),
        Event::Api(_, object) => object.clone(),
    };
    Difference {
        line: line.number,
        recorded: Some(recorded),
        live: live.map(|frame| frame.as_json().clone()),
        problem,
    }
}

fn unexpected(frame: &Frame, problem: &str) -> Difference {
    Difference { line: 0, recorded: None, live: Some(frame.as_json().clone()), problem: problem.to_owned() }
}
